"""The reference page of the operators, made from their records: ``python -m fluidlite.ops_page docs/ops.md``."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fluidlite.core import names
from fluidlite.core.ir import AttrType, Operator
from fluidlite.ops import registry
from fluidlite.ops.registry import REQUIRED, Argument, AttrSpec, GradientBlock, OpDef

_HEAD = """# Operators

Every operator of a program, from its record in `fluidlite/ops/`. Do not edit: `python -m fluidlite.ops_page docs/ops.md`
writes this page.

`X*` takes many arguments, `X?` may be absent, `X~` is written for the gradient only. An attribute without a default is
required. Gradient operators (`relu_grad`) are listed with the operator whose gradient they are; their attributes are
those of that operator.
"""


def page() -> str:
    """The whole page, as Markdown."""
    shown = [op_def for op_def in registry.all_defs() if not is_gradient(op_def.type)]
    return "\n".join([_HEAD, *_index(shown), "", *(line for op_def in shown for line in _entry(op_def))])


def _index(shown: Iterable[OpDef]) -> Iterator[str]:
    """Links, a line for each first letter."""
    for _, same in itertools.groupby(shown, key=lambda op_def: op_def.type[0]):
        yield " · ".join(f"[{op_def.type}](#{op_def.type})" for op_def in same) + "  "


def _entry(op_def: OpDef) -> Iterator[str]:
    yield f"## {op_def.type}\n"
    yield f"{inspect.cleandoc(op_def.doc)}\n"
    yield f"`{_names(op_def.inputs)} → {_names(op_def.outputs)}`\n"
    if op_def.attrs:
        yield "| attribute | type | default | |"
        yield "|---|---|---|---|"
        yield from (_attr_row(name, spec) for name, spec in op_def.attrs.items())
        yield ""
    notes = list(_notes(op_def))
    if notes:
        yield "; ".join(notes) + ".\n"


def _names(arguments: Iterable[Argument]) -> str:
    marked = (a.name + "*" * a.many + "?" * a.optional + "~" * a.intermediate for a in arguments)
    return ", ".join(marked) or "nothing"


def _attr_row(name: str, spec: AttrSpec) -> str:
    default = "" if spec.default is REQUIRED else f"`{_literal(spec.default)}`"
    return f"| `{name}` | {spec.type.name.lower()} | {default} | {spec.doc} |"


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    # floats are rounded to float32, which seven digits tell
    return f"{value:.7g}" if isinstance(value, float) else repr(value)


def _notes(op_def: OpDef) -> Iterator[str]:
    gradient = list(dict.fromkeys(_gradient(op_def)))
    if gradient:
        yield f"Gradient: {', '.join(gradient)}"
    if op_def.sparse:
        yield f"SelectedRows accepted as {', '.join(op_def.sparse)}"
    if op_def.inplace:
        yield "In place: " + ", ".join(f"{output} is {name}" for output, name in op_def.inplace.items())
    if op_def.accumulators:
        yield "Accumulators: " + ", ".join(accumulator.name for accumulator in op_def.accumulators)
    if op_def.needs_whole_param:
        yield "Needs the whole parameter"


def _gradient(op_def: OpDef) -> Iterator[str]:
    """The ops that an op's gradient is made of, and those of their gradients."""
    op = sample(op_def)
    made = op_def.grad(op) if op_def.grad is not None else []
    if op_def.block_grad is not None:
        made = [op_def.block_grad(op, _gradient_block(op))]
    for op in made:
        yield _call(op)
        if is_gradient(op.type):
            yield from _gradient(registry.get(op.type))


def _gradient_block(op: Operator) -> GradientBlock:
    """A block that makes the gradients of an op's inputs of those of its outputs."""
    inputs, outputs = (
        [names.grad(name) for name in arguments] for arguments in (op.output_arguments(), op.input_arguments())
    )
    return GradientBlock(0, [Operator("", {"X": inputs}, {"Out": outputs})], lambda _: False)


def is_gradient(type: str) -> bool:
    """Whether an op exists only as the gradient of another."""
    return type.endswith(("_grad", "_grad2"))


def _call(op: Operator) -> str:
    inputs = ", ".join(name for name, arguments in op.inputs.items() if arguments)
    return f"`{op.type}({inputs}) → {', '.join(op.outputs)}`"


def sample(op_def: OpDef) -> Operator:
    """The op with one argument for each input (``x_v`` for X) and output (``out_o`` for Out), and every attribute."""
    return Operator(
        op_def.type,
        {arg.name: [f"{arg.name.lower()}_v"] for arg in op_def.inputs},
        {arg.name: [f"{arg.name.lower()}_o"] for arg in op_def.outputs},
        {name: registry.coerce_attr(spec.type, _value(spec)) for name, spec in op_def.attrs.items()},
    )


def _value(spec: AttrSpec) -> Any:
    if spec.default is not REQUIRED:
        return spec.default
    if spec.type is AttrType.STRING:
        return ""
    is_number = spec.type in (AttrType.INT, AttrType.LONG, AttrType.FLOAT, AttrType.BOOLEAN, AttrType.BLOCK)
    return 0 if is_number else ()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
