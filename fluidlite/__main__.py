"""``python -m fluidlite``: the command line."""

from fluidlite.cli import main

main()
