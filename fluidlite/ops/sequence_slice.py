"""`sequence_slice`: a piece of each sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, register
from fluidlite.ops.segments import Sequences, array_of, level, offsets_of, ranges, sequences
from fluidlite.values.lod import LoDTensor


def sequence_slice(ctx: KernelContext, X: Any, Offset: Any, Length: Any) -> LoDTensor:
    bags = sequences(ctx, X, "X")
    rows, lengths = _kept(ctx, bags, Offset, Length)
    return LoDTensor(bags.rows[rows], (*bags.lod[:-1], level(offsets_of(lengths))))


def sequence_slice_grad(ctx: KernelContext, X: Any, Offset: Any, Length: Any, Out_GRAD: Any) -> Array:
    bags, upstream = sequences(ctx, X, "X"), array_of(Out_GRAD)
    grad = np.zeros(bags.rows.shape, upstream.dtype)
    grad[_kept(ctx, bags, Offset, Length)[0]] = upstream
    return grad


def _kept(ctx: KernelContext, bags: Sequences, offset: Any, length: Any) -> tuple[Array, Array]:
    """(rows of X that stay, how many of each sequence)."""
    first, lengths = array_of(offset).reshape(-1), array_of(length).reshape(-1)
    if len(first) != bags.count or len(lengths) != bags.count:
        raise ShapeError(
            f"op {ctx.op.type!r}: X has {bags.count} sequences, Offset {len(first)} values and Length {len(lengths)}"
        )
    wrong = np.flatnonzero((first < 0) | (lengths < 0) | (first + lengths > bags.lengths))
    if len(wrong):
        i = wrong[0]
        raise ShapeError(
            f"op {ctx.op.type!r}: rows {first[i]} to {first[i] + lengths[i]} of sequence {i}, which has {bags.lengths[i]}"
        )
    return ranges(bags.starts + first, lengths), lengths


def _infer(ctx: InferContext) -> None:
    x = ctx.input("X")
    ctx.set("Out", (-1, *ctx.shape("X")[1:]), x.dtype, lod_level=x.lod_level)


register(
    "sequence_slice",
    doc="Sequence i of Out: Length[i] rows of sequence i of X from its row Offset[i] on; Offset and Length [count, 1].",
    inputs=["X", "Offset", "Length"],
    outputs=["Out"],
    infer=_infer,
    kernel=sequence_slice,
    grad=maker(["Length", "Offset", "Out@GRAD", "X"], ["X@GRAD"]),
    takes_lod=True,
    cases=(
        Case(
            {
                "X": LoDTensor(np.array([[1.0], [2.0], [3.0], [4.0]]), ((0, 3, 4),)),
                "Offset": np.array([[1], [0]]),
                "Length": np.array([[2], [0]]),
            },
            {},
            {"Out": LoDTensor(np.array([[2.0], [3.0]]), ((0, 2, 2),))},
            check_grad=("X",),
        ),
    ),
)
register(
    "sequence_slice_grad",
    doc="Gradient of sequence_slice; zero outside the pieces.",
    inputs=["X", "Offset", "Length", "Out@GRAD"],
    outputs=["X@GRAD"],
    infer=grads_like_forward,
    kernel=sequence_slice_grad,
    share_lod="X",
    takes_lod=True,
)
