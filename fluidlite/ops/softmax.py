"""Softmax along an axis."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import grads_like_forward
from fluidlite.ops.registry import Case, bool_attr, int_attr, register, string_attr
from fluidlite.ops.shapes import like_along

_ATTRS = {
    "axis": int_attr(-1, "the axis whose entries sum to 1"),
    "data_format": string_attr("AnyLayout"),
    "is_test": bool_attr(default=False),
}


#: Fluid limits the shifted logits to this before exp, so no entry is exactly 0 (and no logarithm of it infinite)
_LOWEST = -64.0


def stable_softmax(x: Array, axis: int) -> Array:
    """exp(x) / sum(exp(x)) along ``axis``, shifted by the maximum so that nothing overflows."""
    if x.size == 0:
        return x
    exponents = np.exp(np.maximum(x - x.max(axis=axis, keepdims=True), _LOWEST))
    out: Array = exponents / exponents.sum(axis=axis, keepdims=True)
    return out


def softmax(ctx: KernelContext, X: Array, *, axis: int) -> Array:
    return stable_softmax(X, axis)


def softmax_grad(ctx: KernelContext, Out: Array, Out_GRAD: Array, *, axis: int) -> Array:
    grad: Array = Out * (Out_GRAD - (Out_GRAD * Out).sum(axis=axis, keepdims=True))
    return grad


_LOGITS = np.array([[0.0, np.log(2.0), np.log(5.0)], [1.0, 1.0, 1.0]])

register(
    "softmax",
    doc="Out = exp(X) / sum of exp(X) along `axis`.",
    inputs=["X"],
    outputs=["Out"],
    attrs=_ATTRS,
    infer=like_along("X", "Out"),
    kernel=softmax,
    grad=maker(["Out", "Out@GRAD"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case({"X": _LOGITS}, {}, {"Out": np.array([[0.125, 0.25, 0.625], [1 / 3] * 3])}, check_grad=("X",)),
        Case({"X": _LOGITS.T}, {"axis": 0}, {"Out": np.array([[0.125, 0.25, 0.625], [1 / 3] * 3]).T}),
        Case({"X": np.zeros((0, 3))}, {}, {"Out": np.zeros((0, 3))}, note="an empty batch"),
    ),
)
register(
    "softmax_grad",
    doc="Gradient of softmax: Out * (Out@GRAD - sum of Out@GRAD * Out).",
    inputs=["Out", "Out@GRAD"],
    outputs=["X@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=softmax_grad,
    share_lod="Out",
)
