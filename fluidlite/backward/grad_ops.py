"""The ops of a backward pass, as plain data: made, pruned, and summed where several write one gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from fluidlite.backward.path import own_stopped
from fluidlite.core import names
from fluidlite.core.ir import EMPTY, Block, Operator, Program
from fluidlite.ops import registry
from fluidlite.ops.steps import makes_gradient

#: whether a gradient is that of a tensor array
Arrays: TypeAlias = "Callable[[str], bool]"


@dataclass(frozen=True)
class GradOp:
    """A gradient op, which of its inputs are gradients, and the ops that make those of them that are zero.

    ``inner`` is the gradient of the block that the forward op runs, which this op runs in turn.
    """

    op: Operator
    reads: frozenset[str]
    forward: Operator
    zeros: tuple[Operator, ...] = ()
    inner: InnerBackward | None = None

    def in_order(self) -> list[str]:
        """What it reads, by input name and position: sums are made in that order, as in Fluid."""
        arguments = (name for key in sorted(self.op.inputs) for name in self.op.inputs[key])
        return [name for name in dict.fromkeys(arguments) if name in self.reads]

    @property
    def writes(self) -> bool:
        """Whether the op makes any gradient. One that does not is never appended; like Fluid we keep its place, where
        what it would read is summed."""
        return any(self.op.output_arguments())


class GradNames:
    """The names of the gradients that one backward pass makes.

    A second pass over a block may not reuse names of the first: it puts the number of passes before them, of those that
    the program remembers or (where it was read from a file) of those whose names are there. ``source`` maps each name
    back to its variable.
    """

    def __init__(self, block: Block, passes: int = 0) -> None:
        self._block = block
        self._before = max((names.grad_call(name) for name in block.vars if names.is_grad(name)), default=0)
        self._call = 1 + max(self._before, passes)
        self.source: dict[str, str] = {}

    @property
    def again(self) -> bool:
        """Whether an earlier pass made gradients already."""
        return self._before > 0

    def of(self, variable: str) -> str:
        """The name of a variable's gradient."""
        name = names.grad(variable)
        if name in self._block.vars:
            name = names.grad_again(variable, self._call)
        self.source[name] = variable
        return name


@dataclass
class InnerBackward:
    """The gradient of a sub-block: a block ``index`` of its own, below the gradient block ``parent``.

    ``ops`` are all that could be; `prune` knows which gradients come from outside, and sets ``kept`` and what is to be
    appended, ``plan``.
    """

    forward: Block
    index: int
    parent: int
    ops: list[GradOp]
    source: dict[str, str]
    kept: list[GradOp] = field(default_factory=list)
    plan: BackwardOps | None = None


class Maker:
    """Makes the gradient ops of one backward pass; sub-blocks get gradient blocks, numbered in the order of visit."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.inner: list[InnerBackward] = []

    def make(
        self, path: Sequence[Operator], grad_names: GradNames, stopped: Collection[str], parent: int = 0
    ) -> list[GradOp]:
        """The gradient ops of ``path``, last op first; gradients of ``stopped`` variables are ``@EMPTY@``.

        ``parent``: the block that will hold them.
        """
        made: list[GradOp] = []
        for op in reversed(path):
            op_def = registry.get(op.type)
            if op_def.block_grad is not None:
                made.append(self._of_block(op, op_def.block_grad, grad_names, stopped, parent))
            elif op_def.grad is not None:
                made += [_named(op, grad, grad_names, stopped) for grad in op_def.grad(op)]
        return made

    def _of_block(
        self,
        op: Operator,
        maker: registry.BlockGradMaker,
        grad_names: GradNames,
        stopped: Collection[str],
        parent: int,
    ) -> GradOp:
        block = self._program.blocks[op.attr("sub_block")]
        index = len(self._program.blocks) + len(self.inner)
        inner = InnerBackward(block, index, parent, [], {})
        self.inner.append(inner)
        inside = GradNames(block)
        inside.source = inner.source
        made = self.make(sub_path(op, block), inside, own_stopped(self._program, block), index)
        inner.ops = made
        ops = [grad_op.op for grad_op in made if grad_op.writes]
        declares = lambda name: self._program.find_var(name, block) is not None  # noqa: E731
        named = _named(op, maker(op, registry.GradientBlock(index, ops, declares)), grad_names, stopped)
        given = [name for key in _GIVEN for name in named.op.inputs.get(key, ())]
        return replace(named, reads=frozenset(given), inner=inner)


#: where ops that run blocks are given gradients
_GIVEN: Final = ("Out@GRAD", "outputs@GRAD")


def sub_path(op: Operator, block: Block) -> list[Operator]:
    """The ops of a sub-block whose gradients are made: all; of a `conditional_block` those that lead to what it assigns."""
    if op.type != "conditional_block":
        return block.ops
    results = {
        name
        for inside in block.ops
        if inside.type == "assign" and not set(op.output_arguments()).isdisjoint(inside.output_arguments())
        for name in inside.input_arguments()
    }
    return _leading_to(block, {*results, *op.outputs.get("Out", ())})


def _leading_to(block: Block, targets: set[str]) -> list[Operator]:
    needed = set(targets)
    path = []
    for op in reversed(block.ops):
        if not needed.isdisjoint(op.output_arguments()) and makes_gradient(op):
            path.append(op)
            needed.update(op.input_arguments())
    return path[::-1]


def _named(op: Operator, made: Operator, grad_names: GradNames, stopped: Collection[str]) -> GradOp:
    incoming = {names.grad(name): grad_names.of(name) for name in op.output_arguments()}
    outgoing = {names.grad(name): EMPTY if name in stopped else grad_names.of(name) for name in op.input_arguments()}
    inputs = {key: [incoming.get(name, name) for name in arguments] for key, arguments in made.inputs.items()}
    outputs = {key: [outgoing.get(name, name) for name in arguments] for key, arguments in made.outputs.items()}
    named = Operator(
        type=made.type,
        inputs=inputs,
        outputs={key: arguments for key, arguments in outputs.items() if any(name != EMPTY for name in arguments)},
        attrs=dict(made.attrs),
        origin=op.origin,
    )
    return GradOp(named, frozenset(incoming.values()).intersection(named.input_arguments()), op)


def prune(
    grad_ops: Iterable[GradOp], produced: Collection[str], source: Mapping[str, str], arrays: Arrays
) -> list[GradOp]:
    """Drop ops that read only gradients that nobody makes; other missing gradients become zeros.

    Ops that write nothing (see `GradOp.writes`) stay. Ops that run blocks take missing ones for zeros themselves;
    their blocks are pruned with them. ``arrays``: see `accumulate`.
    """
    known = set(produced)
    kept: list[GradOp] = []
    for grad_op in grad_ops:
        fed = grad_op.op.type in _FED_BY_THEIR_OP
        if grad_op.reads and known.isdisjoint(grad_op.reads) and not fed:
            continue
        if not grad_op.writes:
            kept.append(grad_op)
            continue
        outputs = list(grad_op.op.output_arguments())
        missing: list[str] = []
        if grad_op.inner is not None:
            _prune_inner(grad_op.inner, known | grad_op.reads.intersection(outputs), arrays)
        elif not fed:
            missing = [name for name in dict.fromkeys(grad_op.op.input_arguments()) if name in grad_op.reads - known]
        zeros = tuple(_zeros(name, source[name], grad_op.op.origin) for name in missing)
        kept.append(replace(grad_op, zeros=zeros))
        known.update(missing, outputs)
    return kept


#: their gradients come from the op that runs the block, under names that no op makes
_FED_BY_THEIR_OP: Final = ("rnn_memory_helper_grad",)


def _prune_inner(inner: InnerBackward, known: Collection[str], arrays: Arrays) -> None:
    inner.kept = prune(inner.ops, known, inner.source, arrays)


def _zeros(gradient: str, variable: str, origin: str) -> Operator:
    return Operator("fill_zeros_like", inputs={"X": [variable]}, outputs={"Out": [gradient]}, origin=origin)


@dataclass
class _Pending:
    """The contributions to one gradient since it was last read."""

    #: a contribution that exists already and keeps its name (the gradient that a target starts with)
    given: str | None = None
    #: where ops name their contribution: (argument list, position)
    places: list[tuple[list[str], int]] = field(default_factory=list)
    #: where ops name the first contribution as long as it is the only one
    followers: list[tuple[list[str], int]] = field(default_factory=list)
    origin: str = ""


class _Accumulator:
    """Scans gradient ops in order and inserts a `sum` where a gradient has several contributions."""

    def __init__(self, start: Mapping[str, str], block: int, arrays: Arrays) -> None:
        self.ops: list[Operator] = []
        self.pieces: dict[str, str] = {}
        self._arrays = arrays
        self.pending = {gradient: _Pending(given=name) for gradient, name in start.items()}
        self._block = block
        self._count: dict[str, itertools.count[int]] = {}

    def add(self, grad_op: GradOp) -> None:
        op = grad_op.op
        for name in grad_op.in_order():
            current = self.settle(name)
            if current != name:
                op.inputs = {key: [current if a == name else a for a in args] for key, args in op.inputs.items()}
            if not self._arrays(name):
                # Whoever writes it from here on speaks of an earlier value of the variable.
                self.pending.pop(name, None)
        if not grad_op.writes:
            return
        self.ops += [*grad_op.zeros, op]
        for arguments in op.outputs.values():
            for position, name in enumerate(arguments):
                # counters that go back are no gradients; arrays are changed in place by whoever also reads them
                if not names.is_grad(name) or (self._arrays(name) and name in grad_op.reads):
                    continue
                pending = self.pending.setdefault(name, _Pending())
                pending.places.append((arguments, position))
                pending.origin = op.origin
        self._follow(op)

    def _follow(self, op: Operator) -> None:
        """Arguments of an array of gradients that speak of its only contribution so far."""
        for arguments in (*op.inputs.values(), *op.outputs.values()):
            for position, name in enumerate(arguments):
                pending = self.pending.get(name) if name != EMPTY and self._arrays(name) else None
                if pending is not None and len(pending.places) == 1 and pending.places[0][0] is not arguments:
                    pending.followers.append((arguments, position))

    def settle(self, gradient: str) -> str:
        """Make one variable hold all contributions so far; returns its name."""
        pending = self.pending.get(gradient)
        if pending is None:
            return gradient
        if pending.given is not None and not pending.places:
            return pending.given
        if pending.given is not None or len(pending.places) > 1:
            self._sum(gradient, pending)
        return gradient

    def _sum(self, gradient: str, pending: _Pending) -> None:
        parts = [] if pending.given is None else [pending.given]
        count = self._count.setdefault(gradient, itertools.count())
        for index, (arguments, position) in enumerate(pending.places):
            arguments[position] = names.piece(gradient, self._block, next(count))
            parts.append(arguments[position])
            self.pieces[arguments[position]] = gradient
            for following, at in pending.followers if index == 0 else ():
                following[at] = arguments[position]
        out = [gradient]
        self.ops.append(Operator("sum", inputs={"X": parts}, outputs={"Out": out}, origin=pending.origin))
        self.pending[gradient] = _Pending(places=[(out, 0)], origin=pending.origin)


@dataclass(frozen=True)
class BackwardOps:
    """A backward pass ready to be appended: its ops, the variable behind each new name, and the final gradients."""

    ops: list[Operator]
    #: new name (gradient or piece) -> forward variable
    source: dict[str, str]
    #: forward variable -> name of its whole gradient
    final: dict[str, str]
    #: identity of an op that runs a block -> the gradient of that block
    inner: dict[int, InnerBackward]
    #: all gradient blocks of the pass, in the order of their numbers
    blocks: Sequence[InnerBackward] = ()


def accumulate(
    grad_ops: Sequence[GradOp], start: Mapping[str, str], source: Mapping[str, str], block: int, arrays: Arrays
) -> BackwardOps:
    """Sum gradients that several ops write: pieces ``g@RENAME@block0@k``, summed right before ``g`` is
    read, or would be by an op that is dropped.

    Contributions are numbered in the order of backward, so the last use of a variable comes first. ``start`` maps
    gradients to the variables they start with; ``source`` maps gradients to forward variables. ``arrays`` tells gradients
    of tensor arrays: they keep what was written before they were read.
    """
    scan = _Accumulator(start, block, arrays)
    for grad_op in grad_ops:
        scan.add(grad_op)
        below = grad_op.inner
        if below is not None and grad_op.writes:
            below.plan = accumulate(below.kept, {}, below.source, below.forward.idx, arrays)
    for gradient in list(scan.pending):
        if scan.pending[gradient].places:
            scan.settle(gradient)
    written = {name for op in scan.ops for name in op.output_arguments()}
    final = {source[name]: name for name in written if name in source}
    final |= {source[gradient]: name for gradient, name in start.items() if gradient not in written}
    of_pieces = {piece: source[gradient] for piece, gradient in scan.pieces.items()}
    inner = {id(grad_op.op): grad_op.inner for grad_op in grad_ops if grad_op.writes and grad_op.inner}
    sources = {**{name: source[name] for name in written if name in source}, **of_pieces}
    return BackwardOps(scan.ops, sources, final, inner)
