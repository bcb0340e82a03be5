"""The ops of block 0 while fusion passes rewrite them, and the proof that a rewrite changes no result."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fluidlite.core import dataflow, edit, names
from fluidlite.core.ir import Attr, Operator, Program, Variable
from fluidlite.errors import ProgramError
from fluidlite.ops import registry
from fluidlite.ops.registry import OpDef

#: how many of the places in the user's script that a fused op comes from its origin names
_PLACES: Final = 3
#: attributes about an op rather than of it: two ops that differ in nothing else do the same
_ABOUT: Final = ("op_role", "op_role_var", "op_namescope", "op_callstack", "op_device")


@dataclass(eq=False, slots=True)
class Node:
    """An op at its place in the order of running."""

    op: Operator
    place: int
    reads: frozenset[str]
    writes: frozenset[str]
    #: it acts on the world outside; those that only ask servers (``pulls``) need no order among themselves
    visible: bool
    pulls: bool
    #: it runs sub-blocks
    blocks: bool
    #: it has the arguments that its record asks for, all declared: patterns look at no others
    sound: bool


@dataclass(slots=True)
class Part:
    """Some ops, and the one that does their work where ``at``, one of them, stands."""

    old: Sequence[Node]
    new: Operator
    at: Node


class Graph:
    """Block 0 of a program. `replace` alone changes it; the program itself changes when `finish` is called.

    ``fetched``: variables that must be there after a run.
    """

    def __init__(self, program: Program, fetched: Collection[str] = ()) -> None:
        self.program = program
        self._fetched = frozenset(fetched)
        self._nodes: dict[int, Node] = {}
        self._writers: dict[str, list[Node]] = {}
        self._readers: dict[str, list[Node]] = {}
        self._gone: set[str] = set()
        self._added: list[Variable] = []
        for place, op in enumerate(program.root.ops):
            self._add(self._node(op, place))

    def nodes(self, *types: str) -> list[Node]:
        """The sound ops of some types, in order."""
        found = (node for node in self._nodes.values() if node.op.type in types and node.sound)
        return sorted(found, key=lambda node: node.place)

    def readers(self, name: str, *types: str) -> list[Node]:
        """The ops that read a variable, in order: all, or the sound ones of some types."""
        found = [node for node in self._readers.get(name, ()) if not types or (node.op.type in types and node.sound)]
        return sorted(found, key=lambda node: node.place)

    def writer(self, name: str) -> Node | None:
        """The op that writes a variable, if it is the only one, and sound."""
        writers = self._writers.get(name, [])
        return writers[0] if len(writers) == 1 and writers[0].sound else None

    def var(self, name: str) -> Variable | None:
        """The declaration of a variable of block 0."""
        added = (var for var in self._added if var.name == name)
        return self.program.root.vars.get(name) or next(added, None)

    def rank(self, name: str) -> int | None:
        """The declared number of dimensions."""
        var = self.var(name)
        return None if var is None or var.shape is None else len(var.shape)

    def declare(self, name: str, like: str, shape: tuple[int, ...] | None = None) -> str:
        """Declare a variable for an op that a pass is about to put in, as ``like`` is but perhaps of another shape; its
        name, which no variable has yet: one that stays keeps its value."""
        source = self.var(like)
        assert source is not None
        name = names.fused(name)
        while self.var(name) is not None:
            name = names.fused(name)
        self._added.append(Variable(name, source.kind, source.dtype, source.shape if shape is None else shape))
        return name

    def spot(self, nodes: Sequence[Node], *, early: bool = False) -> Node:
        """Where one op could do the work of some: where the last of them stands, or else the first; the other way round
        with ``early``."""
        first, *_, last = sorted(nodes, key=lambda node: node.place)
        better, other = (first, last) if early else (last, first)
        return better if self.can_stand(nodes, better) else other

    def can_stand(self, nodes: Collection[Node], at: Node) -> bool:
        """Whether ops could run where ``at`` stands: nothing between depends on them, nor they on it."""
        part = frozenset(nodes)
        return all(self._is_free(node, at.place, part) for node in nodes)

    def replace(self, by: str, *parts: Part) -> bool:
        """Put the new op of each part in place of its old ones, unless that might change a result; whether it was done.

        It is done where

        - variables that are no longer written are read by replaced ops only, after their one writer, and are neither
          fetched nor data nor persistable;
        - each old op could run where its part's new one stands: no op in between writes what it reads or reads or writes
          what it writes, and ops that act on the world outside keep their order;
        - new ops read what the old ones of their part read, or what the only writer of a variable wrote before them;
        - of the variables that stay, none is written by two old ops of a part, or by one and read by another one and by
          the new one.

        ``by`` names the pass in the origin of the new ops.
        """
        old = frozenset(node for part in parts for node in part.old)
        new = [self._stand_in(by, part) for part in parts]
        gone = {name for node in old for name in node.writes} - {name for node in new for name in node.writes}
        if not all(self._only_inside(name, old) for name in gone) or any(node.reads & gone for node in new):
            return False
        for part, own in zip(parts, new, strict=True):
            members, others = frozenset(part.old), [node for node in new if node is not own]
            if not all(self._is_free(node, part.at.place, members, others, gone) for node in part.old):
                return False
            if not self._finds_its_inputs(own, part, old, new) or not self._is_clear(own, members, gone):
                return False
        for node in old:
            self._remove(node)
        for node in new:
            self._add(node)
        self._gone |= gone
        return True

    def finish(self) -> bool:
        """Give the program the ops as they are now; whether that changed it."""
        ops = [node.op for node in sorted(self._nodes.values(), key=lambda node: node.place)]
        if [id(op) for op in ops] == [id(op) for op in self.program.root.ops]:
            return False
        root = self.program.root
        edit.set_ops(self.program, root, ops)
        used = {name for op in ops for name in (*op.input_arguments(), *op.output_arguments())}
        for var in self._added:
            if var.name in used:
                edit.add_var(self.program, root, var)
        for name in self._gone & root.vars.keys():
            edit.remove_var(self.program, root, name)
        self._added, self._gone = [], set()
        return True

    def _only_inside(self, name: str, old: frozenset[Node]) -> bool:
        """Whether a variable may go with the ops ``old``."""
        var, writer = self.program.root.vars.get(name), self.writer(name)
        if var is None or var.persistable or var.is_data or name in self._fetched or writer is None:
            return False
        return all(node in old and node.place > writer.place for node in self._readers.get(name, ()))

    def _is_free(
        self,
        node: Node,
        place: int,
        part: frozenset[Node],
        others: Collection[Node] = (),
        gone: Collection[str] = (),
    ) -> bool:
        """Whether an op could run at another place, with the others of its part.

        ``others``: the new ops of the other parts. Variables in ``gone`` do not count.
        """
        low, high = sorted((node.place, place))

        def between(nodes: Iterable[Node]) -> bool:
            return any(low < other.place < high and other not in part for other in nodes)

        reads, writes = node.reads.difference(gone), node.writes.difference(gone)
        passed = [other for other in others if low < other.place < high]
        if any(reads & new.writes or writes & (new.reads | new.writes) for new in passed):
            return False
        if node.visible and between(self._in_order_with(node, others)):
            return False
        return not any(between(self._writers.get(name, ())) for name in reads | writes) and not any(
            between(self._readers.get(name, ())) for name in writes
        )

    def _in_order_with(self, node: Node, others: Iterable[Node]) -> Iterator[Node]:
        """The ops that keep their order relative to one that acts on the world outside."""
        every = itertools.chain(self._nodes.values(), others)
        return (other for other in every if other.visible and not (node.pulls and other.pulls))

    def _finds_its_inputs(self, node: Node, part: Part, old: frozenset[Node], new: Sequence[Node]) -> bool:
        """Whether a new op reads what its old ones read, or else what one op before it alone writes."""
        for name in node.reads.difference(*(member.reads for member in part.old)):
            rest = [other for other in self._writers.get(name, ()) if other not in old]
            writers = rest + [other for other in new if name in other.writes]
            if len(writers) != 1 or writers[0].place >= node.place:
                return False
        return True

    def _is_clear(self, node: Node, part: frozenset[Node], gone: Collection[str]) -> bool:
        """Whether no variable that an old op writes, and that stays, is written by another old op of the part as well, or
        read by another one and by the new one: it would have two values."""
        for member in part:
            for name in member.writes.difference(gone):
                touching = self._writers.get(name, []) + (self._readers.get(name, []) if name in node.reads else [])
                if any(other in part for other in touching if other is not member):
                    return False
        return True

    def _stand_in(self, by: str, part: Part) -> Node:
        """The node of a part's new op, whose origin and role are those of the old ones."""
        op = part.new
        op.origin = _origin(by, [node.op for node in part.old])
        role = part.at.op.attrs.get("op_role")
        if role is not None:
            op.attrs["op_role"] = role
        pairs = tuple(name for node in part.old for name in node.op.role_var)
        if pairs:
            op.attrs["op_role_var"] = registry.attrs_for_one(op.type, "op_role_var", pairs)
        return self._node(op, part.at.place)

    def _node(self, op: Operator, place: int) -> Node:
        effects = dataflow.effects(op, registry.find, self.program.blocks)
        op_def = registry.find(op.type)
        pulls = op_def is not None and op_def.pull is not None
        reads, writes = frozenset(effects.reads), frozenset(effects.writes)
        blocks = any(dataflow.sub_blocks(attr) for attr in op.attrs.values())
        return Node(op, place, reads, writes, effects.visible, pulls, blocks, self._is_sound(op, op_def))

    def _is_sound(self, op: Operator, op_def: OpDef | None) -> bool:
        """Whether an op is one that a pattern may take apart; others are the compiler's to run or to refuse."""
        if op_def is None or any(self.var(name) is None for name in (*op.input_arguments(), *op.output_arguments())):
            return False
        needed = [op.inputs.get(arg.name) for arg in op_def.inputs if not arg.optional]
        given = [op.outputs.get(arg.name) for arg in op_def.outputs]
        # of gradients any one will do, of what other ops give the first is there
        if not all(needed) or not (any(given) if _is_gradient(op_def) else all(given[:1])):
            return False
        try:
            registry.check_arguments(op_def, op)
        except ProgramError:
            return False
        return True

    def _add(self, node: Node) -> None:
        self._nodes[id(node)] = node
        for name in node.reads:
            self._readers.setdefault(name, []).append(node)
        for name in node.writes:
            self._writers.setdefault(name, []).append(node)

    def _remove(self, node: Node) -> None:
        del self._nodes[id(node)]
        for name in node.reads:
            self._readers[name].remove(node)
        for name in node.writes:
            self._writers[name].remove(node)


def make_op(
    type: str, inputs: Mapping[str, Sequence[str]], outputs: Mapping[str, Sequence[str]], attrs: Mapping[str, Any]
) -> Operator:
    """An op, checked against its record; inputs and outputs without arguments are left out."""
    op_def = registry.get(type)
    op = Operator(
        type,
        {name: list(arguments) for name, arguments in inputs.items() if arguments},
        {name: list(arguments) for name, arguments in outputs.items() if arguments},
        registry.attrs_for(op_def, attrs),
    )
    registry.check_arguments(op_def, op)
    return op


def _is_gradient(op_def: OpDef) -> bool:
    return all(arg.name.endswith("@GRAD") for arg in op_def.outputs)


def own_attrs(op: Operator) -> dict[str, Attr]:
    """The attributes of an op without those about it."""
    return {name: attr for name, attr in op.attrs.items() if name not in _ABOUT}


def _origin(by: str, ops: Sequence[Operator]) -> str:
    """``pass fc, for model.py:12``."""
    # an op that a pass made names the place that it is for
    places = list(dict.fromkeys(op.origin.rsplit(", for ", 1)[-1] for op in ops if op.origin))
    more = f" and {len(places) - _PLACES} more" if len(places) > _PLACES else ""
    return f"pass {by}" + (f", for {', '.join(places[:_PLACES])}{more}" if places else "")
