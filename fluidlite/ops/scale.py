"""A linear function with two constants, and the sign (whose gradient is a scale by 0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array
from fluidlite.ops import registry
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import like
from fluidlite.ops.registry import Case, Overwrite, bool_attr, float_attr, register
from fluidlite.ops.rows import over_rows
from fluidlite.ops.special import sign
from fluidlite.values.selected_rows import SelectedRows


def scale_(
    ctx: KernelContext, X: Array, ScaleTensor: Array | None, *, scale: float, bias: float, bias_after_scale: bool
) -> Array:
    # both constants take X's dtype first, as in Fluid: 0.5 is 0 for integers
    factor = np.asarray(scale if ScaleTensor is None else ScaleTensor.reshape(-1)[0]).astype(X.dtype)
    if bias == 0:
        return np.asarray(X * factor)
    shift = np.asarray(bias).astype(X.dtype)
    return np.asarray(X * factor + shift if bias_after_scale else (X + shift) * factor)


def scale_over(
    ctx: KernelContext, X: Array, ScaleTensor: Array | None, *, scale: float, bias: float, bias_after_scale: bool
) -> Array:
    factor = np.asarray(scale if ScaleTensor is None else ScaleTensor.reshape(-1)[0]).astype(X.dtype)
    shift = np.asarray(bias).astype(X.dtype)
    if bias != 0 and not bias_after_scale:
        X += shift
    X *= factor
    if bias != 0 and bias_after_scale:
        X += shift
    return X


def scale_op(source: str, target: str, attrs: Mapping[str, Any], origin: str) -> Operator:
    """A `scale` op from one variable to another, as gradients use it."""
    typed = {name: registry.attrs_for_one("scale", name, value) for name, value in attrs.items()}
    return Operator("scale", {"X": [source]}, {"Out": [target]}, typed, origin=origin)


def _scale_grad(op: Operator) -> list[Operator]:
    attrs = {"scale": op.attr("scale", 1.0), "bias": 0.0, "bias_after_scale": True}
    made = scale_op(names.grad(op.outputs["Out"][0]), names.grad(op.inputs["X"][0]), attrs, op.origin)
    if op.inputs.get("ScaleTensor"):
        made.inputs["ScaleTensor"] = list(op.inputs["ScaleTensor"])
    return [made]


def _sign_grad(op: Operator) -> list[Operator]:
    return [scale_op(names.grad(op.outputs["Out"][0]), names.grad(op.inputs["X"][0]), {"scale": 0.0}, op.origin)]


_X = np.array([[1.0, -2.0], [0.5, 4.0]])
_ROWS = SelectedRows(np.array([4, 1, 4]), np.array([[1.0], [2.0], [-3.0]]), 6)

register(
    "scale",
    doc="Out = scale * X + bias, or scale * (X + bias) with bias_after_scale False; keeps X's dtype and SelectedRows.",
    inputs=["X", "ScaleTensor?"],
    outputs=["Out"],
    attrs={
        "scale": float_attr(1.0, "the factor, unless ScaleTensor gives it"),
        "bias": float_attr(0.0),
        "bias_after_scale": bool_attr(default=True),
    },
    infer=like("X", "Out"),
    kernel=over_rows(scale_),
    overwrites=(Overwrite("X", scale_over),),
    grad=_scale_grad,
    share_lod="X",
    sparse=("X",),
    cases=(
        Case({"X": _X}, {"scale": 2.0, "bias": 1.0}, {"Out": 2 * _X + 1}, check_grad=("X",)),
        Case({"X": _X}, {"scale": 2.0, "bias": 1.0, "bias_after_scale": False}, {"Out": 2 * (_X + 1)}),
        Case({"X": _X, "ScaleTensor": np.array([0.25])}, {}, {"Out": _X / 4}, check_grad=("X",)),
        Case({"X": np.array([3, -3])}, {"scale": 2.9}, {"Out": np.array([6, -6])}, note="integer factor"),
        Case({"X": _ROWS}, {"scale": 0.5}, {"Out": SelectedRows(_ROWS.rows, _ROWS.value / 2, 6)}),
    ),
)


def sign_(ctx: KernelContext, X: Array) -> Array:
    return sign(X)


register(
    "sign",
    doc="Out = -1, 0 or 1, elementwise; 0 for NaN. The derivative is 0.",
    inputs=["X"],
    outputs=["Out"],
    infer=like("X", "Out"),
    kernel=sign_,
    grad=_sign_grad,
    share_lod="X",
    cases=(
        Case({"X": np.array([-1.5, 2.0])}, {}, {"Out": np.array([-1.0, 1.0])}, check_grad=("X",)),
        Case({"X": np.array([0.0, np.nan])}, {}, {"Out": np.array([0.0, 0.0])}),
    ),
)
