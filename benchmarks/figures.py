"""What a figure is: samples taken in turn, round by round, and targets on what they show. No clock, no processes."""

from __future__ import annotations

import dataclasses
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

#: begins a figure and gives what to measure in each round
Opener: TypeAlias = "Callable[[Settings], AbstractContextManager[Sequence[Sample]]]"

_MET: Final = {True: "met", False: "missed", None: "not measured"}


class SampleError(Exception):
    """A measurement that gave no value; the figure goes on without it."""


@dataclass(frozen=True)
class Settings:
    """How much to measure. ``steps`` of one sample, after ``warmup``; 0: as many as the figure needs.

    ``scale`` shrinks tables and lists of ids, for trials; figures count at 1 only. ``pythons``: interpreters by peer.
    ``trace``: where the profile of the job's ops goes.
    """

    rounds: int = 7
    steps: int = 0
    warmup: int = 0
    scale: float = 1.0
    peers: Path | None = None
    pythons: Mapping[str, str] = field(default_factory=dict)
    data: Path | None = None
    trace: Path | None = None

    def size(self, full: int) -> int:
        """A number of rows or ids at this scale."""
        return max(1, round(full * self.scale))

    def of(self, figure: Figure) -> Settings:
        """These settings, filled up by what the figure needs."""
        return dataclasses.replace(self, steps=self.steps or figure.steps, warmup=self.warmup or figure.warmup)


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
    """One row of the table, or several. ``open`` prepares (servers, tables) and gives what to measure in each round.

    ``steps`` and ``warmup`` are what a sample takes unless the user says otherwise.
    """

    name: str
    title: str
    unit: str
    open: Opener
    targets: tuple[Target, ...] = ()
    steps: int = 200
    warmup: int = 3


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
    """A target and how it went: the median of per-round values decides. ``absent``: rivals that were not measured."""

    what: str
    limit: str
    bound: float
    at_most: bool
    rounds: list[float]
    met: bool | None
    absent: list[str]

    @classmethod
    def of(cls, target: Target, rounds: Sequence[Values]) -> Verdict:
        values = [value for value in map(target.value, rounds) if value is not None]
        met = None
        if values:
            median = statistics.median(values)
            met = median <= target.limit if target.at_most else median >= target.limit
        seen = {name for measured in rounds for name in measured}
        absent = [name for name in target.against if values and name not in seen]
        return cls(target.what, target.text, target.limit, target.at_most, values, met, absent)

    def margins(self) -> list[float]:
        """How many times better than the limit each round was; below 1: worse. Nothing counts as more than a hundred
        times better, e.g. a difference below 0."""
        most = 100.0
        if not self.at_most:
            return [min(value / self.bound, most) for value in self.rounds]
        return [self.bound / max(value, self.bound / most) for value in self.rounds]

    @property
    def text(self) -> str:
        """What counts, as a table shows it."""
        return f"{self.what} ({', '.join(self.absent)} absent)" if self.absent else self.what

    @property
    def word(self) -> str:
        return _MET[self.met]


@dataclass
class Outcome:
    """All rounds of one figure. ``failures``: why samples gave no value. ``facts``: what they depend on."""

    name: str
    title: str
    unit: str
    rounds: list[dict[str, float]]
    verdicts: list[Verdict] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def spreads(self) -> dict[str, Spread]:
        """By measured value, in the order in which they were first seen."""
        names = dict.fromkeys(name for values in self.rounds for name in values)
        return {name: Spread.of([values[name] for values in self.rounds if name in values]) for name in names}

    @property
    def last(self) -> str:
        """The last round in one line."""
        values = ", ".join(f"{name} {number(value)}" for name, value in self.rounds[-1].items())
        return f"{self.name} {len(self.rounds)}: {values or 'nothing measured'}"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """What ``dataclasses.asdict`` made of one."""
        return cls(**{**data, "verdicts": [Verdict(**verdict) for verdict in data["verdicts"]]})


def measure(figure: Figure, settings: Settings, told: Callable[[Outcome], None]) -> Outcome:
    """Run the rounds of a figure; ``told`` gets what is there after each. What goes wrong is told and stops only this
    figure, a `SampleError` only the sample."""
    outcome = Outcome(figure.name, figure.title, figure.unit, [], [Verdict.of(target, []) for target in figure.targets])
    try:
        with figure.open(settings.of(figure)) as samples:
            for turn in range(settings.rounds):
                outcome.rounds.append(measured_round(samples, turn, outcome.failures))
                outcome.verdicts = [Verdict.of(target, outcome.rounds) for target in figure.targets]
                told(outcome)
    except Exception as error:
        outcome.failures.append(f"{type(error).__name__}: {error}")
    return outcome


def measured_round(samples: Sequence[Sample], turn: int, failures: list[str]) -> dict[str, float]:
    """Every sample once, beginning with another one each turn."""
    first = turn % len(samples)
    values: dict[str, float] = {}
    for sample in [*samples[first:], *samples[:first]]:
        try:
            values |= sample()
        except SampleError as error:
            failures.append(str(error))
    return values


def number(value: float) -> str:
    """Three significant digits; thousands in full."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
