"""Fluid's own wire, against recorded exchanges of a job of Fluid 1.8.5 (two trainers, two servers), and message by message."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidlite.core import edit
from fluidlite.core.ir import Attr, AttrType
from fluidlite.errors import (
    PeerLostError,
    RequestRefusedError,
    ServerFailedError,
)
from fluidlite.ops.keeping import Keeping
from fluidlite.ports import job_id, make_process_service
from fluidlite.proto_gen import fluid_pb2 as pb
from fluidlite.pserver.host import Host, make_service
from fluidlite.pserver.keeper import Keeper
from fluidlite.pserver.service import IN_PROCESS, PServer
from fluidlite.rpc import fluid_message as wire
from fluidlite.rpc import fluid_port
from fluidlite.rpc.fluid_server import FluidHandlers
from fluidlite.rpc.fluid_session import FluidSession
from fluidlite.values.selected_rows import SelectedRows
from tests.byte_faults import damaged, messages, refused_or_read
from tests.fluid_wire_replay import CLOSE, KINDS, FluidServers, fresh, our_server, recorded, replies_to_trainers
from tests.oracle import wire_job
from tests.pserver_program import pserver_program

VOID = pb.VariableMessage()


# Against what real processes of Fluid said


@pytest.mark.parametrize("kind", KINDS)
def test_our_server_answers_trainers_of_fluid_as_its_own_did(kind: str) -> None:
    job = recorded(kind)
    for index in range(len(job.endpoints)):
        service, handlers = our_server(job, index)
        mine = [each for each in job.exchanges if each.server == index]
        replies = replies_to_trainers(handlers, mine)
        assert len(replies) == len(mine) > 20
        for exchange, reply in replies:
            theirs, ours = wire.parse(exchange.reply), wire.parse(reply)
            assert (ours.varname, list(ours.dims), ours.type) == (theirs.varname, list(theirs.dims), theirs.type)
            if theirs.dims:
                np.testing.assert_allclose(wire.value_of(ours), wire.value_of(theirs), **CLOSE)
        assert service.poll(0.0), "all trainers are done, so the server ends"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trainer", [0, 1])
def test_our_trainer_asks_servers_of_fluid_what_its_own_did(
    kind: str, trainer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = recorded(kind)
    servers = FluidServers(job, trainer)
    monkeypatch.setattr(fluid_port, "FluidGrpcChannel", servers.channel)
    with fresh():
        losses = wire_job.train(trainer, ",".join(job.endpoints), job.trainers, kind, len(job.losses[trainer]))
    np.testing.assert_allclose(losses, job.losses[trainer], rtol=1e-5)
    assert not servers.left, "every request of theirs was one of ours, and none was left over"


def test_the_records_hold_what_is_special() -> None:
    asked = [wire.parse(each.request) for kind in KINDS for each in recorded(kind).exchanges]
    names = {message.varname for message in asked}
    assert {wire.BATCH_BARRIER, wire.FETCH_BARRIER, wire.COMPLETE, "fc_w.block1", "fc_w@GRAD.block0.trainer_1"} <= names
    assert {message.table_name for message in asked} == {"", "emb.block0", "emb.block1"}
    assert any(message.type == pb.SELECTED_ROWS and message.slr_height == 1024 for message in asked)


# Messages


ROWS = SelectedRows(np.array([2, 0, 2]), np.arange(6, dtype=np.float32).reshape(3, 2), 5)


@pytest.mark.parametrize("dtype", ["bool", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_a_tensor_travels_and_comes_back(dtype: str) -> None:
    value = np.arange(6).reshape(2, 3).astype(dtype)
    message = wire.parse(wire.message_of("x", value, trainer_id=3).SerializeToString())
    back = wire.value_of(message)
    assert isinstance(back, np.ndarray)
    assert (message.varname, message.trainer_id, back.dtype) == ("x", 3, value.dtype)
    np.testing.assert_array_equal(back, value)


def test_rows_travel_and_come_back() -> None:
    back = wire.value_of(wire.parse(wire.message_of("g", ROWS).SerializeToString()))
    assert isinstance(back, SelectedRows)
    assert back.height == 5
    np.testing.assert_array_equal(back.rows, ROWS.rows)
    np.testing.assert_array_equal(back.value, ROWS.value)


def test_values_may_come_behind_everything_else() -> None:
    """As the C++ of Fluid writes them: what is small first, then `serialized` (8), then `rows` (9)."""
    small = pb.VariableMessage(varname="g", type=pb.SELECTED_ROWS, data_type=5, dims=[3, 2], slr_height=5, trainer_id=1)
    data = small.SerializeToString() + b"\x42\x18" + ROWS.value.tobytes() + b"\x4a\x18" + ROWS.rows.tobytes()
    back = wire.value_of(wire.parse(data))
    assert isinstance(back, SelectedRows)
    np.testing.assert_array_equal(back.value, ROWS.value)


def test_what_is_no_number_of_theirs_is_refused() -> None:
    with pytest.raises(RequestRefusedError, match="'x' is uint8"):
        wire.message_of("x", np.zeros(1, np.uint8))


TENSOR = {"varname": "x", "data_type": 5, "dims": [2, 3], "serialized": bytes(24)}
LEVEL = pb.VariableMessage.LodData


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"data_type": 20}, "dtype number 20"),
        ({"dims": []}, "shape"),
        ({"dims": [-1, 3]}, "shape"),
        ({"dims": [0, 2**62], "serialized": b""}, "shape"),
        ({"dims": [1] * 10}, "shape"),
        ({"dims": [2**40, 2**40]}, "shape"),
        ({"dims": [2, 4]}, "24 bytes"),
        ({"serialized": bytes(23)}, "23 bytes"),
        ({"type": pb.NCCL_ID}, "kind 2"),
        ({"type": pb.SELECTED_ROWS, "rows": bytes(8)}, "8 bytes of row"),
        ({"type": pb.SELECTED_ROWS, "rows": bytes(48), "dims": [6]}, "need a matrix"),
        ({"type": pb.SELECTED_ROWS, "rows": bytes(16), "slr_height": -1}, "-1 rows"),
        ({"lod": [LEVEL(lod_data=[0, 1])]}, "no LoD of 2 rows"),
        ({"lod": [LEVEL(lod_data=[0, 2, 1, 2])]}, "no LoD of 2 rows"),
        ({"lod": [LEVEL()]}, "no LoD of 2 rows"),
    ],
)
def test_a_message_that_contradicts_itself_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestRefusedError, match=text):
        wire.value_of(pb.VariableMessage(**{**TENSOR, **fields}))


SOME = [wire.message_of("g", ROWS).SerializeToString(), pb.VariableMessage(**TENSOR).SerializeToString()]
SPECIAL = {
    "varname": [
        "w@GRAD",
        "w",
        "emb@GRAD",
        wire.BATCH_BARRIER,
        wire.FETCH_BARRIER,
        wire.SAVE,
        "x" + wire.WITHOUT_BARRIER,
    ],
    "table_name": ["", "emb", "v.block0", "w"],
    "data_type": [0, 3, 5, 6, 99],
    "dims": [0, 1, 2, 3, -1, 2**40, 2**62],
    "trainer_id": [0, 1, -1],
}


@given(damaged(*SOME) | st.binary(max_size=40))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    refused_or_read(lambda: wire.value_of(wire.parse(data)))


# A server of ours, message by message


class Job:
    """The server of tests/pserver_program.py, as its trainers by Fluid's wire see it."""

    def __init__(self, trainers: int = 2, sync: bool = True, **attrs: Any) -> None:
        self.service: PServer = make_service(Host(*pserver_program(sync=sync, trainers=trainers, **attrs)), IN_PROCESS)
        self.handlers = FluidHandlers(FluidSession(self.service, "here", trainers, "job"))
        self._threads = ThreadPoolExecutor(8)

    def ask(self, method: str, trainer: int = 0, value: Any = None, **fields: Any) -> Any:
        """The answer of a method, to a trainer with a connection of its own."""
        message = pb.VariableMessage(**fields) if value is None else wire.message_of(value=value, **fields)
        if trainer:
            message.trainer_id = trainer
        reply = self.handlers.table()[method](message.SerializeToString(), f"of {trainer}")
        return wire.value_of(wire.parse(reply)) if reply else None

    def later(self, *arguments: Any, **fields: Any) -> Any:
        """`ask` in a thread of its own."""
        return self._threads.submit(self.ask, *arguments, **fields)

    def fetched(self, trainer: int) -> None:
        self.ask("GetVariable", trainer, varname=wire.FETCH_BARRIER)

    def sent(self, trainer: int) -> None:
        self.ask("SendVariable", trainer, varname=wire.BATCH_BARRIER)

    def done(self, trainer: int) -> None:
        self.ask("SendVariable", trainer, varname=wire.COMPLETE)

    def begin(self, trainers: int = 2) -> None:
        """All have their first parameters."""
        for trainer in range(trainers):
            self.fetched(trainer)

    def give(self, trainer: int, value: float, name: str = "w@GRAD") -> None:
        self.ask("SendVariable", trainer, np.full(3, value), name=f"{name}.trainer_{trainer}")


def test_a_round_is_the_mean_of_all() -> None:
    job = Job()
    job.begin()
    job.give(0, 1.0)
    job.give(1, 3.0)
    waiting = job.later("GetVariable", 0, varname="w", out_varname="anything")
    job.sent(0)
    assert not waiting.done()
    job.sent(1)
    np.testing.assert_array_equal(waiting.result(10), np.full(3, -2.0))  # rate 2, halved; mean 2
    np.testing.assert_array_equal(job.ask("GetVariable", 1, varname="w"), np.full(3, -2.0))


def test_a_gradient_that_comes_twice_counts_once() -> None:
    job = Job(trainers=1)
    job.begin(1)
    job.give(0, 5.0)
    job.ask("SendVariable", 0, np.full(3, 1.0), name="w@GRAD")  # one trainer has no suffix in Fluid before 1.7
    job.sent(0)
    np.testing.assert_array_equal(job.ask("GetVariable", varname="w"), np.full(3, -1.0))


def test_gradients_wait_until_all_have_their_parameters() -> None:
    job = Job()
    job.fetched(0)
    early = job.later("SendVariable", 0, np.ones(3), name="w@GRAD.trainer_0")
    np.testing.assert_array_equal(job.ask("GetVariable", 1, varname="w"), np.zeros(3))
    assert not early.done()
    job.fetched(1)
    early.result(10)


def test_rows_are_fetched_at_any_time() -> None:
    job = Job()
    ids = np.array([[3], [1]])
    rows = job.ask("PrefetchVariable", value=ids, name="prefetch_send@here", table_name="v.block0", out_varname="out")
    np.testing.assert_array_equal(rows, [[6.0, 7.0], [2.0, 3.0]])
    made = job.ask("PrefetchVariable", value=ids, name="ids", table_name="emb")
    np.testing.assert_array_equal(made, np.ones((2, 2)))


def test_rows_of_a_parameter_without_lookups() -> None:
    job = Job(prefetch_var_name_to_block_id=[])
    rows = job.ask("PrefetchVariable", value=np.array([[2]]), name="ids", table_name="v.block0")
    np.testing.assert_array_equal(rows, [[4.0, 5.0]])
    with pytest.raises(RequestRefusedError, match="id 4 is outside"):
        job.ask("PrefetchVariable", value=np.array([[4]]), name="ids", table_name="v.block0")


def test_a_variable_as_it_is() -> None:
    job = Job()
    job.begin()  # open for gradients
    np.testing.assert_array_equal(
        job.ask("GetVariableNoBarrier", varname="w" + wire.WITHOUT_BARRIER, out_varname="w"), np.zeros(3)
    )


def test_who_is_done_is_not_waited_for() -> None:
    job = Job()
    job.begin()
    job.give(0, 1.0)
    job.sent(0)
    job.done(1)
    np.testing.assert_array_equal(job.ask("GetVariable", varname="w"), np.full(3, -1.0))
    job.fetched(0)
    job.done(0)
    assert job.service.poll(0.0)


def test_who_leaves_after_its_barrier_takes_the_barrier_along() -> None:
    """Fluid's server counts it for one of those that remain, which then fetch in vain."""
    job = Job()
    job.fetched(0)
    job.done(0)
    np.testing.assert_array_equal(job.ask("GetVariable", 1, varname="w"), np.zeros(3))
    job.fetched(1)
    job.give(1, 1.0)
    job.sent(1)
    np.testing.assert_array_equal(job.ask("GetVariable", 1, varname="w"), np.full(3, -1.0))


def test_trainer_0_may_be_done_first() -> None:
    """What does not say who asks is not taken for its question."""
    job = Job()
    job.begin()
    job.done(0)
    now = job.ask("GetVariableNoBarrier", varname="w" + wire.WITHOUT_BARRIER)
    np.testing.assert_array_equal(now, np.zeros(3))
    rows = job.ask("PrefetchVariable", value=np.array([[1]]), name="ids", table_name="v.block0")
    np.testing.assert_array_equal(rows, [[2.0, 3.0]])
    with pytest.raises(RequestRefusedError, match="trainer 0 is done"):
        job.ask("GetVariable", 0, varname="w")


def test_trainers_before_1_5_do_not_say_who_is_done() -> None:
    job = Job()
    job.done(0)
    job.done(0)
    assert job.service.poll(0.0)
    with pytest.raises(PeerLostError, match="all trainers are done"):
        job.ask("GetVariable", varname="w")


def test_on_arrival_a_step_ends_when_its_trainer_asks() -> None:
    job = Job(sync=False)
    job.ask("SendVariable", 1, np.ones(3), name="w@GRAD")
    np.testing.assert_array_equal(job.ask("GetVariable", 0, varname="w"), np.zeros(3))
    np.testing.assert_array_equal(job.ask("GetVariable", 1, varname="w"), np.full(3, -1.0))
    job.ask("SendVariable", 1, np.ones(3), name="w@GRAD")
    job.sent(1)  # of no meaning
    job.ask("SendVariable", 1, np.ones(3), name="w@GRAD")
    assert float(job.ask("GetVariable", 0, varname="w")[0]) < -1.0, "a name that comes again begins the next step"
    before = float(job.ask("GetVariable", 0, varname="w")[0])
    job.done(1)
    assert float(job.ask("GetVariable", 0, varname="w")[0]) < before, "who is done leaves nothing behind"
    assert job.ask("DistributeNotify", 0, np.array([1]), name="@LR_DECAY_COUNTER@.trainer_0") is None


@pytest.mark.parametrize(
    ("method", "fields", "text"),
    [
        ("SendVariable", {"value": np.ones(2), "name": "w@GRAD.trainer_0"}, "shape \\[2\\]"),
        ("SendVariable", {"value": np.ones(3), "name": "x@GRAD.trainer_0"}, "unknown gradient 'x@GRAD'"),
        ("SendVariable", {"value": np.ones(3), "name": "w@GRAD.trainer_2"}, "trainer 2 is none of them"),
        ("SendVariable", {"varname": "TERMINATE@RECV", "data_type": 5, "dims": [0]}, "unknown gradient"),
        ("GetVariable", {"varname": "x"}, "unknown variable 'x'"),
        ("GetVariable", {"varname": "emb"}, "not an array"),
        ("PrefetchVariable", {"value": np.ones((1, 1)), "name": "ids", "table_name": "emb"}, "must be int64"),
        ("PrefetchVariable", {"value": np.ones((1, 1), np.int64), "name": "ids"}, "names no table"),
        ("PrefetchVariable", {"value": np.ones((1, 1), np.int64), "name": "i", "table_name": "t"}, "unknown variable"),
        ("PrefetchVariable", {"value": np.array([[9]]), "name": "ids", "table_name": "v.block0"}, "9"),
        ("CheckpointNotify", {"varname": wire.SAVE, "out_varname": "/tmp/x"}, "checkpoint"),
        ("CheckpointNotify", {"varname": "LOAD@CHECKPOINTNOTIFY"}, "load none"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_lost(method: str, fields: dict[str, Any], text: str) -> None:
    job = Job()
    with pytest.raises(RequestRefusedError, match=text):
        job.ask(method, 0, **fields)
    job.begin()
    for trainer in range(2):
        job.give(trainer, 1.0)
        job.sent(trainer)
    np.testing.assert_array_equal(job.ask("GetVariable", varname="w"), np.full(3, -1.0))


def test_after_a_step_that_failed_nobody_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    job.begin()
    job.give(0, 1.0)

    def fails(push: Any) -> Any:
        raise ServerFailedError("no room")

    monkeypatch.setattr(job.service, "commit", fails)
    job.sent(0)
    waiting = job.later("GetVariable", 0, varname="w")
    with pytest.raises(ServerFailedError, match="no room"):
        job.sent(1)
    with pytest.raises(ServerFailedError, match="no room"):
        waiting.result(10)


def test_who_waits_hears_that_the_server_ends() -> None:
    job = Job()
    waiting = job.later("SendVariable", 0, np.ones(3), name="w@GRAD.trainer_0")
    job.fetched(0)
    job.service.stop("enough")
    with pytest.raises(PeerLostError, match="enough"):
        waiting.result(10)


def test_a_checkpoint_is_written_where_the_server_keeps_them(tmp_path: Path) -> None:
    host = Host(*pserver_program())
    keeper = Keeper(Keeping(checkpoint_dir=str(tmp_path)), 0, 1, host)
    service = make_service(host, IN_PROCESS, keeper=keeper)
    handlers = FluidHandlers(FluidSession(service, "here", 2, "job"))
    message = pb.VariableMessage(varname=wire.SAVE, out_varname="/somewhere/else", profile=1)
    assert handlers.checkpoint(message.SerializeToString(), "of 0") == b""
    service.close()
    assert list(tmp_path.iterdir())


@pytest.mark.parametrize(("spoken", "live"), [("fluid", (0, 1)), ("", ())])
def test_silence_is_no_sign_of_death_on_this_wire(
    spoken: str, live: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLUIDLITE_LEASE_SECONDS", "0")
    program, listen, scope = pserver_program()
    edit.set_attr(program, listen, "wire", Attr(AttrType.STRING, spoken))
    service = make_process_service(listen, Host(program, listen, scope))
    handlers = FluidHandlers(FluidSession(service, "here", 2, job_id()))
    handlers.get_now(pb.VariableMessage(varname="w").SerializeToString(), "of 0")
    service.poll(0.0)
    assert service.live == live


@settings(max_examples=60)
@given(
    messages(pb.VariableMessage, SPECIAL), st.sampled_from(["PrefetchVariable", "GetVariableNoBarrier", "SendVariable"])
)
def test_any_message_is_refused_or_answered(message: pb.VariableMessage, method: str) -> None:
    job = Job(sync=False)
    refused_or_read(lambda: job.handlers.table()[method](message.SerializeToString(), "of 0"))
