"""Whatever bytes come as a program: a typed refusal, or a program that a server takes or refuses before it serves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite.core import serde
from fluidlite.core.verify import verify
from fluidlite.ops import registry
from fluidlite.proto_gen import framework_pb2 as pb
from fluidlite.protocol.messages import Gradient, Push, Registration, RowRequest, StepHeader
from fluidlite.pserver.host import Host, make_service
from tests.byte_faults import damaged, messages, refused_or_read
from tests.test_fuzz_server import FIRST
from tests.test_rows import embedding_net

relaxed = settings(max_examples=150, suppress_health_check=list(HealthCheck))
NET = embedding_net(optimizer=lambda: fluid.optimizer.Adam(fluid.layers.exponential_decay(0.1, 2, 0.5)))
MODEL = NET.main.serialize_to_string()


def servers_programs() -> list[bytes]:
    """(startup and main) of a pserver as a transpiler makes them."""
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, NET.main.clone(), "a:1,b:1", 1, True, NET.startup.clone())
    main, startup = transpiler.get_pserver_programs("a:1")
    return [startup.serialize_to_string(), main.serialize_to_string()]


STARTUP, MAIN = servers_programs()


@relaxed
@given(
    st.binary(max_size=80)
    | damaged(MODEL, MAIN)
    | messages(pb.ProgramDesc, {"idx": [0, 0, 1], "parent_idx": [-1, -1, 0]}).map(lambda m: m.SerializeToString())
)
def test_any_bytes_are_refused_or_a_program(data: bytes) -> None:
    read: list[fluid.Program] = []
    if refused_or_read(lambda: read.append(fluid.Program.parse_from_string(data))):
        return
    (program,) = read

    def use() -> None:
        again = fluid.Program.parse_from_string(program.serialize_to_string())
        assert again.serialize_to_string() == program.serialize_to_string()
        program.to_string(True)
        program.list_vars()
        program.clone(for_test=True)
        verify(program.desc, registry.find)

    refused_or_read(use)


# ---- programs that are almost right


def fields_of(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    """The fields that are set, in a message and all below it, with the message that they are in."""
    for field, value in message.ListFields():
        yield message, field
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = value if field.is_repeated else [value]
            for one in inner:
                yield from fields_of(one)


NUMBERS = [-1, 0, 1, 2, 3, 7, 2**20, 2**31 - 1, -(2**31), 2**40, 2**62]


@st.composite
def altered(draw: st.DrawFn, program: bytes) -> bytes:
    """A program with a few fields that are others or gone, and a few things that are there twice or in another order."""
    desc = pb.ProgramDesc.FromString(program)
    names = sorted({var.name for block in desc.blocks for var in block.vars})
    for _ in range(draw(st.integers(1, 2))):
        message, field = draw(st.sampled_from(list(fields_of(desc))))
        if field.is_repeated and draw(st.integers(0, 3)) == 0:
            values = getattr(message, field.name)
            values.extend([values[draw(st.integers(0, len(values) - 1))]])
        elif field.is_repeated:
            values = getattr(message, field.name)
            at = draw(st.integers(0, len(values) - 1))
            if field.type == FieldDescriptor.TYPE_MESSAGE or draw(st.booleans()):
                del values[at]
            else:
                values[at] = draw(other(field, values[at], names))
        elif field.type == FieldDescriptor.TYPE_MESSAGE or draw(st.integers(0, 3)) == 0:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, draw(other(field, getattr(message, field.name), names)))
    return desc.SerializePartialToString()


def other(field: FieldDescriptor, value: Any, names: list[str]) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_ENUM:
        return st.sampled_from([one.number for one in field.enum_type.values])
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        small = field.type == FieldDescriptor.TYPE_INT32
        return st.sampled_from([n for n in NUMBERS if not small or abs(n) <= 2**31])
    if isinstance(value, float):
        return st.floats(width=32)
    return st.sampled_from([*names, "", "@EMPTY@", "sgd", "lookup_table", value + ":1", value.partition(":")[0]])


def serve(startup: bytes, main: bytes) -> None:
    """A server made from bytes, a step and a pull."""
    scope = fluid.Scope()
    fluid.Executor().run(fluid.Program.parse_from_string(startup), scope=scope)
    desc = serde.from_bytes(main)
    listen = next((op for op in desc.root.ops if op.type == "listen_and_serv"), None)
    if listen is None:
        return
    host = Host(desc, listen, scope)
    service = make_service(host)
    if host.sync and service.trainers > 1:
        return
    service.register(Registration(FIRST, 0))
    service.pull(FIRST, [RowRequest("", "emb", np.array([4, 2]), 2, "float64")])
    rows = Gradient("", "emb@GRAD", np.ones((2, 2)), np.array([4, 2]), 10)
    service.commit(Push(StepHeader(FIRST, 0, 0, 0, 1), [rows], []))()


def test_the_right_programs_are_served() -> None:
    serve(STARTUP, MAIN)


@relaxed
@given(startup=st.just(STARTUP) | altered(STARTUP), main=altered(MAIN) | st.just(MAIN))
def test_programs_that_are_almost_right_are_served_or_refused(startup: bytes, main: bytes) -> None:
    with mock.patch("fluidlite.values.memory.budget", return_value=4 << 20):
        refused_or_read(lambda: serve(startup, main), most=64 << 20)
