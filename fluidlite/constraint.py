"""Constraints on parameters: where the rows that a step updated must lie afterwards (``ParamAttr(constraint=)``).

A constraint is a projection behind the update, its regularisation included. It sees the rows of the step's ids; all rows
where the gradient is dense.
"""

from __future__ import annotations

import math
from numbers import Real

from fluidlite.errors import ProgramError
from fluidlite.framework import Block, Parameter, Variable

__all__ = ["Bounds", "Constraint", "MaxNorm", "NonNegative"]


class Constraint:
    """Rows whose elements lie in [``low``, ``high``] and whose norm is at most ``max_norm``."""

    def __init__(self, max_norm: float = math.inf, low: float = -math.inf, high: float = math.inf) -> None:
        for name, value in (("max_norm", max_norm), ("low", low), ("high", high)):
            if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
                raise ProgramError(f"{type(self).__name__}: {name} must be a number, not {value!r}")
        if not low <= high or max_norm < 0:
            raise ProgramError(
                f"{type(self).__name__}: no row has elements from {low} to {high} and a norm up to {max_norm}"
            )
        self.max_norm, self.low, self.high = float(max_norm), float(low), float(high)

    def __call__(self, param: Parameter, grad: Variable, block: Block) -> None:
        """Append the projection of the rows of ``param`` that ``grad`` names."""
        limits = {"max_norm": self.max_norm, "low": self.low, "high": self.high}
        block.append_op("constrain_rows", {"Param": param, "Grad": grad}, {"ParamOut": param}, limits)


class MaxNorm(Constraint):
    """The Euclidean norm of a row is at most ``max_norm``: a longer row is scaled, its direction stays."""

    def __init__(self, max_norm: float) -> None:
        super().__init__(max_norm=max_norm)


class NonNegative(Constraint):
    """No element is below 0."""

    def __init__(self) -> None:
        super().__init__(low=0.0)


class Bounds(Constraint):
    """Every element is in [``low``, ``high``]."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__(low=low, high=high)
