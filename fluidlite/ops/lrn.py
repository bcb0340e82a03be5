"""`lrn`: local response normalisation, every cell scaled down by the channels beside it (Krizhevsky et al. 2012)."""

from __future__ import annotations

from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward, like
from fluidlite.ops.registry import Case, bool_attr, float_attr, int_attr, register, string_attr
from fluidlite.ops.windows import Windows, channels_first, in_layout, split_shape, sums

_ATTRS: Final = {
    "n": int_attr(5, "channels of a window, an odd number"),
    "k": float_attr(2.0),
    "alpha": float_attr(1e-4),
    "beta": float_attr(0.75),
    "data_format": string_attr("AnyLayout", "NCHW (the same as AnyLayout) or NHWC"),
    "is_test": bool_attr(default=False),
}


def lrn(
    ctx: KernelContext, X: Array, *, n: int, k: float, alpha: float, beta: float, data_format: str
) -> dict[str, Array]:
    mid = k + alpha * _neighbours(X * X, n, data_format)
    return {"Out": X * mid**-beta, "MidOut": mid}


def lrn_grad(
    ctx: KernelContext,
    X: Array,
    Out: Array,
    MidOut: Array,
    Out_GRAD: Array,
    *,
    n: int,
    alpha: float,
    beta: float,
    data_format: str,
) -> Array:
    shared = _neighbours(Out_GRAD * Out / MidOut, n, data_format)
    return np.asarray(Out_GRAD * MidOut**-beta - 2 * alpha * beta * X * shared)


def _neighbours(cells: Array, n: int, data_format: str) -> Array:
    """The sum of each cell and of those of the n - 1 channels around its own."""
    images = channels_first(cells, data_format)
    windows = Windows(images.shape[1], n, before=n // 2, after=n // 2)
    lines = images.reshape(*images.shape[:2], images.shape[2] * images.shape[3])
    return in_layout(sums(windows, lines).reshape(images.shape), data_format)


def _infer(ctx: InferContext) -> None:
    if ctx.attr("n") < 1 or ctx.attr("n") % 2 == 0:
        raise ProgramError(f"op 'lrn': n must be odd and positive, not {ctx.attr('n')} ({ctx.op.origin})")
    try:
        split_shape(ctx.shape("X"), ctx.attr("data_format"))
    except ProgramError as error:
        raise ctx.located(error) from None
    like("X", "Out", "MidOut")(ctx)


_X = np.array([1.0, 2.0, 3.0, -1.0]).reshape(1, 4, 1, 1)
_PLAIN = {"n": 3, "k": 1.0, "alpha": 1.0, "beta": 0.5}
_MID = np.array([6.0, 15.0, 15.0, 11.0]).reshape(1, 4, 1, 1)

register(
    "lrn",
    doc="Out = X / MidOut ** beta with MidOut = k + alpha * the sum of X² over the n channels around each.",
    inputs=["X"],
    outputs=["Out", "MidOut"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=lrn,
    grad=maker(["MidOut", "Out", "Out@GRAD", "X"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case({"X": _X}, _PLAIN, {"Out": _X / np.sqrt(_MID), "MidOut": _MID}, check_grad=("X",)),
        Case(
            {"X": np.arange(16.0).reshape(2, 1, 2, 4) / 5},
            {**_PLAIN, "beta": 0.75, "data_format": "NHWC"},
            check_grad=("X",),
        ),
    ),
)
register(
    "lrn_grad",
    doc="Gradient of lrn.",
    inputs=["MidOut", "Out", "Out@GRAD", "X"],
    outputs=["X@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=lrn_grad,
    share_lod="X",
)
