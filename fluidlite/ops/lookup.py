"""The embedding lookups `lookup_table` and `lookup_table_v2` and their gradients.

One kernel family for every kind of parameter: a dense matrix, SelectedRows (the rows that were fetched from servers),
a SparseTable (auto-grown). The two ops differ only in the shape of ids and output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import ShapeError, TableError
from fluidlite.kernels import find_ids, take_rows
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.ids import NO_PADDING, argument, flat_ids, out_of_range, outside
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import (
    AttrSpec,
    Case,
    bool_attr,
    int_attr,
    long_attr,
    longs_attr,
    register,
    strings_attr,
)
from fluidlite.values.selected_rows import SelectedRows, segment_sum
from fluidlite.values.sparse_table import SparseTable

EmbeddingParameter: TypeAlias = "Array | SelectedRows | SparseTable"
#: position among the ids of an op -> (variable that holds that id, position there), for messages
Whereabouts: TypeAlias = Callable[[int], tuple[str, int]]

_ATTRS: dict[str, AttrSpec] = {
    "is_sparse": bool_attr(default=False, doc="the gradient of W is SelectedRows"),
    "is_distributed": bool_attr(default=False, doc="W is an auto-grown table; the gradient is SelectedRows"),
    "padding_idx": long_attr(NO_PADDING, "an id whose output is zeros and which gets no gradient; -1: none"),
    "remote_prefetch": bool_attr(default=False),
    "trainer_id": int_attr(0),
    "height_sections": longs_attr(),
    "epmap": strings_attr(),
    "table_names": strings_attr(),
}


def lookup_rows(
    ctx: KernelContext,
    W: EmbeddingParameter,
    ids: Array,
    padding_idx: int,
    *,
    read_only: bool = False,
    whereabouts: Whereabouts | None = None,
) -> Array:
    """Rows of ``W`` (n, width) for ``ids`` (n,); zeros for ``padding_idx``.

    An id outside a dense ``W`` raises OutOfRangeError, one that was not fetched into SelectedRows TableError. A table
    makes the rows of new ids, or with ``read_only`` answers zeros for them. ``whereabouts``: where errors say that an
    id is; by default in the op's input Ids.
    """
    place = whereabouts or (lambda position: (argument(ctx, "Ids"), position))
    if padding_idx == NO_PADDING:
        return _fetch(ctx, W, ids, place, read_only)
    real = np.flatnonzero(ids != padding_idx)
    found = _fetch(ctx, W, ids[real], lambda position: place(real[position]), read_only)
    if len(real) == len(ids):
        return found
    out = np.zeros((len(ids), found.shape[1]), found.dtype)
    out[real] = found
    return out


def _fetch(ctx: KernelContext, W: EmbeddingParameter, ids: Array, place: Whereabouts, read_only: bool) -> Array:
    """Rows of ids that are not padding."""
    if isinstance(W, SparseTable):
        return W.lookup(ids, read_only=read_only)
    if isinstance(W, SelectedRows):
        rows = find_ids(W.rows, ids)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            name, position = place(missing[0])
            raise TableError(
                f"op {ctx.op.type!r}: id {ids[missing[0]]} at position {position} of {name!r} is not among the "
                f"{len(W.rows)} fetched rows of {argument(ctx, 'W')!r}"
            )
        return take_rows(W.value, rows)
    wrong = outside(ids, len(W))
    if len(wrong):
        name, position = place(wrong[0])
        raise out_of_range(ctx, name, position, ids[wrong[0]], argument(ctx, "W"), len(W))
    return take_rows(W, ids)


def embedding_gradient(
    W: EmbeddingParameter, ids: Array, gradient: Array, padding_idx: int, *, sparse: bool, table: bool
) -> Array | SelectedRows:
    """The gradient of W from that of the looked up rows, ``gradient`` (n, width) for ``ids`` (n,).

    Dense: a matrix like W. ``sparse``: SelectedRows with one row per id, in order, duplicates kept. Padding has no
    part in it: its rows are zeros, and for a ``table`` they are left out, since a pushed row would be made there.
    """
    table = table or isinstance(W, SparseTable)
    padded = ids == padding_idx if padding_idx != NO_PADDING else None
    if padded is not None and padded.any():
        if table or not sparse:
            ids, gradient = ids[~padded], gradient[~padded]
        else:
            gradient = np.where(padded[:, None], 0, gradient).astype(gradient.dtype)
    if isinstance(W, np.ndarray):
        if not sparse and not table:
            return segment_sum(gradient, ids, len(W))
        return SelectedRows(ids, gradient, len(W))
    return SelectedRows(ids, gradient, W.height)


def lookup_table(ctx: KernelContext, W: EmbeddingParameter, Ids: Array, *, padding_idx: int, is_test: bool) -> Array:
    if Ids.ndim < 2 or Ids.shape[-1] != 1:
        raise ShapeError(
            f"op {ctx.op.type!r}: the last dimension of {argument(ctx, 'Ids')!r} {list(Ids.shape)} must be 1"
        )
    rows = lookup_rows(ctx, W, flat_ids(ctx, Ids), padding_idx, read_only=is_test)
    return rows.reshape((*Ids.shape[:-1], rows.shape[1]))


def lookup_table_v2(ctx: KernelContext, W: EmbeddingParameter, Ids: Array, *, padding_idx: int, is_test: bool) -> Array:
    rows = lookup_rows(ctx, W, flat_ids(ctx, Ids), padding_idx, read_only=is_test)
    return rows.reshape((*Ids.shape, rows.shape[1]))


def lookup_table_grad(
    ctx: KernelContext,
    W: EmbeddingParameter,
    Ids: Array,
    Out_GRAD: Array,
    *,
    is_sparse: bool,
    is_distributed: bool,
    padding_idx: int,
) -> Array | SelectedRows:
    ids = flat_ids(ctx, Ids)
    gradient = Out_GRAD.reshape(len(ids), Out_GRAD.shape[-1])
    return embedding_gradient(W, ids, gradient, padding_idx, sparse=is_sparse, table=is_distributed)


def matrix_shape(ctx: InferContext) -> tuple[int, ...]:
    """The shape [height, width] of W."""
    shape = ctx.shape("W")
    if len(shape) != 2:
        raise ctx.error(f"W={ctx.input('W').name!r} must be a matrix, not {list(shape)}")
    return shape


def infer_embedding_grad(ctx: InferContext) -> None:
    """W@GRAD: as W, of kind SELECTED_ROWS when it is sparse."""
    w = ctx.input("W")
    sparse = ctx.attr("is_sparse") or bool(ctx.op.attr("is_distributed")) or w.kind is VarKind.SELECTED_ROWS
    ctx.set("W@GRAD", w.shape, w.dtype, kind=VarKind.SELECTED_ROWS if sparse else VarKind.LOD_TENSOR)


def _infer(ctx: InferContext) -> None:
    ids, shape = ctx.input("Ids"), ctx.shape("Ids")
    if shape[-1:] not in {(1,), (-1,)}:
        raise ctx.error(f"the last dimension of Ids={ids.name!r} {list(shape)} must be 1; or use fluid.embedding")
    ctx.set("Out", (*shape[:-1], matrix_shape(ctx)[1]), ctx.input("W").dtype, lod_level=ids.lod_level)


def _infer_v2(ctx: InferContext) -> None:
    ids = ctx.input("Ids")
    ctx.set("Out", (*ctx.shape("Ids"), matrix_shape(ctx)[1]), ctx.input("W").dtype, lod_level=ids.lod_level)


_W = np.array([[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]])
_FETCHED = SelectedRows(np.array([2**62, -7]), np.array([[1.0, 2.0], [3.0, 4.0]]), 10)

register(
    "lookup_table",
    doc="Rows of W [height, width] by Ids [..., 1] int64: Out [..., width]. Of a dense W an id outside it is an error; an "
    "auto-grown table takes any id.",
    inputs=["W", "Ids"],
    outputs=["Out"],
    attrs={**_ATTRS, "grad_inplace": bool_attr(default=False)},
    infer=_infer,
    kernel=lookup_table,
    grad=maker(["Ids", "Out@GRAD", "W"], ["W@GRAD"]),
    share_lod="Ids",
    sparse=("W",),
    cases=(
        Case({"W": _W, "Ids": np.array([[2], [0], [2]])}, {}, {"Out": _W[[2, 0, 2]]}, check_grad=("W",)),
        Case(
            {"W": _W, "Ids": np.array([[1], [0]])},
            {"padding_idx": 1},
            {"Out": np.array([[0.0, 0.0], [0.5, 1.0]])},
            check_grad=("W",),
        ),
        Case(
            {"W": _W, "Ids": np.array([[2], [0], [2]])}, {"is_sparse": True}, {"Out": _W[[2, 0, 2]]}, check_grad=("W",)
        ),
        Case({"W": _W, "Ids": np.zeros((0, 1), np.int64)}, {}, {"Out": np.zeros((0, 2))}, note="an empty batch"),
        Case(
            {"W": _FETCHED, "Ids": np.array([[-7], [2**62], [-7]])},
            {"is_sparse": True},
            {"Out": np.array([[3.0, 4.0], [1.0, 2.0], [3.0, 4.0]])},
            note="rows fetched from servers, by id",
        ),
    ),
)
register(
    "lookup_table_grad",
    doc="Gradient of lookup_table.",
    inputs=["Ids", "Out@GRAD", "W"],
    outputs=["W@GRAD"],
    attrs={**_ATTRS, "grad_inplace": bool_attr(default=False)},
    infer=infer_embedding_grad,
    kernel=lookup_table_grad,
    sparse=("W",),
)
register(
    "lookup_table_v2",
    doc="As lookup_table, for Ids of any shape: Out has one dimension more, width.",
    inputs=["W", "Ids"],
    outputs=["Out"],
    attrs=_ATTRS,
    infer=_infer_v2,
    kernel=lookup_table_v2,
    grad=maker(["Ids", "Out@GRAD", "W"], ["W@GRAD"]),
    share_lod="Ids",
    sparse=("W",),
    cases=(
        Case({"W": _W, "Ids": np.array([[2, 0], [1, 2]])}, {}, {"Out": _W[[[2, 0], [1, 2]]]}, check_grad=("W",)),
        Case({"W": _W, "Ids": np.array([1, 1])}, {"is_sparse": True}, {"Out": _W[[1, 1]]}, check_grad=("W",)),
        Case({"W": _W, "Ids": np.zeros((0, 3), np.int64)}, {}, {"Out": np.zeros((0, 3, 2))}),
    ),
)
register(
    "lookup_table_v2_grad",
    doc="Gradient of lookup_table_v2.",
    inputs=["Ids", "Out@GRAD", "W"],
    outputs=["W@GRAD"],
    attrs=_ATTRS,
    infer=infer_embedding_grad,
    kernel=lookup_table_grad,
    sparse=("W",),
)
