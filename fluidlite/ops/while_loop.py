"""`while`: runs a block of the program as long as a condition holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import EMPTY, Attr, AttrType, Operator
from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import ShapeError
from fluidlite.ops import steps
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import GradientBlock, block_attr, bool_attr, register, strings_attr
from fluidlite.values.lod import LoDTensor

_ATTRS = {
    "sub_block": block_attr("the block to run"),
    "is_test": bool_attr(default=False, doc="nothing is recorded for a gradient"),
    "skip_eager_deletion_vars": strings_attr(doc="accepted, without effect"),
}


def while_(ctx: KernelContext, *, sub_block: int, is_test: bool) -> dict[str, Any]:
    """The block writes its variables itself, the condition among them, so only the record is returned."""
    run = steps.block_run(ctx, sub_block)
    condition = ctx.op.inputs["Condition"][0]
    records: list[steps.Record] = []
    while _holds(ctx.read(condition), condition):
        record = run(ctx)
        if not is_test:
            records.append(record)
    return {"StepScopes": records}


def _holds(value: Any, name: str) -> bool:
    array: Array = value.array if isinstance(value, LoDTensor) else np.asarray(value)
    if array.size != 1:
        raise ShapeError(f"the condition {name!r} must be one bool, not of shape {list(array.shape)}")
    return bool(array.reshape(-1)[0])


def while_grad(
    ctx: KernelContext, StepScopes: list[steps.Record], *, sub_block: int, original_output_grad: tuple[str, ...]
) -> dict[str, Any]:
    """The gradient block over the steps, the last one first.

    What the loop carries on from step to step has one gradient that each step replaces; the gradients of all else that the
    block reads are summed.
    """
    back = steps.back(ctx, sub_block)
    given = ctx.op.inputs.get("Out@GRAD", [])
    carried = _given(ctx, dict(zip((back.name(ctx, name) for name in original_output_grad), given, strict=True)), back)
    wanted = {
        argument: back.gradient(ctx, argument)
        for argument, outer in zip(ctx.op.inputs["X"], ctx.op.outputs["X@GRAD"], strict=True)
        if outer != EMPTY
    }
    totals: dict[str, Any] = {}
    with back.keeping(ctx):
        for record in reversed(StepScopes):
            entries = {name: list(value) if isinstance(value, list) else value for name, value in carried.items()}
            back(ctx, record, entries)
            for inside in wanted.values():
                if inside not in carried:
                    totals[inside] = steps.added(totals.get(inside), ctx.read(inside))
            carried = {name: _after(ctx, back, name, value) for name, value in entries.items()}
    return {"X@GRAD": [_result(ctx, wanted, carried | totals, index) for index in range(len(ctx.op.inputs["X"]))]}


def _given(ctx: KernelContext, outer: dict[str, str], back: steps.Back) -> dict[str, Any]:
    """The gradients that the last step starts with, by the names of the gradient block: zeros where nothing made one."""
    found = {inside: ctx.read(gradient) for inside, gradient in outer.items()}
    for argument in (*ctx.op.inputs["X"], *ctx.op.inputs["Out"]):
        inside = back.gradient(ctx, argument)
        if inside in found and found[inside] is None:
            is_array = ctx.var(argument).kind is VarKind.LOD_TENSOR_ARRAY
            found[inside] = [] if is_array else steps.zeros_like(ctx.read(argument))
    return found


def _after(ctx: KernelContext, back: steps.Back, name: str, before: Any) -> Any:
    """The gradient of what is carried on, at the start of a step. Where the block sums the gradients of several reads of an
    array, what waits for earlier steps is not among them."""
    value = ctx.read(name)
    makers = [op for op in ctx.program.blocks[back.block].ops if name in op.output_arguments()]
    if isinstance(before, list) and makers and makers[-1].type == "sum":
        return steps.added(before, value)
    return value


def _result(ctx: KernelContext, wanted: dict[str, str], found: dict[str, Any], index: int) -> Any:
    """The gradient of one X, zeros where no step made any."""
    argument, outer = ctx.op.inputs["X"][index], ctx.op.outputs["X@GRAD"][index]
    if outer == EMPTY:
        return None
    return steps.result(ctx, argument, outer, steps.filled(found.get(wanted[argument]), ctx.read(argument)))


def _gradient(op: Operator, block: GradientBlock) -> Operator:
    """As Fluid makes it: the gradients that the block makes, of those that X needs; and those that it reads and that neither
    it nor the forward program has."""
    reads, writes = steps.reads_and_writes(block.ops)
    known = {*op.inputs["X"], *op.outputs["Out"]}
    given = [name for name in reads if name not in known and not block.declares(name)]
    gradients = [names.grad(name) for name in op.inputs["X"]]
    return Operator(
        "while_grad",
        {"X": list(op.inputs["X"]), "Out": list(op.outputs["Out"]), "StepScopes": list(op.outputs["StepScopes"])}
        | ({"Out@GRAD": given} if given else {}),
        {"X@GRAD": [name if name in writes else EMPTY for name in gradients]},
        {
            **{name: attr for name, attr in op.attrs.items() if name not in ("op_role", "op_role_var")},
            "sub_block": Attr(AttrType.BLOCK, block.idx),
            "original_output_grad": Attr(AttrType.STRINGS, tuple(given)),
        },
        op.origin,
    )


def infer_gradients(ctx: InferContext) -> None:
    """Each gradient is declared like its variable, but without LoD: Fluid's programs say so, whatever the values have."""
    for name, arguments in ctx.op.outputs.items():
        for source, argument in zip(ctx.op.inputs.get(names.forward_of(name), ()), arguments, strict=False):
            if argument == EMPTY:
                continue
            var, out = ctx.find(source), ctx.find(argument)
            out.shape, out.dtype, out.kind = var.shape, var.dtype, var.kind


register(
    "while",
    doc="""Runs block ``sub_block`` as long as Condition, one bool that the block itself writes, is true. X and Out name
what the block reads and writes of its surroundings. StepScopes records what the gradient needs of each step.
""",
    inputs=["X*", "Condition*"],
    outputs=["Out*", "StepScopes"],
    attrs=_ATTRS,
    kernel=while_,
    block_grad=_gradient,
    private_block=True,
)
register(
    "while_grad",
    doc="""Gradient of while: runs block ``sub_block`` once for each recorded step, the last one first. X@GRAD are sums over
the steps; the gradient of what the loop carries on is that at its start.
""",
    inputs=["X*", "Out*", "Out@GRAD*", "StepScopes"],
    outputs=["X@GRAD*"],
    attrs=_ATTRS | {"original_output_grad": strings_attr(doc="what the block calls the arguments of Out@GRAD")},
    infer=infer_gradients,
    kernel=while_grad,
    private_block=True,
)
