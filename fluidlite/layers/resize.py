"""Images and volumes in other sizes: image_resize, interpolate, resize_bilinear, resize_nearest, resize_trilinear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.errors import ProgramError, ShapeError
from fluidlite.framework import Variable, user_line
from fluidlite.layer_helper import FLOATS, LayerHelper, Variables, require_dtype, require_variable
from fluidlite.layers.tensor import Shape, shape_arguments

#: Fluid's word -> op type
_METHODS = {
    "BILINEAR": "bilinear_interp",
    "TRILINEAR": "trilinear_interp",
    "NEAREST": "nearest_interp",
    "BICUBIC": "bicubic_interp",
}
_SIZES = {4: ("out_h", "out_w"), 5: ("out_d", "out_h", "out_w")}


def image_resize(
    input: Variable,
    out_shape: Shape | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    resample: str = "BILINEAR",
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """Images [N, C, H, W], or volumes [N, C, D, H, W] with ``resample`` TRILINEAR, in other sizes.

    ``out_shape``: the new sizes, numbers and [1] variables or one int32 variable; or ``scale``: a factor, a number or a
    [1] variable. ``actual_shape``: the sizes at run time, whatever these say. ``align_corners``: the corner cells' centres
    stay where they are; else ``align_mode`` 0 takes a cell's position to be that of its centre, 1 of its corner.
    """
    op_type = _METHODS.get(resample.upper())
    if op_type is None:
        raise ProgramError(f"image_resize: resample must be {', '.join(_METHODS)}, not {resample!r} ({user_line()})")
    require_dtype(op_type, require_variable("image_resize", "input", input), (*FLOATS, "uint8"))
    names = _SIZES.get(len(input.shape))
    if names is None or (len(names) == 3) != (op_type == "trilinear_interp"):
        raise ShapeError(f"image_resize: {input.name!r} {list(input.shape)} does not suit {resample} ({user_line()})")
    if (out_shape is None) == (scale is None):
        raise ProgramError(f"image_resize of {input.name!r}: give out_shape or scale, and not both ({user_line()})")
    helper = LayerHelper(op_type, name)
    attrs: dict[str, Any] = {
        "out_d": -1,
        "out_h": -1,
        "out_w": -1,
        "interp_method": resample.lower(),
        "align_corners": align_corners,
        "align_mode": align_mode,
        "data_layout": "NCHW" if data_format in ("NCHW", "NCDHW") else "NHWC",
    }
    inputs: dict[str, Variables] = {"X": input}
    if out_shape is not None:
        inputs.update(_new_sizes(helper, out_shape, names, attrs))
    elif isinstance(scale, Variable):
        inputs["Scale"] = scale
    else:
        attrs["scale"] = _positive(scale)
    if actual_shape is not None:
        inputs["OutSize"] = require_variable("image_resize", "actual_shape", actual_shape)
    return helper.one(op_type, inputs, attrs, dtype=input.dtype)


def _new_sizes(
    helper: LayerHelper, out_shape: Shape, names: Sequence[str], attrs: dict[str, Any]
) -> dict[str, Variables]:
    found, sizes = shape_arguments(out_shape, whole_input="OutSize", list_input="SizeTensor", helper=helper)
    if sizes is not None:
        if len(sizes) != len(names):
            raise ShapeError(f"image_resize: out_shape must be {len(names)} sizes, not {len(sizes)} ({user_line()})")
        attrs.update(zip(names, sizes, strict=True))
    return found


def _positive(scale: float | None) -> float:
    if scale is None or scale <= 0:
        raise ProgramError(f"image_resize: scale must be above 0, not {scale} ({user_line()})")
    return float(scale)


#: the same by its newer name
interpolate = image_resize


def resize_bilinear(
    input: Variable,
    out_shape: Shape | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """`image_resize` in which each new cell is a mean of the four around it."""
    return image_resize(input, out_shape, scale, name, "BILINEAR", actual_shape, align_corners, align_mode, data_format)


def resize_trilinear(
    input: Variable,
    out_shape: Shape | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCDHW",
) -> Variable:
    """`image_resize` of volumes, in which each new cell is a mean of the eight around it."""
    return image_resize(
        input, out_shape, scale, name, "TRILINEAR", actual_shape, align_corners, align_mode, data_format
    )


def resize_nearest(
    input: Variable,
    out_shape: Shape | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """`image_resize` in which each new cell is the nearest old one."""
    return image_resize(input, out_shape, scale, name, "NEAREST", actual_shape, align_corners, 1, data_format)


def image_resize_short(input: Variable, out_short_len: int, resample: str = "BILINEAR") -> Variable:
    """`image_resize` to ``out_short_len`` for the shorter side, and in proportion for the other."""
    require_variable("image_resize_short", "input", input)
    if len(input.shape) != 4 or min(input.shape[2:]) < 1:
        raise ShapeError(
            f"image_resize_short: the sizes of {input.name!r} {list(input.shape)} must be known ({user_line()})"
        )
    sides = list(input.shape[2:])
    short = sides.index(min(sides))
    long = 1 - short
    out = [0, 0]
    out[short] = out_short_len
    out[long] = int(float(sides[long]) * (float(out_short_len) / float(sides[short])) + 0.5)
    return image_resize(input, out_shape=out, resample=resample)
