"""What a figure is: samples taken in turn, round by round, and targets on what they show. No clock, no processes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

#: measured values by name, e.g. ``{"fluidlite": 41000.0, "fluidlite start-up s": 0.9}``
Values: TypeAlias = Mapping[str, float]
#: takes one measurement
Sample: TypeAlias = Callable[[], Values]

_MET: Final = {True: "met", False: "missed", None: "not measured"}


class SampleError(Exception):
    """A measurement that gave no value; the figure goes on without it."""


@dataclass(frozen=True)
class Settings:
    """How much to measure. ``scale`` shrinks tables and lists of ids, for trials; figures count at 1 only."""

    rounds: int = 7
    steps: int = 200
    warmup: int = 20
    scale: float = 1.0
    peers: Path | None = None
    fluid_python: str = ""
    torch_python: str = ""
    data: Path | None = None

    def size(self, full: int) -> int:
        """A number of rows or ids at this scale."""
        return max(1, round(full * self.scale))


@dataclass(frozen=True)
class Target:
    """A limit on ``of``, alone or against the best of ``against`` that was measured in the same round.

    ``difference``: of - against counts, else of / against. ``at_most``: small is good, and the best is the smallest.
    """

    what: str
    of: str
    limit: float
    against: tuple[str, ...] = ()
    at_most: bool = True
    difference: bool = False

    def value(self, values: Values) -> float | None:
        """What counts in one round; None when a part was not measured."""
        others = [values[name] for name in self.against if name in values]
        if self.of not in values or (self.against and not others):
            return None
        if not others:
            return values[self.of]
        best = min(others) if self.at_most else max(others)
        return values[self.of] - best if self.difference else values[self.of] / best

    @property
    def text(self) -> str:
        """The limit as a table shows it."""
        sign = "≤" if self.at_most else "≥"
        return f"{sign} {self.limit:g}" + (" ×" if self.against and not self.difference else "")


@dataclass(frozen=True)
class Figure:
    """One row of the table, or several. ``open`` prepares (servers, tables) and gives what to measure in each round."""

    name: str
    title: str
    unit: str
    open: Callable[[Settings], AbstractContextManager[Sequence[Sample]]]
    targets: tuple[Target, ...] = ()


@dataclass
class Spread:
    """Median, lowest and highest of some rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass
class Verdict:
    """A target and how it went: the median of per-round values decides. ``what`` also says which rivals were absent."""

    what: str
    limit: str
    bound: float
    at_most: bool
    rounds: list[float]
    met: bool | None

    @classmethod
    def of(cls, target: Target, rounds: Sequence[Values]) -> Verdict:
        values = [value for value in map(target.value, rounds) if value is not None]
        met = None
        if values:
            median = statistics.median(values)
            met = median <= target.limit if target.at_most else median >= target.limit
        seen = {name for measured in rounds for name in measured}
        absent = [name for name in target.against if name not in seen]
        what = f"{target.what} ({', '.join(absent)} absent)" if values and absent else target.what
        return cls(what, target.text, target.limit, target.at_most, values, met)

    def margins(self) -> list[float]:
        """How many times better than the limit each round was; below 1: worse. Nothing counts as more than a hundred
        times better, e.g. a difference below 0."""
        most = 100.0
        if not self.at_most:
            return [min(value / self.bound, most) for value in self.rounds]
        return [self.bound / max(value, self.bound / most) for value in self.rounds]

    @property
    def word(self) -> str:
        return _MET[self.met]


@dataclass
class Outcome:
    """All rounds of one figure. ``failures``: why samples gave no value."""

    name: str
    title: str
    unit: str
    rounds: list[dict[str, float]]
    verdicts: list[Verdict] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def spreads(self) -> dict[str, Spread]:
        """By measured value, in the order in which they were first seen."""
        names = dict.fromkeys(name for values in self.rounds for name in values)
        return {name: Spread.of([values[name] for values in self.rounds if name in values]) for name in names}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """What ``dataclasses.asdict`` made of one."""
        return cls(**{**data, "verdicts": [Verdict(**verdict) for verdict in data["verdicts"]]})


def measure(figure: Figure, settings: Settings, say: Callable[[str], None]) -> Outcome:
    """Run the rounds of a figure. Each round takes every sample once and begins with another one."""
    outcome = Outcome(figure.name, figure.title, figure.unit, [])
    with figure.open(settings) as samples:
        for number in range(settings.rounds):
            turn = number % len(samples)
            values: dict[str, float] = {}
            for sample in [*samples[turn:], *samples[:turn]]:
                try:
                    values |= sample()
                except SampleError as error:
                    outcome.failures.append(str(error))
            outcome.rounds.append(values)
            say(f"{figure.name} {number + 1}/{settings.rounds}: " + _listed(values))
    outcome.verdicts = [Verdict.of(target, outcome.rounds) for target in figure.targets]
    return outcome


def _listed(values: Values) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in values.items()) or "nothing measured"


def number(value: float) -> str:
    """Three significant digits; thousands in full."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
