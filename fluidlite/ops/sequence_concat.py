"""`sequence_concat`: joins the i-th sequences of several inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, register
from fluidlite.ops.segments import Sequences, array_of, level, sequences
from fluidlite.values.lod import LoDTensor


def sequence_concat(ctx: KernelContext, X: list[Any]) -> LoDTensor:
    parts = _parts(ctx, X)
    joined = np.concatenate([part.rows for part in parts])[_order(parts)]
    return LoDTensor(joined, (*parts[0].lod[:-1], level(np.sum([part.offsets for part in parts], axis=0))))


def sequence_concat_grad(ctx: KernelContext, X: list[Any], Out_GRAD: Any) -> list[LoDTensor]:
    parts, upstream = _parts(ctx, X), array_of(Out_GRAD)
    whole = np.empty_like(upstream)
    whole[_order(parts)] = upstream
    cuts = np.cumsum([len(part.rows) for part in parts])[:-1]
    return [LoDTensor(piece, part.lod) for piece, part in zip(np.split(whole, cuts), parts, strict=True)]


def _parts(ctx: KernelContext, inputs: list[Any]) -> list[Sequences]:
    parts = [sequences(ctx, value, "X", index) for index, value in enumerate(inputs)]
    counts = [part.count for part in parts]
    if len(set(counts)) > 1:
        raise ShapeError(
            f"op {ctx.op.type!r}: {ctx.op.inputs['X']} must have equally many sequences, they have {counts}"
        )
    return parts


def _order(parts: list[Sequences]) -> Array:
    """The row of all inputs, one after the other, that each row of Out copies."""
    return np.argsort(np.concatenate([part.owners for part in parts]), kind="stable")


def _infer(ctx: InferContext) -> None:
    x = ctx.input("X")
    ctx.set("Out", (-1, *ctx.shape("X")[1:]), x.dtype, lod_level=x.lod_level)


_A = LoDTensor(np.array([[1.0], [2.0]]), ((0, 2, 2),))
_B = LoDTensor(np.array([[3.0], [4.0], [5.0]]), ((0, 1, 3),))

register(
    "sequence_concat",
    doc="Sequence i of Out: sequence i of each X, one after the other. Every X has LoD and the same number of sequences.",
    inputs=["X*"],
    outputs=["Out"],
    infer=_infer,
    kernel=sequence_concat,
    grad=maker(["Out@GRAD", "X"], ["X@GRAD"]),
    takes_lod=True,
    cases=(
        Case(
            {"X": [_A, _B]},
            {},
            {"Out": LoDTensor(np.array([[1.0], [2.0], [3.0], [4.0], [5.0]]), ((0, 3, 5),))},
            check_grad=("X",),
        ),
    ),
)
register(
    "sequence_concat_grad",
    doc="Gradient of sequence_concat.",
    inputs=["Out@GRAD", "X*"],
    outputs=["X@GRAD*"],
    infer=grads_like_forward,
    kernel=sequence_concat_grad,
    takes_lod=True,
)
