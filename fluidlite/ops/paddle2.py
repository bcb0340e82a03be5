"""Ops that programs saved by Paddle 2 hold and Fluid does not have: matmul_v2, flatten_contiguous_range, expand_v2,
expand_as_v2, tile, top_k_v2, log_softmax, logsumexp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.algebra import summed_to
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.pairs import with_gradient
from fluidlite.ops.reduce import axes_of, reduced_shape
from fluidlite.ops.registry import Case, bool_attr, int_attr, ints_attr
from fluidlite.ops.search import ordered
from fluidlite.ops.shapes import Shape, axis_in, declared, given, restored, scalar, set_xshape, xshape


def matmul_v2(ctx: KernelContext, X: Array, Y: Array, *, trans_x: bool, trans_y: bool) -> Array:
    return np.atleast_1d(_turned(X, trans_x) @ _turned(Y, trans_y))


def _turned(x: Array, transposed: bool) -> Array:
    return x.swapaxes(-1, -2) if transposed and x.ndim > 1 else x


def matmul_v2_grad(
    ctx: KernelContext, X: Array, Y: Array, Out_GRAD: Array, *, trans_x: bool, trans_y: bool
) -> dict[str, Array]:
    x = X[None, :] if X.ndim == 1 else _turned(X, trans_x)
    y = Y[:, None] if Y.ndim == 1 else _turned(Y, trans_y)
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    upstream = Out_GRAD.reshape(*batch, x.shape[-2], y.shape[-1])
    x_grad = summed_to(upstream @ y.swapaxes(-1, -2), x.shape)
    y_grad = summed_to(x.swapaxes(-1, -2) @ upstream, y.shape)
    return {
        "X@GRAD": _turned(x_grad, trans_x and X.ndim > 1).reshape(X.shape),
        "Y@GRAD": _turned(y_grad, trans_y and Y.ndim > 1).reshape(Y.shape),
    }


def _infer_matmul(ctx: InferContext) -> None:
    x, y = ctx.shape("X"), ctx.shape("Y")
    rows = x[-2:] if len(x) > 1 else (1, *x)
    columns = y[-2:] if len(y) > 1 else (*y, 1)
    rows = rows[::-1] if ctx.attr("trans_x") and len(x) > 1 else rows
    columns = columns[::-1] if ctx.attr("trans_y") and len(y) > 1 else columns
    if rows[1] != columns[0] and min(rows[1], columns[0]) >= 0:
        raise ctx.error(f"X {list(x)} has {rows[1]} columns but Y {list(y)} has {columns[0]} rows")
    try:
        batch = _broadcast(x[:-2], y[:-2])
    except ShapeError as error:
        raise ctx.located(error) from None
    out = batch + rows[:1] * (len(x) > 1) + columns[1:] * (len(y) > 1)
    ctx.set("Out", out or (1,), ctx.input("X").dtype, lod_level=ctx.input("X").lod_level)


def _broadcast(x: Shape, y: Shape) -> Shape:
    """The shape that two become together, -1 where not known; raises ShapeError."""
    rank = max(len(x), len(y))
    pairs = zip((1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y, strict=True)
    out = []
    for a, b in pairs:
        if a != b and 1 not in (a, b) and min(a, b) >= 0:
            raise ShapeError(f"shapes {list(x)} and {list(y)} cannot be broadcast together")
        out.append(b if a == 1 else a if b == 1 else max(a, b))
    return tuple(out)


def flatten_contiguous_range(ctx: KernelContext, X: Array, *, start_axis: int, stop_axis: int) -> dict[str, Array]:
    return {"Out": X.reshape(_flattened(X.shape, start_axis, stop_axis)), "XShape": xshape(X)}


def _flattened(shape: Shape, start: int, stop: int) -> Shape:
    """Axes from ``start`` to ``stop`` as one; raises ShapeError."""
    first, last = axis_in(len(shape), start), axis_in(len(shape), stop)
    if first > last:
        raise ShapeError(f"start_axis {start} comes after stop_axis {stop} of shape {list(shape)}")
    middle = shape[first : last + 1]
    return (*shape[:first], -1 if min(middle) < 0 else math.prod(middle), *shape[last + 1 :])


def _infer_flatten(ctx: InferContext) -> None:
    set_xshape(ctx)
    try:
        out = _flattened(ctx.shape("X"), ctx.attr("start_axis"), ctx.attr("stop_axis"))
    except ShapeError as error:
        raise ctx.located(error) from None
    ctx.set("Out", out, ctx.input("X").dtype)


def expand_v2(
    ctx: KernelContext, X: Array, Shape: Array | None, expand_shapes_tensor: list[Array], *, shape: tuple[int, ...]
) -> Array:
    return np.broadcast_to(X, _stretched(X.shape, given(Shape, expand_shapes_tensor, shape))).copy()


def expand_v2_grad(ctx: KernelContext, X: Array, Out_GRAD: Array) -> Array:
    return summed_to(Out_GRAD, X.shape)


def _stretched(shape: Shape, wanted: Sequence[int]) -> Shape:
    """The wanted shape, whose -1 keep a dimension; raises ShapeError."""
    extra = len(wanted) - len(shape)
    if extra < 0:
        raise ShapeError(f"{list(shape)} cannot be expanded to {list(wanted)}, which has fewer dimensions")
    own = (1,) * extra + tuple(shape)
    if any(want not in (-1, size) and size not in (-1, 1) for size, want in zip(own, wanted, strict=True)):
        raise ShapeError(f"{list(shape)} cannot be expanded to {list(wanted)}")
    return tuple(size if want == -1 else want for size, want in zip(own, wanted, strict=True))


def _infer_expand(ctx: InferContext) -> None:
    wanted = declared(ctx, "Shape", "expand_shapes_tensor", "shape")
    from_tensor = ctx.inputs("Shape") or ctx.inputs("expand_shapes_tensor")
    try:
        out = wanted if wanted is None or from_tensor else _stretched(ctx.shape("X"), wanted)
    except ShapeError as error:
        raise ctx.located(error) from None
    ctx.set("Out", out, ctx.input("X").dtype)


def expand_as_v2(ctx: KernelContext, X: Array, Y: Array | None, *, target_shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(X, _stretched(X.shape, target_shape if Y is None else Y.shape)).copy()


def _infer_expand_as(ctx: InferContext) -> None:
    if ctx.maybe_input("Y") is not None:
        ctx.set("Out", ctx.shape("Y"), ctx.input("X").dtype)
        return
    try:
        ctx.set("Out", _stretched(ctx.shape("X"), ctx.attr("target_shape")), ctx.input("X").dtype)
    except ShapeError as error:
        raise ctx.located(error) from None


def tile(
    ctx: KernelContext,
    X: Array,
    RepeatTimes: Array | None,
    repeat_times_tensor: list[Array],
    *,
    repeat_times: tuple[int, ...],
) -> Array:
    return np.tile(X, given(RepeatTimes, repeat_times_tensor, repeat_times))


def tile_grad(
    ctx: KernelContext,
    X: Array,
    RepeatTimes: Array | None,
    repeat_times_tensor: list[Array],
    Out_GRAD: Array,
    *,
    repeat_times: tuple[int, ...],
) -> Array:
    times = given(RepeatTimes, repeat_times_tensor, repeat_times)
    rank = max(X.ndim, len(times))
    own = (1,) * (rank - X.ndim) + X.shape
    times = (1,) * (rank - len(times)) + times
    parts = Out_GRAD.reshape([size for pair in zip(times, own, strict=True) for size in pair])
    return np.asarray(parts.sum(axis=tuple(range(0, 2 * rank, 2)), dtype=X.dtype)).reshape(X.shape)


def _infer_tile(ctx: InferContext) -> None:
    shape, times = ctx.shape("X"), declared(ctx, "RepeatTimes", "repeat_times_tensor", "repeat_times")
    if times is None:
        ctx.set("Out", None, ctx.input("X").dtype)
        return
    rank = max(len(shape), len(times))
    pairs = zip((1,) * (rank - len(shape)) + shape, (1,) * (rank - len(times)) + tuple(times), strict=True)
    ctx.set("Out", tuple(-1 if min(pair) < 0 else pair[0] * pair[1] for pair in pairs), ctx.input("X").dtype)


def top_k_v2(ctx: KernelContext, X: Array, K: Array | None, *, k: int, axis: int, largest: bool) -> dict[str, Array]:
    count, along = (k if K is None else scalar(K)), axis_in(X.ndim, axis)
    if not 1 <= count <= X.shape[along]:
        raise ShapeError(f"{count} elements of axis {axis} of X {list(X.shape)}")
    indices = np.take(ordered(X, along, descending=largest), np.arange(count), along)
    return {"Out": np.take_along_axis(X, indices, along), "Indices": indices}


def top_k_v2_grad(ctx: KernelContext, X: Array, Indices: Array, Out_GRAD: Array, *, axis: int) -> Array:
    grad = np.zeros_like(X)
    np.put_along_axis(grad, Indices, Out_GRAD, axis)
    return grad


def _infer_top_k(ctx: InferContext) -> None:
    shape, count = ctx.shape("X"), -1 if ctx.inputs("K") else ctx.attr("k")
    try:
        axis = axis_in(len(shape), ctx.attr("axis"))
    except ShapeError as error:
        raise ctx.located(error) from None
    out = (*shape[:axis], count, *shape[axis + 1 :])
    ctx.set("Out", out, ctx.input("X").dtype)
    ctx.set("Indices", out, "int64")


def log_softmax(ctx: KernelContext, X: Array, *, axis: int) -> Array:
    shifted = X - X.max(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


def log_softmax_grad(ctx: KernelContext, Out: Array, Out_GRAD: Array, *, axis: int) -> Array:
    return np.asarray(Out_GRAD - np.exp(Out) * Out_GRAD.sum(axis=axis, keepdims=True))


def logsumexp(ctx: KernelContext, X: Array, *, axis: tuple[int, ...], keepdim: bool, reduce_all: bool) -> Array:
    axes = axes_of(X.ndim, axis, reduce_all)
    top = X.max(axis=axes, keepdims=True)
    out = top + np.log(np.exp(X - top).sum(axis=axes, keepdims=True))
    return np.asarray(out).reshape(reduced_shape(X.shape, axes, keepdim))


def logsumexp_grad(
    ctx: KernelContext, X: Array, Out: Array, Out_GRAD: Array, *, axis: tuple[int, ...], reduce_all: bool
) -> Array:
    kept = reduced_shape(X.shape, axes_of(X.ndim, axis, reduce_all), keep_dim=True)
    return np.asarray(Out_GRAD.reshape(kept) * np.exp(X - Out.reshape(kept)))


def _infer_logsumexp(ctx: InferContext) -> None:
    shape = ctx.shape("X")
    try:
        axes = axes_of(len(shape), ctx.attr("axis"), ctx.attr("reduce_all"))
    except ShapeError as error:
        raise ctx.located(error) from None
    ctx.set("Out", reduced_shape(shape, axes, ctx.attr("keepdim")), ctx.input("X").dtype)


_X: Final = varied(2, 3)
_BATCH: Final = varied(2, 2, 3)

with_gradient(
    "matmul_v2",
    doc="Out = X @ Y, the last two dimensions of either swapped if asked for; the others are broadcast.",
    inputs=["X", "Y"],
    outputs=["Out"],
    attrs={"trans_x": bool_attr(default=False), "trans_y": bool_attr(default=False)},
    infer=_infer_matmul,
    kernel=matmul_v2,
    gradient=matmul_v2_grad,
    reads=["X", "Y", "Out@GRAD"],
    writes=["X@GRAD", "Y@GRAD"],
    share_lod="X",
    cases=(
        Case({"X": _X, "Y": _X.T}, {}, {"Out": _X @ _X.T}, check_grad=("X", "Y")),
        Case({"X": _X, "Y": _BATCH}, {"trans_y": True}, {"Out": _X @ _BATCH.swapaxes(1, 2)}, check_grad=("X", "Y")),
        Case({"X": _X[0], "Y": _X[1]}, {}, {"Out": (_X[0] @ _X[1]).reshape(1)}, check_grad=("X", "Y")),
        Case({"X": _BATCH, "Y": _X[:, 0]}, {"trans_x": True}, check_grad=("X", "Y")),
    ),
)
with_gradient(
    "flatten_contiguous_range",
    doc="Out = X with the axes from `start_axis` to `stop_axis` as one.",
    inputs=["X"],
    outputs=["Out", "XShape~"],
    attrs={"start_axis": int_attr(1), "stop_axis": int_attr(1)},
    infer=_infer_flatten,
    kernel=flatten_contiguous_range,
    gradient=restored,
    reads=["XShape", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case({"X": _BATCH}, {"start_axis": 1, "stop_axis": -1}, {"Out": _BATCH.reshape(2, 6)}, check_grad=("X",)),
        Case({"X": _BATCH}, {"start_axis": 0, "stop_axis": 1}, {"Out": _BATCH.reshape(4, 3)}, check_grad=("X",)),
    ),
)
with_gradient(
    "expand_v2",
    doc="Out = X repeated to `shape`; -1 keeps a dimension.",
    inputs=["X", "Shape?", "expand_shapes_tensor*?"],
    outputs=["Out"],
    attrs={"shape": ints_attr()},
    infer=_infer_expand,
    kernel=expand_v2,
    gradient=expand_v2_grad,
    reads=["X", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case(
            {"X": _X[:, :1]}, {"shape": [3, -1, 2]}, {"Out": np.broadcast_to(_X[:, :1], (3, 2, 2))}, check_grad=("X",)
        ),
        Case(
            {"X": _X[:1], "Shape": np.array([4, 3], np.int32)}, {}, {"Out": np.repeat(_X[:1], 4, 0)}, check_grad=("X",)
        ),
    ),
)
with_gradient(
    "expand_as_v2",
    doc="Out = X repeated to the shape of Y, or to `target_shape`.",
    inputs=["X", "Y?"],
    outputs=["Out"],
    attrs={"target_shape": ints_attr()},
    infer=_infer_expand_as,
    kernel=expand_as_v2,
    gradient=expand_v2_grad,
    reads=["X", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case({"X": _X[:1], "Y": np.zeros((2, 2, 3))}, {}, {"Out": np.tile(_X[:1], (2, 2, 1))}, check_grad=("X",)),
        Case({"X": _X[:1]}, {"target_shape": [4, 3]}, {"Out": np.repeat(_X[:1], 4, 0)}, check_grad=("X",)),
    ),
)
with_gradient(
    "tile",
    doc="Out = X repeated `repeat_times[i]` times along axis i, counted from the last.",
    inputs=["X", "RepeatTimes?", "repeat_times_tensor*?"],
    outputs=["Out"],
    attrs={"repeat_times": ints_attr()},
    infer=_infer_tile,
    kernel=tile,
    gradient=tile_grad,
    reads=["X", "RepeatTimes", "repeat_times_tensor", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case({"X": _X}, {"repeat_times": [2, 1, 2]}, {"Out": np.tile(_X, (2, 1, 2))}, check_grad=("X",)),
        Case({"X": _X}, {"repeat_times": [2]}, {"Out": np.tile(_X, 2)}, check_grad=("X",)),
    ),
)
with_gradient(
    "top_k_v2",
    doc="Out = the `k` largest (or smallest) elements along `axis`, in order; Indices = where they are.",
    inputs=["X", "K?"],
    outputs=["Out", "Indices"],
    attrs={
        "k": int_attr(1),
        "axis": int_attr(-1),
        "largest": bool_attr(default=True),
        "sorted": bool_attr(default=True, doc="they always are"),
    },
    infer=_infer_top_k,
    kernel=top_k_v2,
    gradient=top_k_v2_grad,
    reads=["X", "Indices", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case(
            {"X": np.array([[1.0, 3.0, 2.0]])},
            {"k": 2},
            {"Out": np.array([[3.0, 2.0]]), "Indices": np.array([[1, 2]])},
            check_grad=("X",),
        ),
        Case(
            {"X": _BATCH},
            {"k": 1, "axis": 1, "largest": False},
            {"Out": _BATCH.min(1, keepdims=True)},
            check_grad=("X",),
        ),
    ),
)
with_gradient(
    "log_softmax",
    doc="Out = the logarithm of the softmax of X along `axis`.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"axis": int_attr(-1)},
    infer=like("X", "Out"),
    kernel=log_softmax,
    gradient=log_softmax_grad,
    reads=["Out", "Out@GRAD"],
    writes=["X@GRAD"],
    share_lod="X",
    cases=(
        Case({"X": np.zeros((1, 4))}, {}, {"Out": np.full((1, 4), -math.log(4))}, check_grad=("X",)),
        Case({"X": _BATCH}, {"axis": 1}, check_grad=("X",)),
    ),
)
with_gradient(
    "logsumexp",
    doc="Out = log of the sum of e^X over the axes `axis`.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"axis": ints_attr((0,)), "keepdim": bool_attr(default=False), "reduce_all": bool_attr(default=False)},
    infer=_infer_logsumexp,
    kernel=logsumexp,
    gradient=logsumexp_grad,
    reads=["X", "Out", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case({"X": np.zeros((2, 4))}, {"axis": [1]}, {"Out": np.full(2, math.log(4))}, check_grad=("X",)),
        Case({"X": _BATCH}, {"reduce_all": True, "keepdim": True}, check_grad=("X",)),
    ),
)
