"""What becomes of a row in the steps that leave it alone, in closed form.

A `Decay` is a rule of regularisation. It moves a row that gets no gradient by a function of the step's learning rate
alone. Its `Clock` sums the rates up, in float64, so that a row that was last brought up to date when the clock read
``mark`` can be carried to now in one go, whatever the rates were. All values here are float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np

from fluidlite.dtypes import Array

#: how a penalty enters a step: into the gradient; as a proximal step after the update; as a factor before the update
Form: TypeAlias = Literal["gradient", "proximal", "multiplicative"]

#: below, 1 / P of the sums grows beyond what float64 holds precisely, and a new segment begins
_LEAST_LOG: Final = -40.0


class Clock(Protocol):
    """The steps since the last border."""

    @property
    def now(self) -> Array:
        """Its reading (k,): the mark of a row that is up to date."""
        ...

    def tick(self, rate: float) -> bool:
        """One step at a learning rate, 0 or more. False, and nothing is counted, where it has no place in the sums:
        every row must then take this step by `Decay.step`."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether rows have to be carried to here, and a new clock begun."""
        ...

    def carry(self, marks: Array, value: Array, *state: Array) -> None:
        """Bring rows that were up to date at ``marks`` (n, k) to now: ``value`` (n, width) and the accumulators that
        the rule moves, in place."""
        ...


class Decay(Protocol):
    """A rule, comparable by its numbers."""

    @property
    def numbers(self) -> int:
        """Numbers in a mark."""
        ...

    def clock(self) -> Clock:
        """A clock that has not ticked."""
        ...

    def step(self, rate: float, value: Array, *state: Array) -> None:
        """One step of rows that have no gradient, in place."""
        ...

    def finish(self, rate: float, value: Array) -> None:
        """What is left to do, in place, on rows that the optimizer has updated in this step."""
        ...


def shrink(value: Array, keep: float | Array, drop: float | Array, *, by_row: bool) -> None:
    """``|v|`` becomes ``max(0, keep |v| - drop)``, the sign stays, of each element, or with ``by_row`` of the norm of each
    row, whose direction stays. ``value`` (n, ...) in place; ``keep``, ``drop`` numbers or (n, 1)."""
    if not np.any(drop):
        value *= keep
    elif by_row:
        flat = value.reshape(len(value), -1)
        norm = np.sqrt(np.einsum("ij,ij->i", flat, flat))[:, None]
        flat *= np.maximum(keep - np.divide(drop, norm, out=np.zeros_like(norm), where=norm > 0), 0.0)
    else:
        size = np.abs(value)
        size *= keep
        size -= drop
        np.copysign(np.maximum(size, 0.0, out=size), value, out=value)


class _Sum:
    """A sum whose rounding errors are summed beside it (Neumaier, 1974)."""

    __slots__ = ("_lost", "_sum", "value")

    def __init__(self) -> None:
        self._sum = self._lost = self.value = 0.0

    def add(self, term: float) -> None:
        total = self._sum + term
        large, small = (self._sum, term) if abs(self._sum) >= abs(term) else (term, self._sum)
        self._lost += (large - total) + small
        self._sum = total
        self.value = total + self._lost


@dataclass(frozen=True)
class Shrinkage:
    """``l1 |w| + l2 |w|^2 / 2``, of elements or (``by_row``) with the norm of the row in the place of the first ``|w|``.

    A step at rate e: proximal ``|w| <- max(0, |w| - e l1) / (1 + e l2)``; multiplicative, and from the gradient, which
    has no ``l1``: ``w <- (1 - e l2) w``.
    """

    l1: float = 0.0
    l2: float = 0.0
    form: Form = "proximal"
    by_row: bool = False

    @property
    def numbers(self) -> int:
        """See `Decay`."""
        return 2

    def clock(self) -> ShrinkageClock:
        """See `Decay`."""
        return ShrinkageClock(self)

    def step(self, rate: float, value: Array, *_: Array) -> None:
        """See `Decay`."""
        if self.form == "proximal":
            keep = 1.0 / (1.0 + rate * self.l2)
            shrink(value, keep, keep * rate * self.l1, by_row=self.by_row)
        else:
            value *= 1.0 - rate * self.l2

    def finish(self, _rate: float, _value: Array) -> None:
        """See `Decay`. A proximal step waits for the next use of the row; the other forms come before the update."""


class ShrinkageClock:
    """Reads (L, B) = (log P, sum of rate / P before the step), P the product of the steps' factors."""

    def __init__(self, rule: Shrinkage) -> None:
        self._rule = rule
        self._log = _Sum()
        self._drops = _Sum()

    @property
    def now(self) -> Array:
        """See `Clock`."""
        return np.array([self._log.value, self._drops.value])

    def tick(self, rate: float) -> bool:
        """See `Clock`. A step that multiplies by 0 or less has no logarithm."""
        amount = rate * self._rule.l2
        if self._rule.form == "proximal":
            self._drops.add(rate * math.exp(-self._log.value))
            self._log.add(-math.log1p(amount))
        elif amount < 1.0:
            self._log.add(math.log1p(-amount))
        return self._rule.form == "proximal" or amount < 1.0

    @property
    def is_full(self) -> bool:
        """See `Clock`."""
        return self._log.value < _LEAST_LOG

    def carry(self, marks: Array, value: Array, *_: Array) -> None:
        """See `Clock`."""
        keep = np.exp(self._log.value - marks[:, :1])
        drop = self._rule.l1 * math.exp(self._log.value) * (self._drops.value - marks[:, 1:])
        shrink(value, keep, drop, by_row=self._rule.by_row)


@dataclass(frozen=True)
class FtrlDecay:
    """Follow the regularised leader: without a gradient its accumulators stay, and the value is the minimiser for them
    and the last learning rate. The formula is that of the op `ftrl`."""

    l1: float = 0.0
    l2: float = 0.0
    lr_power: float = -0.5

    @property
    def numbers(self) -> int:
        """See `Decay`."""
        return 1

    def clock(self) -> FtrlClock:
        """See `Decay`."""
        return FtrlClock(self)

    def step(self, rate: float, value: Array, *state: Array) -> None:
        """See `Decay`."""
        squared, linear = state
        if rate > 0.0:
            slope = np.power(squared, -self.lr_power) / rate + 2.0 * self.l2
            moved = np.abs(linear) > self.l1
            value[...] = np.divide(
                self.l1 * np.sign(linear) - linear, slope, out=np.zeros_like(value), where=moved & (slope > 0)
            )

    def finish(self, _rate: float, _value: Array) -> None:
        """See `Decay`. The update did everything."""


class FtrlClock:
    """Reads the number of steps that had a learning rate, and remembers the last."""

    is_full = False

    def __init__(self, rule: FtrlDecay) -> None:
        self._rule = rule
        self._steps = 0
        self._rate = 0.0

    @property
    def now(self) -> Array:
        """See `Clock`."""
        return np.array([float(self._steps)])

    def tick(self, rate: float) -> bool:
        """See `Clock`."""
        if rate > 0.0:
            self._rate = rate
            self._steps += 1
        return True

    def carry(self, _marks: Array, value: Array, *state: Array) -> None:
        """See `Clock`."""
        self._rule.step(self._rate, value, *state)
