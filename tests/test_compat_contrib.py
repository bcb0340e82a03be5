"""`fluid.contrib`, evaluators and old control flow: values are those that Fluid 1.8.5 computes from the same parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.compat import contrib_layers, evaluator
from fluidlite.compat.dgc import DGCMomentumOptimizer
from fluidlite.compat.parallel_do import ParallelDo, get_places
from fluidlite.compat.statistics import memory_usage, op_freq_statistic
from fluidlite.errors import DtypeError, ProgramError, ShapeError
from tests.frontend import fresh_programs

SEQUENCE = (np.arange(24) % 5 * 0.1).reshape(2, 3, 4).astype(np.float32)


@pytest.fixture(autouse=True)
def _own_programs() -> Iterator[None]:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


def computed(
    outputs: Sequence[fluid.Variable], feed: Mapping[str, Any], given: Mapping[str, Any] | None = None, runs: int = 1
) -> list[list[float]]:
    """The first values of outputs, with parameters -0.3, -0.2, ... 0.3, -0.3, ... where not ``given``."""
    executor = fluid.Executor()
    executor.run(fluid.default_startup_program())
    for param in fluid.default_main_program().all_parameters():
        count = int(np.prod(param.shape))
        value = np.asarray((given or {}).get(param.name, ((np.arange(count) % 7 - 3) * 0.1).reshape(param.shape)))
        fluid.global_scope().set(param.name, value.astype(param.dtype))
    for _ in range(runs):
        values = executor.run(feed=feed, fetch_list=list(outputs))
    return [np.round(value.ravel()[:6].astype(float), 5).tolist() for value in values]


def close(found: list[list[float]], expected: list[list[float]]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5)


# ---- recurrent layers


def test_basic_lstm() -> None:
    x = fluid.data("x", [None, 3, 4])
    outputs = contrib_layers.basic_lstm(x, None, None, 3, num_layers=2)
    assert [var.shape for var in outputs] == [(-1, 3, 3), (2, -1, 3), (2, -1, 3)]
    assert [param.name for param in fluid.default_main_program().all_parameters()] == [
        f"basic_lstm_layers_{layer}/BasicLSTMUnit_0.{kind}_0" for layer in (0, 1) for kind in "wb"
    ]
    close(
        computed(outputs, {"x": SEQUENCE}),
        [
            [0.002841, 0.018414, 0.046526, 0.00416, 0.024655, 0.075086],
            [0.003829, 0.060293, 0.136436, 0.037815, 0.037971, 0.118391],
            [0.008639, 0.125201, 0.261463, 0.078998, 0.073142, 0.227894],
        ],
    )


def test_basic_lstm_of_both_directions_and_lengths() -> None:
    x, lengths = fluid.data("x", [None, 3, 4]), fluid.data("lengths", [None], "int32")
    outputs = contrib_layers.basic_lstm(x, None, None, 3, 2, lengths, bidirectional=True)
    close(
        computed(outputs, {"x": SEQUENCE, "lengths": np.array([2, 3], np.int32)}),
        [
            [0.002841, 0.018414, 0.046526, 0.004328, 0.024327, 0.074915],
            [0.020812, 0.048847, 0.1153, 0.037815, 0.037971, 0.118391],
            [0.044081, 0.095394, 0.216478, 0.078998, 0.073142, 0.227894],
        ],
    )


def test_each_direction_has_biases_of_its_own() -> None:
    x = fluid.data("x", [None, 3, 4])
    contrib_layers.basic_lstm(x, None, None, 3, bidirectional=True, param_attr=fluid.ParamAttr("p"))
    assert [param.name for param in fluid.default_main_program().all_parameters()] == [
        "p_fw_w_0",
        "basic_lstm_layers_0/BasicLSTMUnit_0.b_0",
        "p_bw_w_0",
        "basic_lstm_reverse_layers_0/BasicLSTMUnit_0.b_0",
    ]


def test_basic_lstm_takes_the_last_steps_in_the_order_of_fluid() -> None:
    """The names of what follows depend on it."""
    contrib_layers.basic_lstm(fluid.data("x", [None, 3, 4]), None, None, 3, num_layers=2)
    types = [op.type for op in fluid.default_main_program().global_block().ops]
    after = types[types.index("recurrent") + 1 :]
    assert after == [*["slice"] * 4, "concat", "reshape2", "concat", "reshape2", "transpose2"]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_basic_gru(bidirectional: bool) -> None:
    directions = 1 + bidirectional
    x, first = fluid.data("x", [None, 3, 4]), fluid.data("first", [2 * directions, None, 3])
    names = {"param_attr": fluid.ParamAttr("p"), "bias_attr": fluid.ParamAttr("b")}
    outputs = contrib_layers.basic_gru(x, first, 3, num_layers=2, bidirectional=bidirectional, **names)
    made = [param.name for param in fluid.default_main_program().all_parameters()]
    assert made[:4] == ["p_fw_w_0_gate", "p_fw_w_0_candidate", "b_fw_b_0_gate", "b_fw_b_0_candidate"]
    assert ("p_bw_w_1_gate" in made) == bidirectional
    found = computed(outputs, {"x": SEQUENCE, "first": np.full((2 * directions, 2, 3), 0.2, np.float32)})
    one, both = [-0.133427, -0.07426, -0.027096], [-0.172332, -0.118842, -0.061814]
    last = [-0.308745, -0.186615, -0.01501, -0.214798, -0.205383, -0.0352]
    close(found, [[-0.033628, 0.008352, 0.04154, *(both if bidirectional else one)], last])


def test_a_batch_that_is_not_first_and_dropout() -> None:
    x = fluid.data("x", [3, None, 4])
    out, _, _ = contrib_layers.basic_lstm(x, None, None, 3, dropout_prob=0.5, batch_first=False)
    assert out.shape == (3, -1, 3)
    assert "dropout" in [op.type for block in fluid.default_main_program().blocks for op in block.ops]
    with pytest.raises(ProgramError, match="this parameter cannot be left out"):
        contrib_layers.basic_lstm(x, None, None, 3, bias_attr=False)  # type: ignore[arg-type]


# ---- other layers


def test_pairs_and_parts() -> None:
    a, b = fluid.data("a", [None, 3]), fluid.data("b", [None, 3])
    outputs = [
        contrib_layers.fused_elemwise_activation(a, b, ["elementwise_add", "relu"]),
        contrib_layers.fused_elemwise_activation(a, b, "relu,elementwise_add"),
        contrib_layers.fused_elemwise_activation(a, b, ["elementwise_mul", "scale"], scale=0.5),
        contrib_layers.partial_concat([a, b], 1, 2),
        contrib_layers.partial_sum([a, b], 1, 2),
        contrib_layers.partial_concat(a, 2),
    ]
    feed = {"a": np.float32([[1, -2, 3]]), "b": np.float32([[-0.5, 1, -4]])}
    expected = [[1, -1, 3], [0.5, 0, 0], [-0.25, -1, -6], [-2, 3, 1, -4], [-1, -1], [3]]
    assert computed(outputs, feed) == expected
    with pytest.raises(ProgramError, match="must name two ops"):
        contrib_layers.fused_elemwise_activation(a, b, ["relu"])


def test_tree_children() -> None:
    nodes = fluid.data("nodes", [None, 1], "int32")
    outputs = contrib_layers.tdm_child(nodes, 7, 2, fluid.ParamAttr("tree"))
    assert all(var.stop_gradient for var in outputs)
    tree = [
        *([0, 0, 0, 1, 2], [0, 1, 0, 3, 4], [0, 1, 0, 5, 6], [0, 2, 1, 0, 0]),
        *([1, 2, 1, 0, 0], [2, 2, 2, 0, 0], [3, 2, 2, 0, 0]),
    ]
    assert computed(outputs, {"nodes": np.array([[1], [2]], np.int32)}, {"tree": tree}) == [[3, 4, 5, 6], [0, 1, 1, 1]]


def sampled(**arguments: Any) -> tuple[Any, Any, Any]:
    leaves = fluid.data("leaves", [None, 1], "int32")
    names = {"tree_travel_attr": fluid.ParamAttr("travel"), "tree_layer_attr": fluid.ParamAttr("layer")}
    return contrib_layers.tdm_sampler(leaves, [1, 2], [2, 4], 4, **names, seed=1, **arguments)


TREE = {"travel": [[1, 3], [1, 4], [2, 5], [2, 6]], "layer": [[1], [2], [3], [4], [5], [6]]}
LEAVES = {"leaves": np.array([[0], [2]], np.int32)}


def test_tree_samples() -> None:
    nodes, labels, masks = sampled()
    # as in Fluid, for each layer a slice and a shape of each of the three
    one = ["slice"] * 3 + ["reshape2"] * 3
    assert [op.type for op in fluid.default_main_program().global_block().ops] == ["tdm_sampler", *one, *one]
    assert [var.shape for var in nodes] == [(-1, 2, 1), (-1, 3, 1)]
    first, second, *rest = computed([*nodes, *labels, *masks], LEAVES, TREE)
    assert first == [1, 2, 2, 1]
    assert (second[0], second[3]) == (3, 5)
    assert all(set(drawn) <= {3, 4, 5, 6} - {positive} for drawn, positive in ((second[1:3], 3), (second[4:], 5)))
    assert rest == [[1, 0, 1, 0], [1, 0, 0, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]


def test_tree_samples_in_one_and_errors() -> None:
    nodes, labels, _ = sampled(output_list=False, output_positive=False)
    values, zeros = computed([nodes, labels], LEAVES, TREE)
    assert (values[0], zeros) == (2, [0] * 6)
    x = fluid.data("x", [None, 1], "int32")
    for negatives, layers, leaves, message in (
        ([1], [2, 4], 4, "1 numbers of samples for 2 layers"),
        ([2, 1], [2, 4], 4, "layer 0 has 2 nodes, too few for 2 negative samples"),
        ([1, 1], [2, 4], 6, "6 leaves, but only 6 nodes"),
    ):
        with pytest.raises(ProgramError, match=message):
            contrib_layers.tdm_sampler(x, negatives, layers, leaves)


def test_sums_of_clicks() -> None:
    a, label = fluid.data("a", [None, 1]), fluid.data("label", [None, 1])
    outputs = contrib_layers.ctr_metric_bundle(a, label)
    assert [op.type for op in fluid.default_main_program().global_block().ops] == [
        *("elementwise_sub", "squared_l2_norm", "elementwise_add", "l1_norm", "elementwise_add"),
        *("reduce_sum", "elementwise_add", "sigmoid", "reduce_sum", "elementwise_add"),
        *("reduce_sum", "elementwise_add", "fill_constant_batch_size_like", "reduce_sum", "elementwise_add"),
    ]
    feed = {"a": np.float32([[0.2], [0.7]]), "label": np.float32([[0], [1]])}
    close(computed(outputs, feed, runs=2), [[0.26], [1.0], [1.8], [2.436043], [2.0], [4.0]])
    with pytest.raises(ProgramError, match="differ"):
        contrib_layers.ctr_metric_bundle(a, fluid.data("b", [None, 2]))


def test_shuffled_batches() -> None:
    x = fluid.data("x", [None, 1])
    fluid.default_main_program().random_seed = 9
    shuffled = [contrib_layers.shuffle_batch(x), contrib_layers.shuffle_batch(x, 3)]
    ops = fluid.default_main_program().global_block().ops
    assert [op.attr("startup_seed") for op in ops] == [9, 3]
    rows = np.arange(50, dtype=np.float32).reshape(-1, 1)
    executor = fluid.Executor()
    first, second = (
        [v.ravel().tolist() for v in executor.run(feed={"x": rows}, fetch_list=shuffled)] for _ in range(2)
    )
    assert all(sorted(order) == rows.ravel().tolist() != order for order in [*first, *second])
    assert first != second
    fluid.default_main_program().random_seed = 0
    contrib_layers.shuffle_batch(x, fluid.layers.fill_constant([1], "int64", 5))
    contrib_layers.shuffle_batch(x)
    assert ops[0].type == "shuffle_batch"


def test_index_sample_and_sparse_embedding() -> None:
    x, at = fluid.data("x", [None, 3]), fluid.data("at", [None, 2], "int64")
    ids = fluid.data("ids", [None, 1], "int64")
    taken = contrib_layers.index_sample(x, at)
    found = contrib_layers.sparse_embedding(ids, [10, 4], is_test=True, param_attr=fluid.ParamAttr("emb"))
    assert found.op is not None
    assert [found.op.attr(name) for name in ("is_sparse", "is_distributed", "is_test")] == [True, True, True]
    executor = fluid.Executor()
    executor.run(fluid.default_startup_program())
    feed = {"x": np.float32([[1, 2, 3]]), "at": np.array([[2, 0]]), "ids": np.array([[5]])}
    values = executor.run(feed=feed, fetch_list=[taken, found])
    assert [value.tolist() for value in values] == [[[3.0, 1.0]], [[0.0] * 4]]


# ---- programs in numbers


def test_memory_of_a_program() -> None:
    x = fluid.data("x", [None, 30])
    fluid.layers.mean(fluid.layers.fc(fluid.layers.fc(x, 10), 1))
    program = fluid.default_main_program()
    # as Fluid 1.8.5 estimates it
    for batch, expected, unit in ((10, (928.2, 972.4), "B"), (100000, (8.81195468902588, 9.231571578979493), "MB")):
        low, high, found = memory_usage(program, batch)
        assert (low, high) == pytest.approx(expected)
        assert found == unit
    with pytest.raises(ProgramError, match="batch_size must be positive"):
        memory_usage(program, 0)
    for function in (op_freq_statistic, lambda p: memory_usage(p, 1)):
        with pytest.raises(DtypeError, match="needs a Program"):
            function("program")  # type: ignore[arg-type]
    fluid.layers.relu(fluid.data("y", [None, None]))
    with pytest.raises(ShapeError, match="more than one unknown size"):
        memory_usage(program, 1)


def test_frequency_of_ops() -> None:
    x = fluid.layers.relu(fluid.data("x", [None, 2]))
    fluid.layers.relu(fluid.layers.scale(x, 2.0))
    assert op_freq_statistic(fluid.default_main_program()) == (
        [("relu", 2), ("scale", 1)],
        [("relu->scale", 1), ("scale->relu", 1)],
    )


# ---- evaluators

CHUNKS = {
    "input": fluid.create_lod_tensor(np.array([[0], [1], [4], [2], [3]]), [[3, 2]]),
    "label": fluid.create_lod_tensor(np.array([[0], [1], [4], [2], [4]]), [[3, 2]]),
}


def evaluated(make: Callable[..., evaluator.Evaluator], *arguments: Any) -> tuple[evaluator.Evaluator, Any, Any]:
    """An evaluator after two batches; with its values of the last batch and of all."""
    slots = [fluid.data(name, [None, 1], "int64", lod_level=1) for name in ("input", "label")]
    with pytest.warns(UserWarning, match=r"is old: use fluid\.metrics"):
        made = make(*slots, *arguments)
    executor: Any = fluid.Executor()
    executor.run(fluid.default_startup_program())
    made.reset(executor)
    for _ in range(2):
        batch = executor.run(feed=CHUNKS, fetch_list=made.metrics)
    return made, [value.tolist() for value in batch], [value.tolist() for value in made.eval(executor)]  # type: ignore[attr-defined]


def test_chunks() -> None:
    made, batch, total = evaluated(evaluator.ChunkEvaluator, "IOB", 2)
    assert batch == total == [[0.5]] * 3
    assert [state.name for state in made.states] == [
        f"chunk_eval_0_{index}_{name}"
        for index, name in enumerate(("num_infer_chunks", "num_label_chunks", "num_correct_chunks"))
    ]
    executor: Any = fluid.Executor()
    made.reset(executor)
    assert [value.tolist() for value in made.eval(executor)] == [[0.0]] * 3  # type: ignore[attr-defined]


def test_edit_distances() -> None:
    made, _, total = evaluated(evaluator.EditDistance)
    assert total == [[0.25], [0.5]]
    executor: Any = fluid.Executor()
    made.reset(executor)
    assert np.isnan(np.concatenate(made.eval(executor))).all()  # type: ignore[attr-defined]


# ---- devices


def test_parallel_do_is_done_once() -> None:
    x = fluid.data("x", [None, 2])
    parallel = ParallelDo(get_places(device_count=4))
    with pytest.raises(ProgramError, match="read_input belongs into"):
        parallel.read_input(x)
    with parallel.do():
        doubled = fluid.layers.scale(parallel.read_input(x), 2.0)
        parallel.write_output(doubled)
        with pytest.raises(ProgramError, match="has no result"):
            parallel()
    mean = fluid.layers.mean(parallel())
    assert fluid.Executor().run(feed={"x": np.ones([3, 2], np.float32)}, fetch_list=[mean])[0].tolist() == [2.0]
    with parallel.do():
        parallel.write_output(x)
    assert parallel() == [doubled, x]


def test_compressed_momentum_is_momentum() -> None:
    x = fluid.data("x", [None, 2])
    loss = fluid.layers.mean(fluid.layers.fc(x, 1))
    with pytest.warns(UserWarning, match="is MomentumOptimizer here"):
        optimizer = DGCMomentumOptimizer(0.1, 0.9, rampup_begin_step=1252, sparsity=[0.999, 0.999])
    optimizer.minimize(loss)
    assert fluid.default_main_program().global_block().ops[-1].type == "momentum"
