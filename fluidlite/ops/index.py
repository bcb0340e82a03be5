"""Elements by index: index_sample, index_select, scatter_nd_add, where_index, shard_index, unique_with_counts."""

from __future__ import annotations

from typing import Final

import numpy as np

from fluidlite.dtypes import Array, dtype_name, numpy_dtype
from fluidlite.errors import OutOfRangeError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.pairs import with_gradient
from fluidlite.ops.registry import REQUIRED, Case, int_attr, register
from fluidlite.ops.search import unique
from fluidlite.ops.shapes import axis_in


def _checked(ctx: KernelContext, index: Array, size: int, what: str) -> Array:
    bad = np.flatnonzero((index < 0) | (index >= size))
    if len(bad):
        number = index.reshape(-1)[bad[0]]
        raise OutOfRangeError(
            f"op {ctx.op.type!r}: Index {ctx.op.inputs['Index'][0]!r} holds {number} at position {bad[0]}, outside the {size} {what} of X"
        )
    return index


def index_sample(ctx: KernelContext, X: Array, Index: Array) -> Array:
    return np.take_along_axis(X, _checked(ctx, Index, X.shape[1], "columns"), 1)


def index_sample_grad(ctx: KernelContext, X: Array, Index: Array, Out_GRAD: Array) -> Array:
    grad = np.zeros_like(X)
    np.add.at(grad, (np.arange(len(X))[:, None], Index), Out_GRAD)
    return grad


def _infer_index_sample(ctx: InferContext) -> None:
    x, index = ctx.shape("X"), ctx.shape("Index")
    if len(x) != 2 or len(index) != 2 or (x[0] != index[0] and min(x[0], index[0]) >= 0):
        raise ctx.error(f"X {list(x)} and Index {list(index)} must be matrices with as many rows as each other")
    ctx.set("Out", index, ctx.input("X").dtype)


def index_select(ctx: KernelContext, X: Array, Index: Array, *, dim: int) -> Array:
    axis = axis_in(X.ndim, dim)
    return np.take(X, _checked(ctx, Index.reshape(-1), X.shape[axis], "places"), axis)


def index_select_grad(ctx: KernelContext, X: Array, Index: Array, Out_GRAD: Array, *, dim: int) -> Array:
    grad = np.zeros_like(X)
    np.add.at(np.moveaxis(grad, dim, 0), Index.reshape(-1), np.moveaxis(Out_GRAD, dim, 0))
    return grad


def _infer_index_select(ctx: InferContext) -> None:
    x, index = ctx.shape("X"), ctx.shape("Index")
    try:
        axis = axis_in(len(x), ctx.attr("dim"))
    except ShapeError as error:
        raise ctx.located(error) from None
    if len(index) != 1 and index[1:] != (1,):
        raise ctx.error(f"Index {list(index)} must be a vector")
    ctx.set("Out", (*x[:axis], index[0], *x[axis + 1 :]), ctx.input("X").dtype)


def scatter_nd_add(ctx: KernelContext, X: Array, Index: Array, Updates: Array) -> Array:
    out = X.copy()
    np.add.at(out, _address(ctx, X, Index), Updates)
    return out


def scatter_nd_add_grad(ctx: KernelContext, Index: Array, Updates: Array, Out_GRAD: Array) -> dict[str, Array]:
    return {"X@GRAD": Out_GRAD, "Updates@GRAD": Out_GRAD[_address(ctx, Out_GRAD, Index)].reshape(Updates.shape)}


def _address(ctx: KernelContext, x: Array, index: Array) -> tuple[Array, ...]:
    parts = tuple(np.moveaxis(index, -1, 0))
    for axis, part in enumerate(parts):
        _checked(ctx, part, x.shape[axis], f"places of axis {axis}")
    return parts


def _infer_scatter_nd_add(ctx: InferContext) -> None:
    x, index, updates = ctx.shape("X"), ctx.shape("Index"), ctx.shape("Updates")
    if not index or not 0 < index[-1] <= len(x):
        raise ctx.error(f"Index {list(index)} must address X {list(x)} by its last dimension")
    wanted = (*index[:-1], *x[index[-1] :])
    if len(updates) != len(wanted) or any(a != b and min(a, b) >= 0 for a, b in zip(updates, wanted, strict=True)):
        raise ctx.error(f"Updates {list(updates)} must be {list(wanted)} for Index {list(index)} and X {list(x)}")
    like("X", "Out")(ctx)


def where_index(ctx: KernelContext, Condition: Array) -> Array:
    return np.argwhere(Condition).astype(np.int64, copy=False)


def _infer_where_index(ctx: InferContext) -> None:
    ctx.set("Out", (-1, len(ctx.shape("Condition"))), "int64", lod_level=0)


def shard_index(
    ctx: KernelContext, X: Array, *, index_num: int, nshards: int, shard_id: int, ignore_value: int
) -> Array:
    bad = np.flatnonzero((X < 0) | (index_num <= X))
    if len(bad):
        raise OutOfRangeError(
            f"op 'shard_index': X {ctx.op.inputs['X'][0]!r} holds {X.reshape(-1)[bad[0]]} at position {bad[0]}, not in [0, {index_num})"
        )
    size = -(-index_num // nshards)
    return np.where(X // size == shard_id, X % size, ignore_value).astype(X.dtype)


def _infer_shard_index(ctx: InferContext) -> None:
    shards, shard = ctx.attr("nshards"), ctx.attr("shard_id")
    if ctx.attr("index_num") < 1 or shards < 1 or not 0 <= shard < shards:
        raise ctx.error(f"index_num {ctx.attr('index_num')}, nshards {shards}, shard_id {shard} do not fit together")
    if ctx.shape("X")[-1:] not in ((1,), (-1,)):
        raise ctx.error(f"the last dimension of X {list(ctx.shape('X'))} must be 1")
    like("X", "Out")(ctx)


def unique_with_counts(ctx: KernelContext, X: Array, *, dtype: int) -> dict[str, Array]:
    found = unique(ctx, X, dtype=dtype)
    counts = np.bincount(found["Index"].astype(np.int64), minlength=len(found["Out"]))
    return {**found, "Count": counts.astype(numpy_dtype(dtype))}


def _infer_unique(ctx: InferContext) -> None:
    shape, dtype = ctx.shape("X"), dtype_name(ctx.attr("dtype"))
    if len(shape) != 1:
        raise ctx.error(f"X must be a vector, not {list(shape)}")
    ctx.set("Out", (-1,), ctx.input("X").dtype)
    ctx.set("Index", shape, dtype)
    ctx.set("Count", (-1,), dtype)


_X: Final = varied(2, 4)
_INDEX: Final = np.array([[0, 3, 3], [1, 0, 2]])

with_gradient(
    "index_sample",
    doc="Out = of row i of X the columns that row i of Index names.",
    inputs=["X", "Index"],
    outputs=["Out"],
    infer=_infer_index_sample,
    kernel=index_sample,
    gradient=index_sample_grad,
    reads=["X", "Index", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case(
            {"X": _X, "Index": _INDEX},
            {},
            {"Out": np.stack([_X[0, [0, 3, 3]], _X[1, [1, 0, 2]]])},
            check_grad=("X",),
        ),
    ),
)
with_gradient(
    "index_select",
    doc="Out = the slices of X along axis `dim` that Index names.",
    inputs=["X", "Index"],
    outputs=["Out"],
    attrs={"dim": int_attr(0)},
    infer=_infer_index_select,
    kernel=index_select,
    gradient=index_select_grad,
    reads=["X", "Index", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case({"X": _X, "Index": np.array([1, 1, 0])}, {}, {"Out": _X[[1, 1, 0]]}, check_grad=("X",)),
        Case(
            {"X": _X, "Index": np.array([3, 0, 3], np.int32)}, {"dim": 1}, {"Out": _X[:, [3, 0, 3]]}, check_grad=("X",)
        ),
    ),
)
with_gradient(
    "scatter_nd_add",
    doc="Out = X plus each of Updates at the place that the last dimension of Index names; repeated places add up.",
    inputs=["X", "Index", "Updates"],
    outputs=["Out"],
    infer=_infer_scatter_nd_add,
    kernel=scatter_nd_add,
    gradient=scatter_nd_add_grad,
    reads=["Index", "Updates", "Out@GRAD"],
    writes=["X@GRAD", "Updates@GRAD"],
    cases=(
        Case(
            {"X": np.zeros(4), "Index": np.array([[1], [3], [1]]), "Updates": np.array([1.0, 2.0, 4.0])},
            {},
            {"Out": np.array([0.0, 5.0, 0.0, 2.0])},
            check_grad=("X", "Updates"),
        ),
        Case(
            {"X": varied(3, 2), "Index": np.array([[2, 0], [2, 0]]), "Updates": varied(2)}, check_grad=("X", "Updates")
        ),
        Case({"X": varied(3, 2), "Index": np.array([[2], [0]]), "Updates": varied(2, 2)}, check_grad=("X", "Updates")),
    ),
)
register(
    "where_index",
    doc="Out (n, rank) = where Condition holds, in row-major order.",
    inputs=["Condition"],
    outputs=["Out"],
    infer=_infer_where_index,
    kernel=where_index,
    cases=(
        Case({"Condition": np.array([[True, False], [True, True]])}, {}, {"Out": np.array([[0, 0], [1, 0], [1, 1]])}),
        Case({"Condition": np.array([False, False])}, {}, {"Out": np.zeros((0, 1), np.int64)}),
    ),
)
register(
    "shard_index",
    doc="Out = the ids of X of shard `shard_id` counted from the shard's start, `ignore_value` for those of other shards.",
    inputs=["X"],
    outputs=["Out"],
    attrs={
        "index_num": int_attr(REQUIRED, "ids are below it; each shard has an equal part, rounded up"),
        "nshards": int_attr(REQUIRED),
        "shard_id": int_attr(REQUIRED),
        "ignore_value": int_attr(-1),
    },
    infer=_infer_shard_index,
    kernel=shard_index,
    cases=(
        Case(
            {"X": np.array([[1], [6], [12], [19]])},
            {"index_num": 20, "nshards": 2, "shard_id": 1},
            {"Out": np.array([[-1], [-1], [2], [9]])},
        ),
    ),
)
register(
    "unique_with_counts",
    doc="Out = the distinct elements of X in the order of their first use, Index = the place in Out of each element of X, "
    "Count = how often each occurs.",
    inputs=["X"],
    outputs=["Out", "Index", "Count"],
    attrs={"dtype": int_attr(REQUIRED, "VarType number of Index and Count")},
    infer=_infer_unique,
    kernel=unique_with_counts,
    cases=(
        Case(
            {"X": np.array([2, 3, 3, 1, 5, 3])},
            {"dtype": 3},
            {
                "Out": np.array([2, 3, 1, 5]),
                "Index": np.array([0, 1, 1, 2, 3, 1]),
                "Count": np.array([1, 3, 1, 1]),
            },
        ),
    ),
)
