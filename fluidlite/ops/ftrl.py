"""ftrl: follow the regularised leader, proximal, with a rate per coordinate."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels.in_numpy import formulas
from fluidlite.kernels.rules import Rule
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Accumulator, Case, float_attr, register
from fluidlite.ops.updates import SPARSE, apply, infer_update, number
from fluidlite.values.selected_rows import SelectedRows


def ftrl(
    ctx: KernelContext,
    Param: Any,
    SquaredAccumulator: Any,
    LinearAccumulator: Any,
    Grad: Array | SelectedRows,
    LearningRate: Array,
    *,
    l1: float,
    l2: float,
    lr_power: float,
) -> dict[str, Any]:
    rate = number(LearningRate)

    def with_power(p: Array, g: Array, squared: Array, linear: Array) -> None:
        formulas.ftrl(p, g, squared, linear, rate, l1, l2, root=lambda n: np.power(n, -lr_power))

    step = Rule("ftrl", (rate, l1, l2)) if lr_power == -0.5 else with_power
    state = {"SquaredAccumOut": SquaredAccumulator, "LinearAccumOut": LinearAccumulator}
    return apply(ctx, step, Param, Grad, state)


register(
    "ftrl",
    doc="""With n = SquaredAccumulator, z = LinearAccumulator, root(n) = n^-lr_power:

n' = n + Grad^2; z' = z + Grad - (root(n') - root(n)) / LearningRate * Param;
ParamOut = (l1 * sign(z') - z') / (root(n') / LearningRate + 2 * l2) where |z'| > l1, else 0.
A learning rate of 0, for which z is not defined, leaves everything as it is.

A SelectedRows gradient, which Fluid refuses, moves its rows only; elsewhere the gradient is 0 and nothing would change
but rows that are not yet the minimiser of their (n, z). Source: McMahan et al., "Ad click prediction", KDD 2013.
""",
    inputs=["Param", "SquaredAccumulator", "LinearAccumulator", "Grad", "LearningRate"],
    outputs=["ParamOut", "SquaredAccumOut", "LinearAccumOut"],
    attrs={"l1": float_attr(0.0), "l2": float_attr(0.0), "lr_power": float_attr(-0.5)},
    infer=infer_update,
    kernel=ftrl,
    sparse=(*SPARSE, "SquaredAccumulator", "LinearAccumulator"),
    inplace={
        "ParamOut": "Param",
        "SquaredAccumOut": "SquaredAccumulator",
        "LinearAccumOut": "LinearAccumulator",
    },
    accumulators=(
        Accumulator("SquaredAccumulator", "SquaredAccumOut", "squared"),
        Accumulator("LinearAccumulator", "LinearAccumOut", "linear"),
    ),
    is_optimizer=True,
    cases=tuple(
        Case(
            {
                "Param": np.array([[1.0, -2.0]]),
                "SquaredAccumulator": np.array([[16.0, 1.0]]),
                "LinearAccumulator": np.array([[2.0, 0.5]]),
                "Grad": np.array([[3.0, 0.0]]),
                "LearningRate": np.array([0.5]),
            },
            {"l1": 1.0, "l2": 1.0, "lr_power": power},
            {"ParamOut": param, "SquaredAccumOut": np.array([[25.0, 1.0]]), "LinearAccumOut": linear},
        )
        for power, param, linear in (
            (-0.5, np.array([[-1.0 / 6.0, 0.0]]), np.array([[3.0, 0.5]])),
            (-1.0, np.array([[12.0 / 52.0, 0.0]]), np.array([[-13.0, 0.5]])),
        )
    ),
)
