"""Questions about the ops of a training program."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from fluidlite.core.dataflow import effects, sub_blocks
from fluidlite.core.ir import EMPTY, Block, Operator, OpRole, Program
from fluidlite.dtypes import VarKind
from fluidlite.ops import registry

LOOKUPS: Final = ("lookup_table", "lookup_table_v2")
LOOKUP_GRADS: Final = tuple(f"{type}_grad" for type in LOOKUPS)


def is_optimizer(op: Operator) -> bool:
    """Whether the op's record says that it updates a parameter."""
    op_def = registry.find(op.type)
    return op_def is not None and op_def.is_optimizer


def is_schedule(op: Operator) -> bool:
    """Whether the op computes a learning rate (role LRSched, alone or with Optimize)."""
    return op.role != OpRole.NOT_SPECIFIED and bool(op.role & OpRole.LR_SCHED)


def is_helper(op: Operator) -> bool:
    """Whether the op has the role Optimize without being an optimizer op or part of a schedule."""
    optimize = op.role != OpRole.NOT_SPECIFIED and bool(op.role & OpRole.OPTIMIZE)
    return optimize and not is_schedule(op) and not is_optimizer(op)


def place_of(op: Operator) -> str:
    """How refusals name an op: its type and where the user wrote it."""
    return f"{op.type} ({op.origin})" if op.origin else op.type


def arguments_of(op: Operator) -> set[str]:
    """Every variable that an op names, not counting the blocks that it runs."""
    return {*op.input_arguments(), *op.output_arguments()}


def reads(program: Program, op: Operator) -> set[str]:
    """Every variable that an op of block 0 reads, also in the blocks that it runs."""
    return set(effects(op, registry.find, program.blocks).reads)


def writes(program: Program, op: Operator) -> set[str]:
    """Every variable that an op of block 0 writes, also in the blocks that it runs."""
    return set(effects(op, registry.find, program.blocks).writes)


def blocks_run_by(program: Program, ops: Iterable[Operator]) -> set[int]:
    """The blocks that ops run, with those inside them."""
    found = {idx for op in ops for attr in op.attrs.values() for idx in sub_blocks(attr)}
    return found.union(*(blocks_run_by(program, program.blocks[idx].ops) for idx in found))


def users(program: Program, names: Collection[str]) -> dict[str, list[tuple[Block, Operator]]]:
    """Per variable of block 0 every op, of any block, that names it."""
    found: dict[str, list[tuple[Block, Operator]]] = {name: [] for name in names}
    for block, op in program.all_ops():
        for name in arguments_of(op):
            if name in found and (block.idx == 0 or name not in block.vars):
                found[name].append((block, op))
    return found


def find_tables(program: Program) -> tuple[str, ...]:
    """The distributed parameters, in order of declaration: declared so, or looked up with ``is_distributed``."""
    looked_up = {
        op.input("W") for _, op in program.all_ops() if op.type in LOOKUPS and op.attr("is_distributed", default=False)
    }
    return tuple(
        name for name, var in program.root.vars.items() if name in looked_up or getattr(var, "is_distributed", False)
    )


def lookups_of(program: Program, name: str) -> list[Operator]:
    """The forward lookups of a parameter in block 0, in order."""
    return [
        op for op in program.root.ops if op.type in LOOKUPS and op.input("W") == name and not op.role & OpRole.OPTIMIZE
    ]


def accumulators(op: Operator) -> tuple[list[str], list[str]]:
    """(variables cut like the parameter, variables that each slice has whole) of an optimizer op."""
    cut: list[str] = []
    whole: list[str] = []
    for accumulator in registry.get(op.type).accumulators:
        name = op.input(accumulator.input)
        if name is not None and name != EMPTY:
            (whole if accumulator.whole else cut).append(name)
    return cut, whole


def is_sparse_var(program: Program, name: str) -> bool:
    """Whether a variable is declared to hold SelectedRows."""
    var = program.find_var(name, program.root)
    return var is not None and var.kind is VarKind.SELECTED_ROWS


def is_persistable(program: Program, name: str) -> bool:
    """Whether a variable is declared to live across runs."""
    var = program.find_var(name, program.root)
    return var is not None and var.persistable
