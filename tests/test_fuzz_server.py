"""Damaged requests to servers that work: each is refused by name, and the trainers notice nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import count
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite.ops.keeping import Keeping
from fluidlite.proto_gen import pserver_pb2 as pb
from fluidlite.protocol import encode
from fluidlite.protocol.messages import (
    READER,
    Decision,
    Declared,
    DenseRequest,
    Gradient,
    Identity,
    Push,
    Registration,
    RowRequest,
    StepHeader,
    TableRequest,
    Use,
)
from fluidlite.protocol.packet import Packet
from fluidlite.pserver.host import Host, make_service
from fluidlite.pserver.keeper import Keeper
from fluidlite.pserver.policy import Step
from fluidlite.pserver.service import PServer
from fluidlite.rpc.options import method
from fluidlite.rpc.server import Handlers
from fluidlite.rpc.wire import messages_of
from fluidlite.values.selected_rows import SelectedRows
from tests.byte_faults import damaged, messages, no_failures, refused_or_read
from tests.pserver_program import pserver_program
from tests.test_rows import column, embedding_net
from tests.training_jobs import GrpcCluster, Local, assert_states

Calls = list[tuple[str, list[bytes]]]
#: verb -> its message, and whether it goes in a stream and its replies come in one
VERBS: dict[str, tuple[type[Message], str]] = {
    "Register": (pb.RegisterRequest, "unary_unary"),
    "Pull": (pb.PullRequest, "stream_stream"),
    "Push": (pb.PushRequest, "stream_stream"),
    "Assign": (pb.AssignRequest, "stream_unary"),
    "Heartbeat": (pb.HeartbeatRequest, "stream_unary"),
    "Barrier": (pb.BarrierRequest, "unary_unary"),
    "Checkpoint": (pb.CheckpointRequest, "unary_unary"),
    "Complete": (pb.CompleteRequest, "unary_unary"),
}
#: what fields of random messages hold rather often: what servers of these tests know
KNOWN: dict[str, list[Any]] = {
    "name": ["w", "w@GRAD", "v.block0@GRAD", "emb", "emb@GRAD", "lr", "x"],
    "table": ["emb", "v.block0", "w"],
    "wanted": ["w", "v.block0", "emb"],
    "dense": ["w", "emb", "lr"],
    "width": [2],
    "dtype": [6, 3],
    "shape": [0, 1, 2, 3, 4, 2**40],
    "number": [0, 0, 0, 1],
    "parts": [0, 1],
    "protocol": [1],
    "trainers": [0, 2],
}


def rights(who: Identity) -> dict[str, list[bytes]]:
    """What a trainer may say to the server of `pserver_program`."""
    ids = np.array([1, -5, 1])
    rows = Gradient("", "emb@GRAD", np.ones((3, 2)), ids, 10)
    block = Gradient("", "v.block0@GRAD", np.ones((2, 2)), np.array([1, 3]), 4)
    whole = [Gradient("", "w@GRAD", np.ones(3)), rows, block]
    step = StepHeader(who, 0, 0, 0, 3)
    says = encode.encode_identity(who)
    return {
        "Register": [encode.encode_registration(Registration(who, 2, (Declared("emb", Use.ROWS, "float64", (2,)),)))],
        "Pull": _messages(
            encode.encode_pull(who, [RowRequest("", "emb", ids, 2, "float64"), DenseRequest("", "w")]),
            encode.encode_pull(who, [TableRequest("", "emb")]),
        ),
        "Push": _messages(
            encode.encode_push(Push(step, whole, ["w"])),
            encode.encode_push(Push(step, whole, [], decided=False)),
            encode.encode_part(step, 0, rows),
            encode.encode_decision(Decision(who, 0, apply=True)),
        ),
        "Assign": _messages(
            encode.encode_assign(who, "w", np.ones(3)),
            encode.encode_assign(who, "emb", SelectedRows(ids[:2], np.ones((2, 2)), 0)),
        ),
        "Heartbeat": [pb.HeartbeatRequest(identity=says).SerializeToString()],
        "Barrier": [pb.BarrierRequest(identity=says).SerializeToString()],
        "Checkpoint": [pb.CheckpointRequest(identity=says, number=1).SerializeToString()],
        "Complete": [pb.CompleteRequest(identity=says).SerializeToString()],
    }


def _messages(*packets: Packet) -> list[bytes]:
    return [message for packet in packets for message in messages_of(packet)]


def calls(who: Identity, others: Iterable[str] = (), skipped: Iterable[str] = ()) -> st.SearchStrategy[Calls]:
    """Calls with bad bytes, most of them almost right, by ``who`` (or of jobs ``others``)."""
    known = {
        **KNOWN,
        "job": [who.job, *others],
        "trainer": [who.trainer],
        "incarnation": [who.incarnation],
        "sequence": [0, 1],
    }
    right = rights(who)

    @st.composite
    def draw_call(draw: st.DrawFn) -> tuple[str, list[bytes]]:
        verb = draw(st.sampled_from([verb for verb in VERBS if verb not in skipped]))
        kind, form = VERBS[verb]
        random = messages(kind, known).map(lambda message: message.SerializeToString())
        one = st.sampled_from(right[verb]) | damaged(*right[verb]) | random | st.binary(max_size=20)
        return verb, draw(st.lists(one, min_size=1, max_size=3 if form.startswith("stream") else 1))

    return st.lists(draw_call(), min_size=1, max_size=3)


def outcomes(verb: str, replies: Iterable[bytes]) -> list[int]:
    """The codes of some replies to a verb."""
    if verb == "Pull":
        return [pb.PullReply.FromString(reply).header.outcome.code for reply in replies]
    if verb == "Push":
        return [pb.PushReply.FromString(reply).header.outcome.code for reply in replies]
    return [pb.CompleteReply.FromString(reply).outcome.code for reply in replies]


# ---- in one process

_served = count()
FIRST, SECOND = Identity("job", 0, 2**62), Identity("job", 1, 5)


def served() -> tuple[PServer, Host]:
    program, listen, scope = pserver_program(sync=False, lr_decay_block_id=-1)
    host = Host(program, listen, scope)
    keeper = Keeper(Keeping(checkpoint_dir=f"memory://fuzzed/{next(_served)}"), 0, 1, host)
    service = make_service(host, keeper=keeper)
    for who in (FIRST, SECOND):
        service.register(Registration(who, 2))
    return service, host


def answered(handlers: dict[str, Any], verb: str, sent: list[bytes]) -> list[bytes]:
    """What a server answers."""
    form = VERBS[verb][1]
    call = getattr(handlers[verb], form)
    if form == "unary_unary":
        return [call(sent[0], None)]
    return list(call(iter(sent), None)) if form == "stream_stream" else [call(iter(sent), None)]


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(bad=calls(SECOND, skipped=["Barrier"]))
def test_a_member_that_says_nonsense_disturbs_nobody(bad: Calls) -> None:
    service, host = served()
    handlers = Handlers(service, "").table()

    def say() -> None:
        for verb, sent in bad:
            assert pb.FAILED not in outcomes(verb, answered(handlers, verb, sent)), verb

    with no_failures():
        refused_or_read(say)
        held, version = host.dense(["w", "lr"]), host.version
        push = Push(StepHeader(FIRST, 0, 0, 0, 1), [Gradient("", "w@GRAD", np.full(3, 2.0))], ["w"])
        reply = service.commit(push)()
    assert reply.version == version + 1
    np.testing.assert_array_equal(reply.dense["w"], held["w"] - held["lr"] * 2.0)


def test_what_the_tests_say_is_right_is_right() -> None:
    service, _ = served()
    handlers = Handlers(service, "").table()
    for verb, sent in rights(SECOND).items():
        if verb != "Barrier":
            for one in sent if verb != "Push" else sent[:1]:
                assert set(outcomes(verb, answered(handlers, verb, [one]))) == {pb.OK}, verb


# ---- over the network


def test_strangers_send_damaged_streams_while_another_one_trains() -> None:
    programs = embedding_net(optimizer=lambda: fluid.optimizer.Adagrad(0.1))
    local, steps = Local(programs), count()

    def feed(step: int) -> Any:
        return column(step % 7, -step, 2**40 + step % 3, step % 7)

    with ExitStack() as stack:
        stack.enter_context(no_failures())
        cluster = stack.enter_context(closing(GrpcCluster(programs, 2)))
        over = threading.Event()
        losses: list[Any] = []

        def train() -> None:
            while not over.is_set():
                losses.extend(cluster.step([feed(next(steps))]))

        raw = [stack.enter_context(grpc.insecure_channel(server.endpoint)) for server in cluster.servers.values()]
        trainer = threading.Thread(target=train)

        @settings(max_examples=100, suppress_health_check=list(HealthCheck), database=None)
        @given(bad=calls(Identity("another job", 0, 1), others=["job"]), server=st.integers(0, 1))
        def attack(bad: Calls, server: int) -> None:
            for verb, sent in bad:
                assert pb.OK not in refusals(raw[server], verb, sent) or by_readers(verb, sent), (verb, sent)

        trainer.start()
        try:
            attack()
        finally:
            over.set()
            trainer.join()
        state = cluster.state()
        assert losses == [local.step(feed(step)) for step in range(len(losses))]
        assert_states(state, local.state())


def refusals(channel: Any, verb: str, sent: list[bytes]) -> list[int]:
    """How a server answers, over gRPC, what says anything to it."""
    form = VERBS[verb][1]
    call = getattr(channel, form)(method(verb))
    if form == "unary_unary":
        return outcomes(verb, [call(sent[0], timeout=60)])
    if form == "stream_unary":
        code = outcomes(verb, [call(iter(sent), timeout=60)])
        return [] if code == [pb.OK] and not any(sent) else code
    return outcomes(verb, _all(call(iter(sent), timeout=60)))


def by_readers(verb: str, sent: list[bytes]) -> bool:
    """Whether messages may be those of a process that only reads, which may come, read, and go."""
    if verb not in {"Register", "Pull", "Heartbeat", "Complete"}:
        return False
    said = [VERBS[verb][0].FromString(message) for message in sent]
    return any(getattr(message, "header", message).identity.trainer == READER for message in said)


def _all(replies: Iterator[bytes]) -> list[bytes]:
    return list(replies)


# ---- what is accepted

RIGHT = [
    Gradient("", "w@GRAD", np.ones(3)),
    Gradient("", "v.block0@GRAD", np.ones((2, 2)), np.array([3, 1]), 4),
    Gradient("", "emb@GRAD", np.ones((2, 2)), np.array([2**62, -1]), 10),
]
FAULTS: dict[str, list[Any]] = {
    "name": [gradient.name for gradient in RIGHT] + ["lr"],
    "value": [np.ones(shape) for shape in [(3,), (2, 2), (4, 2), (0, 2), (2,), (), (2, 2, 1), (0, 2**40)]]
    + [np.ones((2, 2), np.float32), np.full((2, 2), np.nan)],
    "rows": [None] + [np.array(ids, np.int64) for ids in ([0, 0], [4, 1], [-1, 2], [], [1])],
    "height": [0, 4, 9, -1, 2**62],
}


@st.composite
def gradients_with_faults(draw: st.DrawFn) -> Gradient:
    gradient = draw(st.sampled_from(RIGHT))
    for field in draw(st.lists(st.sampled_from(sorted(FAULTS)), max_size=2)):
        gradient = replace(gradient, **{field: draw(st.sampled_from(FAULTS[field]))})
    return gradient


@settings(max_examples=150)
@given(gradients=st.lists(gradients_with_faults(), max_size=2), sync=st.booleans())
def test_a_step_that_is_accepted_can_be_applied(gradients: list[Gradient], sync: bool) -> None:
    """With the steps of others: what is wrong with one must not fail them all."""
    host = Host(*pserver_program(sync=sync))
    if refused_or_read(lambda: host.check_step(gradients, [], 0)):
        return
    others = [Gradient("", "v.block0@GRAD", np.ones((1, 2)), np.array([1]), 4)]
    others.append(Gradient("", "emb@GRAD", np.ones((1, 2)), np.array([7]), 0))
    steps = {0: Step(gradients), 1: Step(others)} if sync else {0: Step(gradients)}
    assert host.apply(steps, 1) == 1
