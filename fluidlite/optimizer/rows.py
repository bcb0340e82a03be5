"""Regularisation beside the optimizer op: which form an optimizer takes lazily, the ops of it, and rows held in a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluidlite import framework
from fluidlite.core import edit, ir
from fluidlite.core.ir import Attr, AttrType
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError
from fluidlite.framework import Block, Parameter, Variable, VarOrName
from fluidlite.ops import registry
from fluidlite.regularizer import Form, WeightDecayRegularizer, every_row

_LOOKUPS = ("lookup_table", "lookup_table_v2")


@dataclass(frozen=True)
class LazyForms:
    """In which forms an optimizer leaves exact lazy decay to its tables, and why in no other.

    ``op``: the op that ticks the clock; it takes the optimizer op's state and the attributes ``attrs`` of it. ``moves``:
    the optimizer moves a row without a gradient too, so that L1, which stops at 0, has no closed form.
    """

    forms: frozenset[Form] = frozenset()
    why_not: str = "what a step without a gradient makes of its state and of a decaying row has no closed form"
    op: str = "decay_rows"
    attrs: tuple[str, ...] = ()
    moves: bool = False

    def refusal(self, decay: WeightDecayRegularizer) -> str:
        """Why a penalty cannot be applied lazily, "" when it can."""
        if decay.form not in self.forms:
            fitting = self.forms - ({"multiplicative"} if decay.l1 else set())
            accepted = " or ".join(f"form={form!r}" for form in sorted(fitting))
            return f"form={decay.form!r}: {self.why_not}{f'; {accepted} is exact' if accepted else ''}"
        if decay.l1 and decay.form == "gradient":
            return "the subgradient of |w| jumps to and fro about 0, which has no closed form; use form='proximal'"
        if decay.l1 and self.moves:
            return (
                "a row that moves by its velocity while L1 shrinks it changes its sign on the way, which has no closed form; "
                "L2Decay is exact"
            )
        return ""


def refuse_lazy(
    forms: LazyForms, decay: WeightDecayRegularizer | None, param: Parameter, grad: Variable, who: str
) -> None:
    """Raise ProgramError when rows of the parameter are to decay lazily, and that would not be exact."""
    if decay is None or decay.mode_for(param, grad) != "lazy":
        return
    reason = forms.refusal(decay)
    if reason:
        raise ProgramError(f"{who} cannot regularise {param.name!r} lazily by {type(decay).__name__} with {reason}")


def append_decay(block: Block, forms: LazyForms, decay: WeightDecayRegularizer, update: Mapping[str, Any]) -> None:
    """Append the op of a penalty that is a step of its own. ``update``: inputs and attributes of the optimizer op."""
    param, grad = update["Param"], update["Grad"]
    mode = decay.mode_for(param, grad)
    if mode == "lazy" and forms.op != "decay_rows":
        append_clock(block, forms, update, {"form": decay.form, "l2": decay.l2})
        return
    inputs: dict[str, VarOrName] = {"Param": param, "LearningRate": update["LearningRate"]}
    if mode == "touched" or (mode == "lazy" and decay.form == "gradient"):
        inputs["Grad"] = grad
    penalty = {"mode": mode, "form": decay.form, "l1": decay.l1, "l2": decay.l2, "by_row": decay.by_row}
    block.append_op("decay_rows", inputs, {"ParamOut": param}, penalty)


def over_every_row(param: Parameter, grad: Variable) -> Variable:
    """Append what makes the gradient of a table one of all its rows, zeros where it had none."""
    block = grad.block
    zeros = block.create_var(dtype=param.dtype, shape=param.shape, type=VarKind.SELECTED_ROWS)
    total = block.create_var(dtype=param.dtype, shape=param.shape, type=VarKind.SELECTED_ROWS)
    block.append_op("fill_zeros_like", {"X": every_row(param, block)}, {"Out": zeros})
    block.append_op("sum", {"X": [grad, zeros]}, {"Out": total})
    return total


def append_clock(block: Block, forms: LazyForms, update: Mapping[str, Any], penalty: Mapping[str, Any]) -> None:
    """Append the op that lets every row of a table take the optimizer's step without a gradient."""
    record = registry.get(forms.op)
    inputs = {arg.name: update[arg.name] for arg in record.inputs}
    outputs = {output: update[source] for output, source in record.inplace.items()}
    block.append_op(forms.op, inputs, outputs, {**{name: update[name] for name in forms.attrs}, **penalty})


def hold_in_table(param: Parameter, who: str) -> None:
    """Make an ``is_sparse`` parameter a distributed embedding, whose rows can catch up when they are used.

    Raises ProgramError where other ops than lookups use it, and where the startup program makes its first value by an op
    that cannot make rows.
    """
    program = param.program.desc
    lookups = []
    for _, op in program.all_ops():
        if param.name in (*op.input_arguments(), *op.output_arguments()):
            if op.type.removesuffix("_grad") not in _LOOKUPS:
                raise ProgramError(
                    f"{who} cannot regularise {param.name!r} lazily: {op.type} uses it ({op.origin}), and only lookups can "
                    "bring rows up to date"
                )
            lookups.append(op)
    startup = framework.default_startup_program().desc
    makers = [op for op in startup.root.ops if param.name in op.output_arguments()]
    for op in makers:
        if "auto_grown_table" not in registry.get(op.type).attrs:
            raise ProgramError(
                f"{who} cannot regularise {param.name!r} lazily: {op.type}, which makes its first value, cannot make rows "
                "one by one"
            )
    for op in makers:
        edit.set_attr(startup, op, "auto_grown_table", Attr(AttrType.BOOLEAN, value=True))
        made = startup.root.vars[param.name]
        made.kind = VarKind.SELECTED_ROWS
        if isinstance(made, ir.Parameter):
            made.is_distributed = True
    for op in lookups:
        edit.set_attr(program, op, "is_distributed", Attr(AttrType.BOOLEAN, value=True))
        edit.set_attr(program, op, "remote_prefetch", Attr(AttrType.BOOLEAN, value=False))
    param.desc.is_distributed = True
