"""Constants around an array (pad), and axes the other way round (reverse)."""

from __future__ import annotations

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker, without_role
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import REQUIRED, Case, float_attr, ints_attr, register
from fluidlite.ops.shapes import axis_in, set_like

_PAD_ATTRS = {
    "paddings": ints_attr(REQUIRED, "elements before and after, per axis"),
    "pad_value": float_attr(0.0),
}


def _widths(paddings: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(paddings[::2], paddings[1::2], strict=True))


def pad(ctx: KernelContext, X: Array, *, paddings: tuple[int, ...], pad_value: float) -> Array:
    return np.pad(X, _widths(paddings), constant_values=np.asarray(pad_value).astype(X.dtype))


def pad_grad(ctx: KernelContext, Out_GRAD: Array, *, paddings: tuple[int, ...]) -> Array:
    ends = zip(_widths(paddings), Out_GRAD.shape, strict=True)
    return Out_GRAD[tuple(slice(before, size - after) for (before, after), size in ends)]


def _infer_pad(ctx: InferContext) -> None:
    shape, paddings = ctx.shape("X"), ctx.attr("paddings")
    if len(paddings) != 2 * len(shape) or any(width < 0 for width in paddings):
        raise ctx.error(f"X {list(shape)} needs {2 * len(shape)} paddings of 0 or more, not {list(paddings)}")
    padded = (size if size < 0 else size + sum(pair) for size, pair in zip(shape, _widths(paddings), strict=True))
    set_like(ctx, "Out", tuple(padded), "X")


def reverse(ctx: KernelContext, X: Array, *, axis: tuple[int, ...]) -> Array:
    return np.flip(X, axis)


def _infer_reverse(ctx: InferContext) -> None:
    try:
        for axis in ctx.attr("axis"):
            axis_in(len(ctx.shape("X")), axis)
    except ShapeError as error:
        raise ctx.error(str(error)) from None
    set_like(ctx, "Out", ctx.shape("X"), "X")


def _reverse_grad(op: Operator) -> list[Operator]:
    return [
        Operator(
            "reverse",
            {"X": [names.grad(op.outputs["Out"][0])]},
            {"Out": [names.grad(op.inputs["X"][0])]},
            without_role(op),
            op.origin,
        )
    ]


_X = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])

register(
    "pad",
    doc="Out = X with paddings[2i] elements before and paddings[2i + 1] after it along axis i.",
    inputs=["X"],
    outputs=["Out"],
    attrs=_PAD_ATTRS,
    infer=_infer_pad,
    kernel=pad,
    share_lod="X",
    grad=maker(["Out@GRAD"], ["X@GRAD"]),
    cases=(
        Case(
            {"X": _X},
            {"paddings": [1, 0, 0, 2], "pad_value": 0.5},
            {"Out": np.array([[0.5] * 5, [1.0, 2.0, 3.0, 0.5, 0.5], [4.0, 5.0, 6.0, 0.5, 0.5]])},
            check_grad=("X",),
        ),
    ),
)
register(
    "pad_grad",
    doc="Gradient of pad.",
    inputs=["Out@GRAD"],
    outputs=["X@GRAD"],
    attrs=_PAD_ATTRS,
    infer=grads_like_forward,
    kernel=pad_grad,
)
register(
    "reverse",
    doc="Out = X with the elements along each of `axis` in reverse order.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"axis": ints_attr(REQUIRED)},
    infer=_infer_reverse,
    kernel=reverse,
    grad=_reverse_grad,
    cases=(Case({"X": _X}, {"axis": [0, -1]}, {"Out": _X[::-1, ::-1]}, check_grad=("X",)),),
)
