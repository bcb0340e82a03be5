"""``variable[...]``: numpy's values, and the ops, names and attributes of Fluid 1.8.5."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import ProgramError
from tests.frontend import fresh_programs

X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
END = 10000000


@pytest.fixture(autouse=True)
def _own_programs() -> Iterator[None]:
    with fresh_programs():
        yield


def shown(op: Any) -> tuple[str, list[str], dict[str, Any]]:
    names = ("axes", "starts", "ends", "strides", "decrease_axis", "infer_flags", "axis")
    return op.type, op.output("Out"), {name: op.attr(name) for name in names if op.has_attr(name)}


def sliced(axes: list[int], starts: list[int], ends: list[int], drop: list[int]) -> Any:
    attrs = {"axes": axes, "starts": starts, "ends": ends, "decrease_axis": drop, "infer_flags": [1] * len(axes)}
    return "slice", ["x_slice_0"], attrs


CASES: list[tuple[Callable[[Any], Any], list[Any]]] = [
    (lambda x: x[1], [sliced([0], [1], [2], [0])]),
    (lambda x: x[-1], [sliced([0], [-1], [END], [0])]),
    (lambda x: x[:, 1:3], [sliced([1], [1], [3], [])]),
    (lambda x: x[0:2, -2:, 1], [sliced([0, 1, 2], [0, -2, 1], [2, END, 2], [2])]),
    (lambda x: x[1, 2], [sliced([0, 1], [1, 2], [2, 3], [0, 1])]),
    (lambda x: x[::-1], [("reverse", ["x_slice_reverse_0"], {"axis": [0]})]),
    (lambda x: x[1:, ::-1], [sliced([0], [1], [END], []), ("reverse", ["x_slice_reverse_0"], {"axis": [1]})]),
]


@pytest.mark.parametrize(("take", "ops"), CASES)
def test_items(take: Callable[[Any], Any], ops: list[Any]) -> None:
    out = take(fluid.data("x", [3, 4, 5]))
    assert [shown(op) for op in fluid.default_main_program().global_block().ops] == ops
    expected = take(X)
    assert out.shape == expected.shape
    np.testing.assert_array_equal(fluid.Executor().run(feed={"x": X}, fetch_list=[out])[0], expected)


@pytest.mark.parametrize("take", [lambda x: x[:, ::2], lambda x: x[1:3, 0:4:3], lambda x: x[:]])
def test_strides_and_all(take: Callable[[Any], Any]) -> None:
    out = take(fluid.data("x", [3, 4, 5]))
    np.testing.assert_array_equal(fluid.Executor().run(feed={"x": X}, fetch_list=[out])[0], take(X))


def test_a_variable_as_an_index() -> None:
    x, i = fluid.data("x", [3, 4, 5]), fluid.data("i", [1], "int32")
    first, second = x[i], x[:, i, 1:]
    types = [op.type for op in fluid.default_main_program().global_block().ops]
    assert types == [
        *("fill_constant", "elementwise_add", "slice"),
        *("fill_constant", "elementwise_add", "fill_constant", "fill_constant", "slice"),
    ]
    last = fluid.default_main_program().global_block().ops[-1]
    assert shown(last)[2] == {
        "axes": [1, 2],
        "starts": [-1, 1],
        "ends": [-1, END],
        "decrease_axis": [1],
        "infer_flags": [-1, 1],
    }
    found = fluid.Executor().run(feed={"x": X, "i": np.array([2], np.int32)}, fetch_list=[first, second])
    np.testing.assert_array_equal(found[0], X[2])
    np.testing.assert_array_equal(found[1], X[:, 2, 1:])


def test_gradients_pass() -> None:
    x = fluid.data("x", [3, 4, 5])
    x.stop_gradient = False
    (grad,) = fluid.gradients(fluid.layers.reduce_sum(x[1, ::-1]), x)
    expected = np.zeros_like(X)
    expected[1] = 1
    np.testing.assert_array_equal(fluid.Executor().run(feed={"x": X}, fetch_list=[grad])[0], expected)


def test_other_indices_are_refused() -> None:
    x = fluid.data("x", [3, 4, 5])
    for index, message in (
        (None, "index None"),
        (Ellipsis, "index Ellipsis"),
        (True, "index True"),
        (1.5, r"index 1\.5"),
        (slice(0, 2, 0), "index slice"),
        ((0, 0, 0, 0), "has no item of 4 indices"),
    ):
        with pytest.raises(ProgramError, match=message):
            x[index]
    with pytest.raises(TypeError, match="not iterable"):
        iter(x)  # type: ignore[call-overload]
