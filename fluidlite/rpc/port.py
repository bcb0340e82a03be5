"""The trainer's side of the exchange: steps, sequence numbers, late replies. One code for every transport."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fluidlite.dtypes import Array
from fluidlite.errors import OutdatedStepError, RemoteError
from fluidlite.protocol.messages import (
    Declared,
    DenseRequest,
    Gradient,
    Identity,
    PullReply,
    PullRequest,
    Push,
    Reply,
    RowRequest,
    StepHeader,
    Value,
)
from fluidlite.protocol.service import Pending
from fluidlite.rpc.ahead import AheadPulls
from fluidlite.rpc.joining import Joining
from fluidlite.rpc.late import LateReply
from fluidlite.rpc.peers import Channel, Peer, Peers, first_of
from fluidlite.rpc.retry import Patience, Retries
from fluidlite.rpc.traffic import Traffic
from fluidlite.rpc.two_phase import TwoPhase
from fluidlite.values.selected_rows import SelectedRows

__all__ = ["Channel", "TrainerPort"]

log = logging.getLogger("fluidlite")
#: bytes of a dense gradient from which on it leaves ahead of its step's commit: a message of its own has to pay
_LEAVES_EARLY: Final = 1 << 18
#: how far the numbers of steps under way may be apart: servers remember the latest 64
_MOST_APART: Final = 32


@dataclass(slots=True)
class _OpenStep:
    """The gradients that one thread staged, by endpoint and name; ``sequence`` once some may have left.

    ``learning_rate``: what the servers are to use. ``seen``: by endpoint, the version that the gradients were computed from,
    where it is not that of the values which came last.
    """

    sequence: int | None = None
    learning_rate: float | None = None
    seen: Mapping[str, int] = field(default_factory=dict)
    staged: dict[str, dict[str, Gradient]] = field(default_factory=dict)

    def put(self, gradient: Gradient) -> int:
        """Add a gradient; its number among those of its server. One that takes another's place begins the step anew."""
        staged = self.staged.setdefault(gradient.endpoint, {})
        if gradient.name in staged:
            self.sequence = None
        staged[gradient.name] = gradient
        return len(staged) - 1

    def of(self, endpoint: str) -> list[Gradient]:
        """What goes to a server, in the order of its numbers."""
        return list(self.staged.get(endpoint, {}).values())


class TrainerPort:
    """Implements `ops.context.ServerPort` over channels, one per server, opened at first contact.

    ``connect(endpoint)`` makes a channel. ``trainers`` is checked by the servers (0: not known yet, unchecked). Requests
    to several servers are under way together. A call that gets no answer is repeated within ``patience``; the server
    recognises repetitions by (trainer, sequence). A step that goes to several servers counts once all have accepted it. A
    new incarnation goes on where the one before it ended. For any number of threads: each has an open step of its
    own, and their commits go one after the other.
    """

    def __init__(
        self,
        connect: Callable[[str], Channel],
        *,
        trainer: int,
        trainers: int = 0,
        job: str = "job",
        incarnation: int | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.identity = Identity(job, trainer, time.time_ns() if incarnation is None else incarnation)
        self._peers = Peers(connect, self.identity, trainers, patience if patience is not None else Patience())
        self._joining = Joining(self._peers)
        self._phases = TwoPhase(self._peers)
        #: held while a commit, and while a barrier is under way
        self._committing, self._gathering = threading.Lock(), threading.Lock()
        self._numbering = threading.Lock()
        self._sequence = 0
        #: by thread: the open step, and the last one while its reply is to come
        self._steps: dict[int, _OpenStep] = {}
        self._late: dict[int, LateReply] = {}
        self._ahead = AheadPulls()
        self._completed = False
        self._closed = False
        #: whether a step that goes to several servers is accepted by all before it counts on any
        self.two_phase = True

    @property
    def endpoints(self) -> frozenset[str]:
        """The servers that this port knows."""
        return frozenset(self._peers.all())

    @property
    def version(self) -> int:
        """The highest version of a server that this port has heard of."""
        return max((peer.version for peer in self._peers.all().values()), default=0)

    @property
    def traffic(self) -> dict[str, dict[str, Traffic]]:
        """Bytes sent and received so far, by endpoint and verb; also after `close`."""
        return {endpoint: dict(peer.channel.traffic) for endpoint, peer in self._peers.all().items()}

    def declare(self, declared: Mapping[str, Iterable[Declared]], trainers: int = 0) -> None:
        """Say what will be asked of, and sent to, each endpoint: the server checks it at the next contact.

        ``trainers``: how many this trainer believes in, where it is known by now. Also makes the endpoints known, so that
        `complete` reaches servers that were never asked for anything.
        """
        self._peers.trainers = trainers or self._peers.trainers
        for endpoint, items in declared.items():
            self._peers.declare(endpoint, items)

    def resume(self) -> int:
        """Meet the servers; how many steps of this trainer count already, those of earlier incarnations.

        Afterwards the last of them is applied everywhere, so that what is pulled is what follows it.
        """
        self._join()
        return self._sequence

    def _join(self) -> None:
        """Meet every server that is known, and go on where an earlier incarnation ended."""
        if (counted := self._joining.join()) > self._sequence:
            with self._numbering:
                self._sequence = max(self._sequence, counted)

    def _met(self, endpoints: Iterable[str]) -> list[Peer]:
        """These servers, each once, after all that are known were met."""
        peers = [self._peers[endpoint] for endpoint in dict.fromkeys(endpoints)]
        self._join()
        return [self._peers.met(peer.endpoint) for peer in peers]

    def pull(self, requests: Sequence[PullRequest]) -> list[Any]:
        """One answer per request: an array, or SelectedRows for a whole table. One message per server, all together.

        Raises what went wrong with this thread's last step, where its reply was still to come, unless all was asked ahead
        and came: then a later call raises it.
        """
        self._join()
        answers = self._asked(requests)
        asked = [index for index in range(len(requests)) if index not in answers]
        if asked:
            self._settle()
        for index in asked:
            fresh = _fresh(self._peers.met(requests[index].endpoint), requests[index])
            if fresh is not None:
                answers[index] = fresh
        asked = [index for index in asked if index not in answers]
        answers.update(zip(asked, self._start_pull([requests[index] for index in asked])(None), strict=True))
        return [answers[index] for index in range(len(requests))]

    def versions(self, endpoints: Sequence[str]) -> dict[str, int]:
        """The versions of servers now, by endpoint. They are those that steps from here on have seen."""
        self._settle()
        peers = self._met(endpoints)
        replies = self._peers.ask("pull", peers, lambda peer: peer.channel.pull(self.identity, []))
        for peer in peers:
            peer.saw(replies[peer.endpoint].version)
        return {endpoint: reply.version for endpoint, reply in replies.items()}

    def seen(self, endpoint: str) -> int:
        """The version of the values that came last from a server."""
        return self._peers[endpoint].seen

    def pull_ahead(self, requests: Sequence[PullRequest]) -> bool:
        """Ask for rows that a `pull` to come will ask for; it then gets them as they were. False, and nothing done, where
        a server works in sync mode.

        The rows may miss steps of this trainer that are on their way. Those of the last two calls are kept.
        """
        self._join()
        rows = [request for request in requests if isinstance(request, RowRequest)]
        if any(self._peers.met(request.endpoint).sync for request in rows):
            return False
        if rows:
            self._ahead.put(rows, self._start_pull(rows, ahead=True))
        return bool(rows)

    def _asked(self, requests: Sequence[PullRequest]) -> dict[int, Any]:
        """What was asked ahead, by position."""
        retries = self._peers.retries()
        answers = {}
        try:
            for index, request in enumerate(requests):
                if isinstance(request, RowRequest) and (rows := self._ahead.take(request, retries)) is not None:
                    answers[index] = rows
        except RemoteError:
            self._settle(retries)  # what went wrong with the last step came first
            raise
        return answers

    def _start_pull(
        self, requests: Sequence[PullRequest], ahead: bool = False
    ) -> Callable[[Retries | None], list[Any]]:
        """Ask; what waits for the answers, as `Calls.answers` does."""
        by_peer: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            by_peer.setdefault(request.endpoint, []).append(index)

        def start(peer: Peer) -> Pending[PullReply]:
            return peer.channel.pull(self.identity, [requests[index] for index in by_peer[peer.endpoint]], ahead)

        peers = {endpoint: self._peers.met(endpoint) for endpoint in by_peer}
        calls = self._peers.begin("pull", peers.values(), start)

        def answer(retries: Retries | None) -> list[Any]:
            values: dict[int, Value] = {}
            for endpoint, reply in calls.answers(retries).items():
                peers[endpoint].saw(reply.version)
                values.update(zip(by_peer[endpoint], reply.values, strict=True))
            return [values[index] for index in range(len(requests))]

        return answer

    def stage(self, gradient: Gradient) -> None:
        """Add a gradient to the open step; takes the place of one of that name, left by a run that failed half-way.

        A large dense one leaves at once, so that the rest of the step is computed meanwhile.
        """
        peer = self._peers[gradient.endpoint]
        self._join()
        step = self._steps.setdefault(threading.get_ident(), _OpenStep())
        number = step.put(gradient)
        if gradient.rows is None and gradient.value.nbytes >= _LEAVES_EARLY and peer.registered:
            with suppress(RemoteError):  # the commit will say it
                peer.channel.part(self._header(peer, self._numbered(step), 0), number, gradient)

    def abandon(self) -> None:
        """Drop the open step of this thread: the run that staged it failed."""
        self._steps.pop(threading.get_ident(), None)

    def commit(
        self,
        endpoints: Sequence[str],
        steps: int = 1,
        *,
        learning_rate: float | None = None,
        seen: Mapping[str, int] | None = None,
    ) -> Reply:
        """Send the open step to every server, also one that gets no gradient, and wait until it is applied.

        In sync mode that is when every live trainer has committed. In async mode nobody waits before something needs
        the reply: its versions, or the next call of this thread, which then raises what went wrong, naming the step. A
        step that fails is over, and so is one that follows a failed one: it is not repeated by the next commit.

        Of several servers each accepts the step first, which is waited for; then it counts on all, or, where one refuses
        it, on none. Without `two_phase` it counts on each at once. ``steps``: how many steps are merged in this one.
        ``learning_rate`` overrides the servers' own, ``seen``, by endpoint, the version of the values that came last.
        """
        step = self._steps.pop(threading.get_ident(), None) or _OpenStep()
        step.learning_rate, step.seen = learning_rate, seen or {}
        self._settle()
        peers = self._met([*endpoints, *step.staged])
        decided = len(peers) == 1 or not self.two_phase
        with self._committing:
            self._phases.deliver(peers)
            sequence = self._close_number(step, steps)
            try:
                late = self._late[threading.get_ident()] = self._send(step, peers, sequence, decided, steps)
                if any(peer.sync for peer in peers):
                    self._settle()
            except OutdatedStepError:
                if not decided or len(peers) == 1:  # it counts nowhere, and is computed again
                    self._give_back(sequence)
                raise
        return Reply(late.wait)

    def _send(self, step: _OpenStep, peers: Sequence[Peer], sequence: int, decided: bool, steps: int) -> LateReply:
        """The step on its way to count. Where it is not ``decided``, once all have accepted it; raises what went wrong."""
        pushes = {peer.endpoint: self._close_step(step, peer, sequence, decided, steps) for peer in peers}
        if decided:
            calls = self._peers.begin("commit", peers, lambda peer: peer.channel.commit(pushes[peer.endpoint]))
        else:
            calls = self._phases.send(sequence, peers, pushes)
        return LateReply(sequence, {peer.endpoint: peer for peer in peers}, calls, owed=not decided)

    def barrier(self, endpoints: Sequence[str]) -> None:
        """Wait until every live trainer has called it."""
        self._settle()
        with self._gathering:
            peers = self._met(endpoints)
            numbers = {peer.endpoint: peer.barriers for peer in peers}
            self._peers.ask("barrier", peers, lambda peer: peer.channel.barrier(self.identity, numbers[peer.endpoint]))
            for peer in peers:
                peer.barriers += 1

    def assign(self, endpoint: str, name: str, value: Array | SelectedRows) -> None:
        """Overwrite a variable of a server: a dense array, all rows of a table, or rows of an accumulator of one."""
        self._settle()
        (peer,) = self._met([endpoint])
        peer.fresh.pop(name, None)
        self._peers.ask("assign", [peer], lambda peer: peer.channel.assign(self.identity, name, value))

    def checkpoint(self, endpoints: Sequence[str], folder: str = "") -> int:
        """Make the servers write a checkpoint, and wait until it is written; its number, the highest of their versions.

        ``folder``: where they keep checkpoints; "": wherever that is. RequestRefusedError of servers that keep none.
        """
        self._settle()
        peers = self._met(endpoints)
        replies = self._peers.ask("pull", peers, lambda peer: peer.channel.pull(self.identity, []))
        number = max(reply.version for reply in replies.values())
        self._peers.ask("checkpoint", peers, lambda peer: peer.channel.checkpoint(self.identity, number, folder))
        return number

    def complete(self) -> None:
        """Tell every server that this trainer is done, then close. Idempotent.

        What goes wrong is logged, not raised: the trainer's work is done. But a step whose reply was still to come and
        that failed is raised, at the end. A server that was given up before is not waited for again.
        """
        if self._completed:
            return
        failed = self._settle_all()
        reached, retries = [], self._peers.retries()
        for endpoint, peer in self._peers.all().items():
            if not peer.given_up:
                try:
                    reached.append(self._peers.met(endpoint, retries))
                except RemoteError as error:
                    log.warning("%s", error)
        for peer in list(reached):
            try:
                self._phases.deliver([peer])
            except RemoteError as error:
                log.warning("%s", error)
                reached.remove(peer)
        _, failures = self._peers.begin("complete", reached, lambda p: p.channel.complete(self.identity)).collect()
        for failure in failures:
            log.warning("%s", failure)
        self._completed = True
        self.close()
        if failed:
            raise first_of(failed)

    def close(self) -> None:
        """Drop all connections. Without `complete` the servers take this trainer for dead. Idempotent."""
        self._peers.close()
        for error in self._settle_all():
            log.warning("%s", error)
        if not self._closed:
            self._closed = True
            self._log_traffic()

    def _log_traffic(self) -> None:
        for endpoint, verbs in self.traffic.items():
            if verbs:
                each = "; ".join(f"{verb} {amount}" for verb, amount in verbs.items())
                log.info("pserver %s in %d steps: %s", endpoint, self._sequence, each)
                steps = max(self._sequence, 1)
                total = [sum(amounts) // steps for amounts in zip(*verbs.values(), strict=True)]
                log.info("pserver %s per step: %s", endpoint, Traffic(*total))

    def _settle(self, retries: Retries | None = None) -> None:
        """Wait for the reply to this thread's last step, if it is still to come; raises what went wrong, once."""
        late = self._late.get(threading.get_ident())
        if late is None:
            return
        try:
            late.settle(retries)
        finally:
            if late.settled:  # else an interrupt came: the next call waits
                self._late.pop(threading.get_ident(), None)

    def _settle_all(self) -> list[RemoteError]:
        """Wait for all replies that are still to come; what went wrong."""
        failed = []
        while self._late:
            _, late = self._late.popitem()
            try:
                late.settle()
            except RemoteError as error:
                failed.append(error)
        return failed

    def _numbered(self, step: _OpenStep) -> int:
        """The step's sequence number."""
        if step.sequence is None:
            with self._numbering:
                step.sequence, self._sequence = self._sequence, self._sequence + 1
        return step.sequence

    def _close_number(self, step: _OpenStep, steps: int) -> int:
        """The number of a step that is committed now, once none of other threads is too far from it."""
        if step.sequence is not None and step.sequence < self._sequence - _MOST_APART:
            step.sequence = None
        sequence = self._numbered(step)
        for late in list(self._late.values()):
            if late.sequence < sequence - _MOST_APART:
                late.come()
        with self._numbering:
            self._sequence = max(self._sequence, sequence + steps)
        return sequence

    def _give_back(self, sequence: int) -> None:
        """The next step takes a number, unless there is one behind it."""
        with self._numbering:
            if self._sequence == sequence + 1:
                self._sequence = sequence

    def _header(self, peer: Peer, sequence: int, parts: int, steps: int = 1) -> StepHeader:
        return StepHeader(self.identity, sequence, sequence, peer.seen, parts, steps=steps)

    def _close_step(self, step: _OpenStep, peer: Peer, sequence: int, decided: bool, steps: int) -> Push:
        gradients = step.of(peer.endpoint)
        wanted, peer.asked = list(peer.asked), {}
        peer.fresh = {}
        header = self._header(peer, sequence, len(gradients), steps)
        seen = step.seen.get(peer.endpoint, header.version_seen)
        header = replace(header, version_seen=seen, learning_rate=step.learning_rate)
        return Push(header, gradients, wanted, decided)


def _fresh(peer: Peer, request: PullRequest) -> Array | None:
    """The value of a dense variable that the last commit brought; each is handed out once."""
    if not isinstance(request, DenseRequest) or request.current:
        return None
    peer.asked[request.name] = None
    return peer.fresh.pop(request.name, None)
