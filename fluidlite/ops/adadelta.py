"""adadelta: steps scaled by the past of gradients and of the steps themselves; no learning rate."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels.rules import Rule
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Accumulator, Case, float_attr, register
from fluidlite.ops.updates import SPARSE, apply, infer_update
from fluidlite.values.selected_rows import SelectedRows


def adadelta(
    ctx: KernelContext,
    Param: Any,
    Grad: Array | SelectedRows,
    AvgSquaredGrad: Any,
    AvgSquaredUpdate: Any,
    *,
    rho: float,
    epsilon: float,
) -> dict[str, Any]:
    state = {"AvgSquaredGradOut": AvgSquaredGrad, "AvgSquaredUpdateOut": AvgSquaredUpdate}
    return apply(ctx, Rule("adadelta", (rho, epsilon)), Param, Grad, state)


register(
    "adadelta",
    doc="""AvgSquaredGradOut = rho * AvgSquaredGrad + (1 - rho) * Grad^2;
move = -sqrt((AvgSquaredUpdate + epsilon) / (AvgSquaredGradOut + epsilon)) * Grad;
AvgSquaredUpdateOut = rho * AvgSquaredUpdate + (1 - rho) * move^2; ParamOut = Param + move.

A SelectedRows gradient, which Fluid refuses, moves its rows only. Source: Zeiler, arXiv:1212.5701.
""",
    inputs=["Param", "Grad", "AvgSquaredGrad", "AvgSquaredUpdate"],
    outputs=["ParamOut", "AvgSquaredGradOut", "AvgSquaredUpdateOut"],
    attrs={"rho": float_attr(0.95), "epsilon": float_attr(1e-6)},
    infer=infer_update,
    kernel=adadelta,
    sparse=(*SPARSE, "AvgSquaredGrad", "AvgSquaredUpdate"),
    inplace={
        "ParamOut": "Param",
        "AvgSquaredGradOut": "AvgSquaredGrad",
        "AvgSquaredUpdateOut": "AvgSquaredUpdate",
    },
    accumulators=(
        Accumulator("AvgSquaredGrad", "AvgSquaredGradOut", "_avg_squared_grad"),
        Accumulator("AvgSquaredUpdate", "AvgSquaredUpdateOut", "_avg_squared_update"),
    ),
    is_optimizer=True,
    cases=(
        Case(
            {
                "Param": np.array([[1.0, -2.0]]),
                "Grad": np.array([[2.0, 0.0]]),
                "AvgSquaredGrad": np.array([[2.0, 2.0]]),
                "AvgSquaredUpdate": np.array([[3.0, 3.0]]),
            },
            {"rho": 0.5, "epsilon": 1.0},
            {
                "ParamOut": np.array([[-1.0, -2.0]]),
                "AvgSquaredGradOut": np.array([[3.0, 1.0]]),
                "AvgSquaredUpdateOut": np.array([[3.5, 1.5]]),
            },
        ),
    ),
)
