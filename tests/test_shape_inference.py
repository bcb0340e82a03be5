"""What is inferred where ops work in place, where variables stand among numbers, and at the edge of attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import layers
from fluidlite.errors import ProgramError
from tests.frontend import fresh_programs
from tests.op_harness import build


def xshape_of(out: fluid.Variable) -> tuple[int, ...]:
    """The shape of the XShape of the last op."""
    op = out.block.ops[-1]
    return tuple(out.block.var(op.output("XShape")[0]).shape)


def test_xshape_of_a_reshape_in_place_is_the_shape_before() -> None:
    with fresh_programs():
        x = layers.scale(fluid.data("x", [3, 4]))
        out = layers.reshape(x, [4, 3], inplace=True)
        assert tuple(out.shape) == (4, 3)
        assert xshape_of(out) == (0, 3, 4)


def test_a_reshape_in_place_has_the_right_gradient_shape() -> None:
    with fresh_programs():
        data = fluid.data("x", [3, 4])
        data.stop_gradient = False
        loss = layers.mean(layers.reshape(layers.scale(data), [2, 6], inplace=True))
        (gradient,) = fluid.gradients(loss, data)
        assert gradient is not None
        assert tuple(gradient.shape) == (3, 4)


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        (lambda x, _, n: layers.expand(x, [2, n]), (6, -1)),
        (lambda _, y, n: layers.expand(y, [n, 3]), (-1, 12)),
        (lambda _x, _y, n: layers.fill_constant([3, n], "float32", 1.0), (3, -1)),
        (lambda x, _, n: layers.reshape(x, [n, 6]), (-1, 6)),
        (lambda x, _, n: layers.reshape(x, [0, n]), (3, -1)),
        (lambda x, _, n: layers.slice(x, [0, 1], [0, n], [2, 3]), (2, -1)),
        (lambda x, _, n: layers.slice(x, [0, 1], [0, 1], [n, 3]), (-1, 2)),
        (lambda x, _, n: layers.strided_slice(x, [0, 1], [0, n], [2, 3], [1, 1]), (2, -1)),
    ],
)
def test_numbers_beside_variables_are_known(call: Callable[..., Any], shape: tuple[int, ...]) -> None:
    """As real Fluid 1.8.5 declares them."""
    with fresh_programs():
        x, y = fluid.data("x", [3, 4]), fluid.data("y", [-1, 4])
        assert tuple(call(x, y, layers.fill_constant([1], "int32", 2)).shape) == shape


@pytest.mark.parametrize("layer", [layers.layer_norm, layers.batch_norm, layers.data_norm])
def test_epsilon_may_be_a_thousandth(layer: Callable[..., Any]) -> None:
    """Attributes are float32, and that of 0.001 is a little more."""
    with fresh_programs():
        layer(fluid.data("x", [-1, 4]), epsilon=1e-3)
        for wrong in (0.0011, -1e-5):
            with pytest.raises(ProgramError, match=r"is not in 0\.\.0\.001 .*test_shape_inference"):
                layer(fluid.data("y", [-1, 4]), epsilon=wrong)


def test_clip_to_nothing_names_variable_and_line() -> None:
    with (
        fresh_programs(),
        pytest.raises(ProgramError, match=r"clip of 'x' to an empty range.*test_shape_inference\.py:"),
    ):
        layers.clip(fluid.data("x", [2]), 1.0, 0.0)


def test_clip_to_nothing_at_run_time_names_the_variable() -> None:
    bench = build("clip", {"X": [np.zeros(2)], "Min": [np.array([2.0])]}, {"min": 0.0, "max": 1.0})
    with pytest.raises(ProgramError, match=r"clip of 'X_0' to an empty range: min 2\.0 is above max 1\.0"):
        bench.run()
