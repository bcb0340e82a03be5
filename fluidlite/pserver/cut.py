"""The checkpoint of a server: what its host holds, all between the same two steps, and back."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fluidlite.checkpoint.cut import Cut, PieceOf
from fluidlite.checkpoint.manifest import Link
from fluidlite.checkpoint.restore import Restored, restore_all, restore_tables
from fluidlite.checkpoint.source import open_checkpoint
from fluidlite.runtime.scope import Scope
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable, TableColumn


class Held(Protocol):
    """What holds the variables of a server (`pserver.host.Host`)."""

    @property
    def pieces(self) -> Mapping[str, PieceOf]: ...
    @property
    def version(self) -> int: ...
    def at_rest(self) -> AbstractContextManager[Scope]: ...
    def resume(self, version: int) -> None: ...


def take_cut(
    host: Held,
    number: int,
    since: Link | None = None,
    extra: Callable[[], Mapping[str, Any]] | None = None,
    track: bool = False,
) -> Cut:
    """What the host holds between two steps: dense arrays are copied, tables are only marked.

    ``since``: the checkpoint (`CheckpointWriter.last`) after which changed rows are enough; it must have been cut with
    ``track``, which makes tables remember what changes from now on. Tables that cannot tell give all rows. ``extra`` is
    called between the same two steps. Hand the cut to `CheckpointWriter.write`, or close it.
    """
    id = secrets.token_hex(8)
    dense: dict[str, Any] = {}
    rows: dict[str, SelectedRows] = {}
    tables = []
    with host.at_rest() as scope:
        for name, value in sorted(scope.values.items()):
            if isinstance(value, SparseTable):
                tables.append(value.snapshot(since and since.id, id if track else None))
            elif isinstance(value, LoDTensor):
                dense[name] = LoDTensor(value.array.copy(), value.lod)
            elif isinstance(value, np.ndarray):
                dense[name] = value.copy()
            elif isinstance(value, SelectedRows):
                rows[name] = SelectedRows(value.rows.copy(), value.value[: len(value.rows)].copy(), value.height)
            elif isinstance(value, TableColumn) and value.table is None and len((waiting := value.export()).rows):
                rows[name] = waiting
        more = extra() if extra else {}
        return Cut(number, id, host.version, dense, tuple(tables), rows, host.pieces, more)


def load(
    host: Held,
    url: str | Path,
    server: int,
    servers: int,
    number: int | None = None,
    tables: Collection[str] | None = None,
    rename: Mapping[str, str] | None = None,
    alone: bool = False,
    check: bool = True,
) -> Restored:
    """Restore server ``server`` of ``servers`` from the last good checkpoint in ``url``, or from that of a number.

    ``tables`` or ``rename`` given: only these tables are taken, see `restore_tables`, and the version stays. ``alone``:
    only this server's part of a checkpoint has to be good, since the other servers of the job stayed. ``check`` off: who
    chose the number has read every byte of it, and this server reads only what it needs. The host must not have been used yet; of an error what it holds is undefined.
    """
    source = open_checkpoint(url, number, (server, servers) if alone else None, check=check)
    with host.at_rest() as scope:
        if tables is not None or rename:
            restore_tables(scope, source, server, servers, tables, rename)
            return Restored(source.number, host.version, source.servers, source.extras)
        restored = restore_all(scope, source, server, servers, host.pieces)
        host.resume(restored.version)
    return restored
