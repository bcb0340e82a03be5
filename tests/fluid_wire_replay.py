"""Plays the recorded jobs of tests/fluid_values/wire: to our server the part of Fluid's trainers, to our trainers that of
Fluid's servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite.dtypes import Array
from fluidlite.errors import RemoteError
from fluidlite.proto_gen import fluid_pb2 as pb
from fluidlite.pserver.host import Host, make_service
from fluidlite.pserver.service import IN_PROCESS, PServer
from fluidlite.rpc import fluid_message as wire
from fluidlite.rpc.fluid_server import FluidHandlers
from fluidlite.rpc.fluid_session import FluidSession
from fluidlite.rpc.traffic import Traffic
from fluidlite.values.selected_rows import SelectedRows
from tests.oracle import wire_job
from tests.oracle.wire_record import FOLDER, Exchange, Record, read

KINDS = ("dense", "sparse_decay")
#: float32 that was computed in another order
CLOSE = {"rtol": 1e-5, "atol": 1e-7}


def recorded(kind: str) -> Record:
    return read(FOLDER / f"{kind}.bin.xz")


@contextmanager
def fresh() -> Iterator[fluid.Scope]:
    """Programs, names and a scope of one's own."""
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
        fluid.scope_guard(scope := fluid.Scope()),
    ):
        yield scope


def our_server(job: Record, index: int) -> tuple[PServer, FluidHandlers]:
    """The server at a position, with its first values."""
    endpoint = job.endpoints[index]
    with fresh() as scope:
        transpiler, _ = wire_job.transpiled(job.kind, 0, ",".join(job.endpoints), job.trainers)
        program = transpiler.get_pserver_program(endpoint)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(transpiler.get_startup_program(endpoint, program))
    (listen,) = program.desc.root.ops
    service = make_service(Host(program.desc, listen, scope), IN_PROCESS)
    return service, FluidHandlers(FluidSession(service, endpoint, job.trainers, "job"))


def replies_to_trainers(handlers: FluidHandlers, exchanges: Sequence[Exchange]) -> list[tuple[Exchange, bytes]]:
    """What our server answers when every trainer asks what it asked, one after the other, beside the other trainers."""
    by_trainer: dict[int, list[Exchange]] = {}
    for exchange in exchanges:
        by_trainer.setdefault(exchange.trainer, []).append(exchange)
    table = handlers.table()

    def ask(mine: Sequence[Exchange]) -> list[tuple[Exchange, bytes]]:
        return [(each, table[each.method](each.request, f"of {each.trainer}")) for each in mine]

    with ThreadPoolExecutor(len(by_trainer)) as threads:
        return [answer for answers in threads.map(ask, by_trainer.values()) for answer in answers]


class FluidServers:
    """Answers a trainer of ours with what Fluid's servers answered to theirs, and compares what it asks."""

    def __init__(self, job: Record, trainer: int) -> None:
        self._endpoints = job.endpoints
        self.left = [each for each in job.exchanges if each.trainer == trainer]
        self._lock = threading.Lock()

    def channel(self, endpoint: str) -> RecordedChannel:
        return RecordedChannel(self, self._endpoints.index(endpoint))

    def answer(self, server: int, method: str, request: pb.VariableMessage) -> pb.VariableMessage:
        """The reply to the earliest exchange of that kind that is left."""
        with self._lock:
            for position, each in enumerate(self.left):
                theirs = pb.VariableMessage.FromString(each.request)
                if (each.server, each.method, theirs.varname) == (server, method, request.varname):
                    del self.left[position]
                    return answer_like(request, theirs, pb.VariableMessage.FromString(each.reply))
        raise RemoteError(f"Fluid's trainer never asked {method} {request.varname!r} (again)")


class RecordedChannel:
    """Implements `rpc.fluid_client.FluidChannel`."""

    traffic: Mapping[str, Traffic] = {}

    def __init__(self, servers: FluidServers, index: int) -> None:
        self._servers = servers
        self._index = index

    def meet(self, timeout: float) -> None:
        """It is up."""

    def call(self, method: str, request: pb.VariableMessage, timeout: float | None) -> Callable[[], pb.VariableMessage]:
        reply = self._servers.answer(self._index, method, request)
        return lambda: reply

    def close(self) -> None:
        """Nothing is open."""


def answer_like(ours: pb.VariableMessage, theirs: pb.VariableMessage, reply: pb.VariableMessage) -> pb.VariableMessage:
    """The recorded reply, for our request: both ask for, or send, the same. Ids may be in another order, and we do not ask
    for the row that padding stands for."""
    assert described(ours) == described(theirs)
    if not theirs.serialized:
        return reply
    mine, other = wire.value_of(ours), wire.value_of(theirs)
    if not theirs.table_name:
        np.testing.assert_allclose(without_padding(mine), without_padding(other), **CLOSE)
        return reply
    mine, other = ids_of(mine), ids_of(other)
    assert len(mine) == len(set(mine))
    assert set(other) - set(mine) <= {wire_job.PADDING}
    assert set(mine) <= set(other)
    rows = ids_to_rows(other, wire.value_of(reply))
    return wire.message_of(reply.varname, np.stack([rows[number] for number in mine]))


def described(message: pb.VariableMessage) -> dict[str, Any]:
    """Everything but values, and how many rows or ids there are: our rows come merged."""
    fields = {field.name: value for field, value in message.ListFields()}
    rows = message.type == pb.SELECTED_ROWS or message.table_name
    dims = list(message.dims)[1 if rows else 0 :]
    return {**fields, "dims": dims, "serialized": b"", "rows": b""}


def without_padding(value: Array | SelectedRows) -> Array:
    """With zeros where rows are missing, and the sums of those that repeat. Fluid also trains the row of the padding id
    (docs/deviations.md), which nobody sees."""
    if not isinstance(value, SelectedRows):
        return value
    out = np.zeros((value.height, value.value.shape[1]), value.value.dtype)
    np.add.at(out, value.rows, value.value)
    out[wire_job.PADDING] = 0
    return out


def ids_of(value: Array | SelectedRows) -> list[int]:
    assert isinstance(value, np.ndarray)
    return [int(number) for number in value.ravel()]


def ids_to_rows(ids: Sequence[int], value: Array | SelectedRows) -> dict[int, Array]:
    assert isinstance(value, np.ndarray)
    return dict(zip(ids, value, strict=True))
