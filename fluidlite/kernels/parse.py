"""Kernels that read numbers out of lines of text, in C or in numpy: what the rest of the package imports."""

from __future__ import annotations

from fluidlite.kernels.choice import IN_C
from fluidlite.kernels.in_numpy import parse as in_numpy
from fluidlite.kernels.in_numpy.parse import Criteo, Slots

__all__ = ["Criteo", "Slots", "parse_criteo", "parse_slots"]

parse_slots, parse_criteo = in_numpy.parse_slots, in_numpy.parse_criteo
if IN_C:
    from fluidlite.kernels.in_c import parse as in_c

    parse_slots, parse_criteo = in_c.parse_slots, in_c.parse_criteo
