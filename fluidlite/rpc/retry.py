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
    ``control``: for a completion. A commit or barrier waits for other trainers, so it has none.
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

    def pauses(self) -> Iterator[None]:
        """One item per attempt to repeat, after its pause; ends when the total deadline, counted from now, is over."""
        ends = self.clock() + self.retry
        pause = self.backoff
        while (left := ends - self.clock()) > 0:
            self.sleep(min(pause, left))
            pause = min(2 * pause, self.backoff_max)
            yield
