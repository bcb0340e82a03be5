"""Readers that tests send to processes: they are at the top of a module."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np

from fluidlite.values.lod import LoDTensor


def some_numbers() -> Iterator[int]:
    yield from range(5)


def all_kinds() -> Iterator[Any]:
    yield from kinds()


def kinds() -> list[Any]:
    """One item of every kind that can be sent."""
    return [
        None,
        True,
        -(2**70),
        float("inf"),
        0.1,
        "text \u00e9",
        b"\x00bytes",
        [],
        [1, [2.5, ("a", None)], {"list": ["x"]}],
        {"array": np.arange(6, dtype=np.int64).reshape(2, 3)[:, ::-1], "empty": np.empty((0, 4), np.float32)},
        (np.float32(0.1), np.int64(-1), np.bool_(True)),
        LoDTensor(np.arange(3, dtype=np.float64), ((0, 1, 3),)),
        np.array(7.5),
        np.zeros(300_000, np.uint8),
    ]


def without_end() -> Iterator[Any]:
    while True:
        yield np.zeros(100_000)


def failing() -> Iterator[int]:
    yield 1
    raise ZeroDivisionError("in the reader")


def not_sendable() -> Iterator[Any]:
    yield 1
    yield {1, 2}


def killed() -> Iterator[int]:
    yield os.getpid()
    os.kill(os.getpid(), signal.SIGKILL)


def stubborn() -> Iterator[Any]:
    """Does not heed SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield os.getpid()
    signal.pause()


def samples() -> Iterator[tuple[list[float], list[int]]]:
    for number in range(5):
        yield [number, number + 0.5], list(range(number + 1))


def batches() -> Iterator[Any]:
    for number in range(3):
        yield np.full((2, 2), number, np.float32), LoDTensor(np.ones((3, 1), np.int64), ((0, 1, 3),))
