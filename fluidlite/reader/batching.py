"""Batches of equally many lines out of blocks of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, Self, TypeVar


class Lines(Protocol):
    """A number of lines, of which parts can be taken."""

    def __len__(self) -> int: ...
    def part(self, start: int, stop: int) -> Self:
        """Lines from ``start`` to ``stop``."""


L = TypeVar("L", bound=Lines)


def batches(blocks: Iterable[L], size: int, join: Callable[[Sequence[L]], L]) -> Iterator[L]:
    """Batches of ``size`` lines, across blocks; the last one has what is left. ``join`` puts parts together."""
    waiting: list[L] = []
    missing = size
    for block in blocks:
        start = 0
        while len(block) - start >= missing:
            waiting.append(block.part(start, start + missing))
            start += missing
            yield waiting[0] if len(waiting) == 1 else join(waiting)
            waiting, missing = [], size
        if start < len(block):
            waiting.append(block.part(start, len(block)))
            missing -= len(block) - start
    if waiting:
        yield waiting[0] if len(waiting) == 1 else join(waiting)
