"""Turns of phrase that public scripts for Fluid have, beside those of `tests/fluid_scripts`: each was an error once."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.compat import fetched
from fluidlite.compat.run import SITE
from fluidlite.core.ir import OpRole
from fluidlite.errors import NotSupported, ShapeError
from fluidlite.layer_helper import LayerHelper
from fluidlite.param_attr import ParamAttr
from fluidlite.values.lod import LoDTensor
from tests.frontend import fresh_programs

LENGTHS = [[2, 0, 3]]


@pytest.fixture(autouse=True)
def _as_scripts_do(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(SITE))
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


def fetch(feed: dict[str, Any], *variables: fluid.Variable) -> list[Any]:
    executor = fluid.Executor()
    executor.run(fluid.default_startup_program())
    return executor.run(feed=feed, fetch_list=list(variables), return_numpy=False)


def sequences(width: int) -> LoDTensor:
    rows = np.arange(5 * width, dtype=np.float32).reshape(5, width)
    return fluid.create_lod_tensor(rows, LENGTHS, fluid.CPUPlace())


def test_sequences_go_through_ops_that_keep_their_rows() -> None:
    """Session-based recommendation scores sampled items so: repeated, multiplied, summed, and cut into sequences again."""
    x = fluid.data("x", [None, 4], lod_level=1)
    layers = fluid.layers
    kept = [
        layers.expand(x, [1, 2]),
        layers.reduce_sum(x, dim=1, keep_dim=True),
        layers.slice(x, axes=[1], starts=[0], ends=[2]),
        layers.strided_slice(x, axes=[1], starts=[0], ends=[4], strides=[2]),
        layers.stack([x, x], axis=1),
        layers.pad(x, [0, 0, 1, 1]),
        layers.reshape(x, [-1, 2, 2]),
    ]
    found = fetch({"x": sequences(4)}, *kept)
    assert [value.recursive_sequence_lengths() for value in found] == [LENGTHS] * len(kept)
    assert [var.lod_level for var in kept] == [1] * len(kept)


def test_sequences_behind_sequences() -> None:
    x, y = (fluid.data(name, [None, 2], lod_level=1) for name in "xy")
    joined, scored = fluid.layers.concat([x, y], axis=0), fluid.layers.reduce_sum(x, dim=0)
    found = fetch({"x": sequences(2), "y": sequences(2)}, joined, scored)
    assert found[0].recursive_sequence_lengths() == [LENGTHS[0] * 2]
    assert found[1].recursive_sequence_lengths() == []


def test_padded_sequences_are_scored_against_labels_of_their_shape() -> None:
    """As translation does: probabilities (batch, steps, words), labels (batch, steps), a mask of that shape."""
    probability = fluid.data("p", [None, None, 3])
    label, mask = fluid.data("label", [None, None], "int64"), fluid.data("mask", [None, None])
    probability.stop_gradient = False
    cost = fluid.layers.cross_entropy(probability, label)
    loss = fluid.layers.reduce_sum(cost * mask) / fluid.layers.reduce_sum(mask)
    (gradient,) = fluid.gradients([loss], [probability])
    feed = {"p": np.full((1, 2, 3), 0.5, np.float32), "label": np.array([[2, 0]]), "mask": np.float32([[1, 0]])}
    assert cost.shape == (-1, -1)
    costs, total, slope = (np.array(value) for value in fetch(feed, cost, loss, gradient))
    np.testing.assert_allclose(costs, np.log([[2, 2]]), rtol=1e-6)
    np.testing.assert_allclose(total, [np.log(2)], rtol=1e-6)
    assert slope.tolist() == [[[0, 0, -2], [0, 0, 0]]]
    with pytest.raises(ShapeError, match="must have the rank of X"):
        fluid.layers.cross_entropy(probability, fluid.layers.cast(probability, "float32"), soft_label=True) and (
            fluid.layers.cross_entropy(probability, fluid.data("one", [None], "int64"))
        )


def test_the_state_of_a_metric_is_set_back_by_its_dimensions() -> None:
    x, label = fluid.data("x", [None, 2]), fluid.data("label", [None, 1], "int64")
    area, _, states = fluid.layers.auc(x, label, num_thresholds=7)
    feed = {"x": np.float32([[0.2, 0.8], [0.9, 0.1]]), "label": np.array([[1], [0]])}
    first = fetch(feed, area)[0]
    assert first._get_float_element(0) == 1.0
    for state in states:
        tensor = fluid.global_scope().find_var(state.name).get_tensor()
        assert np.array(tensor).any()
        tensor.set(np.zeros(tensor._get_dims()).astype("int64"), fluid.CPUPlace())
        assert not np.array(fluid.global_scope().find_var(state.name).get_tensor()).any()
    assert fluid.Scope().var("new").get_tensor()._get_dims() == [0]


def test_names_that_modules_of_fluid_import_themselves() -> None:
    for name in ("tensor", "nn", "control_flow", "io", "loss", "ops", "metric_op"):
        module = importlib.import_module(f"paddle.fluid.layers.{name}")
        assert (module.Variable, module.LayerHelper, module.ParamAttr) == (fluid.Variable, LayerHelper, ParamAttr)


def test_decoders_of_contrib_are_left_out_from_every_place() -> None:
    names: dict[str, Any] = {}
    exec("from paddle.fluid.contrib.decoder.beam_search_decoder import *", names)
    for name in ("InitState", "StateCell", "TrainingDecoder", "BeamSearchDecoder"):
        with pytest.raises(NotSupported, match=rf"{name} is not supported .* use layers.BeamSearchDecoder"):
            names[name]()


def test_a_learning_rate_scaled_by_hand() -> None:
    rate = fluid.layers.noam_decay(16, 100)
    with fluid.default_main_program()._lr_schedule_guard():
        scaled = rate * 2.0
    with fluid.default_main_program()._lr_schedule_guard(is_with_opt=True):
        fluid.layers.scale(scaled, 2.0)
    fluid.layers.scale(scaled, 2.0)
    roles = [op.attr("op_role") for op in fluid.default_main_program().global_block().ops[-3:]]
    assert roles == [OpRole.LR_SCHED, OpRole.LR_SCHED | OpRole.OPTIMIZE, OpRole.FORWARD]


def test_the_rate_of_an_optimizer_is_fetched_to_be_logged() -> None:
    loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 2]), 1))
    fixed = fluid.optimizer.SGD(0.25)
    assert fixed._global_learning_rate() is None
    fixed.minimize(loss)
    rate = fixed._global_learning_rate()
    assert np.array(fetch({"x": np.ones((1, 2), np.float32)}, rate)[0]).tolist() == [0.25]
    schedule = fluid.layers.cosine_decay(0.1, 4, 3)
    scheduled = fluid.optimizer.SGD(schedule)
    assert scheduled._global_learning_rate(fluid.default_main_program()) is schedule
    assert scheduled._global_learning_rate(fluid.Program()) is None


def test_first_values_were_once_put_on_the_cpu() -> None:
    initializer = importlib.import_module("paddle.fluid.initializer")
    with initializer.init_on_cpu():
        rate = fluid.layers.fill_constant([1], "float32", 0.5)
    assert not initializer.force_init_on_cpu()
    assert np.array(fetch({}, rate)[0]).tolist() == [0.5]


def test_trainers_of_contrib_are_those_of_fluid() -> None:
    for name, members in (("trainer", ("Trainer", "EndStepEvent")), ("inferencer", ("Inferencer",))):
        old, new = (importlib.import_module(f"paddle.fluid.{where}{name}") for where in ("", "contrib."))
        assert all(getattr(old, member) is getattr(new, member) for member in members)


def test_fetched_tensors_as_arrays() -> None:
    one = LoDTensor(np.float32([0.5]))
    assert float(fetched.as_numpy(one)) == 0.5
    assert fetched.as_numpy([one, LoDTensor()])[1] is None
