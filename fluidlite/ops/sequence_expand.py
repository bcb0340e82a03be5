"""`sequence_expand` and `sequence_expand_as`: repeat what belongs to a sequence once per element of another."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.ids import argument
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, int_attr, register
from fluidlite.ops.segments import array_of, level, offsets_of, ranges, reduce_segments, sequences
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import segment_sum


def sequence_expand(ctx: KernelContext, X: Any, Y: Any, *, ref_level: int) -> Array | LoDTensor:
    times = _times(ctx, Y, ref_level)
    source, lengths = _expanded(ctx, X, times)
    out: Array = array_of(X)[source]
    return LoDTensor(out, (level(offsets_of(lengths)),)) if _has_lod(X) else out


def sequence_expand_grad(ctx: KernelContext, X: Any, Y: Any, Out_GRAD: Any, *, ref_level: int) -> Array:
    source, _ = _expanded(ctx, X, _times(ctx, Y, ref_level))
    return segment_sum(array_of(Out_GRAD), source, len(array_of(X)))


def _times(ctx: KernelContext, y: Any, ref_level: int) -> Array:
    """How often each sequence (or row) of X is repeated: the lengths of Y at ``ref_level``."""
    lod = sequences(ctx, y, "Y").lod
    if not -1 <= ref_level < len(lod):
        raise ShapeError(f"op {ctx.op.type!r}: ref_level {ref_level} but {argument(ctx, 'Y')!r} has {len(lod)} levels")
    return np.diff(np.asarray(lod[ref_level], np.int64))


def _has_lod(x: Any) -> bool:
    return isinstance(x, LoDTensor) and bool(x.lod)


def _expanded(ctx: KernelContext, x: Any, times: Array) -> tuple[Array, Array]:
    """(the row of X that each row of Out copies, the length of each sequence of Out)."""
    if _has_lod(x):
        bags = sequences(ctx, x, "X")
        starts, lengths = bags.starts, bags.lengths
    else:
        starts = np.arange(len(array_of(x)))
        lengths = np.ones_like(starts)
    if len(starts) != len(times):
        raise ShapeError(
            f"op {ctx.op.type!r}: {argument(ctx, 'X')!r} has {len(starts)} sequences (rows where it has no LoD) but "
            f"{argument(ctx, 'Y')!r} has {len(times)} at the reference level"
        )
    repeated = np.repeat(lengths, times)
    return ranges(np.repeat(starts, times), repeated), repeated


def sequence_expand_as(ctx: KernelContext, X: Any, Y: Any) -> LoDTensor:
    bags, rows = sequences(ctx, Y, "Y"), array_of(X)
    if len(rows) != bags.count:
        raise ShapeError(
            f"op {ctx.op.type!r}: {argument(ctx, 'X')!r} has {len(rows)} rows but {argument(ctx, 'Y')!r} has "
            f"{bags.count} sequences"
        )
    return LoDTensor(rows[bags.owners], bags.lod)


def sequence_expand_as_grad(ctx: KernelContext, Y: Any, Out_GRAD: Any) -> Array:
    return reduce_segments(np.add, array_of(Out_GRAD), sequences(ctx, Y, "Y").offsets, 0)


def _infer_expand(ctx: InferContext) -> None:
    x = ctx.input("X")
    ctx.set("Out", (-1, *ctx.shape("X")[1:]), x.dtype, lod_level=x.lod_level)


def _infer_expand_as(ctx: InferContext) -> None:
    x = ctx.input("X")
    ctx.set("Out", (-1, *ctx.shape("X")[1:]), x.dtype, lod_level=ctx.input("Y").lod_level)


_ROWS = np.array([[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]])
_Y = LoDTensor(np.zeros((3, 1)), ((0, 2, 2, 3),))
_Y2 = LoDTensor(np.zeros((3, 1)), ((0, 2, 3),))

register(
    "sequence_expand",
    doc="Out: sequence i of X (row i where X has no LoD) as often as sequence i of Y is long at LoD level `ref_level` (-1: "
    "the last). Where X has LoD, every copy is a sequence of Out.",
    inputs=["X", "Y"],
    outputs=["Out"],
    attrs={"ref_level": int_attr(-1)},
    infer=_infer_expand,
    kernel=sequence_expand,
    grad=maker(["Out@GRAD", "X", "Y"], ["X@GRAD"]),
    takes_lod=True,
    cases=(
        Case({"X": _ROWS, "Y": _Y}, {}, {"Out": _ROWS[[0, 0, 2]]}, check_grad=("X",)),
        Case(
            {"X": LoDTensor(_ROWS, ((0, 1, 3),)), "Y": _Y2},
            {"ref_level": 0},
            {"Out": LoDTensor(_ROWS[[0, 0, 1, 2]], ((0, 1, 2, 4),))},
            check_grad=("X",),
        ),
    ),
)
register(
    "sequence_expand_grad",
    doc="Gradient of sequence_expand: the sum over the copies.",
    inputs=["Out@GRAD", "X", "Y"],
    outputs=["X@GRAD"],
    attrs={"ref_level": int_attr(-1)},
    infer=grads_like_forward,
    kernel=sequence_expand_grad,
    share_lod="X",
    takes_lod=True,
)
register(
    "sequence_expand_as",
    doc="Out: row i of X once per element of sequence i of Y, with the LoD of Y.",
    inputs=["X", "Y"],
    outputs=["Out"],
    infer=_infer_expand_as,
    kernel=sequence_expand_as,
    grad=maker(["Out@GRAD", "X", "Y"], ["X@GRAD"]),
    takes_lod=True,
    cases=(Case({"X": _ROWS, "Y": _Y}, {}, {"Out": LoDTensor(_ROWS[[0, 0, 2]], ((0, 2, 2, 3),))}, check_grad=("X",)),),
)
register(
    "sequence_expand_as_grad",
    doc="Gradient of sequence_expand_as: the sum over the copies.",
    inputs=["Out@GRAD", "X", "Y"],
    outputs=["X@GRAD"],
    infer=grads_like_forward,
    kernel=sequence_expand_as_grad,
    takes_lod=True,
)
