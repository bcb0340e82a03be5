"""Memory: how the C library keeps what is freed, and how much an array may take.

The arrays of one step are those of the next in size; handing them back to the system in between costs a page fault per
4 KB, more than the copies themselves.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import sys
from collections.abc import Sequence
from typing import Final

import numpy as np

from fluidlite.errors import ShapeError

_MB: Final = 1 << 20
#: glibc's option numbers (malloc.h), the variable by which a user sets each, and our value
_OPTIONS: Final = (
    (-3, "MALLOC_MMAP_THRESHOLD_", 32 * _MB),  # larger arrays are mapped on their own; glibc takes no more than this
    (-1, "MALLOC_TRIM_THRESHOLD_", 512 * _MB),
    (-2, "MALLOC_TOP_PAD_", 16 * _MB),
)
_ARENA: Final = ((-8, "MALLOC_ARENA_MAX", 1),)


@functools.cache
def keep_freed_memory() -> bool:
    """Let this process keep what it frees for its next arrays; whether that could be set.

    False where the C library has no ``mallopt``, and where the user set one of its variables, which then counts.
    """
    return _set(_OPTIONS)


@functools.cache
def share_one_arena() -> bool:
    """Let all threads of this process take memory from one place; whether that could be set, as `keep_freed_memory`.

    For servers: each of their threads would keep as much as its largest messages took, so that memory creeps up until
    every thread has served every message (4 MB in 10 minutes, measured). Threads started before keep what they have.
    """
    return _set(_ARENA)


@functools.cache
def budget() -> int:
    """Bytes that one array may take: the memory of this machine, where it can be told."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def affordable(shape: Sequence[int], dtype: object) -> tuple[int, ...]:
    """The shape of an array that only a program asks for; ShapeError, before memory is taken, where it has sizes below 0
    or needs more than the `budget`."""
    if min(shape, default=0) < 0:
        raise ShapeError(f"a shape without open dimensions is needed, not {list(shape)}")
    size = math.prod(shape) * np.dtype(dtype).itemsize  # type: ignore[call-overload]
    if size > budget():
        raise ShapeError(f"an array of shape {list(shape)} takes {size} bytes; this machine has {budget()}")
    return tuple(shape)


def _set(options: tuple[tuple[int, str, int], ...]) -> bool:
    tuned = "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if tuned or any(variable in os.environ for _, variable, _ in options):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return mallopt is not None and all(mallopt(option, value) == 1 for option, _, value in options)
