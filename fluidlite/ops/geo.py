"""Geo training: `geo_exchange` of a trainer, which exchanges with servers now and then, and `add_delta` of a server."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.core import names
from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.kernels.rules import Rule
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Case, block_attr, int_attr, register
from fluidlite.ops.updates import SPARSE, apply, infer_update
from fluidlite.values.selected_rows import SelectedRows


def geo_exchange(ctx: KernelContext, Steps: Array, *, sub_block: int, every: int) -> Array:
    if ctx.run_block is None:
        raise ProgramError(f"{ctx.op.type} needs an executor that runs blocks")
    if every < 1:
        raise ProgramError(f"op {ctx.op.type!r}: every must be at least 1, not {every}")
    ctx.run_at_close(sub_block, {names.GEO_SHARE: np.ones(1), names.GEO_LAST: np.ones(1, bool)})
    steps = Steps + 1
    if steps.reshape(-1)[0] < every:
        return np.asarray(steps)
    ctx.run_block(sub_block)
    return np.zeros_like(steps)


def add_delta(ctx: KernelContext, Param: Any, Grad: Array | SelectedRows) -> dict[str, Any]:
    return apply(ctx, Rule("sgd", (-1.0,)), Param, Grad)


register(
    "geo_exchange",
    doc="Counts a step in StepsOut. With the `every`-th since the last exchange it runs block `sub_block`, which sends what was "
    "gained and takes what others did, and counts anew. When the executor closes the block runs once more, for all that is "
    "left.",
    inputs=["Steps"],
    outputs=["StepsOut"],
    attrs={
        "sub_block": block_attr("the exchange"),
        "every": int_attr(100, "steps from one exchange to the next"),
    },
    kernel=geo_exchange,
    side_effect=True,
)
register(
    "add_delta",
    doc="ParamOut = Param + Grad, where Grad is what a trainer's copy gained. SelectedRows move their rows only, also of a table.",
    inputs=["Param", "Grad"],
    outputs=["ParamOut"],
    infer=infer_update,
    kernel=add_delta,
    sparse=SPARSE,
    inplace={"ParamOut": "Param"},
    is_optimizer=True,
    cases=(
        Case(
            {"Param": np.array([[1.0, -2.0], [0.5, 0.0]]), "Grad": np.array([[2.0, 1.0], [0.0, -1.0]])},
            {},
            {"ParamOut": np.array([[3.0, -1.0], [0.5, -1.0]])},
        ),
        Case(
            {
                "Param": np.array([[1.0, -2.0], [0.5, 0.0]]),
                "Grad": SelectedRows(np.array([1, 1]), np.array([[2.0, 1.0], [0.5, -1.0]]), 2),
            },
            {},
            {"ParamOut": np.array([[1.0, -2.0], [3.0, 0.0]])},
        ),
    ),
)
