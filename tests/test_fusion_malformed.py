"""Programs that are not as they should be fail, or run, with fusion as without."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite import fusion
from fluidlite.core import edit, text
from fluidlite.core.ir import Operator, Program
from fluidlite.errors import FluidliteError, ShapeError, UninitializedError
from fluidlite.runtime.executor import ExecutorCore
from tests.tangled_programs import Tangle, tangles
from tests.training_jobs import Programs

choices = st.just(True) | st.sampled_from(fusion.NAMES)


def _arguments(op: Operator, choose: random.Random) -> tuple[dict[str, list[str]], str]:
    """Inputs or outputs of an op, and one of them."""
    given = choose.choice([found for found in (op.inputs, op.outputs) if found])
    return given, choose.choice(sorted(given))


def _without(program: Program, op: Operator, choose: random.Random) -> None:
    given, name = _arguments(op, choose)
    del given[name]


def _empty(program: Program, op: Operator, choose: random.Random) -> None:
    given, name = _arguments(op, choose)
    given[name] = []


def _twice(program: Program, op: Operator, choose: random.Random) -> None:
    given, name = _arguments(op, choose)
    given[name] = given[name] * 2


def _undeclared(program: Program, op: Operator, choose: random.Random) -> None:
    program.root.vars.pop(choose.choice(sorted(program.root.vars)))


def _of_another_shape(program: Program, op: Operator, choose: random.Random) -> None:
    var = program.root.vars[choose.choice(sorted(program.root.vars))]
    var.shape = choose.choice([None, (), (-1,), (0,), (3, 4, 5)])


FAULTS: dict[str, Callable[[Program, Operator, random.Random], None]] = {
    function.__name__: function for function in (_without, _empty, _twice, _undeclared, _of_another_shape)
}


def compiled(program: Program, choice: fusion.Choice) -> type[FluidliteError] | None:
    """The type of the error that compiling a program raises."""
    try:
        ExecutorCore(passes=fusion.chosen(choice)).plan(program)
    except FluidliteError as error:
        return type(error)
    return None


@settings(max_examples=80, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(tangles, st.lists(st.sampled_from(sorted(FAULTS)), min_size=1, max_size=4), st.integers(0, 2**32 - 1), choices)
def test_fusion_says_no_more_than_the_compiler(
    tangle: Tangle, faults: list[str], seed: int, choice: bool | str
) -> None:
    program, choose = edit.clone(Programs(tangle.build).main.desc), random.Random(seed)
    for fault in faults:
        ops = [op for op in program.root.ops if op.inputs or op.outputs]
        FAULTS[fault](program, choose.choice(ops), choose)
    assert compiled(program, choice) is compiled(program, False)


LAYER = """block 0
  var x: [-1, 2] data
  param w: [2, 3]
  param b: [3]
  var t: [-1, 3]
  var o: [-1, 3]

  mul(X=[x], Y=[w]) -> (Out=[t])
  elementwise_add(X=[t], Y=[b]) -> (Out=[o])
"""
VALUES = {"w": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}


@pytest.mark.parametrize("choice", [False, True])
@pytest.mark.parametrize("missing", VALUES)
def test_a_parameter_that_nothing_initialised_is_not_left_out(missing: str, choice: bool) -> None:
    scope = fluid.Scope()
    for name in VALUES.keys() - {missing}:
        scope.set(name, VALUES[name])
    core = ExecutorCore(passes=fusion.chosen(choice))
    with pytest.raises(UninitializedError, match=f"'{missing}'.*was never written; run the startup program"):
        core.run(text.parse(LAYER), {"x": np.ones((4, 2), np.float32)}, ["o"], scope)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_bias_of_another_size_than_declared_is_refused(size: int) -> None:
    scope = fluid.Scope()
    scope.set("w", VALUES["w"])
    scope.set("b", np.ones(size, np.float32))
    with pytest.raises(ShapeError, match="bias"):
        ExecutorCore(passes=fusion.chosen(True)).run(
            text.parse(LAYER), {"x": np.ones((4, 2), np.float32)}, ["o"], scope
        )


LOSS = """block 0
  var x: [-1, 1] data
  var label: [-1, 1] data
  var runs: bool[1] data
  var losses: [-1, 1]
  var loss: [1]
  var loss@GRAD: [1]
  var losses@GRAD: [-1, 1]
  var x@GRAD: [-1, 1]

  sigmoid_cross_entropy_with_logits(X=[x], Label=[label]) -> (Out=[losses])
  mean(X=[losses]) -> (Out=[loss])
  conditional_block(Cond=[runs]) -> (Out=[loss@GRAD]) {sub_block=block(1), is_scalar_condition=true}
  mean_grad(X=[losses], Out@GRAD=[loss@GRAD]) -> (X@GRAD=[losses@GRAD])
  sigmoid_cross_entropy_with_logits_grad(Label=[label], Out@GRAD=[losses@GRAD], X=[x]) -> (X@GRAD=[x@GRAD])
block 1 parent=0
  fill_constant() -> (Out=[loss@GRAD]) {dtype=5, shape=[1L], value=0.5}
"""


@pytest.mark.parametrize("choice", [False, True])
def test_the_gradient_of_a_loss_that_no_block_wrote_is_not_made_up(choice: bool) -> None:
    core, program = ExecutorCore(passes=fusion.chosen(choice)), text.parse(LOSS)
    feed = {"x": np.zeros((2, 1), np.float32), "label": np.zeros((2, 1), np.float32), "runs": np.array([True])}
    (found,) = core.run(program, feed, ["x@GRAD"], fluid.Scope())
    np.testing.assert_array_equal(found, np.full((2, 1), 0.125))
    with pytest.raises(FluidliteError, match="@GRAD"):
        core.run(program, {**feed, "runs": np.array([False])}, ["x@GRAD"], fluid.Scope())
