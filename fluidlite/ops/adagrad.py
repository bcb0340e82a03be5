"""adagrad and decayed_adagrad: rates that shrink with the squares of past gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels.rules import Rule
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Accumulator, Case, float_attr, register
from fluidlite.ops.updates import SPARSE, apply, infer_update, number
from fluidlite.values.selected_rows import SelectedRows

_EXAMPLE = {
    "Param": np.array([[1.0, -2.0]]),
    "Grad": np.array([[3.0, 0.0]]),
    "Moment": np.array([[16.0, 1.0]]),
    "LearningRate": np.array([0.5]),
}


def adagrad(
    ctx: KernelContext,
    Param: Any,
    Grad: Array | SelectedRows,
    Moment: Any,
    LearningRate: Array,
    *,
    epsilon: float,
) -> dict[str, Any]:
    rule = Rule("adagrad", (number(LearningRate), epsilon))
    return apply(ctx, rule, Param, Grad, {"MomentOut": Moment})


def decayed_adagrad(
    ctx: KernelContext,
    Param: Any,
    Grad: Array | SelectedRows,
    Moment: Any,
    LearningRate: Array,
    *,
    decay: float,
    epsilon: float,
) -> dict[str, Any]:
    rule = Rule("decayed_adagrad", (number(LearningRate), decay, epsilon))
    return apply(ctx, rule, Param, Grad, {"MomentOut": Moment})


register(
    "adagrad",
    doc="""MomentOut = Moment + Grad^2; ParamOut = Param - LearningRate * Grad / (sqrt(MomentOut) + epsilon).

A SelectedRows gradient moves its rows only. Source: Duchi et al., JMLR 12 (2011).
""",
    inputs=["Param", "Grad", "Moment", "LearningRate"],
    outputs=["ParamOut", "MomentOut"],
    attrs={"epsilon": float_attr(1e-6)},
    infer=infer_update,
    kernel=adagrad,
    sparse=(*SPARSE, "Moment"),
    inplace={"ParamOut": "Param", "MomentOut": "Moment"},
    accumulators=(Accumulator("Moment", "MomentOut", "moment"),),
    is_optimizer=True,
    cases=(
        Case(
            _EXAMPLE,
            {"epsilon": 1.0},
            {"ParamOut": np.array([[0.75, -2.0]]), "MomentOut": np.array([[25.0, 1.0]])},
        ),
    ),
)
register(
    "decayed_adagrad",
    doc="""MomentOut = decay * Moment + (1 - decay) * Grad^2; ParamOut = Param - LearningRate * Grad / (sqrt(MomentOut) + epsilon).

A SelectedRows gradient, which Fluid refuses, moves its rows only: the moments of other rows do not decay.
""",
    inputs=["Param", "Grad", "Moment", "LearningRate"],
    outputs=["ParamOut", "MomentOut"],
    attrs={"decay": float_attr(0.95), "epsilon": float_attr(1e-6)},
    infer=infer_update,
    kernel=decayed_adagrad,
    sparse=(*SPARSE, "Moment"),
    inplace={"ParamOut": "Param", "MomentOut": "Moment"},
    accumulators=(Accumulator("Moment", "MomentOut", "moment"),),
    is_optimizer=True,
    cases=(
        Case(
            {**_EXAMPLE, "Moment": np.array([[23.0, 1.0]])},
            {"decay": 0.5, "epsilon": 1.0},
            {"ParamOut": np.array([[0.7, -2.0]]), "MomentOut": np.array([[16.0, 0.5]])},
        ),
    ),
)
