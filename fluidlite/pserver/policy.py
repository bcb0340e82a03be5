"""When a step counts: pure decisions, without clocks, locks or values.

A policy is told what happens (a trainer's step came, a trainer left) together with the live trainers, and answers with
the `Round` to apply now, if any.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Round:
    """Steps to apply together, as one step of the server: whose, in the order in which they are summed.

    ``tick``: the learning-rate schedule advances first.
    """

    trainers: tuple[int, ...]
    tick: bool


class Policy(Protocol):
    """Decides when steps that came are applied."""

    def arrive(self, trainer: int, live: Collection[int]) -> Round | None:
        """A step of ``trainer`` came."""
        ...

    def left(self, live: Collection[int]) -> Round | None:
        """A trainer left; ``live`` are those that remain."""
        ...

    def missing(self, live: Collection[int]) -> tuple[int, ...]:
        """Who is waited for."""
        ...


class Rendezvous:
    """Trainers meet: complete when every live one has come. One that came and left since still counts as present."""

    def __init__(self) -> None:
        self._present: set[int] = set()

    def arrive(self, trainer: int) -> None:
        """``trainer`` is here; coming twice is coming once."""
        self._present.add(trainer)

    def withdraw(self, trainer: int) -> None:
        """``trainer`` starts anew and has not come yet."""
        self._present.discard(trainer)

    def meet(self, live: Collection[int]) -> tuple[int, ...]:
        """Everybody present, ascending, once no live trainer is missing (then the next meeting opens); else ()."""
        if self.missing(live):
            return ()
        met = tuple(sorted(self._present))
        self._present.clear()
        return met

    def missing(self, live: Collection[int]) -> tuple[int, ...]:
        """The live trainers that have not come, ascending."""
        return tuple(sorted(set(live) - self._present))


class Sync:
    """Rounds: one step of every live trainer, applied together; the schedule advances once per round.

    A trainer that leaves shrinks the round that is open; the step it already sent counts. One that joins is waited for.
    """

    def __init__(self) -> None:
        self._round = Rendezvous()

    def arrive(self, trainer: int, live: Collection[int]) -> Round | None:
        self._round.arrive(trainer)
        return self.left(live)

    def left(self, live: Collection[int]) -> Round | None:
        trainers = self._round.meet(live)
        return Round(trainers, tick=True) if trainers else None

    def missing(self, live: Collection[int]) -> tuple[int, ...]:
        return self._round.missing(live)


class Async:
    """Every step is applied when it comes.

    The schedule's clock: it advances before the first step, and again whenever as many steps were applied since as
    there are live trainers. So n trainers move it once per n steps, as one step of all of them together would.
    """

    def __init__(self) -> None:
        self._since_tick = 0

    def arrive(self, trainer: int, live: Collection[int]) -> Round | None:
        tick = self._since_tick == 0
        self._since_tick += 1
        if self._since_tick >= len(live):
            self._since_tick = 0
        return Round((trainer,), tick)

    def left(self, live: Collection[int]) -> Round | None:
        if self._since_tick >= len(live):
            self._since_tick = 0
        return None

    def missing(self, live: Collection[int]) -> tuple[int, ...]:
        return ()
