"""The reply to a commit that nobody has waited for yet."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from fluidlite.errors import RemoteError
from fluidlite.protocol.messages import CommitReply
from fluidlite.rpc.peers import Calls, Peer, first_of
from fluidlite.rpc.retry import Retries


class LateReply:
    """The replies to a commit, once somebody waits for them. For any number of threads.

    ``owed``: a server that does not answer is to hear again that the step counts, for others know it.

    """

    def __init__(self, sequence: int, peers: Mapping[str, Peer], calls: Calls[CommitReply], *, owed: bool) -> None:
        self.sequence = sequence
        self._owed = owed
        self._peers = peers
        self._calls = calls
        self._lock = threading.Lock()
        self._versions: dict[str, int] | None = None
        self._failure: RemoteError | None = None
        self._told = False

    @property
    def settled(self) -> bool:
        """Whether the replies have come."""
        return self._versions is not None or self._failure is not None

    def come(self) -> None:
        """Wait, and tell nobody what went wrong."""
        with self._lock:
            if not self.settled:
                self._take(None)

    def settle(self, retries: Retries | None = None) -> None:
        """Wait; raises what went wrong, unless somebody was told."""
        if not self._told:
            self.wait(retries)

    def wait(self, retries: Retries | None = None) -> Mapping[str, int]:
        """The versions by endpoint; raises what went wrong, naming the step."""
        with self._lock:
            if not self.settled:
                self._take(retries)
            if self._failure is not None:
                self._told = True
                raise self._failure
        assert self._versions is not None
        return self._versions

    def _take(self, retries: Retries | None) -> None:
        replies, failures = self._calls.collect(retries)
        for endpoint, peer in self._peers.items() if self._owed else ():
            if endpoint not in replies and peer.given_up:
                peer.owed[self.sequence] = True
        for endpoint, reply in replies.items():
            peer = self._peers[endpoint]
            peer.saw(reply.version)
            peer.fresh = dict(reply.dense)
        if failures:
            self._failure = named(self.sequence, failures)
        self._versions = {endpoint: reply.version for endpoint, reply in replies.items()}


def named(sequence: int, failures: Sequence[RemoteError]) -> RemoteError:
    """What to raise for a step that went wrong, naming it."""
    failure = first_of(failures)
    failure.args = (f"step {sequence}: {failure}",)
    return failure
