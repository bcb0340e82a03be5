"""The verbs of a parameter server, whatever carries them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

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
    Use,
    Value,
    Welcome,
)

T = TypeVar("T")
#: an answer that may not be there yet: call it to wait for it. What went wrong is raised by the call
Pending: TypeAlias = Callable[[], T]


class Service(Protocol):
    """One server. Implemented by `pserver.service`; `rpc.server` puts it on the network, `rpc.inproc` beside a trainer.

    Every verb raises RequestRefusedError for a wrong request, StaleError for an older incarnation, LeaseLostError for
    a trainer that is not registered (any more), PeerLostError when the server ends or the job is aborted. Verbs may be
    called from any thread, and repeated: a repetition changes nothing.
    """

    def register(self, registration: Registration) -> Welcome:
        """A trainer arrives, or comes back; what it declares must fit what the server's program offers. A reader of any job
        may come, which is counted nowhere and can only pull."""
        ...

    def pull(self, identity: Identity, requests: Sequence[PullRequest]) -> PullReply:
        """Values, one per request, read at one version."""
        ...

    def commit(self, push: Push) -> Pending[CommitReply]:
        """A whole step. Returns once it is accepted; the answer comes when it is applied (in sync mode: the round), or, of a
        step that is not decided, once it is safe. It raises ServerFailedError when the update failed."""
        ...

    def decide(self, decision: Decision) -> Pending[CommitReply]:
        """What became of an accepted step; of one that counts, the answer is that of its commit."""
        ...

    def offered(self, name: str, use: Use) -> Declared:
        """What a trainer could declare of a variable to match this server."""
        ...

    def check_gradients(self, identity: Identity, gradients: Sequence[Gradient]) -> None:
        """Whether a step may hold these; changes nothing."""
        ...

    def assign(self, identity: Identity, name: str, value: Value) -> None:
        """Overwrite a dense variable, all rows of a table, or rows of an accumulator of one."""
        ...

    def heartbeat(self, identity: Identity) -> None:
        """A sign of life; renews the lease, as every other verb does."""
        ...

    def barrier(self, identity: Identity, number: int) -> Pending[None]:
        """Barrier ``number`` (from 0) of this incarnation; the answer comes when every live trainer has called."""
        ...

    def checkpoint(self, identity: Identity, number: int, folder: str = "") -> Pending[int]:
        """Begin checkpoint ``number`` now; the answer, the version that it holds, comes when it is written. ``folder``: where
        the server keeps checkpoints, if the trainer knows: another one is refused. ServerFailedError when it cannot be
        written."""
        ...

    def complete(self, identity: Identity) -> None:
        """The trainer is done."""
        ...

    def disconnected(self, identity: Identity) -> None:
        """The trainer's connection broke; without a sign of life within a short grace it is given up."""
        ...

    def poll(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the end (True), giving up trainers whose leases run out meanwhile."""
        ...

    def stop(self, reason: str) -> None:
        """End now; whoever waits gets PeerLostError with the reason."""
        ...

    def close(self) -> None:
        """What was acknowledged is safe, and nothing follows. After the end; idempotent. Raises UnwritableFileError where the
        last checkpoint could not be written."""
        ...
