"""Momentum and weight decay of rows that steps leave alone: products of small matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.values.row_decay import Form

#: a matrix of two rows
Matrix: TypeAlias = tuple[float, float, float, float]


@dataclass(frozen=True)
class MomentumDecay:
    """Momentum without a gradient, with a penalty ``l2 |w|^2 / 2`` in the gradient or as a proximal step.

    Value and velocity move by a matrix of two rows that depends on the step's rate alone, so many steps are the product
    of their matrices.
    """

    mu: float
    nesterov: bool = False
    l2: float = 0.0
    form: Form = "proximal"

    @property
    def numbers(self) -> int:
        """See `Decay`."""
        return 1

    def clock(self) -> MomentumClock:
        """See `Decay`."""
        return MomentumClock(self)

    def matrix(self, rate: float) -> Matrix:
        """What a step makes of (value, velocity): by rows."""
        pushed = rate * self.mu * (self.mu if self.nesterov else 1.0)
        if self.form == "gradient":
            ahead = 1.0 + (self.mu if self.nesterov else 0.0)
            return 1.0 - rate * self.l2 * ahead, -pushed, self.l2, self.mu
        keep = 1.0 / (1.0 + rate * self.l2)
        return keep, -keep * pushed, 0.0, self.mu

    def step(self, rate: float, value: Array, *state: Array) -> None:
        """See `Decay`."""
        _move(np.array([self.matrix(rate)]), value, state[0])

    def finish(self, rate: float, value: Array) -> None:
        """See `Decay`. In the gradient the penalty was part of the update."""
        if self.form == "proximal":
            value /= 1.0 + rate * self.l2


class MomentumClock:
    """Reads the number of steps. Keeps their matrices, and the products of aligned runs of 2, 4, 8, ... of them."""

    #: steps until a new segment begins, which bounds the memory: 4 MB for the products
    most = 1 << 16

    def __init__(self, rule: MomentumDecay) -> None:
        self._rule = rule
        self._steps = 0
        #: per length of a run the products, (room, 4)
        self._runs: list[Array] = []

    @property
    def now(self) -> Array:
        """See `Clock`."""
        return np.array([float(self._steps)])

    def tick(self, rate: float) -> bool:
        """See `Clock`."""
        self._put(0, self._steps, self._rule.matrix(rate))
        self._steps += 1
        level, length = 1, 2
        while self._steps % length == 0:
            last = self._steps // length
            first, second = self._runs[level - 1][2 * last - 2 : 2 * last].tolist()
            self._put(level, last - 1, _product(second, first))
            level, length = level + 1, 2 * length
        return True

    def _put(self, level: int, index: int, product: Sequence[float]) -> None:
        if level == len(self._runs):
            self._runs.append(np.empty((8, 4)))
        if index == len(self._runs[level]):
            self._runs[level] = np.concatenate([self._runs[level], np.empty_like(self._runs[level])])
        self._runs[level][index] = product

    @property
    def is_full(self) -> bool:
        """See `Clock`."""
        return self._steps >= self.most

    def carry(self, marks: Array, value: Array, *state: Array) -> None:
        """See `Clock`."""
        starts = marks[:, 0].astype(np.int64)
        first = int(starts.min())
        found = np.zeros(self._steps - first + 1, np.bool_)
        found[starts - first] = True
        products = self._products(np.flatnonzero(found) + first)
        _move(products[np.cumsum(found)[starts - first] - 1], value, state[0])

    def _products(self, starts: Array) -> Array:
        """The product of the matrices of every step from each of ``starts`` (n,) to now: (n, 4).

        It is put together from aligned runs: of rising length up to one that ends behind now, then of falling length.
        """
        at, stop = starts.copy(), self._steps
        out = np.tile([1.0, 0.0, 0.0, 1.0], (len(at), 1))
        for level in range(len(self._runs)):
            self._take(level, at, out, (at % (2 << level) == 1 << level) & (at + (1 << level) <= stop))
        for level in reversed(range(len(self._runs))):
            self._take(level, at, out, at + (1 << level) <= stop)
        return out

    def _take(self, level: int, at: Array, out: Array, which: Array) -> None:
        """Move ``which`` (n,) bool of the rows on by one run."""
        if not which.any():
            return
        run = self._runs[level][at[which] >> level]
        out[which] = np.stack(_product(run.T, out[which].T), axis=1)
        at[which] += 1 << level


def _product(a: Any, b: Any) -> tuple[Any, Any, Any, Any]:
    """The product of two matrices of two rows, each given by its four elements, numbers or arrays."""
    return (
        a[0] * b[0] + a[1] * b[2],
        a[0] * b[1] + a[1] * b[3],
        a[2] * b[0] + a[3] * b[2],
        a[2] * b[1] + a[3] * b[3],
    )


def _move(matrices: Array, value: Array, velocity: Array) -> None:
    """(value, velocity) of each row times its matrix, (n or 1, 4); in place."""
    m = matrices[:, :, None]
    moved = m[:, 0] * value + m[:, 1] * velocity
    velocity[...] = m[:, 2] * value + m[:, 3] * velocity
    value[...] = moved
