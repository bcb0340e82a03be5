"""The server's verbs: who may, what counts when, who waits for what. Values are the store's business (`host`)."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from fluidlite.dtypes import Array
from fluidlite.errors import (
    FluidliteError,
    PeerLostError,
    RequestRefusedError,
    ServerFailedError,
    StaleError,
)
from fluidlite.protocol.messages import (
    PROTOCOL_VERSION,
    CommitReply,
    Declared,
    Gradient,
    Identity,
    PullReply,
    PullRequest,
    Registration,
    StepHeader,
    Value,
    Welcome,
)
from fluidlite.protocol.service import Pending
from fluidlite.pserver.buffer import Buffer, Contribution
from fluidlite.pserver.members import Members
from fluidlite.pserver.policy import Async, Policy, Rendezvous, Round, Sync

log = logging.getLogger("fluidlite")


class Store(Protocol):
    """The values of a server and the programs that change them. Thread-safe; raises RequestRefusedError."""

    @property
    def version(self) -> int:
        """How many steps were applied."""
        ...

    def check_declared(self, declared: Sequence[Declared]) -> None:
        """Refuse a trainer that will ask for, or send, what is not here."""
        ...

    def check_step(self, gradients: Sequence[Gradient], wanted: Sequence[str]) -> None:
        """Refuse a step that cannot be applied."""
        ...

    def apply(self, steps: Mapping[int, Sequence[Gradient]], tick: bool) -> int:
        """Apply the gradients of trainers as one step; the version after it."""
        ...

    def pull(self, requests: Sequence[PullRequest]) -> tuple[int, list[Value]]:
        """A value per request, all read at one version, and that version."""
        ...

    def dense(self, names: Sequence[str]) -> dict[str, Array]:
        """Copies of dense variables, all read at one version."""
        ...

    def assign(self, name: str, value: Value) -> None:
        """Overwrite a dense variable, all rows of a table, or rows of an accumulator of one."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How long a silent trainer is waited for, all in seconds.

    ``lease``: without a sign of life. ``grace``: after its connection broke. ``arrival``: from when the first trainer
    came, if it never came itself. ``on_loss``: the others go on, or all get PeerLostError. ``report_every``: between two
    messages that say who is missing.
    """

    lease: float = 30.0
    grace: float = 2.0
    arrival: float = 600.0
    on_loss: Literal["continue", "abort"] = "continue"
    report_every: float = 10.0


#: for servers and trainers in one process: nobody is silent by accident, and who leaves says so
IN_PROCESS: Final = ServiceOptions(lease=math.inf, grace=0.0, arrival=math.inf)


class PServer:
    """Implements `protocol.service.Service` over a store. One lock guards who takes part and what has come.

    ``job``: whose trainers may come; None: those of the job of the first one.
    """

    def __init__(
        self,
        store: Store,
        *,
        trainers: int,
        sync: bool,
        job: str | None = None,
        options: ServiceOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._sync = sync
        self._options = given = options if options is not None else ServiceOptions()
        self._clock = clock
        #: names what this server remembers: one that starts without a memory has another
        self._history = secrets.randbits(62)
        self._policy: Policy = Sync() if sync else Async()
        self._members = Members(trainers, given.lease, given.grace, clock, arrival=given.arrival, job=job)
        self._buffer = Buffer()
        self._gate = Rendezvous()
        self._changed = threading.Condition()
        self._end = threading.Event()
        self._over: str | None = None
        self._reported = clock()

    @property
    def live(self) -> tuple[int, ...]:
        """The trainers that have not left."""
        with self._changed:
            return self._members.live

    @property
    def trainers(self) -> int:
        return self._members.trainers

    def register(self, registration: Registration) -> Welcome:
        self._check_registration(registration)
        with self._changed:
            self._check_over()
            returned = registration.identity.trainer not in self._members.live
            member = self._members.register(registration.identity)
            self._gate.withdraw(registration.identity.trainer)
            if returned:
                log.info("trainer %d is back", registration.identity.trainer)
            self._changed.notify_all()
            return Welcome(
                self._store.version,
                member.window.next,
                self._members.trainers,
                self._sync,
                self._options.lease,
                self._history,
            )

    def pull(self, identity: Identity, requests: Sequence[PullRequest]) -> PullReply:
        self._require(identity)
        version, values = self._store.pull(requests)
        return PullReply(version, tuple(values))

    def commit(self, header: StepHeader, gradients: Sequence[Gradient], wanted: Sequence[str]) -> Pending[CommitReply]:
        if header.learning_rate is not None:
            raise RequestRefusedError("the step carries a learning rate; this server follows its own schedule")
        with self._changed:
            self._check_over()
            window = self._members.require(header.identity).window
            outcome = window.find(header.sequence)
            if outcome is None:
                self._store.check_step(gradients, wanted)
                outcome = window.open(header.sequence)
                self._accept(header.identity.trainer, Contribution(tuple(gradients), outcome))

        def answer() -> CommitReply:
            self._wait(lambda: outcome.settled, "the step", self._policy.missing)
            return CommitReply(outcome.result(), self._store.dense(wanted))

        return answer

    def assign(self, identity: Identity, name: str, value: Value) -> None:
        self._require(identity)
        self._store.assign(name, value)

    def heartbeat(self, identity: Identity) -> None:
        self._require(identity)

    def barrier(self, identity: Identity, number: int) -> Pending[None]:
        with self._changed:
            self._check_over()
            member = self._members.require(identity)
            if number > member.barriers:
                raise RequestRefusedError(f"barrier {number} comes before barrier {member.barriers}")
            if number == member.barriers:
                self._gate.arrive(identity.trainer)
                self._open_gate()
        return lambda: self._wait(lambda: member.barriers > number, "the barrier", self._gate.missing)

    def complete(self, identity: Identity) -> None:
        with self._changed:
            if self._members.complete(identity):
                self._after_leaving()

    def disconnected(self, identity: Identity) -> None:
        with self._changed:
            self._members.suspect(identity)
        self._expire()

    def poll(self, timeout: float) -> bool:
        self._end.wait(timeout)
        self._expire()
        return self._end.is_set()

    def stop(self, reason: str) -> None:
        with self._changed:
            self._finish(reason)

    def _check_registration(self, registration: Registration) -> None:
        if registration.protocol != PROTOCOL_VERSION:
            raise RequestRefusedError(
                f"the trainer speaks version {registration.protocol} of the protocol, this server version {PROTOCOL_VERSION}"
            )
        if registration.trainers not in (0, self._members.trainers):
            raise RequestRefusedError(
                f"the trainer was transpiled for {registration.trainers} trainers, this server for {self._members.trainers}"
            )
        self._store.check_declared(registration.declared)

    def _require(self, identity: Identity) -> None:
        with self._changed:
            self._check_over()
            self._members.require(identity)

    def _check_over(self) -> None:
        if self._over is not None:
            raise PeerLostError(self._over)

    def _accept(self, trainer: int, contribution: Contribution) -> None:
        replaced = self._buffer.put(trainer, contribution)
        if replaced is not None:
            replaced.outcome.fail(StaleError, f"a newer incarnation of trainer {trainer} repeated this step")
        self._advance(self._policy.arrive(trainer, self._members.live))

    def _advance(self, round: Round | None) -> None:
        """Apply a round, if there is one to apply, and wake whoever waits for it."""
        if round is None:
            return
        taken = self._buffer.take(round.trainers)
        try:
            version = self._store.apply({trainer: c.gradients for trainer, c in taken.items()}, round.tick)
        except Exception as error:
            log.exception("the update failed")
            text = str(error) if isinstance(error, FluidliteError) else f"{type(error).__name__}: {error}"
            for contribution in taken.values():
                contribution.outcome.fail(ServerFailedError, text)
        else:
            for contribution in taken.values():
                contribution.outcome.settle(version)
        self._changed.notify_all()

    def _open_gate(self) -> None:
        met = self._gate.meet(self._members.live)
        for trainer in met:
            self._members.member(trainer).barriers += 1
        if met:
            self._changed.notify_all()

    def _after_leaving(self) -> None:
        """The round and the barrier that are open no longer wait for who left; without trainers the server ends."""
        live = self._members.live
        self._advance(self._policy.left(live))
        self._open_gate()
        if not live:
            self._finish("all trainers have left; the server ends")

    def _expire(self) -> None:
        now = self._clock()  # before the wait for the lock: an update holds it, and signs of life wait for it as well
        with self._changed:
            lost = self._members.expire(now)
            for trainer in lost:
                log.warning("trainer %d is lost; %s", trainer, "aborting" if self._aborts else "the others go on")
            if lost and self._aborts:
                self._finish(f"trainer(s) {', '.join(map(str, lost))} died, and the job aborts when one does")
            elif lost:
                self._after_leaving()
            if self._members.waits_for_absent:
                self._report("the end", lambda live: live, -math.inf)

    @property
    def _aborts(self) -> bool:
        return self._options.on_loss == "abort"

    def _finish(self, reason: str) -> None:
        if self._over is None:
            self._over = reason
        self._end.set()
        self._changed.notify_all()

    def _wait(self, done: Callable[[], bool], what: str, missing: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
        with self._changed:
            since = self._clock()
            while not done():
                self._check_over()
                self._report(what, missing, since)
                self._changed.wait(self._options.report_every)

    def _report(self, what: str, missing: Callable[[tuple[int, ...]], tuple[int, ...]], since: float) -> None:
        """Say who is missing, once however many wait."""
        now = self._clock()
        if now - max(since, self._reported) >= self._options.report_every:
            self._reported = now
            absent = self._members.absent
            names = [f"{t} (never came)" if t in absent else str(t) for t in missing(self._members.live)]
            log.warning("%s after version %d waits for trainers %s", what, self._store.version, ", ".join(names))
