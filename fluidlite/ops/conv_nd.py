"""Filters moved over volumes, and the transposes of convolutions: conv3d, conv3d_transpose, conv2d_transpose,
depthwise_conv2d_transpose.

As in `conv2d`, windows become columns of a matrix. A transposed convolution is the gradient of a convolution with respect
to its images, so one grid serves both: here "wide" is the side that has the cells, "narrow" the side that has one value
per window.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.infer import InferContext
from fluidlite.ops.pairs import with_gradient
from fluidlite.ops.registry import AttrSpec, Case, bool_attr, float_attr, int_attr, ints_attr, string_attr
from fluidlite.ops.windows import Windows, channel_dimension, each, paddings_of


@dataclass(frozen=True, slots=True)
class Grid:
    """How filters (narrow channels, wide channels / groups, *lengths) lie over the cells of the wide side."""

    windows: tuple[Windows, ...]
    groups: int
    narrow: int
    wide: int

    @property
    def counts(self) -> tuple[int, ...]:
        """Windows along each dimension."""
        return tuple(windows.count for windows in self.windows)

    @property
    def cells(self) -> int:
        """Cells that one filter covers, over all channels of its group."""
        return self.wide // self.groups * math.prod(windows.length for windows in self.windows)

    def unfolded(self, images: Array) -> Array:
        """The windows of the wide side (n, C, ...) as columns (groups, cells, n * positions)."""
        counts = self.counts  # raises where a window does not fit
        padded = np.pad(images, [(0, 0), (0, 0), *((w.before, w.after) for w in self.windows)])
        rank = len(self.windows)
        found = sliding_window_view(padded, [w.span for w in self.windows], axis=tuple(range(2, 2 + rank)))
        steps = [slice(None, None, w.stride) for w in self.windows]
        offsets = [slice(None, None, w.dilation) for w in self.windows]
        # a padding that is no multiple of the stride leaves room for a window more than there are
        found = found[(slice(None), slice(None), *steps, *offsets)]
        found = found[(slice(None), slice(None), *(slice(count) for count in counts))]
        order = (1, *range(2 + rank, 2 + 2 * rank), 0, *range(2, 2 + rank))
        return found.transpose(order).reshape(self.groups, self.cells, -1)

    def folded(self, columns: Array, images: int) -> Array:
        """Columns summed where they come from: the transpose of `unfolded`; (images, C, *sizes)."""
        lengths = [w.length for w in self.windows]
        parts = columns.reshape(self.wide, *lengths, images, *self.counts)
        out = np.zeros((self.wide, images, *(w.size for w in self.windows)), columns.dtype)
        for offsets in itertools.product(*map(range, lengths)):
            places = [w.at(offset) for w, offset in zip(self.windows, offsets, strict=True)]
            source, target = zip(*places, strict=True)
            out[(slice(None), slice(None), *target)] += parts[(slice(None), *offsets, slice(None), *source)]
        return out.swapaxes(0, 1)

    def columns_of(self, values: Array) -> Array:
        """The narrow side (n, M, *counts) as columns (groups, M / groups, n * positions)."""
        return values.swapaxes(0, 1).reshape(self.groups, self.narrow // self.groups, -1)

    def weights(self, filters: Array) -> Array:
        """Filters as matrices (groups, M / groups, cells)."""
        return filters.reshape(self.groups, self.narrow // self.groups, self.cells)

    def narrowed(self, wide: Array, filters: Array) -> Array:
        """The convolution: one value per window and filter."""
        products = (self.weights(filters) @ self.unfolded(wide)).reshape(self.narrow, len(wide), *self.counts)
        return products.swapaxes(0, 1)

    def widened(self, narrow: Array, filters: Array) -> Array:
        """The transposed convolution: every window's value times the filter, summed."""
        return self.folded(self.weights(filters).swapaxes(1, 2) @ self.columns_of(narrow), len(narrow))

    def filter_grad(self, wide: Array, narrow: Array) -> Array:
        """The gradient of the filters of `narrowed`, from its input and the gradient of its output."""
        return self.columns_of(narrow) @ self.unfolded(wide).swapaxes(1, 2)


def _sizes(shape: Sequence[int], data_format: str) -> tuple[int, tuple[int, ...]]:
    """(channels, sizes) of images or volumes."""
    axis = channel_dimension(data_format, len(shape))
    return shape[axis], tuple(size for i, size in enumerate(shape) if i not in (0, axis))


def _settings(
    attrs: Mapping[str, Any], sizes: Sequence[int], lengths: Sequence[int]
) -> list[tuple[int, int, int, int]]:
    """(stride, before, after, dilation) of each dimension."""
    rank, algorithm = len(sizes), attrs["padding_algorithm"]
    strides = each("strides", attrs["strides"], rank)
    # as in Fluid, SAME takes windows that are not dilated
    dilations = (1,) * rank if algorithm == "SAME" else each("dilations", attrs["dilations"], rank)
    margins = paddings_of(algorithm, attrs["paddings"], sizes, lengths, strides)
    return [(s, b, a, d) for s, (b, a), d in zip(strides, margins, dilations, strict=True)]


def conv_grid(input: Sequence[int], filter: Sequence[int], attrs: Mapping[str, Any]) -> Grid:
    """The grid of a convolution, whose Input is the wide side. Raises ShapeError."""
    channels, sizes = _sizes(input, attrs["data_format"])
    groups = attrs["groups"]
    if len(filter) != len(input) or groups < 1 or channels != filter[1] * groups or max(filter[0], 0) % groups:
        raise ShapeError(f"filters {list(filter)} in {groups} group(s) do not fit Input {list(input)}")
    found = _settings(attrs, sizes, filter[2:])
    windows = (Windows(size, length, *rest) for size, length, rest in zip(sizes, filter[2:], found, strict=True))
    return Grid(tuple(windows), groups, filter[0], channels)


def transpose_grid(input: Sequence[int], filter: Sequence[int], attrs: Mapping[str, Any]) -> Grid:
    """The grid of a transposed convolution, whose Input is the narrow side. Raises ShapeError."""
    channels, counts = _sizes(input, attrs["data_format"])
    groups = attrs["groups"]
    if len(filter) != len(input) or groups < 1 or max(filter[0], channels) != channels or channels % groups:
        raise ShapeError(f"filters {list(filter)} in {groups} group(s) do not fit Input {list(input)}")
    wanted = attrs["output_size"] or (None,) * len(counts)
    if len(wanted) != len(counts):
        raise ShapeError(f"output_size {list(wanted)} must be {len(counts)} numbers")
    windows = []
    for count, length, rest, size in zip(counts, filter[2:], _settings(attrs, counts, filter[2:]), wanted, strict=True):
        stride, before, after, dilation = rest
        least = -1 if count < 0 else (count - 1) * stride - before - after + (length - 1) * dilation + 1
        if size is not None and least >= 0 and not least <= size < least + stride:
            raise ShapeError(f"output_size {size} is not in [{least}, {least + stride})")
        windows.append(Windows(least if size is None else size, length, stride, before, after, dilation))
    return Grid(tuple(windows), groups, filter[0], filter[1] * groups)


def _channels_first(values: Array, data_format: str) -> Array:
    return np.moveaxis(values, channel_dimension(data_format, values.ndim), 1)


def _in_layout(values: Array, data_format: str) -> Array:
    return np.ascontiguousarray(np.moveaxis(values, 1, channel_dimension(data_format, values.ndim)))


def conv3d(ctx: KernelContext, Input: Array, Filter: Array, *, data_format: str, **attrs: Any) -> Array:
    grid = conv_grid(Input.shape, Filter.shape, {**attrs, "data_format": data_format})
    return _in_layout(grid.narrowed(_channels_first(Input, data_format), Filter), data_format)


def conv3d_grad(
    ctx: KernelContext, Input: Array, Filter: Array, Output_GRAD: Array, *, data_format: str, **attrs: Any
) -> dict[str, Array]:
    grid = conv_grid(Input.shape, Filter.shape, {**attrs, "data_format": data_format})
    images, upstream = _channels_first(Input, data_format), _channels_first(Output_GRAD, data_format)
    return {
        "Filter@GRAD": grid.filter_grad(images, upstream).reshape(Filter.shape),
        "Input@GRAD": _in_layout(grid.widened(upstream, Filter), data_format),
    }


def conv_transpose(
    ctx: KernelContext, Input: Array, Filter: Array, *, data_format: str, Bias: Array | None = None, **attrs: Any
) -> Array:
    grid = transpose_grid(Input.shape, Filter.shape, {**attrs, "data_format": data_format})
    out = grid.widened(_channels_first(Input, data_format), Filter)
    if Bias is not None:
        out = out + Bias.reshape(-1, *(1 for _ in grid.windows))
    return _in_layout(out, data_format)


def conv_transpose_grad(
    ctx: KernelContext,
    Input: Array,
    Filter: Array,
    Output_GRAD: Array,
    *,
    data_format: str,
    Bias: Array | None = None,
    **attrs: Any,
) -> dict[str, Array]:
    grid = transpose_grid(Input.shape, Filter.shape, {**attrs, "data_format": data_format})
    values, upstream = _channels_first(Input, data_format), _channels_first(Output_GRAD, data_format)
    grads = {
        "Filter@GRAD": grid.filter_grad(upstream, values).reshape(Filter.shape),
        "Input@GRAD": _in_layout(grid.narrowed(upstream, Filter), data_format),
    }
    if Bias is not None:
        grads["Bias@GRAD"] = upstream.sum(axis=(0, *range(2, upstream.ndim))).reshape(Bias.shape)
    return grads


def _infer(ctx: InferContext) -> None:
    _refuse_fused(ctx)
    shape, filters = ctx.shape("Input"), ctx.shape("Filter")
    attrs = {name: ctx.attr(name) for name in ctx.op_def.attrs}
    try:
        if "transpose" in ctx.op.type:
            grid = transpose_grid(shape, filters, attrs)
            channels, sizes = grid.wide, tuple(max(windows.size, -1) for windows in grid.windows)
        else:
            grid = conv_grid(shape, filters, attrs)
            channels, sizes = grid.narrow, grid.counts
        axis = channel_dimension(attrs["data_format"], len(shape))
    except ProgramError as error:
        raise ctx.located(error) from None
    out = [shape[0], *sizes]
    out.insert(axis, channels)
    x = ctx.input("Input")
    ctx.set("Output", tuple(out), x.dtype, lod_level=x.lod_level)


def _refuse_fused(ctx: InferContext) -> None:
    given = [name for name in _FUSED if name in ctx.op_def.attrs and ctx.attr(name) != _FUSED[name].default]
    given += [var.name for var in ctx.inputs("ResidualData")]
    if given:
        raise ProgramError(
            f"op {ctx.op.type!r}: {', '.join(given)} is for MKL-DNN's fused kernels alone ({ctx.op.origin})"
        )


#: attributes of MKL-DNN's fused kernels; a program that sets one cannot run here
_FUSED: Final[dict[str, AttrSpec]] = {
    "fuse_relu": bool_attr(default=False),
    "fuse_activation": string_attr(""),
    "fuse_residual_connection": bool_attr(default=False),
    "force_fp32_output": bool_attr(default=False),
}


def _common(rank: int, layout: str) -> dict[str, AttrSpec]:
    return {
        "strides": ints_attr((1,) * rank),
        "paddings": ints_attr((0,) * rank, "one number per dimension, or two (before and after)"),
        "padding_algorithm": string_attr("EXPLICIT", "SAME and VALID compute the padding; SAME has no dilation"),
        "groups": int_attr(1, "each group of filters sees its own group of channels"),
        "dilations": ints_attr((1,) * rank, "distance of the cells of a window"),
        "data_format": string_attr(layout, "or channels last"),
        "workspace_size_MB": int_attr(512),
    }


_OUTPUT_SIZE: Final = {
    "output_size": ints_attr(doc="chosen among the sizes that a convolution would shrink to Input's")
}
_FUSION: Final = {"fuse_alpha": float_attr(0.0), "fuse_beta": float_attr(0.0), "is_test": bool_attr(default=False)}
_TRANSPOSE2D: Final = {
    **_common(2, "NCHW"),
    **_OUTPUT_SIZE,
    **_FUSION,
    "fuse_relu": _FUSED["fuse_relu"],
    "fuse_activation": _FUSED["fuse_activation"],
}
_GRADS: Final = ("Input", "Filter")
_VOLUME: Final = varied(1, 2, 3, 4, 3)
_IMAGES: Final = varied(2, 2, 3, 2)

with_gradient(
    "conv3d",
    doc="Convolution of volumes: as `conv2d` with a third dimension.",
    inputs=["Input", "Filter", "ResidualData?"],
    outputs=["Output"],
    attrs={**_common(3, "NCDHW"), **_FUSED, **_FUSION, "exhaustive_search": bool_attr(default=False)},
    infer=_infer,
    kernel=conv3d,
    gradient=conv3d_grad,
    reads=["Filter", "Input", "Output@GRAD", "ResidualData"],
    writes=["Filter@GRAD", "Input@GRAD"],
    share_lod="Input",
    cases=(
        Case({"Input": _VOLUME, "Filter": varied(2, 2, 2, 2, 2, start=90)}, check_grad=_GRADS),
        Case(
            {"Input": _VOLUME, "Filter": varied(2, 1, 2, 3, 2, start=90)},
            {"groups": 2, "strides": [1, 2, 1], "paddings": [1, 0, 1], "dilations": [2, 1, 1]},
            check_grad=_GRADS,
        ),
        Case(
            {"Input": np.ones((1, 2, 2, 2, 1)), "Filter": np.ones((1, 1, 2, 2, 2))},
            {"data_format": "NDHWC"},
            {"Output": np.full((1, 1, 1, 1, 1), 8.0)},
        ),
    ),
)
with_gradient(
    "conv3d_transpose",
    doc="The transpose of conv3d: volumes that a convolution with Filter [C, M / groups, ...] would shrink to Input's size.",
    inputs=["Input", "Filter"],
    outputs=["Output"],
    attrs={**_common(3, "NCHW"), **_OUTPUT_SIZE},
    infer=_infer,
    kernel=conv_transpose,
    gradient=conv_transpose_grad,
    reads=["Filter", "Input", "Output@GRAD"],
    writes=["Filter@GRAD", "Input@GRAD"],
    share_lod="Input",
    cases=(
        Case(
            {"Input": _VOLUME[:, :, :2, :2], "Filter": varied(2, 1, 2, 2, 2, start=90)},
            {"strides": [1, 2, 1], "paddings": [1, 0, 0]},
            check_grad=_GRADS,
        ),
    ),
)
for _type in ("conv2d_transpose", "depthwise_conv2d_transpose"):
    with_gradient(
        _type,
        doc="The transpose of conv2d: images that a convolution with Filter [C, M / groups, height, width] would shrink to "
        "Input's size."
        + (" What layers call it with as many groups as channels." if _type.startswith("depth") else ""),
        inputs=["Input", "Filter", "Bias?"],
        outputs=["Output"],
        attrs=_TRANSPOSE2D,
        infer=_infer,
        kernel=conv_transpose,
        gradient=conv_transpose_grad,
        reads=["Bias", "Filter", "Input", "Output@GRAD"],
        writes=["Bias@GRAD", "Filter@GRAD", "Input@GRAD"],
        share_lod="Input",
        cases=(
            Case({"Input": _IMAGES, "Filter": varied(2, 1, 2, 3, start=90)}, {"groups": 2}, check_grad=_GRADS),
            *(
                Case({"Input": _IMAGES, "Filter": varied(2, 3, 3, 2, start=90)}, attrs, check_grad=_GRADS)
                for attrs in (
                    {"strides": [2, 2], "paddings": [1, 0], "dilations": [1, 2]},
                    {"strides": [2, 2], "output_size": [8, 5]},
                    {"padding_algorithm": "SAME", "strides": [2, 1]},
                )
                if _type == "conv2d_transpose"
            ),
        ),
    )
