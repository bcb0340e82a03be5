"""`while`: runs a block of the program as long as a condition holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import block_attr, bool_attr, register, strings_attr
from fluidlite.values.lod import LoDTensor


def while_(ctx: KernelContext, *, sub_block: int) -> dict[str, Any]:
    """The block writes its variables itself, the condition among them, so there is nothing to return."""
    if ctx.run_block is None:
        raise ProgramError("while needs an executor that runs blocks")
    condition = ctx.op.inputs["Condition"][0]
    while _holds(ctx.read(condition), condition):
        ctx.run_block(sub_block)
    return {}


def _holds(value: Any, name: str) -> bool:
    array: Array = value.array if isinstance(value, LoDTensor) else np.asarray(value)
    if array.size != 1:
        raise ShapeError(f"the condition {name!r} must be one bool, not of shape {list(array.shape)}")
    return bool(array.reshape(-1)[0])


register(
    "while",
    doc="""Runs block ``sub_block`` as long as Condition, one bool that the block itself writes, is true. X and Out name
what the block reads and writes of its surroundings. It has no gradient.
""",
    inputs=["X*", "Condition*"],
    outputs=["Out*", "StepScopes"],
    attrs={
        "sub_block": block_attr("the block to run"),
        "is_test": bool_attr(default=False),
        "skip_eager_deletion_vars": strings_attr(doc="accepted, without effect"),
    },
    kernel=while_,
)
