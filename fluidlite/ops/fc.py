"""A fully connected layer in one op: `fc`. The executor puts it in place of `mul`, `elementwise_add` and an activation,
and computes with it what those compute, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import DtypeError
from fluidlite.kernels import dense
from fluidlite.ops.broadcast import sum_to
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_without_lod
from fluidlite.ops.matmul import as_matrix, mul, shaped
from fluidlite.ops.overwrites import alike
from fluidlite.ops.registry import Case, Overwrite, bool_attr, float_attr, floats_attr, int_attr, register, string_attr
from fluidlite.ops.special import sigmoid, sigmoid_grad, sigmoid_grad_over

#: activation -> (its value, computed in its argument where that is possible; its gradient from value and Out@GRAD)
_FORMULAS: Final[dict[str, tuple[Callable[[Array], Array], Callable[[Array, Array], Array]]]] = {
    "sigmoid": (sigmoid, sigmoid_grad),
    "tanh": (lambda x: np.tanh(x, out=x), lambda out, d_out: d_out * (1 - out * out)),
}
#: activation -> its gradient, computed in Out@GRAD, which is like Out
_OVER: Final = {"relu": dense.relu_grad_over, "sigmoid": sigmoid_grad_over}
#: the activations that `fc` knows
ACTIVATIONS: Final = ("relu", *_FORMULAS)
_ATTRS: Final = {
    "in_num_col_dims": int_attr(1, "leading dimensions of Input that become the rows"),
    "activation_type": string_attr("", f"{', '.join(ACTIVATIONS)}, or nothing"),
    "padding_weights": bool_attr(default=False, doc="refused"),
    "Scale_in": float_attr(1.0),
    "Scale_weights": floats_attr((1.0,)),
    "Scale_out": float_attr(1.0),
    "force_fp32_output": bool_attr(default=False),
}


def fc(
    ctx: KernelContext, Input: Array, W: Array, Bias: Array | None, *, in_num_col_dims: int, activation_type: str
) -> Array:
    out: Array = mul(ctx, Input, W, x_num_col_dims=in_num_col_dims, y_num_col_dims=1)
    matrix = out.reshape(-1, out.shape[-1]) if out.ndim != 2 else out
    formulas = _FORMULAS.get(activation_type)
    if Bias is not None:
        dense.bias_act(matrix, Bias, "" if formulas else activation_type)
    elif activation_type == "relu":
        return dense.relu(out)
    return out if formulas is None else formulas[0](out)


def fc_grad(
    ctx: KernelContext,
    Input: Array,
    W: Array,
    Bias: Array | None,
    Out: Array | None,
    Out_GRAD: Array,
    *,
    in_num_col_dims: int,
    activation_type: str,
) -> dict[str, Array]:
    return _grads(ctx, Input, W, _before_activation(Out, Out_GRAD, activation_type), in_num_col_dims)


def fc_grad_over(
    ctx: KernelContext,
    Input: Array,
    W: Array,
    Bias: Array | None,
    Out: Array | None,
    Out_GRAD: Array,
    *,
    in_num_col_dims: int,
    activation_type: str,
) -> dict[str, Array]:
    over = _OVER.get(activation_type)
    if over is not None and Out is not None and alike(Out, Out_GRAD):
        slope = over(Out, Out_GRAD)
    else:
        slope = _before_activation(Out, Out_GRAD, activation_type)
    return _grads(ctx, Input, W, slope, in_num_col_dims)


def _grads(ctx: KernelContext, Input: Array, W: Array, slope: Array, in_num_col_dims: int) -> dict[str, Array]:
    """The gradients that are asked for, from that of the sums before the activation."""
    x = as_matrix(Input, in_num_col_dims)
    matrix = shaped(slope, (len(x), W.shape[1]))
    grads = {}
    if ctx.wants("Bias@GRAD"):
        grads["Bias@GRAD"] = sum_to(slope, (1,) * (slope.ndim - 1) + W.shape[1:], W.shape[1:])
    if ctx.wants("Input@GRAD"):
        grads["Input@GRAD"] = shaped(dense.product(matrix, W.T), Input.shape)
    if ctx.wants("W@GRAD"):
        grads["W@GRAD"] = dense.product(x.T, matrix)
    return grads


def _before_activation(out: Array | None, d_out: Array, act: str) -> Array:
    """The gradient of what the activation was applied to."""
    if act not in _FORMULAS:
        return dense.act_grad(d_out if out is None else out, d_out, act)
    assert out is not None
    return _FORMULAS[act][1](out, d_out)


def _infer(ctx: InferContext) -> None:
    x, w, columns = ctx.shape("Input"), ctx.shape("W"), ctx.attr("in_num_col_dims")
    if ctx.attr("activation_type") not in ("", *ACTIVATIONS):
        raise ctx.error(f"activation_type {ctx.attr('activation_type')!r} is none of {', '.join(ACTIVATIONS)}")
    if ctx.attr("padding_weights"):
        raise ctx.error("padding_weights is not supported")
    if not 0 < columns < len(x) or len(w) != 2:
        raise ctx.error(f"cannot multiply Input {list(x)}, flattened after {columns} dimensions, with W {list(w)}")
    if -1 not in (*x[columns:], w[0]) and math.prod(x[columns:]) != w[0]:
        raise ctx.error(f"Input {list(x)} has {math.prod(x[columns:])} columns but W {list(w)} has {w[0]} rows")
    if ctx.input("Input").dtype != ctx.input("W").dtype:
        raise DtypeError(
            f"op 'fc': Input is {ctx.input('Input').dtype} and W is {ctx.input('W').dtype} ({ctx.op.origin})"
        )
    bias = ctx.maybe_input("Bias")
    if bias is not None and bias.shape is not None and -1 not in bias.shape and math.prod(bias.shape) != w[1]:
        raise ctx.error(f"Bias {list(bias.shape)} does not have one element per column of W {list(w)}")
    ctx.set("Out", (*x[:columns], w[1]), ctx.input("Input").dtype, lod_level=ctx.input("Input").lod_level)


_X = np.array([[1.0, 2.0, -1.0], [0.5, -0.25, 3.0]])
_W = np.array([[2.0, 1.0], [0.0, -1.0], [4.0, 0.5]])
_B = np.array([0.5, 1.0])
_XWB = np.array([[-1.5, -0.5], [13.5, 3.25]])
_GRAD: Final = ("Input", "W", "Bias")

register(
    "fc",
    doc="Out = activation(Input, flattened to a matrix after in_num_col_dims dimensions, times W [columns, size], plus "
    "Bias [size]).",
    inputs=["Input", "W", "Bias?"],
    outputs=["Out"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=fc,
    grad=maker(["Input", "W", "Bias", "Out", "Out@GRAD"], ["Input@GRAD", "W@GRAD", "Bias@GRAD"]),
    share_lod="Input",
    cases=(
        Case({"Input": _X, "W": _W, "Bias": _B}, {}, {"Out": _XWB}, check_grad=_GRAD),
        Case({"Input": _X, "W": _W}, {}, {"Out": _XWB - _B}, check_grad=("Input", "W")),
        Case(
            {"Input": _X, "W": _W, "Bias": _B},
            {"activation_type": "relu"},
            {"Out": np.maximum(_XWB, 0)},
            check_grad=_GRAD,
        ),
        Case({"Input": _X, "W": _W}, {"activation_type": "relu"}, {"Out": np.maximum(_XWB - _B, 0)}),
        Case(
            {"Input": _X / 8, "W": _W, "Bias": _B},
            {"activation_type": "sigmoid"},
            {"Out": 1 / (1 + np.exp(-(_X / 8 @ _W + _B)))},
            check_grad=_GRAD,
        ),
        Case(
            {"Input": _X.reshape(2, 1, 3) / 8, "W": _W, "Bias": _B},
            {"activation_type": "tanh", "in_num_col_dims": 2},
            {"Out": np.tanh(_X / 8 @ _W + _B).reshape(2, 1, 2)},
            check_grad=_GRAD,
        ),
        Case(
            {"Input": np.zeros((0, 3)), "W": _W, "Bias": _B},
            {"activation_type": "relu"},
            {"Out": np.zeros((0, 2))},
            note="an empty batch",
        ),
    ),
)
register(
    "fc_grad",
    doc="Gradient of fc. Out is only read where there is an activation.",
    inputs=["Input", "W", "Bias?", "Out?", "Out@GRAD"],
    outputs=["Input@GRAD", "W@GRAD", "Bias@GRAD"],
    attrs=_ATTRS,
    infer=grads_without_lod,
    kernel=fc_grad,
    overwrites=(Overwrite("Out@GRAD", fc_grad_over),),
    share_lod="Input",
)
