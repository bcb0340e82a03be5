"""Initializers: the op each puts into the startup program, its values, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from fluidlite import initializer, layers
from fluidlite.core.ir import OpRole
from fluidlite.errors import DtypeError, ProgramError, ShapeError
from fluidlite.framework import op_role
from fluidlite.initializer import Initializer
from tests.frontend import fresh_programs, op_lines, run

CASES = [
    (initializer.Constant(0.5), "fill_constant() -> (Out=[p]) {shape=[4, 6], value=0.5}"),
    (
        initializer.Uniform(-0.5, 0.25, seed=3),
        "uniform_random() -> (Out=[p]) {max=0.25, min=-0.5, seed=3, shape=[4, 6]}",
    ),
    (
        initializer.Uniform(diag_num=2, diag_step=6, diag_val=3.0),
        "uniform_random() -> (Out=[p]) {diag_num=2, diag_step=6, diag_val=3.0, shape=[4, 6]}",
    ),
    (initializer.Normal(1.0, 2.0), "gaussian_random() -> (Out=[p]) {mean=1.0, shape=[4, 6], std=2.0}"),
    (initializer.TruncatedNormal(scale=0.5), "truncated_gaussian_random() -> (Out=[p]) {shape=[4, 6], std=0.5}"),
    (
        initializer.Xavier(fan_in=2, fan_out=10),
        "uniform_random() -> (Out=[p]) {max=0.70710677, min=-0.70710677, shape=[4, 6]}",
    ),
    (
        initializer.Xavier(uniform=False, fan_in=2, seed=5),
        "gaussian_random() -> (Out=[p]) {seed=5, shape=[4, 6], std=0.5}",
    ),
    (initializer.MSRA(uniform=False, fan_in=8), "gaussian_random() -> (Out=[p]) {shape=[4, 6], std=0.5}"),
    (initializer.MSRA(fan_in=6), "uniform_random() -> (Out=[p]) {shape=[4, 6]}"),
]


@pytest.mark.parametrize(("init", "line"), CASES)
def test_the_op_of_an_initializer(init: Initializer, line: str) -> None:
    with fresh_programs() as (_, startup):
        layers.create_parameter([4, 6], "float32", name="p", default_initializer=init)
        assert op_lines(startup) == [line]


@pytest.mark.parametrize(("init", "line"), CASES)
def test_the_value_has_the_shape_and_dtype_of_the_parameter(init: Initializer, line: str) -> None:
    del line
    with fresh_programs():
        layers.create_parameter([4, 6], "float64", name="p", default_initializer=init)
        (value,) = run(["p"])
    assert value.array.shape == (4, 6)
    assert value.array.dtype == np.float64
    assert np.isfinite(value.array).all()


def test_ops_are_prepended_and_belong_to_the_forward_pass() -> None:
    with fresh_programs() as (_, startup):
        layers.create_parameter([1], "float32", name="first")
        with op_role(OpRole.OPTIMIZE):
            layers.create_parameter([1], "float32", name="second")
        assert [op.output("Out") for op in startup.desc.root.ops] == ["second", "first"]
        assert {op.role for op in startup.desc.root.ops} == {OpRole.FORWARD}


def test_defaults_of_weights_and_biases() -> None:
    with fresh_programs() as (_, startup):
        layers.create_parameter([2, 3], "float32", name="weight")
        layers.create_parameter([3], "float32", name="bias", is_bias=True)
        assert [op.type for op in startup.desc.root.ops] == ["fill_constant", "uniform_random"]
        with pytest.raises(ProgramError, match="'ids' of dtype int64 needs an initializer"):
            layers.create_parameter([3], "int64", name="ids")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((), (1, 1)), ((7,), (7, 7)), ((2, 3), (2, 3)), ((2, 3, 4), (12, 8)), ((2, 3, 4, 5), (60, 40))],
)
def test_fans(shape: tuple[int, ...], expected: tuple[float, float]) -> None:
    assert initializer.fans(shape) == expected


def test_random_seed_of_the_startup_program() -> None:
    with fresh_programs() as (_, startup):
        startup.random_seed = 9
        layers.create_parameter([2], "float32", name="a", default_initializer=initializer.Normal())
        layers.create_parameter([2], "float32", name="b", default_initializer=initializer.Xavier())
        layers.create_parameter([2], "float32", name="c", default_initializer=initializer.MSRA(seed=4))
        assert [op.attr("seed") for op in startup.desc.root.ops] == [4, 9, 9]


@pytest.mark.parametrize("seed", [0, 5])
def test_b036_two_runs_start_alike(seed: int) -> None:
    values = []
    for _ in range(2):
        with fresh_programs() as (_, startup):
            startup.random_seed = seed
            layers.create_parameter([3, 2], "float32", name="w")
            values.append(run(["w"])[0].array)
    np.testing.assert_array_equal(values[0], values[1])


def test_numpy_array() -> None:
    value = np.array([[1.5, -2.0]], np.float32)
    with fresh_programs() as (_, startup):
        init = initializer.NumpyArrayInitializer(value)
        layers.create_parameter([1, 2], "float32", name="w", default_initializer=init)
        layers.create_parameter(
            [2], "int32", name="n", default_initializer=initializer.NumpyArrayInitializer(np.arange(2, dtype=np.int32))
        )
        assert op_lines(startup)[1] == "assign_value() -> (Out=[w]) {dtype=5, fp32_values=[1.5, -2.0], shape=[1, 2]}"
        w, n = run(["w", "n"])
    np.testing.assert_array_equal(w.array, value)
    np.testing.assert_array_equal(n.array, [0, 1])


def test_numpy_array_must_fit() -> None:
    with fresh_programs():
        init = initializer.NumpyArrayInitializer(np.zeros(3, np.float32))
        with pytest.raises(ShapeError, match=r"'w' is \[3\] but the parameter is \[2\]"):
            layers.create_parameter([2], "float32", name="w", default_initializer=init)
        with pytest.raises(DtypeError, match="'n' is float32, the parameter int64"):
            layers.create_parameter([3], "int64", name="n", default_initializer=init)
    with pytest.raises(ProgramError, match="list"):
        initializer.NumpyArrayInitializer([1.0])  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match="complex"):
        initializer.value_attrs(np.zeros(2, np.complex64))


def test_bilinear_is_square() -> None:
    with fresh_programs() as (_, startup):
        layers.create_parameter([2, 1, 2, 2], "float32", name="k", default_initializer=initializer.Bilinear())
        assert startup.desc.root.ops[0].attr("shape") == (2, 1, 2, 2)
        with pytest.raises(ShapeError, match=r"'bad' is \[1, 1, 2, 3\]"):
            layers.create_parameter([1, 1, 2, 3], "float32", name="bad", default_initializer=initializer.Bilinear())


def test_uniform_bounds_in_order() -> None:
    with pytest.raises(ProgramError, match=r"high 0\.0 is below low 1\.0"):
        initializer.Uniform(1.0, 0.0)


@pytest.mark.parametrize(
    "init",
    [
        initializer.Constant(2.0),
        initializer.Uniform(),
        initializer.Normal(),
        initializer.TruncatedNormal(),
        initializer.Xavier(),
        initializer.MSRA(),
        initializer.NumpyArrayInitializer(np.ones((9, 2), np.float32)),
    ],
)
def test_every_rowwise_initializer_makes_a_table(init: Initializer) -> None:
    with fresh_programs() as (_, startup):
        ids = layers.data("ids", [1], dtype="int64")
        layers.embedding(ids, [9, 2], is_distributed=True, param_attr=init)
        (op,) = startup.desc.root.ops
        assert op.attr("auto_grown_table") is True


def test_long_names_are_the_same_classes() -> None:
    for name in ("Constant", "Uniform", "Normal", "TruncatedNormal", "Xavier", "MSRA", "Bilinear"):
        assert getattr(initializer, f"{name}Initializer") is getattr(initializer, name)
