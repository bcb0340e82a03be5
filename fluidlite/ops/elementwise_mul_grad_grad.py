"""The gradient of `elementwise_mul_grad`: second-order gradients through products."""

from __future__ import annotations

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import EMPTY, Operator
from fluidlite.dtypes import Array
from fluidlite.ops.broadcast import operands, sum_to
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import without_role
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, int_attr, register, string_attr


def elementwise_mul_grad_grad(
    ctx: KernelContext, X: Array, Y: Array, DOut: Array, DDX: Array | None, DDY: Array | None, *, axis: int
) -> dict[str, Array]:
    x, y = operands(X, Y, axis)
    ddx = np.zeros_like(x) if DDX is None else DDX.reshape(x.shape)
    ddy = np.zeros_like(y) if DDY is None else DDY.reshape(y.shape)
    return {
        "DDOut": ddx * y + ddy * x,
        "X@GRAD": sum_to(ddy * DOut, x.shape, X.shape),
        "Y@GRAD": sum_to(ddx * DOut, y.shape, Y.shape),
    }


def make_mul_grad_grad(op: Operator) -> list[Operator]:
    """The gradient op of an `elementwise_mul_grad`."""
    x, y, d_out = op.inputs["X"], op.inputs["Y"], op.inputs["Out@GRAD"]
    second = {
        name: [names.grad(argument)]
        for name, argument in (("DDX", op.output("X@GRAD")), ("DDY", op.output("Y@GRAD")))
        if argument is not None and argument != EMPTY
    }
    return [
        Operator(
            "elementwise_mul_grad_grad",
            inputs={"X": x, "Y": y, "DOut": d_out, **second},
            outputs={
                "DDOut": [names.grad(d_out[0])],
                "X@GRAD": [names.grad(x[0])],
                "Y@GRAD": [names.grad(y[0])],
            },
            attrs=without_role(op),
            origin=op.origin,
        )
    ]


def _infer(ctx: InferContext) -> None:
    for output, source in (("DDOut", "DOut"), ("X@GRAD", "X"), ("Y@GRAD", "Y")):
        var = ctx.input(source)
        ctx.set(output, var.shape, var.dtype, lod_level=var.lod_level)


register(
    "elementwise_mul_grad_grad",
    doc="Gradient of elementwise_mul_grad, of which DDX and DDY are the gradients of the outputs: DDOut = DDX * Y + DDY * X, "
    "X@GRAD = DDY * DOut, Y@GRAD = DDX * DOut, the latter two summed over what broadcasting stretched.",
    inputs=["X", "Y", "DOut", "DDX?", "DDY?"],
    outputs=["DDOut", "X@GRAD", "Y@GRAD"],
    attrs={"axis": int_attr(-1), "x_data_format": string_attr(""), "y_data_format": string_attr("")},
    infer=_infer,
    kernel=elementwise_mul_grad_grad,
    share_lod="X",
    cases=(
        Case(
            {
                "X": np.array([[1.0, 2.0]]),
                "Y": np.array([3.0, -1.0]),
                "DOut": np.array([[0.5, 4.0]]),
                "DDX": np.array([[2.0, 1.0]]),
                "DDY": np.array([1.0, 0.5]),
            },
            {},
            {
                "DDOut": np.array([[7.0, 0.0]]),
                "X@GRAD": np.array([[0.5, 2.0]]),
                "Y@GRAD": np.array([1.0, 4.0]),
            },
        ),
    ),
)
