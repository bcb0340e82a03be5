"""`conv2d` and `depthwise_conv2d`: filters moved over images.

The windows of some images at a time become the columns of a matrix, so that the work is one matrix product per group of
channels (Chellapilla, Puri, Simard 2006).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import (
    AttrSpec,
    Case,
    bool_attr,
    float_attr,
    floats_attr,
    int_attr,
    ints_attr,
    register,
    string_attr,
)
from fluidlite.ops.windows import (
    Windows,
    channels_first,
    image_shape,
    in_layout,
    paddings_of,
    pair,
    split_shape,
)

#: columns are made of as many images at a time as keeps their matrix below this size
_COLUMN_BYTES: Final = 1 << 24

#: attributes of MKL-DNN's fused kernels; a program that sets one cannot run here
_FUSED: Final[dict[str, AttrSpec]] = {
    "fuse_relu_before_depthwise_conv": bool_attr(default=False),
    "fuse_relu": bool_attr(default=False),
    "fuse_brelu": bool_attr(default=False),
    "fuse_activation": string_attr(""),
    "fuse_residual_connection": bool_attr(default=False),
    "force_fp32_output": bool_attr(default=False),
}
_ATTRS: Final[dict[str, AttrSpec]] = {
    **_FUSED,
    "is_test": bool_attr(default=False),
    "strides": ints_attr((1, 1)),
    "paddings": ints_attr((0, 0), "of height and width, or top, bottom, left, right"),
    "padding_algorithm": string_attr("EXPLICIT", "SAME and VALID compute the padding; SAME has no dilation"),
    "groups": int_attr(1, "each group of filters sees its own group of channels"),
    "dilations": ints_attr((1, 1), "distance of the cells of a window"),
    "fuse_brelu_threshold": float_attr(6.0),
    "fuse_alpha": float_attr(0.0),
    "fuse_beta": float_attr(0.0),
    "Scale_in": float_attr(1.0),
    "Scale_out": float_attr(1.0),
    "Scale_in_eltwise": float_attr(1.0),
    "Scale_weights": floats_attr((1.0,)),
    "data_format": string_attr("NCHW", "or NHWC"),
    "workspace_size_MB": int_attr(512),
    "exhaustive_search": bool_attr(default=False),
}


@dataclass(frozen=True, slots=True)
class Grid:
    """How filters (M, C / groups, height, width) lie over images (N, C, H, W)."""

    rows: Windows
    columns: Windows
    groups: int
    filters: int
    #: channels of one group
    channels: int

    @property
    def cells(self) -> int:
        """Cells that one filter covers, over all channels."""
        return self.channels * self.rows.length * self.columns.length

    @property
    def positions(self) -> int:
        """Windows of one image."""
        return self.rows.count * self.columns.count

    def parts(self, images: Array) -> Iterator[slice]:
        """Consecutive images whose columns have a bearable size together."""
        size = max(1, self.groups * self.cells * self.positions * images.itemsize)
        step = max(1, _COLUMN_BYTES // size)
        return (slice(start, start + step) for start in range(0, len(images), step))

    def unfolded(self, images: Array) -> Array:
        """The windows of images (n, C, H, W) as columns (groups, cells, n * positions)."""
        rows, columns = self.rows, self.columns
        margins = ((0, 0), (0, 0), (rows.before, rows.after), (columns.before, columns.after))
        padded = np.pad(images, margins) if any(map(any, margins)) else images
        windows = sliding_window_view(padded, (rows.span, columns.span), axis=(2, 3))
        windows = windows[:, :, :: rows.stride, :: columns.stride, :: rows.dilation, :: columns.dilation]
        return windows.transpose(1, 4, 5, 0, 2, 3).reshape(self.groups, self.cells, -1)

    def folded(self, cells: Array, images: int) -> Array:
        """Columns summed where they come from: the transpose of `unfolded`."""
        rows, columns = self.rows, self.columns
        parts = cells.reshape(-1, rows.length, columns.length, images, rows.count, columns.count)
        out = np.zeros((len(parts), images, rows.size, columns.size), cells.dtype)
        for i in range(rows.length):
            for j in range(columns.length):
                (from_row, to_row), (from_column, to_column) = rows.at(i), columns.at(j)
                out[:, :, to_row, to_column] += parts[:, i, j, :, from_row, from_column]
        return out.swapaxes(0, 1)


def grid_of(images: Sequence[int], filter: Sequence[int], attrs: Mapping[str, Any]) -> Grid:
    """The grid for shapes of which the batch, the image's size and the number of filters may be unknown (-1).

    ``attrs``: the op's attributes by name. Raises ShapeError.
    """
    channels, sizes = split_shape(images, attrs["data_format"])
    groups, algorithm = attrs["groups"], attrs["padding_algorithm"]
    if len(filter) != 4 or groups < 1 or channels != filter[1] * groups or max(filter[0], 0) % groups:
        raise ShapeError(f"filters {list(filter)} in {groups} group(s) do not fit Input {list(images)}")
    strides = pair("strides", attrs["strides"])
    # as in Fluid, SAME takes windows that are not dilated
    dilations = (1, 1) if algorithm == "SAME" else pair("dilations", attrs["dilations"])
    margins = paddings_of(algorithm, attrs["paddings"], sizes, filter[2:], strides)
    rows, columns = (
        Windows(size, length, stride, *margin, dilation)
        for size, length, stride, margin, dilation in zip(sizes, filter[2:], strides, margins, dilations, strict=True)
    )
    return Grid(rows, columns, groups, filter[0], filter[1])


def conv2d(
    ctx: KernelContext, Input: Array, Filter: Array, Bias: Array | None, *, data_format: str, **attrs: Any
) -> Array:
    grid = grid_of(Input.shape, Filter.shape, {**attrs, "data_format": data_format})
    images, weights = channels_first(Input, data_format), Filter.reshape(grid.groups, -1, grid.cells)
    out = np.empty((len(images), grid.filters, grid.rows.count, grid.columns.count), Input.dtype)
    for part in grid.parts(images):
        products = (weights @ grid.unfolded(images[part])).reshape(grid.filters, -1, *out.shape[2:])
        out[part] = products.swapaxes(0, 1)
    if Bias is not None:
        out += Bias.reshape(-1, 1, 1)
    return in_layout(out, data_format)


def conv2d_grad(
    ctx: KernelContext,
    Input: Array,
    Filter: Array,
    Bias: Array | None,
    Output_GRAD: Array,
    *,
    data_format: str,
    **attrs: Any,
) -> dict[str, Array]:
    grid = grid_of(Input.shape, Filter.shape, {**attrs, "data_format": data_format})
    images, upstream = channels_first(Input, data_format), channels_first(Output_GRAD, data_format)
    grads: dict[str, Array] = {}
    if ctx.wants("Filter@GRAD"):
        grads["Filter@GRAD"] = _filter_grad(grid, images, upstream).reshape(Filter.shape)
    if ctx.wants("Input@GRAD"):
        weights = Filter.reshape(grid.groups, -1, grid.cells)
        grads["Input@GRAD"] = in_layout(_image_grad(grid, images, weights, upstream), data_format)
    if Bias is not None:
        grads["Bias@GRAD"] = upstream.sum(axis=(0, 2, 3)).reshape(Bias.shape)
    return grads


def _as_columns(grid: Grid, upstream: Array) -> Array:
    """Gradients (n, M, height, width) as columns (groups, M / groups, n * positions)."""
    return upstream.swapaxes(0, 1).reshape(grid.groups, grid.filters // grid.groups, -1)


def _filter_grad(grid: Grid, images: Array, upstream: Array) -> Array:
    grad = np.zeros((grid.groups, grid.filters // grid.groups, grid.cells), images.dtype)
    for part in grid.parts(images):
        grad += _as_columns(grid, upstream[part]) @ grid.unfolded(images[part]).swapaxes(1, 2)
    return grad


def _image_grad(grid: Grid, images: Array, weights: Array, upstream: Array) -> Array:
    grad = np.empty(images.shape, images.dtype)
    for part in grid.parts(images):
        own = upstream[part]
        grad[part] = grid.folded(weights.swapaxes(1, 2) @ _as_columns(grid, own), len(own))
    return grad


def _infer(ctx: InferContext) -> None:
    fused = [name for name, spec in _FUSED.items() if ctx.attr(name) != spec.default]
    if fused or ctx.inputs("ResidualData"):
        given = ", ".join([*fused, *(var.name for var in ctx.inputs("ResidualData"))])
        raise ProgramError(f"op {ctx.op.type!r}: {given} is for MKL-DNN's fused kernels alone ({ctx.op.origin})")
    x, shape = ctx.input("Input"), ctx.shape("Input")
    try:
        grid = grid_of(shape, ctx.shape("Filter"), {name: ctx.attr(name) for name in _ATTRS})
        sizes = (grid.rows.count, grid.columns.count)
    except ProgramError as error:
        raise ctx.located(error) from None
    out = image_shape(shape, grid.filters, sizes, ctx.attr("data_format"))
    ctx.set("Output", out, x.dtype, lod_level=x.lod_level)


_X = np.arange(9.0).reshape(1, 1, 3, 3)
_SUM = np.array([[[8.0, 12.0], [20.0, 24.0]]])
_IMAGES = varied(2, 4, 5, 4)
_FILTERS = varied(2, 2, 3, 2, start=200)
_GRADS = ("Input", "Filter")


def _cases(type: str) -> tuple[Case, ...]:
    plain = Case({"Input": _X, "Filter": np.ones((1, 1, 2, 2))}, {}, {"Output": _SUM[None]}, check_grad=_GRADS)
    if type != "conv2d":
        return (
            plain,
            Case(
                {"Input": np.concatenate([_X, 2 * _X], axis=1), "Filter": np.ones((2, 1, 2, 2))},
                {"groups": 2},
                {"Output": np.stack([_SUM[0], 2 * _SUM[0]])[None]},
                check_grad=_GRADS,
            ),
        )
    return (
        plain,
        Case(
            {"Input": _X, "Filter": np.ones((1, 1, 2, 2)), "Bias": np.array([0.5])},
            {"padding_algorithm": "SAME", "strides": [2, 2]},
            {"Output": np.array([[[[8.5, 7.5], [13.5, 8.5]]]])},
            check_grad=(*_GRADS, "Bias"),
        ),
        Case(
            {"Input": _X, "Filter": np.ones((1, 1, 2, 2))},
            {"dilations": [2, 2]},
            {"Output": np.array([[[[16.0]]]])},
        ),
        Case(
            {"Input": _X.reshape(1, 3, 3, 1), "Filter": np.stack([np.ones((1, 2, 2)), np.zeros((1, 2, 2))])},
            {"data_format": "NHWC"},
            {"Output": np.stack([_SUM[0], np.zeros((2, 2))], axis=-1)[None]},
            check_grad=_GRADS,
        ),
        Case(
            {"Input": _IMAGES, "Filter": _FILTERS},
            {"groups": 2, "strides": [2, 1], "paddings": [1, 2, 0, 1], "dilations": [1, 2]},
            check_grad=_GRADS,
            note="everything at once",
        ),
        Case(
            {"Input": np.zeros((0, 1, 3, 3)), "Filter": np.ones((2, 1, 2, 2))}, {}, {"Output": np.zeros((0, 2, 2, 2))}
        ),
    )


def _register(type: str, doc: str) -> None:
    register(
        type,
        doc=f"{doc} Input [N, C, H, W], Filter [M, C / groups, height, width], Output [N, M, rows, columns]: sums of the "
        "cells of each window times those of the filter, plus Bias [M].",
        inputs=["Input", "Filter", "Bias?", "ResidualData?"],
        outputs=["Output"],
        attrs=_ATTRS,
        infer=_infer,
        kernel=conv2d,
        grad=maker(
            ["Bias", "Filter", "Input", "Output@GRAD"],
            ["Bias@GRAD", "Filter@GRAD", "Input@GRAD"],
        ),
        share_lod="Input",
        cases=_cases(type),
    )
    register(
        f"{type}_grad",
        doc=f"Gradient of {type}.",
        inputs=["Bias?", "Filter", "Input", "Output@GRAD"],
        outputs=["Bias@GRAD?", "Filter@GRAD", "Input@GRAD"],
        attrs=_ATTRS,
        infer=grads_like_forward,
        kernel=conv2d_grad,
    )


_register("conv2d", "Convolution of images (not flipping the filters).")
_register("depthwise_conv2d", "What layers call a conv2d with as many groups as channels.")
