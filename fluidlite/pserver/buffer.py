"""The steps that came and are not applied yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fluidlite.protocol.events import Stepped
from fluidlite.pserver.window import Outcome


class Contribution:
    """One trainer's step, and where its outcome is written."""

    __slots__ = ("event", "outcome")

    def __init__(self, event: Stepped, outcome: Outcome) -> None:
        self.event = event
        self.outcome = outcome


class Buffer:
    """Accepted steps by trainer and number, and those of each trainer that count, the oldest first."""

    def __init__(self) -> None:
        self._accepted: dict[tuple[int, int], Contribution] = {}
        self._counting: list[Contribution] = []

    def __len__(self) -> int:
        """Of those that count."""
        return len(self._counting)

    def accept(self, contribution: Contribution) -> None:
        """Hold a step until it is decided."""
        header = contribution.event.header
        self._accepted[header.identity.trainer, header.sequence] = contribution

    def pop(self, trainer: int, sequence: int) -> Contribution:
        """Give an accepted step away: it was decided."""
        return self._accepted.pop((trainer, sequence))

    def accepted(self, trainer: int) -> list[int]:
        """The numbers of a trainer's accepted steps, ascending."""
        return sorted(sequence for whose, sequence in self._accepted if whose == trainer)

    def held_of(self, trainer: int) -> int:
        """How many steps of a trainer are held."""
        counting = sum(held.event.header.identity.trainer == trainer for held in self._counting)
        return counting + sum(whose == trainer for whose, _ in self._accepted)

    def put(self, contribution: Contribution) -> None:
        """Hold a step that counts until its round comes."""
        self._counting.append(contribution)

    def take(self, trainers: Iterable[int]) -> list[Contribution]:
        """Give steps that count away, in this order; a trainer named n times gives its n oldest."""
        return [self._oldest(trainer) for trainer in trainers]

    def _oldest(self, trainer: int) -> Contribution:
        positions = (p for p, held in enumerate(self._counting) if held.event.header.identity.trainer == trainer)
        return self._counting.pop(next(positions))

    def waiting(self) -> list[Stepped]:
        """The oldest step that counts of each trainer, in the order in which they came to count."""
        oldest: dict[int, Stepped] = {}
        for contribution in self._counting:
            oldest.setdefault(contribution.event.header.identity.trainer, contribution.event)
        return list(oldest.values())

    def held(self) -> Iterator[tuple[Stepped, bool]]:
        """Every step held, with whether it counts: those that count in the order in which they came to count."""
        for contribution in self._accepted.values():
            yield contribution.event, False
        for contribution in self._counting:
            yield contribution.event, True
