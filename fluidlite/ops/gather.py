"""Rows by index: gather, gather_nd, scatter."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import OutOfRangeError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, bool_attr, int_attr, register
from fluidlite.ops.shapes import axis_in
from fluidlite.values.selected_rows import segment_sum

_OVERWRITE: Final = {
    "overwrite": bool_attr(default=True, doc="of a repeated index only the last use counts; False: they are summed")
}


_GATHER: Final = {**_OVERWRITE, "axis": int_attr(0, "the axis that Index is of (Paddle 2)")}


def _rows_of(index: Array, height: int, what: str) -> Array:
    """The index as (n,), every entry checked to lie in ``range(height)``."""
    rows = index.reshape(-1)
    bad = np.flatnonzero((rows < 0) | (rows >= height))
    if len(bad):
        raise OutOfRangeError(f"{what} {rows[bad[0]]} at position {bad[0]} is outside the {height} rows of X")
    return rows


def gather(ctx: KernelContext, X: Array, Index: Array, *, axis: int) -> Array:
    if axis % max(X.ndim, 1):
        return np.take(X, _rows_of(Index, X.shape[axis], "index"), axis)
    return X[_rows_of(Index, len(X), "index")]


def gather_grad(ctx: KernelContext, X: Array, Index: Array, Out_GRAD: Array, *, overwrite: bool, axis: int) -> Array:
    rows = Index.reshape(-1)
    if axis % max(X.ndim, 1):
        along = np.zeros_like(X)
        np.add.at(np.moveaxis(along, axis, 0), rows, np.moveaxis(Out_GRAD, axis, 0))
        return along
    if not overwrite:
        return segment_sum(Out_GRAD, rows, len(X))
    gradient = np.zeros_like(X)
    gradient[rows] = Out_GRAD
    return gradient


def _is_row_index(shape: tuple[int, ...]) -> bool:
    return len(shape) == 1 or (len(shape) == 2 and shape[1] in (1, -1))


def _infer_gather(ctx: InferContext) -> None:
    x, index = ctx.input("X"), ctx.shape("Index")
    if not _is_row_index(index):
        raise ctx.error(f"Index must have shape (n,) or (n, 1), not {list(index)}")
    shape = ctx.shape("X")
    try:
        axis = axis_in(len(shape), ctx.attr("axis"))
    except ShapeError as error:
        raise ctx.located(error) from None
    ctx.set("Out", (*shape[:axis], index[0], *shape[axis + 1 :]), x.dtype, lod_level=0)


def _nd_index(x: Array, index: Array) -> tuple[Array, ...]:
    parts = tuple(np.moveaxis(index, -1, 0))
    for axis, part in enumerate(parts):
        if part.size and (part.min() < -x.shape[axis] or part.max() >= x.shape[axis]):
            raise OutOfRangeError(f"Index reaches outside axis {axis} of X {list(x.shape)}")
    return parts


def gather_nd(ctx: KernelContext, X: Array, Index: Array) -> Array:
    if Index.shape[-1] == 0:  # an address of no numbers is all of X
        return np.broadcast_to(X, Index.shape[:-1] + X.shape).copy()
    return X[_nd_index(X, Index)]


def gather_nd_grad(ctx: KernelContext, X: Array, Index: Array, Out_GRAD: Array) -> Array:
    if Index.shape[-1] == 0:
        return np.asarray(Out_GRAD.sum(axis=tuple(range(Index.ndim - 1))))
    gradient = np.zeros_like(X)
    np.add.at(gradient, _nd_index(X, Index), Out_GRAD)
    return gradient


def _infer_gather_nd(ctx: InferContext) -> None:
    x, shape, index = ctx.input("X"), ctx.shape("X"), ctx.shape("Index")
    if len(index) < 2 or index[-1] > len(shape):
        raise ctx.error(f"Index {list(index)} must have rank 2 or more and address X {list(shape)}")
    ctx.set("Out", (*index[:-1], *shape[index[-1] :]), x.dtype, lod_level=x.lod_level)


def scatter(ctx: KernelContext, X: Array, Ids: Array, Updates: Array, *, overwrite: bool) -> Array:
    rows = _rows_of(Ids, len(X), "id")
    if Updates.shape != (len(rows), *X.shape[1:]):
        raise ShapeError(f"Updates {list(Updates.shape)} must be {[len(rows), *X.shape[1:]]}")
    out = X.copy()
    if overwrite:
        out[rows] = Updates
        return out
    out[rows] = 0
    np.add.at(out, rows, Updates)
    return out


def scatter_grad(ctx: KernelContext, Ids: Array, Updates: Array, Out_GRAD: Array, *, overwrite: bool) -> dict[str, Any]:
    rows = Ids.reshape(-1)
    result = {}
    if ctx.wants("X@GRAD"):
        kept = Out_GRAD.copy()
        kept[rows] = 0
        result["X@GRAD"] = kept
    if ctx.wants("Updates@GRAD"):
        result["Updates@GRAD"] = Out_GRAD[rows]
        if overwrite:
            result["Updates@GRAD"][_overwritten(rows, len(Out_GRAD))] = 0
    return result


def _overwritten(rows: Array, height: int) -> Array:
    """Positions whose row is written again later."""
    last = np.zeros(height, np.int64)
    last[rows] = np.arange(len(rows))
    return np.asarray(last[rows] != np.arange(len(rows)))


def _infer_scatter(ctx: InferContext) -> None:
    x, ids = ctx.input("X"), ctx.shape("Ids")
    if not _is_row_index(ids):
        raise ctx.error(f"Ids must have shape (n,) or (n, 1), not {list(ids)}")
    wanted, given = (ids[0], *ctx.shape("X")[1:]), ctx.shape("Updates")
    if len(wanted) != len(given) or any(a != b and -1 not in (a, b) for a, b in zip(wanted, given, strict=True)):
        raise ctx.error(f"Updates {list(given)} must be {list(wanted)}")
    ctx.set("Out", x.shape, x.dtype, lod_level=x.lod_level)


_X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
_IDS = np.array([2, 0])
_TWICE = np.array([1, 0, 1])

register(
    "gather",
    doc="Out = the rows of X that Index (n,) or (n, 1) names. An index outside X raises OutOfRangeError.",
    inputs=["X", "Index"],
    outputs=["Out"],
    attrs=_GATHER,
    infer=_infer_gather,
    kernel=gather,
    grad=maker(["X", "Index", "Out@GRAD"], ["X@GRAD"]),
    cases=(
        Case({"X": _X, "Index": _IDS}, {}, {"Out": _X[_IDS]}, check_grad=("X",)),
        Case({"X": _X, "Index": _TWICE[:, None]}, {"overwrite": False}, {"Out": _X[_TWICE]}, check_grad=("X",)),
        Case({"X": _X, "Index": _IDS[:0]}, {}, {"Out": _X[:0]}, note="nothing asked for"),
        Case({"X": _X, "Index": np.array([1, 0, 1])}, {"axis": 1}, {"Out": _X[:, [1, 0, 1]]}, check_grad=("X",)),
    ),
)
register(
    "gather_grad",
    doc="Gradient of gather; see `overwrite` for rows used more than once.",
    inputs=["X", "Index", "Out@GRAD"],
    outputs=["X@GRAD"],
    attrs=_GATHER,
    infer=grads_like_forward,
    kernel=gather_grad,
)
register(
    "gather_nd",
    doc="Out = what X holds at the places that the last dimension of Index names.",
    inputs=["X", "Index"],
    outputs=["Out"],
    infer=_infer_gather_nd,
    kernel=gather_nd,
    share_lod="X",
    grad=maker(["X", "Index", "Out@GRAD"], ["X@GRAD"]),
    cases=(
        Case(
            {"X": _X, "Index": np.array([[2, 0], [0, 1], [2, 0]])},
            {},
            {"Out": np.array([5.0, 2.0, 5.0])},
            check_grad=("X",),
        ),
        Case({"X": _X, "Index": np.array([[1], [1]])}, {}, {"Out": _X[[1, 1]]}, check_grad=("X",)),
        Case({"X": _X, "Index": np.zeros((2, 0), int)}, {}, {"Out": np.stack([_X, _X])}, check_grad=("X",)),
    ),
)
register(
    "gather_nd_grad",
    doc="Gradient of gather_nd.",
    inputs=["X", "Index", "Out@GRAD"],
    outputs=["X@GRAD"],
    infer=grads_like_forward,
    kernel=gather_nd_grad,
)
register(
    "scatter",
    doc=(
        "Out = X with the rows Ids replaced by Updates; of a repeated id the last one counts, or with overwrite "
        "False their sum. An id outside X raises OutOfRangeError."
    ),
    inputs=["X", "Ids", "Updates"],
    outputs=["Out"],
    attrs=_OVERWRITE,
    infer=_infer_scatter,
    kernel=scatter,
    grad=maker(["Ids", "Updates", "Out@GRAD"], ["X@GRAD", "Updates@GRAD"]),
    cases=(
        Case(
            {"X": _X, "Ids": _TWICE, "Updates": 10 * _X},
            {},
            {"Out": np.array([[30.0, 40.0], [50.0, 60.0], [5.0, 6.0]])},
            check_grad=("X", "Updates"),
        ),
        Case(
            {"X": _X, "Ids": _TWICE, "Updates": 10 * _X},
            {"overwrite": False},
            {"Out": np.array([[30.0, 40.0], [60.0, 80.0], [5.0, 6.0]])},
            check_grad=("X", "Updates"),
        ),
    ),
)
register(
    "scatter_grad",
    doc="Gradient of scatter: X gets none where it was replaced.",
    inputs=["Ids", "Updates", "Out@GRAD"],
    outputs=["X@GRAD", "Updates@GRAD"],
    attrs=_OVERWRITE,
    infer=grads_like_forward,
    kernel=scatter_grad,
)
