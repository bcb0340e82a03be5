"""Puts a checkpoint, or some tables of one, into the variables of a server."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from fluidlite.checkpoint.cut import PieceOf
from fluidlite.checkpoint.manifest import TableInfo, as_text, init_in_words
from fluidlite.checkpoint.source import Source
from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError, TableError
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable, TableColumn

log: Final = logging.getLogger(__name__)


class Variables(Protocol):
    """The variables of a server (`runtime.scope.Scope`)."""

    values: dict[str, Any]

    def get(self, name: str) -> Any: ...
    def set(self, name: str, value: Any) -> None: ...


@dataclass(frozen=True)
class Restored:
    """What was restored. ``version``: that of the same server, or the highest where their number is another.
    ``servers`` wrote the checkpoint; ``extras``: what each of them had remembered."""

    number: int
    version: int
    servers: int
    extras: Mapping[int, Mapping[str, Any]]


def restore_all(
    variables: Variables, source: Source, server: int, servers: int, pieces: Mapping[str, PieceOf]
) -> Restored:
    """Everything that server ``server`` of ``servers`` holds, whose startup program made ``variables``.

    ``pieces`` says which of them are pieces of something larger, as the server's program has it. Raises ProgramError for
    variables that the checkpoint does not have, ShapeError and TableError for what does not fit.
    """
    lacking = []
    for name, value in list(variables.values.items()):
        if isinstance(value, SparseTable):
            if name not in source.tables:
                lacking.append(name)
        elif isinstance(value, (np.ndarray, LoDTensor)):
            piece = pieces.get(name, PieceOf(name))
            rows = len(_array_of(value)) if piece.first_row is not None else 0
            found = source.array(piece.origin, server, piece.first_row, rows)
            if found is None:
                lacking.append(name)
            else:
                variables.set(name, _fitting(name, value, found))
    if lacking:
        raise ProgramError(
            f"checkpoint {source.number} has no {', '.join(map(repr, lacking))}; is it of another model?"
        )
    if servers == source.servers:
        _restore_rest(variables, source, server, pieces)
    restore_tables(variables, source, server, servers)
    for name in source.loose:
        _restore_loose(variables, source, name, server, servers)
    own = source.versions[server] if servers == source.servers else max(source.versions.values())
    return Restored(source.number, own, source.servers, source.extras)


def restore_model(variables: Variables, source: Source, needed: Collection[str], others: Collection[str]) -> list[str]:
    """Variables of one process, by their names in the whole model, from any number of servers: those ``needed``, and of
    ``others`` those that the checkpoint has; the names of those left as they are.

    All have values, which say what fits. Accumulators of tables that are not asked for are left out. Raises what
    `restore_all` does.
    """
    asked = _Some(variables, [*needed, *others])
    known = {*source.tables, *source.dense}
    left = [n for n, value in asked.values.items() if n not in known and not isinstance(value, TableColumn)]
    if lacking := [name for name in left if name in needed]:
        raise ProgramError(
            f"checkpoint {source.number} has no {', '.join(map(repr, lacking))}; is it of another model, or do its "
            "trainers keep that to themselves?"
        )
    for name, value in asked.values.items():
        if isinstance(value, (np.ndarray, LoDTensor)) and (found := source.array(name, 0)) is not None:
            variables.set(name, _fitting(name, value, found))
    tables = [name for name, value in asked.values.items() if isinstance(value, SparseTable) and name in source.tables]
    restore_tables(asked, source, 0, 1, tables, tell=logging.DEBUG)
    for name in source.loose:
        if name in asked.values:
            _restore_loose(variables, source, name, 0, 1)
    return left


class _Some:
    """Implements `Variables`: some of others."""

    def __init__(self, variables: Variables, names: Collection[str]) -> None:
        self.values = {name: variables.get(name) for name in names}

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def set(self, name: str, value: Any) -> None:
        self.values[name] = value


def restore_tables(
    variables: Variables,
    source: Source,
    server: int,
    servers: int,
    tables: Collection[str] | None = None,
    rename: Mapping[str, str] | None = None,
    tell: int = logging.WARNING,
) -> None:
    """Tables with their accumulators, and nothing else: all, or those named. The server's rows are replaced.

    ``rename``: table of the checkpoint -> table of the program; its accumulators' names change with it. An accumulator
    that the program does not have is left out, which the log says at level ``tell``; one that the checkpoint does not have starts anew.
    """
    rename = rename or {}
    known = source.tables
    wanted = list(known) if tables is None else list(tables)
    if unknown := [name for name in [*wanted, *rename] if name not in known]:
        raise ProgramError(
            f"checkpoint {source.number} has no table {unknown[0]!r}; it has {', '.join(known) or 'none'}"
        )
    for name in wanted:
        target = rename.get(name, name)
        table = variables.get(target)
        if not isinstance(table, SparseTable):
            raise ProgramError(f"the program has no table {target!r} to take the rows of {name!r}")
        _check(table, known[name])
        _restore_table(variables, source, name, table, (server, servers), tell)


def _restore_table(
    variables: Variables, source: Source, name: str, table: SparseTable, shard: tuple[int, int], tell: int
) -> None:
    table.replace(SelectedRows(np.empty(0, np.int64), np.empty((0, table.width), table.dtype), table.height))
    columns: dict[str, TableColumn | None] = {}
    for layout, chunk in source.rows(name, *shard):
        parts: dict[TableColumn | None, Array] = {None: chunk.records[:, : table.width]}
        for place in layout.columns:
            if place.name not in columns:
                columns[place.name] = _column(variables, table, name, place.name, tell)
            column = columns[place.name]
            if column is not None:
                parts[column] = chunk.records[:, place.start : place.start + place.width]
        table.load_records(chunk.ids, parts)


def _column(variables: Variables, table: SparseTable, name: str, saved: str, tell: int) -> TableColumn | None:
    """The program's accumulator in the place of a saved one, attached; its name begins with the table's."""
    here = table.name + saved.removeprefix(name) if saved.startswith(name) else saved
    column = variables.get(here)
    if not isinstance(column, TableColumn):
        log.log(tell, "accumulator %r of table %r is in the checkpoint but not in the program: left out", saved, name)
        return None
    table.attach(column)
    return column


def _check(table: SparseTable, saved: TableInfo) -> None:
    if (table.width, table.dtype) != (saved.width, saved.dtype.newbyteorder("=")):
        raise TableError(
            f"table {table.name!r} has width {table.width} and dtype {table.dtype}, table {saved.name!r} of the "
            f"checkpoint width {saved.width} and dtype {saved.dtype.name}"
        )
    rule = init_in_words(table.init)
    if (table.seed, rule) != (saved.seed, saved.init):
        log.warning(
            "table %r was saved with seed %s and %s; new rows follow the program: seed %s and %s",
            *(table.name, saved.seed, as_text(saved.init), table.seed, as_text(rule)),
        )


def _restore_rest(variables: Variables, source: Source, server: int, pieces: Mapping[str, PieceOf]) -> None:
    """What this very server had beside what its startup program makes, such as results of a schedule."""
    for info in source.own_dense(server):
        if variables.get(info.name) is None and info.first_row is None and info.name not in pieces:
            variables.set(info.name, source.array(info.origin, server))


def _restore_loose(variables: Variables, source: Source, name: str, server: int, servers: int) -> None:
    """Rows of an accumulator that no optimizer step used yet, or of a variable."""
    target, height = variables.get(name), source.loose[name].height
    chunks = list(source.loose_rows(name, server, servers))
    width = source.loose[name].width
    values = [chunk.records for chunk in chunks] or [np.empty((0, width), source.loose[name].dtype.newbyteorder("="))]
    rows = SelectedRows(
        np.concatenate([np.empty(0, np.int64), *(chunk.ids for chunk in chunks)]), np.concatenate(values), height
    )
    if isinstance(target, TableColumn):
        target.load(rows)
    else:
        variables.set(name, rows)


def _fitting(name: str, here: Array | LoDTensor, found: Array | LoDTensor) -> Array | LoDTensor:
    now, then = _array_of(here), _array_of(found)
    if (now.shape, now.dtype.newbyteorder("=")) != (then.shape, then.dtype):
        raise ShapeError(
            f"variable {name!r} is {list(now.shape)} {now.dtype}, in the checkpoint {list(then.shape)} {then.dtype}"
        )
    return LoDTensor(then, found.lod) if isinstance(found, LoDTensor) else then


def _array_of(value: Array | LoDTensor) -> Array:
    return value.array if isinstance(value, LoDTensor) else value
