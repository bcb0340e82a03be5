"""Pserver passes: the startup program of one server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fluidlite.core import edit
from fluidlite.core.ir import Attr, AttrType, Operator, OpRole, Program, Variable
from fluidlite.ops import registry
from fluidlite.transpiler.analysis import arguments_of
from fluidlite.transpiler.build import make_op
from fluidlite.transpiler.plan import Plan, Slice


class _Target(NamedTuple):
    """A variable of this server that is a slice, or a copy, of one of the untouched program."""

    source: str
    name: str
    part: Slice | None


def keep_own_inits(program: Program, plan: Plan) -> None:
    """Only what makes the first values of this server's variables stays."""
    wanted = set(_held_here(plan))
    kept = []
    for op in reversed(program.root.ops):
        if wanted.intersection(op.output_arguments()):
            kept.append(op)
            wanted.update(op.input_arguments())
    edit.set_ops(program, program.root, kept[::-1])
    named = {name for op in kept for name in arguments_of(op)}
    for name in list(program.root.vars):
        if name not in named:
            edit.remove_var(program, program.root, name)


def grow_tables(program: Program, plan: Plan) -> None:
    """Tables start empty, whatever the declared height, or with this server's rows of a file; other rows, and accumulators,
    get their first values when an id is first asked for."""
    for table in plan.tables:
        for op in _writers(program, table.name):
            edit.set_attr(program, op, "auto_grown_table", Attr(AttrType.BOOLEAN, value=True))
            if "shards" in registry.get(op.type).attrs:
                edit.set_attr(program, op, "shard", Attr(AttrType.INT, plan.pserver_id))
                edit.set_attr(program, op, "shards", Attr(AttrType.INT, len(table.shards)))
        for accumulator in table.accumulators:
            for op in _writers(program, accumulator):
                edit.set_attr(program, op, "table_name", Attr(AttrType.STRING, table.name))


def slice_inits(program: Program, plan: Plan) -> None:
    """A slice gets its rows of the whole parameter's first value, which is made as in a local run, so values do not
    depend on the slicing."""
    targets = list(_targets(plan))
    for source in dict.fromkeys(target.source for target in targets):
        mine = [target for target in targets if target.source == source]
        writers = _writers(program, source)
        if len(writers) == 1 and writers[0].type == "fill_constant" and not any(writers[0].input_arguments()):
            new = [_constant(program, writers[0], target) for target in mine]
            edit.replace_op(program, program.root, writers[0], new)
            edit.remove_var(program, program.root, source)
        else:
            new = [_cut(program, target) for target in mine]
            edit.replace_op(program, program.root, writers[-1], [writers[-1], *new])
            edit.add_var(program, program.root, _temporary(program.root.vars[source]))


def _held_here(plan: Plan) -> Iterator[str]:
    """Variables of the untouched program of which this server has at least a part."""
    for param, _ in plan.owned_slices:
        yield from (param.name, *param.accumulators, *param.whole_accumulators)
    for table in plan.tables:
        yield from (table.name, *table.accumulators, *table.whole_accumulators)
    yield from plan.shared


def _targets(plan: Plan) -> Iterator[_Target]:
    for param, part in plan.owned_slices:
        if len(param.slices) > 1:
            for name in (param.name, *param.accumulators):
                yield _Target(name, param.on_server(name, part), part)
            for name in param.whole_accumulators:
                yield _Target(name, param.on_server(name, part), None)


def _writers(program: Program, name: str) -> list[Operator]:
    return [op for op in program.root.ops if name in op.output_arguments()]


def _declare(program: Program, target: _Target) -> tuple[int, ...]:
    """Declare a slice like its whole; its shape."""
    var = edit.clone_var(program.root.vars[target.source])
    var.name = target.name
    if target.part is not None:
        var.shape = (target.part.rows, *(var.shape or ())[1:])
    edit.add_var(program, program.root, var)
    return var.shape or ()


def _constant(program: Program, op: Operator, target: _Target) -> Operator:
    """A constant of the slice's shape."""
    shape = _declare(program, target)
    twin = edit.clone_op(op)
    edit.rename_arguments(program, twin, {target.source: target.name})
    edit.set_attr(program, twin, "shape", registry.attrs_for_one(op.type, "shape", shape))
    return twin


def _cut(program: Program, target: _Target) -> Operator:
    """The op that takes a slice, or a copy, out of the whole value."""
    _declare(program, target)
    part = target.part
    if part is None:
        return make_op("slice_inits", "assign", {"X": [target.source]}, {"Out": [target.name]}, OpRole.FORWARD)
    attrs = {"axes": [0], "starts": [part.first_row], "ends": [part.first_row + part.rows]}
    return make_op("slice_inits", "slice", {"Input": [target.source]}, {"Out": [target.name]}, OpRole.FORWARD, attrs)


def _temporary(var: Variable) -> Variable:
    twin = edit.as_plain(var)
    twin.persistable = False
    return twin
