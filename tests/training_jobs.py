"""The same model trained in one process, in a `LocalCluster`, and over gRPC; and what is left in the end, comparable."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

import fluidlite as fluid
from fluidlite.ports import TrainerPorts
from fluidlite.pserver.host import Host, make_service
from fluidlite.rpc.client import GrpcChannel
from fluidlite.rpc.port import TrainerPort
from fluidlite.rpc.retry import Patience
from fluidlite.rpc.server import GrpcServer
from fluidlite.transpiler.plan import Held, Plan, Storage
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sharding import shard_of
from fluidlite.values.sparse_table import SparseTable, TableColumn

Feed = Mapping[str, Any]
#: name -> array, or for what is held by row: id -> row
State = dict[str, Any]


@contextmanager
def fused_by(*passes: str) -> Iterator[None]:
    """Executors made inside the ``with`` run these fusion passes; none when none is named."""
    with mock.patch.dict(os.environ, FLUIDLITE_FUSION=",".join(passes) or "0"):
        yield


class Programs:
    """A model's untouched programs, and the names of its loss and of what its lookups give."""

    def __init__(self, build: Callable[[], fluid.Variable]) -> None:
        self.main, self.startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(self.main, self.startup):
            self.loss = build().name
        lookups = (op for op in self.main.desc.root.ops if op.type in ("lookup_table", "lookup_table_v2"))
        self.rows = [op.output("Out") or "" for op in lookups]


class Local:
    """Training in one process."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self.scope = fluid.Scope()
        self.executor = fluid.Executor()
        self.executor.run(programs.startup, scope=self.scope)

    def run(self, feed: Feed, fetch: Sequence[str], program: fluid.Program | None = None) -> list[Any]:
        """One run of the main program, or of another one."""
        return self.executor.run(program or self._programs.main, feed, fetch, scope=self.scope)

    def step(self, feed: Feed) -> Any:
        """One step; the loss."""
        return self.run(feed, [self._programs.loss])[0]

    def state(self) -> State:
        """Every persistable variable."""
        block = self._programs.main.desc.root
        held = {name: self.scope.get(name) for name, var in block.vars.items() if var.persistable}
        return {name: by_id(value) if is_rows(value) else value for name, value in held.items()}


def config_of(block: int, *, dense_on_trainer: bool = False) -> fluid.DistributeTranspilerConfig:
    """Slices of at least ``block`` elements."""
    return fluid.DistributeTranspilerConfig(min_block_size=block, dense_on_trainer=dense_on_trainer)


class Cluster:
    """Training by servers and trainers in this process."""

    def __init__(
        self,
        programs: Programs,
        pservers: int,
        trainers: int = 1,
        *,
        sync: bool = True,
        block: int = 1,
        **options: bool,
    ) -> None:
        config = config_of(block, **options)
        self.inside = fluid.LocalCluster(programs.main, programs.startup, pservers, trainers, sync, config)
        self._loss = programs.loss

    def step(self, feeds: Sequence[Feed]) -> list[Any]:
        """One step of every trainer; their losses."""
        return [fetched[0] for fetched in self.inside.run(feeds, [self._loss])]

    def state(self) -> State:
        """Every variable that servers hold, put together."""
        return held_state(self.plan, self.inside.scopes)

    @property
    def plan(self) -> Plan:
        distribution = self.inside.trainers[0].main.distribution
        assert distribution is not None
        return distribution.plan

    @property
    def shards(self) -> list[fluid.Scope]:
        """The scopes of the servers."""
        return list(self.inside.scopes.values())

    def close(self) -> None:
        self.inside.close()


class GrpcCluster:
    """Servers that listen on loopback, and trainers, one thread each, that reach them over gRPC."""

    def __init__(
        self, programs: Programs, pservers: int, trainers: int = 1, *, sync: bool = True, block: int = 1
    ) -> None:
        endpoints = [f"pserver{index}:0" for index in range(pservers)]
        self._loss = programs.loss
        self.mains, startups = [], []
        for trainer in range(trainers):
            transpiler = fluid.DistributeTranspiler(config_of(block))
            main, startup = programs.main.clone(), programs.startup.clone()
            transpiler.transpile(trainer, main, ",".join(endpoints), trainers, sync, startup)
            self.mains.append(main)
            startups.append(startup)
        self.scopes = {endpoint: fluid.Scope() for endpoint in endpoints}
        self.servers = {endpoint: self._serve(transpiler, endpoint, trainers) for endpoint in endpoints}
        self.executors = [fluid.Executor(ports=_ports(self.servers)) for _ in range(trainers)]
        self._own = [fluid.Scope() for _ in range(trainers)]
        self._pool = ThreadPoolExecutor(trainers)
        self._each(lambda index: self.executors[index].run(startups[index], scope=self._own[index]))

    def step(self, feeds: Sequence[Feed]) -> list[Any]:
        """One step of every trainer; their losses."""

        def run(index: int) -> Any:
            return self.executors[index].run(self.mains[index], feeds[index], [self._loss], scope=self._own[index])[0]

        return self._each(run)

    def state(self) -> State:
        """Every variable that servers hold, put together."""
        distribution = self.mains[0].distribution
        assert distribution is not None
        return held_state(distribution.plan, self.scopes)

    def close(self) -> None:
        """Complete the trainers, and wait for the servers to end by themselves."""
        for executor in self.executors:
            executor.close()
        for server in self.servers.values():
            server.wait()
        self._pool.shutdown()

    def _each(self, call: Callable[[int], Any]) -> list[Any]:
        return list(self._pool.map(call, range(len(self.executors))))

    def _serve(self, transpiler: fluid.DistributeTranspiler, endpoint: str, trainers: int) -> GrpcServer:
        program, startup = transpiler.get_pserver_programs(endpoint)
        scope = self.scopes[endpoint]
        fluid.Executor().run(startup, scope=scope)
        service = make_service(Host(program.desc, program.desc.root.ops[-1], scope))
        return GrpcServer(service, "127.0.0.1:0", trainers=trainers)


def _ports(servers: Mapping[str, GrpcServer]) -> TrainerPorts:
    """Ports that translate the endpoints that programs name into those where servers really listen."""
    patience = Patience(connect=20.0, retry=1.0)

    def make_port(trainer: int, trainers: int) -> TrainerPort:
        def connect(endpoint: str) -> GrpcChannel:
            return GrpcChannel(servers[endpoint].endpoint, patience)

        return TrainerPort(connect, trainer=trainer, trainers=trainers, patience=patience)

    return TrainerPorts(make_port, host=None)  # type: ignore[arg-type]


def held_state(plan: Plan, scopes: Mapping[str, fluid.Scope]) -> State:
    """What servers hold: slices concatenated, copies (all equal) once, rows by id, each on the server of its id."""
    return {
        held.name: _whole(held, [scopes[piece.endpoint].get(piece.name) for piece in held.pieces])
        for held in plan.held()
    }


def _whole(held: Held, pieces: Sequence[Any]) -> Any:
    if held.storage is Storage.SLICES:
        return np.concatenate(pieces)
    if held.storage is Storage.COPIES:
        for piece in pieces[1:]:
            np.testing.assert_array_equal(piece, pieces[0], err_msg=f"copies of {held.name}")
        return pieces[0]
    rows: dict[int, Any] = {}
    for index, piece in enumerate(pieces):
        mine = by_id(piece)
        assert all(shard_of(np.array([id]), len(pieces))[0] == index for id in mine), f"a row of {held.name} is astray"
        rows.update(mine)
    return rows


def is_rows(value: Any) -> bool:
    return isinstance(value, (SparseTable, TableColumn))


def by_id(value: Any) -> dict[int, Any]:
    """The rows of a table, or of an accumulator of one."""
    rows: SelectedRows = value.export()
    return {int(id): row for id, row in zip(rows.rows, rows.value, strict=True)}


def assert_states(actual: State, expected: State, rtol: float = 0.0) -> None:
    """The servers hold what a local run left: bit for bit, or with a tolerance. Rows have the same ids."""
    assert actual.keys() <= expected.keys()
    for name, value in actual.items():
        other = expected[name]
        if isinstance(value, dict):
            assert value.keys() == other.keys(), f"ids of {name}"
        np.testing.assert_allclose(matrix(value), matrix(other), rtol=rtol, atol=rtol * 1e-3, err_msg=name)


def matrix(value: Any) -> Any:
    """The rows in the order of their ids; an array as it is."""
    return np.array([value[id] for id in sorted(value)]) if isinstance(value, dict) else value
