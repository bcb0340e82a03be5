"""Rule: an optimizer's formula by name, with its numbers, so that kernels in numpy and in C can run it."""

from __future__ import annotations

from dataclasses import dataclass

from fluidlite.dtypes import Array
from fluidlite.kernels.in_numpy.formulas import FORMULAS


@dataclass(frozen=True, slots=True)
class Rule:
    """The formula ``name`` of `FORMULAS` with its ``scalars``, in the order of the formula's last parameters.

    Called as ``rule(value, gradient, *accumulators)``, all of one shape and dtype, it changes value and accumulators in
    place by numpy: the reference for every other way of running it. Scalars, and what is computed from scalars alone,
    are double until they meet an array and take its dtype.
    """

    name: str
    scalars: tuple[float, ...]

    def __call__(self, value: Array, gradient: Array, *accumulators: Array) -> None:
        FORMULAS[self.name](value, gradient, *accumulators, *self.scalars)
