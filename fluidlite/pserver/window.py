"""Which steps of a trainer the server has seen, and how they ended: a repeated step gets the stored answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fluidlite.errors import RemoteError, RequestRefusedError, ServerFailedError, StaleError

_FAILURES: Final[dict[str, type[RemoteError]]] = {
    kind.__name__: kind for kind in (RemoteError, RequestRefusedError, ServerFailedError, StaleError)
}


#: sequence numbers and versions are below it, so that they and the next ones fit in 64 bits
LIMIT: Final = 1 << 62


def number_of(value: Any, least: int = 0, most: int = LIMIT) -> int:
    """A number that a state holds; TypeError or ValueError for what is none."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    if not least <= value <= most:
        raise ValueError(f"{value} is out of range")
    return int(value)


@dataclass(slots=True)
class Outcome:
    """How a step ended, once it has: the version after it, or the kind and text of what went wrong.

    ``decided``: it counts; before that it is accepted, and its trainer may still take it back.
    """

    decided: bool = False
    version: int | None = None
    failure: tuple[type[RemoteError], str] | None = None

    @property
    def settled(self) -> bool:
        return self.version is not None or self.failure is not None

    def settle(self, version: int) -> None:
        """The step is applied."""
        self.version = version

    def fail(self, kind: type[RemoteError], text: str) -> None:
        """The step is not applied, or not wholly."""
        self.failure = (kind, text)

    def result(self) -> int:
        """The version after the step; raises what went wrong."""
        if self.failure is not None:
            kind, text = self.failure
            raise kind(text)
        assert self.version is not None
        return self.version


class Window:
    """Outcomes of the latest `SIZE` sequence numbers of one trainer, whichever incarnation sent them. Steps may come out
    of order inside it, never below it."""

    SIZE: Final = 64

    def __init__(self) -> None:
        #: how many steps count: one above the highest sequence number, and all of the steps that were merged in that push
        self.next = 0
        #: one above the highest sequence number that counts
        self._top = 0
        self._outcomes: dict[int, Outcome] = {}

    def __len__(self) -> int:
        return len(self._outcomes)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._outcomes

    @property
    def undecided(self) -> int | None:
        """The latest step that is accepted and no more."""
        return max((s for s, outcome in self._outcomes.items() if not outcome.decided), default=None)

    def find(self, sequence: int) -> Outcome | None:
        """The outcome of a step that came before, None for a new one; StaleError when that is no longer known,
        RequestRefusedError for what is no sequence number."""
        if not 0 <= sequence < LIMIT:
            raise RequestRefusedError(f"{sequence} is no sequence number")
        if sequence < self._top - self.SIZE:
            raise StaleError(
                f"step {sequence} is older than the latest {self.SIZE} (next: {self._top}); it cannot be told whether it was applied"
            )
        return self._outcomes.get(sequence)

    def open(self, sequence: int) -> Outcome:
        """Remember a new step."""
        outcome = self._outcomes[sequence] = Outcome()
        return outcome

    def decide(self, sequence: int, steps: int = 1) -> Outcome:
        """A push of so many steps counts; forgets what falls out of the window, also what was never decided."""
        outcome = self._outcomes[sequence]
        outcome.decided = True
        self._top = max(self._top, sequence + 1)
        self.next = max(self.next, min(sequence + max(1, steps), LIMIT))
        for old in [s for s in self._outcomes if s < self._top - self.SIZE]:
            del self._outcomes[old]
        return outcome

    def forget(self, sequence: int) -> None:
        """A step was taken back; its number may come again."""
        del self._outcomes[sequence]

    def state(self) -> dict[str, Any]:
        """The settled steps, for a checkpoint: those that are not come again from the log."""
        settled = {s: outcome for s, outcome in self._outcomes.items() if outcome.settled}
        return {"next": self.next, "outcomes": {str(s): _recorded(outcome) for s, outcome in settled.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self.next = number_of(state["next"])
        self._outcomes = {number_of(int(s)): _outcome_of(recorded) for s, recorded in state["outcomes"].items()}
        self._top = max(self._outcomes, default=-1) + 1


def _recorded(outcome: Outcome) -> list[Any]:
    if outcome.failure is not None:
        return [outcome.failure[0].__name__, outcome.failure[1]]
    return [outcome.version]


def _outcome_of(recorded: list[Any]) -> Outcome:
    if len(recorded) == 1:
        return Outcome(decided=True, version=number_of(recorded[0]))
    return Outcome(decided=True, failure=(_FAILURES.get(recorded[0], ServerFailedError), str(recorded[1])))
