"""Layers of text matching and of trees, which Fluid keeps in ``fluid.contrib.layers``."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.framework import Variable
from fluidlite.layer_helper import FLOATS, LayerHelper, require_dtype, require_same_dtype, require_variable
from fluidlite.layers.conv import Sizes, sizes_of
from fluidlite.param_attr import AttrLike


def match_matrix_tensor(
    x: Variable,
    y: Variable,
    channel_num: int,
    act: str | None = None,
    param_attr: AttrLike = None,
    dtype: object = "float32",
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """(act(x @ W_t @ y) of all rows of each pair of sequences, for t below ``channel_num``; x @ W).

    ``x`` [rows, D] and ``y`` [rows, D] with LoD. Each pair gives ``channel_num`` matrices, one number per row of the
    result [numbers, 1]. Wan et al., 2016.
    """
    layer = "match_matrix_tensor"
    require_same_dtype(layer, require_variable(layer, "x", x), require_variable(layer, "y", y))
    helper = LayerHelper(layer, name, act=act)
    weight = helper.create_parameter(param_attr, [x.shape[-1], channel_num, y.shape[-1]], dtype)
    out = helper.create_variable_for_type_inference(dtype)
    moved = helper.create_variable_for_type_inference(dtype, stop_gradient=True)
    inputs = {"X": x, "Y": y, "W": weight}
    helper.append_op(layer, inputs, {"Out": out, "Tmp": moved}, {"dim_t": channel_num})
    return helper.append_activation(out), moved


def var_conv_2d(
    input: Variable,
    row: Variable,
    col: Variable,
    input_channel: int,
    output_channel: int,
    filter_size: Sizes,
    stride: Sizes = 1,
    param_attr: AttrLike = None,
    act: str | None = None,
    dtype: object = "float32",
    name: str | None = None,
) -> Variable:
    """act(convolution) of matrices of different sizes, ``input_channel`` of them each: the lengths of the sequences of
    ``row`` and ``col`` are their heights and widths. The result, one number per row, has ``output_channel`` of each."""
    require_dtype("var_conv_2d", require_variable("var_conv_2d", "input", input), FLOATS)
    helper = LayerHelper("var_conv_2d", name, act=act)
    height, width = sizes_of("filter_size", filter_size, 2)
    down, right = sizes_of("stride", stride, 2)
    weight = helper.create_parameter(param_attr, [output_channel, input_channel * height * width], dtype)
    out = helper.create_variable_for_type_inference(dtype)
    windows = helper.create_variable_for_type_inference(dtype, stop_gradient=True)
    attrs = {
        "InputChannel": input_channel,
        "OutputChannel": output_channel,
        "StrideH": down,
        "StrideW": right,
        "KernelH": height,
        "KernelW": width,
    }
    inputs = {"X": input, "ROW": row, "COLUMN": col, "W": weight}
    helper.append_op("var_conv_2d", inputs, {"Out": out, "Col": windows}, attrs)
    return helper.append_activation(out)


def sequence_topk_avg_pooling(
    input: Variable, row: Variable, col: Variable, topks: Sequence[int], channel_num: int
) -> Variable:
    """For each row of each matrix and channel the mean of its k largest numbers, for each k of ``topks``.

    ``input`` as `var_conv_2d` gives it; the result is [rows of ``row``, channel_num * len(topks)].
    """
    layer = "sequence_topk_avg_pooling"
    require_dtype(layer, require_variable(layer, "input", input), FLOATS)
    helper = LayerHelper(layer)
    out = helper.create_variable_for_type_inference(input.dtype)
    places = helper.create_variable_for_type_inference(input.dtype, stop_gradient=True)
    inputs = {"X": input, "ROW": row, "COLUMN": col}
    attrs = {"topks": list(topks), "channel_num": channel_num}
    helper.append_op(layer, inputs, {"Out": out, "pos": places}, attrs)
    return out


def tree_conv(
    nodes_vector: Variable,
    edge_set: Variable,
    output_size: int,
    num_filters: int = 1,
    max_depth: int = 2,
    act: str | None = "tanh",
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    name: str | None = None,
) -> Variable:
    """act(tree-based convolution + bias) of nodes [N, nodes, D] and int32 edges [N, edges, 2] from parent to child.

    Nodes count from 1, edges of 0 end the list; the result is [N, nodes, output_size, num_filters]. Mou et al., 2016.
    """
    require_dtype("tree_conv", require_variable("tree_conv", "nodes_vector", nodes_vector), FLOATS)
    require_dtype("tree_conv", require_variable("tree_conv", "edge_set", edge_set), ("int32",))
    helper = LayerHelper("tree_conv", name, act=act, bias_attr=bias_attr)
    shape = [nodes_vector.shape[2], 3, output_size, num_filters]
    filters = helper.create_parameter(param_attr, shape, nodes_vector.dtype)
    inputs = {"NodesVector": nodes_vector, "EdgeSet": edge_set, "Filter": filters}
    out = helper.one("tree_conv", inputs, {"max_depth": max_depth}, dtype=nodes_vector.dtype)
    return helper.append_activation(helper.append_bias_op(out))
