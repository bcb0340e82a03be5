"""Saving and loading through servers: the files are those of a local run, whoever holds the values.

Dense parameters and their accumulators are put together from their slices, tables from their shards: server after
server, each shard in the order in which its rows were made. What is read together is of one moment of each server,
whatever is pushed meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import Program
from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops.context import Ports, ServerPort
from fluidlite.protocol.messages import DenseRequest, PullRequest, TableRequest
from fluidlite.runtime.scope import Scope
from fluidlite.transpiler.plan import Held, Plan, Storage
from fluidlite.values import files
from fluidlite.values.local_matrix import LocalMatrix
from fluidlite.values.local_rows import LocalRows
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sharding import shard_of

#: kinds of variables that no file holds
NOT_SAVED: Final = (VarKind.FEED_MINIBATCH, VarKind.FETCH_LIST, VarKind.READER, VarKind.RAW)
#: ops of a trainer's program that say where its servers are
_ADDRESSING: Final = ("send_barrier", "recv", "prefetch")


class Store(Protocol):
    """Where the values of a program's variables are."""

    def read(self, names: Sequence[str]) -> list[Any]:
        """The values, all of one moment; None for those that nothing wrote."""
        ...

    def write(self, name: str, value: Any) -> None:
        """Overwrite the value; of a table all rows."""
        ...

    def holds_rows(self, name: str) -> bool:
        """Whether the variable is a table or an accumulator of one, so that its file is a SelectedRows record."""
        ...


class ServerStore:
    """Implements `Store` for the variables of a job, as one of its trainers reaches them.

    ``trainer`` is the trainer's program. What no server holds is ``local``. ``executor`` must have ``ports``
    (`fluidlite.Executor` has).
    """

    def __init__(self, plan: Plan, trainer: Program, local: Store, executor: Any) -> None:
        self._trainer = trainer
        self._local = local
        self._executor = executor
        self._is_geo = plan.geo is not None
        self._held = {held.name: held for held in plan.held()}

    def holds_rows(self, name: str) -> bool:
        """Whether the variable is a table or an accumulator of one."""
        held = self._held.get(name)
        return held.storage is Storage.ROWS if held is not None else self._local.holds_rows(name)

    def read(self, names: Sequence[str]) -> list[Any]:
        """The whole values: arrays, or SelectedRows of every row of a table. Each server is asked once, for all of them."""
        held = {name: self._held[name] for name in names if name in self._held}
        asked = {name: _requests(found) for name, found in held.items()}
        requests = [request for found in asked.values() for request in found]
        answers = iter(self._port().pull(requests) if requests else ())
        pieces = {name: list(itertools.islice(answers, len(found))) for name, found in asked.items()}
        local = [name for name in names if name not in held]
        values = dict(zip(local, self._local.read(local), strict=True))
        values.update((name, _joined(held[name], pieces[name])) for name in held)
        return [values[name] for name in names]

    def write(self, name: str, value: Any) -> None:
        """Overwrite the value on its servers, and the trainer's own copy if it has one."""
        held = self._held.get(name)
        if held is None:
            self._local.write(name, value)
            return
        for index, piece in enumerate(held.pieces):
            self._port().assign(piece.endpoint, piece.name, part_of(held, index, value))
        (own,) = self._local.read([name])
        if isinstance(own, np.ndarray) and isinstance(value, np.ndarray) and own.shape == value.shape:
            self._local.write(name, value)
        if self._is_geo:
            self._begin_anew(name, value)

    def _begin_anew(self, name: str, value: Any) -> None:
        """What is on the servers now is what a trainer that trains by itself has exchanged."""
        (rows,) = self._local.read([names.geo_part(name, "rows")])
        if isinstance(rows, LocalRows):
            rows.forget()
        elif isinstance(rows, LocalMatrix):
            rows.replace(value)
        else:
            self._local.write(names.geo_part(name, "exchanged"), value.copy())

    def _port(self) -> ServerPort:
        return servers_of(self._trainer, self._executor)


def servers_of(trainer: Program, executor: Any) -> ServerPort:
    """The port to the servers of a trainer's program, of the executor that runs it."""
    ports: Ports | None = getattr(executor, "ports", None)
    if ports is None:
        raise ProgramError(f"saving and loading a transpiled program needs the executor that runs it, not {executor!r}")
    addressing = [op for _, op in trainer.all_ops() if op.type in _ADDRESSING]
    if not addressing:
        raise ProgramError("the program exchanges nothing with servers; save and load by the trainer's main program")
    ports.prepare(trainer)
    return ports.server(addressing[0])


def part_of(held: Held, index: int, value: Any) -> Array | SelectedRows:
    """What piece ``index`` of a held variable holds when the whole variable is ``value``."""
    if held.storage is Storage.ROWS:
        return _shard(held, index, value)
    if held.storage is Storage.COPIES:
        return np.asarray(value)
    piece, array = held.pieces[index], np.asarray(value)
    rows = sum(part.rows for part in held.pieces)
    if not array.ndim or len(array) != rows:
        raise ShapeError(f"{held.name!r} is {rows} rows high on its servers, the value is {list(array.shape)}")
    return np.ascontiguousarray(array[piece.first_row : piece.first_row + piece.rows])


def load_on_server(plan: Plan, scope: Scope, folder: Path, names: Collection[str]) -> None:
    """Load a server's own slices, copies and shards of variables of the whole model, each from its file in ``folder``.

    ``plan`` is seen by that server (`Plan.at`), whose startup program was run in ``scope``.
    """
    for held in plan.held():
        if held.name not in names:
            continue
        for index, piece in enumerate(held.pieces):
            if piece.endpoint == plan.endpoint:
                whole = files.load(folder / held.name, held.name, rows=held.storage is Storage.ROWS)
                scope.set(piece.name, files.into_table(scope.get(piece.name), part_of(held, index, whole)))


def names_on_server(plan: Plan) -> frozenset[str]:
    """What a server holds of the model, by its names there."""
    return frozenset(piece.name for held in plan.held() for piece in held.pieces if piece.endpoint == plan.endpoint)


def _shard(held: Held, index: int, rows: SelectedRows) -> SelectedRows:
    mine = shard_of(rows.rows, len(held.pieces)) == index
    return SelectedRows(rows.rows[mine], rows.value[: len(mine)][mine], rows.height)


def _requests(held: Held) -> list[PullRequest]:
    """What is to be asked for a whole value."""
    if held.storage is Storage.ROWS:
        return [TableRequest(piece.endpoint, piece.name) for piece in held.pieces]
    pieces = held.pieces if held.storage is Storage.SLICES else held.pieces[:1]
    return [DenseRequest(piece.endpoint, piece.name, current=True) for piece in pieces]


def _joined(held: Held, pieces: Sequence[Any]) -> Array | SelectedRows:
    """The whole value from the answers."""
    if held.storage is Storage.ROWS:
        return _all_rows(pieces)
    whole: Array = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return whole


def _all_rows(shards: Sequence[SelectedRows]) -> SelectedRows:
    rows = np.concatenate([shard.rows for shard in shards])
    values = np.concatenate([shard.value[: len(shard.rows)] for shard in shards])
    return SelectedRows(rows, values, shards[0].height)
