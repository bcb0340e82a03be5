"""``python -m fluidlite.compat script.py [args]``: the same as ``fluidlite run script.py [args]``."""

import sys

from fluidlite.compat.run import main

main(sys.argv[1:])
