"""`pool3d`: the largest cell, or the mean, of every window of a volume; and max pooling of images and volumes that also
tells where the largest cells are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.infer import InferContext
from fluidlite.ops.pairs import with_gradient
from fluidlite.ops.pool2d import along, largest_cells, routed, spread
from fluidlite.ops.registry import REQUIRED, Case, bool_attr, ints_attr, string_attr
from fluidlite.ops.windows import (
    AdaptiveWindows,
    AnyWindows,
    Windows,
    channel_dimension,
    covered,
    each,
    paddings_of,
    sums,
)


def _windows(sizes: Sequence[int], attrs: Mapping[str, Any]) -> list[AnyWindows]:
    """The windows along each dimension of ``sizes``, which may be unknown (-1). Raises ShapeError."""
    if attrs["global_pooling"]:
        return [Windows(size, max(size, 1)) for size in sizes]
    lengths = each("ksize", attrs["ksize"], len(sizes))
    if attrs["adaptive"]:
        return [AdaptiveWindows(size, length) for size, length in zip(sizes, lengths, strict=True)]
    strides = each("strides", attrs["strides"], len(sizes))
    margins = paddings_of(attrs.get("padding_algorithm", "EXPLICIT"), attrs["paddings"], sizes, lengths, strides)
    ceil = attrs.get("ceil_mode", False)
    rows = zip(sizes, lengths, strides, margins, strict=True)
    return [Windows(size, length, stride, *margin, ceil_mode=ceil) for size, length, stride, margin in rows]


def _divisors(windows: Sequence[AnyWindows], exclusive: bool, dtype: np.dtype[Any]) -> Array:
    """The number of cells that each mean is over."""
    if not exclusive:
        return np.array(math.prod(w.length for w in windows), dtype)
    counts = np.ones((), dtype)
    for w in windows:
        counts = counts[..., None] * covered(w).astype(dtype)
    return counts


def pool3d(ctx: KernelContext, X: Array, *, pooling_type: str, data_format: str, **attrs: Any) -> Array:
    axis = channel_dimension(data_format, X.ndim)
    out = np.moveaxis(X, axis, 1)
    windows = _windows(out.shape[2:], attrs)
    reduce = largest_cells if pooling_type == "max" else sums
    for dimension in (4, 3, 2):
        out = along(dimension, reduce, windows[dimension - 2], out)
    if pooling_type == "avg":
        out = out / _divisors(windows, attrs["exclusive"] or attrs["adaptive"], X.dtype)
    return np.ascontiguousarray(np.moveaxis(out, 1, axis))


def pool3d_grad(
    ctx: KernelContext, X: Array, Out: Array, Out_GRAD: Array, *, pooling_type: str, data_format: str, **attrs: Any
) -> Array:
    axis = channel_dimension(data_format, X.ndim)
    volumes, grad = np.moveaxis(X, axis, 1), np.moveaxis(Out_GRAD, axis, 1)
    windows = _windows(volumes.shape[2:], attrs)
    if pooling_type == "avg":
        grad = grad / _divisors(windows, attrs["exclusive"] or attrs["adaptive"], X.dtype)
        for dimension in (2, 3, 4):
            grad = along(dimension, spread, windows[dimension - 2], grad)
    else:
        stages = [volumes]
        for dimension in (4, 3, 2):
            stages.append(along(dimension, largest_cells, windows[dimension - 2], stages[-1]))
        for dimension, stage in zip((2, 3, 4), (2, 1, 0), strict=True):
            grad = along(dimension, routed, windows[dimension - 2], stages[stage], stages[stage + 1], grad)
    return np.ascontiguousarray(np.moveaxis(grad, 1, axis))


def max_pool_with_index(ctx: KernelContext, X: Array, **attrs: Any) -> dict[str, Array]:
    windows = _windows(X.shape[2:], attrs)
    counts = tuple(w.count for w in windows)
    out: Array = np.full((*X.shape[:2], *counts), -np.inf, X.dtype)
    mask: Array = np.zeros(out.shape, np.int32)
    cells_of = np.arange(math.prod(X.shape[2:]), dtype=np.int32).reshape(X.shape[2:])
    for offsets in itertools.product(*(range(w.length) for w in windows)):
        ats = [w.at(offset) for w, offset in zip(windows, offsets, strict=True)]
        grid: tuple[Any, ...] = np.ix_(*(np.arange(w.count)[at[0]] for w, at in zip(windows, ats, strict=True)))
        cells: tuple[Any, ...] = np.ix_(*(np.arange(size)[at[1]] for size, at in zip(X.shape[2:], ats, strict=True)))
        places = (..., *grid)
        here, best = X[(..., *cells)], out[places]
        larger = here > best
        out[places] = np.where(larger, here, best)
        mask[places] = np.where(larger, cells_of[cells], mask[places])
    return {"Out": out, "Mask": mask}


def max_pool_with_index_grad(ctx: KernelContext, X: Array, Mask: Array, Out_GRAD: Array) -> Array:
    grad = np.zeros((X.shape[0] * X.shape[1], math.prod(X.shape[2:])), X.dtype)
    rows = np.arange(len(grad))[:, None]
    np.add.at(grad, (rows, Mask.reshape(len(grad), -1)), Out_GRAD.reshape(len(grad), -1))
    return grad.reshape(X.shape)


def _infer(ctx: InferContext) -> None:
    shape, x = ctx.shape("X"), ctx.input("X")
    rank = 4 if "pool2d" in ctx.op.type else 5
    if len(shape) != rank:
        raise ctx.error(f"X {list(shape)} must have {rank} dimensions")
    attrs = {name: ctx.attr(name) for name in ctx.op_def.attrs}
    if attrs.get("pooling_type", "max") not in ("max", "avg"):
        raise ctx.error(f"pooling_type is {attrs['pooling_type']!r}, not max or avg")
    try:
        axis = channel_dimension(attrs.get("data_format", "NCHW"), rank)
        sizes = [size for i, size in enumerate(shape) if i not in (0, axis)]
        counts = [w.count for w in _windows(sizes, attrs)]
    except ProgramError as error:
        raise ctx.located(error) from None
    out = [shape[0], *counts]
    out.insert(axis, shape[axis])
    ctx.set("Out", tuple(out), x.dtype, lod_level=x.lod_level)
    ctx.set("Mask", tuple(out), "int32")


_X: Final = varied(1, 2, 3, 4, 3)
_INDEXED: Final = {
    "ksize": ints_attr(REQUIRED),
    "global_pooling": bool_attr(default=False),
    "adaptive": bool_attr(default=False, doc="ksize windows divide the image evenly"),
}

with_gradient(
    "pool3d",
    doc="Out = the largest cell or the mean of each window of volumes: as `pool2d` with a third dimension.",
    inputs=["X"],
    outputs=["Out"],
    attrs={
        "pooling_type": string_attr(doc="max or avg"),
        "ksize": ints_attr(REQUIRED),
        "global_pooling": bool_attr(default=False),
        "strides": ints_attr((1, 1, 1)),
        "paddings": ints_attr((0, 0, 0)),
        "exclusive": bool_attr(default=True, doc="means are over the cells of the volume, not of the padding too"),
        "adaptive": bool_attr(default=False),
        "ceil_mode": bool_attr(default=False),
        "data_format": string_attr("NCDHW", "or NDHWC"),
        "padding_algorithm": string_attr("EXPLICIT"),
    },
    infer=_infer,
    kernel=pool3d,
    gradient=pool3d_grad,
    reads=["Out", "X", "Out@GRAD"],
    writes=["X@GRAD"],
    share_lod="X",
    cases=(
        Case({"X": _X}, {"pooling_type": "max", "ksize": [2, 2, 2]}, check_grad=("X",)),
        Case(
            {"X": _X},
            {"pooling_type": "avg", "ksize": [2, 3, 2], "strides": [1, 2, 1], "paddings": [1, 1, 0]},
            check_grad=("X",),
        ),
        Case(
            {"X": _X},
            {"pooling_type": "avg", "ksize": [2, 2, 2], "paddings": [1, 0, 0], "exclusive": False},
            check_grad=("X",),
        ),
        Case({"X": _X}, {"pooling_type": "avg", "ksize": [2, 3, 2], "adaptive": True}, check_grad=("X",)),
        Case(
            {"X": _X},
            {"pooling_type": "avg", "ksize": [1, 1, 1], "global_pooling": True},
            {"Out": _X.mean(axis=(2, 3, 4), keepdims=True)},
            check_grad=("X",),
        ),
    ),
)
for _rank in (2, 3):
    with_gradient(
        f"max_pool{_rank}d_with_index",
        doc="Out = the largest cell of each window, Mask = its number among the cells of the image, row by row.",
        inputs=["X"],
        outputs=["Out", "Mask"],
        attrs={**_INDEXED, "strides": ints_attr((1,) * _rank), "paddings": ints_attr((0,) * _rank)},
        infer=_infer,
        kernel=max_pool_with_index,
        gradient=max_pool_with_index_grad,
        reads=["Mask", "X", "Out@GRAD"],
        writes=["X@GRAD"],
        cases=(
            Case({"X": _X if _rank == 3 else _X[0]}, {"ksize": [2] * _rank}, check_grad=("X",)),
            Case({"X": _X if _rank == 3 else _X[0]}, {"ksize": [2] * _rank, "adaptive": True}, check_grad=("X",)),
        ),
    )
