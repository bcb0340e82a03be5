"""Whatever bytes come as a message, a reply or an entry of a log: a typed refusal or a value, and little memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from fluidlite.errors import RequestRefusedError, ServerFailedError
from fluidlite.proto_gen import pserver_pb2 as pb
from fluidlite.protocol import encode
from fluidlite.protocol.events import Assigned, Came, Decided, Lost, Stepped, decode_event, encode_event
from fluidlite.protocol.messages import (
    CommitReply,
    Decision,
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
from fluidlite.rpc.wire import Transfer, messages_of, transfers_of
from fluidlite.values.selected_rows import SelectedRows
from tests.byte_faults import damaged, messages, refused_or_read

WHO = Identity("job", 1, 1 << 60)
ROWS = SelectedRows(np.array([7, -1, 7]), np.ones((3, 2), np.float32), 9)
DENSE = Gradient("e", "w@GRAD", np.arange(6.0).reshape(2, 3))
SPARSE = Gradient("e", "emb@GRAD", ROWS.value, ROWS.rows, 9)
STEP = StepHeader(WHO, 4, 4, 3, 2, 0.5, 2)
#: parameters of messages that tests draw rather often
SPECIAL = {"dtype": [0, 1, 3, 4, 5, 6, 22, 99], "shape": [0, 1, 2, 3, -1, 2**20, 2**40, 2**62], "number": [0, 1, -1]}


def whole(packet: Packet) -> bytes:
    (message,) = messages_of(packet)
    return message


def reader(decode: Callable[[Transfer], Any]) -> Callable[[bytes], Any]:
    """Reads every transfer of a stream of one message."""
    return lambda data: [decode(transfer) for transfer in transfers_of([data])]


def read_push(transfer: Transfer) -> Any:
    return encode.OpenStep("e", lambda who, signature: ROWS.rows).add(*transfer)


#: verb -> (its message on the wire, what reads it, right ones)
VERBS: dict[str, tuple[type[Message], Callable[[bytes], Any], list[bytes]]] = {
    "Register": (
        pb.RegisterRequest,
        encode.decode_registration,
        [encode.encode_registration(Registration(WHO, 2, (Declared("emb", Use.ROWS, "float32", (2,)),)))],
    ),
    "Register's reply": (
        pb.RegisterReply,
        encode.decode_welcome,
        [encode.encode_welcome(Welcome(3, 4, 2, True, 30.0, 1 << 60, 5))],
    ),
    "Pull": (
        pb.PullRequest,
        reader(lambda transfer: encode.decode_pull(*transfer, "e")),
        [
            whole(encode.encode_pull(WHO, [DenseRequest("e", "w"), TableRequest("e", "emb")])),
            whole(
                encode.encode_pull(WHO, [RowRequest("e", "emb", ROWS.rows, 2, "float32", True, "float16", b"s" * 16)])
            ),
        ],
    ),
    "Pull's reply": (
        pb.PullReply,
        reader(lambda transfer: encode.decode_pull_reply(*transfer)),
        [whole(encode.encode_pull_reply(PullReply(3, (ROWS, DENSE.value))))],
    ),
    "Push": (
        pb.PushRequest,
        reader(read_push),
        [
            whole(encode.encode_push(Push(STEP, [DENSE, SPARSE], ["w"]))),
            whole(encode.encode_push(Push(STEP, [DENSE, SPARSE], ["w"], decided=False))),
            whole(encode.encode_part(STEP, 0, SPARSE)),
            whole(encode.encode_decision(Decision(WHO, 4, apply=True, wanted=("w",)))),
        ],
    ),
    "Push's reply": (
        pb.PushReply,
        reader(lambda transfer: encode.decode_commit_reply(*transfer)),
        [whole(encode.encode_commit_reply(CommitReply(4, {"w": DENSE.value})))],
    ),
    "Assign": (
        pb.AssignRequest,
        reader(lambda transfer: encode.decode_assign(*transfer)),
        [whole(encode.encode_assign(WHO, "emb", ROWS)), whole(encode.encode_assign(WHO, "w", DENSE.value))],
    ),
    "Heartbeat": (
        pb.HeartbeatRequest,
        lambda data: encode.decode_identity(encode.parse(pb.HeartbeatRequest, data).identity),
        [pb.HeartbeatRequest(identity=encode.encode_identity(WHO)).SerializeToString()],
    ),
    "Barrier": (
        pb.BarrierRequest,
        lambda data: encode.decode_identity(encode.parse(pb.BarrierRequest, data).identity),
        [pb.BarrierRequest(identity=encode.encode_identity(WHO), number=3).SerializeToString()],
    ),
    "Outcome": (
        pb.CompleteReply,
        lambda data: encode.check_outcome(encode.parse(pb.CompleteReply, data).outcome),
        [pb.CompleteReply(outcome=encode.outcome_of(RequestRefusedError("no"))).SerializeToString()],
    ),
}


@pytest.mark.parametrize("verb", VERBS)
@given(data=st.data())
def test_bytes_of_any_verb_are_refused_or_read(verb: str, data: st.DataObject) -> None:
    kind, read, rights = VERBS[verb]
    bad = data.draw(
        st.binary(max_size=100) | damaged(*rights) | messages(kind, SPECIAL).map(lambda m: m.SerializeToString())
    )
    refused_or_read(lambda: read(bad))


@pytest.mark.parametrize("verb", VERBS)
def test_right_bytes_are_read(verb: str) -> None:
    _, read, rights = VERBS[verb]
    for right in rights:
        assert refused_or_read(lambda right=right: read(right)) == (verb == "Outcome")


ENTRIES = [
    Came(WHO),
    Stepped(STEP, (DENSE, SPARSE), decided=False),
    Decided(1, 4, apply=True),
    Lost(1),
    Assigned(WHO, "emb", ROWS),
]


@given(
    header=damaged(*(encode_event(event).header for event in ENTRIES))
    | messages(pb.Entry, SPECIAL).map(lambda entry: entry.SerializeToString()),
    payload=st.binary(max_size=64) | st.just(bytes(1 << 12)),
)
def test_any_entry_of_a_log_is_refused_or_read(header: bytes, payload: bytes) -> None:
    refused_or_read(lambda: decode_event(header, Payload(payload)))


def test_an_announced_size_takes_no_memory_before_the_bytes_come() -> None:
    lies = pb.PullReply(header=pb.PullReplyHeader(), size=1 << 40, payload=b"abc").SerializeToString()
    assert refused_or_read(lambda: list(transfers_of([lies])))


@given(size=st.integers(0, 400), chunk=st.integers(1, 50), believed=st.integers(1, 100))
def test_memory_grows_with_what_comes(size: int, chunk: int, believed: int) -> None:
    array = np.arange(size)
    messages = list(messages_of(encode.encode_pull_reply(PullReply(0, (array,))), chunk))
    with mock.patch("fluidlite.rpc.wire._BELIEVED", believed):
        (transfer,) = transfers_of(messages)
    np.testing.assert_array_equal(encode.decode_pull_reply(*transfer).values[0], array)


@pytest.mark.parametrize("values", [(), (np.ones(3), np.ones(3)), (ROWS,), (np.ones((2, 2), np.float32),)])
def test_an_answer_that_is_not_what_was_asked_for_is_refused(values: Any) -> None:
    (transfer,) = transfers_of([whole(encode.encode_pull_reply(PullReply(0, values)))])
    with pytest.raises(ServerFailedError, match="asked for"):
        encode.decode_pull_reply(*transfer, [RowRequest("e", "emb", ROWS.rows, 2, "float32")])
