"""Transpiled for Fluid's own wire: cut, placed and named as Fluid 1.8.5 does, and refused where that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fluidlite as fluid
from fluidlite.errors import ProgramError, TranspileError
from fluidlite.ports import needs_of, wire_of
from fluidlite.transpiler.fluid_wire import place_as_fluid
from fluidlite.transpiler.plan import Options

SERVERS = "a:1,b:2,c:3"


def build(seed: int = 0, **embedding: Any) -> tuple[fluid.Program, fluid.Program]:
    """Four fc layers behind, if asked for, an embedding."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = seed
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        hidden = fluid.layers.data(name="x", shape=[40], dtype="float32")
        if embedding:
            ids = fluid.layers.data(name="ids", shape=[1], dtype="int64")
            hidden = fluid.layers.embedding(ids, size=[3000, 8], param_attr="emb", **embedding)
        for width in (700, 30, 20, 1):
            hidden = fluid.layers.fc(hidden, width)
        rate = 0.1
        if seed == 1:
            rate = fluid.layers.exponential_decay(0.1, 1, 0.9)
        fluid.optimizer.SGD(rate).minimize(fluid.layers.mean(hidden))
    return main, startup


def transpiled(built: tuple[fluid.Program, fluid.Program], **config: Any) -> fluid.DistributeTranspiler:
    settings = fluid.DistributeTranspilerConfig(**{"wire": "fluid", **config})
    transpiler = fluid.DistributeTranspiler(settings)
    transpiler.transpile(0, built[0], SERVERS, 2, settings.sync_mode, built[1])
    return transpiler


def servers_of(transpiler: fluid.DistributeTranspiler) -> str:
    """The first letters of the servers of all that is received, in the order of names."""
    ops = transpiler.get_trainer_program().desc.root.ops
    placed = [pair for op in ops if op.type == "recv" for pair in zip(op.outputs["Out"], op.attr("epmap"), strict=True)]
    return "".join(endpoint[0] for _, endpoint in sorted(placed))


@pytest.mark.parametrize(("seed", "servers"), [(0, "ccbbbaaa"), (5, "babbccaa"), (90, "cacbaabb")])
def test_whole_parameters_go_where_fluid_puts_them(seed: int, servers: str) -> None:
    """What Fluid 1.8.5 does with these programs."""
    assert servers_of(transpiled(build(seed), slice_var_up=False)) == servers


def test_slices_go_where_fluid_puts_them() -> None:
    assert servers_of(transpiled(build())) == "abcabcabcab"


def test_sizes_do_not_matter() -> None:
    """On our own wire the second of two large ones would go elsewhere: docs/decisions/0009."""
    assert place_as_fluid([1, 2, 1, 1], 2, Options(), seed=0) == [0, 1, 0, 1, 0]


def test_every_op_that_speaks_says_what() -> None:
    transpiler = transpiled(build(is_sparse=True))
    spoken = {
        (op.type, wire_of(op))
        for program in (transpiler.get_trainer_program(), transpiler.get_pserver_program("a:1"))
        for op in program.desc.root.ops
        if op.type in ("prefetch", "recv", "send_barrier", "listen_and_serv")
    }
    assert spoken == {(each, "fluid") for each in ("prefetch", "recv", "send_barrier", "listen_and_serv")}
    needs = needs_of(transpiler.get_trainer_program().desc)
    assert needs is not None
    assert needs.wire == "fluid"


def test_without_rounds_it_says_so() -> None:
    needs = needs_of(transpiled(build(), sync_mode=False).get_trainer_program().desc)
    assert needs is not None
    assert needs.wire == "fluid_async"


def test_an_unknown_wire_is_refused_where_it_is_read() -> None:
    main = transpiled(build()).get_trainer_program()
    barrier = next(op for op in main.global_block().ops if op.type == "send_barrier")
    barrier._set_attr("wire", "brpc")
    with pytest.raises(ProgramError, match="wire 'brpc' is none of '', 'fluid', 'fluid_async'"):
        needs_of(main.desc)


def clipped() -> tuple[fluid.Program, fluid.Program]:
    """A layer whose update needs all of it."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = fluid.layers.data(name="x", shape=[40], dtype="float32")
        fluid.optimizer.LarsMomentum(0.1, 0.9).minimize(fluid.layers.mean(fluid.layers.fc(x, 700)))
    return main, startup


@pytest.mark.parametrize(
    ("built", "config", "reason"),
    [
        (build, {"wire": "brpc"}, "wire must be 'fluid' .* not 'brpc'"),
        (build, {"min_block_size": 1}, "min_block_size of 8192 or more, not 1"),
        (build, {"split_method": fluid.transpiler.HashName}, "split_method must be RoundRobin"),
        (build, {"rows_wire_dtype": "float16"}, "nothing of rows_wire_dtype"),
        (build, {"gradients_wire_dtype": "bfloat16"}, "nothing of gradients_wire_dtype"),
        (build, {"sync_mode": False, "half_async": True}, "not half_async"),
        (build, {"sync_mode": False, "staleness": 2}, "not ssp"),
        (build, {"grads_to_wait": 1}, "nothing of grads_to_wait"),
        (build, {"sync_mode": False, "enable_dc_asgd": True}, "nothing of dc_asgd"),
        (lambda: build(seed=1), {"sync_mode": False}, "without rounds a learning-rate schedule is not carried"),
        (lambda: build(is_sparse=True, is_distributed=True), {}, "'emb' is a distributed table"),
        (clipped, {}, "cuts 'fc_0.w_0' into 3 slices, but .*; set slice_var_up=False"),
    ],
)
def test_what_processes_of_fluid_cannot_do_is_refused(
    built: Callable[[], tuple[fluid.Program, fluid.Program]], config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TranspileError, match=reason):
        transpiled(built(), **config)
