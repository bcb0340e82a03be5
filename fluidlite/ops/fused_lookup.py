"""Several lookups of one parameter in one op, which finds and gathers all rows at once.

The executor puts these ops in place of `lookup_table` and `lookup_table_v2`: `fused_lookup_table` gives what each of them
gives, `fused_lookup_concat` what `concat` makes of their outputs. Gradients of W have their rows in a given order, so
that they are summed as those of the single lookups are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError, UninitializedError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.ids import NO_PADDING, argument, flat_ids
from fluidlite.ops.infer import InferContext
from fluidlite.ops.lookup import EmbeddingParameter, embedding_gradient, infer_embedding_grad, lookup_rows, matrix_shape
from fluidlite.ops.registry import Case, bool_attr, ints_attr, long_attr, register, string_attr
from fluidlite.ops.segments import array_of
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows

_ATTRS: Final = {
    "is_sparse": bool_attr(default=False, doc="the gradient of W is SelectedRows"),
    "is_distributed": bool_attr(default=False, doc="W is an auto-grown table; the gradient is SelectedRows"),
    "padding_idx": long_attr(NO_PADDING, "an id whose output is zeros and which gets no gradient; -1: none"),
}
#: whether an op looks up as `lookup_table_v2` does, or drops the last dimension of ids as `lookup_table` does
_VERSION: Final = {"lookup_table_version": string_attr("lookup_table_v2", "the op whose shape of Out is meant")}


def fused_lookup_table(
    ctx: KernelContext, W: Any, Ids: list[Any], *, padding_idx: int, lookup_table_version: str, is_test: bool
) -> list[Any]:
    shapes = [_rows_shape(ctx, index, ids, lookup_table_version) for index, ids in enumerate(Ids)]
    flats = [flat_ids(ctx, array_of(ids), "Ids", index) for index, ids in enumerate(Ids)]
    ends = list(accumulate(len(flat) for flat in flats))

    def whereabouts(position: int) -> tuple[str, int]:
        index = int(np.searchsorted(ends, position, side="right"))
        return argument(ctx, "Ids", index), position - (ends[index - 1] if index else 0)

    ids = np.concatenate(flats)
    rows = lookup_rows(ctx, array_of(W), ids, padding_idx, read_only=is_test, whereabouts=whereabouts)
    width = rows.shape[1]
    outs = [
        rows[end - len(flat) : end].reshape(*shape, width) for flat, end, shape in zip(flats, ends, shapes, strict=True)
    ]
    return [
        LoDTensor(out, ids.lod) if isinstance(ids, LoDTensor) and ids.lod else out
        for ids, out in zip(Ids, outs, strict=True)
    ]


def _rows_shape(ctx: KernelContext, index: int, ids: Any, version: str) -> tuple[int, ...]:
    """The shape of what the ids of one input look up, without the width."""
    if ids is None:
        raise UninitializedError(f"input Ids={argument(ctx, 'Ids', index)!r} of op {ctx.op.type!r} was never written")
    shape: tuple[int, ...] = array_of(ids).shape
    if version != "lookup_table":
        return shape
    if len(shape) < 2 or shape[-1] != 1:
        raise ShapeError(
            f"op {ctx.op.type!r}: the last dimension of {argument(ctx, 'Ids', index)!r} {list(shape)} must be 1"
        )
    return shape[:-1]


def fused_lookup_table_grad(
    ctx: KernelContext,
    W: EmbeddingParameter,
    Ids: list[Array],
    Out_GRAD: list[Array],
    *,
    is_sparse: bool,
    is_distributed: bool,
    padding_idx: int,
) -> Array | SelectedRows:
    ids = np.concatenate([flat_ids(ctx, ids, "Ids", index) for index, ids in enumerate(Ids)])
    gradient = np.concatenate([grad.reshape(-1, grad.shape[-1]) for grad in Out_GRAD])
    return embedding_gradient(W, ids, gradient, padding_idx, sparse=is_sparse, table=is_distributed)


def fused_lookup_concat(
    ctx: KernelContext,
    W: EmbeddingParameter,
    Ids: list[Array],
    *,
    columns: tuple[int, ...],
    padding_idx: int,
    is_test: bool,
) -> Array:
    ids = _matrix(ctx, Ids, columns)
    starts = list(accumulate(columns, initial=0))

    def whereabouts(position: int) -> tuple[str, int]:
        row, column = divmod(position, ids.shape[1])
        index = int(np.searchsorted(starts, column, side="right")) - 1
        return argument(ctx, "Ids", index), row * columns[index] + column - starts[index]

    rows = lookup_rows(ctx, W, ids.reshape(-1), padding_idx, read_only=is_test, whereabouts=whereabouts)
    return rows.reshape(len(ids), ids.shape[1] * rows.shape[1])


def _matrix(ctx: KernelContext, inputs: Sequence[Array], columns: Sequence[int]) -> Array:
    """All ids, (n, sum of ``columns``): those of each input as a matrix of its number of columns, side by side."""
    for index, ids in enumerate(inputs):
        if ids is None:
            raise UninitializedError(
                f"input Ids={argument(ctx, 'Ids', index)!r} of op {ctx.op.type!r} was never written"
            )
    parts = [
        flat_ids(ctx, ids, "Ids", index).reshape(-1, size)
        for index, (ids, size) in enumerate(zip(inputs, columns, strict=True))
    ]
    if len({len(part) for part in parts}) > 1:
        raise ShapeError(
            f"op {ctx.op.type!r}: Ids hold {[len(part) for part in parts]} rows of ids; they must be equally many"
        )
    return np.concatenate(parts, axis=1)


def fused_lookup_concat_grad(
    ctx: KernelContext,
    W: EmbeddingParameter,
    Ids: list[Array],
    Out_GRAD: Array,
    *,
    columns: tuple[int, ...],
    order: tuple[int, ...],
    is_sparse: bool,
    is_distributed: bool,
    padding_idx: int,
) -> Array | SelectedRows:
    wanted = order or tuple(range(len(Ids)))
    ids = np.concatenate([flat_ids(ctx, Ids[index], "Ids", index) for index in wanted])
    gradient = _by_input(Out_GRAD, columns, wanted)
    return embedding_gradient(W, ids, gradient, padding_idx, sparse=is_sparse, table=is_distributed)


def _by_input(matrix: Array, columns: Sequence[int], order: Sequence[int]) -> Array:
    """What stands side by side in ``matrix`` (n, sum of ``columns`` * width) one after the other: the rows (m, width) of
    the first input in ``order``, then those of the next. A row is copied as one opaque item, which is faster."""
    starts = list(accumulate(columns, initial=0))
    width = matrix.shape[1] // starts[-1]
    item = np.dtype((np.void, width * matrix.itemsize))
    items = (matrix if matrix.strides[1] == matrix.itemsize else np.ascontiguousarray(matrix)).view(item)
    out = np.empty((items.size, width), matrix.dtype)
    end, rows = 0, out.view(item).reshape(-1)
    for index in order:
        size = columns[index] * len(items)
        rows[end : end + size].reshape(-1, columns[index])[...] = items[:, starts[index] : starts[index + 1]]
        end += size
    return out


def _infer(ctx: InferContext) -> None:
    width, dtype, drop = matrix_shape(ctx)[1], ctx.input("W").dtype, ctx.attr("lookup_table_version") == "lookup_table"
    for ids, out in zip(ctx.inputs("Ids"), ctx.outputs("Out"), strict=True):
        shape = ids.shape or ()
        if drop and shape[-1:] not in {(1,), (-1,)}:
            raise ctx.error(f"the last dimension of Ids={ids.name!r} {list(shape)} must be 1")
        out.shape, out.dtype, out.lod_level = (*(shape[:-1] if drop else shape), width), dtype, ids.lod_level


def _infer_concat(ctx: InferContext) -> None:
    inputs, columns = ctx.inputs("Ids"), ctx.attr("columns")
    if len(inputs) != len(columns) or min(columns, default=0) < 1:
        raise ctx.error(f"{len(inputs)} Ids need as many columns of at least 1, not {list(columns)}")
    rows = {_rows(ids.shape or (), size) for ids, size in zip(inputs, columns, strict=True)}
    known = rows - {-1}
    if len(known) > 1:
        raise ctx.error(f"Ids hold {sorted(known)} rows of ids; they must be equally many")
    ctx.set(
        "Out", (max(rows), sum(columns) * matrix_shape(ctx)[1]), ctx.input("W").dtype, lod_level=inputs[0].lod_level
    )


def _rows(shape: tuple[int, ...], columns: int) -> int:
    """How many rows of ``columns`` ids there are, -1 where that is not known."""
    return -1 if -1 in shape else math.prod(shape) // columns


_W = np.array([[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]])
_FIRST, _SECOND = np.array([[2], [0]]), np.array([[1], [1]])
_PAIRS = np.array([[0, 1], [2, 2]])

register(
    "fused_lookup_table",
    doc="Several lookups of one W in one op: Out[i] are the rows of W by Ids[i], as `lookup_table` or `lookup_table_v2` "
    "gives them. Rows of new ids of a table are made in the order of Ids.",
    inputs=["W", "Ids*"],
    outputs=["Out*"],
    attrs={**_ATTRS, **_VERSION},
    infer=_infer,
    kernel=fused_lookup_table,
    grad=maker(["Ids", "Out@GRAD", "W"], ["W@GRAD"]),
    takes_lod=True,
    sparse=("W",),
    cases=(
        Case(
            {"W": _W, "Ids": [_FIRST, _SECOND]},
            {"lookup_table_version": "lookup_table"},
            {"Out": [_W[[2, 0]], _W[[1, 1]]]},
            {"Out": 2},
            check_grad=("W",),
        ),
        Case(
            {"W": _W, "Ids": [_FIRST, _PAIRS, np.zeros((0, 2), np.int64)]},
            {"padding_idx": 2, "is_sparse": True},
            {
                "Out": [
                    np.array([[[0.0, 0.0]], [[0.5, 1.0]]]),
                    np.array([[[0.5, 1.0], [2.0, 3.0]], [[0.0, 0.0], [0.0, 0.0]]]),
                    np.zeros((0, 2, 2)),
                ]
            },
            {"Out": 3},
            check_grad=("W",),
        ),
        Case(
            {"W": _W, "Ids": [LoDTensor(_FIRST, ((0, 0, 2),)), _SECOND]},
            {"lookup_table_version": "lookup_table"},
            {"Out": [LoDTensor(_W[[2, 0]], ((0, 0, 2),)), _W[[1, 1]]]},
            {"Out": 2},
        ),
    ),
)
register(
    "fused_lookup_table_grad",
    doc="Gradient of fused_lookup_table. SelectedRows have one row per id, in the order of Ids.",
    inputs=["Ids*", "Out@GRAD*", "W"],
    outputs=["W@GRAD"],
    attrs={**_ATTRS, **_VERSION},
    infer=infer_embedding_grad,
    kernel=fused_lookup_table_grad,
    sparse=("W",),
)
register(
    "fused_lookup_concat",
    doc="Several lookups of one W, side by side: Out (n, sum of `columns` * width), where Ids[i], as a matrix of columns[i] "
    "columns, gives row by row columns[i] * width numbers.",
    inputs=["W", "Ids*"],
    outputs=["Out"],
    attrs={**_ATTRS, "columns": ints_attr(doc="ids per row of each Ids")},
    infer=_infer_concat,
    kernel=fused_lookup_concat,
    grad=maker(["Ids", "Out@GRAD", "W"], ["W@GRAD"]),
    share_lod="Ids",
    sparse=("W",),
    cases=(
        Case(
            {"W": _W, "Ids": [_FIRST, _PAIRS]},
            {"columns": [1, 2]},
            {"Out": np.array([[4.0, 5.0, 0.5, 1.0, 2.0, 3.0], [0.5, 1.0, 4.0, 5.0, 4.0, 5.0]])},
            check_grad=("W",),
        ),
        Case(
            {"W": _W, "Ids": [_FIRST, _SECOND]},
            {"columns": [1, 1], "is_sparse": True, "padding_idx": 1},
            {"Out": np.array([[4.0, 5.0, 0.0, 0.0], [0.5, 1.0, 0.0, 0.0]])},
            check_grad=("W",),
        ),
        Case(
            {"W": _W, "Ids": [_FIRST[:0], _PAIRS[:0]]},
            {"columns": [1, 2]},
            {"Out": np.zeros((0, 6))},
            note="an empty batch",
        ),
    ),
)
register(
    "fused_lookup_concat_grad",
    doc="Gradient of fused_lookup_concat. SelectedRows have one row per id, input by input in the given order.",
    inputs=["Ids*", "Out@GRAD", "W"],
    outputs=["W@GRAD"],
    attrs={
        **_ATTRS,
        "columns": ints_attr(doc="ids per row of each Ids"),
        "order": ints_attr(doc="the order in which the rows of Ids stand in W@GRAD; empty: as they are"),
    },
    infer=infer_embedding_grad,
    kernel=fused_lookup_concat_grad,
    sparse=("W",),
)
