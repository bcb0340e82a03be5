"""`sequence_softmax`: softmax inside each sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.registry import Case, register, string_attr
from fluidlite.ops.segments import array_of, reduce_segments, sequences
from fluidlite.values.lod import LoDTensor

_ATTRS = {"data_format": string_attr("AnyLayout")}


def sequence_softmax(ctx: KernelContext, X: Any) -> Array:
    bags = sequences(ctx, X, "X")
    if bags.rows.size != len(bags.rows):
        raise ShapeError(f"op {ctx.op.type!r}: X must have one value per row, its shape is {list(bags.rows.shape)}")
    top = reduce_segments(np.maximum, bags.rows, bags.offsets, 0)
    exponents = np.exp(bags.rows - top[bags.owners])
    total = reduce_segments(np.add, exponents, bags.offsets, 1)
    out: Array = exponents / total[bags.owners]
    return out


def sequence_softmax_grad(ctx: KernelContext, Out: Any, Out_GRAD: Any) -> Array:
    bags, upstream = sequences(ctx, Out, "Out"), array_of(Out_GRAD)
    mean = reduce_segments(np.add, bags.rows * upstream, bags.offsets, 0)
    grad: Array = bags.rows * (upstream - mean[bags.owners])
    return grad


def _infer_grad(ctx: InferContext) -> None:
    ctx.set("X@GRAD", ctx.shape("X"), ctx.input("X").dtype)


register(
    "sequence_softmax",
    doc="Out: softmax of the values of each sequence (of the last LoD level). X is [T, 1] or [T].",
    inputs=["X"],
    outputs=["Out"],
    attrs=_ATTRS,
    infer=like("X", "Out"),
    kernel=sequence_softmax,
    grad=maker(["Out", "Out@GRAD", "X"], ["X@GRAD"]),
    share_lod="X",
    takes_lod=True,
    cases=(
        Case(
            {"X": LoDTensor(np.log([[1.0], [3.0], [7.0]]), ((0, 2, 2, 3),))},
            {},
            {"Out": LoDTensor(np.array([[0.25], [0.75], [1.0]]), ((0, 2, 2, 3),))},
            check_grad=("X",),
        ),
    ),
)
register(
    "sequence_softmax_grad",
    doc="Gradient of sequence_softmax.",
    inputs=["Out", "Out@GRAD", "X"],
    outputs=["X@GRAD"],
    attrs=_ATTRS,
    infer=_infer_grad,
    kernel=sequence_softmax_grad,
    share_lod="X",
    takes_lod=True,
)
