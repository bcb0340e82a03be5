"""Norms and distances: squared_l2_norm, l1_norm, squared_l2_distance, norm (L2 normalisation), cos_sim."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, float_attr, int_attr, register
from fluidlite.ops.special import sign

#: least length of a row in cos_sim, measured on Fluid 1.8.5
_LEAST_LENGTH: Final = 1e-4


def _infer_one(ctx: InferContext) -> None:
    ctx.set("Out", (1,), ctx.input("X").dtype, lod_level=0)


def squared_l2_norm(ctx: KernelContext, X: Array) -> Array:
    flat = X.reshape(-1)
    return np.array([flat @ flat], X.dtype)


def squared_l2_norm_grad(ctx: KernelContext, X: Array, Out_GRAD: Array) -> Array:
    return np.asarray(X * (2 * Out_GRAD.reshape(1)))


def l1_norm(ctx: KernelContext, X: Array) -> Array:
    return np.array([np.abs(X).sum(dtype=X.dtype)], X.dtype)


def l1_norm_grad(ctx: KernelContext, X: Array, Out_GRAD: Array) -> Array:
    return sign(X) * Out_GRAD.reshape(1)


def squared_l2_distance(ctx: KernelContext, X: Array, Y: Array) -> dict[str, Array]:
    _check_rows(X.shape, Y.shape)
    width = math.prod(X.shape[1:])
    difference = X.reshape(len(X), width) - Y.reshape(len(Y), width)
    return {"sub_result": difference, "Out": np.sum(difference * difference, axis=1, keepdims=True)}


def squared_l2_distance_grad(
    ctx: KernelContext, X: Array, Y: Array, sub_result: Array, Out_GRAD: Array
) -> dict[str, Array]:
    gradient = 2 * Out_GRAD.reshape(-1, 1) * sub_result
    result = {}
    if ctx.wants("X@GRAD"):
        result["X@GRAD"] = gradient.reshape(X.shape)
    if ctx.wants("Y@GRAD"):
        own = gradient if len(Y) == len(X) else gradient.sum(axis=0, keepdims=True)
        result["Y@GRAD"] = -own.reshape(Y.shape)
    return result


def _check_rows(x: tuple[int, ...], y: tuple[int, ...]) -> None:
    """Y has as many rows as X, or one; and as many elements in each."""
    rows_fit = y[0] == x[0] or y[0] == 1 or -1 in (x[0], y[0])
    widths_fit = -1 in x[1:] + y[1:] or math.prod(x[1:]) == math.prod(y[1:])
    if len(x) < 2 or len(y) < 2 or not rows_fit or not widths_fit:
        raise ShapeError(f"X {list(x)} and Y {list(y)} must have equal rows (or Y one row) of equal size")


def _infer_distance(ctx: InferContext) -> None:
    x, shape = ctx.input("X"), ctx.shape("X")
    _checked(ctx)
    rest = shape[1:]
    ctx.set("sub_result", (shape[0], -1 if -1 in rest else math.prod(rest)), x.dtype)
    ctx.set("Out", (shape[0], 1), x.dtype, lod_level=x.lod_level)


def _checked(ctx: InferContext) -> None:
    try:
        _check_rows(ctx.shape("X"), ctx.shape("Y"))
    except ShapeError as error:
        raise ctx.error(str(error)) from None


def norm(ctx: KernelContext, X: Array, *, axis: int, epsilon: float) -> dict[str, Array]:
    length = np.sqrt(np.sum(X * X, axis=axis, keepdims=True) + X.dtype.type(epsilon))
    return {"Out": X / length, "Norm": length}


def norm_grad(ctx: KernelContext, X: Array, Norm: Array, Out_GRAD: Array, *, axis: int) -> Array:
    along = np.sum(Out_GRAD * X, axis=axis, keepdims=True)
    return np.asarray((Out_GRAD - X * (along / (Norm * Norm))) / Norm)


def _infer_norm(ctx: InferContext) -> None:
    x, shape, axis = ctx.input("X"), ctx.shape("X"), ctx.attr("axis")
    if not -len(shape) <= axis < len(shape):
        raise ctx.error(f"axis {axis} of an input of rank {len(shape)}")
    axis %= len(shape)
    ctx.set("Out", shape, x.dtype, lod_level=x.lod_level)
    ctx.set("Norm", tuple(1 if i == axis else size for i, size in enumerate(shape)), x.dtype)


def _lengths(x: Array) -> Array:
    """The length of each row, (n, 1), at least `_LEAST_LENGTH`."""
    return np.asarray(np.maximum(np.sqrt(np.sum(x * x, axis=1, keepdims=True)), x.dtype.type(_LEAST_LENGTH)))


def _rows(x: Array) -> Array:
    return x.reshape(len(x), math.prod(x.shape[1:]))


def cos_sim(ctx: KernelContext, X: Array, Y: Array) -> dict[str, Array]:
    _check_rows(X.shape, Y.shape)
    x, y = _rows(X), _rows(Y)
    x_norm, y_norm = _lengths(x), _lengths(y)
    dot = np.sum(x * y, axis=1, keepdims=True)
    return {"Out": dot / (x_norm * y_norm), "XNorm": x_norm, "YNorm": y_norm}


def cos_sim_grad(
    ctx: KernelContext, X: Array, Y: Array, Out: Array, XNorm: Array, YNorm: Array, Out_GRAD: Array
) -> dict[str, Array]:
    x, y = _rows(X), _rows(Y)
    out, out_grad = Out.reshape(-1, 1), Out_GRAD.reshape(-1, 1)
    cross = out_grad / (XNorm * YNorm)
    result = {}
    if ctx.wants("X@GRAD"):
        result["X@GRAD"] = (cross * y - out_grad * out / (XNorm * XNorm) * x).reshape(X.shape)
    if ctx.wants("Y@GRAD"):
        gradient = cross * x - out_grad * out / (YNorm * YNorm) * y
        own = gradient if len(Y) == len(X) else gradient.sum(axis=0, keepdims=True)
        result["Y@GRAD"] = own.reshape(Y.shape)
    return result


def _infer_cos_sim(ctx: InferContext) -> None:
    x, y = ctx.input("X"), ctx.input("Y")
    _checked(ctx)
    ctx.set("Out", (ctx.shape("X")[0], 1), x.dtype, lod_level=x.lod_level)
    ctx.set("XNorm", (ctx.shape("X")[0], 1), x.dtype)
    ctx.set("YNorm", (ctx.shape("Y")[0], 1), y.dtype)


_X = np.array([[3.0, 4.0], [-1.0, 0.5], [0.25, -2.0]])
_Y = np.array([[4.0, 3.0], [1.0, 2.0], [1.5, 1.0]])

register(
    "squared_l2_norm",
    doc="Out (1,) = the sum of the squares of X.",
    inputs=["X"],
    outputs=["Out"],
    infer=_infer_one,
    kernel=squared_l2_norm,
    grad=maker(["X", "Out@GRAD"], ["X@GRAD"]),
    cases=(Case({"X": _X}, {}, {"Out": np.array([30.3125])}, check_grad=("X",)),),
)
register(
    "squared_l2_norm_grad",
    doc="Gradient of squared_l2_norm.",
    inputs=["X", "Out@GRAD"],
    outputs=["X@GRAD"],
    infer=grads_like_forward,
    kernel=squared_l2_norm_grad,
)
register(
    "l1_norm",
    doc="Out (1,) = the sum of the absolute values of X.",
    inputs=["X"],
    outputs=["Out"],
    infer=_infer_one,
    kernel=l1_norm,
    grad=maker(["X", "Out@GRAD"], ["X@GRAD"]),
    cases=(Case({"X": _X}, {}, {"Out": np.array([10.75])}, check_grad=("X",)),),
)
register(
    "l1_norm_grad",
    doc="Gradient of l1_norm.",
    inputs=["X", "Out@GRAD"],
    outputs=["X@GRAD"],
    infer=grads_like_forward,
    kernel=l1_norm_grad,
)
register(
    "squared_l2_distance",
    doc="Out (n, 1) = the squared distance of each row of X from Y's row; Y may have one row.",
    inputs=["X", "Y"],
    outputs=["sub_result~", "Out"],
    infer=_infer_distance,
    kernel=squared_l2_distance,
    grad=maker(["X", "Y", "sub_result", "Out@GRAD"], ["X@GRAD", "Y@GRAD"]),
    share_lod="X",
    cases=(
        Case({"X": _X, "Y": _Y}, {}, {"Out": np.array([[2.0], [6.25], [10.5625]])}, check_grad=("X", "Y")),
        Case({"X": _X, "Y": _Y[:1]}, {}, {"Out": np.array([[2.0], [31.25], [39.0625]])}, check_grad=("X", "Y")),
    ),
)
register(
    "squared_l2_distance_grad",
    doc="Gradient of squared_l2_distance.",
    inputs=["X", "Y", "sub_result", "Out@GRAD"],
    outputs=["X@GRAD", "Y@GRAD"],
    infer=grads_like_forward,
    kernel=squared_l2_distance_grad,
)
register(
    "norm",
    doc="Out = X / Norm, Norm = the square root of (sum of X * X along `axis`, plus `epsilon`).",
    inputs=["X"],
    outputs=["Norm~", "Out"],
    attrs={"axis": int_attr(), "epsilon": float_attr(1e-10)},
    infer=_infer_norm,
    kernel=norm,
    grad=maker(["X", "Norm", "Out@GRAD"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case(
            {"X": _X[:1]},
            {"axis": 1},
            {"Out": np.array([[0.6, 0.8]]), "Norm": np.array([[5.0]])},
            check_grad=("X",),
        ),
        Case({"X": _X}, {"axis": 0, "epsilon": 0.5}, check_grad=("X",)),
        Case({"X": np.zeros((0, 2))}, {"axis": 1}, {"Out": np.zeros((0, 2))}, note="an empty batch"),
    ),
)
register(
    "norm_grad",
    doc="Gradient of norm.",
    inputs=["X", "Norm", "Out@GRAD"],
    outputs=["X@GRAD"],
    attrs={"axis": int_attr(), "epsilon": float_attr(1e-10)},
    infer=grads_like_forward,
    kernel=norm_grad,
    share_lod="X",
)
register(
    "cos_sim",
    doc=(
        "Out (n, 1) = the cosine of the angle between the rows of X and Y; Y may have one row. XNorm and YNorm are "
        "the rows' lengths, at least 1e-4."
    ),
    inputs=["X", "Y"],
    outputs=["Out", "XNorm~", "YNorm~"],
    infer=_infer_cos_sim,
    kernel=cos_sim,
    grad=maker(["X", "Y", "Out", "XNorm", "YNorm", "Out@GRAD"], ["X@GRAD", "Y@GRAD"]),
    share_lod="X",
    cases=(
        Case({"X": _X[:1], "Y": _Y[:1]}, {}, {"Out": np.array([[0.96]])}),
        Case(
            {"X": np.array([[1e-5, 0.0]]), "Y": np.array([[3.0, 4.0]])},
            {},
            {"Out": np.array([[0.06]]), "XNorm": np.array([[1e-4]]), "YNorm": np.array([[5.0]])},
            note="a row of almost no length, as in Fluid 1.8.5",
        ),
        Case({"X": _X, "Y": _Y}, {}, check_grad=("X", "Y")),
        Case({"X": _X, "Y": _Y[:1]}, {}, check_grad=("X", "Y")),
    ),
)
register(
    "cos_sim_grad",
    doc="Gradient of cos_sim.",
    inputs=["X", "Y", "Out", "XNorm", "YNorm", "Out@GRAD"],
    outputs=["X@GRAD", "Y@GRAD"],
    infer=grads_like_forward,
    kernel=cos_sim_grad,
    share_lod="X",
)
