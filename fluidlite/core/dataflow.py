"""What depends on what: dependencies, readiness, liveness, dead ops, pruning, and the graph of a block.

Functions take the ops of one block in order and answer with positions in that list. An op that owns sub-blocks
(``while``, ``listen_and_serv``) reads and writes what the ops inside do; for that, pass the program's ``blocks``.
Variables are compared by name, so the ops must be of one block.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from fluidlite.core.declarations import Defs
from fluidlite.core.ir import EMPTY, Attr, AttrType, Block, Operator, Program

if TYPE_CHECKING:
    import networkx as nx


_NAMING_BLOCKS: Final = (AttrType.BLOCK, AttrType.BLOCKS)


class Effects(NamedTuple):
    """Names that an op reads and writes, each once, in order. ``visible``: it also acts on the world outside."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    visible: bool


class Hazard(NamedTuple):
    """A reason why op ``later`` must follow op ``earlier``.

    ``kind``: "read after write", "write after read", "write after write" of variable ``name``, or "side effect".
    """

    earlier: int
    later: int
    kind: str
    name: str = ""


@dataclass
class Uses:
    """Positions of the ops that write and read one variable, ascending."""

    writers: list[int] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)


def effects(op: Operator, defs: Defs, blocks: Sequence[Block] = (), above: int = 0) -> Effects:
    """What an op does. An op unknown to ``defs`` counts as visible.

    An input that the op may overwrite in place (under another name than the output) counts as written. ``above`` is
    the index of the op's block: only later blocks are sub-blocks.
    """
    inner: dict[int, Effects] = {}
    for index in sorted(_blocks_below(op, blocks, above), reverse=True):
        inner[index] = _block_effects(blocks[index], defs, inner)
    return _op_effects(op, defs, above, inner)


def _blocks_below(op: Operator, blocks: Sequence[Block], above: int) -> set[int]:
    """The sub-blocks of an op, and theirs. Neither recursive nor repeated: files may nest deep and name blocks twice."""
    found: set[int] = set()
    waiting = [(op, above)]
    while waiting:
        op, above = waiting.pop()
        for index in _named_blocks(op):
            if above < index < len(blocks) and index not in found:
                found.add(index)
                waiting += [(inside, index) for inside in blocks[index].ops]
    return found


def _named_blocks(op: Operator) -> list[int]:
    return [index for attr in op.attrs.values() if attr.type in _NAMING_BLOCKS for index in sub_blocks(attr)]


def _op_effects(op: Operator, defs: Defs, above: int, inner: Mapping[int, Effects]) -> Effects:
    """What an op does, given what the later blocks do."""
    op_def = defs(op.type)
    reads = list(op.input_arguments())
    writes = list(op.output_arguments())
    visible = op_def is None or op_def.side_effect
    if op_def is not None:
        overwritten = [op.inputs.get(name, ()) for output, name in op_def.inplace.items() if op.outputs.get(output)]
        writes += [name for names in overwritten for name in names if name != EMPTY]
    for index in _named_blocks(op) if inner else ():
        if index > above and index in inner:
            reads += inner[index].reads
            writes += inner[index].writes
            visible = visible or inner[index].visible
    return Effects(tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(writes)), visible)


def sub_blocks(attr: Attr) -> tuple[int, ...]:
    """The blocks that an attribute names, none for attributes of other types."""
    if attr.type not in _NAMING_BLOCKS:
        return ()
    values = attr.value if isinstance(attr.value, tuple) else (attr.value,)
    return tuple(value for value in values if isinstance(value, int))


def hazards(ops: Sequence[Operator], defs: Defs, blocks: Sequence[Block] = ()) -> Iterator[Hazard]:
    """Every reason for an order among the ops, by the later op. Ops that are visible outside keep their order."""
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    last_visible: int | None = None
    for index, op in enumerate(ops):
        effect = effects(op, defs, blocks)
        for name in effect.reads:
            if name in writer:
                yield Hazard(writer[name], index, "read after write", name)
            readers.setdefault(name, []).append(index)
        for name in effect.writes:
            yield from (Hazard(at, index, "write after read", name) for at in readers.pop(name, ()) if at != index)
            if name in writer:
                yield Hazard(writer[name], index, "write after write", name)
            writer[name] = index
        if effect.visible:
            if last_visible is not None:
                yield Hazard(last_visible, index, "side effect")
            last_visible = index


def dependencies(ops: Sequence[Operator], defs: Defs, blocks: Sequence[Block] = ()) -> list[tuple[int, ...]]:
    """Per op the positions of the ops that must run before it, ascending."""
    before: list[set[int]] = [set() for _ in ops]
    for hazard in hazards(ops, defs, blocks):
        before[hazard.later].add(hazard.earlier)
    return [tuple(sorted(positions)) for positions in before]


def levels(ops: Sequence[Operator], defs: Defs, blocks: Sequence[Block] = ()) -> list[list[int]]:
    """Positions grouped by readiness: an op stands one level after the last of those it depends on."""
    level: list[int] = []
    groups: list[list[int]] = []
    for index, before in enumerate(dependencies(ops, defs, blocks)):
        level.append(1 + max((level[at] for at in before), default=-1))
        if level[-1] == len(groups):
            groups.append([])
        groups[level[-1]].append(index)
    return groups


def def_use(ops: Sequence[Operator], defs: Defs, blocks: Sequence[Block] = ()) -> dict[str, Uses]:
    """Per variable who writes and who reads it."""
    uses: dict[str, Uses] = {}
    for index, op in enumerate(ops):
        effect = effects(op, defs, blocks)
        for name in effect.reads:
            uses.setdefault(name, Uses()).readers.append(index)
        for name in effect.writes:
            uses.setdefault(name, Uses()).writers.append(index)
    return uses


def last_use(ops: Sequence[Operator], defs: Defs, blocks: Sequence[Block] = ()) -> dict[str, int]:
    """Per variable the position of the last op that touches it: afterwards its memory is free."""
    return {name: max(uses.writers[-1:] + uses.readers[-1:]) for name, uses in def_use(ops, defs, blocks).items()}


def dead_ops(ops: Sequence[Operator], keep: Container[str], defs: Defs, blocks: Sequence[Block] = ()) -> list[Operator]:
    """Ops that nobody would miss: not visible outside, and they write neither what is kept nor what a live op reads."""
    live = set(_needed(ops, keep, (), defs, blocks, visible=True))
    return [op for index, op in enumerate(ops) if index not in live]


def prune(program: Program, feeds: Collection[str], targets: Iterable[str], defs: Defs) -> list[Operator]:
    """The ops of block 0 that the targets need, in order, when ``feeds`` are given from outside.

    Ops that act on the world outside (send, save, print) are not needed unless a target depends on their outputs. An
    op after the last reader of what it writes (an optimizer's, on a parameter) is not needed either.
    """
    ops = program.root.ops
    return [ops[index] for index in _needed(ops, frozenset(targets), feeds, defs, program.blocks, visible=False)]


def graph(program: Program, defs: Defs, block: int = 0) -> nx.DiGraph:
    """A block as a graph for networkx: a node per op (position, attribute ``op``), an edge per dependency.

    Edges carry ``hazards``, the list of reasons.
    """
    import networkx as nx

    ops = program.blocks[block].ops
    reasons: dict[tuple[int, int], list[Hazard]] = {}
    for hazard in hazards(ops, defs, program.blocks):
        reasons.setdefault((hazard.earlier, hazard.later), []).append(hazard)
    result = nx.DiGraph()
    for index, op in enumerate(ops):
        result.add_node(index, op=op)
    for (earlier, later), found in reasons.items():
        result.add_edge(earlier, later, hazards=found)
    return result


def _block_effects(block: Block, defs: Defs, inner: Mapping[int, Effects]) -> Effects:
    """What a sub-block does to variables declared outside it, given what the later blocks do."""
    found = [_op_effects(op, defs, block.idx, inner) for op in block.ops]
    return Effects(
        tuple(dict.fromkeys(name for effect in found for name in effect.reads if name not in block.vars)),
        tuple(dict.fromkeys(name for effect in found for name in effect.writes if name not in block.vars)),
        any(effect.visible for effect in found),
    )


def _needed(
    ops: Sequence[Operator],
    targets: Container[str],
    cut: Container[str],
    defs: Defs,
    blocks: Sequence[Block],
    *,
    visible: bool,
) -> list[int]:
    """Positions of what the targets need, going back from the end; nothing before a name in ``cut`` is."""
    wanted: set[str] = set()
    found = []
    for index in range(len(ops) - 1, -1, -1):
        effect = effects(ops[index], defs, blocks)
        writes = any((name in wanted or name in targets) and name not in cut for name in effect.writes)
        if writes or (visible and effect.visible):
            found.append(index)
            wanted.update(effect.reads)
    return found[::-1]
