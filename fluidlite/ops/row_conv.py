"""`row_conv`: every row plus weighted rows that follow it, "lookahead" (Amodei et al., Deep Speech 2, 2016)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, register
from fluidlite.ops.segments import array_of, sequences
from fluidlite.values.lod import LoDTensor


def row_conv(ctx: KernelContext, X: Any, Filter: Any) -> Array:
    rows, ends, filter = *_rows(ctx, X), array_of(Filter)
    out = np.zeros_like(rows)
    for weights, here, ahead in _pairs(ends, filter):
        out[here] += rows[ahead] * weights
    return out.reshape(array_of(X).shape)


def row_conv_grad(ctx: KernelContext, X: Any, Filter: Any, Out_GRAD: Any) -> dict[str, Array | LoDTensor]:
    rows, ends, filter = *_rows(ctx, X), array_of(Filter)
    upstream = array_of(Out_GRAD).reshape(rows.shape)
    d_rows, d_filter = np.zeros_like(rows), np.zeros_like(filter)
    for number, (weights, here, ahead) in enumerate(_pairs(ends, filter)):
        d_rows[ahead] += upstream[here] * weights
        d_filter[number] = (upstream[here] * rows[ahead]).sum(axis=0)
    shaped = d_rows.reshape(array_of(X).shape)
    # not shared by the record: Filter@GRAD can have as many rows by chance
    return {"X@GRAD": LoDTensor(shaped, X.lod) if isinstance(X, LoDTensor) else shaped, "Filter@GRAD": d_filter}


def _rows(ctx: KernelContext, x: Any) -> tuple[Array, Array]:
    """(rows (T, width), the end of the sequence of each (T,)) of sequences with LoD or of a batch (N, time, width)."""
    array = array_of(x)
    if array.ndim == 3:
        ends = np.repeat((np.arange(len(array)) + 1) * array.shape[1], array.shape[1])
        return array.reshape(len(ends), array.shape[2]), ends
    bags = sequences(ctx, x, "X")
    return bags.rows, bags.offsets[1:][bags.owners]


def _pairs(ends: Array, filter: Array) -> Iterator[tuple[Array, Array, Array]]:
    """(weights, rows, the rows so much ahead of them in the same sequence) for every row of the filter."""
    rows = np.arange(len(ends))
    for distance, weights in enumerate(filter):
        here = np.flatnonzero(rows + distance < ends)
        yield weights, here, here + distance


def _infer(ctx: InferContext) -> None:
    x, shape, filter = ctx.input("X"), ctx.shape("X"), ctx.shape("Filter")
    if len(shape) not in (2, 3) or len(filter) != 2 or (filter[1] != shape[-1] and -1 not in (filter[1], shape[-1])):
        raise ctx.error(f"Filter {list(filter)} must have the columns of X {list(shape)}")
    ctx.set("Out", shape, x.dtype, lod_level=x.lod_level)


_LOD = ((0, 2, 2, 3),)
_X = LoDTensor(np.array([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]), _LOD)
_FILTER = np.array([[1.0, 2.0], [10.0, 100.0], [0.5, 0.25]])

register(
    "row_conv",
    doc="Row t of Out: the rows t, t + 1, ... of the same sequence of X [T, width], each times its row of Filter [length, "
    "width], summed. X may also be a batch [N, time, width].",
    inputs=["X", "Filter"],
    outputs=["Out"],
    infer=_infer,
    kernel=row_conv,
    grad=maker(["Filter", "Out@GRAD", "X"], ["Filter@GRAD", "X@GRAD"]),
    share_lod="X",
    takes_lod=True,
    cases=(
        Case(
            {"X": _X, "Filter": _FILTER},
            {},
            {"Out": LoDTensor(np.array([[21.0, 508.0], [2.0, 10.0], [3.0, 12.0]]), _LOD)},
            check_grad=("X", "Filter"),
        ),
        Case(
            {"X": np.array([[[1.0], [2.0]], [[3.0], [4.0]]]), "Filter": np.array([[1.0], [10.0]])},
            {},
            {"Out": np.array([[[21.0], [2.0]], [[43.0], [4.0]]])},
            check_grad=("X", "Filter"),
        ),
    ),
)
register(
    "row_conv_grad",
    doc="Gradient of row_conv.",
    inputs=["Filter", "Out@GRAD", "X"],
    outputs=["Filter@GRAD", "X@GRAD"],
    infer=grads_like_forward,
    kernel=row_conv_grad,
    takes_lod=True,
)
