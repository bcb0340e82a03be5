"""Pserver passes: the main program of one server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from fluidlite.core import edit, names
from fluidlite.core.ir import Attr, AttrType, Block, Operator, OpRole, Program, Variable
from fluidlite.transpiler.analysis import arguments_of, blocks_run_by, is_optimizer, is_schedule
from fluidlite.transpiler.build import declare, make_op
from fluidlite.transpiler.plan import DenseParam, Plan, Slice, Table
from fluidlite.transpiler.schedule import find_schedule
from fluidlite.transpiler.updates import Chain, split_updates


class Unit(NamedTuple):
    """What one update block updates: a slice of a dense parameter, or a table. ``names`` maps variables of the
    untouched program to the server's."""

    param: str
    gradient: str
    shape: tuple[int, ...]
    names: Mapping[str, str]
    sparse: bool


def units(plan: Plan) -> list[Unit]:
    """What the server of ``plan.endpoint`` updates, one unit per update block and in their order."""
    return [*(_slice_unit(param, part) for param, part in plan.owned_slices), *map(_table_unit, plan.trained_tables)]


def _slice_unit(param: DenseParam, part: Slice) -> Unit:
    moved = (param.name, param.gradient, *param.accumulators, *param.whole_accumulators)
    return Unit(
        param=param.name,
        gradient=param.gradient,
        shape=(part.rows, *param.shape[1:]),
        names={name: param.on_server(name, part) for name in moved},
        sparse=param.sparse_gradient,
    )


def _table_unit(table: Table) -> Unit:
    gradient = table.gradient or ""
    moved = (table.name, gradient, *table.accumulators, *table.whole_accumulators)
    return Unit(
        param=table.name,
        gradient=gradient,
        shape=(table.height, table.dim),
        names={name: name for name in moved},
        sparse=True,
    )


def update_blocks(program: Program) -> list[Block]:
    """The blocks that update a parameter, in the order of `units`."""
    return [block for block in program.blocks[1:] if any(is_optimizer(op) for op in block.ops)]


def copy_schedule(program: Program, plan: Plan) -> None:
    """What computes the learning rates is copied, with its sub-blocks, to a block that runs before the updates. Its
    results become persistable, since update blocks read them."""
    schedule, _ = find_schedule(program, _served(program, plan))
    if not schedule.ops:
        return
    block = edit.add_block(program, 0)
    for position in schedule.ops:
        _copy_op(program, program.root.ops[position], block)
    for name in schedule.results:
        edit.add_var(program, program.root, replace(program.root.vars[name], persistable=True))
    for op in block.ops:
        if not is_schedule(op):
            edit.set_attr(program, op, "op_role", Attr(AttrType.INT, int(OpRole.LR_SCHED)))


def _copy_op(program: Program, op: Operator, block: Block) -> None:
    """Append a copy of an op; the blocks that it runs are copied below ``block``."""
    twin = edit.append_op(program, block, edit.clone_op(op))
    for name, attr in op.attrs.items():
        if attr.type is AttrType.BLOCK:
            source = program.blocks[attr.value]
            body = edit.add_block(program, block.idx)
            for var in source.vars.values():
                edit.add_var(program, body, edit.clone_var(var))
            for inner in source.ops:
                _copy_op(program, inner, body)
            edit.set_attr(program, twin, name, Attr(AttrType.BLOCK, body.idx))


def move_updates(program: Program, plan: Plan) -> None:
    """One block per slice and table of this server: the clips, regularisation and optimizer op that the user's
    minimize appended, on the slice's variables."""
    chains = {chain.param: chain for chain in _served(program, plan)}
    for unit in units(plan):
        _update_block(program, chains[unit.param], unit)
        _declare_state(program, unit)


def _served(program: Program, plan: Plan) -> list[Chain]:
    """The updates of the parameters that servers hold."""
    chains = split_updates(program, [table.name for table in plan.tables]).chains
    return [chain for chain in chains if chain.param not in plan.on_trainer]


def _update_block(program: Program, chain: Chain, unit: Unit) -> None:
    block = edit.add_block(program, 0)
    pair = (unit.names[unit.param], unit.names[unit.gradient])
    for position in chain.on_server:
        op = edit.append_op(program, block, edit.clone_op(program.root.ops[position]))
        edit.rename_arguments(program, op, unit.names)
        edit.set_attr(program, op, "op_role_var", Attr(AttrType.STRINGS, pair))
        for name in program.root.ops[position].output_arguments():
            if name not in unit.names and name not in block.vars:
                edit.add_var(program, block, _resized(program, unit, name, name))


def _declare_state(program: Program, unit: Unit) -> None:
    for name, here in unit.names.items():
        if name != here:
            edit.add_var(program, program.root, _resized(program, unit, name, here))


def _resized(program: Program, unit: Unit, name: str, here: str) -> Variable:
    """The declaration of a variable of an update, with the slice's shape where it has the parameter's."""
    var = program.root.vars[name]
    whole = program.root.vars[unit.param].shape
    return replace(var, name=here, shape=unit.shape if var.shape == whole else var.shape)


def drop_trainer_ops(program: Program, plan: Plan) -> None:
    """Block 0 loses its ops, and every block and variable that only they use."""
    used_by_trainer = blocks_run_by(program, program.root.ops)
    edit.set_ops(program, program.root, [])
    edit.keep_blocks(program, [block.idx for block in program.blocks if block.idx not in used_by_trainer])
    named = {name for _, op in program.all_ops() for name in arguments_of(op)}
    held = {*plan.shared, *(table.name for table in plan.tables)}
    for name in list(program.root.vars):
        if name not in named and name not in held:
            edit.remove_var(program, program.root, name)


def merge_contributions(program: Program, plan: Plan) -> None:
    """Sync: an update starts with the sum of the trainers' gradients, in trainer order, times 1 / contributions. Async,
    and with one trainer: each gradient is applied as it comes."""
    if not plan.averages:
        return
    by = "merge_contributions"
    moved = units(plan)
    if moved:
        declare(program, program.root, names.CONTRIBUTION_SCALE, (1,), "float64", persistable=True)
    for unit, block in zip(moved, update_blocks(program), strict=True):
        gradient = unit.names[unit.gradient]
        var = program.root.vars[gradient]
        parts = [names.of_trainer(gradient, trainer) for trainer in range(plan.cluster.trainers)]
        for name in parts:
            declare(program, program.root, name, unit.shape, var.dtype, var.kind)
        factor = {"X": [gradient], "ScaleTensor": [names.CONTRIBUTION_SCALE]}
        total = make_op(by, "sum", {"X": parts}, {"Out": [gradient]}, OpRole.OPTIMIZE)
        mean = make_op(by, "scale", factor, {"Out": [gradient]}, OpRole.OPTIMIZE)
        edit.set_ops(program, block, [total, mean, *block.ops])
