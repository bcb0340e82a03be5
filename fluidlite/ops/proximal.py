"""proximal_gd and proximal_adagrad: a gradient step, then the exact step of an L1 and L2 penalty."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Accumulator, Case, float_attr, register
from fluidlite.ops.updates import SPARSE, apply, infer_update, number
from fluidlite.values.selected_rows import SelectedRows

_PENALTIES = {"l1": float_attr(0.0), "l2": float_attr(0.0)}


def proximal_gd(
    ctx: KernelContext, Param: Any, Grad: Array | SelectedRows, LearningRate: Array, *, l1: float, l2: float
) -> dict[str, Any]:
    rate = number(LearningRate)

    def step(p: Array, g: Array) -> None:
        p -= rate * g
        p[...] = _shrunk(p, rate * l1, rate * l2)

    return apply(ctx, step, Param, Grad)


def proximal_adagrad(
    ctx: KernelContext,
    Param: Any,
    Moment: Any,
    Grad: Array | SelectedRows,
    LearningRate: Array,
    *,
    l1: float,
    l2: float,
) -> dict[str, Any]:
    rate = number(LearningRate)

    def step(p: Array, g: Array, moment: Array) -> None:
        moment += g * g
        # An element that never had a gradient has moment 0 and takes no step; Fluid makes it 0/0.
        p -= np.divide(rate * g, np.sqrt(moment), out=np.zeros_like(p), where=moment > 0)
        p[...] = _shrunk(p, rate * l1, rate * l2)

    return apply(ctx, step, Param, Grad, {"MomentOut": Moment})


def _shrunk(p: Array, l1: float, l2: float) -> Array:
    """argmin over x of (x - p)^2 / 2 + l1 |x| + l2 x^2 / 2, elementwise."""
    return np.sign(p) * np.maximum(np.abs(p) - l1, 0.0) / (1.0 + l2)


register(
    "proximal_gd",
    doc="""x = Param - LearningRate * Grad; ParamOut = sign(x) * max(|x| - LearningRate * l1, 0) / (1 + LearningRate * l2).

A SelectedRows gradient, which Fluid refuses, moves its rows only. Source: Duchi and Singer, "Efficient online and
batch learning using forward backward splitting", JMLR 10 (2009).
""",
    inputs=["Param", "Grad", "LearningRate"],
    outputs=["ParamOut"],
    attrs=_PENALTIES,
    infer=infer_update,
    kernel=proximal_gd,
    sparse=SPARSE,
    inplace={"ParamOut": "Param"},
    is_optimizer=True,
    cases=(
        Case(
            {"Param": np.array([[1.0, -2.0]]), "Grad": np.array([[1.0, 2.0]]), "LearningRate": np.array([0.5])},
            {"l1": 1.0, "l2": 2.0},
            {"ParamOut": np.array([[0.0, -1.25]])},
        ),
    ),
)
register(
    "proximal_adagrad",
    doc="""MomentOut = Moment + Grad^2; x = Param - LearningRate * Grad / sqrt(MomentOut) (no step where that is 0);
ParamOut = sign(x) * max(|x| - LearningRate * l1, 0) / (1 + LearningRate * l2).

A SelectedRows gradient, which Fluid refuses, moves its rows only. Source: as proximal_gd.
""",
    inputs=["Param", "Moment", "Grad", "LearningRate"],
    outputs=["ParamOut", "MomentOut"],
    attrs=_PENALTIES,
    infer=infer_update,
    kernel=proximal_adagrad,
    sparse=(*SPARSE, "Moment"),
    inplace={"ParamOut": "Param", "MomentOut": "Moment"},
    accumulators=(Accumulator("Moment", "MomentOut", "moment"),),
    is_optimizer=True,
    cases=(
        Case(
            {
                "Param": np.array([[1.0, -2.0]]),
                "Moment": np.array([[16.0, 0.0]]),
                "Grad": np.array([[3.0, 0.0]]),
                "LearningRate": np.array([0.5]),
            },
            {"l1": 1.0, "l2": 2.0},
            {"ParamOut": np.array([[0.1, -0.75]]), "MomentOut": np.array([[25.0, 0.0]])},
        ),
    ),
)
