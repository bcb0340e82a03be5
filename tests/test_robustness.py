"""What users, files and strangers do wrong: each is refused by name, and nobody else notices."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import ports
from fluidlite.core import dataflow, edit, serde
from fluidlite.core.ir import Attr, AttrType, Block, Operator, Program, Variable
from fluidlite.core.verify import MAX_DEPTH, verify
from fluidlite.dtypes import VarKind, exact_array
from fluidlite.errors import (
    DtypeError,
    FeedError,
    FluidliteError,
    LeaseLostError,
    PeerLostError,
    ProgramError,
    RequestRefusedError,
    ShapeError,
    TranspileError,
    UnreachableError,
    UnwritableFileError,
)
from fluidlite.ops import registry
from fluidlite.proto_gen import pserver_pb2 as pb
from fluidlite.protocol.messages import Gradient, Identity, Push, Registration, StepHeader
from fluidlite.pserver.members import Members
from fluidlite.pserver.service import PServer, ServiceOptions
from fluidlite.rpc.options import method
from fluidlite.rpc.port import TrainerPort
from fluidlite.rpc.retry import Patience
from fluidlite.values import files
from tests.fake_cluster import TRANSPORTS, DictStore, FakeCluster
from tests.frontend import fresh_programs

# --- what is fed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ([2**63, 2, 3], "int64", [-(2**63), 2, 3]),
        ([2**64 - 1], "int64", [-1]),
        (np.array([2**64 - 1], ">u8"), "int64", [-1]),
        ([1.0, -2.0], "int64", [1, -2]),
        ([[True], [False]], "int64", [[1], [0]]),
        ([], "int64", []),
        ([2**70, float("inf")], "float32", [float(2**70), float("inf")]),
    ],
)
def test_numbers_become_an_array_that_holds_them(value: Any, dtype: str, expected: Any) -> None:
    array = exact_array(value, dtype)
    assert (array.dtype, array.tolist()) == (np.dtype(dtype), expected)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1.5], "int64"),
        ([2**63, -2], "int64"),
        ([2**63, 1.5], "int64"),
        ([2**64], "int64"),
        ([float("nan")], "int64"),
        (["1"], "int64"),
        (["1.5"], "float32"),
        ([None], "float32"),
        ({"a": 1}, "float32"),
        ([1e300], "float32"),
        ([300], "uint8"),
        (np.array([70000]), "int16"),
        ([2], "bool"),
        ([[1, 2], [3]], "int64"),
    ],
)
def test_what_a_dtype_cannot_hold_is_refused(value: Any, dtype: str) -> None:
    with pytest.raises(DtypeError, match=f"no array of {dtype}"):
        exact_array(value, dtype)


def test_an_array_may_be_stored_either_way() -> None:
    with fresh_programs():
        doubled = fluid.layers.scale(fluid.data("x", [None, 2], "float64"), 2.0)
        stored = [
            np.arange(6.0).reshape(3, 2),
            np.arange(6).reshape(3, 2).astype(">f8"),
            np.asfortranarray(np.arange(6.0).reshape(3, 2)),
        ]
        stored.append(np.arange(24.0).reshape(3, 8)[:, ::4] / np.array([[1, 1]]) - np.array([[0, 3], [6, 9], [12, 15]]))
        for array in stored:
            array.setflags(write=False)
            np.testing.assert_array_equal(
                fluid.Executor().run(feed={"x": array}, fetch_list=doubled)[0], np.arange(0.0, 12.0, 2.0).reshape(3, 2)
            )


@pytest.mark.parametrize(
    ("lod", "error"),
    [
        (None, FeedError),
        ((0, 3), ShapeError),
        (((0, 1.5, 3),), ShapeError),
        ((("0", "3"),), ShapeError),
        (((),), ShapeError),
        (((0, 2, 1, 3),), ShapeError),
        (((0, 4),), ShapeError),
        (((-1, 3),), ShapeError),
    ],
)
def test_a_corrupt_lod_is_refused(lod: Any, error: type[Exception]) -> None:
    with fresh_programs():
        pooled = fluid.layers.sequence_pool(fluid.layers.data("x", [1], dtype="float32", lod_level=1), "sum")
        tensor = fluid.LoDTensor(np.ones((3, 1), np.float32), lod)
        with pytest.raises(error, match="'x'"):
            fluid.Executor().run(feed={"x": tensor}, fetch_list=pooled)


def test_lengths_and_offsets_are_whole_numbers() -> None:
    tensor = fluid.LoDTensor()
    for wrong in ([[2.5, 0.5]], [["3"]], None, [3]):
        with pytest.raises(ShapeError, match="whole numbers"):
            tensor.set_recursive_sequence_lengths(wrong)
        with pytest.raises(ShapeError, match="whole numbers"):
            tensor.set_lod(wrong)
    with pytest.raises(ShapeError, match="ends at 18446744073709551616"):
        fluid.create_lod_tensor(np.ones((3, 1)), [[2**63, 2**63]])
    with pytest.raises(DtypeError, match="fractions"):
        fluid.create_lod_tensor([[1.5]], [[1]])


def test_fetching_a_number_is_refused_by_name() -> None:
    with fresh_programs(), pytest.raises(ProgramError, match="not int"):
        fluid.Executor().run(fetch_list=5)


# --- who owns an array ----------------------------------------------------------------------------------------------


def model() -> fluid.Variable:
    """A loss whose parameter ``w`` loses 1 in every step of sgd."""
    x = fluid.data("x", [None, 1], "float32")
    loss = fluid.layers.reduce_sum(fluid.layers.fc(x, 1, param_attr="w", bias_attr=False))
    fluid.optimizer.SGD(1.0).minimize(loss)
    return loss


ONE = np.ones((1, 1), np.float32)


@pytest.fixture
def scope() -> Iterator[fluid.Scope]:
    made = fluid.Scope()
    with fresh_programs(), fluid.scope_guard(made):
        yield made


def test_a_fed_parameter_is_the_users_array_and_stays_as_it_is(scope: fluid.Scope) -> None:
    model()
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    mine = np.full((1, 1), 5.0, np.float32)
    for array in (mine, fluid.LoDTensor(mine)):
        (fetched,) = exe.run(feed={"x": ONE, "w": array}, fetch_list=["w"])
        assert (mine[0, 0], fetched[0, 0], scope.get("w")[0, 0]) == (5.0, 4.0, 4.0)


@pytest.mark.parametrize("type", ["reshape", "sum", "assign"])
def test_a_copy_made_by_another_program_does_not_follow_the_parameter(scope: fluid.Scope, type: str) -> None:
    model()
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": ONE})
    before = scope.get("w").item()
    copying = fluid.Program()
    block = copying.global_block()
    w, kept = (block.create_var(name=name, shape=[1, 1], dtype="float32", persistable=True) for name in ("w", "kept"))
    x = [w] if type != "assign" else w
    block.append_op(type, inputs={"X": x}, outputs={"Out": kept}, attrs={"shape": [1, 1]} if type == "reshape" else {})
    exe.run(copying)
    exe.run(feed={"x": ONE})
    assert scope.get("w").item() == pytest.approx(before - 1.0)
    assert scope.get("kept").item() == before


# --- programs made to exhaust ---------------------------------------------------------------------------------------


def run_block(index: int) -> Operator:
    attrs = {"sub_block": Attr(AttrType.BLOCK, index), "is_scalar_condition": Attr(AttrType.BOOLEAN, value=True)}
    return Operator("conditional_block", {"Cond": ["c"]}, {"Scope": ["s"]}, attrs)


def nested(depth: int, times: int) -> Program:
    """``depth`` blocks, each run by the one before, ``times`` times."""
    program = Program(blocks=[Block(index, index - 1) for index in range(depth)])
    edit.add_var(program, program.root, Variable("c", dtype="bool", shape=(1,), persistable=True))
    edit.add_var(program, program.root, Variable("s", kind=VarKind.STEP_SCOPES))
    for index in range(1, depth):
        program.blocks[index - 1].ops += [run_block(index) for _ in range(times)]
    return program


def test_blocks_that_are_named_many_times_are_looked_at_once() -> None:
    program = nested(MAX_DEPTH, times=3)
    verify(program, registry.find)
    op = program.root.ops[0]
    assert dataflow.effects(op, registry.find, program.blocks).reads == ("c",)


def test_nesting_has_a_limit_and_finding_it_has_none() -> None:
    deep = nested(5000, times=1)
    with pytest.raises(ProgramError, match=f"block 4999 lies 5000 deep; {MAX_DEPTH} is the most"):
        verify(deep, registry.find)
    flat = nested(100, times=1)
    for block in flat.blocks[1:]:
        block.parent = 0
    with pytest.raises(ProgramError, match="block 99 lies 100 deep"):
        verify(flat, registry.find)
    assert dataflow.effects(deep.root.ops[0], registry.find, deep.blocks).reads == ("c",)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"trainer_id": "0"}, "trainer_id must be from 0 to 0"),
        ({"pservers": "127.0.0.1:99999"}, "is no endpoint"),
    ],
)
def test_a_job_that_cannot_be_is_refused(wrong: dict[str, Any], reason: str) -> None:
    with fresh_programs() as (main, startup):
        model()
        job = {"trainer_id": 0, "program": main, "startup_program": startup, "pservers": "127.0.0.1:1", **wrong}
        with pytest.raises(TranspileError, match=reason):
            fluid.DistributeTranspiler().transpile(**job)


@pytest.mark.parametrize("counts", [(0, 1), (1, 0)])
def test_a_cluster_of_nobody_is_refused(counts: tuple[int, int]) -> None:
    with fresh_programs() as (main, startup):
        model()
        with pytest.raises(FluidliteError, match="at least one pserver and one trainer"):
            fluid.LocalCluster(main, startup, *counts)


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_save_that_fails_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "w"
    files.save(path, {"w": np.ones(2)})
    with pytest.raises(ProgramError, match="'v' holds a object"):
        files.save(path, {"w": np.zeros(2), "v": object()})
    np.testing.assert_array_equal(files.load(path, "w"), np.ones(2))
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(UnwritableFileError, match=f"cannot write {path}/below"):
        files.save(path / "below", {"w": np.ones(2)})
    with pytest.raises(UnwritableFileError, match=f"cannot write {tmp_path}"):
        files.save(tmp_path, {"w": np.ones(2)})


@pytest.mark.parametrize("broken", ["argument", "column"])
def test_an_inference_model_whose_feeds_name_nothing_is_refused(
    scope: fluid.Scope, tmp_path: Path, broken: str
) -> None:
    x = fluid.data("x", [None, 1], "float32")
    exe = fluid.Executor()
    fluid.io.save_inference_model(tmp_path, ["x"], [fluid.layers.relu(x)], exe)
    path = tmp_path / "__model__"
    program = serde.from_bytes(path.read_bytes())
    feed = next(op for op in program.root.ops if op.type == "feed")
    if broken == "argument":
        feed.outputs.clear()
    else:
        feed.attrs["col"] = Attr(AttrType.STRING, "first")
    path.write_bytes(serde.to_bytes(program))
    with pytest.raises(ProgramError, match=f"{path}: a feed op names no variable"):
        fluid.io.load_inference_model(tmp_path, exe)


def test_a_table_is_no_tensor(scope: fluid.Scope) -> None:
    fluid.embedding(fluid.data("ids", [None], "int64"), [9, 2], is_sparse=True, is_distributed=True, param_attr="emb")
    fluid.Executor().run(fluid.default_startup_program())
    with pytest.raises(ProgramError, match="'emb' holds a SparseTable, not a tensor"):
        scope.find_var("emb").get_tensor()
    assert scope.var("new").get_tensor().shape() == [0]


# --- who comes to a server ------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def who(trainer: int, incarnation: int = 1, job: str = "job") -> Identity:
    return Identity(job, trainer, incarnation)


def test_only_who_registers_says_what_job_it_is() -> None:
    members = Members(2, 30.0, 2.0, Clock())
    with pytest.raises(LeaseLostError, match="not registered"):
        members.require(who(0, job="stranger"))
    members.register(who(0))
    with pytest.raises(RequestRefusedError, match="works for job 'job', not 'stranger'"):
        members.check_register(who(1, job="stranger"))


def test_a_server_that_knows_its_job_takes_no_other_first() -> None:
    server = PServer(DictStore(), trainers=1, sync=True, job="mine")
    with pytest.raises(RequestRefusedError, match="works for job 'mine', not 'job'"):
        server.register(Registration(who(0), 1))
    server.register(Registration(who(0, job="mine"), 1))


def test_a_trainer_that_never_comes_is_given_up_but_welcome(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    server = PServer(DictStore(), trainers=2, sync=True, options=ServiceOptions(arrival=100.0), clock=clock)
    clock.now += 1000
    assert not server.poll(0.0)
    server.register(Registration(who(0), 2))
    answer = server.commit(Push(StepHeader(who(0), 0, 0, 0, 1), [Gradient("e", "w", np.ones(3))], []))
    clock.now += 99
    server.heartbeat(who(0))
    server.poll(0.0)
    assert server.live == (0, 1)
    clock.now += 1
    server.heartbeat(who(0))
    server.poll(0.0)
    assert (server.live, answer().version) == ((0,), 1)
    server.register(Registration(who(1), 2))
    assert server.live == (0, 1)
    assert "trainer 1 is lost" in caplog.text


def test_a_server_says_whom_it_waits_for_also_when_nobody_asks(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    server = PServer(DictStore(), trainers=2, sync=False, clock=clock)
    server.register(Registration(who(0), 2))
    server.complete(who(0))
    clock.now += 10
    with caplog.at_level(logging.WARNING):
        assert not server.poll(0.0)
    assert "the end after version 0 waits for trainers 1 (never came)" in caplog.text


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_server_that_forgot_everything_is_found_out_whatever_its_version(transport: str) -> None:
    with FakeCluster(transport) as cluster:
        port = cluster.port()
        cluster.pull(port)
        service = cluster.services[0]
        service._history += 1
        service._members._members.clear()
        with pytest.raises(PeerLostError, match="lost its state"):
            cluster.pull(port)


# --- who goes to servers --------------------------------------------------------------------------------------------


class DeadChannel:
    """No answer ever comes."""

    def _fail(self, *args: Any) -> Any:
        raise UnreachableError("nobody there")

    register = pull = commit = complete = _fail

    def show_life(self, *args: Any) -> None: ...

    def close(self) -> None: ...

    @property
    def traffic(self) -> dict[str, Any]:
        return {}


def test_many_dead_servers_cost_no_more_time_than_one() -> None:
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.now += seconds

    patience = Patience(retry=10.0, clock=clock, sleep=sleep)
    port = TrainerPort(lambda endpoint: DeadChannel(), trainer=0, patience=patience)  # type: ignore[arg-type, return-value]
    endpoints = [f"s{index}:1" for index in range(20)]
    port.declare({endpoint: [] for endpoint in endpoints})
    for endpoint in endpoints:
        port._peers[endpoint].registered = True
    with pytest.raises(PeerLostError, match=r"commit at pserver s0:1: no answer, tried again for 10.0 s"):
        port.commit(endpoints)
    assert clock.now == pytest.approx(110.0)
    port.complete()
    assert clock.now == pytest.approx(110.0), "those that were given up are not waited for again"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_steps_of_several_threads_stay_whole(transport: str) -> None:
    """Each step sends its own number to two variables: were steps mixed, the variables would differ in between."""
    names = ("a", "b")
    threads, steps = 4, 25
    with FakeCluster(transport, sync=False, make_store=lambda: DictStore(a=np.zeros(1), b=np.zeros(1))) as cluster:
        sums = []
        apply = cluster.store.apply

        def recorded(given: Any, tick: bool) -> int:
            sums.append([gradient.value.item() for gradient in next(iter(given.values())).gradients])
            return apply(given, tick)

        cluster.store.apply = recorded  # type: ignore[method-assign]
        port = cluster.port()
        together = threading.Barrier(threads)

        def train(thread: int) -> None:
            for step in range(steps):
                for name in names:
                    port.stage(Gradient(cluster.endpoint, name, np.array([thread * 1000.0 + step])))
                    if step == 0:
                        together.wait(20)
                assert port.commit([cluster.endpoint]).versions, "waits for the reply"

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(train, range(threads)))
        assert sorted(map(tuple, sums)) == [(t * 1000.0 + s,) * 2 for t in range(threads) for s in range(steps)]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_thread_that_waits_for_other_trainers_holds_up_no_other_thread(transport: str) -> None:
    with FakeCluster(transport, trainers=2) as cluster:
        port = cluster.port(0)
        step = cluster.run(lambda: cluster.push(port))
        cluster.until_waiting(step)
        np.testing.assert_array_equal(cluster.run(lambda: cluster.pull(port)).result(20), np.zeros(3))
        cluster.push(cluster.port(1))
        assert step.result(20) == {cluster.endpoint: 1}


def receiving(endpoint: str) -> fluid.Program:
    """A program that fetches ``w`` of a server."""
    program = fluid.Program()
    w = program.global_block().create_var(name="w", shape=[3], dtype="float64")
    attrs = {"epmap": [endpoint], "varnames": ["w"], "trainer_id": 0, "trainers": 1}
    program.global_block().append_op("recv", outputs={"Out": [w]}, attrs=attrs)
    return program


def test_two_executors_of_a_process_are_one_trainer() -> None:
    with FakeCluster("grpc") as cluster:
        program = receiving(cluster.endpoint)
        train, test = fluid.Executor(), fluid.Executor()
        for exe in (train, test, train, test):
            np.testing.assert_array_equal(exe.run(program, fetch_list=["w"])[0], np.zeros(3))
        test.close()
        train.run(program, fetch_list=["w"])
        assert cluster.services[0].live == (0,)
        train.close()
        assert cluster.ended()


def test_executors_of_different_servers_are_not_one_trainer() -> None:
    with FakeCluster("grpc") as one, FakeCluster("grpc") as two:
        first, second = fluid.Executor(), fluid.Executor()
        first.run(receiving(one.endpoint))
        second.run(receiving(two.endpoint))
        second.close()
        assert two.ended()
        assert one.services[0].live == (0,)
        first.close()
        assert one.ended()


def test_a_pserver_process_works_for_the_job_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from fluidlite.rpc import server
    from tests.pserver_program import pserver_program

    monkeypatch.setenv("FLUIDLITE_JOB", "mine")
    served: list[PServer] = []
    monkeypatch.setattr(server, "serve", lambda service, endpoint, **options: served.append(service))
    ports.ProcessPorts().host.serve(*pserver_program(trainers=1, endpoint="127.0.0.1:0"))
    with pytest.raises(RequestRefusedError, match="works for job 'mine'"):
        served[0].register(Registration(who(0), 1))


def test_streams_that_strangers_leave_half_open_stop_nobody() -> None:
    with ExitStack() as stack, FakeCluster("grpc", sync=False) as cluster:
        go = threading.Event()
        stack.callback(go.set)
        start = pb.PushRequest(header=pb.PushRequestHeader(start=pb.Start(identity=pb.Identity(job="job"))))

        def half() -> Iterator[bytes]:
            yield start.SerializeToString()
            go.wait(60)

        calls = []
        for number in range(4):
            options = [("grpc.use_local_subchannel_pool", 1), ("stranger", number)]
            channel = stack.enter_context(grpc.insecure_channel(cluster.endpoint, options))
            calls += [channel.stream_stream(method("Push"))(half()) for _ in range(15)]
        for _ in range(5):
            cluster.push(cluster.port())
        assert cluster.store.version == 5
        assert all(call.is_active() for call in calls)
