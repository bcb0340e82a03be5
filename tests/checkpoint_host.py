"""A server for tests of checkpoints: variables, a version and a lock, without a program."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.checkpoint.catalogue import Catalogue
from fluidlite.checkpoint.cut import PieceOf
from fluidlite.checkpoint.manifest import Manifest
from fluidlite.checkpoint.source import Source, open_checkpoint
from fluidlite.checkpoint.storage import open_folder
from fluidlite.checkpoint.writer import CheckpointWriter
from fluidlite.pserver.cut import take_cut
from fluidlite.runtime.scope import Scope
from fluidlite.values.initial import Constant
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable, TableColumn


class FakeHost:
    """Implements `pserver.cut.Held`."""

    def __init__(
        self, values: Mapping[str, Any], pieces: Mapping[str, PieceOf] | None = None, version: int = 0
    ) -> None:
        self.scope = Scope()
        self.scope.values.update(values)
        self.pieces = pieces or {}
        self.version = version
        self.lock = threading.Lock()

    @contextmanager
    def at_rest(self) -> Iterator[Scope]:
        with self.lock:
            yield self.scope

    def resume(self, version: int) -> None:
        self.version = version

    @property
    def table(self) -> SparseTable:
        found: SparseTable = self.scope.get("emb")
        return found


def make_table(name: str = "emb", width: int = 2, dtype: str = "float32", seed: int = 1) -> SparseTable:
    return SparseTable(name, width, dtype, Constant(1.0), seed, height=1000)


def make_host(ids: Any = (), *, width: int = 2, dtype: str = "float32", columns: int = 1) -> FakeHost:
    """A host with table "emb", its accumulators "emb_0", ..., and two arrays. All numbers are exact."""
    table = make_table(width=width, dtype=dtype)
    accumulators = [TableColumn(f"emb_{index}", width, 0.5, dtype) for index in range(columns)]
    for column in accumulators:
        table.attach(column)
    host = FakeHost(
        {
            "emb": table,
            **{column.name: column for column in accumulators},
            "w": np.arange(6, dtype=dtype).reshape(2, 3),
            "step": np.array([7]),
        },
        version=3,
    )
    push(host, ids, 1)
    return host


def push(host: FakeHost, ids: Any, amount: float) -> None:
    """Add ``amount`` to the rows of ids, twice that to their first accumulator, and so on."""
    table = host.table
    ids = np.asarray(ids, np.int64)
    gradient = SelectedRows(ids, np.full((len(ids), table.width), amount, table.dtype), 0)

    def add(value: Any, grad: Any, *state: Any) -> None:
        for factor, part in enumerate((value, *state), 1):
            np.add(part, factor * grad[:, : part.shape[1]], out=part)

    table.update(gradient, table.columns, add)


def save(
    url: str | Path, host: FakeHost, number: int = 1, writer: CheckpointWriter | None = None, **options: Any
) -> Manifest:
    """A checkpoint of one server; incremental after the last of ``writer``."""
    writer = writer or CheckpointWriter(url, **options)
    return writer.write(take_cut(host, number, writer.last, track=True))


def contents(table: SparseTable) -> dict[int, list[float]]:
    """Everything that a table holds: id -> value and accumulators."""
    parts = [table.export(), *(column.export() for column in table.columns)]
    records = np.concatenate([part.value for part in parts], axis=1)
    return dict(zip(parts[0].rows.tolist(), records.tolist(), strict=True))


def saved_rows(source: Source, table: str = "emb", server: int = 0, servers: int = 1) -> dict[int, list[float]]:
    """The same of a checkpoint."""
    found = {}
    for layout, chunk in source.rows(table, server, servers):
        order = [0, *(place.start for place in layout.columns)]
        widths = [layout.width, *(place.width for place in layout.columns)]
        parts = [chunk.records[:, at : at + n] for at, n in zip(order, widths, strict=True)]
        found.update(zip(chunk.ids.tolist(), np.concatenate(parts, axis=1).tolist(), strict=True))
    return found


def opened(url: str | Path, number: int | None = None) -> Source:
    return open_checkpoint(url, number)


def catalogue_of(url: str | Path) -> Catalogue:
    return Catalogue(open_folder(url))
