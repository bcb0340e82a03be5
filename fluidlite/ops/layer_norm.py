"""`layer_norm`: every instance normalised over its own features (Ba, Kiros, Hinton 2016)."""

from __future__ import annotations

import math

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward, numel
from fluidlite.ops.registry import Case, float_attr, int_attr, register

_ATTRS = {
    "epsilon": float_attr(1e-5, "added to the variance; 0 to 0.001"),
    "begin_norm_axis": int_attr(1, "the dimensions from here on are the features"),
}


def layer_norm(
    ctx: KernelContext, X: Array, Scale: Array | None, Bias: Array | None, *, epsilon: float, begin_norm_axis: int
) -> dict[str, Array]:
    rows = _rows(X, begin_norm_axis)
    mean, variance = rows.mean(axis=1), rows.var(axis=1)
    out = _normalised(rows, mean, variance, epsilon)
    if Scale is not None:
        out = out * Scale.reshape(-1)
    if Bias is not None:
        out = out + Bias.reshape(-1)
    return {"Y": out.reshape(X.shape), "Mean": mean, "Variance": variance}


def layer_norm_grad(
    ctx: KernelContext,
    X: Array,
    Scale: Array | None,
    Mean: Array,
    Variance: Array,
    Y_GRAD: Array,
    *,
    epsilon: float,
    begin_norm_axis: int,
) -> dict[str, Array]:
    upstream = _rows(Y_GRAD, begin_norm_axis)
    normalised = _normalised(_rows(X, begin_norm_axis), Mean, Variance, epsilon)
    inner = upstream if Scale is None else upstream * Scale.reshape(-1)
    centred = inner - inner.mean(axis=1, keepdims=True)
    pull = normalised * (inner * normalised).mean(axis=1, keepdims=True)
    grad = (centred - pull) / np.sqrt(Variance + epsilon)[:, None]
    return {
        "X@GRAD": grad.reshape(X.shape),
        "Scale@GRAD": (upstream * normalised).sum(axis=0),
        "Bias@GRAD": upstream.sum(axis=0),
    }


def _rows(x: Array, axis: int) -> Array:
    """Instances by features."""
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _normalised(rows: Array, mean: Array, variance: Array, epsilon: float) -> Array:
    out: Array = (rows - mean[:, None]) / np.sqrt(variance + epsilon)[:, None]
    return out


def check_epsilon(ctx: InferContext) -> None:
    """Refuse an attribute epsilon outside of 0 to 0.001, of which it holds the nearest float32."""
    if not 0 <= ctx.attr("epsilon") <= np.float32(0.001):
        raise ProgramError(f"op {ctx.op.type!r}: epsilon {ctx.attr('epsilon')} is not in 0..0.001 ({ctx.op.origin})")


def _infer(ctx: InferContext) -> None:
    x, shape, axis = ctx.input("X"), ctx.shape("X"), ctx.attr("begin_norm_axis")
    if not 0 < axis < len(shape):
        raise ctx.error(f"begin_norm_axis {axis} of X {list(shape)}")
    check_epsilon(ctx)
    ctx.set("Y", shape, x.dtype, lod_level=x.lod_level)
    for output in ("Mean", "Variance"):
        ctx.set(output, (numel(shape[:axis]),), x.dtype)


_X = np.array([[1.0, 3.0], [-2.0, 2.0]])

register(
    "layer_norm",
    doc="Y = (X - Mean) / sqrt(Variance + epsilon) * Scale + Bias, with the mean and the (biased) variance of each instance "
    "over its features, [instances] each.",
    inputs=["X", "Scale?", "Bias?"],
    outputs=["Y", "Mean~", "Variance~"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=layer_norm,
    grad=maker(["Bias", "Mean", "Scale", "Variance", "X", "Y@GRAD"], ["Bias@GRAD", "Scale@GRAD", "X@GRAD"]),
    share_lod="X",
    cases=(
        Case(
            {"X": _X, "Scale": np.array([2.0, 1.0]), "Bias": np.array([0.0, 0.5])},
            {"epsilon": 0.0},
            {"Y": np.array([[-2.0, 1.5], [-2.0, 1.5]]), "Mean": np.array([2.0, 0.0]), "Variance": np.array([1.0, 4.0])},
        ),
        Case(
            {"X": np.array([[1.0, 3.0, 8.0], [-2.0, 2.0, 0.0]]), "Scale": np.array([2.0, 1.0, 3.0])},
            {"epsilon": 0.0},
            {"Mean": np.array([4.0, 0.0]), "Variance": np.array([26.0, 8.0]) / 3},
            check_grad=("X", "Scale"),
        ),
    ),
)
register(
    "layer_norm_grad",
    doc="Gradient of layer_norm.",
    inputs=["X", "Scale?", "Bias?", "Mean", "Variance", "Y@GRAD"],
    outputs=["Bias@GRAD", "Scale@GRAD", "X@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=layer_norm_grad,
)
