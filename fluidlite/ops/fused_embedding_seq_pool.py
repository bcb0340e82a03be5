"""`fused_embedding_seq_pool`: embedding lookup and sum over each bag (sequence) of ids in one op."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.ids import NO_PADDING, flat_ids
from fluidlite.ops.infer import InferContext
from fluidlite.ops.lookup import (
    EmbeddingParameter,
    embedding_gradient,
    infer_embedding_grad,
    lookup_rows,
    matrix_shape,
)
from fluidlite.ops.registry import Case, bool_attr, long_attr, register, string_attr
from fluidlite.ops.segments import array_of, reduce_segments, sequences
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows

_ATTRS = {
    "combiner": string_attr("sum", "sum is the only one"),
    "padding_idx": long_attr(NO_PADDING),
    "grad_inplace": bool_attr(default=False),
    "is_sparse": bool_attr(default=False),
}


def fused_embedding_seq_pool(
    ctx: KernelContext, W: EmbeddingParameter, Ids: Any, *, padding_idx: int, is_test: bool
) -> Array:
    bags = sequences(ctx, Ids, "Ids")
    rows = lookup_rows(ctx, W, flat_ids(ctx, bags.rows), padding_idx, read_only=is_test)
    return reduce_segments(np.add, rows, bags.offsets, 0)


def fused_embedding_seq_pool_grad(
    ctx: KernelContext, W: EmbeddingParameter, Ids: Any, Out_GRAD: Any, *, is_sparse: bool, padding_idx: int
) -> Array | SelectedRows:
    bags = sequences(ctx, Ids, "Ids")
    gradient = array_of(Out_GRAD)[bags.owners]
    return embedding_gradient(W, flat_ids(ctx, bags.rows), gradient, padding_idx, sparse=is_sparse, table=False)


def _infer(ctx: InferContext) -> None:
    ids = ctx.shape("Ids")
    if ids[-1:] not in {(1,), (-1,)}:
        raise ctx.error(f"the last dimension of Ids={ctx.input('Ids').name!r} {list(ids)} must be 1")
    if ctx.attr("combiner") != "sum":
        raise ProgramError(f"op {ctx.op.type!r}: combiner {ctx.attr('combiner')!r} is not 'sum' ({ctx.op.origin})")
    ctx.set("Out", (-1, matrix_shape(ctx)[1]), ctx.input("W").dtype, lod_level=0)


_W = np.array([[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]])
_BAGS = LoDTensor(np.array([[2], [0], [2]]), ((0, 2, 2, 3),))

register(
    "fused_embedding_seq_pool",
    doc="Out [bags, width] = sum of the rows of W over the ids of each bag, zeros for an empty bag. Ids [n, 1] int64 with "
    "LoD; `padding_idx` counts as zeros.",
    inputs=["W", "Ids"],
    outputs=["Out"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=fused_embedding_seq_pool,
    grad=maker(["Ids", "Out@GRAD", "W"], ["W@GRAD"]),
    takes_lod=True,
    sparse=("W",),
    cases=(
        Case({"W": _W, "Ids": _BAGS}, {}, {"Out": np.array([[4.5, 6.0], [0.0, 0.0], [4.0, 5.0]])}, check_grad=("W",)),
        Case(
            {"W": _W, "Ids": _BAGS},
            {"padding_idx": 2},
            {"Out": np.array([[0.5, 1.0], [0.0, 0.0], [0.0, 0.0]])},
            check_grad=("W",),
        ),
    ),
)
register(
    "fused_embedding_seq_pool_grad",
    doc="Gradient of fused_embedding_seq_pool.",
    inputs=["Ids", "Out@GRAD", "W"],
    outputs=["W@GRAD"],
    attrs=_ATTRS,
    infer=infer_embedding_grad,
    kernel=fused_embedding_seq_pool_grad,
    takes_lod=True,
    sparse=("W",),
)
