"""Convolution and pooling of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from fluidlite.errors import ProgramError, ShapeError
from fluidlite.framework import Variable, user_line
from fluidlite.initializer import Normal
from fluidlite.layer_helper import FLOATS, LayerHelper, require_dtype, require_variable
from fluidlite.param_attr import AttrLike

#: one number for both image dimensions, or one each
Pair: TypeAlias = "int | Sequence[int]"
#: cells on each side (one number, one per dimension, [top, bottom, left, right], or a pair per dimension of the
#: input), or SAME or VALID
Padding: TypeAlias = "int | str | Sequence[int | Sequence[int]]"


def conv2d(
    input: Variable,
    num_filters: int,
    filter_size: Pair,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
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
    channel_axis = _image_layout("conv2d", input, data_format)
    channels = input.shape[channel_axis]
    if channels < 0 or channels % (groups or 1):
        raise ShapeError(
            f"conv2d: the {channels} channels of {input.name!r} do not divide into {groups or 1} groups ({user_line()})"
        )
    depthwise = channels == groups and num_filters % channels == 0 and not use_cudnn
    op_type = "depthwise_conv2d" if depthwise else "conv2d"
    helper = LayerHelper(op_type, name, act=act, bias_attr=bias_attr, use_cudnn=use_cudnn)
    size = _pair("filter_size", filter_size)
    filters = helper.create_parameter(
        param_attr,
        [num_filters, channels // (groups or 1), *size],
        input.dtype,
        default_initializer=Normal(0.0, math.sqrt(2.0 / (math.prod(size) * channels))),
    )
    attrs = {
        "strides": _pair("stride", stride),
        **_padding(padding, channel_axis),
        "dilations": _pair("dilation", dilation),
        "groups": groups or 1,
        "use_cudnn": use_cudnn or None,
        "data_format": data_format,
    }
    out = helper.one(op_type, {"Input": input, "Filter": filters}, attrs, dtype=input.dtype, out="Output")
    return helper.append_activation(helper.append_bias_op(out, channel_axis, channel_axis + 1))


def pool2d(
    input: Variable,
    pool_size: Pair = -1,
    pool_type: str = "max",
    pool_stride: Pair = 1,
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
    channel_axis = _image_layout("pool2d", input, data_format)
    if pool_type not in ("max", "avg"):
        raise ProgramError(f"pool2d of {input.name!r}: pool_type must be max or avg, not {pool_type!r} ({user_line()})")
    size = _pair("pool_size", pool_size)
    if not global_pooling and min(size) < 1:
        raise ProgramError(f"pool2d of {input.name!r}: pool_size is {pool_size} ({user_line()})")
    attrs = {
        "pooling_type": pool_type,
        "ksize": size,
        "global_pooling": global_pooling,
        "strides": _pair("pool_stride", pool_stride),
        **_padding(pool_padding, channel_axis),
        "use_cudnn": use_cudnn or None,
        "ceil_mode": ceil_mode,
        "exclusive": exclusive,
        "data_format": data_format,
    }
    return LayerHelper("pool2d", name).one("pool2d", {"X": input}, attrs, dtype=input.dtype)


def _image_layout(layer: str, input: Variable, data_format: str) -> int:
    """The dimension of the channels."""
    require_dtype(layer, require_variable(layer, "input", input), FLOATS)
    if len(input.shape) != 4:
        raise ShapeError(f"{layer}: {input.name!r} {list(input.shape)} must have 4 dimensions ({user_line()})")
    if data_format not in ("NCHW", "NHWC"):
        raise ProgramError(f"{layer}: data_format must be NCHW or NHWC, not {data_format!r} ({user_line()})")
    return 1 if data_format == "NCHW" else 3


def _pair(name: str, value: Pair) -> list[int]:
    values = [value, value] if isinstance(value, int) else [int(item) for item in value]
    if len(values) == 1:
        values *= 2
    if len(values) != 2:
        raise ProgramError(f"{name} must be one number or two, not {value} ({user_line()})")
    return values


def _padding(padding: Padding, channel_axis: int) -> dict[str, Any]:
    """The attributes ``paddings`` and ``padding_algorithm``."""
    if isinstance(padding, str):
        algorithm = padding.upper()
        if algorithm not in ("SAME", "VALID"):
            raise ProgramError(f"padding must be SAME, VALID or numbers, not {padding!r} ({user_line()})")
        return {"paddings": [0, 0], "padding_algorithm": algorithm}
    if isinstance(padding, int):
        return {"paddings": [padding, padding]}
    values: list[int] = []
    for axis, item in enumerate(padding):
        if isinstance(item, int):
            values.append(item)
        elif axis not in (0, channel_axis):
            values.extend(item)
        elif any(item):
            raise ProgramError(f"padding {padding} pads the batch or the channels ({user_line()})")
    if len(values) not in (2, 4):
        raise ProgramError(f"padding {padding} must give 2 or 4 numbers ({user_line()})")
    if len(values) == 4 and values[0] == values[1] and values[2] == values[3]:
        values = [values[0], values[2]]
    return {"paddings": values}
