"""`conditional_block`: runs a block of the program or leaves it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import EMPTY, Attr, AttrType, Operator
from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops import steps
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import GradientBlock, block_attr, bool_attr, register, strings_attr
from fluidlite.ops.while_loop import infer_gradients
from fluidlite.values.lod import LoDTensor

_ATTRS = {
    "sub_block": block_attr("the block to run"),
    "is_scalar_condition": bool_attr(default=False),
    "skip_eager_deletion_vars": strings_attr(doc="accepted, without effect"),
}
_DOC = """Runs block ``sub_block`` where the condition holds: with ``is_scalar_condition`` the one bool of Cond, otherwise
that no tensor of Cond and Input is empty. ``Input`` and ``Out`` name what the block reads and writes of its surroundings;
where it does not run, Out stays as it is. {}
"""


def conditional_block(
    ctx: KernelContext, Cond: list[Array], *, sub_block: int, is_scalar_condition: bool
) -> dict[str, Any]:
    """The block writes its variables itself, so only the record is returned: one, or none where it did not run."""
    run = steps.block_run(ctx, sub_block)
    if is_scalar_condition and Cond[0].size != 1:
        raise ShapeError(f"the condition {ctx.op.input('Cond')!r} must be one bool, not of shape {list(Cond[0].shape)}")
    met = bool(np.all(Cond[0])) if is_scalar_condition else _filled(ctx, Cond)
    return {"Scope": [run(ctx)] if met else []}


def _filled(ctx: KernelContext, conditions: Sequence[Array]) -> bool:
    """Whether no condition and no tensor that the block reads is empty."""
    given = [*conditions, *(ctx.read(name) for name in ctx.op.inputs.get("Input", ()))]
    arrays = [value.array if isinstance(value, LoDTensor) else value for value in given]
    return all(array.size for array in arrays if isinstance(array, np.ndarray))


def conditional_block_grad(ctx: KernelContext, Scope: list[steps.Record], *, sub_block: int) -> dict[str, Any]:
    """Where the block ran, its gradient; else zeros, and the gradient of what the block would have overwritten is that of
    the value which stayed."""
    back = steps.back(ctx, sub_block)
    pairs = list(zip(ctx.op.inputs.get("Input", ()), ctx.op.outputs.get("Input@GRAD", ()), strict=False))
    given = ctx.op.inputs.get("Out@GRAD", [])
    if not Scope:
        passed = [outer in given for _, outer in pairs]
        return {
            "Input@GRAD": [
                None if outer == EMPTY or through else steps.no_gradient(ctx, argument, outer)
                for (argument, outer), through in zip(pairs, passed, strict=True)
            ]
        }
    with back.keeping(ctx):
        back(
            ctx,
            Scope[0],
            {back.gradient(ctx, o): ctx.read(g) for o, g in zip(ctx.op.inputs["Out"], given, strict=True)},
        )
        found = [back.found(ctx, argument) for argument, _ in pairs]
    for argument, outer in zip(ctx.op.inputs["Out"], given, strict=True):
        if argument not in ctx.op.inputs.get("Input", ()) and _had_value(ctx, argument):
            ctx.write(outer, steps.zeros_like(ctx.read(argument)))
    return {
        "Input@GRAD": [
            steps.result(ctx, argument, outer, value) for (argument, outer), value in zip(pairs, found, strict=True)
        ]
    }


def _had_value(ctx: KernelContext, argument: str) -> bool:
    """Whether something wrote a variable before the forward op did, so that its gradient is asked for again."""
    writers = 0
    for op in ctx.program.blocks[max(ctx.block.forward, 0)].ops:
        if op.output("Scope") == ctx.op.input("Scope"):
            return writers > 0
        writers += argument in op.output_arguments()
    return True


def _gradient(op: Operator, block: GradientBlock) -> Operator:
    inputs = {
        "Cond": op.inputs["Cond"],
        "Input": op.inputs.get("Input", []),
        "Out": op.outputs.get("Out", []),
        "Out@GRAD": [names.grad(name) for name in op.outputs.get("Out", ())],
        "Scope": op.outputs["Scope"],
    }
    attrs = {"sub_block": Attr(AttrType.BLOCK, block.idx)}
    if "is_scalar_condition" in op.attrs:
        attrs["is_scalar_condition"] = op.attrs["is_scalar_condition"]
    return Operator(
        "conditional_block_grad",
        {name: list(arguments) for name, arguments in inputs.items() if arguments},
        {"Input@GRAD": [names.grad(name) for name in op.inputs.get("Input", ())]},
        attrs,
        op.origin,
    )


register(
    "conditional_block",
    doc=_DOC.format("Scope records what the gradient needs."),
    inputs=["Cond*", "Input*?"],
    outputs=["Out*", "Scope"],
    attrs=_ATTRS,
    kernel=conditional_block,
    block_grad=_gradient,
    private_block=True,
)
register(
    "conditional_block_infer",
    doc=_DOC.format("The form of conditional_block in programs that are only run forward."),
    inputs=["Cond*", "Input*?"],
    outputs=["Out*", "Scope"],
    attrs=_ATTRS,
    kernel=conditional_block,
    private_block=True,
)
register(
    "conditional_block_grad",
    doc="""Gradient of conditional_block: runs block ``sub_block`` if the forward block ran; Input@GRAD are zero otherwise. Of
a variable that the forward block overwrote, Out@GRAD becomes zero for whatever wrote it before.
""",
    inputs=["Cond*", "Input*?", "Out*", "Out@GRAD*", "Scope"],
    outputs=["Input@GRAD*"],
    attrs=_ATTRS,
    infer=infer_gradients,
    kernel=conditional_block_grad,
    inplace={"Input@GRAD": "Out@GRAD"},
    private_block=True,
)
