"""What the cases of the dense ops' records cannot say: refusals, seeds, tables, aliasing, blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fluidlite.core import edit
from fluidlite.core.ir import Operator, Program, Variable
from fluidlite.dtypes import VarKind
from fluidlite.errors import DtypeError, FluidliteError, OpRunError, OutOfRangeError, ProgramError, ShapeError
from fluidlite.ops import registry
from fluidlite.ops.broadcast import align, result_shape
from fluidlite.ops.infer import infer_op
from fluidlite.ops.reshape import target_shape
from fluidlite.runtime.plan import Plan
from fluidlite.runtime.scope import Scope
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable, TableColumn
from tests.op_harness import Bench, build

INT64, FLOAT32 = 3, 5


def zeros(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.zeros(shape, dtype)


def output(op: str, inputs: dict[str, Any], **attrs: Any) -> Any:
    """The first output of an op."""
    bench = build(op, {name: value if isinstance(value, list) else [value] for name, value in inputs.items()}, attrs)
    return bench.run().read(next(bench.op.output_arguments()))


BUILD_REFUSALS: list[tuple[str, dict[str, Any], dict[str, Any], type[FluidliteError], str]] = [
    ("elementwise_add", {"X": zeros(2, 3), "Y": zeros(2)}, {}, ShapeError, r"\[2, 3\] and \[2\]"),
    ("elementwise_add", {"X": zeros(2, 3), "Y": zeros(2, 3)}, {"axis": 1}, ShapeError, "axis must be -1 or 0"),
    ("elementwise_add", {"X": zeros(2, 3), "Y": zeros(3)}, {"axis": 2}, ShapeError, "does not fit into rank 2"),
    ("elementwise_mul", {"X": zeros(2), "Y": zeros(2, dtype="float64")}, {}, DtypeError, "cast one of them"),
    ("less_than", {"X": zeros(2), "Y": zeros(2, dtype="int64")}, {}, DtypeError, "cast one of them"),
    ("mul", {"X": zeros(2, 3), "Y": zeros(2, 3)}, {}, ShapeError, "3 columns but Y"),
    ("mul", {"X": zeros(2, 3), "Y": zeros(3, 2)}, {"x_num_col_dims": 2}, ShapeError, "cannot flatten"),
    ("matmul", {"X": zeros(2, 3), "Y": zeros(2, 3)}, {}, ShapeError, "3 columns against 2 rows"),
    ("matmul", {"X": zeros(2, 2, 3), "Y": zeros(3, 3, 2)}, {}, ShapeError, "batches of shapes"),
    ("reduce_sum", {"X": zeros(2, 3)}, {"dim": [2]}, ShapeError, "axis 2 of an input of rank 2"),
    ("sum", {"X": [zeros(2), zeros(3)]}, {}, ShapeError, "shapes"),
    ("sum", {"X": [zeros(2), zeros(2, dtype="float64")]}, {}, DtypeError, "float32 and float64"),
    ("concat", {"X": [zeros(2, 2), zeros(3, 3)]}, {}, ShapeError, "cannot concatenate"),
    ("concat", {"X": [zeros(2), zeros(2)]}, {"axis": 1}, ShapeError, "axis 1"),
    ("split", {"X": zeros(5)}, {"num": 2}, ShapeError, "cannot split"),
    ("reshape2", {"X": zeros(2, 3)}, {"shape": [-1, -1]}, ShapeError, "more than one"),
    ("reshape2", {"X": zeros(2, 3)}, {"shape": [4]}, ShapeError, "cannot reshape"),
    ("transpose2", {"X": zeros(2, 3)}, {"axis": [0, 0]}, ShapeError, "no permutation"),
    ("squeeze2", {"X": zeros(2, 3)}, {"axes": [0]}, ShapeError, "its size is not 1"),
    ("flatten2", {"X": zeros(2, 3)}, {"axis": 3}, ShapeError, "cannot flatten"),
    ("slice", {"Input": zeros(3)}, {"axes": [0], "starts": [2], "ends": [1]}, ShapeError, "is empty"),
    ("strided_slice", {"Input": zeros(3)}, {"axes": [0], "starts": [0], "ends": [1], "strides": [0]}, ShapeError, "0"),
    ("expand", {"X": zeros(2)}, {"expand_times": [0]}, ShapeError, "must be positive"),
    ("stack", {"X": [zeros(2), zeros(3)]}, {}, ShapeError, "cannot stack"),
    ("gather", {"X": zeros(3, 2), "Index": zeros(2, 2, dtype="int64")}, {}, ShapeError, "Index must have shape"),
    ("gather_nd", {"X": zeros(3), "Index": zeros(1, dtype="int64")}, {}, ShapeError, "rank 2 or more"),
    ("where", {"Condition": zeros(2, dtype="bool"), "X": zeros(2), "Y": zeros(3)}, {}, ShapeError, "must be equal"),
    ("pad", {"X": zeros(2)}, {"paddings": [1]}, ShapeError, "2 paddings"),
    ("norm", {"X": zeros(2, 2)}, {"axis": 2}, ShapeError, "axis 2"),
    ("cos_sim", {"X": zeros(3, 2), "Y": zeros(2, 2)}, {}, ShapeError, "equal rows"),
    ("top_k", {"X": zeros(2, 3)}, {"k": 4}, ShapeError, "4 largest"),
    ("one_hot", {"X": zeros(2, dtype="int64")}, {"depth": 3}, ShapeError, "must be 1"),
    ("clip", {"X": zeros(2)}, {"min": 1.0, "max": 0.0}, ProgramError, "empty range"),
    ("increment", {"X": zeros(2)}, {}, ShapeError, "one element"),
    ("assign_value", {}, {"shape": [2, 2], "dtype": FLOAT32, "fp32_values": [1.0]}, ShapeError, "1 values"),
]


@pytest.mark.parametrize(("op", "inputs", "attrs", "error", "text"), BUILD_REFUSALS)
def test_refused_while_building(
    op: str, inputs: dict[str, Any], attrs: dict[str, Any], error: type[FluidliteError], text: str
) -> None:
    given = {name: value if isinstance(value, list) else [value] for name, value in inputs.items()}
    with pytest.raises(error, match=text):
        build(op, given, attrs, n_outputs={"Out": 2} if op == "split" else None)


RUN_REFUSALS: list[tuple[str, dict[str, Any], dict[str, Any], type[FluidliteError], str]] = [
    ("elementwise_add", {"X": zeros(2, 3), "Y": zeros(2)}, {}, ShapeError, r"\[2, 3\] and \[2\]"),
    ("elementwise_add", {"X": zeros(2), "Y": zeros(2, dtype="float64")}, {}, DtypeError, "float32 and float64"),
    ("elementwise_div", {"X": zeros(1, dtype="int64"), "Y": zeros(1, dtype="int64")}, {}, OpRunError, "by zero"),
    ("elementwise_floordiv", {"X": zeros(1, dtype="int64"), "Y": zeros(1, dtype="int64")}, {}, OpRunError, "by zero"),
    ("elementwise_mod", {"X": zeros(1, dtype="int64"), "Y": zeros(1, dtype="int64")}, {}, OpRunError, "by zero"),
    ("mul", {"X": zeros(2, 3), "Y": zeros(2, 3)}, {}, ShapeError, "cannot multiply"),
    ("matmul", {"X": zeros(2, 3), "Y": zeros(2, 3)}, {}, ShapeError, "cannot multiply"),
    ("gather", {"X": zeros(3, 2), "Index": np.array([0, 3])}, {}, OutOfRangeError, "index 3 at position 1"),
    ("gather", {"X": zeros(3, 2), "Index": np.array([-1])}, {}, OutOfRangeError, "index -1 at position 0"),
    ("gather_nd", {"X": zeros(3, 2), "Index": np.array([[3]])}, {}, OutOfRangeError, "axis 0"),
    (
        "scatter",
        {"X": zeros(3, 2), "Ids": np.array([3]), "Updates": zeros(1, 2)},
        {},
        OutOfRangeError,
        "id 3 at position 0",
    ),
    ("one_hot", {"X": np.array([[1], [4]])}, {"depth": 4}, OutOfRangeError, "class 4 at position 1"),
    (
        "multiplex",
        {"Ids": np.array([[2]], np.int32), "X": [zeros(1, 2), zeros(1, 2)]},
        {},
        OutOfRangeError,
        "id 2 at position 0",
    ),
    ("range", {"Start": np.array([5]), "End": np.array([2]), "Step": np.array([1])}, {}, ProgramError, "never ends"),
    (
        "sum",
        {"X": [SelectedRows(np.array([1]), zeros(1, 2), 5), SelectedRows(np.array([1]), zeros(1, 2), 6)]},
        {},
        ShapeError,
        "heights",
    ),
]


@pytest.mark.parametrize(("op", "inputs", "attrs", "error", "text"), RUN_REFUSALS)
def test_refused_while_running(
    op: str, inputs: dict[str, Any], attrs: dict[str, Any], error: type[FluidliteError], text: str
) -> None:
    """The shapes are unknown while the program is built, so only the kernel can refuse."""
    program, fed = Program(), {}
    run = Operator(op, attrs=registry.attrs_for(registry.get(op), attrs), origin="model.py:1")
    for name, value in inputs.items():
        run.inputs[name] = []
        for i, item in enumerate(value if isinstance(value, list) else [value]):
            fed[f"{name}_{i}"] = item
            run.inputs[name].append(f"{name}_{i}")
            edit.add_var(program, program.root, Variable(f"{name}_{i}"))
    run.outputs["Out"] = ["out"]
    edit.add_var(program, program.root, Variable("out"))
    edit.append_op(program, program.root, run)
    with pytest.raises(error, match=text) as caught:
        Plan(program, None).run(Scope(), fed)
    assert f"in op {op}" in str(caught.value)
    assert "model.py:1" in str(caught.value)


@pytest.mark.parametrize(
    ("x", "y", "axis", "expected"),
    [
        ((-1, 3), (3,), -1, (-1, 3)),
        ((-1, 3), (4, 3), -1, (4, 3)),
        ((2, 3, 4), (3,), 1, (2, 3, 4)),
        ((2, 3, 4, 5), (4, 1, 1), 2, (2, 3, 4, 5)),
        ((3,), (2, 3), -1, (2, 3)),
        ((2, 1), (3,), -1, (2, 3)),
        ((0, 3), (3,), -1, (0, 3)),
        ((0, 3), (1, 3), -1, (0, 3)),
    ],
)
def test_broadcast_shapes(x: tuple[int, ...], y: tuple[int, ...], axis: int, expected: tuple[int, ...]) -> None:
    assert result_shape(x, y, axis) == expected
    assert len(align(x, y, axis)[0]) == len(expected)


@pytest.mark.parametrize(
    ("shape", "wanted", "expected"),
    [
        ((-1, 6), (0, 2, -1), (-1, 2, 3)),
        ((-1, 6), (-1, 3), (-1, 3)),
        ((-1, -1, 4), (0, 0, 2, 2), (-1, -1, 2, 2)),
        ((2, -1), (-1,), (-1,)),
        ((0, 4), (-1, 2), (0, 2)),
        ((0, 4), (0, 2, -1), (0, 2, 2)),
    ],
)
def test_reshape_of_unknown_and_empty_dimensions(
    shape: tuple[int, ...], wanted: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert target_shape(shape, wanted) == expected


def startup(program_seed: int = 0, name: str = "w", *, persistable: bool = True, **attrs: Any) -> Plan:
    """A program that makes one first value."""
    program = Program(random_seed=program_seed)
    edit.add_var(program, program.root, Variable(name, persistable=persistable))
    op_def = registry.get("uniform_random")
    op = Operator("uniform_random", outputs={"Out": [name]}, attrs=registry.attrs_for(op_def, attrs))
    edit.append_op(program, program.root, op)
    infer_op(program, program.root, op)
    return Plan(program, None)


def first_value(plan: Plan, name: str = "w") -> Any:
    return plan.run(Scope(), {}).read(name)


def test_first_values_without_a_seed_depend_on_the_name_alone() -> None:
    plan = startup(shape=[3, 2])
    once, again = first_value(plan), first_value(plan)
    np.testing.assert_array_equal(once, again)
    np.testing.assert_array_equal(once, first_value(startup(shape=[3, 2])))
    assert not np.array_equal(once, first_value(startup(name="v", shape=[3, 2]), "v"))


def test_a_temporary_starts_like_the_parameter_of_its_name() -> None:
    """A server makes the whole parameter in a temporary and keeps its slice."""
    np.testing.assert_array_equal(
        first_value(startup(shape=[3, 2])), first_value(startup(shape=[3, 2], persistable=False))
    )


def test_noise_differs_from_run_to_run() -> None:
    plan = startup(shape=[3, 2], persistable=False)
    assert not np.array_equal(first_value(plan), first_value(plan))


def test_seed_of_the_op_wins_over_that_of_the_program() -> None:
    by_program = first_value(startup(7, shape=[6]))
    by_op = first_value(startup(8, shape=[6], seed=7))
    np.testing.assert_array_equal(by_program, by_op)
    assert by_program[0] == np.float32(-0.9996853)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("uniform_random", {"shape": [9, 4]}),
        ("gaussian_random", {"shape": [9, 4]}),
        ("truncated_gaussian_random", {"shape": [9, 4]}),
        ("fill_constant", {"shape": [9, 4], "value": 0.5}),
        ("assign_value", {"shape": [2, 4], "dtype": FLOAT32, "fp32_values": [0.0, 1, 2, 3, 4, 5, 6, 7]}),
    ],
)
def test_auto_grown_table_in_the_place_of_values(op: str, attrs: dict[str, Any]) -> None:
    bench = build(op, {}, {**attrs, "auto_grown_table": True})
    table = bench.run().read(bench.op.outputs["Out"][0])
    assert isinstance(table, SparseTable)
    assert (table.name, table.width, table.dtype, len(table)) == (bench.op.outputs["Out"][0], 4, np.float32, 0)
    assert table.height == attrs["shape"][0]
    assert bench.block.vars[table.name].kind is VarKind.SELECTED_ROWS
    assert table.lookup(np.array([2**62, -1])).shape == (2, 4)


def test_rows_of_a_table_follow_the_rule_of_the_op() -> None:
    constant = output("fill_constant", {}, shape=[9, 2], value=0.5, auto_grown_table=True)
    np.testing.assert_array_equal(constant.lookup(np.array([5])), [[0.5, 0.5]])
    given = output("assign_value", {}, shape=[2, 2], dtype=FLOAT32, fp32_values=[1.0, 2, 3, 4], auto_grown_table=True)
    np.testing.assert_array_equal(given.lookup(np.array([1])), [[3.0, 4.0]])


def test_accumulator_of_a_table() -> None:
    column = output("fill_constant", {}, shape=[9, 4], value=0.1, table_name="emb")
    assert isinstance(column, TableColumn)
    assert (column.name, column.width, column.fill) == ("Out_out0", 4, pytest.approx(0.1))


def test_each_fill_of_a_constant_is_an_array_of_its_own() -> None:
    first = output("fill_constant", {}, shape=[2], value=0.0)
    first += 7
    assert output("fill_constant", {}, shape=[2], value=0.0).tolist() == [0, 0]
    assert np.signbit(output("fill_constant", {}, shape=[2], value=-0.0)).all()
    assert output("fill_constant", {}, shape=[100], value=3.0).tolist() == [3] * 100


def test_the_mean_of_numbers_is_that_over_all_axes() -> None:
    x = np.random.default_rng(0).standard_normal((7, 5, 3)).astype(np.float32)
    assert output("mean", {"X": x}) == x.sum(axis=(0, 1, 2), dtype=x.dtype) / np.float32(105)


def test_assign_is_a_copy() -> None:
    source = np.array([1.0, 2.0])
    bench = build("assign", {"X": [source]}, {})
    env = bench.run()
    assert not np.shares_memory(env.read("X_0"), env.read("Out_out0"))


def test_a_slice_that_outlives_the_run_does_not_hold_the_whole() -> None:
    """A server keeps rows of a parameter that it made whole."""
    bench = build("slice", {"Input": [zeros(4, 2)]}, {"axes": [0], "starts": [1], "ends": [3]})
    bench.block.vars["Out_out0"].persistable = True
    env = bench.run()
    assert not np.shares_memory(env.read("Input_0"), env.read("Out_out0"))


def test_increment_leaves_other_holders_of_the_old_value_alone() -> None:
    bench = build("increment", {"X": [np.array([3])]}, {}, inplace={"Out": "X"})
    before = np.array([3])
    bench.feeds["X_0"] = before
    assert bench.run().read("X_0").tolist() == [4]
    assert before.tolist() == [3]


@pytest.mark.parametrize("op", ["sigmoid", "tanh", "swish", "gelu", "softsign", "softplus", "relu", "elu"])
def test_infinite_input_gives_the_limit(op: str) -> None:
    """N22, N23: no NaN where the function has a limit."""
    limits = {
        "sigmoid": [1, 0],
        "tanh": [1, -1],
        "swish": [np.inf, 0],
        "gelu": [np.inf, 0],
        "softsign": [1, -1],
        "softplus": [np.inf, 0],
        "relu": [np.inf, 0],
        "elu": [np.inf, -1],
    }
    np.testing.assert_array_equal(output(op, {"X": np.array([np.inf, -np.inf])}), limits[op])


def test_b083_square_error_of_a_column_and_a_vector_broadcasts() -> None:
    """Fluid's 1.8 behaviour: (n, 1) against (n,) is (n, n); the layer warns."""
    bench = build("elementwise_sub", {"X": [zeros(3, 1)], "Y": [zeros(3)]}, {})
    assert bench.block.vars["Out_out0"].shape == (3, 3)
    assert bench.run().read("Out_out0").shape == (3, 3)


def test_a_sum_without_any_value_writes_nothing() -> None:
    bench = build("sum", {"X": [zeros(2), zeros(2)]}, {})
    bench.feeds.clear()
    assert bench.run().read("Out_out0") is None


def test_an_absent_contribution_is_skipped() -> None:
    bench = build("sum", {"X": [np.ones(2, np.float32), zeros(2), np.ones(2, np.float32)]}, {})
    del bench.feeds["X_1"]
    assert bench.run().read("Out_out0").tolist() == [2.0, 2.0]


def block_program(condition: str, body: Callable[[Program], list[Operator]]) -> Program:
    """i = 0; n = 3; then the op under test with a sub-block."""
    program = Program()
    for name, dtype in (("i", "int64"), ("n", "int64"), ("go", "bool")):
        edit.add_var(program, program.root, Variable(name, dtype=dtype))
    block = edit.add_block(program, 0)
    for op in body(program):
        edit.append_op(program, block, op)
    attrs = registry.attrs_for(registry.get(condition), {"sub_block": 1})
    names = {"while": ("X", "Condition"), "conditional_block": ("Input", "Cond")}[condition]
    op = Operator(condition, {names[0]: ["i", "n"], names[1]: ["go"]}, {"Out": ["i", "go"]}, attrs)
    edit.append_op(program, program.root, op)
    return program


def count_up(_program: Program) -> list[Operator]:
    step = registry.attrs_for(registry.get("increment"), {"step": 1.0})
    return [
        Operator("increment", {"X": ["i"]}, {"Out": ["i"]}, step),
        Operator("less_than", {"X": ["i"], "Y": ["n"]}, {"Out": ["go"]}),
    ]


@pytest.mark.parametrize(("limit", "expected"), [(3, 3), (1, 1)])
def test_while_runs_its_block_until_the_condition_fails(limit: int, expected: int) -> None:
    program = block_program("while", count_up)
    env = Plan(program, None).run(Scope(), {"i": np.array([0]), "n": np.array([limit]), "go": np.array([True])})
    assert env.read("i").tolist() == [expected]


def test_while_with_a_false_condition_runs_nothing() -> None:
    program = block_program("while", count_up)
    env = Plan(program, None).run(Scope(), {"i": np.array([0]), "n": np.array([3]), "go": np.array([False])})
    assert env.read("i").tolist() == [0]


def test_while_needs_one_bool() -> None:
    program = block_program("while", count_up)
    with pytest.raises(ShapeError, match="'go' must be one bool"):
        Plan(program, None).run(Scope(), {"i": np.array([0]), "n": np.array([3]), "go": np.array([True, True])})


def print_bench(value: Any, **attrs: Any) -> Bench:
    shown = {
        "first_n": -1,
        "message": "loss",
        "summarize": 2,
        "print_tensor_name": True,
        "print_tensor_type": True,
        "print_tensor_shape": True,
        "print_tensor_lod": True,
    }
    return build("print", {"In": [value]}, {**shown, **attrs})


def test_print_shows_what_it_is_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    print_bench(np.array([1.5, 2.0, 3.0])).run()
    assert capsys.readouterr().out == "loss  variable In_0  dtype float64  shape [3]  data [1.5, 2.0, ...]\n"


def test_print_counts_runs(capsys: pytest.CaptureFixture[str]) -> None:
    bench = print_bench(np.array([1.5]), first_n=2, print_tensor_name=False, print_tensor_type=False)
    for _ in range(4):
        bench.run()
    assert capsys.readouterr().out == "loss  shape [1]  data [1.5]\n" * 2


def test_print_phase(capsys: pytest.CaptureFixture[str]) -> None:
    print_bench(np.array([1.5]), print_phase="BACKWARD").run()
    assert capsys.readouterr().out == ""


def test_delete_var_forgets_values() -> None:
    program = Program()
    for name, persistable in (("kept", True), ("w", True), ("t", False)):
        edit.add_var(program, program.root, Variable(name, persistable=persistable))
    edit.append_op(program, program.root, Operator("delete_var", {"X": ["w", "t"]}))
    scope = Scope()
    scope.set("kept", zeros(1))
    scope.set("w", zeros(1))
    env = Plan(program, None).run(scope, {"t": zeros(1)})
    assert [env.read(name) is None for name in ("kept", "w", "t")] == [False, True, True]
