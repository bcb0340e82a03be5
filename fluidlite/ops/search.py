"""Largest and smallest elements, and order: arg_max, arg_min, argsort, top_k; and the distinct values: unique."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array, dtype_name, numpy_dtype
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import REQUIRED, Case, Kernel, bool_attr, int_attr, long_attr, register
from fluidlite.ops.shapes import Shape, axis_in, scalar

_ARG_ATTRS: Final = {
    "axis": long_attr(REQUIRED),
    "keepdims": bool_attr(default=False),
    "dtype": int_attr(-1, "VarType number of Out; -1: int64"),
    "flatten": bool_attr(default=False, doc="of all elements in row-major order (Paddle 2)"),
}


def _arg_kernel(find: Callable[..., Any]) -> Kernel:
    def kernel(ctx: KernelContext, X: Array, *, axis: int, keepdims: bool, dtype: int, flatten: bool) -> Array:
        if flatten:
            X, axis, keepdims = X.reshape(-1), 0, True
        if X.shape[axis_in(X.ndim, axis)] == 0:
            raise ShapeError(f"axis {axis} of X {list(X.shape)} has no elements")
        found = find(X, axis=axis, keepdims=keepdims)
        return np.asarray(found).astype(np.int64 if dtype < 0 else numpy_dtype(dtype), copy=False)

    return kernel


def _infer_arg(ctx: InferContext) -> None:
    shape = ctx.shape("X")
    try:
        axis = axis_in(len(shape), ctx.attr("axis"))
    except ShapeError as error:
        raise ctx.error(str(error)) from None
    kept = (1,) if ctx.attr("keepdims") else ()
    dtype = ctx.attr("dtype")
    out = (1,) if ctx.attr("flatten") else shape[:axis] + kept + shape[axis + 1 :]
    ctx.set("Out", out, "int64" if dtype < 0 else dtype_name(dtype), lod_level=0)


def ordered(x: Array, axis: int, descending: bool) -> Array:
    """Positions of the elements in order along ``axis``, int64; of equal ones the first comes first."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # reversed before and after, so that the stable ascending order descends without negating values
    reverse = np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    return np.asarray(x.shape[axis] - 1 - reverse)


def argsort(ctx: KernelContext, X: Array, *, axis: int, descending: bool) -> dict[str, Array]:
    indices = ordered(X, axis, descending)
    return {"Out": np.take_along_axis(X, indices, axis), "Indices": indices}


def argsort_grad(ctx: KernelContext, X: Array, Indices: Array, Out_GRAD: Array, *, axis: int) -> Array:
    return _put_back(X, Indices, Out_GRAD, axis)


def _put_back(x: Array, indices: Array, out_grad: Array, axis: int) -> Array:
    gradient = np.zeros_like(x)
    np.put_along_axis(gradient, indices, out_grad, axis)
    return gradient


def _infer_argsort(ctx: InferContext) -> None:
    x, shape = ctx.input("X"), ctx.shape("X")
    try:
        axis_in(len(shape), ctx.attr("axis"))
    except ShapeError as error:
        raise ctx.error(str(error)) from None
    ctx.set("Out", shape, x.dtype, lod_level=x.lod_level)
    ctx.set("Indices", shape, "int64", lod_level=x.lod_level)


def top_k(ctx: KernelContext, X: Array, K: Array | None, *, k: int) -> dict[str, Array]:
    count = k if K is None else scalar(K)
    _check_k(count, X.shape)
    if count == 1:
        indices = np.argmax(X, axis=-1, keepdims=True)
    else:
        indices = ordered(X, X.ndim - 1, descending=True)[..., :count]
    return {"Out": np.take_along_axis(X, indices, -1), "Indices": indices}


def top_k_grad(ctx: KernelContext, X: Array, Indices: Array, Out_GRAD: Array) -> Array:
    return _put_back(X, Indices, Out_GRAD, -1)


def _check_k(k: int, shape: Shape) -> None:
    if k < 1 or not shape or (shape[-1] >= 0 and k > shape[-1]):
        raise ShapeError(f"the {k} largest of the last dimension of X {list(shape)}")


def _infer_top_k(ctx: InferContext) -> None:
    x, shape = ctx.input("X"), ctx.shape("X")
    k = -1
    if ctx.maybe_input("K") is None:
        k = ctx.attr("k")
        try:
            _check_k(k, shape)
        except ShapeError as error:
            raise ctx.error(str(error)) from None
    ctx.set("Out", (*shape[:-1], k), x.dtype, lod_level=x.lod_level)
    ctx.set("Indices", (*shape[:-1], k), "int64", lod_level=x.lod_level)


def unique(ctx: KernelContext, X: Array, *, dtype: int) -> dict[str, Array]:
    _, first, inverse = np.unique(X, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return {"Out": X[first[order]], "Index": rank[inverse.reshape(-1)].astype(numpy_dtype(dtype))}


def _infer_unique(ctx: InferContext) -> None:
    shape = ctx.shape("X")
    if len(shape) != 1:
        raise ctx.error(f"X must have rank 1, not shape {list(shape)}")
    ctx.set("Out", (-1,), ctx.input("X").dtype)
    ctx.set("Index", shape, dtype_name(ctx.attr("dtype")))


_X: Final = np.array([[2.0, 7.0, 5.0], [9.0, -1.0, 3.0]])
_FLOAT_ORDER: Final = np.array([[0, 2, 1], [1, 2, 0]])

for _type, _find, _word, _columns in (
    ("arg_max", np.argmax, "largest", [1, 0]),
    ("arg_min", np.argmin, "smallest", [0, 1]),
):
    register(
        _type,
        doc=f"Out = the position of the {_word} element along `axis` (the first of equal ones).",
        inputs=["X"],
        outputs=["Out"],
        attrs=_ARG_ATTRS,
        infer=_infer_arg,
        kernel=_arg_kernel(_find),
        cases=(
            Case({"X": _X}, {"axis": -1}, {"Out": np.array(_columns)}),
            Case({"X": _X}, {"axis": 1, "keepdims": True, "dtype": 2}, {"Out": np.array(_columns, np.int32)[:, None]}),
            Case({"X": _X[0]}, {"axis": 0}, {"Out": np.array(_columns[0])}, note="rank 0"),
            Case({"X": _X}, {"axis": 0, "flatten": True}, {"Out": np.array([_find(_X)])}),
            Case({"X": _X[:0]}, {"axis": 1}, {"Out": np.array([], np.int64)}, note="an empty batch"),
        ),
    )
register(
    "argsort",
    doc="Out = X in order along `axis`, Indices int64 where each element was; equal elements keep their order.",
    inputs=["X"],
    outputs=["Out", "Indices"],
    attrs={"axis": int_attr(-1), "descending": bool_attr(default=False)},
    infer=_infer_argsort,
    kernel=argsort,
    grad=maker(["X", "Indices", "Out@GRAD"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case({"X": _X}, {}, {"Out": np.sort(_X, 1), "Indices": _FLOAT_ORDER}, check_grad=("X",)),
        Case(
            {"X": _X},
            {"axis": 0, "descending": True},
            {"Out": np.array([[9.0, 7.0, 5.0], [2.0, -1.0, 3.0]]), "Indices": np.array([[1, 0, 0], [0, 1, 1]])},
            check_grad=("X",),
        ),
        Case(
            {"X": np.array([1.0, 2.0, 1.0])},
            {"descending": True},
            {"Out": np.array([2.0, 1.0, 1.0]), "Indices": np.array([1, 0, 2])},
        ),
    ),
)
register(
    "argsort_grad",
    doc="Gradient of argsort.",
    inputs=["X", "Indices", "Out@GRAD"],
    outputs=["X@GRAD"],
    attrs={"axis": int_attr(-1), "descending": bool_attr(default=False)},
    infer=grads_like_forward,
    kernel=argsort_grad,
    share_lod="X",
)
register(
    "top_k",
    doc="Out = the k largest elements of the last dimension, descending; Indices int64 where they were.",
    inputs=["X", "K?"],
    outputs=["Out", "Indices"],
    attrs={"k": int_attr(1, "how many, unless K gives it")},
    infer=_infer_top_k,
    kernel=top_k,
    grad=maker(["X", "Indices", "Out@GRAD"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case(
            {"X": _X},
            {"k": 2},
            {"Out": np.array([[7.0, 5.0], [9.0, 3.0]]), "Indices": np.array([[1, 2], [0, 2]])},
            check_grad=("X",),
        ),
        Case({"X": _X}, {}, {"Out": np.array([[7.0], [9.0]]), "Indices": np.array([[1], [0]])}, check_grad=("X",)),
        Case({"X": _X[:0]}, {"k": 2}, {"Out": np.zeros((0, 2)), "Indices": np.zeros((0, 2), int)}, note="empty"),
    ),
)
register(
    "top_k_grad",
    doc="Gradient of top_k.",
    inputs=["X", "Indices", "Out@GRAD"],
    outputs=["X@GRAD"],
    attrs={"k": int_attr(1)},
    infer=grads_like_forward,
    kernel=top_k_grad,
    share_lod="X",
)
register(
    "unique",
    doc="Out = the distinct values of X (n,) in order of their first occurrence; Index (n,) where each X is in Out.",
    inputs=["X"],
    outputs=["Out", "Index"],
    attrs={"dtype": int_attr(doc="VarType number of Index")},
    infer=_infer_unique,
    kernel=unique,
    cases=(
        Case(
            {"X": np.array([5, 2, 5, 9])},
            {"dtype": 3},
            {"Out": np.array([5, 2, 9]), "Index": np.array([0, 1, 0, 2])},
        ),
    ),
)
