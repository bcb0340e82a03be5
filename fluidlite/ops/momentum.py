"""momentum and lars_momentum: gradient descent with a velocity."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels.rules import Rule
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Accumulator, Case, bool_attr, float_attr, register
from fluidlite.ops.updates import SPARSE, apply, infer_update, number, refuse_table
from fluidlite.values.selected_rows import SelectedRows

_VELOCITY = Accumulator("Velocity", "VelocityOut", "velocity")


def momentum_rule(rate: float, mu: float, use_nesterov: bool) -> Rule:
    """The formula of momentum, with Nesterov's look-ahead or not."""
    return Rule("nesterov" if use_nesterov else "momentum", (rate, mu))


def momentum(
    ctx: KernelContext,
    Param: Any,
    Grad: Array | SelectedRows,
    Velocity: Any,
    LearningRate: Array,
    *,
    mu: float,
    use_nesterov: bool,
) -> dict[str, Any]:
    rule = momentum_rule(number(LearningRate), mu, use_nesterov)
    return apply(ctx, rule, Param, Grad, {"VelocityOut": Velocity}, every_row=True)


def lars_momentum(
    ctx: KernelContext,
    Param: Array,
    Grad: Array | SelectedRows,
    Velocity: Array,
    LearningRate: Array,
    *,
    mu: float,
    lars_coeff: float,
    lars_weight_decay: float,
) -> dict[str, Any]:
    refuse_table(ctx, Param)
    rate = number(LearningRate)

    def step(p: Array, g: Array, velocity: Array) -> None:
        p_norm, g_norm = float(np.linalg.norm(p)), float(np.linalg.norm(g))
        local = rate
        if p_norm > 0 and g_norm > 0:
            local = rate * lars_coeff * p_norm / (g_norm + lars_weight_decay * p_norm)
        velocity *= mu
        velocity += local * (g + lars_weight_decay * p)
        p -= velocity

    return apply(ctx, step, Param, Grad, {"VelocityOut": Velocity}, every_row=True)


register(
    "momentum",
    doc="""VelocityOut = mu * Velocity + Grad; ParamOut = Param - LearningRate * VelocityOut, with use_nesterov
Param - LearningRate * (Grad + mu * VelocityOut).

A SelectedRows gradient (also one without rows) moves every row of a dense parameter: velocities decay. On a table
the rows of the gradient alone move.
""",
    inputs=["Param", "Grad", "Velocity", "LearningRate"],
    outputs=["ParamOut", "VelocityOut"],
    attrs={"mu": float_attr(doc="share of the velocity that is kept"), "use_nesterov": bool_attr(default=False)},
    infer=infer_update,
    kernel=momentum,
    sparse=(*SPARSE, "Velocity"),
    inplace={"ParamOut": "Param", "VelocityOut": "Velocity"},
    accumulators=(_VELOCITY,),
    is_optimizer=True,
    cases=tuple(
        Case(
            {
                "Param": np.array([[1.0, -2.0]]),
                "Grad": np.array([[0.5, 1.0]]),
                "Velocity": np.array([[1.0, 0.0]]),
                "LearningRate": np.array([0.25]),
            },
            {"mu": 0.5, "use_nesterov": nesterov},
            {"ParamOut": param, "VelocityOut": np.array([[1.0, 1.0]])},
        )
        for nesterov, param in ((False, np.array([[0.75, -2.25]])), (True, np.array([[0.75, -2.375]])))
    ),
)
register(
    "lars_momentum",
    doc="""Momentum with a rate for the whole parameter (You et al., "Large batch training of convolutional networks", 2017):

rate = LearningRate * lars_coeff * |Param| / (|Grad| + lars_weight_decay * |Param|), LearningRate itself when a norm is 0;
VelocityOut = mu * Velocity + rate * (Grad + lars_weight_decay * Param); ParamOut = Param - VelocityOut.
Refused on tables.
""",
    inputs=["Param", "Grad", "Velocity", "LearningRate"],
    outputs=["ParamOut", "VelocityOut"],
    attrs={"mu": float_attr(), "lars_coeff": float_attr(0.001), "lars_weight_decay": float_attr(0.0005)},
    infer=infer_update,
    kernel=lars_momentum,
    sparse=(*SPARSE, "Velocity"),
    inplace={"ParamOut": "Param", "VelocityOut": "Velocity"},
    accumulators=(_VELOCITY,),
    is_optimizer=True,
    needs_whole_param=True,
    cases=(
        Case(
            {
                "Param": np.array([[3.0, 4.0]]),
                "Grad": np.array([[0.0, 2.5]]),
                "Velocity": np.array([[1.0, 0.0]]),
                "LearningRate": np.array([0.5]),
            },
            {"mu": 0.5, "lars_coeff": 0.5, "lars_weight_decay": 0.5},
            {"ParamOut": np.array([[2.125, 2.875]]), "VelocityOut": np.array([[0.875, 1.125]])},
            note="norms 5 and 2.5: rate 0.25",
        ),
    ),
)
