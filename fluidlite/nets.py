"""A few nets made of several layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from fluidlite.errors import ProgramError, ShapeError
from fluidlite.framework import Variable, user_line
from fluidlite.layers.conv import Padding, Sizes, conv2d, pool2d
from fluidlite.layers.math import elementwise_mul, matmul, scale
from fluidlite.layers.nn import dropout, fc
from fluidlite.layers.norm import batch_norm
from fluidlite.layers.ops import sigmoid
from fluidlite.layers.sequence import sequence_conv, sequence_pool
from fluidlite.layers.shape import reshape, split, transpose
from fluidlite.param_attr import AttrLike

T = TypeVar("T")


def simple_img_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: Sizes,
    pool_size: Sizes,
    pool_stride: Sizes,
    pool_padding: Padding = 0,
    pool_type: str = "max",
    global_pooling: bool = False,
    conv_stride: Sizes = 1,
    conv_padding: Padding = 0,
    conv_dilation: Sizes = 1,
    conv_groups: int = 1,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    act: str | None = None,
    use_cudnn: bool = True,
) -> Variable:
    """A convolution and a pooling."""
    conv = conv2d(
        input,
        num_filters,
        filter_size,
        conv_stride,
        conv_padding,
        conv_dilation,
        conv_groups,
        param_attr,
        bias_attr,
        use_cudnn,
        act,
    )
    return pool2d(conv, pool_size, pool_type, pool_stride, pool_padding, global_pooling, use_cudnn)


def img_conv_group(
    input: Variable,
    conv_num_filter: Sequence[int],
    pool_size: Sizes,
    conv_padding: int | Sequence[int] = 1,
    conv_filter_size: int | Sequence[int] = 3,
    conv_act: str | None = None,
    param_attr: AttrLike | Sequence[AttrLike] = None,
    conv_with_batchnorm: bool | Sequence[bool] = False,
    conv_batchnorm_drop_rate: float | Sequence[float] = 0.0,
    pool_stride: Sizes = 1,
    pool_type: str = "max",
    use_cudnn: bool = True,
) -> Variable:
    """Convolutions, each with batch norm and dropout as asked, and one pooling at the end.

    Options given as a list hold for one convolution each. With batch norm the activation comes after it.
    """
    count = len(conv_num_filter)
    attrs = _each("param_attr", param_attr, count)
    paddings = _each("conv_padding", conv_padding, count)
    sizes = _each("conv_filter_size", conv_filter_size, count)
    norms = _each("conv_with_batchnorm", conv_with_batchnorm, count)
    rates = _each("conv_batchnorm_drop_rate", conv_batchnorm_drop_rate, count)
    result = input
    for filters, size, padding, attr, norm, rate in zip(
        conv_num_filter, sizes, paddings, attrs, norms, rates, strict=True
    ):
        act = None if norm else conv_act
        result = conv2d(result, filters, size, padding=padding, param_attr=attr, act=act, use_cudnn=use_cudnn)
        if norm:
            result = batch_norm(result, act=conv_act)
            if abs(rate) >= 1e-5:
                result = dropout(result, rate)
    return pool2d(result, pool_size, pool_type, pool_stride, use_cudnn=use_cudnn)


def _each(option: str, value: T | Sequence[T], count: int) -> list[T]:
    if not isinstance(value, (list, tuple)):
        return [value] * count  # type: ignore[list-item]
    if len(value) != count:
        raise ProgramError(f"img_conv_group: {len(value)} values of {option} for {count} convolutions ({user_line()})")
    return list(value)


def sequence_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: int,
    param_attr: AttrLike = None,
    act: str = "sigmoid",
    pool_type: str = "max",
    bias_attr: AttrLike = None,
) -> Variable:
    """A convolution over sequences and a pooling of each; [N, num_filters]."""
    conv = sequence_conv(input, num_filters, filter_size, param_attr=param_attr, bias_attr=bias_attr, act=act)
    return sequence_pool(conv, pool_type)


def glu(input: Variable, dim: int = -1) -> Variable:
    """The first half of ``input`` along ``dim`` times the sigmoid of the second. Dauphin et al., 2016."""
    value, gate = split(input, 2, dim=dim)
    return elementwise_mul(value, sigmoid(gate))


def scaled_dot_product_attention(
    queries: Variable, keys: Variable, values: Variable, num_heads: int = 1, dropout_rate: float = 0.0
) -> Variable:
    """softmax(queries @ keysᵀ / √d) @ values; [N, rows, d] each, d divided over ``num_heads`` heads.

    Vaswani et al., "Attention Is All You Need", 2017.
    """
    _check_attention(queries, keys, values, num_heads)
    if num_heads > 1:
        queries, keys, values = (fc(var, var.shape[-1], num_flatten_dims=2) for var in (queries, keys, values))
    q, k, v = (_split_heads(var, num_heads) for var in (queries, keys, values))
    width = keys.shape[-1] // num_heads
    scores = matmul(scale(q, width**-0.5), k, transpose_y=True)
    weights = reshape(reshape(scores, [-1, scores.shape[-1]], act="softmax"), [-1, *scores.shape[1:]])
    if dropout_rate:
        weights = dropout(weights, dropout_rate, is_test=False)
    return _join_heads(matmul(weights, v))


def _check_attention(queries: Variable, keys: Variable, values: Variable, num_heads: int) -> None:
    shapes = ", ".join(f"{var.name!r} {list(var.shape)}" for var in (queries, keys, values))
    if any(len(var.shape) != 3 for var in (queries, keys, values)):
        raise ShapeError(f"attention needs three variables of 3 dimensions, not {shapes} ({user_line()})")
    if queries.shape[-1] != keys.shape[-1] or keys.shape[-2] != values.shape[-2]:
        raise ShapeError(f"attention: {shapes} do not fit each other ({user_line()})")
    if keys.shape[-1] % num_heads or values.shape[-1] % num_heads:
        raise ShapeError(f"attention: {num_heads} heads do not divide the widths of {shapes} ({user_line()})")


def _split_heads(var: Variable, num_heads: int) -> Variable:
    """[N, rows, d] -> [N, heads, rows, d / heads]."""
    if num_heads == 1:
        return var
    parted = reshape(var, [-1, var.shape[1], num_heads, var.shape[-1] // num_heads])
    return transpose(parted, [0, 2, 1, 3])


def _join_heads(var: Variable) -> Variable:
    """The opposite of `_split_heads`; three dimensions stay as they are."""
    if len(var.shape) == 3:
        return var
    joined = transpose(var, [0, 2, 1, 3])
    return reshape(joined, [-1, joined.shape[1], joined.shape[2] * joined.shape[3]])
