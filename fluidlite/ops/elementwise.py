"""Arithmetic of two operands with Fluid's broadcasting: elementwise_add, _sub, _mul, _div, _max, _min, _pow, _mod,
_floordiv; and `minus`, the older subtraction without broadcasting.

Each entry of the table is the whole of an op: its formula and the two derivatives times ``Out@GRAD``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array
from fluidlite.ops.broadcast import infer_broadcast, operands, sum_to
from fluidlite.ops.context import KernelContext
from fluidlite.ops.elementwise_mul_grad_grad import make_mul_grad_grad
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import grads_like_forward
from fluidlite.ops.registry import Case, Kernel, Overwrite, int_attr, register, string_attr
from fluidlite.ops.scale import scale_op
from fluidlite.ops.shapes import check_same
from fluidlite.values.selected_rows import SelectedRows

_ATTRS: Final = {
    "axis": int_attr(-1, "where the smaller operand starts in the larger one; -1: last dimensions aligned"),
    "x_data_format": string_attr(""),
    "y_data_format": string_attr(""),
}
Formula = Callable[[Array, Array], Array]
#: (x, y, Out@GRAD) -> derivative times Out@GRAD, in the shape of Out
Derivative = Callable[[Array, Array, Array], Array]


@dataclass(frozen=True)
class Elementwise:
    """``formula`` on operands that numpy can broadcast; ``d_x`` and ``d_y`` are None where there is no gradient."""

    name: str
    doc: str
    formula: Formula
    example: tuple[Any, Any, Any]
    d_x: Derivative | None = None
    d_y: Derivative | None = None
    #: numpy's function for ``formula``, which can write to an operand
    ufunc: np.ufunc | None = None

    @property
    def type(self) -> str:
        return f"elementwise_{self.name}"


def divide(x: Array, y: Array) -> Array:
    """x / y; of integers the quotient towards zero. Integer division by zero raises ZeroDivisionError."""
    if x.dtype.kind == "f":
        return np.asarray(x / y)
    _refuse_zero(y)
    quotient = x // y
    return np.asarray(quotient + ((quotient < 0) & (quotient * y != x)))


def floor_divide(x: Array, y: Array) -> Array:
    """The whole part of x / y (towards zero)."""
    return divide(x, y) if x.dtype.kind != "f" else np.trunc(x / y)


def remainder(x: Array, y: Array) -> Array:
    """Integers: C's remainder, with the sign of x. Floats: with the sign of y."""
    if x.dtype.kind == "f":
        return np.asarray(np.mod(x, y))
    _refuse_zero(y)
    return np.asarray(np.fmod(x, y))


def power(x: Array, y: Array) -> Array:
    """x to the power y; of integers rounded from floating point, so negative exponents are allowed."""
    if x.dtype.kind == "f":
        return np.asarray(np.power(x, y))
    return np.rint(np.power(x.astype(np.float64), y)).astype(x.dtype)


def _refuse_zero(y: Array) -> None:
    if not np.all(y):
        raise ZeroDivisionError("integer division by zero")


ELEMENTWISE: Final = (
    Elementwise(
        "add",
        "Out = X + Y.",
        lambda x, y: x + y,
        ([1.5, -2.0], [4.0, 0.5], [5.5, -1.5]),
        lambda _x, _y, out_grad: out_grad,
        lambda _x, _y, out_grad: out_grad,
        np.add,
    ),
    Elementwise(
        "sub",
        "Out = X - Y.",
        lambda x, y: x - y,
        ([1.5, -2.0], [4.0, 0.5], [-2.5, -2.5]),
        lambda _x, _y, out_grad: out_grad,
        lambda _x, _y, out_grad: -out_grad,
        np.subtract,
    ),
    Elementwise(
        "mul",
        "Out = X * Y. X may be SelectedRows when Y has one element.",
        lambda x, y: x * y,
        ([1.5, -2.0], [4.0, 0.5], [6.0, -1.0]),
        lambda _x, y, out_grad: out_grad * y,
        lambda x, _y, out_grad: out_grad * x,
        np.multiply,
    ),
    Elementwise(
        "div",
        "Out = X / Y; integers are divided towards zero.",
        divide,
        ([1.5, -2.0], [4.0, 0.5], [0.375, -4.0]),
        lambda _x, y, out_grad: out_grad / y,
        lambda x, y, out_grad: -out_grad * x / (y * y),
    ),
    Elementwise(
        "max",
        "Out = the larger of X and Y; of equal ones Y gets the gradient.",
        lambda x, y: np.where(x > y, x, y),
        ([1.5, -2.0], [4.0, -2.5], [4.0, -2.0]),
        lambda x, y, out_grad: out_grad * (x > y),
        lambda x, y, out_grad: out_grad * (x <= y),
    ),
    Elementwise(
        "min",
        "Out = the smaller of X and Y; of equal ones Y gets the gradient.",
        lambda x, y: np.where(x < y, x, y),
        ([1.5, -2.0], [4.0, -2.5], [1.5, -2.5]),
        lambda x, y, out_grad: out_grad * (x < y),
        lambda x, y, out_grad: out_grad * (x >= y),
    ),
    Elementwise(
        "pow",
        "Out = X to the power Y.",
        power,
        ([2.25, 2.0], [0.5, -1.0], [1.5, 0.5]),
        lambda x, y, out_grad: out_grad * y * np.power(x, y - 1),
        lambda x, y, out_grad: out_grad * np.log(x) * np.power(x, y),
    ),
    Elementwise(
        "mod",
        "Out = the remainder of X / Y: of integers with the sign of X, of floats with the sign of Y.",
        remainder,
        ([5.5, -5.5], [2.0, 2.0], [1.5, 0.5]),
    ),
    Elementwise(
        "floordiv",
        "Out = the whole part of X / Y.",
        floor_divide,
        ([7, -7], [2, 2], [3, -3]),
    ),
)


def _kernel(formula: Formula) -> Kernel:
    def forward(ctx: KernelContext, X: Any, Y: Array, *, axis: int) -> Any:
        if isinstance(X, SelectedRows):
            return SelectedRows(X.rows, formula(X.value, Y.reshape(1)), X.height)
        return formula(*operands(X, Y, axis))

    return forward


def _overwrites(spec: Elementwise) -> tuple[Overwrite, ...]:
    """In X or in Y, when the result has its shape."""
    ufunc, formula = spec.ufunc, spec.formula
    if ufunc is None:
        return ()

    def in_x(ctx: KernelContext, X: Array, Y: Array, *, axis: int) -> Array:
        x, y = operands(X, Y, axis)
        return ufunc(x, y, out=x) if _covers(x, y) and x is X else formula(x, y)

    def in_y(ctx: KernelContext, X: Array, Y: Array, *, axis: int) -> Array:
        x, y = operands(X, Y, axis)
        return ufunc(x, y, out=y) if _covers(y, x) and y is Y else formula(x, y)

    return Overwrite("X", in_x), Overwrite("Y", in_y)


def _covers(x: Array, y: Array) -> bool:
    """Whether ``y`` stretches to the shape of ``x``, of the same rank."""
    return all(b in (a, 1) for a, b in zip(x.shape, y.shape, strict=True))


def _grad_kernel(spec: Elementwise) -> Kernel:
    assert spec.d_x is not None
    assert spec.d_y is not None
    d_x, d_y = spec.d_x, spec.d_y

    def backward(ctx: KernelContext, X: Array, Y: Array, Out_GRAD: Array, *, axis: int) -> dict[str, Array]:
        x, y = operands(X, Y, axis)
        result = {}
        if ctx.wants("X@GRAD"):
            result["X@GRAD"] = sum_to(d_x(x, y, Out_GRAD), x.shape, X.shape)
        if ctx.wants("Y@GRAD"):
            result["Y@GRAD"] = sum_to(d_y(x, y, Out_GRAD), y.shape, Y.shape)
        return result

    return backward


_ROWS: Final = np.array([[1.5, 2.0, 0.5], [4.0, 0.25, 3.0]])
_COLUMN_SCALE: Final = np.array([1.25, 0.75, 2.5])
_ROW_SCALE: Final = np.array([1.25, 0.75])


def _cases(spec: Elementwise) -> tuple[Case, ...]:
    x, y, out = (np.array(values) for values in spec.example)
    grad = ("X", "Y") if spec.d_x is not None else ()
    plain = Case({"X": x, "Y": y}, {}, {"Out": out}, check_grad=grad)
    if x.dtype.kind != "f":
        return (plain,)
    formula = spec.formula
    return (
        plain,
        Case({"X": _ROWS, "Y": _COLUMN_SCALE}, {}, {"Out": formula(_ROWS, _COLUMN_SCALE)}, check_grad=grad),
        Case({"X": _ROWS, "Y": _ROW_SCALE}, {"axis": 0}, {"Out": formula(_ROWS, _ROW_SCALE[:, None])}, check_grad=grad),
        Case(
            {"X": _ROWS[:, :1], "Y": _COLUMN_SCALE},
            {},
            {"Out": formula(_ROWS[:, :1], _COLUMN_SCALE)},
            check_grad=grad,
            note="both sides stretch",
        ),
        Case({"X": np.zeros((0, 3)), "Y": _COLUMN_SCALE}, {}, {"Out": np.zeros((0, 3))}, note="an empty batch"),
    )


def _register(spec: Elementwise) -> None:
    has_grad = spec.d_x is not None
    forward = ["Out"] if spec.name == "div" else []
    register(
        spec.type,
        doc=f"{spec.doc} Elementwise with broadcasting.",
        inputs=["X", "Y"],
        outputs=["Out"],
        attrs=_ATTRS,
        infer=infer_broadcast,
        kernel=_kernel(spec.formula),
        overwrites=_overwrites(spec),
        grad=maker(["X", "Y", *forward, "Out@GRAD"], ["X@GRAD", "Y@GRAD"]) if has_grad else None,
        share_lod="X",
        sparse=("X",) if spec.name == "mul" else (),
        cases=_cases(spec),
    )
    if has_grad:
        register(
            f"{spec.type}_grad",
            doc=f"Gradient of {spec.type}, summed over what broadcasting stretched.",
            inputs=["X", "Y", *forward, "Out@GRAD"],
            outputs=["X@GRAD", "Y@GRAD"],
            attrs=_ATTRS,
            infer=grads_like_forward,
            kernel=_grad_kernel(spec),
            grad=make_mul_grad_grad if spec.name == "mul" else None,
            share_lod="X",
        )


for _spec in ELEMENTWISE:
    _register(_spec)


def minus(ctx: KernelContext, X: Array, Y: Array) -> Array:
    check_same(ctx, "X", X, Y=Y)
    return np.subtract(X, Y)


def _minus_grad(op: Operator) -> list[Operator]:
    """X@GRAD = Out@GRAD and Y@GRAD = -Out@GRAD, each by a `scale`."""
    gradient = names.grad(op.outputs["Out"][0])
    return [
        scale_op(gradient, names.grad(op.inputs[name][0]), {"scale": factor}, op.origin)
        for name, factor in (("X", 1.0), ("Y", -1.0))
    ]


register(
    "minus",
    doc="Out = X - Y, of equal shapes.",
    inputs=["X", "Y"],
    outputs=["Out"],
    infer=infer_broadcast,
    kernel=minus,
    grad=_minus_grad,
    share_lod="X",
    cases=(
        Case(
            {"X": np.array([1.5, -2.0]), "Y": np.array([4.0, 0.5])},
            {},
            {"Out": np.array([-2.5, -2.5])},
            check_grad=("X", "Y"),
        ),
    ),
)
