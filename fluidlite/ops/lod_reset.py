"""`lod_reset`: the same rows, other sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.ids import argument
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, bool_attr, ints_attr, register
from fluidlite.ops.segments import array_of, level
from fluidlite.values.lod import Lod, LoDTensor, check_lod

_ATTRS = {
    "target_lod": ints_attr(doc="offsets of the new level"),
    "append": bool_attr(default=False, doc="the new level becomes the finest one of X's LoD"),
}


def lod_reset(ctx: KernelContext, X: Any, Y: Any, *, target_lod: tuple[int, ...], append: bool) -> LoDTensor:
    rows = array_of(X)
    lod = _target(Y, target_lod)
    if append and isinstance(X, LoDTensor):
        lod = (*X.lod, *lod)
    check_lod(lod, len(rows), f"{argument(ctx, 'X')!r} in op {ctx.op.type!r}")
    return LoDTensor(rows, lod)


def _target(y: Any, target_lod: tuple[int, ...]) -> Lod:
    if isinstance(y, LoDTensor) and y.lod:
        return y.lod
    return (target_lod if y is None else level(array_of(y).reshape(-1)),)


def lod_reset_grad(ctx: KernelContext, Out_GRAD: Any) -> Array:
    return array_of(Out_GRAD)


def _infer(ctx: InferContext) -> None:
    x, y = ctx.input("X"), ctx.maybe_input("Y")
    if y is None and not ctx.attr("target_lod"):
        raise ProgramError(f"op {ctx.op.type!r} needs Y or target_lod ({ctx.op.origin})")
    added = max(y.lod_level if y is not None else 1, 1)
    ctx.set("Out", x.shape, x.dtype, lod_level=x.lod_level + added if ctx.attr("append") else added)


_X = np.array([[1.0], [2.0], [3.0]])

register(
    "lod_reset",
    doc="Out: the rows of X with the LoD of Y; where Y has none its values are the offsets; without Y `target_lod` is.",
    inputs=["X", "Y?"],
    outputs=["Out"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=lod_reset,
    grad=maker(["Out@GRAD", "X"], ["X@GRAD"]),
    takes_lod=True,
    cases=(
        Case(
            {"X": LoDTensor(_X, ((0, 3),))},
            {"target_lod": [0, 1, 3]},
            {"Out": LoDTensor(_X, ((0, 1, 3),))},
            check_grad=("X",),
        ),
        Case({"X": _X, "Y": np.array([0, 2, 3], np.int32)}, {}, {"Out": LoDTensor(_X, ((0, 2, 3),))}),
        Case({"X": _X, "Y": LoDTensor(_X, ((0, 0, 3),))}, {}, {"Out": LoDTensor(_X, ((0, 0, 3),))}),
        Case(
            {"X": LoDTensor(_X, ((0, 3),))},
            {"target_lod": [0, 1, 2, 3], "append": True},
            {"Out": LoDTensor(_X, ((0, 3), (0, 1, 2, 3)))},
        ),
    ),
)
register(
    "lod_reset_grad",
    doc="Gradient of lod_reset: Out@GRAD with the LoD of X.",
    inputs=["Out@GRAD", "X"],
    outputs=["X@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=lod_reset_grad,
    share_lod="X",
    takes_lod=True,
)
