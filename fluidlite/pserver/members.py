"""Who takes part: registrations, incarnations, leases."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from fluidlite.errors import LeaseLostError, RequestRefusedError, StaleError
from fluidlite.protocol.messages import Identity
from fluidlite.pserver.window import Window, number_of

State = Literal["live", "completed", "lost"]
#: of a trainer that never came: below every real one
_NO_INCARNATION: Final = -(2**63)


@dataclass(slots=True)
class Member:
    """What the server knows of a trainer. ``barriers`` counts those that its latest incarnation passed; ``window`` holds
    the steps of all its incarnations."""

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
        self._job = self._given_job = job
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

    def check_register(self, identity: Identity) -> bool:
        """Refuse who may not come (back); whether its coming changes anything."""
        self._check(identity)
        known = self._members.get(identity.trainer)
        if known is None or known.incarnation < identity.incarnation:
            return True
        if known.state == "completed":
            raise RequestRefusedError(f"trainer {identity.trainer} said that it is complete; it cannot come back")
        return known.state != "live"

    def register(self, identity: Identity) -> None:
        """A trainer comes, or comes back. A new incarnation takes the place of the old one."""
        if not self._members:
            self._job, self._arrive_by = identity.job, self._clock() + self._arrival
        known = self._members.setdefault(identity.trainer, Member(identity.incarnation, 0.0))
        if known.incarnation < identity.incarnation:
            known.incarnation, known.barriers = identity.incarnation, 0
        known.state = "live"
        self._renew(known)

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
        """A registered trainer."""
        return self._members[trainer]

    def check_complete(self, identity: Identity) -> bool:
        """Refuse who may not speak; whether it is news that this trainer is done."""
        known = self._members.get(identity.trainer)
        if known is not None and known.incarnation == identity.incarnation and known.state == "completed":
            return False
        self.require(identity)
        return True

    def complete(self, trainer: int) -> None:
        """The trainer is done."""
        self._members[trainer].state = "completed"

    def suspect(self, identity: Identity) -> None:
        """The connection of a trainer broke: only the grace is left of its lease."""
        known = self._members.get(identity.trainer)
        if known is not None and known.incarnation == identity.incarnation and known.state == "live":
            known.lease_ends = min(known.lease_ends, self._clock() + self._grace)

    def overdue(self, now: float) -> list[int]:
        """The trainers whose lease had run out at time ``now``, and those that should have come."""
        known = [t for t, member in self._members.items() if member.state == "live" and member.lease_ends <= now]
        return known + (list(self.absent) if now >= self._arrive_by else [])

    def lose(self, trainer: int) -> None:
        """The trainer is given up."""
        self._members.setdefault(trainer, Member(_NO_INCARNATION, 0.0)).state = "lost"

    @property
    def is_over(self) -> bool:
        """Whether trainers came, and all are done or given up."""
        return bool(self._members) and not self.live

    def clear(self) -> None:
        """Forget everybody: another job may come."""
        self._members = {}
        self._arrive_by = math.inf

    def begin_anew(self) -> None:
        """The server was made again: leases begin now."""
        self._job = self._given_job
        for member in self._members.values():
            if member.state == "live":
                self._renew(member)
        if self._members:
            self._arrive_by = self._clock() + self._arrival

    def state(self) -> dict[str, Any]:
        """What is to be remembered, for a checkpoint: everything but leases."""
        return {
            "job": self._job,
            "members": {
                str(trainer): [member.incarnation, member.state, member.barriers, member.window.state()]
                for trainer, member in self._members.items()
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave; LookupError, TypeError, ValueError or AttributeError for what is none."""
        if not isinstance(state["job"], str | None):
            raise TypeError(f"{state['job']!r} is no job")
        self._job = state["job"]
        self._members = {}
        for trainer, (incarnation, kind, barriers, window) in state["members"].items():
            if kind not in get_args(State):
                raise ValueError(f"trainer {trainer} is {kind!r}")
            number = number_of(incarnation, _NO_INCARNATION, -_NO_INCARNATION - 1)
            member = self._members[int(trainer)] = Member(number, 0.0, kind, barriers=number_of(barriers))
            member.window.restore(window)

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
