"""sgd: stochastic gradient descent."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels.rules import Rule
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Case, register
from fluidlite.ops.updates import SPARSE, apply, infer_update, number
from fluidlite.values.selected_rows import SelectedRows


def sgd(ctx: KernelContext, Param: Any, LearningRate: Array, Grad: Array | SelectedRows) -> dict[str, Any]:
    return apply(ctx, sgd_rule(LearningRate), Param, Grad)


def sgd_rule(rate: Array) -> Rule:
    """The formula of sgd."""
    return Rule("sgd", (number(rate),))


register(
    "sgd",
    doc="""ParamOut = Param - LearningRate * Grad.

A SelectedRows gradient moves its rows only. Param may be SelectedRows (each row of Grad must be in it) or a table.
""",
    inputs=["Param", "LearningRate", "Grad"],
    outputs=["ParamOut"],
    infer=infer_update,
    kernel=sgd,
    sparse=SPARSE,
    inplace={"ParamOut": "Param"},
    is_optimizer=True,
    cases=(
        Case(
            {
                "Param": np.array([[1.0, -2.0], [0.5, 0.0]]),
                "LearningRate": np.array([0.5]),
                "Grad": np.array([[2.0, 1.0], [0.0, -1.0]]),
            },
            {},
            {"ParamOut": np.array([[0.0, -2.5], [0.5, 0.5]])},
        ),
    ),
)
