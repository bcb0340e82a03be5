"""Optimizer steps on arrays and on records, in C or in numpy: what the rest of the package imports."""

from __future__ import annotations

from fluidlite.kernels import choice
from fluidlite.kernels.in_numpy.updates import RowStep
from fluidlite.kernels.rules import Rule

if choice.IN_C:
    from fluidlite.kernels.in_c.updates import update_arrays, update_records
else:
    from fluidlite.kernels.in_numpy.updates import update_arrays, update_records

__all__ = ["RowStep", "Rule", "update_arrays", "update_records"]
