"""Convolution and pooling of images and volumes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from fluidlite.errors import ProgramError, ShapeError
from fluidlite.framework import Variable, user_line
from fluidlite.initializer import Normal
from fluidlite.layer_helper import FLOATS, LayerHelper, require_dtype, require_variable
from fluidlite.param_attr import AttrLike

#: one number for all dimensions of an image or volume, or one each
Sizes: TypeAlias = "int | Sequence[int]"
#: cells on each side (one number, one per dimension, two per dimension, or a pair per dimension of the input), or SAME
#: or VALID
Padding: TypeAlias = "int | str | Sequence[int | Sequence[int]]"


def conv2d(
    input: Variable,
    num_filters: int,
    filter_size: Sizes,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int | None = None,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """act(input * filters + bias) for images [N, C, H, W] (or [N, H, W, C]: NHWC).

    Filters are [num_filters, C / groups, height, width], by default normal with variance 2 / (height * width * C). With
    ``groups`` = C and without ``use_cudnn`` the op is called depthwise_conv2d, as in Fluid.
    """
    axis = _channel_axis("conv2d", input, data_format, 2)
    channels = input.shape[axis]
    depthwise = channels == groups and num_filters % channels == 0 and not use_cudnn
    op_type = "depthwise_conv2d" if depthwise else "conv2d"
    helper = LayerHelper(op_type, name, act=act, bias_attr=bias_attr, use_cudnn=use_cudnn)
    window = (filter_size, stride, padding, dilation)
    return _convolved(helper, input, num_filters, window, groups, param_attr, data_format, axis)


def conv3d(
    input: Variable,
    num_filters: int,
    filter_size: Sizes,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int | None = None,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> Variable:
    """act(input * filters + bias) for volumes [N, C, D, H, W] (or NDHWC); filters are [num_filters, C / groups, d, h, w].

    By default they are normal with variance 2 / (d * h * w * C).
    """
    axis = _channel_axis("conv3d", input, data_format, 3)
    helper = LayerHelper("conv3d", name, act=act, bias_attr=bias_attr, use_cudnn=use_cudnn)
    window = (filter_size, stride, padding, dilation)
    return _convolved(helper, input, num_filters, window, groups, param_attr, data_format, axis)


def _convolved(
    helper: LayerHelper,
    input: Variable,
    num_filters: int,
    window: tuple[Sizes, Sizes, Padding, Sizes],
    groups: int | None,
    param_attr: AttrLike,
    data_format: str,
    axis: int,
) -> Variable:
    """The op of a convolution with its filters, bias and activation; ``axis`` is that of the channels."""
    filter_size, stride, padding, dilation = window
    rank, channels, parts = len(input.shape) - 2, input.shape[axis], groups or 1
    if channels < 0 or channels % parts:
        raise ShapeError(
            f"{helper.layer_type}: the {channels} channels of {input.name!r} do not divide into {parts} groups ({user_line()})"
        )
    size = sizes_of("filter_size", filter_size, rank)
    filters = helper.create_parameter(
        param_attr,
        [num_filters, channels // parts, *size],
        input.dtype,
        default_initializer=Normal(0.0, math.sqrt(2.0 / (math.prod(size) * channels))),
    )
    attrs = {
        "strides": sizes_of("stride", stride, rank),
        **_padding(padding, rank, axis),
        "dilations": sizes_of("dilation", dilation, rank),
        "groups": parts,
        "use_cudnn": helper.kwargs["use_cudnn"] or None,
        "data_format": data_format,
    }
    inputs = {"Input": input, "Filter": filters}
    out = helper.one(helper.layer_type, inputs, attrs, dtype=input.dtype, out="Output")
    return helper.append_activation(helper.append_bias_op(out, axis, axis + 1))


def conv2d_transpose(
    input: Variable,
    num_filters: int,
    output_size: Sizes | None = None,
    filter_size: Sizes | None = None,
    padding: Padding = 0,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    groups: int | None = None,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """act(images that a `conv2d` would shrink to the size of ``input`` + bias); filters are [C, num_filters / groups, h, w].

    ``output_size`` chooses among the sizes that shrink so, and stands for ``filter_size`` where that is not given.
    """
    _channel_axis("conv2d_transpose", input, data_format, 2)
    depthwise = groups is not None and input.shape[1] == groups == num_filters and not use_cudnn
    op_type = "depthwise_conv2d_transpose" if depthwise else "conv2d_transpose"
    helper = LayerHelper(op_type, name, act=act, bias_attr=bias_attr, use_cudnn=use_cudnn)
    options = (output_size, filter_size, padding, stride, dilation, groups)
    return _transpose(helper, input, num_filters, options, param_attr, data_format, rank=2)


def conv3d_transpose(
    input: Variable,
    num_filters: int,
    output_size: Sizes | None = None,
    filter_size: Sizes | None = None,
    padding: Padding = 0,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    groups: int | None = None,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> Variable:
    """As `conv2d_transpose`, for volumes [N, C, D, H, W]."""
    helper = LayerHelper("conv3d_transpose", name, act=act, bias_attr=bias_attr, use_cudnn=use_cudnn)
    options = (output_size, filter_size, padding, stride, dilation, groups)
    return _transpose(helper, input, num_filters, options, param_attr, data_format, rank=3)


def _transpose(
    helper: LayerHelper,
    input: Variable,
    num_filters: int,
    options: tuple[Sizes | None, Sizes | None, Padding, Sizes, Sizes, int | None],
    param_attr: AttrLike,
    data_format: str,
    rank: int,
) -> Variable:
    output_size, filter_size, padding, stride, dilation, groups = options
    axis = _channel_axis(helper.layer_type, input, data_format, rank)
    strides, dilations = sizes_of("stride", stride, rank), sizes_of("dilation", dilation, rank)
    margins = _padding(padding, rank, axis)
    wanted = [] if output_size is None else sizes_of("output_size", output_size, rank)
    if filter_size is not None:
        size = sizes_of("filter_size", filter_size, rank)
    elif wanted:
        sizes = [side for i, side in enumerate(input.shape) if i not in (0, axis)]
        size = _filter_from(sizes, wanted, strides, dilations, margins)
    else:
        raise ProgramError(f"{helper.layer_type}: give filter_size or output_size ({user_line()})")
    filters = helper.create_parameter(param_attr, [input.shape[axis], num_filters // (groups or 1), *size], input.dtype)
    attrs = {
        "output_size": wanted,
        "strides": strides,
        **margins,
        "dilations": dilations,
        "groups": groups or 1,
        "use_cudnn": helper.kwargs["use_cudnn"] or None,
        "data_format": "NCHW" if axis == 1 else "NHWC",
    }
    inputs = {"Input": input, "Filter": filters}
    out = helper.one(helper.layer_type, inputs, attrs, dtype=input.dtype, out="Output")
    return helper.append_activation(helper.append_bias_op(out, axis, axis + 1))


def _filter_from(
    sizes: Sequence[int],
    wanted: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    margins: dict[str, Any],
) -> list[int]:
    """The filter that makes ``wanted`` of ``sizes``."""
    paddings = margins["paddings"]
    both = [a + b for a, b in zip(paddings[::2], paddings[1::2], strict=True)]
    around = both if len(paddings) == 2 * len(sizes) else [2 * side for side in paddings]
    rows = zip(wanted, sizes, strides, around, dilations, strict=True)
    return [(out - (size - 1) * stride + pad - 1) // dilation + 1 for out, size, stride, pad, dilation in rows]


def pool2d(
    input: Variable,
    pool_size: Sizes = -1,
    pool_type: str = "max",
    pool_stride: Sizes = 1,
    pool_padding: Padding = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """The largest element ('max') or the mean ('avg') of each window of an image.

    ``exclusive`` leaves the padding out of the mean; ``global_pooling`` makes one window of the whole image.
    """
    window = (pool_size, pool_type, pool_stride, pool_padding)
    options = {
        "global_pooling": global_pooling,
        "ceil_mode": ceil_mode,
        "exclusive": exclusive,
        "use_cudnn": use_cudnn or None,
    }
    return _pooled(2, input, window, options, data_format, name)


def pool3d(
    input: Variable,
    pool_size: Sizes = -1,
    pool_type: str = "max",
    pool_stride: Sizes = 1,
    pool_padding: Padding = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCDHW",
) -> Variable:
    """The largest element ('max') or the mean ('avg') of each window of a volume; see `pool2d`."""
    window = (pool_size, pool_type, pool_stride, pool_padding)
    options = {
        "global_pooling": global_pooling,
        "ceil_mode": ceil_mode,
        "exclusive": exclusive,
        "use_cudnn": use_cudnn or None,
    }
    return _pooled(3, input, window, options, data_format, name)


def _pooled(
    rank: int,
    input: Variable,
    window: tuple[Sizes, str, Sizes, Padding],
    options: dict[str, Any],
    data_format: str,
    name: str | None,
) -> Variable:
    """The op of a pooling of images (``rank`` 2) or volumes (3)."""
    pool_size, pool_type, pool_stride, pool_padding = window
    layer = f"pool{rank}d"
    axis = _channel_axis(layer, input, data_format, rank)
    _check_pool_type(layer, input, pool_type)
    size = sizes_of("pool_size", pool_size, rank)
    if not options["global_pooling"] and min(size) < 1:
        raise ProgramError(f"{layer} of {input.name!r}: pool_size is {pool_size} ({user_line()})")
    attrs = {
        "pooling_type": pool_type,
        "ksize": size,
        "strides": sizes_of("pool_stride", pool_stride, rank),
        **_padding(pool_padding, rank, axis),
        **options,
        "data_format": data_format,
    }
    return LayerHelper(layer, name).one(layer, {"X": input}, attrs, dtype=input.dtype)


def _check_pool_type(layer: str, input: Variable, pool_type: str) -> None:
    if pool_type not in ("max", "avg"):
        raise ProgramError(
            f"{layer} of {input.name!r}: pool_type must be max or avg, not {pool_type!r} ({user_line()})"
        )


def adaptive_pool2d(
    input: Variable, pool_size: Sizes, pool_type: str = "max", require_index: bool = False, name: str | None = None
) -> Variable | tuple[Variable, Variable]:
    """``pool_size`` windows that divide images evenly: the largest element or the mean of each.

    With ``require_index`` (max only) also where the largest are, int32.
    """
    return _adaptive(2, input, pool_size, pool_type, require_index, name)


def adaptive_pool3d(
    input: Variable, pool_size: Sizes, pool_type: str = "max", require_index: bool = False, name: str | None = None
) -> Variable | tuple[Variable, Variable]:
    """As `adaptive_pool2d`, for volumes."""
    return _adaptive(3, input, pool_size, pool_type, require_index, name)


def _adaptive(
    rank: int, input: Variable, pool_size: Sizes, pool_type: str, require_index: bool, name: str | None
) -> Variable | tuple[Variable, Variable]:
    layer = f"adaptive_pool{rank}d"
    require_dtype(layer, require_variable(layer, "input", input), FLOATS)
    _check_pool_type(layer, input, pool_type)
    if pool_type == "avg" and require_index:
        raise ProgramError(f"{layer}: only max pooling has an index ({user_line()})")
    size = sizes_of("pool_size", pool_size, rank)
    if pool_type == "avg":
        attrs: dict[str, Any] = {"pooling_type": "avg", "ksize": size, "adaptive": True}
        return LayerHelper(f"pool{rank}d", name).one(f"pool{rank}d", {"X": input}, attrs, dtype=input.dtype)
    op_type = f"max_pool{rank}d_with_index"
    helper = LayerHelper(op_type, name)
    out, mask = helper.temporaries(2, input.dtype)
    helper.append_op(op_type, {"X": input}, {"Out": out, "Mask": mask}, {"ksize": size, "adaptive": True})
    return (out, mask) if require_index else out


def sizes_of(name: str, value: Sizes, rank: int) -> list[int]:
    """A number per dimension."""
    values = [value] * rank if isinstance(value, int) else [int(item) for item in value]
    values = values * rank if len(values) == 1 else values
    if len(values) != rank:
        raise ProgramError(f"{name} must be one number or {rank}, not {value} ({user_line()})")
    return values


def _padding(padding: Padding, rank: int, channel_axis: int) -> dict[str, Any]:
    """The attributes ``paddings`` and ``padding_algorithm``."""
    if isinstance(padding, str):
        if padding.upper() not in ("SAME", "VALID"):
            raise ProgramError(f"padding must be SAME, VALID or numbers, not {padding!r} ({user_line()})")
        return {"paddings": [0] * rank, "padding_algorithm": padding.upper()}
    if isinstance(padding, int):
        return {"paddings": [padding] * rank, "padding_algorithm": "EXPLICIT"}
    values: list[int] = []
    for axis, item in enumerate(padding):
        if isinstance(item, int):
            values.append(item)
        elif axis not in (0, channel_axis):
            values.extend(item)
        elif any(item):
            raise ProgramError(f"padding {padding} pads the batch or the channels ({user_line()})")
    if len(values) not in (rank, 2 * rank):
        raise ProgramError(f"padding {padding} must give {rank} or {2 * rank} numbers ({user_line()})")
    if len(values) == 2 * rank and values[::2] == values[1::2]:
        values = values[::2]
    return {"paddings": values, "padding_algorithm": "EXPLICIT"}


def _channel_axis(layer: str, input: Variable, data_format: str, rank: int) -> int:
    """The dimension of the channels of images (rank 2) or volumes (rank 3)."""
    require_dtype(layer, require_variable(layer, "input", input), FLOATS)
    layouts = ("NCHW", "NHWC") if rank == 2 else ("NCDHW", "NDHWC")
    if data_format not in layouts:
        raise ProgramError(f"{layer}: data_format must be {' or '.join(layouts)}, not {data_format!r} ({user_line()})")
    if len(input.shape) != rank + 2:
        raise ShapeError(f"{layer}: {input.name!r} {list(input.shape)} must have {rank + 2} dimensions ({user_line()})")
    return 1 if data_format == layouts[0] else rank + 1
