"""A plan gives what a simple interpreter gives, drops what nobody needs any more, and says what failed."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite.core import text
from fluidlite.core.ir import EMPTY, Operator, Program, Variable
from fluidlite.errors import ShapeError
from fluidlite.ops import registry
from fluidlite.ops.context import KernelContext, RunState
from fluidlite.runtime import fast
from fluidlite.runtime.plan import Plan
from fluidlite.runtime.scope import Scope
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable, TableColumn
from tests.frontend import fresh_programs
from tests.random_programs import OPTIMIZERS, Model, models


class Interpreter:
    """Runs blocks op by op, looking everything up by name, and copies what kernels return."""

    def __init__(self, program: Program, scope: Scope) -> None:
        self.program = program
        self.scope = scope
        self.values: dict[str, Any] = {}
        self._state = RunState()
        self._state.env, self._state.scope = self, scope

    def run(self, feeds: dict[str, Any]) -> None:
        self.values = dict(feeds)
        self._run_block(0)

    def _run_block(self, idx: int) -> None:
        block = self.program.blocks[idx]
        for op in block.ops:
            self._run_op(KernelContext(self.program, block, op, run_state=self._state, run_block=self._run_block))

    @property
    def local(self) -> dict[str, Any]:
        return self.values

    def read(self, name: str) -> Any:
        return self.values.get(name, self.scope.get(name))

    def _run_op(self, ctx: KernelContext) -> None:
        op = ctx.op
        op_def = registry.get(op.type)
        assert op_def.kernel is not None
        inputs, attrs = registry.parameters_of(op_def.kernel, op_def)
        values = registry.attr_values(op_def, op)
        arguments = {registry.kwarg(name): values[name] for name in attrs}
        for arg in op_def.inputs:
            if arg.name in inputs:
                found = [self._argument(name, op_def.takes_lod) for name in op.inputs.get(arg.name, ())]
                arguments[registry.kwarg(arg.name)] = found if arg.many else next(iter(found), None)
        result = op_def.kernel(ctx, **arguments)
        results = result if isinstance(result, dict) else {op_def.outputs[0].name: result}
        sources = [self.read(name) for name in op.inputs.get(op_def.share_lod or "", ())]
        lod = next((source.lod for source in sources if isinstance(source, LoDTensor)), ())
        for arg in op_def.outputs:
            value = results.get(arg.name)
            items = value if arg.many and value is not None else [value]
            for name, item in zip(op.outputs.get(arg.name, ()), items, strict=False):
                if item is not None and name != EMPTY:
                    self._write(ctx.var(name), item, lod)

    def _argument(self, name: str, takes_lod: bool) -> Any:
        value = self.read(name)
        return value.array if isinstance(value, LoDTensor) and not takes_lod else value

    def _write(self, var: Variable, value: Any, lod: Any) -> None:
        if isinstance(value, np.ndarray):
            value = value.copy()
            value = LoDTensor(value, lod) if lod and len(value) == lod[-1][-1] else value
        if var.persistable:
            self.scope.set(var.name, value)
        else:
            self.values[var.name] = value


def seen(value: Any) -> Any:
    """A value in a form that pytest compares bit for bit."""
    if isinstance(value, LoDTensor):
        return seen(value.array), value.lod
    if isinstance(value, (SparseTable, SelectedRows, TableColumn)):
        rows = value if isinstance(value, SelectedRows) else value.export()
        return rows.rows.tolist(), seen(rows.value)
    return (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


@given(st.sampled_from(sorted(OPTIMIZERS)).flatmap(models))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_plan_equals_a_simple_interpreter(model: Model) -> None:
    with fresh_programs() as (main, startup):
        loss = model.build().name
    feeds = [feed for (feed,) in model.feeds(3, 1, 4)]
    startup_plan = Plan(startup.desc, None)
    expected_scope = Scope()
    startup_plan.run(expected_scope, {})
    interpreter = Interpreter(main.desc, expected_scope)
    expected = []
    for feed in feeds:
        interpreter.run(feed)
        expected.append(seen(interpreter.read(loss)))
    for plan in (Plan(main.desc, None), Plan(main.desc, None, plain=True)):
        for keep in (None, [loss]):
            scope = Scope()
            Plan(startup.desc, None).run(scope, {})
            assert [seen(plan.run(scope, feed, keep).read(loss)) for feed in feeds] == expected
            names = [name for name, var in main.desc.root.vars.items() if var.persistable]
            assert {n: seen(scope.get(n)) for n in names} == {n: seen(expected_scope.get(n)) for n in names}


def chain(length: int) -> Program:
    """``x`` through a chain of ops, each of which reads what the one before wrote."""
    declared = "".join(f"  var t{i}: [-1]\n" for i in range(length + 1))
    ops = "".join(f"  scale(X=[t{i}]) -> (Out=[t{i + 1}]) {{scale=1.0}}\n" for i in range(length))
    return text.parse(f"block 0\n{declared}\n{ops}")


def peak(plan: Plan, feeds: dict[str, Any], keep: list[str] | None) -> int:
    tracemalloc.start()
    try:
        plan.run(Scope(), feeds, keep)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("plain", [False, True])
def test_temporaries_go_after_their_last_use(plain: bool) -> None:
    plan, x = Plan(chain(20), None, plain=plain), np.ones(1 << 18, np.float32)
    assert peak(plan, {"t0": x}, None) > 20 * x.nbytes
    assert peak(plan, {"t0": x}, ["t20"]) < 4 * x.nbytes
    env = plan.run(Scope(), {"t0": x}, ["t3", "t20"])
    assert set(env.local) == {"t3", "t20"}


def test_what_a_block_of_an_op_reads_stays_until_then() -> None:
    with fresh_programs() as (main, _):
        twice = fluid.data("x", [1]) * 2.0
        count, end, total = (fluid.layers.fill_constant([1], "float32", value) for value in (0.0, 3.0, 0.0))
        more = fluid.layers.less_than(count, end)
        with fluid.layers.While(more).block():
            fluid.layers.assign(total + twice, total)
            fluid.layers.increment(count)
            fluid.layers.less_than(count, end, cond=more)
        out = total * 1.0
    (loop,) = [op for op in main.desc.root.ops if op.type == "while"]
    loop.inputs["X"] = []  # its block says it as well
    env = Plan(main.desc, None).run(Scope(), {"x": np.ones(1, np.float32)}, [out.name])
    assert env.read(out.name).tolist() == [6.0]
    assert env.read(twice.name) is None


def test_common_ops_have_a_fast_step() -> None:
    with fresh_programs() as (main, _):
        x = fluid.data("x", [None, 3])
        out = fluid.layers.fc(x, 4, act="relu")
        loss = fluid.layers.mean(fluid.layers.concat([out, out], axis=1))
        fluid.optimizer.Adam(0.1).minimize(loss)
    plan = Plan(main.desc, None)
    compiled = plan._compiled(0)
    slow = {
        label
        for label, plain, quick in zip(compiled.labels, compiled.plain, compiled.fast, strict=True)
        if plain is quick
    }
    assert slow == set()
    assert {"mul", "mul_grad", "concat", "concat_grad", "sum", "adam"} <= set(compiled.labels)


def test_a_fast_step_that_fails_shows_its_op() -> None:
    program = text.parse(
        "block 0\n  var x: [2, 2]\n  var y: [3, 2]\n  var o: [2, 2]\n\n  mul(X=[x], Y=[y]) -> (Out=[o])\n"
    )
    values = {"x": np.ones((2, 2)), "y": np.ones((3, 2))}
    with pytest.raises(ShapeError, match=r"cannot multiply(.|\n)*in op mul\(X=\['x'\], Y=\['y'\]\)"):
        Plan(program, None).run(Scope(), values)


def test_inputs_that_fast_steps_take_stand_by_position() -> None:
    def taken(type: str, **inputs: list[str]) -> list[tuple[str, list[str]]] | None:
        op_def = registry.get(type)
        assert op_def.kernel is not None
        found = fast._inputs(Operator(type, inputs), op_def, op_def.kernel)
        return None if found is None else [(source.parameter, source.names) for source in found]

    assert taken("mul", X=["x"], Y=["y"]) == [("X", ["x"]), ("Y", ["y"])]
    assert taken("mul", X=[EMPTY], Y=["y"]) is None
    assert taken("clip", X=["x"]) == [("X", ["x"])]
    assert taken("clip", X=["x"], Min=["low"]) is None
    assert taken("concat", X=["x", "y"]) == [("X", ["x", "y"])]
    assert taken("concat", X=["x", EMPTY]) is None
    assert taken("concat_grad", X=["x"], **{"Out@GRAD": ["g"]}) == [
        ("X", ["x"]),
        ("AxisTensor", []),
        ("Out_GRAD", ["g"]),
    ]
