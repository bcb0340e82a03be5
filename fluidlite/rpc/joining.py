"""How a trainer takes its place among the servers, where an incarnation of it may have been before."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from fluidlite.protocol.messages import Decision
from fluidlite.rpc.peers import Peer, Peers

log = logging.getLogger("fluidlite")


class Joining:
    """Meets all servers that a trainer knows, again when these become more. For any number of threads."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._lock = threading.RLock()
        #: how many servers were met, and how many steps of this trainer counted then
        self._met = self._counted = 0

    def join(self) -> int:
        """How many steps of earlier incarnations count.

        What the last one left undecided counts if it does on any server, for then all had accepted it. Afterwards its last
        step is applied everywhere, so that what is pulled is what follows it.
        """
        known = self._peers.all()
        if len(known) != self._met:
            with self._lock:
                peers = [self._peers.met(endpoint) for endpoint in known]
                self._counted = max(self._counted, self._resume(peers))
                self._met = len(known)
        return self._counted

    def _resume(self, peers: Sequence[Peer]) -> int:
        identity = self._peers.identity
        counted = max(peer.next_sequence for peer in peers)
        decisions = {
            peer.endpoint: Decision(identity, peer.undecided, peer.undecided < counted)
            for peer in peers
            if peer.undecided is not None
        }
        open_ones = [peer for peer in peers if peer.endpoint in decisions]
        self._peers.ask("commit", open_ones, lambda peer: peer.channel.decide(decisions[peer.endpoint]))
        for peer in open_ones:
            peer.undecided = None
        if counted > self._counted:
            last = Decision(identity, counted - 1, apply=True)
            there = [peer for peer in peers if peer.sync and (peer.next_sequence == counted or peer in open_ones)]
            for failure in self._peers.begin("commit", there, lambda peer: peer.channel.decide(last)).collect()[1]:
                log.warning("the last step before the restart: %s", failure)
        return counted
