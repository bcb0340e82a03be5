"""rmsprop: steps divided by a decaying root mean square of the gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.kernels.rules import Rule
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Accumulator, Case, bool_attr, float_attr, register
from fluidlite.ops.updates import SPARSE, apply, infer_update, number
from fluidlite.values.selected_rows import SelectedRows

_EXAMPLE = {
    "Param": np.array([[1.0, -2.0]]),
    "Grad": np.array([[2.0, 0.0]]),
    "MeanSquare": np.array([[4.0, 6.0]]),
    "MeanGrad": np.array([[0.0, 2.0]]),
    "Moment": np.array([[1.0, 2.0]]),
    "LearningRate": np.array([0.5]),
}


def rmsprop(
    ctx: KernelContext,
    Param: Any,
    Grad: Array | SelectedRows,
    MeanSquare: Any,
    Moment: Any,
    MeanGrad: Any | None,
    LearningRate: Array,
    *,
    decay: float,
    epsilon: float,
    momentum: float,
    centered: bool,
) -> dict[str, Any]:
    if centered and MeanGrad is None:
        raise ProgramError("centered rmsprop needs input 'MeanGrad'")
    rule = Rule("centered_rmsprop" if centered else "rmsprop", (number(LearningRate), decay, epsilon, momentum))
    state = {"MeanSquareOut": MeanSquare, "MomentOut": Moment}
    if centered:
        state["MeanGradOut"] = MeanGrad
    return apply(ctx, rule, Param, Grad, state, every_row=True)


register(
    "rmsprop",
    doc="""MeanSquareOut = decay * MeanSquare + (1 - decay) * Grad^2;
MomentOut = momentum * Moment + LearningRate * Grad / sqrt(MeanSquareOut + epsilon); ParamOut = Param - MomentOut.
centered: MeanGradOut = decay * MeanGrad + (1 - decay) * Grad, and MeanSquareOut - MeanGradOut^2 takes the place of
MeanSquareOut under the root; otherwise MeanGrad is neither read nor written.

A SelectedRows gradient (also one without rows) moves every row of a dense parameter. On a table the rows of the
gradient alone move.
""",
    inputs=["Param", "MeanSquare", "MeanGrad?", "LearningRate", "Grad", "Moment"],
    outputs=["ParamOut", "MomentOut", "MeanSquareOut", "MeanGradOut?"],
    attrs={
        "epsilon": float_attr(1e-10),
        "decay": float_attr(0.9),
        "momentum": float_attr(0.0),
        "centered": bool_attr(default=False),
    },
    infer=infer_update,
    kernel=rmsprop,
    sparse=(*SPARSE, "MeanSquare", "MeanGrad", "Moment"),
    inplace={
        "ParamOut": "Param",
        "MomentOut": "Moment",
        "MeanSquareOut": "MeanSquare",
        "MeanGradOut": "MeanGrad",
    },
    accumulators=(
        Accumulator("Moment", "MomentOut", "momentum"),
        Accumulator("MeanSquare", "MeanSquareOut", "mean_square"),
        Accumulator("MeanGrad", "MeanGradOut", "mean_grad"),
    ),
    is_optimizer=True,
    cases=(
        Case(
            _EXAMPLE,
            {"decay": 0.5, "epsilon": 12.0, "momentum": 0.5},
            {
                "ParamOut": np.array([[0.25, -3.0]]),
                "MomentOut": np.array([[0.75, 1.0]]),
                "MeanSquareOut": np.array([[4.0, 3.0]]),
            },
        ),
        Case(
            _EXAMPLE,
            {"decay": 0.5, "epsilon": 13.0, "momentum": 0.5, "centered": True},
            {
                "ParamOut": np.array([[0.25, -3.0]]),
                "MomentOut": np.array([[0.75, 1.0]]),
                "MeanSquareOut": np.array([[4.0, 3.0]]),
                "MeanGradOut": np.array([[1.0, 1.0]]),
            },
        ),
    ),
)
