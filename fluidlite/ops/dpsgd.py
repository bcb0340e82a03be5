"""dpsgd: differentially private gradient descent."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Case, float_attr, int_attr, register
from fluidlite.ops.updates import SPARSE, apply, infer_update, number, refuse_table
from fluidlite.values.selected_rows import SelectedRows


def dpsgd(
    ctx: KernelContext,
    Param: Array,
    Grad: Array | SelectedRows,
    LearningRate: Array,
    *,
    clip: float,
    batch_size: float,
    sigma: float,
    seed: int,
) -> dict[str, Array]:
    refuse_table(ctx, Param)
    rate = number(LearningRate)
    noise = sigma * float(ctx.generator(seed).standard_normal()) / batch_size

    def step(p: Array, g: Array) -> None:
        scale = max(1.0, float(np.linalg.norm(g)) / clip)
        p -= rate * (g / scale + noise)

    return apply(ctx, step, Param, Grad, every_row=True)


register(
    "dpsgd",
    doc="""ParamOut = Param - LearningRate * (Grad / max(1, |Grad| / clip) + sigma * z / batch_size), z one standard normal
number for the whole parameter, new in each step.

A SelectedRows gradient moves every row. Refused on tables. Source: Abadi et al., arXiv:1607.00133, algorithm 1, with
the noise of Fluid.
""",
    inputs=["Param", "Grad", "LearningRate"],
    outputs=["ParamOut"],
    attrs={
        "clip": float_attr(10.0, "largest norm of a gradient"),
        "batch_size": float_attr(16.0),
        "sigma": float_attr(1.0, "size of the noise"),
        "seed": int_attr(0),
    },
    infer=infer_update,
    kernel=dpsgd,
    sparse=SPARSE,
    inplace={"ParamOut": "Param"},
    is_optimizer=True,
    needs_whole_param=True,
    cases=(
        Case(
            {"Param": np.array([[1.0, -2.0]]), "Grad": np.array([[3.0, 4.0]]), "LearningRate": np.array([0.5])},
            {"clip": 2.5, "sigma": 0.0},
            {"ParamOut": np.array([[0.25, -3.0]])},
        ),
    ),
)
