"""`gradients` and `calc_gradient`: any targets with respect to any inputs."""

from __future__ import annotations

import numpy as np
import pytest

import fluidlite.layers as L
from fluidlite.backward import calc_gradient, gradients
from fluidlite.core.ir import OpRole
from fluidlite.errors import GradientError, ProgramError
from fluidlite.framework import Program, Variable
from fluidlite.initializer import Constant
from fluidlite.param_attr import ParamAttr
from tests.frontend import Session, fresh_programs, lines


def input_x() -> Variable:
    """Data x [-1, 2] through which gradients flow."""
    x = L.data("x", [2])
    x.stop_gradient = False
    return x


X = np.float32([[1.0, 2.0], [3.0, -4.0]])


def values(main: Program, startup: Program, grads: list[Variable | None]) -> list[np.ndarray]:
    assert all(grad is not None for grad in grads)
    return Session(startup).run(main, {"x": X}, [grad for grad in grads if grad is not None])


def test_target_of_any_shape_starts_with_ones() -> None:
    with fresh_programs() as (main, startup):
        x = input_x()
        grads = gradients(L.square(x), x)
    assert lines(main, OpRole.BACKWARD) == [
        "shape(Input=square_0.tmp_0) -> Out=square_0.tmp_0_shape",
        "fill_constant(ShapeTensor=square_0.tmp_0_shape) -> Out=square_0.tmp_0@GRAD",
        "square_grad(Out@GRAD=square_0.tmp_0@GRAD, X=x) -> X@GRAD=x@GRAD",
    ]
    np.testing.assert_array_equal(values(main, startup, grads)[0], 2 * X)


def test_given_target_gradients() -> None:
    with fresh_programs() as (main, startup):
        x = input_x()
        y = L.square(x)
        grads = gradients(y, x, target_gradients=L.scale(x, 10.0))
    np.testing.assert_array_equal(values(main, startup, grads)[0], 20 * X * X)


def test_a_target_on_the_way_to_another_adds_its_own_gradient() -> None:
    with fresh_programs() as (main, startup):
        x = input_x()
        y = L.square(x)
        z = L.scale(y, 3.0)
        grads = gradients([y, z], [x, y, z])
    dx, dy, dz = values(main, startup, grads)
    np.testing.assert_array_equal(dz, np.ones_like(X))
    np.testing.assert_array_equal(dy, np.full_like(X, 4.0))
    np.testing.assert_array_equal(dx, 4.0 * 2 * X)


def test_a_given_target_gradient_is_not_overwritten() -> None:
    with fresh_programs() as (main, startup):
        x = input_x()
        y = L.square(x)
        given = L.scale(x, 1.0)
        (grad,) = gradients([y, L.scale(y, 3.0)], x, target_gradients=[given, None])
        assert grad is not None
    kept, dx = Session(startup).run(main, {"x": X}, [given, grad])
    np.testing.assert_array_equal(kept, X)
    np.testing.assert_array_equal(dx, (X + 3.0) * 2 * X)


def test_unreachable_and_stopped_inputs_give_none() -> None:
    with fresh_programs():
        x = input_x()
        other, stopped = L.data("other", [2]), L.data("stopped", [2])
        other.stop_gradient = False
        y = L.elementwise_mul(x, stopped)
        found = gradients(y, [x, other, stopped])
    assert [grad.name if grad is not None else None for grad in found] == ["x@GRAD", None, None]


def test_a_single_input_without_gradient_gives_an_empty_list() -> None:
    with fresh_programs():
        x, stopped = input_x(), L.data("stopped", [2])
        y = L.elementwise_mul(x, stopped)
        assert gradients(y, stopped) == []
        assert gradients(y, [stopped, stopped]) == [None, None]
        assert calc_gradient(y, stopped) is None


def test_gradients_that_fluid_loses_without_a_word() -> None:
    """Of a target itself, of one whose own gradient is stopped, and by a second call with the same target gradient."""
    with fresh_programs() as (main, startup):
        x = input_x()
        given = L.fill_constant_batch_size_like(x, [-1, 2], "float32", 3.0)
        own = gradients(x, x)
        twice = [*gradients(L.scale(x, 2.0), x, given), *gradients(L.scale(x, 4.0), x, given)]
        stopped = L.scale(x, 5.0)
        stopped.stop_gradient = True
        found = values(main, startup, [*own, *twice, *gradients(stopped, x)])
    assert [grad[0, 0] for grad in found] == [1.0, 6.0, 12.0, 5.0]


def test_only_ops_between_input_and_target_get_gradient_ops() -> None:
    with fresh_programs() as (main, _):
        h = L.fc(L.data("x", [2]), 3, param_attr=ParamAttr("w"), bias_attr=False)
        middle = L.relu(h)
        loss = L.mean(L.tanh(middle))
        (grad,) = gradients(loss, middle)
    assert grad is not None
    assert grad.name == "relu_0.tmp_0@GRAD"
    assert "relu_grad" not in "\n".join(lines(main))


def test_calc_gradient_returns_a_bare_variable_for_one_input() -> None:
    with fresh_programs():
        x = input_x()
        y = L.square(x)
        found = calc_gradient(y, x)
        both = calc_gradient(y, [x, y])
    assert isinstance(found, Variable)
    assert isinstance(both, list)


def test_twice_over_the_same_program() -> None:
    with fresh_programs() as (main, startup):
        x = input_x()
        y = L.square(x)
        grads = [gradients(y, x)[0], gradients(L.scale(y, 5.0), x)[0]]
    first, second = values(main, startup, grads)
    assert [grad.name for grad in grads if grad is not None] == ["x@GRAD", "grad/grad/x@GRAD"]
    np.testing.assert_array_equal(second, 5 * first)


def test_second_order_through_a_product() -> None:
    with fresh_programs() as (main, startup):
        x = input_x()
        (first,) = gradients(L.elementwise_mul(x, x), x)
        assert first is not None
        (second,) = gradients(L.reduce_sum(L.square(first)), x)
    assert second is not None
    assert second.name == "grad/grad/x@GRAD"
    np.testing.assert_allclose(values(main, startup, [second])[0], 8 * X)


def test_gradient_of_a_parameter_and_a_constant() -> None:
    with fresh_programs() as (main, startup):
        x = input_x()
        w = L.create_parameter([2, 1], "float32", "w", default_initializer=Constant(0.5))
        (grad,) = gradients(L.mul(x, w), w)
        assert grad is not None
    np.testing.assert_array_equal(values(main, startup, [grad])[0], X.sum(axis=0, keepdims=True).T)


def test_refusals() -> None:
    with fresh_programs():
        x = input_x()
        y = L.square(x)
        wrong = L.data("wrong", [3])
        with pytest.raises(GradientError, match="1 targets but 2"):
            gradients(y, x, target_gradients=[wrong, wrong])
        with pytest.raises(GradientError, match=r"'wrong' float32 \[-1, 3\].*square_0\.tmp_0"):
            gradients(y, x, target_gradients=wrong)
        with pytest.raises(GradientError, match="twice"):
            gradients([y, y], x)
        with pytest.raises(ProgramError, match="at least one"):
            gradients([], x)
        with pytest.raises(ProgramError, match="must be Variables"):
            gradients(y, "x")  # type: ignore[arg-type]
        with fresh_programs():
            foreign = input_x()
        with pytest.raises(ProgramError, match="different programs"):
            gradients(y, foreign)
