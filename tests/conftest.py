"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is slow; how long an example takes says nothing about the code.
settings.register_profile("fluidlite", deadline=None)
settings.load_profile("fluidlite")
