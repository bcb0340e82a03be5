"""Limits to values (`clip`) and to the norm of a whole tensor (`clip_by_norm`)."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.ids import argument
from fluidlite.ops.infer import InferContext, grads_like_forward, like
from fluidlite.ops.registry import Case, Overwrite, float_attr, register
from fluidlite.ops.rows import over_rows
from fluidlite.values.selected_rows import SelectedRows

_LIMITS = {
    "min": float_attr(doc="lower limit, unless Min gives it"),
    "max": float_attr(doc="upper limit, unless Max gives it"),
}


def _limits(x: Array, low: Array | None, high: Array | None, min: float, max: float) -> tuple[Array, Array]:
    """Both limits in the dtype of ``x``."""
    return (
        np.asarray(min if low is None else low.reshape(-1)[0]).astype(x.dtype),
        np.asarray(max if high is None else high.reshape(-1)[0]).astype(x.dtype),
    )


def clip(ctx: KernelContext, X: Array, Min: Array | None, Max: Array | None, *, min: float, max: float) -> Array:
    low, high = _limits(X, Min, Max, min, max)
    _check_limits(argument(ctx, "X"), float(low), float(high))
    return np.asarray(np.clip(X, low, high))


def clip_over(ctx: KernelContext, X: Array, Min: Array | None, Max: Array | None, *, min: float, max: float) -> Array:
    low, high = _limits(X, Min, Max, min, max)
    _check_limits(argument(ctx, "X"), float(low), float(high))
    return np.clip(X, low, high, out=X)


def clip_grad(
    ctx: KernelContext, X: Array, Min: Array | None, Max: Array | None, Out_GRAD: Array, *, min: float, max: float
) -> Array:
    low, high = _limits(X, Min, Max, min, max)
    return Out_GRAD * ((low < X) & (high > X))


def clip_by_norm(ctx: KernelContext, X: Array, *, max_norm: float) -> Array:
    norm = np.sqrt(np.sum(X * X, dtype=X.dtype))
    return X * np.asarray(max_norm / norm).astype(X.dtype) if norm > max_norm else X.copy()


def _check_limits(name: str, low: float, high: float) -> None:
    if low > high:
        raise ProgramError(f"clip of {name!r} to an empty range: min {low} is above max {high}")


def _infer_clip(ctx: InferContext) -> None:
    if ctx.maybe_input("Min") is None and ctx.maybe_input("Max") is None:
        try:
            _check_limits(ctx.input("X").name, ctx.attr("min"), ctx.attr("max"))
        except ProgramError as error:
            raise ctx.located(error) from None
    like("X", "Out")(ctx)


_X = np.array([[-3.0, 0.5], [2.0, 8.0]])
_ROWS = SelectedRows(np.array([3, 3, 1]), np.array([[3.0], [1.0], [-4.0]]), 6)

register(
    "clip",
    doc="Out = X limited to min and max, elementwise; SelectedRows after their duplicate rows are summed.",
    inputs=["X", "Min?", "Max?"],
    outputs=["Out"],
    attrs=_LIMITS,
    infer=_infer_clip,
    kernel=over_rows(clip, merge=True),
    overwrites=(Overwrite("X", clip_over),),
    grad=maker(["X", "Min", "Max", "Out@GRAD"], ["X@GRAD"]),
    share_lod="X",
    sparse=("X",),
    cases=(
        Case({"X": _X}, {"min": -1.0, "max": 3.0}, {"Out": np.array([[-1.0, 0.5], [2.0, 3.0]])}, check_grad=("X",)),
        Case(
            {"X": _X, "Min": np.array([0.0]), "Max": np.array([1.0])},
            {"min": -9.0, "max": 9.0},
            {"Out": np.array([[0.0, 0.5], [1.0, 1.0]])},
            check_grad=("X",),
        ),
        Case(
            {"X": _ROWS},
            {"min": -3.5, "max": 3.5},
            {"Out": SelectedRows(np.array([1, 3]), np.array([[-3.5], [3.5]]), 6)},
        ),
    ),
)
register(
    "clip_grad",
    doc="Gradient of clip: Out@GRAD strictly inside the limits, else 0.",
    inputs=["X", "Min?", "Max?", "Out@GRAD"],
    outputs=["X@GRAD"],
    attrs=_LIMITS,
    infer=grads_like_forward,
    kernel=clip_grad,
    share_lod="X",
)
register(
    "clip_by_norm",
    doc=(
        "Out = X scaled down to an L2 norm of max_norm when its own is larger; SelectedRows after their duplicate "
        "rows are summed. A zero tensor stays zero."
    ),
    inputs=["X"],
    outputs=["Out"],
    attrs={"max_norm": float_attr()},
    infer=like("X", "Out"),
    kernel=over_rows(clip_by_norm, merge=True),
    share_lod="X",
    sparse=("X",),
    cases=(
        Case({"X": np.array([3.0, 4.0])}, {"max_norm": 1.0}, {"Out": np.array([0.6, 0.8])}),
        Case({"X": np.array([3.0, 4.0])}, {"max_norm": 6.0}, {"Out": np.array([3.0, 4.0])}),
        Case({"X": np.array([0.0, 0.0])}, {"max_norm": 1.0}, {"Out": np.array([0.0, 0.0])}),
        Case(
            {"X": SelectedRows(np.array([3, 3, 1]), np.array([[3.0], [0.0], [4.0]]), 6)},
            {"max_norm": 1.0},
            {"Out": SelectedRows(np.array([1, 3]), np.array([[0.8], [0.6]]), 6)},
        ),
    ),
)
