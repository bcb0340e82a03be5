"""What ops that run blocks share: the record of a run that the gradient goes back over (Fluid's step scopes).

A record is one dictionary per run of the block, name -> value: of what the block made, the values at its end; of what it
overwrote outside, those at its start. Only what the gradient block reads is recorded, and only if there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from fluidlite.core import dataflow, names
from fluidlite.core.ir import EMPTY, Block, Operator, Program
from fluidlite.dtypes import VarKind, numpy_dtype
from fluidlite.errors import ProgramError
from fluidlite.ops import registry
from fluidlite.ops.context import KernelContext
from fluidlite.ops.sum import sum_values
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows, to_dense

Record = dict[str, Any]


class BlockRun(NamedTuple):
    """How an op runs its block."""

    block: int
    #: variables of the block: they start without values
    own: tuple[str, ...]
    #: of these, what the gradient reads
    made: tuple[str, ...]
    #: variables outside that the block overwrites and whose earlier values the gradient reads
    overwritten: tuple[str, ...]

    def __call__(self, ctx: KernelContext, given: Mapping[str, Any] | None = None) -> Record:
        """Run the block once, its variables starting with ``given``; what its gradient will need."""
        assert ctx.run_block is not None
        ctx.forget(self.own)
        for name, value in (given or {}).items():
            ctx.write(name, value)
        before = {name: ctx.read(name) for name in self.overwritten}
        ctx.run_block(self.block)
        return before | {name: ctx.read(name) for name in self.made}


def block_run(ctx: KernelContext, block: int) -> BlockRun:
    """How the op of ``ctx`` runs its block; worked out once per plan."""
    if ctx.memo is None:
        if ctx.run_block is None:
            raise ProgramError(f"{ctx.op.type} needs an executor that runs blocks")
        ctx.memo = _block_run(ctx.program, ctx.program.blocks[block])
    run: BlockRun = ctx.memo
    return run


def _block_run(program: Program, block: Block) -> BlockRun:
    own = tuple(name for name, var in block.vars.items() if not var.persistable)
    backwards = [other.idx for other in program.blocks if other.forward == block.idx]
    inner = [inside for idx in backwards for inside in below(program, idx)]
    read = {name for inside in inner for op in inside.ops for name in op.input_arguments()}
    return BlockRun(
        block.idx,
        own,
        tuple(name for name in block.vars if name in read),
        tuple(name for name in overwritten(program, block) if name in read),
    )


def below(program: Program, block: int) -> Iterator[Block]:
    """A block and those that its ops run, and so on."""
    waiting = [block]
    for idx in waiting:
        yield program.blocks[idx]
        for op in program.blocks[idx].ops:
            waiting += [i for attr in op.attrs.values() for i in dataflow.sub_blocks(attr) if i > idx]


def overwritten(program: Program, block: Block) -> list[str]:
    """The outside variables that a block gives new values, without arrays and counters: the gradient of an `increment` in
    place undoes it."""
    outside: dict[str, None] = {}
    in_place = set()
    for inner in below(program, block.idx):
        for op in inner.ops:
            for name in op.output_arguments():
                owner = program.owner(name, inner)
                if owner is not None and owner.idx < block.idx and owner.vars[name].kind is not VarKind.STEP_SCOPES:
                    outside[name] = None
            if op.type == "increment":
                in_place.update(set(op.input_arguments()).intersection(op.output_arguments()))
    arrays = {n for n in outside if (var := program.find_var(n, block)) and var.kind is VarKind.LOD_TENSOR_ARRAY}
    return [name for name in outside if name not in in_place | arrays]


class Back(NamedTuple):
    """How the gradient of an op runs the gradient block."""

    block: int
    #: variables of the gradient block
    own: tuple[str, ...]
    #: outside variables that a record hides while the gradient block runs
    hidden: tuple[str, ...]
    #: what the gradient block writes
    makes: frozenset[str]

    def name(self, ctx: KernelContext, name: str) -> str:
        """What the gradient block calls the variable that it declares, or sees, under ``name``."""
        return inside_name(ctx.program, self.block, name)

    def gradient(self, ctx: KernelContext, argument: str) -> str:
        """What the gradient block calls the gradient of a variable of the op."""
        return self.name(ctx, names.grad(names.declared(argument)))

    def found(self, ctx: KernelContext, argument: str) -> Any:
        """The gradient of a variable of the op as the gradient block left it, None if it makes none."""
        name = self.gradient(ctx, argument)
        return ctx.read(name) if name in self.makes else None

    def __call__(self, ctx: KernelContext, record: Record, given: Record) -> None:
        """Run the gradient block over one record; ``given`` are gradients to start with."""
        assert ctx.run_block is not None
        ctx.forget(self.own)
        for name, value in (record | given).items():
            if value is not None:
                ctx.write(name, value)
        ctx.run_block(self.block)

    @contextmanager
    def keeping(self, ctx: KernelContext) -> Iterator[None]:
        """Afterwards the hidden variables have their values again, and those of the gradient block none."""
        values = {name: ctx.read(name) for name in self.hidden}
        try:
            yield
        finally:
            ctx.forget(self.own)
            for name, value in values.items():
                if value is not None:
                    ctx.write(name, value)


def inside_name(program: Program, block: int, name: str) -> str:
    """What a plan calls the variable that a block declares, or sees, under ``name``."""
    private = names.inside(name, block)
    return private if private in program.blocks[block].vars else name


def back(ctx: KernelContext, block: int) -> Back:
    """How the op of ``ctx`` runs the gradient block; worked out once per plan."""
    if ctx.memo is None:
        if ctx.run_block is None:
            raise ProgramError(f"{ctx.op.type} needs an executor that runs blocks")
        program = ctx.program
        own = tuple(name for name, var in program.blocks[block].vars.items() if not var.persistable)
        makes = frozenset(name for op in program.blocks[block].ops for name in op.output_arguments())
        hidden = overwritten(program, program.blocks[program.blocks[block].forward])
        ctx.memo = Back(block, own, tuple(hidden), makes)
    found: Back = ctx.memo
    return found


def no_gradient(ctx: KernelContext, argument: str, gradient: str) -> Any:
    """The gradient of a variable that nothing made one for: zeros of its value's shape, no rows where it is sparse."""
    value = ctx.read(argument)
    var = ctx.program.find_var(gradient, ctx.block)
    if var is not None and var.kind is VarKind.SELECTED_ROWS and value is not None:
        rows = np.asarray(value.array if isinstance(value, LoDTensor) else value)
        return SelectedRows(np.zeros(0, np.int64), np.zeros((0, *rows.shape[1:]), numpy_dtype(var.dtype)), len(rows))
    return zeros_like(value)


def result(ctx: KernelContext, argument: str, gradient: str, value: Any) -> Any:
    """What the op of ``ctx`` writes as the gradient of an argument: nothing where it is not asked for, zeros where nothing
    made one."""
    if gradient == EMPTY:
        return None
    return no_gradient(ctx, argument, gradient) if value is None else as_declared(ctx, gradient, value)


def as_declared(ctx: KernelContext, gradient: str, value: Any) -> Any:
    """A gradient in the form that its variable is declared in: where that is dense, rows become a whole array."""
    var = ctx.program.find_var(gradient, ctx.block)
    dense = isinstance(value, SelectedRows) and (var is None or var.kind is not VarKind.SELECTED_ROWS)
    return to_dense(value) if dense else value


def zeros_like(value: Any) -> Any:
    """Zeros in the form of a value; None where there is none."""
    if isinstance(value, list):
        return [zeros_like(entry) for entry in value]
    if isinstance(value, LoDTensor):
        return LoDTensor(np.zeros_like(value.array), value.lod)
    return None if value is None else np.zeros_like(np.asarray(value))


def filled(gradient: Any, value: Any) -> Any:
    """An array of gradients in which each entry of ``value`` has one: zeros where nothing was written."""
    if not isinstance(gradient, list) or not isinstance(value, list):
        return gradient
    padded = [*gradient, *[None] * (len(value) - len(gradient))]
    return [
        zeros_like(entry) if part is None else part
        for part, entry in zip(padded, [*value, *[None] * (len(padded) - len(value))], strict=True)
    ]


def added(total: Any, more: Any) -> Any:
    """The sum of two gradients; None counts as zero."""
    return sum_values([total, more])


def makes_gradient(op: Operator) -> bool:
    """Whether there is a gradient of ops of this type."""
    op_def = registry.get(op.type)
    return op_def.grad is not None or op_def.block_grad is not None


def reads_and_writes(ops: Sequence[Operator]) -> tuple[list[str], set[str]]:
    """(what ops read before any of them writes it, in order; what they write)."""
    reads: dict[str, None] = {}
    writes: set[str] = set()
    for op in ops:
        reads.update((name, None) for name in op.input_arguments() if name not in writes)
        writes.update(op.output_arguments())
    return list(reads), writes
