"""Rows by id from files that others made: a ``.npy`` matrix with or without ids, or word vectors as text.

Files are read block by block from any URL, and only a vocabulary is in memory as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import CorruptFileError, DataError, OutOfRangeError
from fluidlite.values.sharding import shard_of
from fluidlite.values.sparse_table import SparseTable
from fluidlite.values.urls import open_url

#: bytes of numbers read at a time
_BLOCK_BYTES: Final = 1 << 22
#: bytes of a line, and of the header of a .npy file
_LONGEST: Final = 1 << 20
_INTEGERS: Final = "iu"


class Rows(NamedTuple):
    """Some rows of a file: ``ids`` (n,) int64, ``values`` (n, width), and where each is, for people: ``unit`` (row or line)
    and its number (n,)."""

    ids: Array
    values: Array
    unit: str
    numbers: Array


@dataclass(frozen=True)
class RowsFile:
    """Where rows are. ``url`` ending in ``.npy``: a matrix (rows, width) of floats, with ``ids_url`` the ``.npy`` of their
    ids (rows,), else row i has id i. Any other ``url``: text, a word and its numbers in each line, as word2vec (whose first
    line has the counts of words and numbers) and GloVe write it; a word's id is its line, from 0 and without that first
    one, or what ``words_url`` says: a line ``word``, or ``word<tab>id``, for each; other words are left out."""

    url: str
    ids_url: str = ""
    words_url: str = ""

    def blocks(self, width: int, shard: int, shards: int) -> Iterator[Rows]:
        """The rows whose ids belong to a shard, in the order of the file.

        Raises DataError naming file and row where they are not what they should be, CorruptFileError for a file that is
        cut, MissingFileError.
        """
        found = self._matrix(width) if self.url.endswith(".npy") else self._text(width, shard, shards)
        for rows in found:
            mine = shard_of(rows.ids, shards) == shard
            part = Rows(rows.ids[mine], rows.values[mine], rows.unit, rows.numbers[mine])
            finite = np.isfinite(part.values).all(axis=1)
            if not finite.all():
                raise DataError(f"{self.url}: {rows.unit} {part.numbers[~finite][0]} has a number that is not finite")
            if len(part.ids):
                yield part

    def _matrix(self, width: int) -> Iterator[Rows]:
        if self.words_url:
            raise DataError(f"{self.url} is a matrix; ids are what it can have, not words")
        with open_url(self.url, "a table") as stream:
            shape, dtype = _npy_header(stream, self.url)
            if shape[1:] != [width] or dtype.kind != "f":
                raise DataError(f"{self.url} is {shape} {dtype}, not rows of {width} floats")
            count = shape[0]
            rows = max(1, _BLOCK_BYTES // (width * dtype.itemsize))
            ids = self._ids(count, rows)
            for first in range(0, count, rows):
                n = min(rows, count - first)
                values = np.frombuffer(_exactly(stream, n * width * dtype.itemsize, self.url), dtype).reshape(n, width)
                yield Rows(next(ids), values, "row", np.arange(first, first + n))
            _check_end(stream, self.url)
            next(ids, None)

    def _ids(self, count: int, rows: int) -> Iterator[Array]:
        if not self.ids_url:
            for first in range(0, count, rows):
                yield np.arange(first, min(first + rows, count))
            return
        with open_url(self.ids_url, "the ids of a table") as stream:
            shape, dtype = _npy_header(stream, self.ids_url)
            if shape != [count] or dtype.kind not in _INTEGERS:
                raise DataError(f"{self.ids_url} is {shape} {dtype}, not the ids of {count} rows")
            for first in range(0, count, rows):
                size = min(rows, count - first) * dtype.itemsize
                found = np.frombuffer(_exactly(stream, size, self.ids_url), dtype)
                unsigned = found.dtype.kind == "u" and found.itemsize == 8
                yield found.astype(np.uint64).view(np.int64) if unsigned else found.astype(np.int64)
            _check_end(stream, self.ids_url)

    def _text(self, width: int, shard: int, shards: int) -> Iterator[Rows]:
        if self.ids_url:
            raise DataError(f"{self.url} is text; words are what it can have, not ids")
        known = _vocabulary(self.words_url) if self.words_url else None
        most = max(1, _BLOCK_BYTES // (width * 8))
        ids: list[int] = []
        numbers: list[int] = []
        fields: list[list[bytes]] = []
        with open_url(self.url, "word vectors") as stream:
            lines = _Vectors(stream, self.url, width)
            for row, (word, texts) in enumerate(lines):
                id = row if known is None else known.get(word)
                if id is None or id % (1 << 64) % shards != shard:
                    continue
                ids.append(id)
                numbers.append(lines.number)
                fields.append(texts)
                if len(ids) == most:
                    yield self._block(ids, fields, numbers)
                    ids, numbers, fields = [], [], []
        if ids:
            yield self._block(ids, fields, numbers)

    def _block(self, ids: list[int], fields: list[list[bytes]], numbers: list[int]) -> Rows:
        try:
            values = np.array(fields, dtype="S").astype(np.float64)
        except ValueError:
            at = next(n for n, texts in zip(numbers, fields, strict=True) if not all(map(_is_number, texts)))
            raise DataError(f"{self.url}: line {at} has something between its numbers that is none") from None
        return Rows(np.array(ids, np.int64), values, "line", np.array(numbers))


def into_table(table: SparseTable, file: RowsFile, shard: int = 0, shards: int = 1) -> None:
    """Put the rows of a file that belong to a shard into a table that has none of them. DataError for an id that comes
    twice, and what `RowsFile.blocks` raises."""
    for rows in file.blocks(table.width, shard, shards):
        known = table.positions(rows.ids, create=False) >= 0
        _check_once(file.url, rows, known)
        table.load_records(rows.ids, {None: rows.values.astype(table.dtype)})


def into_array(name: str, array: Array, file: RowsFile) -> None:
    """Write the rows of a file into a matrix. OutOfRangeError for an id outside, DataError for one that comes twice."""
    seen = np.zeros(len(array), np.bool_)
    for rows in file.blocks(array.shape[1], 0, 1):
        outside = (rows.ids < 0) | (rows.ids >= len(array))
        if outside.any():
            at = int(outside.argmax())
            raise OutOfRangeError(
                f"{file.url}: {rows.unit} {rows.numbers[at]} has id {rows.ids[at]}, but {name!r} has {len(array)} rows"
            )
        _check_once(file.url, rows, seen[rows.ids])
        seen[rows.ids] = True
        array[rows.ids] = rows.values


class _Vectors:
    """(word, texts of its numbers) of each line of a file of word vectors; ``number`` is that of the line, from 1."""

    def __init__(self, stream: BinaryIO, url: str, width: int) -> None:
        self.number = 0
        self._stream = stream
        self._url = url
        self._width = width

    def __iter__(self) -> Iterator[tuple[bytes, list[bytes]]]:
        count, declared = 0, None
        for line in _lines(self._stream, self._url):
            self.number += 1
            if self.number == 1 and (declared := self._header(line)) is not None:
                continue
            if line.strip():
                yield self._parsed(line, first=count == 0)
                count += 1
        if declared is not None and count != declared:
            raise CorruptFileError(f"{self._url} has {count} words, its first line says {declared}")

    def _header(self, line: bytes) -> int | None:
        """How many words the first line announces, None where it is one of them."""
        fields = line.split()
        if len(fields) != 2 or self._width == 1 or not all(field.isdigit() for field in fields):
            return None
        if int(fields[1]) != self._width:
            raise DataError(f"{self._url} has vectors of {int(fields[1])} numbers, the table's width is {self._width}")
        return int(fields[0])

    def _parsed(self, line: bytes, *, first: bool) -> tuple[bytes, list[bytes]]:
        word, *texts = line.strip().rsplit(None, self._width)
        rest = word.split()
        # words may have spaces, but not in the first line, by which files of another width are told
        if len(texts) != self._width or (len(rest) > 1 and (first or _is_number(rest[-1]))):
            raise DataError(
                f"{self._url}: line {self.number} has {len(rest) + len(texts) - 1} fields after the word, the table's width "
                f"is {self._width}"
            )
        return word, texts


def _vocabulary(url: str) -> dict[bytes, int]:
    """Word -> id."""
    known: dict[bytes, int] = {}
    with open_url(url, "a vocabulary") as stream:
        for row, line in enumerate(_lines(stream, url)):
            word, tab, id = line.strip().partition(b"\t")
            if not word:
                continue
            if word in known:
                raise DataError(f"{url}: line {row + 1} has the word {word.decode(errors='replace')!r} again")
            known[word] = _as_id(id, f"{url}: line {row + 1}") if tab else row
    return known


def _as_id(text: bytes, where: str) -> int:
    try:
        id = int(text)
    except ValueError:
        raise DataError(f"{where} has no id after the tab") from None
    if not -(1 << 63) <= id < 1 << 63:
        raise DataError(f"{where} has an id that is no int64")
    return id


def _lines(stream: BinaryIO, url: str) -> Iterator[bytes]:
    for number in range(1, 1 << 63):
        line = stream.readline(_LONGEST)
        if not line:
            return
        if len(line) == _LONGEST:
            raise DataError(f"{url}: line {number} is longer than {_LONGEST} bytes; is this text?")
        yield line


def _check_once(url: str, rows: Rows, known: Array) -> None:
    """Refuse ids that are known, or come twice among ``rows``."""
    _, first = np.unique(rows.ids, return_index=True)
    again = known.copy()
    again[np.setdiff1d(np.arange(len(rows.ids)), first)] = True
    if again.any():
        at = int(again.argmax())
        raise DataError(f"{url}: {rows.unit} {rows.numbers[at]} has id {rows.ids[at]}, which came before")


def _npy_header(stream: BinaryIO, url: str) -> tuple[list[int], np.dtype[Any]]:
    """(shape, dtype) of a .npy file, whose numbers come next in the stream."""
    from tokenize import TokenError

    from numpy.lib import format as npy

    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except (ValueError, TypeError, OSError, EOFError, SyntaxError, TokenError) as error:  # numpy parses it as Python
        raise CorruptFileError(f"{url} is no .npy file: {error}") from error
    if dtype.hasobject or (fortran and len(shape) > 1) or not shape:
        raise DataError(f"{url} must be an array of numbers in C order, not {dtype} {list(shape)}")
    if math.prod(shape) < 0:
        raise CorruptFileError(f"{url} is no .npy file: shape {list(shape)}")
    return list(shape), dtype


def _exactly(stream: BinaryIO, size: int, url: str) -> bytes:
    parts = []
    while size and (part := stream.read(size)):
        parts.append(part)
        size -= len(part)
    if size:
        raise CorruptFileError(f"{url} ends before its last row")
    return b"".join(parts)


def _check_end(stream: BinaryIO, url: str) -> None:
    if stream.read(1):
        raise CorruptFileError(f"{url} goes on behind its last row")


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
