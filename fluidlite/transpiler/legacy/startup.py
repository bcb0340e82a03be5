"""Passes over a server's startup program that Fluid made."""

from __future__ import annotations

from fluidlite.core import edit, names
from fluidlite.core.ir import Attr, AttrType, Program
from fluidlite.ops import registry
from fluidlite.transpiler.legacy.forms import is_rows, set_value


def grow_tables(program: Program) -> None:
    """A table starts without rows, whatever Fluid allocated for it; a row's first value is made when its id is asked for."""
    for op in program.root.ops:
        out = op.output("Out")
        op_def = registry.find(op.type)
        if out is None or op_def is None or "auto_grown_table" not in op_def.attrs:
            continue
        if is_rows(program, out) and not op.attr("auto_grown_table", default=False):
            edit.set_attr(program, op, "auto_grown_table", Attr(AttrType.BOOLEAN, value=True))


def count_from_here(program: Program) -> None:
    """The counter of a schedule whose trainers wait for nobody. In Fluid its first value is the sum of one step of each of
    them; here a step adds one to it, so it starts one below that."""
    ops = program.root.ops
    trainers = sum(1 for op in ops if any(map(names.is_clock, op.output_arguments())))
    for op in ops:
        if (
            trainers
            and op.type == "fill_constant"
            and op.output("Out") == names.LR_COUNTER
            and op.attr("value", 0.0) < 0
        ):
            set_value(program, op, "value", float(trainers - 1))
