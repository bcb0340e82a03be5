"""What a server remembers. It changes by events only: equal events in equal order make equal servers.

So the log of a server is the list of its events, and a server that was killed is made again by taking them again. No
clocks, locks or waits are here; the service has those.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from fluidlite.dtypes import Array
from fluidlite.errors import FluidliteError, OutdatedStepError, RequestRefusedError, ServerFailedError
from fluidlite.protocol.events import (
    Arrived,
    Assigned,
    Came,
    Completed,
    Decided,
    Event,
    Lost,
    NewJob,
    Settled,
    Stepped,
)
from fluidlite.protocol.messages import Declared, Gradient, Identity, PullRequest, Push, Use, Value
from fluidlite.pserver.buffer import Buffer, Contribution
from fluidlite.pserver.members import Members
from fluidlite.pserver.policy import Policy, Rendezvous, Round, Step
from fluidlite.pserver.window import Outcome, Window

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

    def offered(self, name: str, use: Use) -> Declared:
        """What a trainer could declare of a variable to match what is here."""
        ...

    def check_step(
        self,
        gradients: Sequence[Gradient],
        wanted: Sequence[str],
        trainer: int | None = None,
        learning_rate: float | None = None,
    ) -> None:
        """Refuse a step that cannot be applied."""
        ...

    def settle(self) -> None:
        """Bring rows that are regularised lazily up to date."""
        ...

    def remember(self, trainer: int) -> None:
        """The dense variables as they are now are those that a trainer begins with."""
        ...

    def apply(self, steps: Mapping[int, Step], tick: int) -> int:
        """Apply the steps of trainers as one; the version after it. ``tick``: how often the schedule advances first."""
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


class Ledger:
    """Who takes part, which steps came, which are applied. The service's lock guards it."""

    def __init__(self, store: Store, policy: Policy, members: Members) -> None:
        self.store = store
        self.policy = policy
        self.members = members
        self.gate = Rendezvous()
        self._buffer = Buffer()

    def find(self, identity: Identity, sequence: int) -> Outcome | None:
        """The outcome of a step that came before; raises what `Members.require` and `Window.find` raise."""
        return self.members.require(identity).window.find(sequence)

    def check(self, push: Push) -> None:
        """Refuse a new step that must not count: it does not fit what is here, or is too old."""
        header = push.header
        if self._buffer.held_of(header.identity.trainer) >= Window.SIZE:
            raise RequestRefusedError(
                f"{Window.SIZE} steps of trainer {header.identity.trainer} are not applied yet; more are not held"
            )
        self.store.check_step(push.gradients, push.wanted, header.identity.trainer, header.learning_rate)
        stale = self.policy.check(header.identity.trainer, header.version_seen, self.store.version)
        if stale:
            raise OutdatedStepError(stale)

    def take(self, event: Event) -> None:
        """What an event changes. It was checked: nothing here refuses one, but for `Assigned`."""
        match event:
            case Stepped():
                self._stepped(event)
            case Decided(trainer, sequence, apply):
                self._decided(trainer, sequence, apply)
            case Came(identity):
                self.members.register(identity)
                self.gate.withdraw(identity.trainer)
                self.store.remember(identity.trainer)
            case Lost(trainer):
                self.members.lose(trainer)
                self._left(trainer)
            case Completed(trainer):
                self.members.complete(trainer)
                self._left(trainer)
            case Assigned(_, name, value):
                self.store.assign(name, value)
            case Arrived(trainer):
                self.gate.arrive(trainer)
                self._open_gate()
            case NewJob():
                self.members.clear()
            case Settled():
                self.store.settle()

    def retake(self, event: Event) -> None:
        """What an event of a log changes. RequestRefusedError for one that cannot have happened here."""
        try:
            if isinstance(event, Stepped):
                header = event.header
                self.store.check_step(event.gradients, (), header.identity.trainer, header.learning_rate)
            self.take(event)
        except (FluidliteError, LookupError) as error:
            raise RequestRefusedError(f"{type(event).__name__} cannot have happened here: {error!r}") from error

    def _stepped(self, event: Stepped) -> None:
        trainer, sequence = event.header.identity.trainer, event.header.sequence
        window = self.members.member(trainer).window
        if sequence in window:  # a segment of the log begins with what was held: no news behind the segment before it
            return
        self._buffer.accept(Contribution(event, window.open(sequence)))
        if event.decided:
            self._decided(trainer, sequence, apply=True)

    def _decided(self, trainer: int, sequence: int, apply: bool) -> None:
        contribution = self._buffer.pop(trainer, sequence)
        window = self.members.member(trainer).window
        if not apply:
            window.forget(sequence)
            return
        window.decide(sequence, contribution.event.header.steps)
        for old in self._buffer.accepted(trainer):
            if old not in window:
                self._buffer.pop(trainer, old)
        self._buffer.put(contribution)
        self._advance(self.policy.arrive(trainer, self.members.live, contribution.event.header.steps))

    def _left(self, trainer: int) -> None:
        """What the trainer did not decide is forgotten; the round and the barrier that are open no longer wait for it."""
        for sequence in self._buffer.accepted(trainer):
            self._decided(trainer, sequence, apply=False)
        self._advance(self.policy.left(self.members.live))
        self._open_gate()

    def _advance(self, round: Round | None) -> None:
        """Apply a round, if there is one to apply, and those that are complete behind it."""
        while round is not None:
            self._apply(round)
            round = self._next_round()

    def _next_round(self) -> Round | None:
        """Steps that came early, before the round of an earlier one of their trainer, come now."""
        for event in self._buffer.waiting():
            trainer = event.header.identity.trainer
            if round := self.policy.arrive(trainer, self.members.live, event.header.steps):
                return round
        return None

    def _apply(self, round: Round) -> None:
        taken = self._buffer.take(round.trainers)
        try:
            version = self.store.apply(_joined(taken), round.tick)
        except Exception as error:
            log.exception("the update failed")
            text = str(error) if isinstance(error, FluidliteError) else f"{type(error).__name__}: {error}"
            for contribution in taken:
                contribution.outcome.fail(ServerFailedError, text)
        else:
            for contribution in taken:
                contribution.outcome.settle(version)

    def _open_gate(self) -> None:
        for trainer in self.gate.meet(self.members.live):
            self.members.member(trainer).barriers += 1

    def state(self) -> dict[str, Any]:
        """Everything but the store's values and the steps that are `held`, for a checkpoint."""
        return {"members": self.members.state(), "policy": self.policy.state(), "gate": self.gate.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave; the steps that were held come again as events."""
        try:
            self.members.restore(state["members"])
            self.policy.restore(state["policy"])
            self.gate.restore(state["gate"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise RequestRefusedError(f"the state of a server cannot be read: {error!r}") from error

    def held(self) -> Iterator[Stepped]:
        """The steps that are not applied, as the events by which they come again."""
        for event, counts in self._buffer.held():
            yield Stepped(event.header, event.gradients, counts)


def _joined(taken: Sequence[Contribution]) -> dict[int, Step]:
    """What each trainer gives to a round."""
    steps: dict[int, Step] = {}
    for contribution in taken:
        header = contribution.event.header
        step = Step(contribution.event.gradients, header.version_seen, header.learning_rate)
        before = steps.get(header.identity.trainer)
        steps[header.identity.trainer] = step if before is None else before.joined(step)
    return steps
