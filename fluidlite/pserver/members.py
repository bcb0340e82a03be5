"""Who takes part: registrations, incarnations, leases."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from fluidlite.errors import LeaseLostError, RequestRefusedError, StaleError
from fluidlite.protocol.messages import Identity
from fluidlite.pserver.window import Window

State = Literal["live", "completed", "lost"]
#: of a trainer that never came: below every real one
_NO_INCARNATION: Final = -(2**63)


@dataclass(slots=True)
class Member:
    """What the server knows of the latest incarnation of a trainer. ``barriers`` counts those it passed."""

    incarnation: int
    lease_ends: float
    state: State = "live"
    window: Window = field(default_factory=Window)
    barriers: int = 0


class Members:
    """The trainers of one job. Every one of the ``trainers`` is live from the start and until it leaves, so a round
    waits for those that have not come yet: ``arrival`` seconds from when the first one came.

    ``job`` None: that of the first one to register. Not thread-safe: the service's lock guards it. ``clock`` gives
    seconds.
    """

    def __init__(
        self,
        trainers: int,
        lease: float,
        grace: float,
        clock: Callable[[], float],
        *,
        arrival: float = math.inf,
        job: str | None = None,
    ) -> None:
        self.trainers = trainers
        self._lease = lease
        self._grace = grace
        self._clock = clock
        self._arrival = arrival
        self._arrive_by = math.inf
        self._job = job
        self._members: dict[int, Member] = {}

    @property
    def live(self) -> tuple[int, ...]:
        """The trainers that have not left, ascending, whether they came yet or not."""
        return tuple(t for t in range(self.trainers) if t not in self._members or self._members[t].state == "live")

    @property
    def absent(self) -> tuple[int, ...]:
        """The trainers that never registered."""
        return tuple(t for t in range(self.trainers) if t not in self._members)

    @property
    def waits_for_absent(self) -> bool:
        """Whether all that came have left again."""
        return bool(self._members) and self.live == self.absent != ()

    def register(self, identity: Identity) -> Member:
        """A trainer comes, or comes back. A new incarnation takes the place of the old one, with a window of its own."""
        self._check(identity)
        if not self._members:
            self._job, self._arrive_by = identity.job, self._clock() + self._arrival
        known = self._members.get(identity.trainer)
        if known is None or known.incarnation < identity.incarnation:
            known = self._members[identity.trainer] = Member(identity.incarnation, 0.0)
        elif known.state == "completed":
            raise RequestRefusedError(f"trainer {identity.trainer} said that it is complete; it cannot come back")
        known.state = "live"
        self._renew(known)
        return known

    def require(self, identity: Identity) -> Member:
        """The live member that speaks; renews its lease."""
        self._check(identity)
        known = self._members.get(identity.trainer)
        if known is None or known.incarnation < identity.incarnation:
            raise LeaseLostError(f"trainer {identity.trainer} is not registered")
        if known.state == "completed":
            raise RequestRefusedError(f"trainer {identity.trainer} said that it is complete; it cannot go on")
        if known.state == "lost":
            raise LeaseLostError(f"trainer {identity.trainer} was given up after {self._lease:g} s of silence")
        self._renew(known)
        return known

    def member(self, trainer: int) -> Member:
        """The latest incarnation of a registered trainer."""
        return self._members[trainer]

    def complete(self, identity: Identity) -> bool:
        """The trainer is done; False when that was known."""
        known = self._members.get(identity.trainer)
        if known is not None and known.incarnation == identity.incarnation and known.state == "completed":
            return False
        self.require(identity).state = "completed"
        return True

    def suspect(self, identity: Identity) -> None:
        """The connection of a trainer broke: only the grace is left of its lease."""
        known = self._members.get(identity.trainer)
        if known is not None and known.incarnation == identity.incarnation and known.state == "live":
            known.lease_ends = min(known.lease_ends, self._clock() + self._grace)

    def expire(self, now: float) -> list[int]:
        """Give up every trainer whose lease had run out at time ``now``, or that should have come; returns them."""
        if now >= self._arrive_by:
            self._members |= {t: Member(_NO_INCARNATION, now) for t in self.absent}
        lost = [t for t, member in self._members.items() if member.state == "live" and member.lease_ends <= now]
        for trainer in lost:
            self._members[trainer].state = "lost"
        return lost

    def _renew(self, member: Member) -> None:
        member.lease_ends = self._clock() + self._lease

    def _check(self, identity: Identity) -> None:
        """Refuse other jobs, trainers beyond the number declared, and older incarnations."""
        if not 0 <= identity.trainer < self.trainers:
            raise RequestRefusedError(
                f"trainer {identity.trainer} is none of the {self.trainers} of this job (0 to {self.trainers - 1})"
            )
        if self._job not in (None, identity.job):
            raise RequestRefusedError(f"this server works for job {self._job!r}, not {identity.job!r}")
        known = self._members.get(identity.trainer)
        if known is not None and identity.incarnation < known.incarnation:
            raise StaleError(f"a newer incarnation of trainer {identity.trainer} has registered; this one is over")
