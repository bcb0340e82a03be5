"""How long a trainer waits: for servers to come up, for answers, and for a peer that does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Patience:
    """Deadlines by kind of call, in seconds; None: as long as the connection is alive (keepalive notices).

    ``connect``: for a server to come up, at first contact. ``connect_report``: between two messages while waiting.
    ``pull``: for rows and dense variables. ``table``: for a whole table, and for assignments, which may be large.
    ``control``: for a completion. A commit or barrier waits for other trainers, a checkpoint is
    as long as its tables are large, so they have none.
    ``keepalive``: between two questions whether the server's host is still there, and for the answer to one.
    ``retry``: total time, from the first failure, in which an unreachable peer is tried again. ``backoff`` and
    ``backoff_max``: the pause between two attempts, doubling.
    """

    connect: float = 60.0
    connect_report: float = 10.0
    pull: float | None = 60.0
    table: float | None = None
    control: float = 10.0
    keepalive: float = 10.0
    retry: float = 10.0
    backoff: float = 0.05
    backoff_max: float = 1.0
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)


class Retries:
    """The repetitions of calls that are waited for together: one total deadline for all, counted from the first failure,
    so that many dead servers cost no more time than one. ``spent``: seconds that it took to send them."""

    def __init__(self, patience: Patience, spent: float = 0.0) -> None:
        self._patience = patience
        self._began = patience.clock() - spent
        self._ends: float | None = None

    @property
    def left(self) -> float:
        """Seconds until the deadline, at least 0; the first to ask starts the clock."""
        now = self._patience.clock()
        if self._ends is None:
            self._ends = now + self._patience.retry
        return max(0.0, self._ends - now)

    @property
    def tried(self) -> str:
        """How long, so far."""
        now = self._patience.clock()
        again = 0.0 if self._ends is None else now - self._ends + self._patience.retry
        return f"tried again for {again:.1f} s, {now - self._began:.1f} s in all"

    def pauses(self) -> Iterator[None]:
        """One item per attempt to repeat a call, after its pause; ends at the deadline."""
        pause = self._patience.backoff
        while (left := self.left) > 0:
            self._patience.sleep(min(pause, left))
            pause = min(2 * pause, self._patience.backoff_max)
            yield
