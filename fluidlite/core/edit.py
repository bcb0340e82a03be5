"""The only functions that change a program. Each one counts as an edit, so that compiled plans notice."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fluidlite.core.ir import Attr, AttrType, Block, Operator, Parameter, Program, Variable
from fluidlite.errors import ProgramError


def add_block(program: Program, parent: int, *, forward: int = -1) -> Block:
    """Append an empty block whose variables fall back to those of ``parent``."""
    block = Block(idx=len(program.blocks), parent=parent, forward=forward)
    program.blocks.append(block)
    program.edits += 1
    return block


def add_var(program: Program, block: Block, var: Variable) -> Variable:
    """Declare a variable; a second declaration of a name in the same block replaces the first."""
    if not var.name:
        raise ProgramError(f"a variable of block {block.idx} has an empty name")
    block.vars[var.name] = var
    program.edits += 1
    return var


def remove_var(program: Program, block: Block, name: str) -> None:
    """Forget a declaration. No op may still name it; `verify` checks."""
    if name not in block.vars:
        raise ProgramError(f"block {block.idx} declares no variable {name!r} to remove")
    del block.vars[name]
    program.edits += 1


def insert_op(program: Program, block: Block, index: int, op: Operator) -> Operator:
    """Insert before position ``index``; ``len(block.ops)`` appends."""
    block.ops.insert(index, op)
    program.edits += 1
    return op


def append_op(program: Program, block: Block, op: Operator) -> Operator:
    """Append an op to a block."""
    return insert_op(program, block, len(block.ops), op)


def remove_ops(program: Program, block: Block, ops: Collection[Operator]) -> None:
    """Remove these very ops (by identity, not by equality)."""
    doomed = {id(op) for op in ops}
    block.ops = [op for op in block.ops if id(op) not in doomed]
    program.edits += 1


def replace_op(program: Program, block: Block, op: Operator, new: list[Operator]) -> None:
    """Put ``new`` where ``op`` stands."""
    index = position(block, op)
    block.ops[index : index + 1] = new
    program.edits += 1


def position(block: Block, op: Operator) -> int:
    """Where this very op stands in its block."""
    for index, candidate in enumerate(block.ops):
        if candidate is op:
            return index
    raise ProgramError(f"op {op.type!r} is not in block {block.idx}")


def set_ops(program: Program, block: Block, ops: list[Operator]) -> None:
    """Replace all ops of a block."""
    block.ops = ops
    program.edits += 1


def set_attr(program: Program, op: Operator, name: str, attr: Attr | None) -> None:
    """Set an attribute, or remove it with None."""
    if attr is None:
        op.attrs.pop(name, None)
    else:
        op.attrs[name] = attr
    program.edits += 1


def rename_var(program: Program, block: Block, name: str, new: str) -> Variable:
    """Give a variable of a block, which keeps its place, another name there and in the block's ops."""
    if name not in block.vars or not new or (new in block.vars and new != name):
        raise ProgramError(
            f"block {block.idx} cannot rename variable {name!r} to {new!r}: one is missing, the other there"
        )
    block.vars[name].name = new
    block.vars = {var.name: var for var in block.vars.values()}
    for op in block.ops:
        rename_arguments(program, op, {name: new})
    return block.vars[new]


def rename_arguments(
    program: Program, op: Operator, names: Mapping[str, str], *, inputs: bool = True, outputs: bool = True
) -> None:
    """Rename arguments of one op: inputs, outputs or both."""
    for arguments in [op.inputs] * inputs + [op.outputs] * outputs:
        for key, values in arguments.items():
            arguments[key] = [names.get(value, value) for value in values]
    program.edits += 1


def keep_blocks(program: Program, kept: Sequence[int]) -> None:
    """Drop all blocks but these and number them anew in the given order; parents and block attributes follow.

    Block 0 must come first, a parent before its children, and no op that stays may name a block that goes.
    """
    new = {old: index for index, old in enumerate(kept)}
    blocks = [program.blocks[old] for old in kept]
    for block in blocks:
        if block.parent not in {-1, *new}:
            raise ProgramError(f"block {block.idx} cannot stay without its parent, block {block.parent}")
    for index, block in enumerate(blocks):
        block.idx = index
        block.parent = new.get(block.parent, -1)
        block.forward = new.get(block.forward, -1)
        for op in block.ops:
            op.attrs = {name: _renumbered(op, name, attr, new) for name, attr in op.attrs.items()}
    program.blocks = blocks
    program.edits += 1


def _renumbered(op: Operator, name: str, attr: Attr, new: Mapping[int, int]) -> Attr:
    if attr.type not in (AttrType.BLOCK, AttrType.BLOCKS):
        return attr
    named = (attr.value,) if attr.type is AttrType.BLOCK else attr.value
    gone = [idx for idx in named if idx not in new]
    if gone:
        raise ProgramError(
            f"attribute {name!r} of op {op.type!r} names block {gone[0]}, which is dropped ({op.origin})"
        )
    return Attr(attr.type, new[attr.value] if attr.type is AttrType.BLOCK else tuple(new[idx] for idx in named))


def clone(program: Program) -> Program:
    """A deep copy with an identity of its own. Regularizer and clip objects of parameters are shared."""
    return Program(
        blocks=[_clone_block(block) for block in program.blocks],
        version=program.version,
        random_seed=program.random_seed,
        unknown=program.unknown,
        backward_passes=program.backward_passes,
    )


def clone_op(op: Operator) -> Operator:
    """A copy of an op that shares nothing mutable with it."""
    return Operator(
        type=op.type,
        inputs={name: list(names) for name, names in op.inputs.items()},
        outputs={name: list(names) for name, names in op.outputs.items()},
        attrs=dict(op.attrs),
        origin=op.origin,
        is_target=op.is_target,
        unknown=op.unknown,
        form=op.form,
    )


def clone_var(var: Variable) -> Variable:
    """A copy of a declaration (a Parameter stays one)."""
    twin = object.__new__(type(var))
    twin.__dict__.update(var.__dict__)  # as `copy.copy` does, which takes ten times as long
    return twin


def as_plain(var: Variable) -> Variable:
    """The declaration of a parameter as an ordinary variable."""
    if not isinstance(var, Parameter):
        return clone_var(var)
    fields = {key: getattr(var, key) for key in Variable.__dataclass_fields__}
    return Variable(**fields)


def install(program: Program, content: Program) -> None:
    """Make ``program`` hold what ``content`` holds, keeping its identity (Fluid's transpile works in place)."""
    twin = clone(content)
    program.blocks = twin.blocks
    program.version = twin.version
    program.random_seed = twin.random_seed
    program.unknown = twin.unknown
    program.edits += 1


def _clone_block(block: Block) -> Block:
    return Block(
        idx=block.idx,
        parent=block.parent,
        forward=block.forward,
        vars={name: clone_var(var) for name, var in block.vars.items()},
        ops=[clone_op(op) for op in block.ops],
        unknown=block.unknown,
    )
