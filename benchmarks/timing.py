"""The clock of measurements inside one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def times_ms(call: Callable[[], object], repeats: int) -> list[float]:
    """Milliseconds of each of ``repeats`` calls."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        found.append((time.perf_counter() - start) * 1e3)
    return found


def median_ms(call: Callable[[], object], repeats: int, warmup: int = 3) -> float:
    """Median milliseconds of a call."""
    for _ in range(warmup):
        call()
    return statistics.median(times_ms(call, repeats))
