"""Operators on variables: which ops they append, and what these compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite.input as fluid_input
from fluidlite import layers
from fluidlite.core.ir import Program
from fluidlite.errors import DtypeError, ProgramError
from tests.frontend import fresh_programs, op_lines, run

LINES: list[tuple[Callable[[Any, Any, Any], Any], list[str]]] = [
    (lambda x, y, i: x + 1, ["scale(X=[x]) -> (Out=[tmp_0]) {bias=1.0}"]),
    (lambda x, y, i: 1.5 + x, ["scale(X=[x]) -> (Out=[tmp_0]) {bias=1.5}"]),
    (lambda x, y, i: x - 1.5, ["scale(X=[x]) -> (Out=[tmp_0]) {bias=-1.5}"]),
    (lambda x, y, i: 2 - x, ["scale(X=[x]) -> (Out=[tmp_0]) {bias=2.0, scale=-1.0}"]),
    (lambda x, y, i: 3 * x, ["scale(X=[x]) -> (Out=[tmp_0]) {scale=3.0}"]),
    (lambda x, y, i: x / 4, ["scale(X=[x]) -> (Out=[tmp_0]) {scale=0.25}"]),
    (lambda x, y, i: -x, ["scale(X=[x]) -> (Out=[tmp_0]) {scale=-1.0}"]),
    (lambda x, y, i: i + 1, ["scale(X=[i]) -> (Out=[tmp_0]) {bias=1.0}"]),
    (
        lambda x, y, i: i / 2,
        [
            "fill_constant() -> (Out=[tmp_0]) {dtype=3, shape=[1], value=2.0}",
            "elementwise_div(X=[i], Y=[tmp_0]) -> (Out=[tmp_1])",
        ],
    ),
    (
        lambda x, y, i: x**2,
        [
            "fill_constant() -> (Out=[tmp_0]) {shape=[1], value=2.0}",
            "elementwise_pow(X=[x], Y=[tmp_0]) -> (Out=[tmp_1])",
        ],
    ),
    (
        lambda x, y, i: 4 / x,
        [
            "fill_constant_batch_size_like(Input=[x]) -> (Out=[tmp_0]) {shape=[-1, 3], value=4.0}",
            "elementwise_div(X=[tmp_0], Y=[x]) -> (Out=[tmp_1]) {axis=0}",
        ],
    ),
    (
        lambda x, y, i: i % 3,
        [
            "fill_constant() -> (Out=[tmp_0]) {dtype=3, shape=[1], value=3.0}",
            "elementwise_mod(X=[i], Y=[tmp_0]) -> (Out=[tmp_1])",
        ],
    ),
    (
        lambda x, y, i: np.float32(2) * x,
        [
            "fill_constant_batch_size_like(Input=[x]) -> (Out=[tmp_0]) {shape=[-1, 3], value=2.0}",
            "elementwise_mul(X=[tmp_0], Y=[x]) -> (Out=[tmp_1]) {axis=0}",
        ],
    ),
    (lambda x, y, i: x + y, ["elementwise_add(X=[x], Y=[y]) -> (Out=[tmp_0])"]),
    (lambda x, y, i: x * x, ["elementwise_mul(X=[x], Y=[x]) -> (Out=[tmp_0]) {axis=0}"]),
    (
        lambda x, y, i: x - i,
        [
            "cast(X=[i]) -> (Out=[tmp_0]) {in_dtype=3, out_dtype=5}",
            "elementwise_sub(X=[x], Y=[tmp_0]) -> (Out=[tmp_1]) {axis=0}",
        ],
    ),
    (
        lambda x, y, i: x < 1,
        [
            "fill_constant() -> (Out=[tmp_0]) {shape=[1], value=1.0}",
            "less_than(X=[x], Y=[tmp_0]) -> (Out=[tmp_1])",
        ],
    ),
    (lambda x, y, i: x >= x, ["greater_equal(X=[x], Y=[x]) -> (Out=[tmp_0]) {axis=0}"]),
    (lambda x, y, i: x == y, ["equal(X=[x], Y=[y]) -> (Out=[tmp_0])"]),
    (lambda x, y, i: x.astype("int64"), ["cast(X=[x]) -> (Out=[tmp_0]) {in_dtype=5, out_dtype=3}"]),
]


@pytest.mark.parametrize(("build", "lines"), LINES)
def test_ops_of_an_operator(build: Callable[..., Any], lines: list[str]) -> None:
    with fresh_programs() as (main, _):
        build(*_operands())
        assert op_lines(main) == lines


def _operands() -> tuple[Any, Any, Any]:
    return (
        fluid_input.data("x", [None, 3]),
        fluid_input.data("y", [3]),
        fluid_input.data("i", [None, 3], "int64"),
    )


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, y, i: x + y * 2 - 1,
        lambda x, y, i: (2 - x) / (y + 0.5),
        lambda x, y, i: 2**x,
        lambda x, y, i: x**y,
        lambda x, y, i: -x * np.float32(0.5),
        lambda x, y, i: np.float64(3) - x,
        lambda x, y, i: i // 2 + i % 2,
        lambda x, y, i: (x > y) == (y < x),
        lambda x, y, i: (i != 3) == (i <= 2),
    ],
)
def test_operators_compute_what_numpy_does(compute: Callable[..., Any]) -> None:
    x = np.array([[0.5, 1.5, 2.0], [1.0, 0.25, 3.0]], np.float32)
    y = np.array([1.0, 2.0, 0.5], np.float32)
    i = np.array([[1, 2, 3], [4, 5, 6]], np.int64)
    with fresh_programs():
        result = compute(*_operands())
        (value,) = run([result], {"x": x, "y": y, "i": i})
    np.testing.assert_allclose(value.array, compute(x, y, i), rtol=1e-6)


def test_comparisons_are_bool_and_variables_hash_by_identity() -> None:
    with fresh_programs():
        x, y, _ = _operands()
        assert (x < y).dtype == "bool"
        assert len({x, y, x}) == 2


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda x, y, i: i + 1.5, DtypeError, ["'i' is int64", "1.5", "test_layers_math_op.py"]),
        (lambda x, y, i: x / 0, ProgramError, ["'x' is divided by 0"]),
        (lambda x, y, i: x + "1", ProgramError, ["'x'", "str"]),
        (lambda x, y, i: x + np.ones(3, np.float32), ProgramError, ["'x'", "ndarray", "layers.assign"]),
    ],
)
def test_bad_operands_are_named(build: Callable[..., Any], error: type[Exception], words: list[str]) -> None:
    with fresh_programs() as (main, _):
        operands = _operands()
        with pytest.raises(error) as caught:
            build(*operands)
        assert not _ops(main.desc)
    for word in words:
        assert word in str(caught.value)


def _ops(program: Program) -> list[str]:
    return [op.type for op in program.root.ops]


def test_operators_go_to_the_block_of_the_variables_program() -> None:
    with fresh_programs() as (main, _):
        i = layers.fill_constant([1], "int64", 0)
        cond = layers.less_than(i, layers.fill_constant([1], "int64", 2))
        with layers.While(cond).block():
            layers.assign(i + 1, i)
            layers.less_than(i, layers.fill_constant([1], "int64", 2), cond=cond)
        assert "scale" in _ops_of_block(main.desc, 1)


def _ops_of_block(program: Program, block: int) -> list[str]:
    return [op.type for op in program.blocks[block].ops]
