"""``fluid.average.WeightedAverage``."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.errors import DataError


class WeightedAverage:
    """The average of numbers or arrays, each with a weight."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.numerator: Any = None
        self.denominator: Any = None

    def add(self, value: Any, weight: Any) -> None:
        """Add a number or array of that weight; DataError for anything else."""
        if not isinstance(value, (int, float, np.number, np.ndarray)):
            raise DataError(f"WeightedAverage.add: value must be a number or an array, not {type(value).__name__}")
        if not isinstance(weight, (int, float, np.number)) and not (
            isinstance(weight, np.ndarray) and weight.shape == (1,)
        ):
            raise DataError(f"WeightedAverage.add: weight must be a number, not {type(weight).__name__}")
        if self.numerator is None or self.denominator is None:
            self.numerator, self.denominator = value * weight, weight
        else:
            self.numerator, self.denominator = self.numerator + value * weight, self.denominator + weight

    def eval(self) -> Any:
        """The average; DataError before anything was added."""
        if self.numerator is None or self.denominator is None:
            raise DataError("WeightedAverage.eval: nothing was added yet")
        return self.numerator / self.denominator
