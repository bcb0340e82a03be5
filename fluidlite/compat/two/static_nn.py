"""``paddle.static.nn``: layers of programs, with the arguments of Paddle 2.x."""

from __future__ import annotations

from fluidlite import embedding, layers
from fluidlite.compat.contrib_layers import sparse_embedding
from fluidlite.framework import Variable
from fluidlite.layers import (
    batch_norm,
    bilinear_tensor_product,
    case,
    cond,
    conv2d,
    conv2d_transpose,
    crf_decoding,
    data_norm,
    group_norm,
    instance_norm,
    layer_norm,
    nce,
    prelu,
    py_func,
    row_conv,
    sequence_concat,
    sequence_conv,
    sequence_enumerate,
    sequence_expand,
    sequence_expand_as,
    sequence_first_step,
    sequence_last_step,
    sequence_pad,
    sequence_pool,
    sequence_reshape,
    sequence_reverse,
    sequence_scatter,
    sequence_slice,
    sequence_softmax,
    sequence_unpad,
    switch_case,
    while_loop,
)
from fluidlite.param_attr import AttrLike

__all__ = [
    "batch_norm",
    "bilinear_tensor_product",
    "case",
    "cond",
    "conv2d",
    "conv2d_transpose",
    "crf_decoding",
    "data_norm",
    "embedding",
    "fc",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "nce",
    "prelu",
    "py_func",
    "row_conv",
    "sequence_concat",
    "sequence_conv",
    "sequence_enumerate",
    "sequence_expand",
    "sequence_expand_as",
    "sequence_first_step",
    "sequence_last_step",
    "sequence_pad",
    "sequence_pool",
    "sequence_reshape",
    "sequence_reverse",
    "sequence_scatter",
    "sequence_slice",
    "sequence_softmax",
    "sequence_unpad",
    "sparse_embedding",
    "switch_case",
    "while_loop",
]


def fc(
    x: Variable | list[Variable],
    size: int,
    num_flatten_dims: int = 1,
    weight_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    activation: str | None = None,
    name: str | None = None,
) -> Variable:
    """`layers.fc`."""
    return layers.fc(x, size, num_flatten_dims, weight_attr, bias_attr, activation, name)
