"""Which server holds what: how a parameter is cut into slices and which endpoint each slice goes to.

Pure arithmetic on shapes, names and sizes; the same input gives the same placement in every process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import prod
from typing import Final, Protocol

#: a server may hold this much more than the mean before placement by size steps in
MAX_IMBALANCE: Final = 1.1
#: while placing by size, a piece stays where its dispatcher wants it up to this load over the mean
_ROOM: Final = 1.05


def slice_rows(shape: Sequence[int], slice_count: int, min_block_size: int) -> list[tuple[int, int]]:
    """Cut a parameter along dimension 0 into at most ``slice_count`` slices of at least ``min_block_size`` elements.

    Returns (first row, rows) per slice; of a rank-1 parameter a row is an element. Fluid's ``slice_variable``:
    n = min(slice_count, max(1, numel // min_block_size)), each slice ceil(numel / n) elements rounded up to whole
    rows, the last one smaller.

    >>> slice_rows((32, 1000), 2, 8192)
    [(0, 16), (16, 16)]
    >>> slice_rows((7,), 3, 1)
    [(0, 3), (3, 3), (6, 1)]
    """
    numel = prod(shape)
    row = prod(shape[1:])
    if numel == 0:
        return [(0, shape[0] if shape else 1)]
    wanted = min(slice_count, max(1, numel // min_block_size))
    rows = _ceil_div(_ceil_div(numel, wanted), row)
    total = numel // row
    return [(first, min(rows, total - first)) for first in range(0, total, rows)]


class Dispatcher(Protocol):
    """Says where each piece should go. Fluid's name for such a class is PSDispatcher."""

    @staticmethod
    def prefer(names: Sequence[str], servers: int) -> list[int]:
        """The preferred server of each piece, given the names of all pieces in order."""
        ...


class _Dispatching:
    """What scripts that place pieces themselves call: a dispatcher of these endpoints."""

    def __init__(self, pserver_endpoints: Sequence[str]) -> None:
        self._endpoints = list(pserver_endpoints)

    @property
    def eps(self) -> list[str]:
        """The endpoints."""
        return self._endpoints

    def reset(self) -> None:
        """Begin with the first endpoint again."""


class RoundRobin(_Dispatching):
    """Piece k goes to server k modulo the number of servers."""

    _next = 0

    def dispatch(self, varlist: Sequence[object]) -> list[str]:
        """The endpoint of each piece; the next call goes on where this one ends."""
        first, self._next = self._next, self._next + len(varlist)
        return [self._endpoints[index % len(self._endpoints)] for index in range(first, self._next)]

    def reset(self) -> None:
        """Begin with the first endpoint again."""
        self._next = 0

    @staticmethod
    def prefer(names: Sequence[str], servers: int) -> list[int]:
        return [index % servers for index in range(len(names))]


class HashName(_Dispatching):
    """A piece goes to the server that a hash of its name says (BLAKE2b: equal in every process, on every machine)."""

    def dispatch(self, varlist: Sequence[object]) -> list[str]:
        """The endpoint of each piece; pieces are variables or names."""
        names = [str(getattr(var, "name", var)) for var in varlist]
        return [self._endpoints[index] for index in self.prefer(names, len(self._endpoints))]

    @staticmethod
    def prefer(names: Sequence[str], servers: int) -> list[int]:
        digests = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
        return [int.from_bytes(digest, "big") % servers for digest in digests]


def place(
    names: Sequence[str], sizes: Sequence[int], servers: int, dispatcher: type[Dispatcher], slack: int
) -> list[int]:
    """Server of each piece: the dispatcher's choice, unless that overloads a server and placing by size helps.

    ``sizes`` in bytes. Overloaded means more than `MAX_IMBALANCE` times the mean and more than ``slack`` bytes above
    it, so small models keep Fluid's order exactly.
    """
    preferred = dispatcher.prefer(names, servers)
    mean = sum(sizes) / servers
    heaviest = max(loads(preferred, sizes, servers))
    if heaviest <= MAX_IMBALANCE * mean or heaviest - mean <= slack:
        return preferred
    by_size = _by_size(preferred, sizes, servers)
    return by_size if max(loads(by_size, sizes, servers)) < heaviest else preferred


def loads(servers_of: Sequence[int], sizes: Sequence[int], servers: int) -> list[int]:
    """Bytes per server."""
    load = [0] * servers
    for server, size in zip(servers_of, sizes, strict=True):
        load[server] += size
    return load


def _by_size(preferred: Sequence[int], sizes: Sequence[int], servers: int) -> list[int]:
    """Biggest first, each where it is wanted if there is room, else on the server with the least load.

    Graham's longest-processing-time rule with a preference ("consistent hashing with bounded loads", Mirrokni et al.
    2016, has the same idea for the preference).
    """
    room = _ROOM * sum(sizes) / servers
    load = [0] * servers
    result = list(preferred)
    for index in sorted(range(len(sizes)), key=lambda k: (-sizes[k], k)):
        wanted = preferred[index]
        if load[wanted] + sizes[index] > room:
            wanted = load.index(min(load))
        result[index] = wanted
        load[wanted] += sizes[index]
    return result


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
