"""Averages around optimizers: what Fluid 1.8.5 computes from the same data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import ProgramError
from tests.frontend import fresh_programs

BATCHES = np.random.RandomState(0).rand(6, 4, 3).astype(np.float32)
#: the weights after six steps of SGD
TRAINED = [0.19426136, 0.16394095, 0.14361021]


@pytest.fixture(autouse=True)
def _own_programs() -> Iterator[None]:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


def a_loss() -> fluid.Variable:
    x = fluid.data("x", [None, 3])
    weights = fluid.ParamAttr("w", fluid.initializer.Constant(0.5))
    return fluid.layers.mean(fluid.layers.square(fluid.layers.fc(x, 1, param_attr=weights, bias_attr=False)))


def trained() -> fluid.Executor:
    executor = fluid.Executor()
    executor.run(fluid.default_startup_program())
    for batch in BATCHES:
        executor.run(feed={"x": batch})
    return executor


def weights() -> Any:
    return fluid.global_scope().get("w").ravel()


def swapped(average: Any, executor: fluid.Executor, expected: list[float]) -> None:
    """Inside ``apply`` the weights are the average, afterwards what they were."""
    np.testing.assert_allclose(weights(), TRAINED, rtol=1e-6)
    for _ in range(2):
        with average.apply(executor):
            np.testing.assert_allclose(weights(), expected, rtol=1e-6)
        np.testing.assert_allclose(weights(), TRAINED, rtol=1e-6)
    with average.apply(executor, need_restore=False):
        pass
    np.testing.assert_allclose(weights(), expected, rtol=1e-6)
    average.restore(executor)
    np.testing.assert_allclose(weights(), TRAINED, rtol=1e-6)


def test_model_average() -> None:
    fluid.optimizer.SGD(0.1).minimize(a_loss())
    average = fluid.optimizer.ModelAverage(0.15, min_average_window=2, max_average_window=4)
    assert fluid.default_main_program().global_block().ops[-1].type == "average_accumulates"
    states = [var.name for var in fluid.default_main_program().list_vars() if var.name.startswith("w_")]
    assert states == [
        *("w_sum_1_0", "w_sum_2_0", "w_sum_3_0"),
        *("w_num_accumulates_0", "w_old_num_accumulates_0", "w_num_updates_0"),
    ]
    swapped(average, trained(), [0.2029193, 0.17263174, 0.15780982])


def test_parameters_can_stay_out_of_averages() -> None:
    x = fluid.data("x", [None, 3])
    loss = fluid.layers.mean(
        fluid.layers.fc(x, 1, param_attr=fluid.ParamAttr("w", do_model_average=False), bias_attr=False)
    )
    fluid.optimizer.SGD(0.1).minimize(loss)
    fluid.optimizer.ModelAverage(0.15, name="named")
    assert "average_accumulates" not in [op.type for op in fluid.default_main_program().global_block().ops]


def test_moving_average() -> None:
    fluid.optimizer.SGD(0.1).minimize(a_loss())
    average = fluid.optimizer.ExponentialMovingAverage(0.9)
    average.update()
    swapped(average, trained(), [0.26170173, 0.22702038, 0.21802646])


def test_moving_average_with_a_decay_that_grows() -> None:
    fluid.optimizer.SGD(0.1).minimize(a_loss())
    steps = fluid.layers.cast(fluid.layers.autoincreased_step_counter(begin=0), "float32")
    average = fluid.optimizer.ExponentialMovingAverage(0.9, thres_steps=steps, name="ema_")
    average.update()
    executor = trained()
    # decays 1/10, 2/11, ... 6/15
    assert fluid.global_scope().get("scheduled_ema_decay_rate").tolist() == [np.float32(0.4)]
    with average.apply(executor, need_restore=False):
        assert np.isfinite(weights()).all()


def test_lookahead() -> None:
    fluid.optimizer.LookaheadOptimizer(fluid.optimizer.SGD(0.1), alpha=0.5, k=2).minimize(a_loss())
    trained()
    np.testing.assert_allclose(weights(), [0.3201499, 0.3055873, 0.29207265], rtol=1e-6)
    np.testing.assert_array_equal(fluid.global_scope().get("w@SLOW").ravel(), weights())


def test_recomputation_changes_nothing() -> None:
    loss = a_loss()
    optimizer = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.1))
    optimizer._set_checkpoints([loss])
    optimizer.minimize(loss)
    trained()
    np.testing.assert_allclose(weights(), TRAINED, rtol=1e-6)


def test_wrong_arguments() -> None:
    sgd = fluid.optimizer.SGD(0.1)
    for arguments, message in (
        ((None,), "needs an optimizer, not NoneType"),
        ((sgd, 1.5), "alpha must be from 0 to 1"),
        ((sgd, 0.5, 0), "k must be a positive whole number"),
    ):
        with pytest.raises(ProgramError, match=message):
            fluid.optimizer.LookaheadOptimizer(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="needs an optimizer, not float"):
        fluid.optimizer.RecomputeOptimizer(0.1)  # type: ignore[arg-type]
