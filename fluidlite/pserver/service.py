"""The server's verbs: who may, what counts when, who waits for what. Values are the store's business (`host`)."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from fluidlite.errors import FluidliteError, ForgottenError, PeerLostError, RequestRefusedError, ServerFailedError
from fluidlite.protocol.events import Arrived, Assigned, Came, Completed, Decided, Event, Lost, Settled, Stepped
from fluidlite.protocol.messages import (
    PROTOCOL_VERSION,
    READER,
    CommitReply,
    Decision,
    Declared,
    Gradient,
    Identity,
    PullReply,
    PullRequest,
    Push,
    Registration,
    RowRequest,
    TableRequest,
    Use,
    Value,
    Welcome,
)
from fluidlite.protocol.service import Pending
from fluidlite.pserver.keeper import NO_CHECKPOINTS, Keeper
from fluidlite.pserver.ledger import Ledger, Store
from fluidlite.pserver.members import Members
from fluidlite.pserver.policy import Async, Policy, Sync
from fluidlite.pserver.window import Window

log = logging.getLogger("fluidlite")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How long a silent trainer is waited for, all in seconds.

    ``lease``: without a sign of life. ``grace``: after its connection broke. ``arrival``: from when the first trainer
    came, if it never came itself. ``on_loss``: the others go on, or all get PeerLostError. ``report_every``: between two
    messages that say who is missing. ``stays``: without trainers the server goes on until it is told to stop, for a trainer
    may be started again.
    """

    lease: float = 30.0
    grace: float = 2.0
    arrival: float = 600.0
    on_loss: Literal["continue", "abort"] = "continue"
    report_every: float = 10.0
    stays: bool = False


#: for servers and trainers in one process: nobody is silent by accident, and who leaves says so
IN_PROCESS: Final = ServiceOptions(lease=math.inf, grace=0.0, arrival=math.inf)


class PServer:
    """Implements `protocol.service.Service` over a store. One lock guards who takes part and what has come.

    ``job``: whose trainers may come; None: those of the job of the first one. ``policy``: when steps count; by default
    that of ``sync``. ``keeper``: keeps what the server remembers beyond its end; it is restored here.
    """

    def __init__(
        self,
        store: Store,
        *,
        trainers: int,
        sync: bool,
        policy: Policy | None = None,
        job: str | None = None,
        options: ServiceOptions | None = None,
        keeper: Keeper | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._sync = sync
        self._options = given = options if options is not None else ServiceOptions()
        self._clock = clock
        self._members = Members(trainers, given.lease, given.grace, clock, arrival=given.arrival, job=job)
        default: Policy = Sync() if sync else Async()
        self._ledger = Ledger(store, policy if policy is not None else default, self._members)
        self._changed = threading.Condition()
        self._end = threading.Event()
        self._over: str | None = None
        self._reported = clock()
        self._keeper = keeper
        #: names what this server remembers: one that starts without a memory has another
        self._history = keeper.restore(self._ledger) if keeper is not None else secrets.randbits(62)
        #: of the keeper: the latest event
        self._recorded = 0
        with self._changed:
            self._end_without_trainers()

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
        identity = registration.identity
        with self._changed:
            self._check_over()
            if identity.trainer == READER:
                return self._welcome(Window())
            if self._members.check_register(identity):
                if identity.trainer not in self._members.live:
                    log.info("trainer %d is back", identity.trainer)
                self._record(Came(identity))
            welcome = self._welcome(self._members.require(identity).window)
        self._wait_recorded(self._recorded)
        return welcome

    def _welcome(self, window: Window) -> Welcome:
        return Welcome(
            self._store.version,
            window.next,
            self._members.trainers,
            self._sync,
            self._options.lease,
            self._history,
            window.undecided,
        )

    def pull(self, identity: Identity, requests: Sequence[PullRequest]) -> PullReply:
        whole = any(isinstance(request, TableRequest) for request in requests)
        with self._changed:
            self._check_over()
            if identity.trainer == READER:
                _check_read(requests)
            else:
                self._members.require(identity)
            if whole and self._keeper is not None:
                self._record(Settled())
        version, values = self._store.pull(requests)
        with self._changed:  # an assignment that was seen half-way is on record then
            recorded = self._recorded
        self._wait_recorded(recorded)
        return PullReply(version, tuple(values))

    def commit(self, push: Push) -> Pending[CommitReply]:
        identity, sequence = push.header.identity, push.header.sequence
        with self._changed:
            self._check_over()
            known = self._ledger.find(identity, sequence)
            if known is None:
                self._ledger.check(push)
                self._record(Stepped(push.header, tuple(push.gradients), push.decided))
            elif push.decided and not known.decided:
                self._record(Decided(identity.trainer, sequence, apply=True))
            if push.decided and self._ledger.policy.waits:
                return self._answer(identity, sequence, push.wanted)
            return self._acceptance()

    def decide(self, decision: Decision) -> Pending[CommitReply]:
        identity, sequence = decision.identity, decision.sequence
        with self._changed:
            self._check_over()
            known = self._ledger.find(identity, sequence)
            if known is None and decision.apply:
                raise ForgottenError(f"step {sequence} of trainer {identity.trainer} is not among those accepted here")
            if known is not None and known.decided and not decision.apply:
                raise RequestRefusedError(
                    f"step {sequence} of trainer {identity.trainer} counts; it cannot be taken back"
                )
            if known is not None and not known.decided:
                self._record(Decided(identity.trainer, sequence, decision.apply))
            if decision.apply and self._ledger.policy.waits:
                return self._answer(identity, sequence, decision.wanted)
            return self._acceptance()

    def _answer(self, identity: Identity, sequence: int, wanted: Sequence[str]) -> Pending[CommitReply]:
        """How a step that counts ends, once it has, and all that made it end is on record: the steps of others, too."""
        outcome = self._ledger.find(identity, sequence)
        assert outcome is not None
        policy, trainer = self._ledger.policy, identity.trainer

        def ended() -> bool:
            return outcome.settled and not policy.holds(trainer, self._members.live)

        def answer() -> CommitReply:
            self._wait(ended, "the step", policy.missing)
            try:
                return CommitReply(outcome.result(), self._store.dense(wanted))
            finally:  # what is answered may be of later steps of others
                self._wait_recorded(self._recorded)

        return answer

    def _acceptance(self) -> Pending[CommitReply]:
        """That what came is on record."""
        recorded, version = self._recorded, self._store.version

        def answer() -> CommitReply:
            self._wait_recorded(recorded)
            return CommitReply(version)

        return answer

    def offered(self, name: str, use: Use) -> Declared:
        return self._store.offered(name, use)

    def check_gradients(self, identity: Identity, gradients: Sequence[Gradient]) -> None:
        self._store.check_step(gradients, (), identity.trainer)

    def assign(self, identity: Identity, name: str, value: Value) -> None:
        with self._changed:
            self._check_over()
            self._members.require(identity)
            self._record(Assigned(identity, name, value))
        self._wait_recorded(self._recorded)

    def heartbeat(self, identity: Identity) -> None:
        with self._changed:
            self._check_over()
            if identity.trainer != READER:
                self._members.require(identity)

    def barrier(self, identity: Identity, number: int) -> Pending[None]:
        with self._changed:
            self._check_over()
            member = self._members.require(identity)
            if number > member.barriers:
                raise RequestRefusedError(f"barrier {number} comes before barrier {member.barriers}")
            if number == member.barriers:
                self._record(Arrived(identity.trainer))

        def answer() -> None:
            self._wait(lambda: member.barriers > number, "the barrier", self._ledger.gate.missing)
            self._wait_recorded(self._recorded)

        return answer

    def checkpoint(self, identity: Identity, number: int, folder: str = "") -> Pending[int]:
        with self._changed:
            self._check_over()
            self._members.require(identity)
            if self._keeper is None:
                raise RequestRefusedError(NO_CHECKPOINTS)
            written, version = self._keeper.begin(self._ledger, number, folder), self._store.version

        def answer() -> int:
            try:
                written.result()
            except FluidliteError as error:
                raise ServerFailedError(f"checkpoint {number} is not written: {error}") from error
            return version

        return answer

    def complete(self, identity: Identity) -> None:
        with self._changed:
            if identity.trainer != READER and self._members.check_complete(identity):
                self._record(Completed(identity.trainer))
                self._end_without_trainers()
        self._wait_recorded(self._recorded)

    def disconnected(self, identity: Identity) -> None:
        with self._changed:
            self._members.suspect(identity)
        self._expire()

    def poll(self, timeout: float) -> bool:
        self._end.wait(timeout)
        self._expire()
        if self._keeper is not None and self._keeper.failure:
            self.stop(self._keeper.failure)  # started again, it comes back as what it could keep
        return self._end.is_set()

    def stop(self, reason: str) -> None:
        with self._changed:
            self._finish(reason)

    def close(self) -> None:
        if self._keeper is not None:
            with self._changed:
                self._keeper.look(self._ledger, ends=True)
            self._keeper.close()
            self._keeper.check_last()

    def _record(self, event: Event) -> None:
        """An event happens, and is given to the log: an assignment when it was not refused, any other one before, since taking
        it gives others (a checkpoint) their place behind it."""
        if isinstance(event, Assigned):
            self._ledger.take(event)
        if self._keeper is not None:
            self._recorded = self._keeper.record(event)
        if not isinstance(event, Assigned):
            self._ledger.take(event)
        if self._keeper is not None:
            self._keeper.look(self._ledger)
        self._changed.notify_all()

    def _wait_recorded(self, number: int) -> None:
        if self._keeper is not None:
            self._keeper.wait(number)

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

    def _check_over(self) -> None:
        if self._over is not None:
            raise PeerLostError(self._over)

    def _end_without_trainers(self) -> None:
        if not self._members.live and not self._options.stays:
            self._finish("all trainers have left; the server ends")

    def _expire(self) -> None:
        now = self._clock()  # before the wait for the lock: an update holds it, and signs of life wait for it as well
        with self._changed:
            lost = self._members.overdue(now) if self._over is None else []
            for trainer in lost:
                log.warning("trainer %d is lost; %s", trainer, "aborting" if self._aborts else "the others go on")
            if lost and self._aborts:
                self._finish(f"trainer(s) {', '.join(map(str, lost))} died, and the job aborts when one does")
                return
            for trainer in lost:
                self._record(Lost(trainer))
            if lost:
                self._end_without_trainers()
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


def _check_read(requests: Sequence[PullRequest]) -> None:
    """RequestRefusedError for what more than a reader asks."""
    for request in requests:
        if isinstance(request, TableRequest) or (isinstance(request, RowRequest) and not request.read_only):
            raise RequestRefusedError(
                f"who is no trainer can read rows that there are, and arrays; {request.table!r} was asked for otherwise"
            )
