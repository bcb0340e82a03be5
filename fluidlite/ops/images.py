"""Images cut into windows, and other layers of image models: im2sequence, unfold, maxout, fsp, affine_grid,
grid_sampler, similarity_focus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops import conv_nd
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.pairs import with_gradient
from fluidlite.ops.registry import REQUIRED, Case, int_attr, ints_attr, register
from fluidlite.ops.shapes import given
from fluidlite.ops.windows import Windows
from fluidlite.values.lod import LoDTensor


def _window_grid(
    shape: Sequence[int],
    kernels: Sequence[int],
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
) -> conv_nd.Grid:
    """Windows over images (N, C, H, W); paddings: of height and width, or top, left, bottom, right."""
    if len(shape) != 4 or len(kernels) != 2 or min(*kernels, *strides, *dilations) < 1 or min(paddings) < 0:
        raise ShapeError(f"windows of {list(kernels)} over {list(shape)}: images have 4 dimensions, windows 2 sizes")
    top, left, bottom, right = paddings if len(paddings) == 4 else (*paddings, *paddings)
    rows = Windows(shape[2], kernels[0], strides[0], top, bottom, dilations[0])
    columns = Windows(shape[3], kernels[1], strides[1], left, right, dilations[1])
    return conv_nd.Grid((rows, columns), 1, 1, shape[1])


def im2sequence(
    ctx: KernelContext,
    X: Array,
    Y: Array | None,
    *,
    kernels: tuple[int, ...],
    strides: tuple[int, ...],
    paddings: tuple[int, ...],
    out_stride: tuple[int, ...],
) -> LoDTensor:
    grid = _window_grid(X.shape, kernels, strides, paddings, (1, 1))
    windows = _steps(X, grid).reshape(len(X), *grid.counts, -1)
    inside = _windows_inside(X, Y, kernels, strides, paddings, out_stride)
    ends = inside.sum(axis=(1, 2)).cumsum().tolist()
    return LoDTensor(windows[inside], ((0, *ends),))


def _windows_inside(
    X: Array,
    Y: Array | None,
    kernels: tuple[int, ...],
    strides: tuple[int, ...],
    paddings: tuple[int, ...],
    out_stride: tuple[int, ...],
) -> Array:
    """Which windows (N, rows, columns) lie in the real part of each image.

    An image has as many as one of the size in Y would, seen through strides of ``out_stride``.
    """
    counts = _window_grid(X.shape, kernels, strides, paddings, (1, 1)).counts
    inside = np.ones((len(X), *counts), bool)
    if Y is None:
        return inside
    for own, size in zip(inside, Y.reshape(len(X), 2), strict=True):
        sides = [-(-int(side) // step) for side, step in zip(size, out_stride, strict=True)]
        rows, columns = _window_grid((1, X.shape[1], *sides), kernels, strides, paddings, (1, 1)).counts
        if rows > counts[0] or columns > counts[1]:
            raise ShapeError(f"op 'im2sequence': Y says {sides} cells of an image of {list(X.shape[2:])}")
        own[rows:], own[:, columns:] = False, False
    return inside


def _steps(images: Array, grid: conv_nd.Grid) -> Array:
    """A row per window: all channels of its cells."""
    columns = grid.unfolded(images)[0]
    return np.ascontiguousarray(columns.T)


def im2sequence_grad(
    ctx: KernelContext,
    X: Array,
    Y: Array | None,
    Out_GRAD: Array,
    *,
    kernels: tuple[int, ...],
    strides: tuple[int, ...],
    paddings: tuple[int, ...],
    out_stride: tuple[int, ...],
) -> Array:
    grid = _window_grid(X.shape, kernels, strides, paddings, (1, 1))
    windows = np.zeros((len(X), *grid.counts, grid.cells), Out_GRAD.dtype)
    windows[_windows_inside(X, Y, kernels, strides, paddings, out_stride)] = Out_GRAD
    return np.ascontiguousarray(grid.folded(windows.reshape(-1, grid.cells).T, len(X)))


def _infer_im2sequence(ctx: InferContext) -> None:
    shape, x = ctx.shape("X"), ctx.input("X")
    try:
        grid = _window_grid(shape, ctx.attr("kernels"), ctx.attr("strides"), ctx.attr("paddings"), (1, 1))
        counts = grid.counts
    except ProgramError as error:
        raise ctx.located(error) from None
    known = min(shape[0], *counts) >= 0 and not ctx.inputs("Y")
    rows = shape[0] * counts[0] * counts[1] if known else -1
    ctx.set("Out", (rows, grid.cells), x.dtype, lod_level=1)


def unfold(
    ctx: KernelContext,
    X: Array,
    *,
    kernel_sizes: tuple[int, ...],
    strides: tuple[int, ...],
    paddings: tuple[int, ...],
    dilations: tuple[int, ...],
) -> Array:
    grid = _window_grid(X.shape, kernel_sizes, strides, paddings, dilations)
    return np.ascontiguousarray(grid.unfolded(X).reshape(grid.cells, len(X), -1).swapaxes(0, 1))


def unfold_grad(
    ctx: KernelContext,
    X: Array,
    Y_GRAD: Array,
    *,
    kernel_sizes: tuple[int, ...],
    strides: tuple[int, ...],
    paddings: tuple[int, ...],
    dilations: tuple[int, ...],
) -> Array:
    grid = _window_grid(X.shape, kernel_sizes, strides, paddings, dilations)
    return np.ascontiguousarray(grid.folded(Y_GRAD.swapaxes(0, 1), len(X)))


def _infer_unfold(ctx: InferContext) -> None:
    shape = ctx.shape("X")
    try:
        grid = _window_grid(shape, *(ctx.attr(name) for name in ("kernel_sizes", "strides", "paddings", "dilations")))
        counts = grid.counts
    except ProgramError as error:
        raise ctx.located(error) from None
    ctx.set("Y", (shape[0], grid.cells, -1 if min(counts) < 0 else counts[0] * counts[1]), ctx.input("X").dtype)


def _maxout_parts(shape: Sequence[int], groups: int, axis: int) -> tuple[int, ...]:
    """The shape with the channels split into those of the result and the ``groups`` of each."""
    axis = axis % len(shape)
    if groups < 2 or shape[axis] % groups:
        raise ShapeError(f"{shape[axis]} channels of {list(shape)} do not divide into groups of {groups}, at least 2")
    return (*shape[:axis], shape[axis] // groups, groups, *shape[axis + 1 :])


def maxout(ctx: KernelContext, X: Array, *, groups: int, axis: int) -> Array:
    parts = X.reshape(_maxout_parts(X.shape, groups, axis))
    return np.asarray(parts.max(axis=axis % X.ndim + 1))


def maxout_grad(ctx: KernelContext, X: Array, Out: Array, Out_GRAD: Array, *, groups: int, axis: int) -> Array:
    parts, along = X.reshape(_maxout_parts(X.shape, groups, axis)), axis % X.ndim + 1
    grad = np.zeros_like(parts)
    first = np.expand_dims(parts.argmax(axis=along), along)
    np.put_along_axis(grad, first, np.expand_dims(Out_GRAD, along), along)
    return grad.reshape(X.shape)


def _infer_maxout(ctx: InferContext) -> None:
    shape, axis = ctx.shape("X"), ctx.attr("axis")
    if axis not in (1, -1, 3) or len(shape) != 4:
        raise ctx.error(f"axis {axis} must be 1, -1 or 3 and X {list(shape)} images of 4 dimensions")
    try:
        parts = _maxout_parts(shape, ctx.attr("groups"), axis)
    except ShapeError as error:
        raise ctx.located(error) from None
    axis = axis % 4
    ctx.set("Out", parts[: axis + 1] + parts[axis + 2 :], ctx.input("X").dtype)


def fsp(ctx: KernelContext, X: Array, Y: Array) -> Array:
    return np.asarray(np.einsum("nihw,njhw->nij", X, Y, optimize=True) / (X.shape[2] * X.shape[3]))


def fsp_grad(ctx: KernelContext, X: Array, Y: Array, Out_GRAD: Array) -> dict[str, Array]:
    upstream = Out_GRAD / (X.shape[2] * X.shape[3])
    return {
        "X@GRAD": np.einsum("nij,njhw->nihw", upstream, Y, optimize=True),
        "Y@GRAD": np.einsum("nij,nihw->njhw", upstream, X, optimize=True),
    }


def _infer_fsp(ctx: InferContext) -> None:
    x, y = ctx.shape("X"), ctx.shape("Y")
    if len(x) != 4 or len(y) != 4 or any(a != b and min(a, b) >= 0 for a, b in zip(x[2:], y[2:], strict=True)):
        raise ctx.error(f"X {list(x)} and Y {list(y)} must be images of equal size")
    ctx.set("Out", (x[0], x[1], y[1]), ctx.input("X").dtype)


def _base_grid(height: int, width: int, dtype: Any) -> Array:
    """x, y and 1 of each cell, (height * width, 3); the corners' centres are at -1 and 1."""
    rows, columns = np.linspace(-1, 1, height), np.linspace(-1, 1, width)
    y, x = np.meshgrid(rows, columns, indexing="ij")
    return np.stack([x, y, np.ones_like(x)], axis=-1).reshape(-1, 3).astype(dtype)


def affine_grid(ctx: KernelContext, Theta: Array, OutputShape: Array | None, *, output_shape: tuple[int, ...]) -> Array:
    _, _, height, width = given(OutputShape, [], output_shape)
    base = _base_grid(height, width, Theta.dtype)
    return (base @ Theta.swapaxes(1, 2)).reshape(len(Theta), height, width, 2)


def affine_grid_grad(
    ctx: KernelContext, OutputShape: Array | None, Output_GRAD: Array, *, output_shape: tuple[int, ...]
) -> Array:
    _, _, height, width = given(OutputShape, [], output_shape)
    base = _base_grid(height, width, Output_GRAD.dtype)
    return Output_GRAD.reshape(len(Output_GRAD), -1, 2).swapaxes(1, 2) @ base


def _infer_affine_grid(ctx: InferContext) -> None:
    shape, sizes = ctx.shape("Theta"), ctx.attr("output_shape")
    if shape[1:] != (2, 3):
        raise ctx.error(f"Theta must be [n, 2, 3], not {list(shape)}")
    if not ctx.inputs("OutputShape") and len(sizes) != 4:
        raise ctx.error(f"output_shape {list(sizes)} must be batch, channels, height and width")
    known = (-1, -1) if ctx.inputs("OutputShape") else tuple(sizes[2:])
    ctx.set("Output", (shape[0], *known, 2), ctx.input("Theta").dtype)


def _corners(x: Array, grid: Array) -> tuple[Array, list[tuple[Array, Array, Array, Array, Array, Array]]]:
    """For each of the four cells around every place: (row, column, weight, its slopes in x and y, whether it exists)."""
    height, width = x.shape[2:]
    column, row = (grid[..., 0] + 1) * (width - 1) / 2, (grid[..., 1] + 1) * (height - 1) / 2
    left, top = np.floor(column), np.floor(row)
    found = []
    for i in (0, 1):
        for j in (0, 1):
            share_x, share_y = (column - left, row - top)
            wx, wy = (share_x if j else 1 - share_x), (share_y if i else 1 - share_y)
            r, c = (top + i).astype(np.int64), (left + j).astype(np.int64)
            inside = (r >= 0) & (r < height) & (c >= 0) & (c < width)
            found.append(
                (np.where(inside, r, 0), np.where(inside, c, 0), wx * wy, (2 * j - 1) * wy, (2 * i - 1) * wx, inside)
            )
    return np.arange(len(x))[:, None, None], found


def grid_sampler(ctx: KernelContext, X: Array, Grid: Array) -> Array:
    image, corners = _corners(X, Grid)
    cells = X.transpose(0, 2, 3, 1)
    out = sum(cells[image, r, c] * (weight * inside)[..., None] for r, c, weight, _, _, inside in corners)
    return np.ascontiguousarray(np.asarray(out, X.dtype).transpose(0, 3, 1, 2))


def grid_sampler_grad(ctx: KernelContext, X: Array, Grid: Array, Output_GRAD: Array) -> dict[str, Array]:
    image, corners = _corners(X, Grid)
    cells, upstream = X.transpose(0, 2, 3, 1), Output_GRAD.transpose(0, 2, 3, 1)
    grad, places = np.zeros_like(cells), np.zeros_like(Grid)
    scale = np.array([(X.shape[3] - 1) / 2, (X.shape[2] - 1) / 2], X.dtype)
    for r, c, weight, slope_x, slope_y, inside in corners:
        np.add.at(grad, (image, r, c), upstream * (weight * inside)[..., None])
        along = (cells[image, r, c] * upstream).sum(axis=-1) * inside
        places += np.stack([along * slope_x, along * slope_y], axis=-1) * scale
    return {"X@GRAD": np.ascontiguousarray(grad.transpose(0, 3, 1, 2)), "Grid@GRAD": places}


def _infer_grid_sampler(ctx: InferContext) -> None:
    x, grid = ctx.shape("X"), ctx.shape("Grid")
    if len(x) != 4 or len(grid) != 4 or grid[3] != 2:
        raise ctx.error(f"X {list(x)} and Grid {list(grid)} must be [n, channels, ...] and [n, height, width, 2]")
    ctx.set("Output", (*x[:2], *grid[1:3]), ctx.input("X").dtype)


def similarity_focus(ctx: KernelContext, X: Array, *, axis: int, indexes: tuple[int, ...]) -> Array:
    cells = np.moveaxis(X, axis, 1)
    out = np.zeros(cells.shape, X.dtype)
    for plane in indexes:
        for image, target in zip(cells[:, plane], out, strict=True):
            target[:, _peaks(image)] = 1
    return np.ascontiguousarray(np.moveaxis(out, 1, axis))


def _peaks(plane: Array) -> Array:
    """The largest cells of which no two share a row or a column, chosen from the largest down, as a mask."""
    found, rows, columns = np.zeros(plane.shape, bool), set(range(plane.shape[0])), set(range(plane.shape[1]))
    for number in np.argsort(-plane, axis=None, kind="stable"):
        row, column = divmod(int(number), plane.shape[1])
        if row in rows and column in columns:
            found[row, column] = True
            rows.remove(row)
            columns.remove(column)
    return found


def _infer_similarity_focus(ctx: InferContext) -> None:
    shape, axis = ctx.shape("X"), ctx.attr("axis")
    if len(shape) != 4 or axis not in (1, 2, 3):
        raise ctx.error(f"axis {axis} must be 1, 2 or 3 and X {list(shape)} of 4 dimensions")
    if not ctx.attr("indexes") or not all(0 <= i < max(shape[axis], 1) for i in ctx.attr("indexes")):
        raise ctx.error(f"indexes {list(ctx.attr('indexes'))} must lie in [0, {shape[axis]})")
    like("X", "Out")(ctx)


_IMAGES: Final = varied(2, 2, 3, 4)
_WINDOWS: Final = {"kernels": [2, 2], "strides": [1, 2], "paddings": [1, 0, 0, 1]}
_GRID: Final = np.array([[[[-0.9, -0.4], [0.3, 0.55]], [[1.4, 0.2], [0.8, -0.95]]]])

with_gradient(
    "im2sequence",
    doc="Out = a row per window of each image, with the cells of all channels; the windows of an image are a sequence. "
    "Y (n, 2) holds the images' real sizes.",
    inputs=["X", "Y?"],
    outputs=["Out"],
    attrs={
        "kernels": ints_attr(REQUIRED),
        "strides": ints_attr((1, 1)),
        "paddings": ints_attr((0, 0, 0, 0), "top, left, bottom, right"),
        "out_stride": ints_attr((1, 1), "by what the network before has shrunk the sizes of Y"),
    },
    infer=_infer_im2sequence,
    kernel=im2sequence,
    gradient=im2sequence_grad,
    reads=["X", "Y", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case({"X": _IMAGES}, _WINDOWS, check_grad=("X",)),
        Case({"X": _IMAGES[:, :1]}, {"kernels": [3, 2]}, check_grad=("X",)),
        Case(
            {"X": varied(2, 1, 4, 4), "Y": np.array([[6.0, 7.0], [8.0, 4.0]])},
            {"kernels": [2, 2], "paddings": [0, 0, 1, 1], "out_stride": [2, 2]},
            check_grad=("X",),
        ),
    ),
)
with_gradient(
    "unfold",
    doc="Y (n, cells of a window, windows) = the windows of each image as columns.",
    inputs=["X"],
    outputs=["Y"],
    attrs={name: ints_attr(REQUIRED) for name in ("kernel_sizes", "strides", "paddings", "dilations")},
    infer=_infer_unfold,
    kernel=unfold,
    gradient=unfold_grad,
    reads=["X", "Y@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case(
            {"X": _IMAGES},
            {"kernel_sizes": [2, 2], "strides": [1, 2], "paddings": [1, 0, 0, 1], "dilations": [1, 2]},
            check_grad=("X",),
        ),
    ),
)
with_gradient(
    "maxout",
    doc="Out = the largest of each `groups` consecutive channels (Goodfellow et al. 2013).",
    inputs=["X"],
    outputs=["Out"],
    attrs={"groups": int_attr(REQUIRED), "axis": int_attr(1, "where the channels are")},
    infer=_infer_maxout,
    kernel=maxout,
    gradient=maxout_grad,
    reads=["Out", "X", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case({"X": varied(1, 4, 2, 2)}, {"groups": 2}, check_grad=("X",)),
        Case({"X": varied(1, 2, 2, 4)}, {"groups": 2, "axis": 3}, check_grad=("X",)),
    ),
)
with_gradient(
    "fsp",
    doc="Out = the mean over all places of the products of X's channels with Y's (Yim et al. 2017).",
    inputs=["X", "Y"],
    outputs=["Out"],
    infer=_infer_fsp,
    kernel=fsp,
    gradient=fsp_grad,
    reads=["X", "Y", "Out@GRAD"],
    writes=["X@GRAD", "Y@GRAD"],
    cases=(Case({"X": varied(2, 2, 2, 2), "Y": varied(2, 3, 2, 2, start=30)}, check_grad=("X", "Y")),),
)
with_gradient(
    "affine_grid",
    doc="Output = for each cell of an image where the affine map Theta takes it, in [-1, 1] (Jaderberg et al. 2015).",
    inputs=["Theta", "OutputShape?"],
    outputs=["Output"],
    attrs={"output_shape": ints_attr(doc="batch, channels, height, width")},
    infer=_infer_affine_grid,
    kernel=affine_grid,
    gradient=affine_grid_grad,
    reads=["OutputShape", "Output@GRAD"],
    writes=["Theta@GRAD"],
    cases=(Case({"Theta": varied(2, 2, 3)}, {"output_shape": [2, 1, 2, 3]}, check_grad=("Theta",)),),
)
with_gradient(
    "grid_sampler",
    doc="Output = X at the places of Grid, between four cells in proportion; 0 outside the image.",
    inputs=["X", "Grid"],
    outputs=["Output"],
    infer=_infer_grid_sampler,
    kernel=grid_sampler,
    gradient=grid_sampler_grad,
    reads=["Grid", "X", "Output@GRAD"],
    writes=["Grid@GRAD", "X@GRAD"],
    cases=(Case({"X": _IMAGES[:1], "Grid": _GRID}, check_grad=("X", "Grid")),),
)
register(
    "similarity_focus",
    doc="Out = 1 along `axis` at the largest cells of the planes `indexes`, no two in one row or column, else 0 (He, Lin "
    "2016).",
    inputs=["X"],
    outputs=["Out"],
    attrs={"axis": int_attr(REQUIRED), "indexes": ints_attr(REQUIRED)},
    infer=_infer_similarity_focus,
    kernel=similarity_focus,
    cases=(
        Case({"X": _IMAGES}, {"axis": 1, "indexes": [0]}),
        Case({"X": _IMAGES}, {"axis": 2, "indexes": [0, 2]}),
    ),
)
