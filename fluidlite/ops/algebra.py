"""Products: bmm, addmm, dot, kron, cross, bilinear_tensor_product; the sum of a diagonal: trace; a distance: dist."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.infer import InferContext
from fluidlite.ops.pairs import with_gradient
from fluidlite.ops.registry import Case, float_attr, int_attr
from fluidlite.ops.shapes import axis_in
from fluidlite.ops.special import sign


def bmm(ctx: KernelContext, X: Array, Y: Array) -> Array:
    return X @ Y


def bmm_grad(ctx: KernelContext, X: Array, Y: Array, Out_GRAD: Array) -> dict[str, Array]:
    return {"X@GRAD": Out_GRAD @ Y.swapaxes(1, 2), "Y@GRAD": X.swapaxes(1, 2) @ Out_GRAD}


def _infer_bmm(ctx: InferContext) -> None:
    x, y = ctx.shape("X"), ctx.shape("Y")
    if len(x) != 3 or len(y) != 3 or not _agree(x[0], y[0]) or not _agree(x[2], y[1]):
        raise ctx.error(f"X {list(x)} and Y {list(y)} must be [batch, n, k] and [batch, k, m]")
    ctx.set("Out", (x[0], x[1], y[2]), ctx.input("X").dtype)


def _agree(one: int, other: int) -> bool:
    return one == other or min(one, other) < 0


def addmm(ctx: KernelContext, Input: Array, X: Array, Y: Array, *, Alpha: float, Beta: float) -> Array:
    return np.asarray(Beta * Input + Alpha * (X @ Y))


def addmm_grad(
    ctx: KernelContext, Input: Array, X: Array, Y: Array, Out_GRAD: Array, *, Alpha: float, Beta: float
) -> dict[str, Array]:
    return {
        "Input@GRAD": Beta * summed_to(Out_GRAD, Input.shape),
        "X@GRAD": Alpha * (Out_GRAD @ Y.T),
        "Y@GRAD": Alpha * (X.T @ Out_GRAD),
    }


def summed_to(values: Array, shape: tuple[int, ...]) -> Array:
    """The sum of values over the axes along which an operand of ``shape`` was repeated."""
    extra = values.ndim - len(shape)
    axes = tuple(i for i in range(values.ndim) if i < extra or (shape[i - extra] == 1 and values.shape[i] != 1))
    return np.asarray(values.sum(axis=axes, keepdims=True)).reshape(shape)


def _infer_addmm(ctx: InferContext) -> None:
    x, y = ctx.shape("X"), ctx.shape("Y")
    if len(x) != 2 or len(y) != 2 or not _agree(x[1], y[0]):
        raise ctx.error(f"X {list(x)} and Y {list(y)} must be [n, k] and [k, m]")
    ctx.set("Out", (x[0], y[1]), ctx.input("Input").dtype)


def dot(ctx: KernelContext, X: Array, Y: Array) -> Array:
    return np.asarray((X * Y).sum(axis=-1, keepdims=True))


def dot_grad(ctx: KernelContext, X: Array, Y: Array, Out_GRAD: Array) -> dict[str, Array]:
    return {"X@GRAD": Out_GRAD * Y, "Y@GRAD": Out_GRAD * X}


def _infer_dot(ctx: InferContext) -> None:
    x, y = ctx.shape("X"), ctx.shape("Y")
    if len(x) != len(y) or len(x) not in (1, 2) or not all(map(_agree, x, y)):
        raise ctx.error(f"X {list(x)} and Y {list(y)} must be two vectors, or two matrices, of one shape")
    ctx.set("Out", (*x[:-1], 1), ctx.input("X").dtype)


def kron(ctx: KernelContext, X: Array, Y: Array) -> Array:
    return np.asarray(np.kron(X, Y))


def kron_grad(ctx: KernelContext, X: Array, Y: Array, Out_GRAD: Array) -> dict[str, Array]:
    rank = max(X.ndim, Y.ndim)
    x, y = ((1,) * (rank - value.ndim) + value.shape for value in (X, Y))
    pairs = Out_GRAD.reshape([size for both in zip(x, y, strict=True) for size in both])
    blocks = pairs.transpose([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]).reshape(X.size, Y.size)
    return {
        "X@GRAD": (blocks @ Y.reshape(-1)).reshape(X.shape),
        "Y@GRAD": (X.reshape(-1) @ blocks).reshape(Y.shape),
    }


def _infer_kron(ctx: InferContext) -> None:
    x, y = ctx.shape("X"), ctx.shape("Y")
    rank = max(len(x), len(y))
    x, y = (1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y
    out = tuple(-1 if min(a, b) < 0 else a * b for a, b in zip(x, y, strict=True))
    ctx.set("Out", out, ctx.input("X").dtype)


def _cross_axis(shape: tuple[int, ...], dim: int) -> int:
    """The axis of size 3 that `cross` works along: ``dim``, or the first one where that is 9 (none given)."""
    axis = shape.index(3) if dim == 9 and 3 in shape else dim
    if not -len(shape) <= axis < len(shape) or shape[axis] != 3:
        raise ShapeError(f"cross needs an axis of size 3, which axis {dim} of shape {list(shape)} is not")
    return axis % len(shape)


def cross(ctx: KernelContext, X: Array, Y: Array, *, dim: int) -> Array:
    return _cross(X, Y, _cross_axis(X.shape, dim))


def cross_grad(ctx: KernelContext, X: Array, Y: Array, Out_GRAD: Array, *, dim: int) -> dict[str, Array]:
    axis = _cross_axis(X.shape, dim)
    return {"X@GRAD": _cross(Y, Out_GRAD, axis), "Y@GRAD": _cross(Out_GRAD, X, axis)}


def _cross(x: Array, y: Array, axis: int) -> Array:
    return np.asarray(np.cross(x, y, axis=axis))


def _infer_cross(ctx: InferContext) -> None:
    x, y = ctx.shape("X"), ctx.shape("Y")
    try:
        _cross_axis(x, ctx.attr("dim"))
    except ShapeError as error:
        raise ctx.located(error) from None
    if len(x) != len(y) or not all(map(_agree, x, y)):
        raise ctx.error(f"X {list(x)} and Y {list(y)} must have one shape")
    ctx.set("Out", x, ctx.input("X").dtype)


def bilinear_tensor_product(ctx: KernelContext, X: Array, Y: Array, Weight: Array, Bias: Array | None) -> Array:
    out = np.einsum("ni,kij,nj->nk", X, Weight, Y, optimize=True)
    return np.asarray(out if Bias is None else out + Bias)


def bilinear_tensor_product_grad(
    ctx: KernelContext, X: Array, Y: Array, Weight: Array, Out_GRAD: Array
) -> dict[str, Array]:
    return {
        "X@GRAD": np.einsum("nk,kij,nj->ni", Out_GRAD, Weight, Y, optimize=True),
        "Y@GRAD": np.einsum("nk,kij,ni->nj", Out_GRAD, Weight, X, optimize=True),
        "Weight@GRAD": np.einsum("nk,ni,nj->kij", Out_GRAD, X, Y, optimize=True),
        "Bias@GRAD": Out_GRAD.sum(axis=0, keepdims=True),
    }


def _infer_bilinear(ctx: InferContext) -> None:
    x, y, weight = ctx.shape("X"), ctx.shape("Y"), ctx.shape("Weight")
    if len(x) != 2 or len(y) != 2 or len(weight) != 3 or not (_agree(x[1], weight[1]) and _agree(y[1], weight[2])):
        raise ctx.error(f"X {list(x)}, Y {list(y)} and Weight {list(weight)} must be [n, i], [n, j] and [k, i, j]")
    ctx.set("Out", (x[0], weight[0]), ctx.input("X").dtype)


def trace(ctx: KernelContext, Input: Array, *, offset: int, dim1: int, dim2: int) -> Array:
    total = np.trace(Input, offset, dim1, dim2, dtype=Input.dtype)
    return np.asarray(total, Input.dtype).reshape(np.shape(total) or (1,))


def trace_grad(ctx: KernelContext, Input: Array, Out_GRAD: Array, *, offset: int, dim1: int, dim2: int) -> Array:
    grad = np.zeros_like(Input)
    planes = np.moveaxis(grad, (dim1, dim2), (-2, -1))
    rows, columns = diagonal_of(planes.shape[-2], planes.shape[-1], offset)
    planes[..., rows, columns] = Out_GRAD.reshape((*planes.shape[:-2], 1))
    return grad


def diagonal_of(rows: int, columns: int, offset: int) -> tuple[Array, Array]:
    """(row, column) of each cell of the diagonal ``offset`` cells to the right of the main one."""
    first = max(0, -offset)
    cells = np.arange(first, max(first, min(rows, columns - offset)))
    return cells, cells + offset


def _infer_trace(ctx: InferContext) -> None:
    shape = ctx.shape("Input")
    try:
        axes = {axis_in(len(shape), ctx.attr(name)) for name in ("dim1", "dim2")}
    except ShapeError as error:
        raise ctx.located(error) from None
    if len(axes) != 2:
        raise ctx.error(f"dim1 and dim2 are the same axis of Input {list(shape)}")
    out = tuple(size for axis, size in enumerate(shape) if axis not in axes) or (1,)
    ctx.set("Out", out, ctx.input("Input").dtype)


def dist(ctx: KernelContext, X: Array, Y: Array, *, p: float) -> Array:
    distances = np.abs(X - Y).reshape(-1)
    if p == 0:
        return np.array([np.count_nonzero(distances)], X.dtype)
    if np.isinf(p):
        return np.asarray(distances.max(initial=0) if p > 0 else distances.min()).reshape(1)
    return np.asarray((distances**p).sum() ** (1 / p), X.dtype).reshape(1)


def dist_grad(ctx: KernelContext, X: Array, Y: Array, Out: Array, Out_GRAD: Array, *, p: float) -> dict[str, Array]:
    difference = X - Y
    if p == 0:
        slope = np.zeros_like(difference)
    elif np.isinf(p):
        slope = sign(difference) * (np.abs(difference) == Out)
    else:
        far = np.where(Out == 0, 1, Out)
        slope = sign(difference) * np.abs(difference) ** (p - 1) / far ** (p - 1)
    grad = Out_GRAD * slope
    return {"X@GRAD": summed_to(grad, X.shape), "Y@GRAD": -summed_to(grad, Y.shape)}


def _infer_dist(ctx: InferContext) -> None:
    ctx.set("Out", (1,), ctx.input("X").dtype)


_A, _B = varied(2, 2, 3), varied(2, 3, 2, start=20)
_XY: Any = ("X", "Y")
_GRADS = ["X@GRAD", "Y@GRAD"]

with_gradient(
    "bmm",
    doc="Out = the matrix products X[i] @ Y[i] of two batches of matrices.",
    inputs=["X", "Y"],
    outputs=["Out"],
    infer=_infer_bmm,
    kernel=bmm,
    gradient=bmm_grad,
    reads=["X", "Y", "Out@GRAD"],
    writes=_GRADS,
    cases=(Case({"X": _A, "Y": _B}, {}, {"Out": _A @ _B}, check_grad=_XY),),
)
with_gradient(
    "addmm",
    doc="Out = Beta * Input + Alpha * X @ Y; Input is repeated where it is 1.",
    inputs=["Input", "X", "Y"],
    outputs=["Out"],
    attrs={"Alpha": float_attr(1.0), "Beta": float_attr(1.0)},
    infer=_infer_addmm,
    kernel=addmm,
    gradient=addmm_grad,
    reads=["Input", "X", "Y", "Out@GRAD"],
    writes=["Input@GRAD", *_GRADS],
    cases=(
        Case({"Input": np.ones((2, 2)), "X": _A[0], "Y": _B[0]}, {}, {"Out": 1 + _A[0] @ _B[0]}, check_grad=_XY),
        Case(
            {"Input": varied(1, 2), "X": _A[0], "Y": _B[0]},
            {"Alpha": 0.5, "Beta": 2.0},
            {"Out": 2 * varied(1, 2) + 0.5 * _A[0] @ _B[0]},
            check_grad=("Input", *_XY),
        ),
    ),
)
with_gradient(
    "dot",
    doc="Out = the inner product of the vectors X and Y, or of each row of two matrices; its last axis is 1.",
    inputs=["X", "Y"],
    outputs=["Out"],
    infer=_infer_dot,
    kernel=dot,
    gradient=dot_grad,
    reads=["X", "Y", "Out@GRAD"],
    writes=_GRADS,
    cases=(
        Case({"X": np.array([1.0, 2.0]), "Y": np.array([3.0, 4.0])}, {}, {"Out": np.array([11.0])}, check_grad=_XY),
        Case({"X": _A[0], "Y": _A[1]}, check_grad=_XY),
    ),
)
with_gradient(
    "kron",
    doc="Out = every element of X times the whole of Y (the Kronecker product).",
    inputs=["X", "Y"],
    outputs=["Out"],
    infer=_infer_kron,
    kernel=kron,
    gradient=kron_grad,
    reads=["X", "Y", "Out@GRAD"],
    writes=_GRADS,
    cases=(
        Case({"X": _A[0], "Y": _B[0]}, {}, {"Out": np.kron(_A[0], _B[0])}, check_grad=_XY),
        Case({"X": _A, "Y": _B[0]}, check_grad=_XY),
    ),
)
with_gradient(
    "cross",
    doc="Out = the cross products of the vectors along axis `dim` of size 3; 9: the first axis of that size.",
    inputs=["X", "Y"],
    outputs=["Out"],
    attrs={"dim": int_attr(9)},
    infer=_infer_cross,
    kernel=cross,
    gradient=cross_grad,
    reads=["X", "Y", "Out@GRAD"],
    writes=_GRADS,
    cases=(
        Case({"X": np.eye(3)[:1], "Y": np.eye(3)[1:2]}, {}, {"Out": np.eye(3)[2:]}, check_grad=_XY),
        Case({"X": _B, "Y": varied(2, 3, 2, start=70)}, {"dim": 1}, check_grad=_XY),
    ),
)
with_gradient(
    "bilinear_tensor_product",
    doc="Out[n, k] = X[n] @ Weight[k] @ Y[n] + Bias[k].",
    inputs=["X", "Y", "Weight", "Bias?"],
    outputs=["Out"],
    infer=_infer_bilinear,
    kernel=bilinear_tensor_product,
    gradient=bilinear_tensor_product_grad,
    reads=["X", "Y", "Weight", "Out@GRAD"],
    writes=[*_GRADS, "Weight@GRAD", "Bias@GRAD"],
    cases=(
        Case(
            {"X": _A[0], "Y": _B[1][:2], "Weight": varied(2, 3, 2, start=50), "Bias": np.array([[1.0, 2.0]])},
            check_grad=("X", "Y", "Weight", "Bias"),
        ),
    ),
)
with_gradient(
    "trace",
    doc="Out = the sum of the diagonal of each plane of axes `dim1` and `dim2`, `offset` cells right of the main one.",
    inputs=["Input"],
    outputs=["Out"],
    attrs={"offset": int_attr(0), "dim1": int_attr(-2), "dim2": int_attr(-1)},
    infer=_infer_trace,
    kernel=trace,
    gradient=trace_grad,
    reads=["Input", "Out@GRAD"],
    writes=["Input@GRAD"],
    cases=(
        Case({"Input": np.array([[1.0, 2.0], [3.0, 4.0]])}, {}, {"Out": np.array([5.0])}, check_grad=("Input",)),
        Case({"Input": varied(2, 3, 4)}, {"offset": 1, "dim1": 0, "dim2": 2}, check_grad=("Input",)),
        Case({"Input": varied(3, 3)}, {"offset": -1}, check_grad=("Input",)),
    ),
)
with_gradient(
    "dist",
    doc="Out (1,) = the `p`-norm of X - Y.",
    inputs=["X", "Y"],
    outputs=["Out"],
    attrs={"p": float_attr(2.0)},
    infer=_infer_dist,
    kernel=dist,
    gradient=dist_grad,
    reads=["X", "Y", "Out", "Out@GRAD"],
    writes=_GRADS,
    cases=(
        Case({"X": np.array([3.0, 0.0]), "Y": np.array([0.0, 4.0])}, {}, {"Out": np.array([5.0])}, check_grad=_XY),
        Case({"X": _A, "Y": _A[:1] / 2}, {"p": 3.0}, check_grad=_XY),
        Case({"X": _A, "Y": _B.reshape(2, 2, 3)}, {"p": float("inf")}, check_grad=_XY),
        Case({"X": _A, "Y": _B.reshape(2, 2, 3)}, {"p": 0.0}, {"Out": np.array([12.0])}),
    ),
)
