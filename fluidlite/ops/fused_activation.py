"""`fused_elemwise_activation`: one binary and one unary elementwise function in one op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.broadcast import infer_broadcast, operands, sum_to
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.infer import InferContext
from fluidlite.ops.pairs import with_gradient
from fluidlite.ops.registry import REQUIRED, Case, bool_attr, float_attr, int_attr, strings_attr
from fluidlite.ops.special import sigmoid


class Unary(NamedTuple):
    """(x, scale) -> value; (value, scale) -> slope."""

    value: Callable[[Array, float], Array]
    slope: Callable[[Array, float], Array]


#: slopes follow from the values
UNARY: Final = {
    "relu": Unary(lambda x, _: np.maximum(x, 0), lambda out, _: (out > 0).astype(out.dtype)),
    "sigmoid": Unary(lambda x, _: sigmoid(x), lambda out, _: out * (1 - out)),
    "tanh": Unary(lambda x, _: np.tanh(x), lambda out, _: 1 - out * out),
    "scale": Unary(lambda x, scale: x * scale, np.full_like),
}
BINARY: Final = ("elementwise_add", "elementwise_mul")


def _parts(functors: Sequence[str]) -> tuple[str, str, bool]:
    """(binary function, unary function, whether the unary one is applied last)."""
    names = [name.removesuffix("_grad") for name in functors]
    if len(names) == 2 and names[0] in BINARY and names[1] in UNARY:
        return names[0], names[1], False
    if len(names) == 2 and names[1] in BINARY and names[0] in UNARY:
        return names[1], names[0], True
    raise ProgramError(
        f"functor_list {list(functors)} must be one of {', '.join(BINARY)} and one of {', '.join(UNARY)}"
    )


def _combined(binary: str, x: Array, y: Array) -> Array:
    return x + y if binary == "elementwise_add" else x * y


def fused_elemwise_activation(
    ctx: KernelContext, X: Array, Y: Array, *, axis: int, scale: float, functor_list: Sequence[str]
) -> dict[str, Array]:
    binary, unary, unary_last = _parts(functor_list)
    x, y = operands(X, Y, axis)
    if unary_last:
        inner = _combined(binary, x, y)
        return {"Out": UNARY[unary].value(inner, scale), "IntermediateOut": inner}
    inner = UNARY[unary].value(y, scale)
    return {"Out": _combined(binary, x, inner), "IntermediateOut": inner.reshape(Y.shape)}


def fused_elemwise_activation_grad(
    ctx: KernelContext,
    X: Array,
    Y: Array,
    Out: Array,
    Out_GRAD: Array,
    *,
    axis: int,
    scale: float,
    functor_list: Sequence[str],
) -> dict[str, Array]:
    binary, unary, unary_last = _parts(functor_list)
    x, y = operands(X, Y, axis)
    function = UNARY[unary]
    if unary_last:
        upstream, second, slope = Out_GRAD * function.slope(Out, scale), y, None
    else:
        second = function.value(y, scale)
        upstream, slope = Out_GRAD, function.slope(second, scale)
    x_grad, y_grad = (upstream, upstream) if binary == "elementwise_add" else (upstream * second, upstream * x)
    if slope is not None:
        y_grad = y_grad * slope
    return {"X@GRAD": sum_to(x_grad, x.shape, X.shape), "Y@GRAD": sum_to(y_grad, y.shape, Y.shape)}


def _infer(ctx: InferContext) -> None:
    try:
        _, _, unary_last = _parts(ctx.attr("functor_list"))
    except ProgramError as error:
        raise ctx.located(error) from None
    infer_broadcast(ctx)
    if unary_last:
        x = ctx.outputs("Out")[0]
        ctx.set("IntermediateOut", x.shape, x.dtype)
    else:
        ctx.set("IntermediateOut", ctx.shape("Y"), ctx.input("Y").dtype)


_X: Final = varied(2, 3)

with_gradient(
    "fused_elemwise_activation",
    doc="With functor_list [binary, unary]: Out = binary(X, unary(Y)); with [unary, binary]: Out = unary(binary(X, Y)). "
    "IntermediateOut = what the inner one gives.",
    inputs=["X", "Y"],
    outputs=["Out", "IntermediateOut~"],
    attrs={
        "axis": int_attr(-1, "where the smaller operand starts in the larger"),
        "scale": float_attr(0.0, "the factor of scale"),
        "save_intermediate_out": bool_attr(default=False),
        "functor_list": strings_attr(REQUIRED),
    },
    infer=_infer,
    kernel=fused_elemwise_activation,
    gradient=fused_elemwise_activation_grad,
    reads=["X", "Y", "Out", "Out@GRAD"],
    writes=["X@GRAD", "Y@GRAD"],
    share_lod="X",
    cases=(
        Case({"X": _X, "Y": varied(3, start=20)}, {"functor_list": ["elementwise_add", "tanh"]}, check_grad=("X", "Y")),
        Case(
            {"X": _X, "Y": _X * 2}, {"functor_list": ["elementwise_mul", "scale"], "scale": 0.5}, check_grad=("X", "Y")
        ),
        Case({"X": _X, "Y": _X * 2}, {"functor_list": ["relu", "elementwise_add"]}, check_grad=("X", "Y")),
        Case(
            {"X": _X, "Y": varied(3, start=20)}, {"functor_list": ["sigmoid", "elementwise_mul"]}, check_grad=("X", "Y")
        ),
    ),
)
