"""The steps that came and are not applied yet: at most one per trainer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fluidlite.protocol.messages import Gradient
from fluidlite.pserver.window import Outcome


@dataclass(frozen=True, slots=True)
class Contribution:
    """One trainer's step: its gradients, and where its outcome is written."""

    gradients: tuple[Gradient, ...]
    outcome: Outcome


class Buffer:
    """Holds one contribution per trainer, whatever its size; a later one takes the place of an earlier one."""

    def __init__(self) -> None:
        self._held: dict[int, Contribution] = {}

    def __len__(self) -> int:
        return len(self._held)

    def put(self, trainer: int, contribution: Contribution) -> Contribution | None:
        """Hold a contribution; returns the one whose place it takes (of an earlier incarnation of the trainer)."""
        replaced = self._held.get(trainer)
        self._held[trainer] = contribution
        return replaced

    def take(self, trainers: Iterable[int]) -> dict[int, Contribution]:
        """Give the contributions of these trainers away, in this order."""
        return {trainer: self._held.pop(trainer) for trainer in trainers}
