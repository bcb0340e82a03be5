"""What a soak shows: pure functions of what was sampled. No clock, no processes."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from benchmarks.figures import number
from benchmarks.soak_job import Array, Pool

#: samples of one process: (seconds since the start, value)
Series: TypeAlias = Sequence[tuple[float, float]]

#: a table is exact below it: float32 has 24 bits of integer
_EXACT: Final = 1 << 24
_TEN_MINUTES: Final = 600.0
_GROWTH_MB, _GROWTH_SHARE = 2.0, 0.01
_DRIFT: Final = 1.1
#: objects come and go
_HELD_SHARE: Final = 0.01
#: below so many seconds after the warm-up only sums are judged
ENOUGH: Final = 300.0


@dataclass(frozen=True)
class Check:
    """One demand and how it went; ``met`` is None where the run was too short to tell."""

    what: str
    limit: str
    found: str
    met: bool | None

    @property
    def word(self) -> str:
        return {True: "met", False: "violated", None: "too short to tell"}[self.met]


def sums_check(
    counts: Sequence[Array], dense: Sequence[Array], pools: Sequence[Pool], read: Mapping[str, Array]
) -> Check:
    """Rows and the dense parameter are minus what the trainers pushed, and there is a row for exactly what they touched.

    ``counts`` and ``dense``: by trainer, how often each entry of its pool was pushed. ``read``: what `soak_job.read`
    stored.
    """
    what, limit = "sums of rows and of the dense parameter", "as pushed, exactly"
    sums = np.sum([pool.rows(count) for pool, count in zip(pools, counts, strict=True)], axis=0)
    touched = np.unique(np.concatenate([pool.touched(count) for pool, count in zip(pools, counts, strict=True)]))
    pushed = sum(
        (int(count[0]) - int(count[1])) * pool.dense[0].astype(np.int64)
        for pool, count in zip(pools, dense, strict=True)
    )
    order = np.argsort(read["ids"])
    if not np.array_equal(read["ids"][order], touched):
        return Check(what, limit, f"{len(order)} rows, not the {len(touched)} that were pushed to", met=False)
    largest = max(np.abs(sums).max(), np.abs(pushed).max())
    if largest >= _EXACT:
        return Check(what, limit, f"a sum of {largest} is beyond what float32 holds", met=False)
    off = int(np.count_nonzero(read["rows"][order] != -sums[touched])) + int(np.count_nonzero(read["dense"] != -pushed))
    steps = int(sum(count.sum() for count in dense))
    found = f"{off} values differ" if off else f"equal: {len(touched)} rows after {steps} steps, largest sum {largest}"
    return Check(what, limit, found, met=not off)


def memory_check(process: str, samples: Series, enough: bool) -> Check:
    """Resident MB that grow by less than 1 % or 2 MB in ten minutes, by the median slope between samples."""
    usual = statistics.median(value for _, value in samples)
    growth = slope(samples) * _TEN_MINUTES
    limit = max(_GROWTH_MB, _GROWTH_SHARE * usual)
    found = f"{growth:+.2f} of {usual:.0f} MB"
    return Check(f"memory of {process}", f"< {limit:.1f} MB in 10 min", found, growth < limit if enough else None)


def constant_check(process: str, what: str, samples: Series, enough: bool) -> Check:
    """What has a number, such as threads, is not more in the last quarter than in the first."""
    first, last = quarters(samples)
    found = f"{number(max(first))} → {number(max(last))}"
    return Check(f"{what} of {process}", "no more at the end", found, max(last) <= max(first) if enough else None)


def held_check(process: str, what: str, samples: Series, enough: bool) -> Check:
    """Objects, or blocks, that Python holds: medians of the first and the last quarter."""
    first, last = map(statistics.median, quarters(samples))
    met = last <= first * (1 + _HELD_SHARE) if enough else None
    return Check(f"{what} of {process}", f"≤ {1 + _HELD_SHARE:g} ×", f"{number(first)} → {number(last)}", met)


def drift_check(process: str, steps: Series, reference: Series, enough: bool) -> Check:
    """Step time of the last quarter, no longer than in the first: by the clock, or against a fixed piece of work timed
    beside it, since a machine that others use gets slower by itself."""
    ratio, machine = (last / first for first, last in (map(statistics.median, quarters(s)) for s in (steps, reference)))
    found = f"{ratio:.2f} ×, the machine {machine:.2f} ×"
    met = min(ratio, ratio / machine) <= _DRIFT
    return Check(f"step time of {process}", f"≤ {_DRIFT:g} ×", found, met if enough else None)


def slope(samples: Series) -> float:
    """Median of the slopes between all pairs of samples, per second: an outlier changes nothing (Theil and Sen)."""
    pairs = itertools.combinations(samples, 2)
    found = [(b - a) / (later - earlier) for (earlier, a), (later, b) in pairs if later > earlier]
    return statistics.median(found) if found else 0.0


def quarters(samples: Series) -> tuple[list[float], list[float]]:
    """Values of the first and of the last quarter."""
    count = max(1, len(samples) // 4)
    values = [value for _, value in samples]
    return values[:count], values[-count:]


def after(samples: Series, warmup: float) -> Series:
    """Samples taken after the warm-up; all of a run that has none."""
    return [sample for sample in samples if sample[0] >= warmup] or samples
