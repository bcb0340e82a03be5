"""Copies and counters: assign, increment, shape, range."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import ProgramError
from fluidlite.ops import registry
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.registry import Case, float_attr, register
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows


def assign(ctx: KernelContext, X: Any) -> Any:
    """A real copy: whatever changes X in place later leaves Out alone."""
    if isinstance(X, LoDTensor):
        return LoDTensor(X.array.copy(), X.lod)
    if isinstance(X, SelectedRows):
        return SelectedRows(X.rows.copy(), X.value.copy(), X.height)
    return X.copy() if isinstance(X, np.ndarray) else list(X) if isinstance(X, list) else X


def _infer_assign(ctx: InferContext) -> None:
    if ctx.maybe_input("X") is not None:
        like("X", "Out")(ctx)


def _assign_grad(op: Operator) -> list[Operator]:
    return [
        Operator(
            "assign",
            {"X": [names.grad(op.outputs["Out"][0])]},
            {"Out": [names.grad(op.inputs["X"][0])]},
            origin=op.origin,
        )
    ]


def increment(ctx: KernelContext, X: Array, *, step: float) -> Array:
    return np.asarray(X + np.asarray(step).astype(X.dtype))


def _infer_increment(ctx: InferContext) -> None:
    if ctx.shape("X") not in ((1,), (-1,), ()):
        raise ctx.error(f"X must have one element, not shape {list(ctx.shape('X'))}")
    like("X", "Out")(ctx)


def _increment_back(op: Operator) -> list[Operator]:
    """Not a gradient: Fluid takes the step back, so that a loop's backward pass counts down."""
    step = registry.attrs_for_one("increment", "step", -op.attr("step", 1.0))
    return [
        Operator("increment", {"X": list(op.outputs["Out"])}, {"Out": list(op.inputs["X"])}, {"step": step}, op.origin)
    ]


def shape(ctx: KernelContext, Input: Any) -> Array:
    value = Input.value if isinstance(Input, SelectedRows) else Input
    return np.array(value.shape, np.int32)


def _infer_shape(ctx: InferContext) -> None:
    source = ctx.input("Input")
    known = source.shape is not None and source.kind is VarKind.LOD_TENSOR
    ctx.set("Out", (len(ctx.shape("Input")) if known else -1,), "int32", lod_level=0)


def range_(ctx: KernelContext, Start: Array, End: Array, Step: Array) -> Array:
    start, end, step = (value.reshape(-1)[0] for value in (Start, End, Step))
    if step == 0 or (end - start) / step < 0:
        raise ProgramError(f"range from {start} to {end} by {step} never ends")
    count = math.ceil(abs((end - start) / step))
    return np.asarray((start + np.arange(count, dtype=Start.dtype) * step).astype(Start.dtype))


def _infer_range(ctx: InferContext) -> None:
    ctx.set("Out", (-1,), ctx.input("Start").dtype, lod_level=0)


_X = np.array([[1.0, 2.0], [3.0, 4.0]])
_ROWS = SelectedRows(np.array([4, 1]), np.array([[1.0], [2.0]]), 6)

register(
    "assign",
    doc="Out = a copy of X: an array, SelectedRows or a tensor array.",
    inputs=["X?"],
    outputs=["Out"],
    infer=_infer_assign,
    kernel=assign,
    grad=_assign_grad,
    takes_lod=True,
    sparse=("X",),
    cases=(
        Case({"X": _X}, {}, {"Out": _X}, check_grad=("X",)),
        Case({"X": LoDTensor(_X, ((0, 2),))}, {}, {"Out": LoDTensor(_X, ((0, 2),))}),
        Case({"X": _ROWS}, {}, {"Out": _ROWS}),
    ),
)
register(
    "increment",
    doc="Out = X + step, of one element; the step takes X's dtype.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"step": float_attr(1.0)},
    infer=_infer_increment,
    kernel=increment,
    grad=_increment_back,
    inplace={"Out": "X"},
    cases=(
        Case({"X": np.array([3])}, {}, {"Out": np.array([4])}),
        Case({"X": np.array([3.0])}, {"step": -0.5}, {"Out": np.array([2.5])}),
        Case({"X": np.array([3])}, {"step": 0.5}, {"Out": np.array([3])}, note="an integer step"),
    ),
)
register(
    "shape",
    doc="Out (rank,) int32 = the shape of Input; of SelectedRows that of its rows.",
    inputs=["Input"],
    outputs=["Out"],
    infer=_infer_shape,
    kernel=shape,
    sparse=("Input",),
    cases=(Case({"Input": np.zeros((3, 0, 2))}, {}, {"Out": np.array([3, 0, 2], np.int32)}),),
)
register(
    "range",
    doc="Out = the numbers from Start up to, without, End by Step, in Start's dtype.",
    inputs=["Start", "End", "Step"],
    outputs=["Out"],
    infer=_infer_range,
    kernel=range_,
    cases=(
        Case({"Start": np.array([1]), "End": np.array([6]), "Step": np.array([2])}, {}, {"Out": np.array([1, 3, 5])}),
        Case(
            {"Start": np.array([1.0]), "End": np.array([0.0]), "Step": np.array([-0.25])},
            {},
            {"Out": np.array([1.0, 0.75, 0.5, 0.25])},
        ),
        Case({"Start": np.array([2]), "End": np.array([2]), "Step": np.array([1])}, {}, {"Out": np.array([], int)}),
    ),
)
