"""While, Switch, cond, counters and tensor arrays."""

from __future__ import annotations

import numpy as np
import pytest

from fluidlite import layers
from fluidlite.dtypes import VarKind
from fluidlite.errors import DtypeError, ProgramError, ShapeError
from fluidlite.framework import Variable
from tests.frontend import fresh_programs, op_lines, run


def _constant(value: float, dtype: str = "float32") -> Variable:
    return layers.fill_constant([1], dtype, value)


def test_while_counts() -> None:
    with fresh_programs() as (main, _):
        i, n, total = _constant(0, "int64"), _constant(3, "int64"), _constant(0.0)
        cond = layers.less_than(i, n)
        with layers.While(cond).block():
            layers.assign(total + layers.cast(i, "float32"), total)
            layers.increment(i)
            layers.less_than(i, n, cond=cond)
        assert op_lines(main)[-1] == (
            "while(Condition=[less_than_0.tmp_0], X=[fill_constant_0.tmp_0 fill_constant_1.tmp_0 "
            "fill_constant_2.tmp_0]) -> (Out=[fill_constant_0.tmp_0 fill_constant_2.tmp_0 less_than_0.tmp_0], "
            "StepScopes=[_generated_var_0]) {sub_block={'block': 1}}"
        )
        assert main.desc.blocks[1].parent == 0
        assert main.global_block().var("_generated_var_0").type is VarKind.STEP_SCOPES
        values = run([i, total])
    assert values[0].array == 3
    assert values[1].array == 3.0


def test_while_needs_a_condition_that_changes() -> None:
    with fresh_programs():
        i = _constant(0, "int64")
        with pytest.raises(DtypeError, match=r"'fill_constant_0\.tmp_0' is int64; it must be bool"):
            layers.While(i)
        with pytest.raises(ShapeError, match="not one element"):
            layers.While(layers.fill_constant([2], "bool", value=True))
        cond = layers.less_than(i, _constant(3, "int64"))
        with (
            pytest.raises(ProgramError, match=r"never writes its condition 'less_than_0\.tmp_0'"),
            layers.While(cond).block(),
        ):
            layers.increment(i)


def test_an_error_inside_a_block_leaves_the_block() -> None:
    with fresh_programs() as (main, _):
        cond = layers.less_than(_constant(0), _constant(1))
        with pytest.raises(DtypeError), layers.While(cond).block():
            layers.relu(_constant(0, "int64"))
        assert main.current_block().idx == 0


@pytest.mark.parametrize(("step", "rate"), [(1.0, 0.1), (3.0, 0.05), (9.0, 0.01)])
def test_switch_takes_the_first_case_that_holds(step: float, rate: float) -> None:
    with fresh_programs() as (main, _):
        now = _constant(step)
        lr = layers.create_global_var([1], 0.0, "float32", persistable=True, name="lr")
        with layers.Switch() as switch:
            with switch.case(now < 2.0):
                layers.assign(_constant(0.1), lr)
            with switch.case(now < 4.0):
                layers.assign(_constant(0.05), lr)
            with switch.default():
                layers.assign(_constant(0.01), lr)
        assert [op.type for op in main.desc.root.ops if op.type != "fill_constant"] == [
            "less_than",
            "logical_not",
            "conditional_block",
            "less_than",
            "logical_not",
            "logical_and",
            "logical_and",
            "conditional_block",
            "conditional_block",
        ]
        (value,) = run([lr])
    assert value.array == np.float32(rate)


def test_switch_is_used_in_order() -> None:
    with fresh_programs():
        holds = layers.less_than(_constant(0), _constant(1))
        with pytest.raises(ProgramError, match="inside"), layers.Switch().case(holds):
            pass
        with layers.Switch() as switch, pytest.raises(ProgramError, match="at least one case"), switch.default():
            pass
        with layers.Switch() as switch, pytest.raises(DtypeError, match="must be bool"), switch.case(_constant(1)):
            pass


@pytest.mark.parametrize(("x", "expected"), [(1.0, 2.0), (5.0, 15.0)])
def test_cond(x: float, expected: float) -> None:
    with fresh_programs() as (main, _):
        value = _constant(x)
        result = layers.cond(value < 3.0, lambda: layers.scale(value, 2.0), lambda: layers.scale(value, 3.0))
        assert isinstance(result, Variable)
        assert [op.type for op in main.desc.root.ops][-3:] == ["conditional_block", "cast", "select_input"]
        (found,) = run([result])
    assert found.array == expected


def test_cond_returns_what_its_functions_do() -> None:
    with fresh_programs():
        x, y = _constant(1.0), _constant(2.0)
        several = layers.cond(x < y, lambda: (x + y, x - y), lambda: [x, y])
        assert isinstance(several, list)
        assert layers.cond(x < y, lambda: None) is None
        with pytest.raises(ProgramError, match="true_fn returns 1 variables and false_fn 0"):
            layers.cond(x < y, lambda: x)
        with pytest.raises(ProgramError, match="must be a Variable"):
            layers.cond(x < y, lambda: 1.0, lambda: x)  # type: ignore[arg-type, return-value]
        values = run(several)
    assert [value.array.item() for value in values] == [3.0, -1.0]


def test_while_loop() -> None:
    with fresh_programs():
        limit = _constant(10, "int64")
        i, power = layers.while_loop(
            lambda i, _: layers.less_than(i, limit),
            lambda i, power: [i + 1, power * 2.0],
            [_constant(0, "int64"), _constant(1.0)],
        )
        values = run([i, power])
        with pytest.raises(ProgramError, match="2 variables for 1 loop_vars"):
            layers.while_loop(lambda i: layers.less_than(i, limit), lambda i: [i, i], [i])
        with pytest.raises(ProgramError, match="empty"):
            layers.while_loop(lambda: limit, list, [])
    assert values[0].array == 10
    assert values[1].array == 1024.0


def test_step_counter_counts_runs_and_is_one_per_name() -> None:
    with fresh_programs() as (main, startup):
        layers.fill_constant([1], "float32", 1.0)
        counter = layers.autoincreased_step_counter()
        assert layers.autoincreased_step_counter() is counter
        own = layers.autoincreased_step_counter("own", begin=5, step=2)
        assert op_lines(main)[:2] == [
            "increment(X=[own]) -> (Out=[own]) {step=2.0}",
            "increment(X=[@STEP_COUNTER@]) -> (Out=[@STEP_COUNTER@])",
        ]
        assert (counter.dtype, counter.persistable, counter.stop_gradient) == ("int64", True, True)
        assert op_lines(startup)[1] == (
            "fill_constant() -> (Out=[@STEP_COUNTER@]) {dtype=3, force_cpu=True, shape=[1]}"
        )
        values = run([counter, own])
    assert [value.array.item() for value in values] == [1, 6]


def test_increment_of_integers_stays_exact() -> None:
    with fresh_programs():
        big = _constant(2**53, "int64")
        (value,) = run([layers.increment(big, 1, in_place=False)])
    assert value.array == 2**53 + 1


def test_arrays() -> None:
    with fresh_programs():
        x, zero, one = _constant(1.5), _constant(0, "int64"), _constant(1, "int64")
        array = layers.array_write(x, zero)
        layers.array_write(x + 1.0, one, array)
        assert array.name == "array_write_0.out"
        assert array.type is VarKind.LOD_TENSOR_ARRAY
        assert layers.create_array("float32").name == "array_0.out"
        values = run([layers.array_read(array, one), layers.array_length(array)])
        with pytest.raises(ProgramError, match="no tensor array"):
            layers.array_read(x, zero)
    assert [value.array.item() for value in values] == [2.5, 2]


def test_comparisons_and_logic() -> None:
    with fresh_programs():
        x, y = _constant(1.0), _constant(2.0)
        yes, no = layers.less_than(x, y), layers.greater_equal(x, y)
        assert layers.logical_and(yes, no, out=no) is no
        assert layers.equal(x, y, cond=no) is no
        results = [layers.logical_or(yes, no), layers.logical_xor(yes, yes), layers.logical_not(yes)]
        results += [layers.is_empty(x), layers.isfinite(x), layers.not_equal(x, y)]
        values = run(results)
        with pytest.raises(DtypeError, match="logical_and"):
            layers.logical_and(x, y)
    assert [bool(value.array) for value in values] == [True, False, False, False, True, True]


def test_print_is_named_after_its_input() -> None:
    with fresh_programs() as (main, _):
        x = layers.data("x", [4])
        assert layers.Print(x, message="here", print_phase="forward").name == "print_x_0.tmp_0"
        assert main.desc.root.ops[0].attr("print_phase") == "FORWARD"
