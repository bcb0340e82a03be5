"""adam and adamax: steps scaled by decaying averages of the gradient and of its size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels.rules import Rule
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Accumulator, Case, bool_attr, float_attr, long_attr, register
from fluidlite.ops.updates import SPARSE, apply, infer_update, number
from fluidlite.values.selected_rows import SelectedRows

_BETAS = {"beta1": float_attr(0.9), "beta2": float_attr(0.999), "epsilon": float_attr(1e-8)}


def adam(
    ctx: KernelContext,
    Param: Any,
    Grad: Array | SelectedRows,
    LearningRate: Array,
    Moment1: Any,
    Moment2: Any,
    Beta1Pow: Array,
    Beta2Pow: Array,
    Beta1Tensor: Array | None,
    Beta2Tensor: Array | None,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
    lazy_mode: bool,
) -> dict[str, Any]:
    beta1 = beta1 if Beta1Tensor is None else number(Beta1Tensor, "Beta1Tensor")
    beta2 = beta2 if Beta2Tensor is None else number(Beta2Tensor, "Beta2Tensor")
    rule = adam_rule(LearningRate, Beta1Pow, Beta2Pow, beta1, beta2, epsilon)
    state = {"Moment1Out": Moment1, "Moment2Out": Moment2}
    outputs = apply(ctx, rule, Param, Grad, state, every_row=not lazy_mode)
    return {**outputs, "Beta1PowOut": Beta1Pow * beta1, "Beta2PowOut": Beta2Pow * beta2}


def adam_rule(rate: Array, beta1_pow: Array, beta2_pow: Array, beta1: float, beta2: float, epsilon: float) -> Rule:
    """The formula of adam, its rate corrected for moments that began at zero."""
    correction = math.sqrt(1.0 - number(beta2_pow, "Beta2Pow")) / (1.0 - number(beta1_pow, "Beta1Pow"))
    return Rule("adam", (number(rate) * correction, beta1, beta2, epsilon))


def adamax(
    ctx: KernelContext,
    Param: Any,
    Grad: Array | SelectedRows,
    LearningRate: Array,
    Moment: Any,
    InfNorm: Any,
    Beta1Pow: Array,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> dict[str, Any]:
    rate = number(LearningRate) / (1.0 - number(Beta1Pow, "Beta1Pow"))
    rule = Rule("adamax", (rate, beta1, beta2, epsilon))
    return apply(ctx, rule, Param, Grad, {"MomentOut": Moment, "InfNormOut": InfNorm})


register(
    "adam",
    doc="""Moment1Out = beta1 * Moment1 + (1 - beta1) * Grad; Moment2Out = beta2 * Moment2 + (1 - beta2) * Grad^2;
ParamOut = Param - LearningRate * sqrt(1 - Beta2Pow) / (1 - Beta1Pow) * Moment1Out / (sqrt(Moment2Out) + epsilon);
then Beta1PowOut = Beta1Pow * beta1, Beta2PowOut = Beta2Pow * beta2, once per step, also for a gradient without rows.

A SelectedRows gradient moves every row of a dense parameter, as a dense gradient with zeros would; with lazy_mode, and
always on a table, its rows only. Source: Kingma and Ba, arXiv:1412.6980, with epsilon as in its section 2, last lines.
""",
    inputs=[
        "Param",
        "Grad",
        "LearningRate",
        "Moment1",
        "Moment2",
        "Beta1Pow",
        "Beta2Pow",
        "Beta1Tensor?",
        "Beta2Tensor?",
    ],
    outputs=["ParamOut", "Moment1Out", "Moment2Out", "Beta1PowOut?", "Beta2PowOut?"],
    attrs={
        **_BETAS,
        "lazy_mode": bool_attr(default=False, doc="leave the rows that a SelectedRows gradient does not name alone"),
        "min_row_size_to_use_multithread": long_attr(1000, "accepted, without effect"),
    },
    infer=infer_update,
    kernel=adam,
    sparse=(*SPARSE, "Moment1", "Moment2"),
    inplace={
        "ParamOut": "Param",
        "Moment1Out": "Moment1",
        "Moment2Out": "Moment2",
        "Beta1PowOut": "Beta1Pow",
        "Beta2PowOut": "Beta2Pow",
    },
    accumulators=(
        Accumulator("Moment1", "Moment1Out", "moment1"),
        Accumulator("Moment2", "Moment2Out", "moment2"),
        Accumulator("Beta1Pow", "Beta1PowOut", "beta1_pow_acc", fill="beta1", whole=True),
        Accumulator("Beta2Pow", "Beta2PowOut", "beta2_pow_acc", fill="beta2", whole=True),
    ),
    is_optimizer=True,
    cases=(
        Case(
            {
                "Param": np.array([[1.0, -2.0]]),
                "Grad": np.array([[2.0, 0.0]]),
                "LearningRate": np.array([0.5]),
                "Moment1": np.array([[0.0, 1.0]]),
                "Moment2": np.array([[4.0, 8.0]]),
                "Beta1Pow": np.array([0.5]),
                "Beta2Pow": np.array([0.75]),
            },
            {"beta1": 0.5, "beta2": 0.5, "epsilon": 1.0},
            {
                "ParamOut": np.array([[1.0 - 1.0 / 6.0, -2.0 - 1.0 / 12.0]]),
                "Moment1Out": np.array([[1.0, 0.5]]),
                "Moment2Out": np.array([[4.0, 4.0]]),
                "Beta1PowOut": np.array([0.25]),
                "Beta2PowOut": np.array([0.375]),
            },
        ),
    ),
)
register(
    "adamax",
    doc="""MomentOut = beta1 * Moment + (1 - beta1) * Grad; InfNormOut = max(|Grad|, beta2 * InfNorm + epsilon);
ParamOut = Param - LearningRate / (1 - Beta1Pow) * MomentOut / InfNormOut. Another op advances Beta1Pow.

A SelectedRows gradient, which Fluid refuses, moves its rows only. Source: Kingma and Ba, arXiv:1412.6980, section 7.1.
""",
    inputs=["Param", "Grad", "LearningRate", "Moment", "InfNorm", "Beta1Pow"],
    outputs=["ParamOut", "MomentOut", "InfNormOut"],
    attrs=_BETAS,
    infer=infer_update,
    kernel=adamax,
    sparse=(*SPARSE, "Moment", "InfNorm"),
    inplace={"ParamOut": "Param", "MomentOut": "Moment", "InfNormOut": "InfNorm"},
    accumulators=(
        Accumulator("Moment", "MomentOut", "moment"),
        Accumulator("InfNorm", "InfNormOut", "inf_norm"),
        Accumulator("Beta1Pow", "", "beta1_pow_acc", fill="beta1", whole=True),
    ),
    is_optimizer=True,
    cases=(
        Case(
            {
                "Param": np.array([[1.0, -2.0]]),
                "Grad": np.array([[2.0, 0.0]]),
                "LearningRate": np.array([0.5]),
                "Moment": np.array([[0.0, 1.0]]),
                "InfNorm": np.array([[1.0, 6.0]]),
                "Beta1Pow": np.array([0.5]),
            },
            {"beta1": 0.5, "beta2": 0.5, "epsilon": 1.0},
            {
                "ParamOut": np.array([[0.5, -2.125]]),
                "MomentOut": np.array([[1.0, 0.5]]),
                "InfNormOut": np.array([[2.0, 4.0]]),
            },
        ),
    ),
)
