"""The invariants of a program. A pass runs `verify` on what it made, a reader on what it read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from fluidlite.core.dataflow import effects, sub_blocks
from fluidlite.core.declarations import EVERY_OP, ArgumentDeclaration, Defs, OpDeclaration
from fluidlite.core.ir import EMPTY, Attr, AttrType, Block, Operator, Program, Variable
from fluidlite.dtypes import DTYPE_NUMBERS, UNKNOWN_DTYPE, VarKind
from fluidlite.errors import ProgramError

#: how deep blocks may nest: far above any real program, and what runs them calls itself once per level
MAX_DEPTH: Final = 64
#: kinds that ops write before others may read them
_WRITTEN_KINDS: Final = (VarKind.LOD_TENSOR, VarKind.SELECTED_ROWS, VarKind.LOD_TENSOR_ARRAY)
#: attribute type -> the Python types of its value, or of the items of its value
_SCALARS: Final[dict[AttrType, type | tuple[type, ...]]] = {
    AttrType.INT: int,
    AttrType.LONG: int,
    AttrType.FLOAT: (float, int),
    AttrType.STRING: str,
    AttrType.BOOLEAN: bool,
    AttrType.BLOCK: int,
}
_LISTS: Final[dict[AttrType, type | tuple[type, ...]]] = {
    AttrType.INTS: int,
    AttrType.LONGS: int,
    AttrType.FLOATS: (float, int),
    AttrType.STRINGS: str,
    AttrType.BOOLEANS: bool,
    AttrType.BLOCKS: int,
}
#: versions of Fluid differ in how wide an integer attribute is; values mean the same
_SAME: Final = {AttrType.LONG: AttrType.INT, AttrType.LONGS: AttrType.INTS}


def verify(program: Program, defs: Defs) -> None:
    """Raise ProgramError that lists every broken invariant.

    - blocks form a tree: position is index, block 0 is the root, a parent comes before its children, at most MAX_DEPTH
      deep;
    - variables are stored under their own names and have sensible shapes and dtypes;
    - every op is known to ``defs``, has its required inputs, outputs and attributes and no undeclared ones with
      arguments, attributes of the declared type, and BLOCK attributes that name later blocks;
    - arguments are declared in the op's block or above it (or are gradients that nothing makes), no op writes a name twice or stands in two places;
    - in block 0 no op reads a temporary that nothing before it wrote, unless it is data.

    Attributes that ``defs`` does not declare are legal: files of other versions carry some.
    """
    problems = list(_tree(program)) or list(_depth(program))
    if not problems:
        problems = [*_declarations(program), *_ops(program, defs), *_order(program, defs)]
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise ProgramError(f"the program breaks {len(problems)} invariant(s):\n{lines}")


def _tree(program: Program) -> Iterator[str]:
    if not program.blocks:
        yield "it has no blocks"
    for position, block in enumerate(program.blocks):
        if block.idx != position:
            yield f"the block at position {position} calls itself {block.idx}"
        if (position == 0 and block.parent != -1) or (position > 0 and not 0 <= block.parent < position):
            yield f"block {position} cannot have parent {block.parent}"
        if not -1 <= block.forward < len(program.blocks):
            yield f"block {position} cannot have forward block {block.forward}"


def _depth(program: Program) -> Iterator[str]:
    """A block lies one deeper than its parent and than the blocks whose ops run it."""
    depths = [1] * len(program.blocks)
    for block in program.blocks:
        if block.parent >= 0:
            depths[block.idx] = max(depths[block.idx], depths[block.parent] + 1)
        for index in (index for op in block.ops for attr in op.attrs.values() for index in sub_blocks(attr)):
            if block.idx < index < len(depths):
                depths[index] = max(depths[index], depths[block.idx] + 1)
    deepest = max(depths)
    if deepest > MAX_DEPTH:
        yield f"block {depths.index(deepest)} lies {deepest} deep; {MAX_DEPTH} is the most"


def _declarations(program: Program) -> Iterator[str]:
    for block in program.blocks:
        for name, var in block.vars.items():
            yield from (f"block {block.idx}, variable {name!r}: {text}" for text in _declaration(name, var))


def _declaration(name: str, var: Variable) -> Iterator[str]:
    if var.name != name or not name:
        yield f"it is stored under this name but calls itself {var.name!r}"
    if any(dim < -1 for dim in var.shape or ()):
        yield f"shape {list(var.shape or ())} has a negative dimension other than -1"
    if var.dtype not in DTYPE_NUMBERS and var.dtype != UNKNOWN_DTYPE:
        yield f"dtype {var.dtype!r} is none"
    if var.lod_level < 0:
        yield f"lod_level {var.lod_level} is negative"


def _ops(program: Program, defs: Defs) -> Iterator[str]:
    places: dict[int, str] = {}
    for block in program.blocks:
        for index, op in enumerate(block.ops):
            place = f"block {block.idx}, op {index} {op.type!r}{f' ({op.origin})' if op.origin else ''}"
            first = places.setdefault(id(op), place)
            if first is not place:
                yield f"{place}: it is the very op that stands at {first}"
            yield from (f"{place}: {text}" for text in _op(program, block, op, defs))


def _op(program: Program, block: Block, op: Operator, defs: Defs) -> Iterator[str]:
    op_def = defs(op.type)
    if op_def is None:
        yield "unknown op"
    else:
        yield from _arguments("input", op_def.inputs, op.inputs)
        yield from _arguments("output", op_def.outputs, op.outputs)
        yield from _attributes(op, op_def)
    yield from _values(program, block, op)
    yield from _names(program, block, op)


def _arguments(word: str, declared: Sequence[ArgumentDeclaration], given: Mapping[str, Sequence[str]]) -> Iterator[str]:
    known = {argument.name: argument for argument in declared}
    for name, arguments in given.items():
        if name not in known:
            if arguments:
                yield f"it has no {word} {name!r}; it has {', '.join(known) or 'none'}"
        elif len(arguments) > 1 and not known[name].many:
            yield f"{word} {name!r} takes one argument, not {len(arguments)}"
    for argument in declared:
        may_miss = argument.optional or argument.intermediate or "@GRAD" in argument.name
        if not may_miss and not (argument.many and word == "output") and not given.get(argument.name):
            yield f"{word} {argument.name!r} is missing"


def _attributes(op: Operator, op_def: OpDeclaration) -> Iterator[str]:
    for name, spec in op_def.attrs.items():
        if name not in op.attrs and spec.required:
            yield f"attribute {name!r} is missing"
    for name, attr in op.attrs.items():
        declared = op_def.attrs[name].type if name in op_def.attrs else EVERY_OP.get(name)
        if declared is not None and _SAME.get(attr.type, attr.type) is not _SAME.get(declared, declared):
            yield f"attribute {name!r} must be {declared.name}, not {attr.type.name}"


def _values(program: Program, block: Block, op: Operator) -> Iterator[str]:
    for name, attr in op.attrs.items():
        if not _fits(attr):
            yield f"attribute {name!r} is {attr.type.name} but holds {attr.value!r}"
            continue
        for index in sub_blocks(attr):
            if not block.idx < index < len(program.blocks):
                yield f"attribute {name!r} names block {index}, which is no block after {block.idx}"


def _fits(attr: Attr) -> bool:
    if attr.type in _SCALARS:
        return isinstance(attr.value, _SCALARS[attr.type])
    return isinstance(attr.value, tuple) and all(isinstance(item, _LISTS[attr.type]) for item in attr.value)


def _names(program: Program, block: Block, op: Operator) -> Iterator[str]:
    for word, given in (("input", op.inputs), ("output", op.outputs)):
        for key, arguments in given.items():
            for name in arguments:
                # a gradient that nothing makes counts as zero; Fluid does not declare the queues of readers
                absent = word == "input" and ("@GRAD" in key or key == "blocking_queue")
                if name != EMPTY and not absent and program.find_var(name, block) is None:
                    yield f"{word} {key}={name!r} is not declared in block {block.idx} or above it"
    written = list(op.output_arguments())
    for name in sorted({name for name in written if written.count(name) > 1}):
        yield f"it writes {name!r} more than once"


def _order(program: Program, defs: Defs) -> Iterator[str]:
    """Reads of temporaries of block 0 that nothing before them wrote."""
    written: set[str] = set()
    for index, op in enumerate(program.root.ops):
        for key, name in _must_be_there(op, defs):
            var = program.root.vars.get(name)
            if var is not None and name not in written and _needs_a_writer(var):
                yield f"block 0, op {index} {op.type!r}: input {key}={name!r} is read before anything writes it"
        written.update(effects(op, defs, program.blocks).writes)


def _must_be_there(op: Operator, defs: Defs) -> Iterator[tuple[str, str]]:
    op_def = defs(op.type)
    optional = {argument.name for argument in op_def.inputs if argument.optional} if op_def is not None else set()
    for key, names in op.inputs.items():
        if key not in optional and not key.endswith("@GRAD"):
            yield from ((key, name) for name in names if name != EMPTY)


def _needs_a_writer(var: Variable) -> bool:
    return var.kind in _WRITTEN_KINDS and not (var.persistable or var.is_data or var.need_check_feed)
