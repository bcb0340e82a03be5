"""Reductions over some or all axes: reduce_sum, _mean, _max, _min, _prod, _all, _any, frobenius_norm, and `mean` of all.

A reduction of every axis gives shape (1,), or all ones with `keep_dim`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array, dtype_name, numpy_dtype
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, Kernel, bool_attr, int_attr, ints_attr, register
from fluidlite.values.lod import LoDTensor

_ATTRS: Final = {
    "dim": ints_attr((0,), "the axes that vanish; negative ones count from the end"),
    "keep_dim": bool_attr(default=False, doc="keep them with size 1"),
    "reduce_all": bool_attr(default=False, doc="reduce every axis, whatever `dim` says"),
    "in_dtype": int_attr(-1),
    "out_dtype": int_attr(-1, "dtype to convert X to first; -1: its own"),
}
Axes = tuple[int, ...]
#: (x, axes) -> the reduction with axes kept
Reduction = Callable[[Array, Axes], Array]
#: (x, out, out_grad, axes) -> X@GRAD; out and out_grad with axes kept (out is None unless the op needs it)
Derivative = Callable[[Array, Any, Array, Axes], Array]


@dataclass(frozen=True)
class Reduce:
    """One reduction; ``needs_out``: its gradient op takes Out."""

    name: str
    doc: str
    reduction: Reduction
    derivative: Derivative | None = None
    needs_out: bool = False
    prefix: str = "reduce_"

    @property
    def type(self) -> str:
        return f"{self.prefix}{self.name}"


def axes_of(rank: int, dim: Axes, reduce_all: bool) -> Axes:
    """The axes to reduce, ascending and not negative."""
    if reduce_all:
        return tuple(range(rank))
    for axis in dim:
        if not -rank <= axis < rank:
            raise ShapeError(f"axis {axis} of an input of rank {rank}")
    return tuple(sorted({axis % rank for axis in dim}))


def reduced_shape(shape: tuple[int, ...], axes: Axes, keep_dim: bool) -> tuple[int, ...]:
    """Shape of the result."""
    if keep_dim:
        return tuple(1 if i in axes else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in axes) or (1,)


def _sum(x: Array, axes: Axes) -> Array:
    return np.asarray(x.sum(axis=axes, keepdims=True, dtype=x.dtype))


def _mean(x: Array, axes: Axes) -> Array:
    count = np.asarray(math.prod(x.shape[axis] for axis in axes)).astype(x.dtype)
    total = _sum(x, axes)
    if x.dtype.kind == "f":
        return np.asarray(total / count)
    return np.asarray(np.trunc(total / count)).astype(x.dtype)


def _max(x: Array, axes: Axes) -> Array:
    return np.asarray(x.max(axis=axes, keepdims=True))


def _min(x: Array, axes: Axes) -> Array:
    return np.asarray(x.min(axis=axes, keepdims=True))


def _prod(x: Array, axes: Axes) -> Array:
    return np.asarray(x.prod(axis=axes, keepdims=True, dtype=x.dtype))


def _mean_grad(x: Array, _out: Any, out_grad: Array, axes: Axes) -> Array:
    count = np.asarray(math.prod(x.shape[axis] for axis in axes)).astype(x.dtype)
    return _spread(out_grad / count, x.shape)


def _prod_grad(x: Array, _out: Any, out_grad: Array, axes: Axes) -> Array:
    """Each element's gradient is the product of the others; a division by it would fail at zeros."""
    zero = x == 0
    zeros = zero.sum(axis=axes, keepdims=True)
    nonzero = np.where(zero, 1, x)
    others = _prod(nonzero, axes)
    return np.asarray(np.where(zero, zeros == 1, zeros == 0) * (out_grad * others / nonzero))


def _length(x: Array, axes: Axes) -> Array:
    return np.asarray(np.sqrt(_sum(x * x, axes))).astype(x.dtype)


def _length_grad(x: Array, out: Array, out_grad: Array, _axes: Axes) -> Array:
    return np.asarray(out_grad * x / np.where(out == 0, 1, out))


def _spread(values: Array, shape: tuple[int, ...]) -> Array:
    """``values``, whose reduced axes have size 1, repeated along them."""
    return np.broadcast_to(values, shape).copy()


REDUCTIONS: Final = (
    Reduce("sum", "sum", _sum, lambda x, _out, out_grad, _axes: _spread(out_grad, x.shape)),
    Reduce("mean", "mean (truncated for integers)", _mean, _mean_grad),
    Reduce("max", "largest element", _max, lambda x, out, out_grad, _axes: out_grad * (x == out), needs_out=True),
    Reduce("min", "smallest element", _min, lambda x, out, out_grad, _axes: out_grad * (x == out), needs_out=True),
    Reduce("prod", "product", _prod, _prod_grad, needs_out=True),
    Reduce("frobenius_norm", "root of the sum of squares", _length, _length_grad, needs_out=True, prefix=""),
    Reduce("all", "conjunction of bools", lambda x, axes: np.asarray(x.all(axis=axes, keepdims=True))),
    Reduce("any", "disjunction of bools", lambda x, axes: np.asarray(x.any(axis=axes, keepdims=True))),
)


def _kernel(reduction: Reduction) -> Kernel:
    def forward(
        ctx: KernelContext, X: Array | LoDTensor, *, dim: Axes, keep_dim: bool, reduce_all: bool, out_dtype: int
    ) -> Array | LoDTensor:
        given, lod = (X.array, X.lod) if isinstance(X, LoDTensor) else (X, ())
        axes = axes_of(given.ndim, dim, reduce_all)
        x = given if out_dtype < 0 else given.astype(numpy_dtype(out_dtype), copy=False)
        reduced = reduction(x, axes).reshape(reduced_shape(given.shape, axes, keep_dim))
        return LoDTensor(reduced, lod) if lod and 0 not in axes else reduced

    return forward


def _grad_kernel(derivative: Derivative, needs_out: bool) -> Kernel:
    def backward(
        ctx: KernelContext, X: Array, Out_GRAD: Array, *, dim: Axes, reduce_all: bool, Out: Array | None = None
    ) -> Array:
        axes = axes_of(X.ndim, dim, reduce_all)
        kept = reduced_shape(X.shape, axes, keep_dim=True)
        out = None if Out is None else Out.reshape(kept)
        return derivative(X, out, Out_GRAD.reshape(kept).astype(X.dtype, copy=False), axes)

    def backward_without_out(ctx: KernelContext, X: Array, Out_GRAD: Array, *, dim: Axes, reduce_all: bool) -> Array:
        return backward(ctx, X, Out_GRAD, dim=dim, reduce_all=reduce_all)

    return backward if needs_out else backward_without_out


def _infer(ctx: InferContext) -> None:
    x = ctx.input("X")
    shape = ctx.shape("X")
    try:
        axes = axes_of(len(shape), ctx.attr("dim"), ctx.attr("reduce_all"))
    except ShapeError as error:
        raise ctx.error(str(error)) from None
    out_dtype = ctx.attr("out_dtype")
    dtype = x.dtype if out_dtype < 0 else dtype_name(out_dtype)
    ctx.set("Out", reduced_shape(shape, axes, ctx.attr("keep_dim")), dtype, lod_level=0 if 0 in axes else x.lod_level)


_X: Final = np.array([[[1.5, -2.0], [0.5, 4.0]], [[-1.0, 2.5], [3.0, 0.75]], [[2.25, 1.25], [-0.5, 5.0]]])
_B: Final = np.array([[True, False], [True, True]])


def _cases(spec: Reduce) -> tuple[Case, ...]:
    if spec.derivative is None:
        return tuple(
            Case({"X": _B}, {"dim": axes}, {"Out": spec.reduction(_B, axes).reshape(shape)})
            for axes, shape in (((0,), (2,)), ((1,), (2,)), ((0, 1), (1,)))
        )
    square = np.array([[1.0, 2.0], [4.0, 3.0]])
    rows, columns = (spec.reduction(square, (axis,)).reshape(2) for axis in (1, 0))
    every = (0, 1, 2)
    return (
        Case({"X": _X}, {"dim": [1]}, {"Out": spec.reduction(_X, (1,))[:, 0]}, check_grad=("X",)),
        Case({"X": _X}, {"dim": [-1, 0], "keep_dim": True}, {"Out": spec.reduction(_X, (0, 2))}, check_grad=("X",)),
        Case({"X": _X}, {"dim": every}, {"Out": spec.reduction(_X, every).reshape(1)}, check_grad=("X",)),
        Case({"X": _X}, {"reduce_all": True, "keep_dim": True}, {"Out": spec.reduction(_X, every)}, check_grad=("X",)),
        Case({"X": np.zeros((0, 3))}, {"dim": [1]}, {"Out": np.zeros(0)}, note="an empty batch"),
        Case({"X": LoDTensor(square, _ONE_EACH)}, {"dim": [1]}, {"Out": LoDTensor(rows, _ONE_EACH)}),
        Case({"X": LoDTensor(square, _ONE_EACH)}, {"dim": [0]}, {"Out": columns}, note="the rows are gone"),
        Case({"X": np.array([[7, -2], [0, 1]])}, {"dim": [1]}, {"Out": spec.reduction(_INTS, (1,))[:, 0]}),
    )


_INTS: Final = np.array([[7, -2], [0, 1]])
_ONE_EACH: Final = ((0, 1, 2),)


def _register(spec: Reduce) -> None:
    derivative, needed = spec.derivative, ["Out"] if spec.needs_out else []
    register(
        spec.type,
        doc=f"Out = the {spec.doc} of X over the axes `dim`.",
        inputs=["X"],
        outputs=["Out"],
        attrs=_ATTRS,
        infer=_infer,
        kernel=_kernel(spec.reduction),
        takes_lod=True,
        grad=maker(["X", *needed, "Out@GRAD"], ["X@GRAD"]) if derivative is not None else None,
        cases=_cases(spec),
    )
    if derivative is not None:
        register(
            f"{spec.type}_grad",
            doc=f"Gradient of {spec.type}.",
            inputs=["X", *needed, "Out@GRAD"],
            outputs=["X@GRAD"],
            attrs=_ATTRS,
            infer=grads_like_forward,
            kernel=_grad_kernel(derivative, spec.needs_out),
            share_lod="X",
        )


for _spec in REDUCTIONS:
    _register(_spec)


def mean(ctx: KernelContext, X: Array) -> Array:
    if X.dtype.kind != "f":
        return _mean(X, tuple(range(X.ndim))).reshape(1)
    total: Array = np.add.reduce(X.reshape(-1), keepdims=True)
    total /= X.size
    return total


def mean_grad(ctx: KernelContext, X: Array, Out_GRAD: Array) -> Array:
    return np.full_like(X, Out_GRAD.reshape(-1)[0] / max(X.size, 1))


def _infer_mean(ctx: InferContext) -> None:
    ctx.set("Out", (1,), ctx.input("X").dtype, lod_level=0)


register(
    "mean",
    doc="Out (1,) = the mean of all elements of X; NaN of none.",
    inputs=["X"],
    outputs=["Out"],
    infer=_infer_mean,
    kernel=mean,
    grad=maker(["X", "Out@GRAD"], ["X@GRAD"], attrs=False),
    cases=(
        Case({"X": _X}, {}, {"Out": np.array([_X.sum() / 12])}, check_grad=("X",)),
        Case({"X": np.zeros((0, 1))}, {}, {"Out": np.array([np.nan])}, note="an empty batch"),
    ),
)
register(
    "mean_grad",
    doc="Gradient of mean: Out@GRAD / the number of elements, everywhere.",
    inputs=["X", "Out@GRAD"],
    outputs=["X@GRAD"],
    infer=grads_like_forward,
    kernel=mean_grad,
    share_lod="X",
)
