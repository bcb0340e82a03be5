"""`sequence_scatter`: adds a sequence of updates to each row of a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import OutOfRangeError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.ids import argument, outside
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.registry import Case, register
from fluidlite.ops.segments import array_of, sequences
from fluidlite.values.lod import LoDTensor


def sequence_scatter(ctx: KernelContext, X: Any, Ids: Any, Updates: Any) -> Array:
    x, updates = array_of(X), array_of(Updates)
    rows, columns = _cells(ctx, Ids, x.shape)
    if updates.size != len(columns):
        raise ShapeError(f"op {ctx.op.type!r}: {len(columns)} ids but {updates.size} updates")
    out = x.copy()
    np.add.at(out, (rows, columns), updates.reshape(-1))
    return out


def sequence_scatter_grad(ctx: KernelContext, Ids: Any, Updates: Any, Out_GRAD: Any) -> dict[str, Array]:
    upstream = array_of(Out_GRAD)
    rows, columns = _cells(ctx, Ids, upstream.shape)
    return {"X@GRAD": upstream, "Updates@GRAD": upstream[rows, columns].reshape(array_of(Updates).shape)}


def _cells(ctx: KernelContext, ids: Any, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Row and column of each update in a matrix of ``shape``."""
    bags = sequences(ctx, ids, "Ids")
    columns = bags.rows.reshape(-1)
    if bags.count != shape[0]:
        raise ShapeError(f"op {ctx.op.type!r}: {bags.count} sequences of ids for {shape[0]} rows of X")
    wrong = outside(columns, shape[1])
    if len(wrong):
        raise OutOfRangeError(
            f"op {ctx.op.type!r}: id {columns[wrong[0]]} at position {wrong[0]} of {argument(ctx, 'Ids')!r} is none of "
            f"the {shape[1]} columns of X"
        )
    return bags.owners, columns


def _infer_grad(ctx: InferContext) -> None:
    upstream, updates = ctx.input("Out@GRAD"), ctx.input("Updates")
    ctx.set("X@GRAD", upstream.shape, upstream.dtype)
    ctx.set("Updates@GRAD", updates.shape, updates.dtype)


register(
    "sequence_scatter",
    doc="Out = X [N, D] with Updates added at the columns Ids: sequence i of both belongs to row i. Repeated ids add up.",
    inputs=["X", "Ids", "Updates"],
    outputs=["Out"],
    infer=like("X", "Out"),
    kernel=sequence_scatter,
    grad=maker(["Ids", "Out@GRAD", "Updates"], ["Updates@GRAD", "X@GRAD"]),
    takes_lod=True,
    cases=(
        Case(
            {
                "X": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
                "Ids": LoDTensor(np.array([[2], [2], [0]]), ((0, 2, 3),)),
                "Updates": LoDTensor(np.array([[0.5], [1.0], [2.0]]), ((0, 2, 3),)),
            },
            {},
            {"Out": np.array([[1.0, 2.0, 4.5], [6.0, 5.0, 6.0]])},
            check_grad=("X", "Updates"),
        ),
    ),
)
register(
    "sequence_scatter_grad",
    doc="Gradient of sequence_scatter.",
    inputs=["Ids", "Updates", "Out@GRAD"],
    outputs=["Updates@GRAD", "X@GRAD"],
    infer=_infer_grad,
    kernel=sequence_scatter_grad,
    takes_lod=True,
)
