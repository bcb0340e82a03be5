"""`recurrent`: runs a block once for each step of sequences of equal length; what `StaticRNN` is made of.

Sequences are (steps, batch, ...). The block sees one step of each under the sequence's own name, and what a step left as
``states`` comes to the next one as ``ex_states``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import Attr, AttrType, Operator
from fluidlite.dtypes import Array, dtype_number
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops import steps
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.registry import (
    REQUIRED,
    Case,
    GradientBlock,
    block_attr,
    bool_attr,
    int_attr,
    register,
    strings_attr,
)
from fluidlite.ops.while_loop import infer_gradients
from fluidlite.values.lod import LoDTensor

_ATTRS = {
    "has_states": bool_attr(default=False, doc="accepted, without effect"),
    "ex_states": strings_attr(REQUIRED, "the block's names of states before a step"),
    "states": strings_attr(REQUIRED, "the block's names of states after a step, in the same order"),
    "sub_block": block_attr("the block to run"),
    "reverse": bool_attr(default=False, doc="the last step first"),
    "is_train": bool_attr(default=True, doc="steps are recorded for a gradient"),
    "skip_eager_deletion_vars": strings_attr(doc="accepted, without effect"),
}


def recurrent(
    ctx: KernelContext,
    inputs: list[Array],
    initial_states: list[Array],
    *,
    sub_block: int,
    ex_states: tuple[str, ...],
    states: tuple[str, ...],
    reverse: bool,
    is_train: bool,
) -> dict[str, Any]:
    run = steps.block_run(ctx, sub_block)
    inside = _Names(ctx, sub_block)
    sequences = inside.of(map(names.declared, ctx.op.inputs.get("inputs", ())))
    before, after = inside.of(ex_states), inside.of(states)
    outputs = inside.of(map(names.declared, ctx.op.outputs.get("outputs", ())))
    now: list[Any] = list(initial_states)
    made: list[list[Any]] = []
    records: list[steps.Record] = []
    for step in _order(ctx, inputs, reverse=reverse):
        given = dict(zip(sequences, (sequence[step] for sequence in inputs), strict=True))
        record = run(ctx, given | dict(zip(before, now, strict=True)))
        now = [ctx.read(name) for name in after]
        made.append([ctx.read(name) for name in outputs])
        if is_train:
            records.append(record)
    ctx.forget(run.own)
    if reverse:
        made.reverse()
    return {"outputs": [_stacked(parts) for parts in zip(*made, strict=True)], "step_scopes": records}


def recurrent_grad(
    ctx: KernelContext,
    inputs: list[Array],
    step_scopes: list[steps.Record],
    *,
    sub_block: int,
    ex_states: tuple[str, ...],
    states: tuple[str, ...],
    reverse: bool,
) -> dict[str, Any]:
    """The gradient block over the steps, the last one first; a state's gradient goes to the step before."""
    back = steps.back(ctx, sub_block)
    inside = _Names(ctx, sub_block)
    to_outputs = inside.of(names.grad(names.declared(name)) for name in ctx.op.inputs.get("outputs", ()))
    to_outputs_given = [ctx.read(name) for name in ctx.op.inputs.get("outputs@GRAD", ())]
    to_after, to_before = inside.of(map(names.grad, states)), inside.of(map(names.grad, ex_states))
    carried: list[Any] = [None] * len(states)
    parts: list[list[Any]] = [[] for _ in ctx.op.inputs.get("inputs", ())]
    totals: list[Any] = [None] * len(ctx.op.inputs.get("parameters", ()))
    order = list(_order(ctx, inputs, reverse=reverse))
    with back.keeping(ctx):
        for step, record in zip(reversed(order), reversed(step_scopes), strict=True):
            given = {
                name: None if value is None else _array(value)[step]
                for name, value in zip(to_outputs, to_outputs_given, strict=True)
            }
            ctx.forget(to_after)
            back(ctx, record, given | dict(zip(to_after, carried, strict=True)))
            carried = [ctx.read(name) for name in to_before]
            for found, argument in zip(parts, ctx.op.inputs.get("inputs", ()), strict=True):
                found.append(back.found(ctx, argument))
            totals = [
                steps.added(total, back.found(ctx, argument))
                for total, argument in zip(totals, ctx.op.inputs.get("parameters", ()), strict=True)
            ]
        ctx.forget(to_after)
    if not reverse:
        for found in parts:
            found.reverse()
    return {
        "inputs@GRAD": _wanted(ctx, "inputs", [_stacked(found) for found in parts]),
        "initial_states@GRAD": _wanted(ctx, "initial_states", carried),
        "parameters@GRAD": _wanted(ctx, "parameters", totals),
    }


class _Names:
    """The names that a plan gives to what a block declares."""

    def __init__(self, ctx: KernelContext, block: int) -> None:
        self._program, self._block = ctx.program, block

    def of(self, declared: Iterable[str]) -> list[str]:
        return [steps.inside_name(self._program, self._block, name) for name in declared]


def _order(ctx: KernelContext, sequences: Sequence[Any], *, reverse: bool) -> range:
    """The steps in the order of running."""
    lengths = {len(_array(sequence)) for sequence in sequences}
    if len(lengths) != 1:
        raise ShapeError(
            f"op {ctx.op.type!r}: its sequences {', '.join(map(repr, ctx.op.inputs.get('inputs', ())))} have {sorted(lengths)} "
            "steps; they must have as many as each other"
        )
    count = range(lengths.pop())
    return count[::-1] if reverse else count


def _array(value: Any) -> Array:
    return value.array if isinstance(value, LoDTensor) else np.asarray(value)


def _stacked(parts: Sequence[Any]) -> Any:
    """One step after the other; None if no step has any."""
    first = next((_array(part) for part in parts if part is not None), None)
    if first is None:
        return None
    return np.stack([np.zeros_like(first) if part is None else _array(part) for part in parts])


def _wanted(ctx: KernelContext, name: str, values: Sequence[Any]) -> list[Any]:
    """The gradients of an input that are asked for, zeros where there are none."""
    asked = ctx.op.outputs.get(f"{name}@GRAD", [])
    if not asked:
        return []
    return [
        steps.result(ctx, argument, outer, value)
        for argument, outer, value in zip(ctx.op.inputs[name], asked, values, strict=True)
    ]


def _infer(ctx: InferContext) -> None:
    """The front end declares what the block makes; here only what would go wrong at every run."""
    if len(ctx.attr("ex_states")) != len(ctx.attr("states")):
        raise ProgramError(
            f"op {ctx.op.type!r}: {len(ctx.attr('ex_states'))} ex_states but {len(ctx.attr('states'))} states ({ctx.op.origin})"
        )


def _gradient(op: Operator, block: GradientBlock) -> Operator:
    inputs: dict[str, list[str]] = {}
    outputs: dict[str, list[str]] = {}
    for name, arguments in op.inputs.items():
        inputs[name] = list(arguments)
        outputs[f"{name}@GRAD"] = [names.grad(argument) for argument in arguments]
    for name, arguments in op.outputs.items():
        inputs[name] = list(arguments)
        recorded = name == "step_scopes"
        inputs[f"{name}@GRAD"] = [argument if recorded else names.grad(argument) for argument in arguments]
    attrs = {name: attr for name, attr in op.attrs.items() if name not in ("op_role", "op_role_var")}
    return Operator(
        "recurrent_grad", inputs, outputs, attrs | {"sub_block": Attr(AttrType.BLOCK, block.idx)}, op.origin
    )


def rnn_memory_helper(ctx: KernelContext, X: Any) -> Any:
    return X


def rnn_memory_helper_grad(ctx: KernelContext, X: Any, Out_GRAD: Any) -> Any:
    return steps.zeros_like(X) if Out_GRAD is None else Out_GRAD


_X = np.array([[1.0, -2.0]])

register(
    "recurrent",
    doc="""Runs block ``sub_block`` for each step of the sequences ``inputs`` (steps, ...): there they have the shape of one
step, ``ex_states`` are ``initial_states``, later what the step before left as ``states``, and ``parameters`` are as they
are outside. ``outputs`` (steps, ...) are what the steps made. step_scopes records what the gradient needs.
""",
    inputs=["inputs*", "initial_states*?", "parameters*?"],
    outputs=["outputs*", "step_scopes"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=recurrent,
    block_grad=_gradient,
    private_block=True,
)
register(
    "recurrent_grad",
    doc="Gradient of recurrent: runs block ``sub_block`` once for each recorded step, the last one first.",
    inputs=[
        "inputs*",
        "initial_states*?",
        "parameters*?",
        "outputs*",
        "outputs@GRAD*",
        "step_scopes",
        "step_scopes@GRAD",
    ],
    outputs=["inputs@GRAD*", "initial_states@GRAD*", "parameters@GRAD*"],
    attrs=_ATTRS,
    infer=infer_gradients,
    kernel=recurrent_grad,
    private_block=True,
)
register(
    "rnn_memory_helper",
    doc="Out = X: marks a value that a step of `recurrent` hands on.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"dtype": int_attr(dtype_number("float32"), "accepted, without effect")},
    infer=like("X", "Out"),
    kernel=rnn_memory_helper,
    grad=maker(["X", "Out", "Out@GRAD"], ["X@GRAD"]),
    takes_lod=True,
    cases=(Case({"X": _X}, {"dtype": -1}, {"Out": _X}, check_grad=("X",)),),
)
register(
    "rnn_memory_helper_grad",
    doc="X@GRAD = Out@GRAD, zeros where there is none.",
    inputs=["X", "Out", "Out@GRAD"],
    outputs=["X@GRAD"],
    attrs={"dtype": int_attr(dtype_number("float32"), "accepted, without effect")},
    infer=like("X", "X@GRAD"),
    kernel=rnn_memory_helper_grad,
    takes_lod=True,
)
