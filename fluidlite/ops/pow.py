"""A power with one exponent for all elements."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import grads_like_forward, like
from fluidlite.ops.registry import Case, float_attr, register

_ATTRS = {"factor": float_attr(1.0, "the exponent, unless FactorTensor gives it")}


def pow_(ctx: KernelContext, X: Array, FactorTensor: Array | None, *, factor: float) -> Array:
    return np.power(X, _exponent(X, FactorTensor, factor))


def pow_grad(ctx: KernelContext, X: Array, FactorTensor: Array | None, Out_GRAD: Array, *, factor: float) -> Array:
    exponent = _exponent(X, FactorTensor, factor)
    return np.asarray(Out_GRAD * exponent * np.power(X, exponent - 1))


def _exponent(x: Array, tensor: Array | None, factor: float) -> Array:
    return np.asarray(factor if tensor is None else tensor.reshape(-1)[0]).astype(x.dtype)


_X = np.array([[4.0, 0.25], [1.0, 9.0]])

register(
    "pow",
    doc="Out = X to the power `factor`, elementwise; the exponent takes X's dtype.",
    inputs=["X", "FactorTensor?"],
    outputs=["Out"],
    attrs=_ATTRS,
    infer=like("X", "Out"),
    kernel=pow_,
    grad=maker(["X", "FactorTensor", "Out@GRAD"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case({"X": _X}, {"factor": 0.5}, {"Out": np.array([[2.0, 0.5], [1.0, 3.0]])}, check_grad=("X",)),
        Case({"X": _X, "FactorTensor": np.array([2.0])}, {}, {"Out": _X * _X}, check_grad=("X",)),
        Case({"X": np.array([3, -2])}, {"factor": 2.0}, {"Out": np.array([9, 4])}, note="integers stay integers"),
    ),
)
register(
    "pow_grad",
    doc="Gradient of pow.",
    inputs=["X", "FactorTensor?", "Out@GRAD"],
    outputs=["X@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=pow_grad,
    share_lod="X",
)
