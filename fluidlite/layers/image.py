"""More layers of images: what cuts them into windows, and what moves, mixes or compares their cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.errors import ProgramError
from fluidlite.framework import Variable, user_line
from fluidlite.layer_helper import (
    FLOATS,
    LayerHelper,
    Variables,
    require_dtype,
    require_same_dtype,
    require_variable,
)
from fluidlite.layers.conv import Sizes, sizes_of
from fluidlite.layers.tensor import Shape


def im2sequence(
    input: Variable,
    filter_size: Sizes = 1,
    stride: Sizes = 1,
    padding: Sizes = 0,
    input_image_size: Variable | None = None,
    out_stride: Sizes = 1,
    name: str | None = None,
) -> Variable:
    """The windows of each image as a sequence: a row per window with the cells of all channels.

    ``padding``: one number, height and width, or top, left, bottom, right. ``input_image_size`` [N, 2] holds the images'
    real sizes, which the network before shrank by ``out_stride``.
    """
    require_dtype("im2sequence", require_variable("im2sequence", "input", input), FLOATS)
    margins = [padding] * 4 if isinstance(padding, int) else [int(item) for item in padding]
    margins = [*margins, *margins] if len(margins) == 2 else margins
    attrs: dict[str, Any] = {
        "kernels": sizes_of("filter_size", filter_size, 2),
        "strides": sizes_of("stride", stride, 2),
        "paddings": margins,
    }
    inputs: dict[str, Variables] = {"X": input}
    if input_image_size is not None:
        inputs["Y"] = input_image_size
        attrs["out_stride"] = sizes_of("out_stride", out_stride, 2)
    return LayerHelper("im2sequence", name).one("im2sequence", inputs, attrs, dtype=input.dtype)


def unfold(
    x: Variable,
    kernel_sizes: Sizes,
    strides: Sizes = 1,
    paddings: Sizes = 0,
    dilations: Sizes = 1,
    name: str | None = None,
) -> Variable:
    """The windows of each image as columns: [N, C * h * w, windows].

    ``paddings``: one number, height and width, or top, left, bottom, right.
    """
    require_dtype("unfold", require_variable("unfold", "x", x), FLOATS)
    margins = [paddings] * 4 if isinstance(paddings, int) else [int(item) for item in paddings]
    margins = margins * (4 // len(margins)) if len(margins) in (1, 2) else margins
    attrs = {
        "kernel_sizes": sizes_of("kernel_sizes", kernel_sizes, 2),
        "strides": sizes_of("strides", strides, 2),
        "paddings": margins,
        "dilations": sizes_of("dilations", dilations, 2),
    }
    return LayerHelper("unfold", name).one("unfold", {"X": x}, attrs, dtype=x.dtype, out="Y")


def maxout(x: Variable, groups: int, name: str | None = None, axis: int = 1) -> Variable:
    """The largest of each ``groups`` consecutive channels, which are along ``axis``: 1, -1 or 3."""
    require_dtype("maxout", require_variable("maxout", "x", x), FLOATS)
    if axis not in (1, -1, 3):
        raise ProgramError(f"maxout: axis must be 1, -1 or 3, not {axis} ({user_line()})")
    attrs = {"groups": groups, "axis": 3 if axis == -1 else axis}
    return LayerHelper("maxout", name).one("maxout", {"X": x}, attrs, dtype=x.dtype)


def pixel_shuffle(x: Variable, upscale_factor: int) -> Variable:
    """Images with r² times fewer channels and r times the sides. Shi et al., 2016."""
    require_dtype("pixel_shuffle", require_variable("pixel_shuffle", "x", x), FLOATS)
    attrs = {"upscale_factor": upscale_factor}
    return LayerHelper("pixel_shuffle").one("pixel_shuffle", {"X": x}, attrs, dtype=x.dtype)


def space_to_depth(x: Variable, blocksize: int, name: str | None = None) -> Variable:
    """Images with ``blocksize`` times smaller sides and its square times more channels (Darknet's reorg layer)."""
    require_variable("space_to_depth", "x", x)
    attrs = {"blocksize": blocksize}
    return LayerHelper("space_to_depth", name).one("space_to_depth", {"X": x}, attrs, dtype=x.dtype)


def shuffle_channel(x: Variable, group: int, name: str | None = None) -> Variable:
    """Images with the channels of ``group`` groups dealt out in turn. Zhang et al., "ShuffleNet", 2017."""
    require_variable("shuffle_channel", "x", x)
    return LayerHelper("shuffle_channel", name).one("shuffle_channel", {"X": x}, {"group": group}, dtype=x.dtype)


def temporal_shift(x: Variable, seg_num: int, shift_ratio: float = 0.25, name: str | None = None) -> Variable:
    """Frames [N * seg_num, C, H, W] with a share of the channels of the frame before, and one of the frame after.

    Lin, Gan and Han, 2019.
    """
    require_dtype("temporal_shift", require_variable("temporal_shift", "x", x), FLOATS)
    attrs = {"seg_num": seg_num, "shift_ratio": shift_ratio}
    return LayerHelper("temporal_shift", name).one("temporal_shift", {"X": x}, attrs, dtype=x.dtype)


def similarity_focus(input: Variable, axis: int, indexes: Sequence[int], name: str | None = None) -> Variable:
    """A mask: 1 along ``axis`` at the largest cells of planes ``indexes``, no two in one row or column. He and Lin, 2016."""
    require_dtype("similarity_focus", require_variable("similarity_focus", "input", input), FLOATS)
    if axis not in (1, 2, 3) or not indexes:
        raise ProgramError(f"similarity_focus: axis {axis} must be 1, 2 or 3 and indexes not empty ({user_line()})")
    attrs = {"axis": axis, "indexes": list(indexes)}
    return LayerHelper("similarity_focus", name).one("similarity_focus", {"X": input}, attrs, dtype=input.dtype)


def fsp_matrix(x: Variable, y: Variable) -> Variable:
    """The mean over all places of the products of the channels of two images: [N, C1, C2]. Yim et al., 2017."""
    require_same_dtype("fsp_matrix", require_variable("fsp_matrix", "x", x), require_variable("fsp_matrix", "y", y))
    return LayerHelper("fsp_matrix").one("fsp", {"X": x, "Y": y}, dtype=x.dtype)


def affine_grid(theta: Variable, out_shape: Shape, name: str | None = None) -> Variable:
    """For each cell of images of ``out_shape`` [N, C, H, W] where the affine map ``theta`` [N, 2, 3] takes it.

    Jaderberg et al., "Spatial Transformer Networks", 2015.
    """
    require_dtype("affine_grid", require_variable("affine_grid", "theta", theta), FLOATS)
    inputs: dict[str, Variables] = {"Theta": theta}
    attrs: dict[str, Any] = {"use_cudnn": True}
    if isinstance(out_shape, Variable):
        inputs["OutputShape"] = out_shape
    else:
        attrs["output_shape"] = list(out_shape)
    return LayerHelper("affine_grid", name).one("affine_grid", inputs, attrs, dtype=theta.dtype, out="Output")


def grid_sampler(x: Variable, grid: Variable, name: str | None = None) -> Variable:
    """Images at the places of ``grid`` [N, H, W, 2] in [-1, 1], between four cells in proportion; 0 outside."""
    require_dtype("grid_sampler", require_variable("grid_sampler", "x", x), FLOATS)
    inputs = {"X": x, "Grid": require_variable("grid_sampler", "grid", grid)}
    attrs = {"use_cudnn": True}
    return LayerHelper("grid_sampler", name).one("grid_sampler", inputs, attrs, dtype=x.dtype, out="Output")


def add_position_encoding(input: Variable, alpha: float, beta: float, name: str | None = None) -> Variable:
    """alpha * input + beta * sines and cosines of the step, for [N, steps, width] or sequences. Vaswani et al., 2017."""
    layer = "add_position_encoding"
    require_dtype(layer, require_variable(layer, "input", input), FLOATS)
    attrs = {"alpha": float(alpha), "beta": float(beta)}
    return LayerHelper(layer, name).one(layer, {"X": input}, attrs, dtype=input.dtype)
