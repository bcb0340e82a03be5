"""Source: an open checkpoint, read one chunk at a time whatever the number of servers that wrote it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from fluidlite.checkpoint.catalogue import Catalogue, Checkpoint
from fluidlite.checkpoint.chunks import FileInfo, read_chunks, read_some
from fluidlite.checkpoint.manifest import DenseInfo, Manifest, TableInfo, folder_name
from fluidlite.checkpoint.storage import open_folder
from fluidlite.dtypes import Array
from fluidlite.errors import CorruptFileError, ShapeError
from fluidlite.values.lod import LoDTensor
from fluidlite.values.row_snapshot import RowChunk
from fluidlite.values.sharding import shard_of

log: Final = logging.getLogger(__name__)


class Source:
    """The contents of a checkpoint. What is read is checked; CorruptFileError names what is damaged."""

    def __init__(self, catalogue: Catalogue, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._catalogue = catalogue
        self._manifests = dict(sorted(checkpoint.manifests.items()))

    @property
    def number(self) -> int:
        return self.checkpoint.number

    @property
    def servers(self) -> int:
        """How many servers wrote it."""
        return self.checkpoint.servers

    @property
    def versions(self) -> dict[int, int]:
        """The version of each server that wrote it."""
        return {server: manifest.version for server, manifest in self._manifests.items()}

    @property
    def extras(self) -> dict[int, Mapping[str, Any]]:
        """What each server had remembered."""
        return {server: manifest.extra for server, manifest in self._manifests.items()}

    @property
    def tables(self) -> dict[str, TableInfo]:
        """What is known of each table, by the first server that has it."""
        return {table.name: table for m in reversed(self._manifests.values()) for table in m.tables}

    @property
    def loose(self) -> dict[str, TableInfo]:
        """Rows that belong to no table, by name."""
        return {table.name: table for m in reversed(self._manifests.values()) for table in m.loose}

    @property
    def dense(self) -> dict[str, tuple[int, ...]]:
        """Shape of each array of the whole model."""
        found: dict[str, list[DenseInfo]] = {}
        for _, info in self._pieces():
            found.setdefault(info.origin, []).append(info)
        return {origin: _whole_shape(infos) for origin, infos in found.items()}

    def row_count(self, table: str) -> int:
        """Rows of a table on all servers."""
        return sum(info.total_rows for m in self._manifests.values() if (info := m.table(table)))

    def stored_bytes(self, table: str) -> int:
        """Bytes of the files that hold a table's rows on all servers: what there really is, whatever counts say."""
        tables = [(m, info) for m in self._manifests.values() if (info := m.table(table))]
        return sum(layout.file.size for m, info in tables for _, layout in self._catalogue.chain(m, info))

    def number_of(self, layout: TableInfo, server: int) -> int:
        """The checkpoint that wrote what a layout says, for the table of a server."""
        manifest = self._manifests[server]
        info = manifest.table(layout.name)
        chain = self._catalogue.chain(manifest, info) if info else []
        return next((part.number for part, found in chain if found == layout), self.number)

    def own_dense(self, server: int) -> tuple[DenseInfo, ...]:
        """The arrays of one server as it held them."""
        return self._manifests[server].dense

    def rows(self, table: str, server: int = 0, servers: int = 1) -> Iterator[tuple[TableInfo, RowChunk]]:
        """The rows of a table that belong to one of ``servers`` servers, with the layout of their records.

        A row that changed between the checkpoints of a chain comes again: the later one counts.
        """
        for manifest in self._writers(server, servers):
            info = manifest.table(table)
            for part, layout in self._catalogue.chain(manifest, info) if info else ():
                for chunk in self._row_chunks(part.number, layout):
                    yield layout, _shard(chunk, server, servers)

    def loose_rows(self, name: str, server: int = 0, servers: int = 1) -> Iterator[RowChunk]:
        """The rows of a variable that belong to no table, and to one of ``servers`` servers."""
        for manifest in self._writers(server, servers):
            for info in manifest.loose:
                if info.name == name:
                    for chunk in self._row_chunks(manifest.number, info):
                        yield _shard(chunk, server, servers)

    def array(self, origin: str, server: int, first: int | None = None, rows: int = 0) -> Array | LoDTensor | None:
        """A variable of the whole model, or ``rows`` of it from row ``first`` on; None where it was not saved.

        Of copies that every server had that of ``server`` is taken if there is one.
        """
        pieces = [piece for piece in self._pieces() if piece[1].origin == origin]
        whole = [piece for piece in pieces if piece[1].first_row is None]
        if not pieces:
            return None
        if whole:
            own = next((piece for piece in whole if piece[0].server == server), whole[0])
            value = self._value(*own)
            array = value.array if isinstance(value, LoDTensor) else value
            return value if first is None else array[first : first + rows]
        height = _whole_shape([info for _, info in pieces])[0]
        start, stop = (0, height) if first is None else (first, first + rows)
        parts, reached = [], start
        for manifest, info in sorted(pieces, key=lambda piece: piece[1].first_row or 0):
            low, at = info.first_row or 0, reached
            if low <= at < min(low + info.shape[0], stop):
                reached = min(low + info.shape[0], stop)
                parts.append(np.asarray(self._value(manifest, info))[at - low : reached - low])
        if reached < stop:
            raise ShapeError(
                f"{origin!r} has {height} rows in checkpoint {self.number}; rows up to {stop} were asked for"
            )
        return np.concatenate(parts) if parts else np.asarray(self._value(*pieces[0]))[:0]

    def _pieces(self) -> Iterator[tuple[Manifest, DenseInfo]]:
        return ((manifest, info) for manifest in self._manifests.values() for info in manifest.dense)

    def _writers(self, server: int, servers: int) -> Iterator[Manifest]:
        """The servers that can have rows of ``server``: a number that leaves the remainders i and j when divided by m
        and n exists only where i and j agree modulo their greatest common divisor."""
        common = math.gcd(self.servers, servers)
        return (m for m in self._manifests.values() if (m.server - server) % common == 0)

    def _row_chunks(self, number: int, info: TableInfo) -> Iterator[RowChunk]:
        count = 0
        for rows, payload in self._chunks(number, info.file):
            if rows * info.row_bytes != len(payload):
                raise CorruptFileError(f"{info.file.name}: a chunk of {rows} rows is {len(payload)} bytes long")
            count += rows
            ids = np.frombuffer(payload, "<i8", rows).astype(np.int64, copy=False)
            records = np.frombuffer(payload, info.dtype, offset=8 * rows)
            native = info.dtype.newbyteorder("=")
            yield RowChunk(ids, records.reshape(rows, info.record_width).astype(native, copy=False))
        if count != info.rows:
            raise CorruptFileError(f"{info.file.name} holds {count} rows, its manifest says {info.rows}")

    def _value(self, manifest: Manifest, info: DenseInfo) -> Array | LoDTensor:
        """An array in native byte order, writable."""
        path, folder = f"{folder_name(manifest.number)}/{manifest.dense_file.name}", self._catalogue.folder
        with folder.open(path) as stream:
            content = read_some(stream, folder.size(path), (info.chunk, info.offset), info.nbytes, path)
        native = info.dtype.newbyteorder("=")
        array = np.frombuffer(content, info.dtype).reshape(info.shape).astype(native, copy=False)
        return LoDTensor(array, info.lod) if info.lod else array

    def _chunks(self, number: int, file: FileInfo) -> Iterator[tuple[int, bytearray]]:
        path = f"{folder_name(number)}/{file.name}"
        folder = self._catalogue.folder
        with folder.open(path) as stream:
            yield from read_chunks(stream, folder.size(path), file, path)


def open_checkpoint(
    url: str | Path, number: int | None = None, own: tuple[int, int] | None = None, *, check: bool = True
) -> Source:
    """A checkpoint of a folder: of a number, or the last good one, see `Catalogue.choose`.

    ``check`` off, for a number: only manifests and sizes are checked here, contents as they are read. Raises
    MissingFileError where there is none, CorruptFileError where that of the number is not good.
    """
    catalogue = Catalogue(open_folder(url))
    if number is None:
        return Source(catalogue, catalogue.choose(own))
    checkpoint = catalogue.checkpoint(number)
    if problems := catalogue.problems(checkpoint, own, contents=check):
        raise CorruptFileError(f"{checkpoint} in {url} cannot be used: {'; '.join(problems)}")
    return Source(catalogue, checkpoint)


def _whole_shape(infos: list[DenseInfo]) -> tuple[int, ...]:
    if infos[0].first_row is None:
        return infos[0].shape
    return max((info.first_row or 0) + info.shape[0] for info in infos), *infos[0].shape[1:]


def _shard(chunk: RowChunk, server: int, servers: int) -> RowChunk:
    mine = shard_of(chunk.ids, servers) == server
    return chunk if mine.all() else RowChunk(chunk.ids[mine], chunk.records[mine])
