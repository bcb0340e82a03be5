"""Regularisation the plain way, for comparison: every row takes every step, in float64.

A `Reference` holds all rows in one array and knows nothing of tables, clocks and skipped steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fluidlite.dtypes import Array


@dataclass
class Reference:
    """Rows ``value`` (..., width) of one optimizer and one penalty, both told by name.

    ``l1``, ``l2``: numbers, or arrays that broadcast with ``value``. An optimizer moves only the rows of a step, save
    momentum and ftrl, whose rows move without a gradient too.
    """

    value: Array
    optimizer: str = "sgd"
    form: str = "proximal"
    l1: float | Array = 0.0
    l2: float | Array = 0.0
    by_row: bool = False
    mu: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    state: dict[str, Array] = field(default_factory=dict)
    steps: int = 0

    def __post_init__(self) -> None:
        self.value = np.array(self.value, np.float64)
        for name in ("velocity", "squared", "first", "second", "linear"):
            self.state[name] = np.zeros_like(self.value)

    def step(self, rate: float, rows: Array | None = None, gradient: Array | None = None) -> None:
        """One step; ``gradient`` (n, width) for ``rows``, an index of the rows; None: no row has one."""
        self.steps += 1
        everywhere = np.zeros_like(self.value)
        if rows is not None:
            everywhere[rows] = gradient
        if self.optimizer in ("momentum", "nesterov", "ftrl"):
            getattr(self, f"_{self.optimizer}")(rate, everywhere)
            return
        if self.form == "multiplicative" or self.form == "gradient":
            self.value *= 1 - rate * self.l2
        if rows is not None:
            getattr(self, f"_{self.optimizer}")(rate, rows, everywhere[rows])
        if self.form == "proximal":
            self._shrink(rate)

    def idle(self, rate: float) -> None:
        """A step without gradients, of an optimizer that then moves nothing."""
        self.steps += 1
        if self.form == "proximal":
            self._shrink(rate)
        else:
            self.value *= 1 - rate * self.l2

    def _shrink(self, rate: float) -> None:
        size = np.linalg.norm(self.value, axis=-1, keepdims=True) if self.by_row else np.abs(self.value)
        left = np.maximum(size - rate * self.l1, 0.0) / (1 + rate * self.l2)
        self.value *= np.divide(left, size, out=np.zeros_like(size), where=size > 0)

    def _sgd(self, rate: float, rows: Array, g: Array) -> None:
        self.value[rows] -= rate * g

    def _adagrad(self, rate: float, rows: Array, g: Array) -> None:
        self.state["squared"][rows] += g * g
        self.value[rows] -= rate * g / (np.sqrt(self.state["squared"][rows]) + 1e-6)

    def _adam(self, rate: float, rows: Array, g: Array) -> None:
        first, second = self.state["first"], self.state["second"]
        beta1, beta2 = self.betas
        first[rows] = beta1 * first[rows] + (1 - beta1) * g
        second[rows] = beta2 * second[rows] + (1 - beta2) * g * g
        correction = np.sqrt(1 - beta2**self.steps) / (1 - beta1**self.steps)
        self.value[rows] -= rate * correction * first[rows] / (np.sqrt(second[rows]) + 1e-8)

    def _momentum(self, rate: float, g: Array, nesterov: bool = False) -> None:
        if self.form == "gradient":
            g = g + self.l2 * self.value
        velocity = self.state["velocity"]
        velocity *= self.mu
        velocity += g
        self.value -= rate * (g + self.mu * velocity if nesterov else velocity)
        if self.form == "proximal":
            self.value /= 1 + rate * self.l2

    def _nesterov(self, rate: float, g: Array) -> None:
        self._momentum(rate, g, nesterov=True)

    def _ftrl(self, rate: float, g: Array) -> None:
        if rate == 0:
            return
        squared, linear = self.state["squared"], self.state["linear"]
        grown = np.sqrt(squared + g * g)
        linear += g - (grown - np.sqrt(squared)) / rate * self.value
        squared += g * g
        slope = grown / rate + 2 * self.l2
        pulled = np.sign(linear) * self.l1 - linear
        self.value[...] = np.where(np.abs(linear) > self.l1, pulled / np.where(slope > 0, slope, 1.0), 0.0)
