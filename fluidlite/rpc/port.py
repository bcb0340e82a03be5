"""The trainer's side of the exchange: steps, sequence numbers, late replies. One code for every transport."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from fluidlite.dtypes import Array
from fluidlite.errors import RemoteError
from fluidlite.protocol.messages import (
    Declared,
    DenseRequest,
    Gradient,
    Identity,
    PullReply,
    PullRequest,
    Reply,
    RowRequest,
    StepHeader,
    Value,
)
from fluidlite.protocol.service import Pending
from fluidlite.rpc.ahead import AheadPulls
from fluidlite.rpc.late import LateReply
from fluidlite.rpc.peers import Channel, Peer, Peers, first_of
from fluidlite.rpc.retry import Patience, Retries
from fluidlite.rpc.traffic import Traffic
from fluidlite.values.selected_rows import SelectedRows

__all__ = ["Channel", "TrainerPort"]

log = logging.getLogger("fluidlite")
#: bytes of a dense gradient from which on it leaves ahead of its step's commit: a message of its own has to pay
_LEAVES_EARLY: Final = 1 << 18


@dataclass(slots=True)
class _OpenStep:
    """The gradients that one thread staged, by endpoint and name; ``sequence`` once some may have left."""

    sequence: int | None = None
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
    recognises repetitions by (trainer, incarnation, sequence). For any number of threads: each has an open step of its
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

    @property
    def endpoints(self) -> frozenset[str]:
        """The servers that this port knows."""
        return frozenset(self._peers.all())

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

    def pull(self, requests: Sequence[PullRequest]) -> list[Any]:
        """One answer per request: an array, or SelectedRows for a whole table. One message per server, all together.

        Raises what went wrong with this thread's last step, where its reply was still to come, unless all was asked ahead
        and came: then a later call raises it.
        """
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

    def pull_ahead(self, requests: Sequence[PullRequest]) -> bool:
        """Ask for rows that a `pull` to come will ask for; it then gets them as they were. False, and nothing done, where
        a server works in sync mode.

        The rows may miss steps of this trainer that are on their way. Those of the last two calls are kept.
        """
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
        step = self._steps.setdefault(threading.get_ident(), _OpenStep())
        number = step.put(gradient)
        if gradient.rows is None and gradient.value.nbytes >= _LEAVES_EARLY and peer.registered:
            with suppress(RemoteError):  # the commit will say it
                peer.channel.part(self._header(peer, self._numbered(step), 0), number, gradient)

    def commit(self, endpoints: Sequence[str]) -> Reply:
        """Send the open step to every server, also one that gets no gradient, and wait until it is applied.

        In sync mode that is when every live trainer has committed. In async mode nobody waits before something needs
        the reply: its versions, or the next call of this thread, which then raises what went wrong, naming the step. A
        step that fails is over, and so is one that follows a failed one: it is not repeated by the next commit.
        """
        step = self._steps.pop(threading.get_ident(), None) or _OpenStep()
        self._settle()
        peers = [self._peers.met(endpoint) for endpoint in dict.fromkeys([*endpoints, *step.staged])]
        with self._committing:
            late = self._send(step, peers)
            if any(peer.sync for peer in peers):
                late.wait()
        if not late.settled:
            self._late[threading.get_ident()] = late
        return Reply(late.wait)

    def _send(self, step: _OpenStep, peers: Sequence[Peer]) -> LateReply:
        sequence = self._numbered(step)
        steps = {peer.endpoint: self._close_step(step, peer, sequence) for peer in peers}
        calls = self._peers.begin("commit", peers, lambda peer: peer.channel.commit(*steps[peer.endpoint]))
        return LateReply(sequence, {peer.endpoint: peer for peer in peers}, calls)

    def barrier(self, endpoints: Sequence[str]) -> None:
        """Wait until every live trainer has called it."""
        self._settle()
        with self._gathering:
            peers = [self._peers.met(endpoint) for endpoint in dict.fromkeys(endpoints)]
            numbers = {peer.endpoint: peer.barriers for peer in peers}
            self._peers.ask("barrier", peers, lambda peer: peer.channel.barrier(self.identity, numbers[peer.endpoint]))
            for peer in peers:
                peer.barriers += 1

    def assign(self, endpoint: str, name: str, value: Array | SelectedRows) -> None:
        """Overwrite a variable of a server: a dense array, all rows of a table, or rows of an accumulator of one."""
        self._settle()
        peer = self._peers.met(endpoint)
        peer.fresh.pop(name, None)
        self._peers.ask("assign", [peer], lambda peer: peer.channel.assign(self.identity, name, value))

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

    def _header(self, peer: Peer, sequence: int, parts: int) -> StepHeader:
        return StepHeader(self.identity, sequence, sequence, peer.seen, parts)

    def _close_step(self, step: _OpenStep, peer: Peer, sequence: int) -> tuple[StepHeader, list[Gradient], list[str]]:
        gradients = step.of(peer.endpoint)
        wanted, peer.asked = list(peer.asked), {}
        peer.fresh = {}
        return self._header(peer, sequence, len(gradients)), gradients, wanted


def _fresh(peer: Peer, request: PullRequest) -> Array | None:
    """The value of a dense variable that the last commit brought; each is handed out once."""
    if not isinstance(request, DenseRequest) or request.current:
        return None
    peer.asked[request.name] = None
    return peer.fresh.pop(request.name, None)
