"""Which steps of one incarnation the server has seen, and how they ended: a repeated step gets the stored answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fluidlite.errors import RemoteError, StaleError


@dataclass(slots=True)
class Outcome:
    """How a step ended, once it has: the version after it, or the kind and text of what went wrong."""

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
    """Outcomes of the latest `SIZE` sequence numbers. Steps may come out of order inside it, never below it."""

    SIZE: Final = 64

    def __init__(self) -> None:
        #: one above the highest sequence number seen
        self.next = 0
        self._outcomes: dict[int, Outcome] = {}

    def __len__(self) -> int:
        return len(self._outcomes)

    def find(self, sequence: int) -> Outcome | None:
        """The outcome of a step that came before, None for a new one; StaleError when that is no longer known."""
        if sequence < self.next - self.SIZE:
            raise StaleError(
                f"step {sequence} is older than the latest {self.SIZE} (next: {self.next}); it cannot be told whether it was applied"
            )
        return self._outcomes.get(sequence)

    def open(self, sequence: int) -> Outcome:
        """Remember a new step; forgets what falls out of the window."""
        outcome = self._outcomes[sequence] = Outcome()
        self.next = max(self.next, sequence + 1)
        for old in [s for s in self._outcomes if s < self.next - self.SIZE]:
            del self._outcomes[old]
        return outcome
