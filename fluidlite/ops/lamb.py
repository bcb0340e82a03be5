"""lamb: adam's direction, scaled layer by layer."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Accumulator, Case, float_attr, register
from fluidlite.ops.updates import SPARSE, apply, infer_update, number, refuse_table
from fluidlite.values.selected_rows import SelectedRows


def lamb(
    ctx: KernelContext,
    Param: Array,
    Grad: Array | SelectedRows,
    LearningRate: Array,
    Moment1: Array,
    Moment2: Array,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> dict[str, Array]:
    refuse_table(ctx, Param)
    rate = number(LearningRate)

    def step(p: Array, g: Array, moment1: Array, moment2: Array) -> None:
        moment1 *= beta1
        moment1 += (1.0 - beta1) * g
        moment2 *= beta2
        moment2 += (1.0 - beta2) * g * g
        direction = moment1 / (np.sqrt(moment2) + epsilon) + weight_decay * p
        p_norm, r_norm = float(np.linalg.norm(p)), float(np.linalg.norm(direction))
        p -= rate * (p_norm / r_norm if p_norm > 0 and r_norm > 0 else 1.0) * direction

    return apply(ctx, step, Param, Grad, {"Moment1Out": Moment1, "Moment2Out": Moment2}, every_row=True)


register(
    "lamb",
    doc="""Moment1Out, Moment2Out as in adam, without bias correction;
r = Moment1Out / (sqrt(Moment2Out) + epsilon) + weight_decay * Param;
ParamOut = Param - LearningRate * |Param| / |r| * r, the ratio being 1 when a norm is 0. Other ops advance the beta powers.

A SelectedRows gradient moves every row. Refused on tables. Source: You et al., arXiv:1904.00962.
""",
    inputs=["Param", "Grad", "LearningRate", "Moment1", "Moment2", "Beta1Pow", "Beta2Pow"],
    outputs=["ParamOut", "Moment1Out", "Moment2Out"],
    attrs={
        "weight_decay": float_attr(),
        "beta1": float_attr(0.9),
        "beta2": float_attr(0.999),
        "epsilon": float_attr(1e-6),
    },
    infer=infer_update,
    kernel=lamb,
    sparse=(*SPARSE, "Moment1", "Moment2"),
    inplace={"ParamOut": "Param", "Moment1Out": "Moment1", "Moment2Out": "Moment2"},
    accumulators=(
        Accumulator("Moment1", "Moment1Out", "moment1"),
        Accumulator("Moment2", "Moment2Out", "moment2"),
        Accumulator("Beta1Pow", "", "beta1_pow_acc", fill="beta1", whole=True),
        Accumulator("Beta2Pow", "", "beta2_pow_acc", fill="beta2", whole=True),
    ),
    is_optimizer=True,
    needs_whole_param=True,
    cases=(
        Case(
            {
                "Param": np.array([[6.0, 8.0]]),
                "Grad": np.array([[2.0, 0.0]]),
                "LearningRate": np.array([0.5]),
                "Moment1": np.array([[7.0, 12.0]]),
                "Moment2": np.array([[4.0, 8.0]]),
                "Beta1Pow": np.array([0.5]),
                "Beta2Pow": np.array([0.5]),
            },
            {"beta1": 0.5, "beta2": 0.5, "epsilon": 1.0, "weight_decay": 0.25},
            {
                "ParamOut": np.array([[3.0, 4.0]]),
                "Moment1Out": np.array([[4.5, 6.0]]),
                "Moment2Out": np.array([[4.0, 4.0]]),
            },
            note="r is [3, 4], the ratio 2",
        ),
    ),
)
