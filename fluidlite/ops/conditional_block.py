"""`conditional_block`: runs a block of the program or leaves it out."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import block_attr, bool_attr, register, strings_attr


def conditional_block(
    ctx: KernelContext, Cond: list[Array], *, sub_block: int, is_scalar_condition: bool
) -> dict[str, Any]:
    """The block writes its variables itself, so there is nothing to return."""
    if ctx.run_block is None:
        raise ProgramError("conditional_block needs an executor that runs blocks")
    if is_scalar_condition and Cond[0].size != 1:
        raise ShapeError(f"the condition {ctx.op.input('Cond')!r} must be one bool, not of shape {list(Cond[0].shape)}")
    met = bool(np.all(Cond[0])) if is_scalar_condition else all(condition.size for condition in Cond)
    if met:
        ctx.run_block(sub_block)
    return {}


register(
    "conditional_block",
    doc="""Runs block ``sub_block`` where the condition holds: with ``is_scalar_condition`` the one bool of Cond, otherwise
that no Cond is empty. ``Input`` and ``Out`` name what the block reads and writes of its surroundings; where it does
not run, Out stays as it is. It has no gradient.
""",
    inputs=["Cond*", "Input*?"],
    outputs=["Out*", "Scope"],
    attrs={
        "sub_block": block_attr("the block to run"),
        "is_scalar_condition": bool_attr(default=False),
        "skip_eager_deletion_vars": strings_attr(doc="accepted, without effect"),
    },
    kernel=conditional_block,
)
