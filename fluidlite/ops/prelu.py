"""A rectifier with trained slopes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward, numel
from fluidlite.ops.registry import Case, register, string_attr

_ATTRS = {"mode": string_attr("all", "one slope for `all` elements, one per `channel` (axis 1), or one per `element`")}


def _slope_shape(shape: tuple[int, ...], mode: str) -> tuple[int, ...]:
    """The shape in which Alpha broadcasts against X."""
    if mode == "all":
        return (1,) * len(shape)
    if mode == "channel":
        return (1, *shape[1:2], *(1 for _ in shape[2:]))
    if mode == "element":
        return (1, *shape[1:])
    raise ProgramError(f"mode must be all, channel or element, not {mode!r}")


def _infer(ctx: InferContext) -> None:
    x = ctx.input("X")
    wanted, given = numel(_slope_shape(ctx.shape("X"), ctx.attr("mode"))), numel(ctx.shape("Alpha"))
    if wanted >= 0 and given >= 0 and wanted != given:
        raise ctx.error(f"mode {ctx.attr('mode')!r} needs {wanted} slopes for X {x.shape}, Alpha has {given}")
    ctx.set("Out", x.shape, x.dtype, lod_level=x.lod_level)


def prelu(ctx: KernelContext, X: Array, Alpha: Array, *, mode: str) -> Array:
    return np.where(X > 0, X, Alpha.reshape(_slope_shape(X.shape, mode)) * X)


def prelu_grad(ctx: KernelContext, X: Array, Alpha: Array, Out_GRAD: Array, *, mode: str) -> dict[str, Any]:
    shape = _slope_shape(X.shape, mode)
    result = {}
    if ctx.wants("X@GRAD"):
        result["X@GRAD"] = np.where(X > 0, Out_GRAD, Alpha.reshape(shape) * Out_GRAD)
    if ctx.wants("Alpha@GRAD"):
        shared = tuple(axis for axis, size in enumerate(shape) if size == 1)
        result["Alpha@GRAD"] = np.where(X > 0, 0, Out_GRAD * X).sum(axis=shared).reshape(Alpha.shape)
    return result


_X = np.array([[[-4.0, 3.0], [-2.0, -1.0]]])

register(
    "prelu",
    doc="Out = X where it is positive, else Alpha * X.",
    inputs=["X", "Alpha"],
    outputs=["Out"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=prelu,
    grad=maker(["X", "Alpha", "Out@GRAD"], ["X@GRAD", "Alpha@GRAD"]),
    share_lod="X",
    cases=(
        Case(
            {"X": _X, "Alpha": np.array([0.5])},
            {},
            {"Out": np.array([[[-2.0, 3.0], [-1.0, -0.5]]])},
            check_grad=("X", "Alpha"),
        ),
        Case(
            {"X": _X, "Alpha": np.array([[[0.5], [2.0]]])},
            {"mode": "channel"},
            {"Out": np.array([[[-2.0, 3.0], [-4.0, -2.0]]])},
            check_grad=("X", "Alpha"),
        ),
        Case(
            {"X": _X, "Alpha": np.array([[[0.5, 1.0], [2.0, 3.0]]])},
            {"mode": "element"},
            {"Out": np.array([[[-2.0, 3.0], [-4.0, -3.0]]])},
            check_grad=("X", "Alpha"),
        ),
    ),
)
register(
    "prelu_grad",
    doc="Gradient of prelu.",
    inputs=["X", "Alpha", "Out@GRAD"],
    outputs=["X@GRAD", "Alpha@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=prelu_grad,
    share_lod="X",
)
