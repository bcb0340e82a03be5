"""CheckpointWriter: puts a cut of one server into files, the manifest last."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from fluidlite.checkpoint.catalogue import remove_old
from fluidlite.checkpoint.chunks import CHUNK_BYTES, ChunkWriter, FileInfo, bytes_of, little_endian, stored_dtype
from fluidlite.checkpoint.cut import Cut, PieceOf
from fluidlite.checkpoint.manifest import (
    DenseInfo,
    Link,
    Manifest,
    TableInfo,
    file_name,
    folder_name,
    init_in_words,
    to_bytes,
)
from fluidlite.checkpoint.storage import Folder, open_folder
from fluidlite.errors import ProgramError
from fluidlite.values.initial import Constant
from fluidlite.values.lod import LoDTensor
from fluidlite.values.row_snapshot import RowChunk, RowSnapshot, TableFacts
from fluidlite.values.selected_rows import SelectedRows

_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]")
#: characters of a table's name in the name of its file
_NAME_ROOM: Final = 80


class CheckpointWriter:
    """Writes checkpoints of server ``server`` of ``servers`` to the folder ``url``, which all servers of a job share.

    ``keep_max``: so many whole checkpoints of the job are kept, with what they build on; 0 keeps all. ``run`` names the
    job: manifests of different runs do not make one checkpoint. Not thread-safe: one thread writes.
    """

    def __init__(self, url: str | Path, server: int = 0, servers: int = 1, keep_max: int = 0, run: str = "") -> None:
        self._folder: Folder = open_folder(url)
        self._server = server
        self._servers = servers
        self._keep_max = keep_max
        self._run = run
        self._last: Link | None = None

    @property
    def last(self) -> Link | None:
        """The checkpoint that an incremental one builds on: the last that was written, None after an error."""
        return self._last

    def write(self, cut: Cut) -> Manifest:
        """Write a checkpoint, from the thread of the caller, while updates of the tables go on. Closes the cut.

        A table whose snapshot holds what changed since the last checkpoint is written incrementally, others whole. What
        `keep_max` no longer wants is removed at the end. Raises UnwritableFileError; the checkpoint then does not count,
        and the next one is a full one.
        """
        base, self._last = self._last, None
        try:
            manifest = self._write(cut, base)
        finally:
            cut.close()
        self._last = manifest.link
        if self._keep_max:
            remove_old(self._folder, self._server, self._servers, self._keep_max)
        return manifest

    def _write(self, cut: Cut, base: Link | None) -> Manifest:
        files = _Files(self._folder, cut, self._server, self._servers)
        tables = tuple(files.table(snapshot, base) for snapshot in cut.tables)
        loose = tuple(files.loose(name, rows) for name, rows in cut.rows.items())
        dense, dense_file = files.dense(cut)
        manifest = Manifest(
            number=cut.number,
            server=self._server,
            servers=self._servers,
            version=cut.version,
            id=cut.id,
            run=self._run,
            written=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            dense=dense,
            dense_file=dense_file,
            tables=tables,
            loose=loose,
            extra=cut.extra,
        )
        self._folder.publish(f"{files.path}/{file_name(self._server, self._servers)}", to_bytes(manifest))
        return manifest


class _Files:
    """The data files of one checkpoint of one server."""

    def __init__(self, folder: Folder, cut: Cut, server: int, servers: int) -> None:
        self.path = folder_name(cut.number)
        self._folder = folder
        self._prefix = f"server-{server}-of-{servers}.{cut.id}"
        self._count = 0

    def table(self, snapshot: RowSnapshot, base: Link | None) -> TableInfo:
        """Write the rows of a snapshot."""
        facts, since = snapshot.facts, snapshot.since
        if since is not None and (base is None or since != base.id):
            raise ProgramError(f"table {facts.name!r} was cut for what changed since {since!r}, but {base} came last")
        record_bytes = snapshot.record_width * facts.dtype.itemsize
        most = max(1, CHUNK_BYTES // (8 + record_bytes))
        chunks = iter(lambda: snapshot.take(most), None)
        total, count = snapshot.rows, snapshot.count
        return self._rows(facts, chunks, snapshot.record_width, total, count, base if since is not None else None)

    def loose(self, name: str, rows: SelectedRows) -> TableInfo:
        """Write rows that belong to no table."""
        width, count = rows.value.shape[1], len(rows.rows)
        facts = TableFacts(name, width, rows.value.dtype, rows.height, 0, Constant(), ())
        most = max(1, CHUNK_BYTES // (8 + width * rows.value.itemsize))
        chunks = (
            RowChunk(rows.rows[at : at + most], rows.value[at : min(at + most, count)]) for at in range(0, count, most)
        )
        return self._rows(facts, chunks, width, count, count, None)

    def dense(self, cut: Cut) -> tuple[tuple[DenseInfo, ...], FileInfo]:
        """Write the arrays, each in chunks of its own."""
        infos = []
        name = f"{self._prefix}.dense"
        with self._folder.create(f"{self.path}/{name}") as stream, ChunkWriter(stream) as writer:
            for variable, value in cut.dense.items():
                array, lod = (value.array, value.lod) if isinstance(value, LoDTensor) else (value, ())
                piece = cut.pieces.get(variable, PieceOf(variable))
                dtype = stored_dtype(array.dtype)
                infos.append(DenseInfo(variable, *piece, dtype, array.shape, *writer.place, lod))
                content = np.frombuffer(bytes_of(little_endian(array)), np.uint8)
                for at in range(0, len(content), CHUNK_BYTES):
                    writer.write(0, content[at : at + CHUNK_BYTES])
        return tuple(infos), writer.info(name)

    def _rows(
        self,
        facts: TableFacts,
        chunks: Iterator[RowChunk],
        record_width: int,
        total: int,
        count: int,
        since: Link | None,
    ) -> TableInfo:
        """Write chunks of ids and records, each tagged by its number of rows."""
        name = f"{self._prefix}.{self._count}-{_ODD.sub('_', facts.name)[:_NAME_ROOM]}.rows"
        self._count += 1
        with self._folder.create(f"{self.path}/{name}") as stream, ChunkWriter(stream) as writer:
            for ids, records in chunks:
                writer.write(len(ids), little_endian(ids), little_endian(records))
        return TableInfo(
            name=facts.name,
            width=facts.width,
            dtype=stored_dtype(facts.dtype),
            height=facts.height,
            seed=facts.seed,
            init=init_in_words(facts.init),
            record_width=record_width,
            columns=facts.columns,
            total_rows=total,
            rows=count,
            changed_since=since,
            file=writer.info(name),
        )
