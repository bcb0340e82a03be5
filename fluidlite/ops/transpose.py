"""Permuted axes: transpose, transpose2 (which gives XShape, see `reshape`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import REQUIRED, Case, ints_attr, register, string_attr
from fluidlite.ops.shapes import infer_restored, set_like, set_xshape, xshape

_ATTRS: Final = {
    "axis": ints_attr(REQUIRED, "axis i of Out is axis axis[i] of X"),
    "data_format": string_attr("AnyLayout"),
}


def transpose(ctx: KernelContext, X: Array, *, axis: tuple[int, ...]) -> Array:
    return np.transpose(X, axis)


def transpose2(ctx: KernelContext, X: Array, *, axis: tuple[int, ...]) -> dict[str, Array]:
    return {"Out": np.transpose(X, axis), "XShape": xshape(X)}


def transpose_grad(ctx: KernelContext, Out_GRAD: Array, *, axis: tuple[int, ...]) -> Array:
    return np.transpose(Out_GRAD, _inverse(axis))


def _inverse(axis: Sequence[int]) -> list[int]:
    return [int(i) for i in np.argsort(np.array(axis) % max(len(axis), 1))]


def _infer(ctx: InferContext) -> None:
    shape, axis = ctx.shape("X"), ctx.attr("axis")
    rank = len(shape)
    if len(axis) != rank or {i % max(rank, 1) for i in axis if -rank <= i < rank} != set(range(rank)):
        raise ctx.error(f"axis {list(axis)} is no permutation of the axes of X {list(shape)}")
    set_xshape(ctx)  # first: Out may be X itself
    set_like(ctx, "Out", tuple(shape[i] for i in axis), "X")


_X = np.arange(6.0).reshape(1, 2, 3)
_CASES = (
    Case({"X": _X}, {"axis": [2, 0, 1]}, {"Out": np.transpose(_X, (2, 0, 1))}, check_grad=("X",)),
    Case({"X": _X[0]}, {"axis": [1, 0]}, {"Out": _X[0].T}, check_grad=("X",)),
    Case({"X": np.zeros((0, 3))}, {"axis": [1, 0]}, {"Out": np.zeros((3, 0))}, note="an empty batch"),
)

register(
    "transpose",
    doc="Out = X with its axes in another order.",
    inputs=["X"],
    outputs=["Out"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=transpose,
    grad=maker(["X", "Out", "Out@GRAD"], ["X@GRAD"]),
    cases=_CASES,
)
register(
    "transpose_grad",
    doc="Gradient of transpose.",
    inputs=["X", "Out", "Out@GRAD"],
    outputs=["X@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=transpose_grad,
)
register(
    "transpose2",
    doc="Out = X with its axes in another order.",
    inputs=["X"],
    outputs=["Out", "XShape~"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=transpose2,
    grad=maker(["XShape", "Out@GRAD"], ["X@GRAD"]),
    cases=_CASES,
)
register(
    "transpose2_grad",
    doc="Gradient of transpose2.",
    inputs=["XShape", "Out@GRAD"],
    outputs=["X@GRAD"],
    attrs=_ATTRS,
    infer=infer_restored,
    kernel=transpose_grad,
)
