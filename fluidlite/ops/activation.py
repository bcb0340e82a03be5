"""Elementwise functions of one input: relu, sigmoid, exp, sqrt, gelu, ...

Each entry of the table is the whole of an activation: its formula, and its derivative times ``Out@GRAD`` in terms of
what the gradient op receives (the parameters of the second function say which: ``X`` or ``Out``).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels import dense
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import grads_like_forward, like
from fluidlite.ops.overwrites import in_gradient, in_input
from fluidlite.ops.registry import AttrSpec, Case, bool_attr, float_attr, kwarg, register
from fluidlite.ops.rows import over_rows
from fluidlite.ops.special import (
    erf,
    gated,
    sigmoid,
    sigmoid_grad,
    sigmoid_grad_over,
    sigmoid_over,
    sign,
    softplus,
)

_X: Final = np.array([[-1.5, 0.25, -0.125], [0.75, 2.0, 1.25]])


@dataclass(frozen=True)
class Activation:
    """``forward(ctx, X, **attrs)`` and ``backward(ctx, X or Out, Out_GRAD, **attrs)``, both elementwise.

    ``example`` is an input and what comes out of it, with the default attributes.
    """

    type: str
    doc: str
    forward: Callable[..., Array]
    backward: Callable[..., Array]
    example: tuple[Any, Any]
    attrs: Mapping[str, AttrSpec] = field(default_factory=dict)
    #: where the numeric gradient is checked (away from kinks and poles)
    smooth_at: Array = field(default_factory=lambda: _X)
    #: X may be SelectedRows
    rows: bool = False
    #: ``forward`` of floats in their own memory, and ``backward`` of (Out, Out@GRAD), alike, in that of Out@GRAD
    forward_over: Callable[[Array], Array] | None = None
    backward_over: Callable[[Array, Array], Array] | None = None

    @property
    def needs(self) -> list[str]:
        """The inputs of the gradient op, read off ``backward``."""
        taken = inspect.signature(self.backward).parameters
        return [name for name in ("X", "Out", "Out@GRAD") if kwarg(name) in taken]


def relu(ctx: KernelContext, X: Array) -> Array:
    return dense.relu(X)


def relu_grad(ctx: KernelContext, Out: Array, Out_GRAD: Array) -> Array:
    return dense.relu_grad(Out, Out_GRAD)


def gelu(ctx: KernelContext, X: Array, *, approximate: bool) -> Array:
    return gated(X, _gelu_gate(X, approximate))


def gelu_grad(ctx: KernelContext, X: Array, Out_GRAD: Array, *, approximate: bool) -> Array:
    gate = _gelu_gate(X, approximate)
    if approximate:
        slope = gate * (1 - gate) * 2 * _GELU_SCALE * (1 + 3 * _GELU_CUBE * X * X)
    else:
        slope = np.exp(-X * X / 2) / math.sqrt(2 * math.pi)
    return np.asarray(Out_GRAD * (gate + gated(X, slope)))


_GELU_SCALE: Final = math.sqrt(2 / math.pi)
_GELU_CUBE: Final = 0.044715


def _gelu_gate(X: Array, approximate: bool) -> Array:
    """The share of x that passes: the normal distribution function, or Hendrycks and Gimpel's tanh form of it."""
    if approximate:
        return sigmoid(2 * _GELU_SCALE * (X + _GELU_CUBE * X * X * X))
    return (1 + erf(X / math.sqrt(2))) / 2


def swish_grad(ctx: KernelContext, X: Array, Out_GRAD: Array, *, beta: float) -> Array:
    gate = sigmoid(beta * X)
    return np.asarray(Out_GRAD * (gate + gated(beta * X, gate * (1 - gate))))


def hard_swish_grad(
    ctx: KernelContext, X: Array, Out_GRAD: Array, *, threshold: float, scale: float, offset: float
) -> Array:
    inside = np.where(-offset < X, (2 * X + offset) / scale, 0)
    return np.asarray(Out_GRAD * np.where(threshold - offset <= X, threshold / scale, inside).astype(X.dtype))


def soft_relu_grad(ctx: KernelContext, Out: Array, Out_GRAD: Array, *, threshold: float) -> Array:
    low, high = math.log1p(math.exp(-threshold)), threshold + math.log1p(math.exp(-threshold))
    return Out_GRAD * np.where((Out > low) & (Out < high), -np.expm1(-Out), 0)


def softshrink(ctx: KernelContext, X: Array, *, lambda_: float) -> Array:
    return np.asarray(X - np.clip(X, -lambda_, lambda_))


def stanh_grad(ctx: KernelContext, X: Array, Out_GRAD: Array, *, scale_a: float, scale_b: float) -> Array:
    return np.asarray(Out_GRAD * (scale_a * scale_b) * (1 - np.tanh(scale_a * X) ** 2))


def mish_grad(ctx: KernelContext, X: Array, Out_GRAD: Array, *, threshold: float) -> Array:
    inner = _mish_inner(X, threshold)
    gate = np.tanh(inner)
    return np.asarray(Out_GRAD * (gate + gated(X, (1 - gate * gate) * -np.expm1(-inner))))


def _mish_inner(X: Array, threshold: float) -> Array:
    """log(1 + e^x) without overflow."""
    return np.where(threshold < X, X, np.where(-threshold > X, np.exp(np.minimum(X, 0)), softplus(X)))


_POSITIVE: Final = np.abs(_X)
_LN2: Final = math.log(2.0)

ACTIVATIONS: Final[tuple[Activation, ...]] = (
    Activation(
        "relu",
        "Out = max(X, 0).",
        relu,
        relu_grad,
        ([-1.5, 2.0], [0.0, 2.0]),
        forward_over=dense.relu_over,
        backward_over=dense.relu_grad_over,
    ),
    Activation(
        "sigmoid",
        "Out = 1 / (1 + e^-X).",
        lambda _, X: sigmoid(X),
        lambda _, Out, Out_GRAD: sigmoid_grad(Out, Out_GRAD),
        ([0.0, math.log(3.0)], [0.5, 0.75]),
        forward_over=sigmoid_over,
        backward_over=sigmoid_grad_over,
    ),
    Activation(
        "tanh",
        "Out = tanh(X).",
        lambda _, X: np.tanh(X),
        lambda _, Out, Out_GRAD: Out_GRAD * (1 - Out * Out),
        ([0.0, math.log(2.0)], [0.0, 0.6]),
        forward_over=lambda x: np.tanh(x, out=x),
    ),
    Activation(
        "exp",
        "Out = e^X.",
        lambda _, X: np.exp(X),
        lambda _, Out, Out_GRAD: Out_GRAD * Out,
        ([0.0, _LN2], [1.0, 2.0]),
    ),
    Activation(
        "log",
        "Out = the natural logarithm of X.",
        lambda _, X: np.log(X),
        lambda _, X, Out_GRAD: Out_GRAD / X,
        ([1.0, 2.0], [0.0, _LN2]),
        smooth_at=_POSITIVE,
    ),
    Activation(
        "sqrt",
        "Out = the square root of X.",
        lambda _, X: np.sqrt(X),
        lambda _, Out, Out_GRAD: Out_GRAD / (2 * Out),
        ([4.0, 0.25], [2.0, 0.5]),
        smooth_at=_POSITIVE,
        rows=True,
    ),
    Activation(
        "rsqrt",
        "Out = 1 / the square root of X.",
        lambda _, X: 1 / np.sqrt(X),
        lambda _, Out, Out_GRAD: Out_GRAD * Out * Out * Out / -2,
        ([4.0, 0.25], [0.5, 2.0]),
        smooth_at=_POSITIVE,
    ),
    Activation(
        "square",
        "Out = X * X.",
        lambda _, X: X * X,
        lambda _, X, Out_GRAD: Out_GRAD * X * 2,
        ([-1.5, 2.0], [2.25, 4.0]),
        rows=True,
    ),
    Activation(
        "reciprocal",
        "Out = 1 / X.",
        lambda _, X: 1 / X,
        lambda _, Out, Out_GRAD: -Out_GRAD * Out * Out,
        ([-2.0, 0.5], [-0.5, 2.0]),
    ),
    Activation(
        "abs",
        "Out = the absolute value of X; the derivative at 0 is 0.",
        lambda _, X: np.abs(X),
        lambda _, X, Out_GRAD: Out_GRAD * sign(X),
        ([-1.5, 2.0], [1.5, 2.0]),
    ),
    Activation(
        "floor",
        "Out = the largest whole number not above X; the derivative is 0.",
        lambda _, X: np.floor(X),
        lambda _, Out_GRAD: np.zeros_like(Out_GRAD),
        ([-1.5, 2.0], [-2.0, 2.0]),
        smooth_at=_X[:, :2] + 0.1,
    ),
    Activation(
        "ceil",
        "Out = the smallest whole number not below X; the derivative is 0.",
        lambda _, X: np.ceil(X),
        lambda _, Out_GRAD: np.zeros_like(Out_GRAD),
        ([-1.5, 2.0], [-1.0, 2.0]),
        smooth_at=_X[:, :2] + 0.1,
    ),
    Activation(
        "round",
        "Out = the nearest whole number, the even one of two; the derivative is 0.",
        lambda _, X: np.rint(X),
        lambda _, Out_GRAD: np.zeros_like(Out_GRAD),
        ([-1.5, 2.5, 0.51], [-2.0, 2.0, 1.0]),
        smooth_at=_X[:, :2] + 0.1,
    ),
    Activation(
        "cos",
        "Out = cos(X).",
        lambda _, X: np.cos(X),
        lambda _, X, Out_GRAD: -Out_GRAD * np.sin(X),
        ([0.0, math.pi / 3], [1.0, 0.5]),
    ),
    Activation(
        "sin",
        "Out = sin(X).",
        lambda _, X: np.sin(X),
        lambda _, X, Out_GRAD: Out_GRAD * np.cos(X),
        ([0.0, math.pi / 6], [0.0, 0.5]),
    ),
    Activation(
        "logsigmoid",
        "Out = log(1 / (1 + e^-X)).",
        lambda _, X: -softplus(-X),
        lambda _, X, Out_GRAD: Out_GRAD * sigmoid(-X),
        ([0.0, -math.log(3.0)], [-_LN2, -math.log(4.0)]),
    ),
    Activation(
        "softplus",
        "Out = log(1 + e^(`beta` X)) / `beta`, and X where `beta` X is above `threshold`.",
        lambda _, X, beta, threshold: np.where(beta * X > threshold, X, softplus(beta * X) / beta),
        lambda _, X, Out_GRAD, beta, threshold: Out_GRAD * np.where(beta * X > threshold, 1, sigmoid(beta * X)),
        ([0.0, math.log(3.0), math.inf], [_LN2, math.log(4.0), math.inf]),
        # Paddle 2's; with its defaults the two agree to 2e-9
        {"beta": float_attr(1.0), "threshold": float_attr(20.0)},
    ),
    Activation(
        "softsign",
        "Out = X / (1 + |X|), 1 and -1 at the infinities.",
        lambda _, X: np.where(np.isinf(X), sign(X), X / (1 + np.abs(X))),
        lambda _, X, Out_GRAD: Out_GRAD / (1 + np.abs(X)) ** 2,
        ([-1.0, 3.0, -math.inf], [-0.5, 0.75, -1.0]),
    ),
    Activation(
        "softshrink",
        "Out = X brought `lambda` closer to 0, and 0 within `lambda` of it.",
        softshrink,
        lambda _, X, Out_GRAD, lambda_: Out_GRAD * (np.abs(X) > lambda_),
        ([-1.5, 0.25, 2.0], [-1.0, 0.0, 1.5]),
        {"lambda": float_attr(0.5)},
    ),
    Activation(
        "relu6",
        "Out = X limited to 0 and `threshold`.",
        lambda _, X, threshold: np.clip(X, 0, threshold),
        lambda _, Out, Out_GRAD, threshold: Out_GRAD * ((Out > 0) & (Out < threshold)),
        ([-1.5, 2.0, 7.0], [0.0, 2.0, 6.0]),
        {"threshold": float_attr(6.0)},
    ),
    Activation(
        "leaky_relu",
        "Out = X where it is positive, else `alpha` * X.",
        lambda _, X, alpha: np.where(X > 0, X, alpha * X),
        lambda _, Out, Out_GRAD, alpha: Out_GRAD * ((Out > 0) + alpha * (Out <= 0)).astype(Out.dtype),
        ([-1.5, 2.0], [-0.03, 2.0]),
        {"alpha": float_attr(0.02, "slope on the negative side")},
    ),
    Activation(
        "elu",
        "Out = X where it is positive, else `alpha` * (e^X - 1).",
        lambda _, X, alpha: np.where(X > 0, X, alpha * np.expm1(np.minimum(X, 0))),
        lambda _, X, Out_GRAD, alpha: np.where(X > 0, Out_GRAD, Out_GRAD * alpha * np.exp(np.minimum(X, 0))),
        ([-_LN2, 2.0], [-0.5, 2.0]),
        {"alpha": float_attr(1.0)},
    ),
    Activation(
        "gelu",
        "Out = X * P(N <= X) for a standard normal N, or `approximate`-ly by tanh.",
        gelu,
        gelu_grad,
        ([0.0, 1.0, -math.inf], [0.0, 0.8413447460685429, 0.0]),
        {"approximate": bool_attr(default=False)},
    ),
    Activation(
        "swish",
        "Out = X / (1 + e^(-beta X)).",
        lambda _, X, beta: gated(X, sigmoid(beta * X)),
        swish_grad,
        ([0.0, math.log(3.0)], [0.0, 0.75 * math.log(3.0)]),
        {"beta": float_attr(1.0)},
    ),
    Activation(
        "hard_sigmoid",
        "Out = `slope` * X + `offset`, limited to 0 and 1.",
        lambda _, X, slope, offset: np.clip(slope * X + offset, 0, 1),
        lambda _, Out, Out_GRAD, slope: Out_GRAD * ((Out > 0) & (Out < 1)) * slope,
        ([-3.0, 0.0, 3.0], [0.0, 0.5, 1.0]),
        {"slope": float_attr(0.2), "offset": float_attr(0.5)},
    ),
    Activation(
        "hard_swish",
        "Out = X * (X + `offset`, limited to 0 and `threshold`) / `scale`.",
        lambda _, X, threshold, scale, offset: gated(X, np.clip(X + offset, 0, threshold) / scale),
        hard_swish_grad,
        ([-4.0, 1.5, 4.0], [0.0, 1.125, 4.0]),
        {"threshold": float_attr(6.0), "scale": float_attr(6.0), "offset": float_attr(3.0)},
    ),
    Activation(
        "stanh",
        "Out = `scale_b` * tanh(`scale_a` * X).",
        lambda _, X, scale_a, scale_b: scale_b * np.tanh(scale_a * X),
        stanh_grad,
        ([0.0, 1.5], [0.0, 1.7159 * math.tanh(0.67 * 1.5)]),
        {"scale_a": float_attr(0.67), "scale_b": float_attr(1.7159)},
    ),
    Activation(
        "brelu",
        "Out = X limited to `t_min` and `t_max`.",
        lambda _, X, t_min, t_max: np.clip(X, t_min, t_max),
        lambda _, X, Out_GRAD, t_min, t_max: Out_GRAD * ((t_min < X) & (t_max > X)),
        ([-1.5, 2.0, 30.0], [0.0, 2.0, 24.0]),
        {"t_min": float_attr(0.0), "t_max": float_attr(24.0)},
    ),
    Activation(
        "soft_relu",
        "Out = log(1 + e^X) of X limited to -`threshold` and `threshold`.",
        lambda _, X, threshold: softplus(np.clip(X, -threshold, threshold)),
        soft_relu_grad,
        ([0.0, 50.0], [_LN2, 40.0]),
        {"threshold": float_attr(40.0)},
    ),
    Activation(
        "acos",
        "Out = the angle in [0, pi] whose cosine is X.",
        lambda _, X: np.arccos(X),
        lambda _, X, Out_GRAD: -Out_GRAD / np.sqrt(1 - X * X),
        ([1.0, 0.5], [0.0, math.pi / 3]),
        smooth_at=_X / 3,
    ),
    Activation(
        "asin",
        "Out = the angle in [-pi / 2, pi / 2] whose sine is X.",
        lambda _, X: np.arcsin(X),
        lambda _, X, Out_GRAD: Out_GRAD / np.sqrt(1 - X * X),
        ([0.0, 0.5], [0.0, math.pi / 6]),
        smooth_at=_X / 3,
    ),
    Activation(
        "atan",
        "Out = the angle in (-pi / 2, pi / 2) whose tangent is X.",
        lambda _, X: np.arctan(X),
        lambda _, X, Out_GRAD: Out_GRAD / (1 + X * X),
        ([0.0, -1.0], [0.0, -math.pi / 4]),
    ),
    Activation(
        "erf",
        "Out = the error function of X: how much of a normal variable of variance 1/2 lies within X of 0.",
        lambda _, X: erf(X),
        lambda _, X, Out_GRAD: Out_GRAD * np.exp(-X * X) * (2 / math.sqrt(math.pi)),
        ([0.0, 0.5], [0.0, 0.5204998778130465]),
    ),
    Activation(
        "log1p",
        "Out = log(1 + X).",
        lambda _, X: np.log1p(X),
        lambda _, X, Out_GRAD: Out_GRAD / (1 + X),
        ([0.0, 1.0], [0.0, _LN2]),
        smooth_at=_POSITIVE,
    ),
    Activation(
        "selu",
        "Out = `scale` * X where X is positive, else `scale` * `alpha` * (e^X - 1) (Klambauer et al. 2017).",
        lambda _, X, scale, alpha: scale * np.where(X > 0, X, alpha * np.expm1(np.minimum(X, 0))),
        lambda _, Out, Out_GRAD, scale, alpha: Out_GRAD * np.where(Out > 0, scale, Out + alpha * scale),
        ([0.0, 2.0], [0.0, 2.1014020442962646]),
        {"scale": float_attr(1.0507009873554805), "alpha": float_attr(1.6732632423543772)},
    ),
    Activation(
        "mish",
        "Out = X * tanh(log(1 + e^X)) (Misra 2019); beyond `threshold` the inner function is X or e^X.",
        lambda _, X, threshold: gated(X, np.tanh(_mish_inner(X, threshold))),
        mish_grad,
        ([0.0, 1.0], [0.0, 0.8650983882673103]),
        {"threshold": float_attr(20.0)},
    ),
    Activation(
        "hard_shrink",
        "Out = X, and 0 within `threshold` of 0.",
        lambda _, X, threshold: X * (np.abs(X) > threshold),
        lambda _, X, Out_GRAD, threshold: Out_GRAD * (np.abs(X) > threshold),
        ([-1.5, 0.25, 2.0], [-1.5, 0.0, 2.0]),
        {"threshold": float_attr(0.5)},
    ),
    Activation(
        "tanh_shrink",
        "Out = X - tanh(X).",
        lambda _, X: X - np.tanh(X),
        lambda _, X, Out_GRAD: Out_GRAD * np.tanh(X) ** 2,
        ([0.0, _LN2], [0.0, _LN2 - 0.6]),
    ),
    Activation(
        "thresholded_relu",
        "Out = X above `threshold`, else 0.",
        lambda _, X, threshold: np.where(threshold < X, X, 0),
        lambda _, X, Out_GRAD, threshold: Out_GRAD * (threshold < X),
        ([-1.5, 0.5, 2.0], [0.0, 0.0, 2.0]),
        {"threshold": float_attr(1.0)},
    ),
    Activation(
        "silu",
        "Out = X / (1 + e^-X) (an op of Paddle 2).",
        lambda _, X: gated(X, sigmoid(X)),
        lambda _, X, Out_GRAD: Out_GRAD * sigmoid(X) * (1 + X * sigmoid(-X)),
        ([0.0, math.log(3.0)], [0.0, 0.75 * math.log(3.0)]),
    ),
)


def _register(activation: Activation) -> None:
    source, result = (np.array(values) for values in activation.example)
    register(
        activation.type,
        doc=f"{activation.doc} Elementwise.",
        inputs=["X"],
        outputs=["Out"],
        attrs=activation.attrs,
        infer=like("X", "Out"),
        kernel=over_rows(activation.forward) if activation.rows else activation.forward,
        grad=maker(activation.needs, ["X@GRAD"]),
        share_lod="X",
        sparse=("X",) if activation.rows else (),
        overwrites=in_input(activation.forward, activation.forward_over),
        cases=(
            Case({"X": source}, {}, {"Out": result}),
            Case({"X": activation.smooth_at}, check_grad=("X",)),
            Case({"X": np.zeros((0, 3))}, {}, {"Out": np.zeros((0, 3))}, note="an empty batch"),
        ),
    )
    register(
        f"{activation.type}_grad",
        doc=f"Gradient of {activation.type}.",
        inputs=activation.needs,
        outputs=["X@GRAD"],
        attrs=activation.attrs,
        infer=grads_like_forward,
        kernel=activation.backward,
        share_lod="Out@GRAD",
        overwrites=in_gradient(activation.backward, activation.backward_over),
    )


for _activation in ACTIVATIONS:
    _register(_activation)
