"""The servers that a trainer knows: first contact, and calls that are repeated until they are answered."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from fluidlite.dtypes import Array
from fluidlite.errors import LeaseLostError, PeerLostError, RemoteError, UnreachableError
from fluidlite.protocol.messages import (
    CommitReply,
    Decision,
    Declared,
    Gradient,
    Identity,
    PullReply,
    PullRequest,
    Push,
    Registration,
    StepHeader,
    Value,
    Welcome,
)
from fluidlite.protocol.service import Pending
from fluidlite.rpc.retry import Patience, Retries
from fluidlite.rpc.traffic import Traffic

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

    def pull(self, identity: Identity, requests: Sequence[PullRequest], ahead: bool = False) -> Pending[PullReply]:
        """``ahead``: nobody waits yet; the time to answer counts from when somebody does."""
        ...

    def part(self, header: StepHeader, number: int, gradient: Gradient) -> None:
        """A gradient that `commit` will hold at position ``number``: it may leave now, or not."""
        ...

    def commit(self, push: Push) -> Pending[CommitReply]: ...

    def decide(self, decision: Decision) -> Pending[CommitReply]: ...

    def assign(self, identity: Identity, name: str, value: Value) -> Pending[None]: ...

    def barrier(self, identity: Identity, number: int) -> Pending[None]: ...

    def checkpoint(self, identity: Identity, number: int, folder: str) -> Pending[int]: ...

    def complete(self, identity: Identity) -> Pending[None]: ...

    def show_life(self, identity: Identity, lease: float) -> None:
        """Keep the server's lease from running out, until `close`."""
        ...

    def close(self) -> None:
        """End the connection; what is under way fails. Idempotent."""
        ...


@dataclass(slots=True)
class Peer:
    """What a trainer knows of one server."""

    endpoint: str
    channel: Channel
    registered: bool = False
    #: a step is applied together with those of all other trainers
    sync: bool = True
    #: it did not come up or answer while this trainer waited, or was not what it should be
    given_up: bool = False
    #: of the server that answered first
    history: int | None = None
    #: the highest version that this trainer has seen, and that of the values it got last
    version: int = 0
    seen: int = 0
    barriers: int = 0
    #: when it was met: one above this trainer's last step that counts, and a step that waits for a decision
    next_sequence: int = 0
    undecided: int | None = None
    #: decisions about steps that it may not have heard of, by number: they come before the next step
    owed: dict[int, bool] = field(default_factory=dict)
    declared: dict[tuple[int, str], Declared] = field(default_factory=dict)
    #: dense values that the last commit brought and no pull has fetched yet
    fresh: dict[str, Array] = field(default_factory=dict)
    #: dense variables asked for since the last commit, in order: the next commit brings them
    asked: dict[str, None] = field(default_factory=dict)

    def saw(self, version: int) -> None:
        """Values of this version came."""
        self.seen, self.version = version, max(version, self.version)


class Peers:
    """All servers of one trainer; a channel to each is opened by ``connect`` when it is first named."""

    def __init__(
        self, connect: Callable[[str], Channel], identity: Identity, trainers: int, patience: Patience
    ) -> None:
        self.identity = identity
        self.trainers = trainers
        self._connect = connect
        self._patience = patience
        #: held while a server is made known
        self._meeting = threading.RLock()
        self._peers: dict[str, Peer] = {}
        self._closed = False

    def all(self) -> dict[str, Peer]:
        """Those known by now, by endpoint."""
        return self._peers.copy()

    def declare(self, endpoint: str, items: Iterable[Declared]) -> None:
        """What will be asked of a server and sent to it; it checks that at the next contact."""
        with self._meeting:
            peer = self[endpoint]
            for item in items:
                if peer.declared.setdefault((item.use, item.name), item) is item:
                    peer.registered = False

    def __getitem__(self, endpoint: str) -> Peer:
        """A server, which may not have been met yet."""
        if endpoint not in self._peers:
            with self._meeting:
                if endpoint not in self._peers:
                    self._peers[endpoint] = Peer(endpoint, self._connect(endpoint))
            if self._closed:
                self._peers[endpoint].channel.close()
        return self._peers[endpoint]

    def met(self, endpoint: str, retries: Retries | None = None) -> Peer:
        """A server that knows this trainer. ``retries``: how long it is waited for, else as long as the patience says."""
        peer = self[endpoint]
        if not peer.registered:
            with self._meeting:
                if not peer.registered:
                    try:
                        self._register(peer, self._patience.connect if retries is None else retries.left)
                    except UnreachableError as error:
                        raise PeerLostError(str(error)) from None
        return peer

    def close(self) -> None:
        """End all connections, and each that is asked for from now on. Waits for nobody who waits for a server."""
        self._closed = True
        for peer in self.all().values():
            peer.channel.close()

    def ask(self, verb: str, peers: Iterable[Peer], start: Callable[[Peer], Pending[T]]) -> dict[str, T]:
        """Start a call on every server, and wait for the answers, by endpoint."""
        return self.begin(verb, peers, start).answers()

    def begin(self, verb: str, peers: Iterable[Peer], start: Callable[[Peer], Pending[T]]) -> Calls[T]:
        """Start a call on every server."""
        began = self._patience.clock()
        pending = [(peer, _begin(start, peer)) for peer in peers]
        return Calls(self, verb, start, pending, self._patience.clock() - began)

    def finish(self, peer: Peer, pending: Pending[T], start: Callable[[Peer], Pending[T]], retries: Retries) -> T:
        """The answer; repeats the call while the server cannot be reached, registering again where it asks for that."""
        try:
            answer = pending()
            peer.given_up = False
            return answer
        except (UnreachableError, LeaseLostError) as error:
            last: RemoteError = error
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
        raise PeerLostError(f"no answer, {retries.tried}: {last}")

    def retries(self, spent: float = 0.0) -> Retries:
        """For calls that are waited for together from now on; it took ``spent`` seconds to send them."""
        return Retries(self._patience, spent)

    def _register(self, peer: Peer, within: float) -> None:
        """Make the server know this trainer and what it declares; ``within`` seconds the server must come up."""
        registration = Registration(self.identity, self.trainers, tuple(peer.declared.values()))
        peer.given_up = True
        try:
            welcome = self._welcome(peer, registration, within)
        except RemoteError as error:
            raise located(error, "register", peer.endpoint) from None
        if welcome.version < peer.version or peer.history not in (None, welcome.history):
            raise PeerLostError(
                f"pserver {peer.endpoint} was restarted and lost its state: it is at version {welcome.version}, "
                f"this trainer has seen version {peer.version}"
            )
        if peer.history is None:
            peer.next_sequence, peer.undecided = welcome.next_sequence, welcome.undecided
        peer.sync, peer.history, peer.registered, peer.given_up = welcome.sync, welcome.history, True, False
        peer.channel.show_life(self.identity, welcome.lease)

    def _welcome(self, peer: Peer, registration: Registration, within: float) -> Welcome:
        """Wait for the server to come up, saying so now and then; UnreachableError when it does not."""
        patience = self._patience
        started = now = patience.clock()
        report = started + patience.connect_report
        while True:
            try:
                return peer.channel.register(registration, min(started + within, report) - now)
            except UnreachableError as error:
                now = patience.clock()
                if now >= started + within:
                    raise UnreachableError(f"the server did not come up within {within:g} s ({error})") from None
                if now >= report:
                    log.warning("waiting for pserver %s (%.0f s so far)", peer.endpoint, now - started)
                    report = now + patience.connect_report
                patience.sleep(patience.backoff)


class Calls(Generic[T]):
    """Calls on several servers, under way together."""

    def __init__(
        self,
        peers: Peers,
        verb: str,
        start: Callable[[Peer], Pending[T]],
        pending: Sequence[tuple[Peer, Pending[T]]],
        spent: float,
    ) -> None:
        self._peers = peers
        self._verb = verb
        self._start = start
        self._pending = pending
        self._spent = spent

    def answers(self, retries: Retries | None = None) -> dict[str, T]:
        """By endpoint. All calls end before the first error is raised. ``retries``: those of all that is waited for
        together with these calls."""
        answers, failures = self.collect(retries)
        if failures:
            raise first_of(failures)
        return answers

    def collect(self, retries: Retries | None = None) -> tuple[dict[str, T], list[RemoteError]]:
        """The answers by endpoint, and what went wrong."""
        answers: dict[str, T] = {}
        failures = []
        retries = self._peers.retries(self._spent) if retries is None else retries
        for peer, pending in self._pending:
            try:
                answers[peer.endpoint] = self._peers.finish(peer, pending, self._start, retries)
            except RemoteError as error:
                failures.append(located(error, self._verb, peer.endpoint))
        return answers, failures


def _begin(start: Callable[[Peer], Pending[T]], peer: Peer) -> Pending[T]:
    """Start a call; what goes wrong at once is raised where answers are collected."""
    try:
        return start(peer)
    except RemoteError as error:
        failure = error

        def fail() -> T:
            raise failure

        return fail


def located(error: RemoteError, verb: str, endpoint: str) -> RemoteError:
    """The same error, naming verb and server."""
    place = f"{verb} at pserver {endpoint}: "
    if not str(error).startswith(place):
        error.args = (f"{place}{error}",)
    return error


def first_of(failures: Sequence[RemoteError]) -> RemoteError:
    """The error to raise for several: the first, with the others as its notes."""
    first, *others = failures
    for other in others:
        first.add_note(f"also: {other}")
    return first
