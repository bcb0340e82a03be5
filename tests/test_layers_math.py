"""Arithmetic, shape and constant layers: ops, names, static shapes, values and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite.input as fluid_input
from fluidlite import layers
from fluidlite.errors import DtypeError, ProgramError, ShapeError
from tests.frontend import fresh_programs, op_lines, run


def _x() -> Any:
    return fluid_input.data("x", [None, 3, 4])


LINES: list[tuple[Callable[[Any], Any], tuple[int, ...], list[str]]] = [
    (layers.reduce_sum, (1,), ["reduce_sum(X=[x]) -> (Out=[reduce_sum_0.tmp_0]) {reduce_all=True}"]),
    (
        lambda x: layers.reduce_mean(x, dim=[1, -1], keep_dim=True),
        (-1, 1, 1),
        ["reduce_mean(X=[x]) -> (Out=[reduce_mean_0.tmp_0]) {dim=[1, -1], keep_dim=True}"],
    ),
    (
        lambda x: layers.reduce_max(x, dim=1, name="m"),
        (-1, 4),
        ["reduce_max(X=[x]) -> (Out=[m.tmp_0]) {dim=[1]}"],
    ),
    (layers.mean, (1,), ["mean(X=[x]) -> (Out=[mean_0.tmp_0])"]),
    (
        lambda x: layers.scale(x, 2.0, 1.0, bias_after_scale=False, act="relu"),
        (-1, 3, 4),
        [
            "scale(X=[x]) -> (Out=[scale_0.tmp_0]) {bias=1.0, bias_after_scale=False, scale=2.0}",
            "relu(X=[scale_0.tmp_0]) -> (Out=[scale_0.tmp_1])",
        ],
    ),
    (
        lambda x: layers.elementwise_mul(x, x, act="tanh", name="em"),
        (-1, 3, 4),
        ["elementwise_mul(X=[x], Y=[x]) -> (Out=[em.tmp_0])", "tanh(X=[em.tmp_0]) -> (Out=[em.tmp_1])"],
    ),
    (
        lambda x: layers.matmul(x, x, transpose_y=True, alpha=0.5),
        (-1, 3, 3),
        ["matmul(X=[x], Y=[x]) -> (Out=[matmul_0.tmp_0]) {alpha=0.5, transpose_Y=True}"],
    ),
    (
        lambda x: layers.reshape(x, [-1, 12], act="relu"),
        (-1, 12),
        [
            "reshape2(X=[x]) -> (Out=[reshape2_0.tmp_0], XShape=[reshape2_0.tmp_1]) {shape=[-1, 12]}",
            "relu(X=[reshape2_0.tmp_0]) -> (Out=[reshape2_0.tmp_2])",
        ],
    ),
    (
        lambda x: layers.transpose(x, [1, 0, 2]),
        (3, -1, 4),
        ["transpose2(X=[x]) -> (Out=[transpose_0.tmp_0], XShape=[transpose_0.tmp_1]) {axis=[1, 0, 2]}"],
    ),
    (
        lambda x: layers.unsqueeze(x, 1),
        (-1, 1, 3, 4),
        ["unsqueeze2(X=[x]) -> (Out=[unsqueeze2_0.tmp_0], XShape=[unsqueeze2_0.tmp_1]) {axes=[1]}"],
    ),
    (
        lambda x: layers.split(x, 2, dim=-1)[1],
        (-1, 3, 2),
        ["split(X=[x]) -> (Out=[split_0.tmp_0 split_0.tmp_1]) {axis=2, num=2}"],
    ),
    (
        lambda x: layers.split(x, [1, 2], dim=1, name="s")[0],
        (-1, 1, 4),
        ["split(X=[x]) -> (Out=[s.tmp_0 s.tmp_1]) {axis=1, sections=[1, 2]}"],
    ),
    (
        lambda x: layers.slice(x, [1, 2], [0, -2], [2, 100]),
        (-1, 2, 2),
        ["slice(Input=[x]) -> (Out=[slice_0.tmp_0]) {axes=[1, 2], ends=[2, 100], infer_flags=[1, 1], starts=[0, -2]}"],
    ),
    (
        lambda x: layers.concat([x, x], axis=-1, name="c"),
        (-1, 3, 8),
        ["concat(X=[x x]) -> (Out=[c.tmp_0]) {axis=-1}"],
    ),
    (lambda x: layers.stack([x, x], axis=1), (-1, 2, 3, 4), ["stack(X=[x x]) -> (Y=[stack_0.tmp_0]) {axis=1}"]),
    (
        lambda x: layers.cast(x, np.float64),
        (-1, 3, 4),
        ["cast(X=[x]) -> (Out=[cast_0.tmp_0]) {in_dtype=5, out_dtype=6}"],
    ),
    (
        lambda x: layers.topk(x, 2)[0],
        (-1, 3, 2),
        ["top_k(X=[x]) -> (Indices=[top_k_0.tmp_1], Out=[top_k_0.tmp_0]) {k=2}"],
    ),
    (lambda x: layers.pow(x, 2.0), (-1, 3, 4), ["pow(X=[x]) -> (Out=[pow_0.tmp_0]) {factor=2.0}"]),
    (
        lambda x: layers.fill_constant_batch_size_like(x, [-1, 1], "int64", 2),
        (-1, 1),
        [
            "fill_constant_batch_size_like(Input=[x]) -> (Out=[fill_constant_batch_size_like_0.tmp_0]) "
            "{dtype=3, shape=[-1, 1], str_value=2, value=2.0}"
        ],
    ),
]


@pytest.mark.parametrize(("build", "shape", "lines"), LINES)
def test_ops_and_static_shape(build: Callable[[Any], Any], shape: tuple[int, ...], lines: list[str]) -> None:
    with fresh_programs() as (main, _):
        assert build(_x()).shape == shape
        assert op_lines(main) == lines


X = (np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 11) / 7


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (layers.relu, np.maximum(X, 0)),
        (lambda x: layers.leaky_relu(x, alpha=0.1), np.where(X > 0, X, 0.1 * X)),
        (lambda x: layers.swish(x, beta=2.0), X / (1 + np.exp(-2 * X))),
        (lambda x: layers.clip(x, -0.5, 0.5), np.clip(X, -0.5, 0.5)),
        (lambda x: layers.sum([x, x, x]), 3 * X),
        (lambda x: layers.elementwise_add(x, layers.reduce_sum(x, dim=2), axis=0), X + X.sum(2, keepdims=True)),
        (lambda x: layers.l2_normalize(x, axis=1), X / np.sqrt((X**2).sum(1, keepdims=True) + 1e-12)),
        (lambda x: layers.matmul(x, x, transpose_x=True), np.swapaxes(X, 1, 2) @ X),
        (lambda x: layers.reshape(x, [0, -1]), X.reshape(2, -1)),
        (lambda x: layers.squeeze(layers.unsqueeze(x, [1]), [1]), X),
        (lambda x: layers.slice(x, [0, 2], [-1, 1], [100, 3]), X[-1:, :, 1:3]),
        (lambda x: layers.stack(layers.split(x, 2, dim=2), axis=1), np.stack(np.split(X, 2, 2), 1)),
        (lambda x: layers.expand(x, [1, 2, 1]), np.tile(X, (1, 2, 1))),
        (lambda x: layers.cumsum(x, axis=1), np.cumsum(X, 1)),
        (lambda x: layers.reduce_prod(x, dim=[0, 2]), X.prod((0, 2))),
        (layers.zeros_like, np.zeros_like(X)),
        (lambda x: layers.cast(x * 3.0, "int64"), (X * np.float32(3)).astype(np.int64)),
        (lambda x: layers.fill_constant([2], "int64", 2**40 + 1), [2**40 + 1] * 2),
        (lambda x: layers.fill_constant([1, 2], "bool", value=True), [[True, True]]),
        (lambda x: layers.assign(np.array([[1, 2]], np.int32)), [[1, 2]]),
        (lambda x: layers.unstack(x, axis=1)[2], X[:, 2]),
        (lambda x: layers.fill_constant([2], "float32", layers.mean(x)), [X.mean()] * 2),
        (lambda x: layers.range(layers.fill_constant([1], "int32", 1), 7, 2, "float32"), [1, 3, 5]),
    ],
)
def test_values(build: Callable[[Any], Any], expected: Any) -> None:
    with fresh_programs():
        (value,) = run([build(_x())], {"x": X})
    np.testing.assert_allclose(value.array, expected, rtol=2e-6, atol=1e-6)


def test_shapes_from_variables() -> None:
    with fresh_programs() as (main, _):
        x = _x()
        two = layers.fill_constant([1], "int32", 2)
        assert layers.reshape(x, [two, -1]).shape == (-1, -1)
        layers.fill_constant([two, 3], "float32", 1.0)
        assert op_lines(main) == [
            "fill_constant() -> (Out=[fill_constant_0.tmp_0]) {dtype=2, shape=[1], str_value=2, value=2.0}",
            "fill_constant() -> (Out=[reshape2_0.tmp_0]) "
            "{dtype=2, force_cpu=True, shape=[1], str_value=-1, value=-1.0}",
            "reshape2(ShapeTensor=[fill_constant_0.tmp_0 reshape2_0.tmp_0], X=[x]) -> "
            "(Out=[reshape2_0.tmp_1], XShape=[reshape2_0.tmp_2]) {shape=[-1, -1]}",
            "fill_constant() -> (Out=[fill_constant_3.tmp_0]) "
            "{dtype=2, force_cpu=True, shape=[1], str_value=3, value=3.0}",
            "fill_constant(ShapeTensorList=[fill_constant_0.tmp_0 fill_constant_3.tmp_0]) -> "
            "(Out=[fill_constant_2.tmp_0]) {shape=[-1, 3], str_value=1.0, value=1.0}",
        ]


def test_written_to_a_given_variable() -> None:
    with fresh_programs() as (main, _):
        x = _x()
        assert layers.assign(x, output=x) is x
        assert layers.sums([x, x], out=x) is x
        assert layers.zeros_like(x, out=x) is x
        assert [line.split("Out=")[1][:3] for line in op_lines(main)] == ["[x]"] * 3
        assert layers.assign(x).name == "assign_1.tmp_0"


def test_created_variables() -> None:
    with fresh_programs() as (main, startup):
        assert layers.create_tensor("int64").name == "create_tensor_0"
        assert layers.create_parameter([2], "float32", name="mine").name == "mine"
        assert layers.create_parameter([2], "float32").name == "create_parameter_0.w_0"
        total = layers.create_global_var([1], 1.5, "float32", persistable=True, name="total")
        assert (total.persistable, total.stop_gradient) == (True, True)
        assert layers.create_global_var([1], 0.0, "float32").name == "_generated_var_0"
        assert "fill_constant() -> (Out=[total]) {shape=[1], value=1.5}" in op_lines(startup)
        assert not main.desc.root.ops


def test_data_rules() -> None:
    with fresh_programs() as (main, _):
        assert layers.data("a", [2]).shape == (-1, 2)
        assert layers.data("b", [None, 2]).shape == (-1, 2)
        assert layers.data("c", [2, -1]).shape == (2, -1)
        assert layers.data("d", [2], append_batch_size=False).shape == (2,)
        assert not layers.data("e", [2], stop_gradient=False).stop_gradient
        strict = fluid_input.data("f", [2, None], "int64", lod_level=1)
        assert (strict.shape, strict.dtype, strict.lod_level) == ((2, -1), "int64", 1)
        flags = {name: (var.need_check_feed, var.is_data) for name, var in main.desc.root.vars.items()}
        assert (flags["a"], flags["f"]) == ((False, True), (True, True))
        assert layers.data("a", [2]) is main.global_block().var("a")
        with pytest.raises(ProgramError, match=r"'a' is already declared as float32 \[-1, 2\]"):
            layers.data("a", [3])


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda x, i: layers.relu(i), DtypeError, ["relu", "'i'", "int64", "test_layers_math.py"]),
        (lambda x, i: layers.relu([x]), ProgramError, ["relu", "'x'", "list"]),
        (layers.elementwise_add, DtypeError, ["'x' is float32", "'i' is int64"]),
        (lambda x, i: layers.elementwise_add(x, 1.0), ProgramError, ["elementwise_add", "'y'", "float"]),
        (
            lambda x, i: layers.elementwise_add(x, layers.fill_constant([5], "float32", 1.0)),
            ShapeError,
            ["elementwise_add"],
        ),
        (lambda x, i: layers.concat([x, i]), DtypeError, ["concat", "'i' is int64"]),
        (lambda x, i: layers.concat([]), ProgramError, ["concat", "empty"]),
        (lambda x, i: layers.matmul(x, layers.reduce_sum(x)), ShapeError, ["matmul"]),
        (lambda x, i: layers.reshape(x, [-1, -1]), ShapeError, ["[-1, -1]", "'x'"]),
        (lambda x, i: layers.transpose(x, [0, 1]), ShapeError, ["perm [0, 1]", "'x'"]),
        (lambda x, i: layers.split(x, 2, dim=1), ShapeError, ["dimension 1 of 'x' is 3"]),
        (lambda x, i: layers.split(x, 2, dim=7), ShapeError, ["no dimension 7"]),
        (lambda x, i: layers.flatten(x, axis=4), ShapeError, ["axis 4", "'x'"]),
        (lambda x, i: layers.unstack(x, axis=0), ShapeError, ["'x'", "num"]),
        (lambda x, i: layers.slice(x, [0, 1], [0], [1]), ProgramError, ["2 axes", "1 positions"]),
        (lambda x, i: layers.gather(x, x), DtypeError, ["gather", "'x'"]),
        (lambda x, i: layers.assign(np.array([1.5])), DtypeError, ["float64"]),
        (lambda x, i: layers.assign([1.5]), ProgramError, ["list"]),
        (lambda x, i: layers.assign(np.zeros(2**20 + 1, np.float32)), ShapeError, ["feed them"]),
        (lambda x, i: layers.cast(x, "float3"), DtypeError, ["float3"]),
        (lambda x, i: layers.create_parameter([2], "float32", attr=False), ProgramError, ["attr=False"]),
        (lambda x, i: layers.data("", [2]), ProgramError, ["name"]),
    ],
)
def test_bad_arguments_are_named(build: Callable[..., object], error: type[Exception], words: list[str]) -> None:
    with fresh_programs():
        x, ids = _x(), fluid_input.data("i", [None, 3], "int64")
        with pytest.raises(error) as caught:
            build(x, ids)
    for word in words:
        assert word in str(caught.value)
