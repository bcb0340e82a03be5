"""Transfers: arrays in, messages, arrays out; what is malformed is refused; stock protobuf clients understand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidlite.dtypes import Array
from fluidlite.errors import LeaseLostError, PeerLostError, RequestRefusedError, ServerFailedError, StaleError
from fluidlite.proto_gen import pserver_pb2 as pb
from fluidlite.protocol import encode
from fluidlite.protocol.messages import (
    CommitReply,
    Declared,
    DenseRequest,
    Gradient,
    Identity,
    PullReply,
    Push,
    Registration,
    RowRequest,
    StepHeader,
    TableRequest,
    Use,
    Welcome,
)
from fluidlite.protocol.packet import Packet, Payload
from fluidlite.rpc.wire import CHUNK, messages_of, transfers_of
from fluidlite.values.selected_rows import SelectedRows

WHO = Identity("job", 1, 1 << 60)
DTYPES = ["float32", "float64", "int64", "int32", "uint8", "bool", "float16"]


def through(packet: Packet, chunk: int = CHUNK) -> tuple[bytes, Payload]:
    (transfer,) = transfers_of(list(messages_of(packet, chunk)))
    return transfer


def same(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def rows(ids: list[int], width: int, dtype: str = "float32") -> SelectedRows:
    value = np.arange(len(ids) * width).reshape(len(ids), width).astype(dtype)
    return SelectedRows(np.array(ids, np.int64), value, 100)


@given(
    shapes=st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), max_size=6),
    chunk=st.integers(1, 200),
)
def test_any_arrays_pass_through_chunks_of_any_size(shapes: list[tuple[str, list[int]]], chunk: int) -> None:
    arrays = [np.arange(int(np.prod(shape))).reshape(shape).astype(dtype) for dtype, shape in shapes]
    header, payload = through(encode.encode_pull_reply(PullReply(7, tuple(arrays))), chunk)
    reply = encode.decode_pull_reply(header, payload)
    assert reply.version == 7
    assert all(same(a, b) for a, b in zip(arrays, reply.values, strict=True))
    assert all(value.flags.aligned for value in reply.values)


def test_layout_does_not_matter() -> None:
    base = np.arange(24.0).reshape(4, 6)
    for array in (base.T, base[::2, 1:4], base.astype(">f8"), np.float64(3.0).reshape(())):
        (value,) = encode.decode_pull_reply(*through(encode.encode_pull_reply(PullReply(0, (array,))))).values
        np.testing.assert_array_equal(value, array)
        assert value.shape == array.shape


def test_requests_keep_their_order_and_kind() -> None:
    ids = np.array([-1, 0, 1 << 62, np.iinfo(np.int64).min], np.int64)
    requests = [
        DenseRequest("e", "w"),
        RowRequest("e", "emb", ids, 4, "float32", read_only=True),
        TableRequest("e", "emb"),
        RowRequest("e", "emb", ids[:0], 4, "float64"),
    ]
    who, back = encode.decode_pull(*through(encode.encode_pull(WHO, requests)), "e")
    assert who == WHO
    assert [type(r) for r in back] == [type(r) for r in requests]
    assert same(back[1].ids, ids)
    assert back[1].read_only
    assert not back[3].read_only
    assert (back[3].width, back[3].dtype, len(back[3].ids)) == (4, "float64", 0)


@pytest.mark.parametrize("decided", [True, False])
def test_a_step_in_one_transfer_or_in_many(decided: bool) -> None:
    header = StepHeader(WHO, 3, 4, 5, 3, learning_rate=0.0, steps=2)
    gradients = [
        Gradient("e", "w@GRAD", np.ones((2, 3))),
        Gradient("e", "emb@GRAD", rows([5, 5, -9], 2).value, np.array([5, 5, -9]), 100),
        Gradient("e", "empty@GRAD", np.zeros((0, 8), np.float32), np.zeros(0, np.int64), 100),
    ]
    came = encode.OpenStep("e").add(*through(encode.encode_push(Push(header, gradients, ["w"], decided)), 16))
    assert isinstance(came, Push)
    parts = came.gradients
    assert (came.header, came.wanted, came.decided) == (header, ["w"], decided)
    assert [(p.name, p.height) for p in parts] == [(g.name, g.height) for g in gradients]
    assert all(same(p.value, g.value) for p, g in zip(parts, gradients, strict=True))
    assert parts[0].rows is None
    assert same(parts[2].rows, gradients[2].rows)

    step = encode.OpenStep("e")
    start = pb.PushRequestHeader(start=pb.Start(identity=encode.encode_identity(WHO), sequence=1))
    late, early = pb.PushRequestHeader(), pb.PushRequestHeader()
    late.parts.add(number=1, name="b", value=pb.Value(array=pb.Array(dtype=5, shape=[1])))
    early.parts.add(number=0, name="a", value=pb.Value(array=pb.Array(dtype=5, shape=[2])))
    assert step.add(start.SerializeToString(), Payload(b"")) is None
    assert step.add(late.SerializeToString(), Payload(bytes(8))) is None
    assert step.add(early.SerializeToString(), Payload(bytes(8))) is None
    whole = step.add(pb.PushRequestHeader(commit=pb.Commit(parts=2)).SerializeToString(), Payload(b""))
    assert isinstance(whole, Push)
    assert [part.name for part in whole.gradients] == ["a", "b"]


@pytest.mark.parametrize("parts", [[0, 0], [0, 2], [0], [0, 1, 2]])
def test_C42_parts_that_do_not_match_the_commit_are_refused(parts: list[int]) -> None:
    message = pb.PushRequestHeader(start=pb.Start(), commit=pb.Commit(parts=2))
    for number in parts:
        message.parts.add(number=number, name=f"g{number}", value=pb.Value(array=pb.Array(dtype=5, shape=[0])))
    with pytest.raises(RequestRefusedError, match="push"):
        encode.OpenStep("e").add(message.SerializeToString(), Payload(b""))


def test_replies_and_assignments() -> None:
    reply = encode.decode_commit_reply(
        *through(encode.encode_commit_reply(CommitReply(9, {"w": np.ones(3), "b": np.zeros((0, 2))})))
    )
    assert reply.version == 9
    assert list(reply.dense) == ["w", "b"]
    who, name, value = encode.decode_assign(*through(encode.encode_assign(WHO, "emb", rows([1, 2], 3))))
    assert (who, name, value.height) == (WHO, "emb", 100)
    assert same(value.value, rows([1, 2], 3).value)
    registration = Registration(WHO, 2, (Declared("emb", Use.ROWS, "float64", (4,)),))
    assert encode.decode_registration(encode.encode_registration(registration)) == registration
    welcome = Welcome(1, 2, 3, True, 30.0, 7)
    assert encode.decode_welcome(encode.encode_welcome(welcome)) == welcome


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RequestRefusedError("a"), RequestRefusedError),
        (StaleError("a"), StaleError),
        (LeaseLostError("a"), LeaseLostError),
        (PeerLostError("a"), PeerLostError),
        (ServerFailedError("a"), ServerFailedError),
        (ZeroDivisionError("a"), ServerFailedError),
    ],
)
def test_errors_come_back_as_what_they_were(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="a") as caught:
        encode.check_outcome(encode.outcome_of(error))
    assert type(caught.value) is kind


def test_stock_protobuf_reads_what_we_write_and_writes_what_we_read() -> None:
    ids = np.arange(5)
    (data,) = messages_of(encode.encode_pull(WHO, [RowRequest("e", "emb", ids, 4, "float32")]))
    message = pb.PullRequest.FromString(data)
    assert message.header.items[0].rows.table == "emb"
    assert message.payload == ids.tobytes()
    message.ClearField("pad")
    (transfer,) = transfers_of([message.SerializeToString()])
    assert same(encode.decode_pull(*transfer, "e")[1][0].ids, ids)


def test_M03_no_message_holds_more_than_a_chunk() -> None:
    array = np.arange(5 * CHUNK // 8 + 3)
    messages = list(messages_of(encode.encode_pull_reply(PullReply(0, (array, array[:5])))))
    assert len(messages) == 6
    assert max(map(len, messages)) <= CHUNK + 64
    value, tail = encode.decode_pull_reply(*next(transfers_of(messages))).values
    assert same(value, array)
    assert same(tail, array[:5])


def test_several_transfers_on_one_stream() -> None:
    packets = [encode.encode_pull_reply(PullReply(n, (np.arange(n),))) for n in (0, 40, 3)]
    stream = [message for packet in packets for message in messages_of(packet, 16)]
    assert [encode.decode_pull_reply(*t).version for t in transfers_of(stream)] == [0, 40, 3]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (pb.PullReply(payload=b"abc").SerializeToString(), "header"),
        (pb.PullReply(header=pb.PullReplyHeader(), size=1 << 63, payload=b"abc").SerializeToString(), "payload of"),
        (pb.PullReply(header=pb.PullReplyHeader(), size=5, payload=b"abc").SerializeToString(), "3 of 5"),
        (pb.PullReply(header=pb.PullReplyHeader(), size=2, payload=b"abc").SerializeToString(), "more than"),
        (b"\x0a\x7f", "ends outside"),
        (b"\x0b", "wire type"),
        (b"\xff" * 11, "ten bytes"),
    ],
)
def test_malformed_messages_name_their_fault(message: bytes, text: str) -> None:
    with pytest.raises(RequestRefusedError, match=text):
        list(transfers_of([message]))


@pytest.mark.parametrize("shape", [[1 << 40, 1 << 40], [-1], [3], [0] * 100])
def test_a_shape_that_lies_allocates_nothing(shape: list[int]) -> None:
    with pytest.raises(RequestRefusedError, match="malformed array"):
        Payload(bytes(8)).take(pb.Array(dtype=5, shape=shape))


def test_ids_of_the_wrong_kind_are_refused() -> None:
    bad = pb.Value(array=pb.Array(dtype=5, shape=[2, 1]), rows=pb.Array(dtype=5, shape=[2]))
    with pytest.raises(RequestRefusedError, match="int64"):
        Payload(bytes(16)).take_value(bad)
    uneven = pb.Value(array=pb.Array(dtype=5, shape=[1, 2]), rows=pb.Array(dtype=3, shape=[2]))
    with pytest.raises(RequestRefusedError, match="2 ids"):
        Payload(bytes(32)).take_value(uneven)
