"""The generator behind Fluid's seeded random numbers on the CPU: C++'s ``std::minstd_rand``, bit for bit."""

from __future__ import annotations

from typing import Final

import numpy as np

from fluidlite.dtypes import Array

_MODULUS: Final = 2**31 - 1
_MULTIPLIER: Final = 48271


def minstd(seed: int, count: int) -> Array:
    """The first ``count`` outputs, (count,) uint64: x_k = 48271 * x_(k-1) mod 2^31 - 1 from x_0 = ``seed``.

    Park, Miller, Stockmeyer, "Remarks on Choosing and Implementing Random Number Generators", CACM 36 (1993).
    """
    state = seed % 2**64 % _MODULUS or 1
    out = np.empty(count, np.uint64)
    out[:1] = state * _MULTIPLIER % _MODULUS
    filled = 1
    while filled < count:
        # x_(k + n) = 48271^n * x_k, so every pass doubles what there is
        jump = np.uint64(pow(_MULTIPLIER, filled, _MODULUS))
        more = min(filled, count - filled)
        out[filled : filled + more] = out[:more] * jump % np.uint64(_MODULUS)
        filled += more
    return out


def minstd_uniform(seed: int, count: int) -> Array:
    """``std::uniform_real_distribution<float>(0, 1)`` on that generator: (count,) float32 in [0, 1)."""
    quotient: Array = (minstd(seed, count) - np.uint64(1)).astype(np.float32) / np.float32(_MODULUS - 1)
    return np.minimum(quotient, np.nextafter(np.float32(1), np.float32(0)))
