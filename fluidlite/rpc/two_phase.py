"""Steps that go to several servers: each accepts the step, then all are told what became of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from fluidlite.errors import ForgottenError, PeerLostError
from fluidlite.protocol.messages import CommitReply, Decision, Push
from fluidlite.protocol.service import Pending
from fluidlite.rpc.late import named
from fluidlite.rpc.peers import Calls, Peer, Peers

log = logging.getLogger("fluidlite")


class TwoPhase:
    """What became of steps, and which servers may not have heard of it. One thread at a time commits."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def deliver(self, peers: Iterable[Peer]) -> None:
        """Servers hear what became of earlier steps, before they get another one; raises PeerLostError."""
        for peer in peers:
            for sequence, apply in list(peer.owed.items()):
                _, failures = self._peers.begin("commit", [peer], self._told(sequence, apply)).collect()
                for failure in failures:
                    if isinstance(failure, PeerLostError):
                        raise failure
                    log.warning("step %d: %s", sequence, failure)
                del peer.owed[sequence]

    def send(self, sequence: int, peers: Sequence[Peer], pushes: Mapping[str, Push]) -> Calls[CommitReply]:
        """Make the servers accept a step; the calls that tell them that it counts. Raises what went wrong before: then it
        counts nowhere."""
        with _owed(peers, sequence, apply=False):
            calls = self._peers.begin("commit", peers, lambda peer: peer.channel.commit(pushes[peer.endpoint]))
            accepted, failures = calls.collect()
            if failures:
                self._take_back(sequence, peers, accepted)
        if failures:
            raise named(sequence, failures)
        with _owed(peers, sequence, apply=True):
            return self._peers.begin("commit", peers, lambda peer: _counts(peer, pushes[peer.endpoint]))

    def _take_back(self, sequence: int, peers: Sequence[Peer], accepted: Container[str]) -> None:
        """A step that one server refused is forgotten by the others. One that may have accepted it hears of that later."""
        there = [peer for peer in peers if peer.endpoint in accepted]
        taken, failures = self._peers.begin("commit", there, self._told(sequence, apply=False)).collect()
        for failure in failures:
            log.warning("step %d, which was refused elsewhere: %s", sequence, failure)
        for peer in peers:
            if peer.endpoint not in taken and peer.given_up:
                peer.owed[sequence] = False

    def _told(self, sequence: int, apply: bool) -> Callable[[Peer], Pending[CommitReply]]:
        decision = Decision(self._peers.identity, sequence, apply)
        return lambda peer: peer.channel.decide(decision)


@contextmanager
def _owed(peers: Sequence[Peer], sequence: int, *, apply: bool) -> Iterator[None]:
    """Where an interrupt comes, the servers still have to hear what became of the step."""
    try:
        yield
    except BaseException:
        for peer in peers:
            peer.owed[sequence] = apply
        raise


def _counts(peer: Peer, push: Push) -> Pending[CommitReply]:
    """Tell a server that a step counts, which all accepted. One that gave this trainer up meanwhile, and with it what was
    not decided, gets the step once more."""
    header = push.header
    decision = Decision(header.identity, header.sequence, apply=True, wanted=push.wanted)
    whole = replace(push, decided=True)
    try:
        pending = peer.channel.decide(decision)
    except ForgottenError:
        return peer.channel.commit(whole)

    def answer() -> CommitReply:
        try:
            return pending()
        except ForgottenError:
            return peer.channel.commit(whole)()

    return answer
