"""`pool2d`: the largest cell, or the mean, of every window of an image.

Both are computed one dimension after the other: first over the cells of a row, then over the rows of a window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import REQUIRED, Case, bool_attr, ints_attr, register, string_attr
from fluidlite.ops.windows import (
    AdaptiveWindows,
    AnyWindows,
    Windows,
    add_at,
    channels_first,
    covered,
    image_shape,
    in_layout,
    paddings_of,
    pair,
    split_shape,
    sums,
)

#: dimensions of images (N, C, H, W)
_ROWS, _COLUMNS = 2, 3
_ATTRS: Final = {
    "pooling_type": string_attr(doc="max or avg"),
    "ksize": ints_attr(REQUIRED, "height and width of the window"),
    "global_pooling": bool_attr(default=False, doc="one window, the whole image; ksize and paddings do not count"),
    "strides": ints_attr((1, 1)),
    "paddings": ints_attr((0, 0), "of height and width, or top, bottom, left, right"),
    "exclusive": bool_attr(default=True, doc="means are over the cells of the image, not of the padding too"),
    "adaptive": bool_attr(default=False, doc="ksize windows divide the image evenly"),
    "ceil_mode": bool_attr(default=False, doc="a last window may reach beyond the padding"),
    "data_format": string_attr("NCHW", "or NHWC"),
    "is_test": bool_attr(default=False),
    "padding_algorithm": string_attr("EXPLICIT", "SAME and VALID compute the padding"),
}


class Grid(NamedTuple):
    """The windows over the rows and over the columns of an image, and what their sums are divided by."""

    rows: AnyWindows
    columns: AnyWindows
    exclusive: bool

    def sizes(self, dtype: np.dtype[Any]) -> Array:
        """The number of cells that each mean is over, broadcastable to (rows, columns)."""
        if self.exclusive:
            return (covered(self.rows)[:, None] * covered(self.columns)).astype(dtype)
        return np.array(self.rows.length * self.columns.length, dtype)


def grid_of(sizes: tuple[int, int], attrs: Mapping[str, Any]) -> Grid:
    """The grid over images of ``sizes``, each of which may be unknown (-1). ``attrs``: the op's attributes by name.

    Raises ShapeError.
    """
    height, width = sizes
    if attrs["global_pooling"]:
        return Grid(Windows(height, max(height, 1)), Windows(width, max(width, 1)), exclusive=False)
    lengths = pair("ksize", attrs["ksize"])
    if attrs["adaptive"]:
        return Grid(AdaptiveWindows(height, lengths[0]), AdaptiveWindows(width, lengths[1]), exclusive=True)
    strides = pair("strides", attrs["strides"])
    margins = paddings_of(attrs["padding_algorithm"], attrs["paddings"], sizes, lengths, strides)
    rows, columns = (
        Windows(size, length, stride, *margin, ceil_mode=attrs["ceil_mode"])
        for size, length, stride, margin in zip(sizes, lengths, strides, margins, strict=True)
    )
    needs_cells = attrs["exclusive"] or attrs["pooling_type"] == "max"
    for windows in (rows, columns):
        if needs_cells and windows.count > 0 and not covered(windows).all():
            raise ShapeError(
                f"some windows of {windows.length} cells lie in the padding, {windows.before} and {windows.after}, or "
                f"beyond it, and hold none of the image's {windows.size}"
            )
    return Grid(rows, columns, attrs["exclusive"])


def pool2d(ctx: KernelContext, X: Array, *, pooling_type: str, data_format: str, **attrs: Any) -> Array:
    images = channels_first(X, data_format)
    grid = grid_of((images.shape[2], images.shape[3]), {**attrs, "pooling_type": pooling_type})
    reduce = largest_cells if pooling_type == "max" else sums
    out = along(_COLUMNS, reduce, grid.columns, images)
    out = along(_ROWS, reduce, grid.rows, out)
    return in_layout(out if pooling_type == "max" else out / grid.sizes(X.dtype), data_format)


def pool2d_grad(
    ctx: KernelContext, X: Array, Out: Array, Out_GRAD: Array, *, pooling_type: str, data_format: str, **attrs: Any
) -> Array:
    images, upstream = channels_first(X, data_format), channels_first(Out_GRAD, data_format)
    grid = grid_of((images.shape[2], images.shape[3]), {**attrs, "pooling_type": pooling_type})
    if pooling_type == "max":
        inner = along(_COLUMNS, largest_cells, grid.columns, images)
        grad = along(_ROWS, routed, grid.rows, inner, channels_first(Out, data_format), upstream)
        grad = along(_COLUMNS, routed, grid.columns, images, inner, grad)
    else:
        grad = along(_ROWS, spread, grid.rows, upstream / grid.sizes(X.dtype))
        grad = along(_COLUMNS, spread, grid.columns, grad)
    return in_layout(grad, data_format)


def along(axis: int, function: Callable[..., Array], windows: AnyWindows, *images: Array) -> Array:
    """A function of arrays (outer, size, inner) along one dimension of images (N, C, H, W)."""
    before, after = math.prod(images[0].shape[:axis]), math.prod(images[0].shape[axis + 1 :])
    out = function(windows, *(image.reshape(before, image.shape[axis], after) for image in images))
    return out.reshape(*images[0].shape[:axis], out.shape[1], *images[0].shape[axis + 1 :])


def largest_cells(windows: AnyWindows, lines: Array) -> Array:
    out = np.full((len(lines), windows.count, lines.shape[2]), -np.inf, lines.dtype)
    for offset in range(windows.length):
        places, cells = windows.at(offset)
        out[:, places] = np.maximum(out[:, places], lines[:, cells])
    return out


def routed(windows: AnyWindows, lines: Array, largest: Array, upstream: Array) -> Array:
    """Each gradient at the first cell of its window that is the largest."""
    grad, done = np.zeros_like(lines), np.zeros(largest.shape, bool)
    for offset in range(windows.length):
        places, cells = windows.at(offset)
        found = (lines[:, cells] == largest[:, places]) & ~done[:, places]
        done[:, places] |= found
        add_at(grad, cells, np.where(found, upstream[:, places], 0).astype(grad.dtype))
    return grad


def spread(windows: AnyWindows, upstream: Array) -> Array:
    """Each gradient at every cell of its window: the transpose of `sums`."""
    grad = np.zeros((len(upstream), windows.size, upstream.shape[2]), upstream.dtype)
    for offset in range(windows.length):
        places, cells = windows.at(offset)
        add_at(grad, cells, upstream[:, places])
    return grad


def _infer(ctx: InferContext) -> None:
    if ctx.attr("pooling_type") not in ("max", "avg"):
        raise ProgramError(
            f"op 'pool2d': pooling_type {ctx.attr('pooling_type')!r} is neither max nor avg ({ctx.op.origin})"
        )
    x, shape, layout = ctx.input("X"), ctx.shape("X"), ctx.attr("data_format")
    try:
        channels, sizes = split_shape(shape, layout)
        grid = grid_of(sizes, {name: ctx.attr(name) for name in _ATTRS})
        counts = (grid.rows.count, grid.columns.count)
    except ProgramError as error:
        raise ctx.located(error) from None
    ctx.set("Out", image_shape(shape, channels, counts, layout), x.dtype, lod_level=x.lod_level)


_X = np.array([[[[1.0, 5.0, 2.0], [4.0, 3.0, 8.0], [7.0, 6.0, 9.0]]]])
_MIXED = (37 * np.arange(80) % 80).reshape(2, 2, 5, 4) / 7.0

register(
    "pool2d",
    doc="Out [N, C, rows, columns]: the largest cell or the mean of each window over X [N, C, H, W]. Of equal cells the "
    "first gets the gradient.",
    inputs=["X"],
    outputs=["Out"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=pool2d,
    grad=maker(["Out", "Out@GRAD", "X"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case(
            {"X": _X},
            {"pooling_type": "max", "ksize": [2, 2]},
            {"Out": np.array([[[[5.0, 8.0], [7.0, 9.0]]]])},
            check_grad=("X",),
        ),
        Case(
            {"X": _X},
            {"pooling_type": "avg", "ksize": [2, 2], "strides": [2, 2], "ceil_mode": True},
            {"Out": np.array([[[[3.25, 5.0], [6.5, 9.0]]]])},
            check_grad=("X",),
        ),
        Case(
            {"X": _X},
            {"pooling_type": "avg", "ksize": [2, 2], "strides": [2, 2], "paddings": [1, 1], "exclusive": False},
            {"Out": np.array([[[[0.25, 1.75], [2.75, 6.5]]]])},
            check_grad=("X",),
        ),
        Case(
            {"X": _X.reshape(1, 3, 3, 1)},
            {"pooling_type": "max", "ksize": [1, 1], "global_pooling": True, "data_format": "NHWC"},
            {"Out": np.array([[[[9.0]]]])},
            check_grad=("X",),
        ),
        Case(
            {"X": _X},
            {"pooling_type": "avg", "ksize": [2, 2], "adaptive": True},
            {"Out": np.array([[[[3.25, 4.5], [5.0, 6.5]]]])},
            check_grad=("X",),
        ),
        Case({"X": _MIXED}, {"pooling_type": "max", "ksize": [7, 3], "adaptive": True}, check_grad=("X",)),
        Case(
            {"X": _MIXED},
            {"pooling_type": "max", "ksize": [3, 2], "strides": [2, 1], "padding_algorithm": "SAME"},
            check_grad=("X",),
        ),
        Case({"X": np.zeros((0, 1, 3, 3))}, {"pooling_type": "avg", "ksize": [2, 2]}, {"Out": np.zeros((0, 1, 2, 2))}),
    ),
)
register(
    "pool2d_grad",
    doc="Gradient of pool2d.",
    inputs=["Out", "Out@GRAD", "X"],
    outputs=["X@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=pool2d_grad,
)
