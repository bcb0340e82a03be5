"""Gives variables of sub-blocks names of their own, so that one flat table holds the values of a run.

A block of control flow may declare a name that another block has, too: the slice of a sequence inside a `recurrent` op is
called like the sequence, and the gradient of a parameter inside a loop like the sum over its steps. In a copy of the
program such variables are called ``<name> of block <k>``.
"""

from __future__ import annotations

from collections import Counter

from fluidlite.core import dataflow, edit, names
from fluidlite.core.ir import AttrType, Block, Operator, Program
from fluidlite.ops import registry


def unshadowed(program: Program) -> Program:
    """The program if no block of control flow repeats a name, else a copy in which each means one variable."""
    private = _private_blocks(program)
    count = Counter(name for block in program.blocks for name in block.vars)
    renamed = {
        idx: {
            name: names.inside(name, idx)
            for name, var in program.blocks[idx].vars.items()
            if count[name] > 1 and not var.persistable
        }
        for idx in private
    }
    if not any(renamed.values()):
        return program
    twin = edit.clone(program)
    for block in program.blocks:
        for op, copy in zip(block.ops, twin.blocks[block.idx].ops, strict=True):
            edit.rename_arguments(twin, copy, _meant(program, block, op, renamed))
    for idx, mapping in renamed.items():
        for name, new in mapping.items():
            var = twin.blocks[idx].vars[name]
            edit.remove_var(twin, twin.blocks[idx], name)
            var.name = new
            edit.add_var(twin, twin.blocks[idx], var)
    return twin


def _private_blocks(program: Program) -> list[int]:
    """The blocks that ops of control flow run: a run of one starts with variables of its own."""
    return sorted(
        {
            idx
            for _, op in program.all_ops()
            if (op_def := registry.find(op.type)) is not None and op_def.private_block
            for attr in op.attrs.values()
            if attr.type is AttrType.BLOCK
            for idx in dataflow.sub_blocks(attr)
            if 0 < idx < len(program.blocks)
        }
    )


def _meant(program: Program, block: Block, op: Operator, renamed: dict[int, dict[str, str]]) -> dict[str, str]:
    """The new names of an op's arguments."""
    found = {}
    for name in {*op.input_arguments(), *op.output_arguments()}:
        owner = program.owner(name, block)
        new = renamed.get(owner.idx, {}).get(name) if owner is not None else None
        if new is not None:
            found[name] = new
    return found
