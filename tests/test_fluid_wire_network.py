"""Fluid's own wire over a network: both ends of ours, and what a stranger at the port can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import NotSupported, PeerLostError, RemoteError, RequestRefusedError
from fluidlite.protocol.messages import Declared, DenseRequest, Gradient, RowRequest, TableRequest, Use
from fluidlite.pserver.host import Host, make_service
from fluidlite.pserver.service import IN_PROCESS
from fluidlite.rpc import fluid_message as wire
from fluidlite.rpc import fluid_port, options
from fluidlite.rpc.client import grpc_port
from fluidlite.rpc.fluid_port import FluidPort
from fluidlite.rpc.library import grpc
from fluidlite.rpc.retry import Patience
from fluidlite.rpc.server import GrpcServer
from tests.byte_faults import no_failures
from tests.fluid_wire_replay import fresh, recorded
from tests.oracle import wire_job
from tests.oracle.wire_processes import free_endpoints
from tests.pserver_program import pserver_program


@pytest.fixture
def server() -> Iterator[GrpcServer]:
    service = make_service(Host(*pserver_program(trainers=1)), IN_PROCESS)
    made = GrpcServer(service, "127.0.0.1:0", trainers=1, fluid_job="job")
    try:
        yield made
    finally:
        made.close()


def test_a_job_of_ours_over_it_has_the_losses_of_fluid(tmp_path: Path) -> None:
    """Servers and trainers by their programs, each in a thread. At the end trainer 0 saves what the servers have."""
    job = recorded("sparse_decay")
    endpoints = free_endpoints(2)
    servers = [_server_of(job.kind, endpoint, endpoints) for endpoint in endpoints]
    trainers = [_trainer_of(job.kind, index, endpoints, tmp_path) for index in range(2)]
    with ThreadPoolExecutor(4) as threads:
        serving = [threads.submit(serve) for serve in servers]
        losses = list(threads.map(lambda train: train(len(job.losses[0])), trainers))
        for each in serving:
            each.result(20)
    np.testing.assert_allclose(losses, job.losses, rtol=1e-5)
    assert {"emb", "fc_w", "fc_b", "out_w", "out_b"} <= {path.name for path in tmp_path.iterdir()}
    assert (tmp_path / "emb").stat().st_size > 4 * wire_job.ROWS * wire_job.WIDTH


def _server_of(kind: str, endpoint: str, endpoints: Sequence[str]) -> Callable[[], object]:
    with fresh() as scope:
        transpiler, _ = wire_job.transpiled(kind, 0, ",".join(endpoints), 2)
        program, startup = transpiler.get_pserver_programs(endpoint)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    return lambda: exe.run(program, scope=scope)


def _trainer_of(kind: str, index: int, endpoints: Sequence[str], folder: Path) -> Callable[[int], list[float]]:
    with fresh() as scope:
        transpiler, loss = wire_job.transpiled(kind, index, ",".join(endpoints), 2)
        program, startup = transpiler.get_trainer_program(), fluid.default_startup_program()

    def train(steps: int) -> list[float]:
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup, scope=scope)
        feeds = [wire_job.feed(kind, index, step) for step in range(steps)]
        losses = [float(exe.run(program, feed=feed, fetch_list=[loss], scope=scope)[0].ravel()[0]) for feed in feeds]
        if index == 0:
            with fluid.scope_guard(scope):
                fluid.io.save_persistables(exe, str(folder), program)
        exe.close()
        return losses

    return train


def port_to(server: GrpcServer, **declared: tuple[int, ...]) -> FluidPort:
    port = fluid_port.fluid_port(trainer=0, sync=True, patience=Patience(connect=5.0))
    port.declare({server.endpoint: [Declared(name, Use.DENSE, "float64", shape) for name, shape in declared.items()]})
    return port


def test_our_two_ends_speak_it_with_each_other(server: GrpcServer) -> None:
    port = port_to(server, w=(3,))
    there = server.endpoint
    (first,) = port.pull([DenseRequest(there, "w")])
    np.testing.assert_array_equal(first, np.zeros(3))
    (rows,) = port.pull([RowRequest(there, "v.block0", np.array([1, 3]), 2, "float64")])
    np.testing.assert_array_equal(rows, [[2.0, 3.0], [6.0, 7.0]])
    port.stage(Gradient(there, "w@GRAD", np.ones(3)))
    port.stage(Gradient(there, "v.block0@GRAD", np.ones((1, 2)), np.array([1]), 4))
    port.stage(Gradient(there, "emb@GRAD", np.ones((0, 2)), np.array([], np.int64), 0))
    assert port.commit([there]).versions == {there: 1}
    port.pull([DenseRequest(there, "w")])
    (now, rows) = port.pull(
        [DenseRequest(there, "w", current=True), RowRequest(there, "v.block0", np.array([1]), 2, "float64")]
    )
    np.testing.assert_array_equal(now, np.full(3, -1.0))
    np.testing.assert_array_equal(rows, [[1.0, 2.0]])
    assert set(port.traffic[there]) == {"GetVariable", "GetVariableNoBarrier", "PrefetchVariable", "SendVariable"}
    port.complete()
    port.complete()


def test_errors_name_server_and_variable(server: GrpcServer) -> None:
    port = port_to(server)
    with no_failures(), pytest.raises(RemoteError, match=f"{server.endpoint}.*invalid_argument.*unknown variable 'x'"):
        port.pull([DenseRequest(server.endpoint, "x")])
    port.close()


def test_a_server_that_does_not_come_up_is_a_lost_peer() -> None:
    port = fluid_port.fluid_port(trainer=0, sync=True, patience=Patience(connect=0.2))
    with pytest.raises(PeerLostError, match="did not come up within"):
        port.pull([DenseRequest("127.0.0.1:1", "w")])


def test_nobody_speaks_it_where_the_program_does_not_say_so() -> None:
    service = make_service(Host(*pserver_program(trainers=1)), IN_PROCESS)
    made = GrpcServer(service, "127.0.0.1:0", trainers=1)
    try:
        with pytest.raises(RemoteError, match="it is no fluidlite pserver of this version"):
            port_to(made).pull([DenseRequest(made.endpoint, "w")])
    finally:
        made.close()


def test_what_this_wire_has_not_is_not_supported(server: GrpcServer) -> None:
    port, there = port_to(server), server.endpoint
    for call in (
        lambda: port.barrier([there]),
        lambda: port.assign(there, "w", np.zeros(3)),
        lambda: port.checkpoint([there]),
        lambda: port.pull([TableRequest(there, "emb")]),
    ):
        with pytest.raises(NotSupported, match="Fluid's own wire has nothing for"):
            call()
    port.commit([there])
    with ThreadPoolExecutor(1) as other, pytest.raises(NotSupported, match="let one thread train"):
        other.submit(port.commit, [there]).result()
    port.close()


def test_a_variable_may_be_larger_than_messages_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_SIZES", [(f"grpc.max_{way}_message_length", 20_000) for way in ("receive", "send")])
    service = make_service(Host(*pserver_program(trainers=1)), IN_PROCESS)
    made = GrpcServer(service, "127.0.0.1:0", trainers=1, fluid_job="job")
    port, ids = port_to(made), np.tile(np.arange(4), 2000)
    try:
        (rows,) = port.pull([RowRequest(made.endpoint, "v.block0", ids, 2, "float64")])
        assert rows.nbytes > 100_000
        np.testing.assert_array_equal(rows[-4:], [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]])
    finally:
        port.close()
        made.close()


def test_nobody_trains_by_our_own_wire_beside_it(server: GrpcServer) -> None:
    """It would take the place of a trainer of Fluid, for which the others then wait; reading disturbs nobody."""
    for trainer in (0, -1):
        port = grpc_port(trainer=trainer, trainers=1, job="job", patience=Patience(connect=5.0))
        port.declare({server.endpoint: [Declared("w", Use.DENSE, "float64", (3,))]}, 1)
        if trainer == 0:
            with pytest.raises(RequestRefusedError, match="the trainers of this server speak Fluid's own wire"):
                port.pull([DenseRequest(server.endpoint, "w")])
        else:
            np.testing.assert_array_equal(port.pull([DenseRequest(server.endpoint, "w")]), [np.zeros(3)])
        port.close()
    mine = port_to(server, w=(3,))
    mine.stage(Gradient(server.endpoint, "w@GRAD", np.ones(3)))
    assert mine.commit([server.endpoint]).versions == {server.endpoint: 1}
    mine.close()


def test_garbage_of_a_stranger_changes_nothing(server: GrpcServer) -> None:
    with grpc.insecure_channel(server.endpoint) as channel, no_failures():
        for method in ("SendVariable", "GetVariable", "GetVariableNoBarrier", "PrefetchVariable", "CheckpointNotify"):
            for data in (b"", b"\xff" * 40, b"\x0a\x7f", b"\x0a\x02\xff\xfe"):
                with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT"):
                    channel.unary_unary(f"/{wire.SERVICE}/{method}")(data, timeout=10)
    port = port_to(server, w=(3,))
    port.stage(Gradient(server.endpoint, "w@GRAD", np.ones(3)))
    assert port.commit([server.endpoint]).versions == {server.endpoint: 1}
    port.close()


def test_a_port_that_trains_nobody_is_waited_for_by_nobody(server: GrpcServer) -> None:
    """It only reads, or belongs to a startup program that does not say whose it is."""
    port = fluid_port.fluid_port(trainer=-2, sync=True, patience=Patience(connect=5.0))
    port.declare({server.endpoint: [Declared("w", Use.DENSE, "float64", (3,))]})
    np.testing.assert_array_equal(port.pull([DenseRequest(server.endpoint, "w")]), [np.zeros(3)])
    port.complete()
    mine = port_to(server, w=(3,))
    np.testing.assert_array_equal(mine.pull([DenseRequest(server.endpoint, "w")]), [np.zeros(3)])
    mine.stage(Gradient(server.endpoint, "w@GRAD", np.ones(3)))
    assert mine.commit([server.endpoint]).versions == {server.endpoint: 1}
    mine.close()
