"""``fluid.contrib.layers``: layers that Fluid keeps apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite import layers, unique_name
from fluidlite.compat.contrib_rnn import BasicGRUUnit, BasicLSTMUnit, basic_gru, basic_lstm
from fluidlite.errors import ProgramError
from fluidlite.framework import Variable
from fluidlite.framework.dtypes import dtype_number
from fluidlite.initializer import Constant
from fluidlite.layer_helper import LayerHelper
from fluidlite.layers import embedding, fused_embedding_seq_pool
from fluidlite.layers.matching import match_matrix_tensor, sequence_topk_avg_pooling, tree_conv, var_conv_2d
from fluidlite.param_attr import AttrLike

__all__ = [
    "BasicGRUUnit",
    "BasicLSTMUnit",
    "basic_gru",
    "basic_lstm",
    "ctr_metric_bundle",
    "fused_elemwise_activation",
    "fused_embedding_seq_pool",
    "index_sample",
    "match_matrix_tensor",
    "partial_concat",
    "partial_sum",
    "sequence_topk_avg_pooling",
    "shuffle_batch",
    "sparse_embedding",
    "tdm_child",
    "tdm_sampler",
    "tree_conv",
    "var_conv_2d",
]


def sparse_embedding(
    input: Variable,
    size: Sequence[int],
    padding_idx: int | None = None,
    is_test: bool = False,
    entry: object = None,
    table_class: str = "MemorySparseTable",
    param_attr: AttrLike = None,
    dtype: object = "float32",
) -> Variable:
    """An embedding whose table is auto-grown and lives on the servers of a job; see `layers.embedding`.

    ``entry`` and ``table_class`` say how Paddle's servers keep such a table, and change nothing here. With ``is_test`` an
    id without a row reads zeros.
    """
    found = embedding(
        input, size, is_sparse=True, is_distributed=True, padding_idx=padding_idx, param_attr=param_attr, dtype=dtype
    )
    if is_test and found.op is not None:
        found.op.set_attr("is_test", value=True)
    return found


def index_sample(x: Variable, index: Variable) -> Variable:
    """Row by row, the elements of ``x`` [N, M] at the places ``index`` [N, K]: [N, K]."""
    helper = LayerHelper("index_sample")
    return helper.one("index_sample", {"X": [x], "Index": [index]}, dtype=x.dtype)


def fused_elemwise_activation(
    x: Variable,
    y: Variable,
    functor_list: str | Sequence[str],
    axis: int = -1,
    scale: float = 0.0,
    save_intermediate_out: bool = True,
) -> Variable:
    """An elementwise op and an activation in one: ``["elementwise_add", "relu"]`` is x + relu(y), ``["relu",
    "elementwise_add"]`` is relu(x + y)."""
    functors = functor_list.split(",") if isinstance(functor_list, str) else list(functor_list)
    if len(functors) != 2:
        raise ProgramError(f"fused_elemwise_activation: functor_list must name two ops, not {functors}")
    helper = LayerHelper("fused_elemwise_activation")
    out, intermediate = (helper.create_variable_for_type_inference(x.dtype) for _ in range(2))
    attrs = {
        "axis": axis,
        "scale": scale,
        "save_intermediate_out": save_intermediate_out,
        "functor_list": functors,
    }
    helper.append_op(
        "fused_elemwise_activation", {"X": [x], "Y": [y]}, {"Out": [out], "IntermediateOut": [intermediate]}, attrs
    )
    return out


def shuffle_batch(x: Variable, seed: int | Variable | None = None) -> Variable:
    """The rows of ``x`` in random order, another one in every run. ``seed``: of the first run; by default that of the
    program, else one from numpy's global generator."""
    helper = LayerHelper("shuffle_batch")
    out = helper.create_variable_for_type_inference(x.dtype)
    order = helper.create_variable_for_type_inference("int64")
    attrs = {}
    if seed is None:
        seed = helper.main_program.random_seed or int(np.random.randint(-65536, 65535))  # noqa: NPY002 (scripts seed it)
    if isinstance(seed, int):
        attrs["startup_seed"] = seed
        seed = helper.create_variable(name=unique_name.generate("shuffle_batch_seed"), dtype="int64", persistable=True)
    helper.append_op(
        "shuffle_batch", {"X": [x], "Seed": [seed]}, {"Out": [out], "ShuffleIdx": [order], "SeedOut": [seed]}, attrs
    )
    return out


def partial_concat(input: Variable | Sequence[Variable], start_index: int = 0, length: int = -1) -> Variable:
    """The columns from ``start_index`` on (``length`` of them, -1: all) of several [N, M], side by side."""
    return _partial("partial_concat", input, start_index, length)


def partial_sum(input: Variable | Sequence[Variable], start_index: int = 0, length: int = -1) -> Variable:
    """The sum of the columns from ``start_index`` on (``length`` of them, -1: all) of several [N, M]."""
    return _partial("partial_sum", input, start_index, length)


def _partial(op: str, input: Variable | Sequence[Variable], start_index: int, length: int) -> Variable:
    inputs = [input] if isinstance(input, Variable) else list(input)
    attrs = {"start_index": start_index, "length": length}
    return LayerHelper(op).one(op, {"X": inputs}, attrs, dtype=inputs[0].dtype)


def tdm_child(
    x: Variable, node_nums: int, child_nums: int, param_attr: AttrLike = None, dtype: str = "int32"
) -> tuple[Variable, Variable]:
    """The children of tree nodes ``x``, and which of them are leaves. The tree is a parameter [node_nums, 3 + child_nums]:
    item, layer, parent, children of each node."""
    helper = LayerHelper("tdm_child", param_attr=param_attr)
    tree = helper.create_parameter(param_attr, [node_nums, 3 + child_nums], dtype, default_initializer=Constant(0))
    assert tree is not None
    tree.stop_gradient = True
    child, leaf = (helper.create_variable_for_type_inference(dtype, stop_gradient=True) for _ in range(2))
    attrs = {"child_nums": child_nums, "dtype": dtype_number(dtype)}
    helper.append_op("tdm_child", {"X": [x], "TreeInfo": [tree]}, {"Child": [child], "LeafMask": [leaf]}, attrs)
    return child, leaf


def tdm_sampler(
    x: Variable,
    neg_samples_num_list: Sequence[int],
    layer_node_num_list: Sequence[int],
    leaf_node_num: int,
    tree_travel_attr: AttrLike = None,
    tree_layer_attr: AttrLike = None,
    output_positive: bool = True,
    output_list: bool = True,
    seed: int = 0,
    tree_dtype: str = "int32",
    dtype: str = "int32",
) -> tuple[Any, Any, Any]:
    """For leaves ``x``: nodes of each layer of a tree, the one on the way to the leaf and others; labels; masks.

    Each in a list with a [-1, n, 1] per layer, or with ``output_list`` False as one [-1, sum of n].
    """
    nodes = sum(layer_node_num_list)
    _check_tree(neg_samples_num_list, layer_node_num_list, leaf_node_num, nodes)
    helper = LayerHelper("tdm_sampler")
    layer_nums = len(layer_node_num_list)
    travel = helper.create_parameter(
        tree_travel_attr, [leaf_node_num, layer_nums], tree_dtype, default_initializer=Constant(0)
    )
    layer = helper.create_parameter(tree_layer_attr, [nodes, 1], tree_dtype, default_initializer=Constant(0))
    found = [helper.create_variable_for_type_inference(dtype, stop_gradient=True) for _ in range(3)]
    offsets = [0, *np.cumsum(layer_node_num_list).tolist()]
    assert travel is not None
    assert layer is not None
    helper.append_op(
        "tdm_sampler",
        {"X": [x], "Travel": [travel], "Layer": [layer]},
        dict(zip(("Out", "Labels", "Mask"), ([var] for var in found), strict=True)),
        {
            "neg_samples_num_list": list(neg_samples_num_list),
            "output_positive": output_positive,
            "layer_offset_lod": offsets,
            "seed": seed,
            "dtype": dtype_number(dtype),
        },
    )
    if not output_list:
        return found[0], found[1], found[2]
    counts = [count + output_positive for count in neg_samples_num_list]
    parts = _by_layer(found, counts)
    return parts[0], parts[1], parts[2]


def _check_tree(negatives: Sequence[int], layer_nodes: Sequence[int], leaves: int, nodes: int) -> None:
    if len(negatives) != len(layer_nodes):
        raise ProgramError(f"tdm_sampler: {len(negatives)} numbers of samples for {len(layer_nodes)} layers")
    for index, (wanted, there) in enumerate(zip(negatives, layer_nodes, strict=True)):
        if wanted >= there:
            raise ProgramError(f"tdm_sampler: layer {index} has {there} nodes, too few for {wanted} negative samples")
    if leaves >= nodes:
        raise ProgramError(f"tdm_sampler: {leaves} leaves, but only {nodes} nodes in all layers")


def _by_layer(found: Sequence[Variable], counts: Sequence[int]) -> list[list[Variable]]:
    """Each of the outputs cut into its layers; layer by layer, as Fluid does."""
    parts: list[list[Variable]] = [[] for _ in found]
    start = 0
    for count in counts:
        cut = [layers.slice(var, axes=[1], starts=[start], ends=[start + count]) for var in found]
        for list_, var in zip(parts, cut, strict=True):
            shaped = layers.reshape(var, [-1, count, 1])
            shaped.stop_gradient = True
            list_.append(shaped)
        start += count
    return parts


def ctr_metric_bundle(input: Variable, label: Variable) -> tuple[Variable, ...]:
    """Sums over all batches so far, each [1]: squared errors, absolute errors, predictions ``input``, their sigmoids,
    labels, examples. Of a regression of clicks: RMSE is sqrt(the first / the last), and so on."""
    if input.shape != label.shape:
        raise ProgramError(f"ctr_metric_bundle: input {list(input.shape)} and label {list(label.shape)} differ")
    helper = LayerHelper("ctr_metric_bundle")
    absolute, squared, prediction, q, positive, examples = (_sum_so_far(helper) for _ in range(6))
    error = helper.one("elementwise_sub", {"X": [input], "Y": [label]}, dtype="float32")
    _add(helper, squared, helper.one("squared_l2_norm", {"X": [error]}, dtype="float32"))
    _add(helper, absolute, helper.one("l1_norm", {"X": [error]}, dtype="float32"))
    _add(helper, prediction, layers.reduce_sum(input))
    _add(helper, q, layers.reduce_sum(layers.sigmoid(input)))
    _add(helper, positive, layers.reduce_sum(label))
    _add(helper, examples, layers.reduce_sum(layers.fill_constant_batch_size_like(label, [-1, 1], "float32", 1.0)))
    return squared, absolute, prediction, q, positive, examples


def _sum_so_far(helper: LayerHelper) -> Variable:
    var = helper.create_global_variable(persistable=True, dtype="float32", shape=[1])
    return helper.set_variable_initializer(var, Constant(0.0, force_cpu=True))


def _add(helper: LayerHelper, total: Variable, batch: Variable) -> None:
    helper.append_op("elementwise_add", {"X": [batch], "Y": [total]}, {"Out": [total]})
