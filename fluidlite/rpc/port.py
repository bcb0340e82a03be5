"""The trainer's side of the exchange: steps, sequence numbers, retries. One code for every transport."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from fluidlite.dtypes import Array
from fluidlite.errors import LeaseLostError, PeerLostError, RemoteError, UnreachableError
from fluidlite.protocol.messages import (
    CommitReply,
    Declared,
    DenseRequest,
    Gradient,
    Identity,
    PullReply,
    PullRequest,
    Registration,
    Reply,
    StepHeader,
    Value,
    Welcome,
)
from fluidlite.protocol.service import Pending
from fluidlite.rpc.retry import Patience, Retries
from fluidlite.rpc.traffic import Traffic
from fluidlite.values.selected_rows import SelectedRows

log = logging.getLogger("fluidlite")
T = TypeVar("T")


class Channel(Protocol):
    """The way to one server. Each call is one attempt: UnreachableError says that no answer came, the request may or
    may not have arrived. What the server raises arrives as it is (see `protocol.service.Service`)."""

    @property
    def traffic(self) -> Mapping[str, Traffic]:
        """Bytes so far, by verb."""
        ...

    def register(self, registration: Registration, timeout: float) -> Welcome:
        """Waits up to ``timeout`` for the server to come up."""
        ...

    def pull(self, identity: Identity, requests: Sequence[PullRequest]) -> Pending[PullReply]: ...

    def commit(
        self, header: StepHeader, gradients: Sequence[Gradient], wanted: Sequence[str]
    ) -> Pending[CommitReply]: ...

    def assign(self, identity: Identity, name: str, value: Value) -> Pending[None]: ...

    def barrier(self, identity: Identity, number: int) -> Pending[None]: ...

    def complete(self, identity: Identity) -> Pending[None]: ...

    def show_life(self, identity: Identity, lease: float) -> None:
        """Keep the server's lease from running out, until `close`."""
        ...

    def close(self) -> None:
        """End the connection; what is under way fails. Idempotent."""
        ...


@dataclass(slots=True)
class _Peer:
    """What the port knows of one server."""

    endpoint: str
    channel: Channel
    registered: bool = False
    #: it did not come up or answer while this trainer waited, or was not what it should be
    given_up: bool = False
    #: of the server that answered first, and what this trainer has seen of it
    history: int | None = None
    version: int = 0
    barriers: int = 0
    declared: dict[tuple[int, str], Declared] = field(default_factory=dict)
    #: by thread, then by name
    staged: dict[int, dict[str, Gradient]] = field(default_factory=dict)
    #: dense values that the last commit brought and no pull has fetched yet
    fresh: dict[str, Array] = field(default_factory=dict)
    #: dense variables asked for since the last commit, in order: the next commit brings them
    asked: dict[str, None] = field(default_factory=dict)


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
        self._connect = connect
        self._trainers = trainers
        self._patience = patience if patience is not None else Patience()
        #: held while a server is made known, while a commit, and while a barrier is under way
        self._meeting, self._committing, self._gathering = threading.RLock(), threading.Lock(), threading.Lock()
        self._peers: dict[str, _Peer] = {}
        self._sequence = 0
        self._completed = False
        self._closed = False

    @property
    def endpoints(self) -> frozenset[str]:
        """The servers that this port knows."""
        return frozenset(self._peers)

    @property
    def traffic(self) -> dict[str, dict[str, Traffic]]:
        """Bytes sent and received so far, by endpoint and verb; also after `close`."""
        return {endpoint: dict(peer.channel.traffic) for endpoint, peer in self._peers.items()}

    def declare(self, declared: Mapping[str, Iterable[Declared]], trainers: int = 0) -> None:
        """Say what will be asked of, and sent to, each endpoint: the server checks it at the next contact.

        ``trainers``: how many this trainer believes in, where it is known by now. Also makes the endpoints known, so that
        `complete` reaches servers that were never asked for anything.
        """
        with self._meeting:
            self._trainers = trainers or self._trainers
            for endpoint, items in declared.items():
                peer = self._known(endpoint)
                for item in items:
                    if peer.declared.setdefault((item.use, item.name), item) is item:
                        peer.registered = False

    def pull(self, requests: Sequence[PullRequest]) -> list[Any]:
        """One answer per request: an array, or SelectedRows for a whole table. One message per server, all together."""
        answers: dict[int, Value] = {}
        by_peer: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            peer = self._contact(request.endpoint)
            fresh = self._fresh(peer, request)
            if fresh is not None:
                answers[index] = fresh
            else:
                by_peer.setdefault(peer.endpoint, []).append(index)

        def start(peer: _Peer) -> Pending[PullReply]:
            return peer.channel.pull(self.identity, [requests[index] for index in by_peer[peer.endpoint]])

        for endpoint, reply in self._ask("pull", by_peer, start).items():
            self._peers[endpoint].version = reply.version
            answers.update(zip(by_peer[endpoint], reply.values, strict=True))
        return [answers[index] for index in range(len(requests))]

    def stage(self, gradient: Gradient) -> None:
        """Add a gradient to the open step; takes the place of one of that name, left by a run that failed half-way."""
        staged = self._known(gradient.endpoint).staged
        staged.setdefault(threading.get_ident(), {})[gradient.name] = gradient

    def commit(self, endpoints: Sequence[str]) -> Reply:
        """Send the open step to every server, also one that gets no gradient, and wait until it is applied.

        In sync mode that is when every live trainer has committed. A step that fails is over: it is not repeated by
        the next commit.
        """
        with self._committing:
            return self._commit(endpoints)

    def _commit(self, endpoints: Sequence[str]) -> Reply:
        peers = [self._contact(endpoint) for endpoint in dict.fromkeys([*endpoints, *self._staged()])]
        sequence, self._sequence = self._sequence, self._sequence + 1
        steps = {peer.endpoint: self._close_step(peer, sequence) for peer in peers}

        def start(peer: _Peer) -> Pending[CommitReply]:
            return peer.channel.commit(*steps[peer.endpoint])

        replies = self._ask("commit", steps, start)
        for endpoint, reply in replies.items():
            peer = self._peers[endpoint]
            peer.version, peer.fresh = reply.version, dict(reply.dense)
        return Reply({endpoint: reply.version for endpoint, reply in replies.items()})

    def barrier(self, endpoints: Sequence[str]) -> None:
        """Wait until every live trainer has called it."""
        with self._gathering:
            peers = [self._contact(endpoint) for endpoint in dict.fromkeys(endpoints)]
            numbers = {peer.endpoint: peer.barriers for peer in peers}
            self._ask("barrier", numbers, lambda peer: peer.channel.barrier(self.identity, numbers[peer.endpoint]))
            for peer in peers:
                peer.barriers += 1

    def assign(self, endpoint: str, name: str, value: Array | SelectedRows) -> None:
        """Overwrite a variable of a server: a dense array, all rows of a table, or rows of an accumulator of one."""
        peer = self._contact(endpoint)
        peer.fresh.pop(name, None)
        self._ask("assign", [endpoint], lambda peer: peer.channel.assign(self.identity, name, value))

    def complete(self) -> None:
        """Tell every server that this trainer is done, then close. Idempotent.

        What goes wrong is logged, not raised: the trainer's work is done. A server that was given up before is not
        waited for again.
        """
        if self._completed:
            return
        self._completed = True
        reached, retries = [], Retries(self._patience)
        for endpoint, peer in self._peers.copy().items():
            if not peer.given_up:
                try:
                    reached.append(self._contact(endpoint, retries))
                except RemoteError as error:
                    log.warning("%s", error)
        _, failures = self._collect("complete", reached, lambda peer: peer.channel.complete(self.identity))
        for failure in failures:
            log.warning("%s", failure)
        self.close()

    def close(self) -> None:
        """Drop all connections. Without `complete` the servers take this trainer for dead. Idempotent."""
        for peer in self._peers.copy().values():
            peer.channel.close()
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

    def _known(self, endpoint: str) -> _Peer:
        if endpoint not in self._peers:
            with self._meeting:
                if endpoint not in self._peers:
                    self._peers[endpoint] = _Peer(endpoint, self._connect(endpoint))
        return self._peers[endpoint]

    def _contact(self, endpoint: str, retries: Retries | None = None) -> _Peer:
        peer = self._known(endpoint)
        if not peer.registered:
            with self._meeting:
                if not peer.registered:
                    self._register(peer, self._patience.connect if retries is None else retries.left)
        return peer

    def _register(self, peer: _Peer, within: float) -> None:
        """Make the server know this trainer and what it declares; ``within`` seconds the server must come up."""
        registration = Registration(self.identity, self._trainers, tuple(peer.declared.values()))
        peer.given_up = True
        try:
            welcome = self._welcome(peer, registration, within)
        except RemoteError as error:
            raise _located(error, "register", peer.endpoint) from None
        if welcome.version < peer.version or peer.history not in (None, welcome.history):
            raise PeerLostError(
                f"pserver {peer.endpoint} was restarted and lost its state: it is at version {welcome.version}, "
                f"this trainer has seen version {peer.version}"
            )
        peer.history, peer.registered, peer.given_up = welcome.history, True, False
        peer.channel.show_life(self.identity, welcome.lease)

    def _welcome(self, peer: _Peer, registration: Registration, within: float) -> Welcome:
        """Wait for the server to come up, saying so now and then."""
        patience = self._patience
        started = now = patience.clock()
        report = started + patience.connect_report
        while True:
            try:
                return peer.channel.register(registration, min(started + within, report) - now)
            except UnreachableError as error:
                now = patience.clock()
                if now >= started + within:
                    raise PeerLostError(f"the server did not come up within {within:g} s ({error})") from None
                if now >= report:
                    log.warning("waiting for pserver %s (%.0f s so far)", peer.endpoint, now - started)
                    report = now + patience.connect_report
                patience.sleep(patience.backoff)

    def _fresh(self, peer: _Peer, request: PullRequest) -> Array | None:
        """The value of a dense variable that the last commit brought; each is handed out once."""
        if not isinstance(request, DenseRequest) or request.current:
            return None
        peer.asked[request.name] = None
        return peer.fresh.pop(request.name, None)

    def _staged(self) -> list[str]:
        mine = threading.get_ident()
        return [endpoint for endpoint, peer in self._peers.copy().items() if mine in peer.staged]

    def _close_step(self, peer: _Peer, sequence: int) -> tuple[StepHeader, list[Gradient], list[str]]:
        gradients = list(peer.staged.pop(threading.get_ident(), {}).values())
        wanted, peer.asked = list(peer.asked), {}
        peer.fresh = {}
        header = StepHeader(self.identity, sequence, sequence, peer.version, len(gradients))
        return header, gradients, wanted

    def _ask(self, verb: str, endpoints: Iterable[str], start: Callable[[_Peer], Pending[T]]) -> dict[str, T]:
        """Start a call on every server, then collect. All end before the first error is raised."""
        answers, failures = self._collect(verb, [self._peers[endpoint] for endpoint in endpoints], start)
        if failures:
            raise failures[0]
        return answers

    def _collect(
        self, verb: str, peers: Sequence[_Peer], start: Callable[[_Peer], Pending[T]]
    ) -> tuple[dict[str, T], list[RemoteError]]:
        """Start a call on every server; the answers by endpoint, and what went wrong."""
        pending = [(peer, _begin(start, peer)) for peer in peers]
        answers: dict[str, T] = {}
        failures = []
        retries = Retries(self._patience)
        for peer, answer in pending:
            try:
                answers[peer.endpoint] = self._finish(peer, answer, start, retries)
            except RemoteError as error:
                failures.append(_located(error, verb, peer.endpoint))
        return answers, failures

    def _finish(self, peer: _Peer, pending: Pending[T], start: Callable[[_Peer], Pending[T]], retries: Retries) -> T:
        """The answer; repeats the call while the server cannot be reached, registering again where it asks for that."""
        try:
            answer = pending()
            peer.given_up = False
            return answer
        except (UnreachableError, LeaseLostError) as error:
            last: RemoteError = error
        began = self._patience.clock()
        for _ in retries.pauses():
            try:
                if isinstance(last, LeaseLostError):
                    self._register(peer, retries.left)
                answer = start(peer)()
                peer.given_up = False
                return answer
            except (UnreachableError, LeaseLostError) as error:
                last = error
        peer.given_up = True
        raise PeerLostError(f"no answer, tried again for {self._patience.clock() - began:.1f} s: {last}")


def _begin(start: Callable[[_Peer], Pending[T]], peer: _Peer) -> Pending[T]:
    """Start a call; what goes wrong at once is raised where answers are collected."""
    try:
        return start(peer)
    except RemoteError as error:
        failure = error

        def fail() -> T:
            raise failure

        return fail


def _located(error: RemoteError, verb: str, endpoint: str) -> RemoteError:
    """The same error, naming verb and server."""
    if f" at pserver {endpoint}: " not in str(error):
        error.args = (f"{verb} at pserver {endpoint}: {error}",)
    return error
