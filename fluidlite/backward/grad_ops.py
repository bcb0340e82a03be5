"""The ops of a backward pass, as plain data: made, pruned, and summed where several write one gradient."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fluidlite.core import names
from fluidlite.core.ir import EMPTY, Block, Operator
from fluidlite.ops import registry


@dataclass(frozen=True)
class GradOp:
    """A gradient op, which of its inputs are gradients, and the ops that make those of them that are zero."""

    op: Operator
    reads: frozenset[str]
    zeros: tuple[Operator, ...] = ()


class GradNames:
    """The names of the gradients that one backward pass makes.

    A second pass over a block may not reuse names of the first. ``source`` maps each name back to its variable.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self._call = 1 + max((names.grad_call(name) for name in block.vars if names.is_grad(name)), default=0)
        self.source: dict[str, str] = {}

    def of(self, variable: str) -> str:
        """The name of a variable's gradient."""
        name = names.grad(variable)
        if name in self._block.vars:
            name = names.grad_again(variable, self._call)
        self.source[name] = variable
        return name


def make_grad_ops(path: Sequence[Operator], grad_names: GradNames, stopped: Collection[str]) -> list[GradOp]:
    """The gradient ops of ``path``, last op first; gradients of ``stopped`` variables are ``@EMPTY@``."""
    return [
        grad_op
        for op in reversed(path)
        for made in _grad_ops_of(op)
        for grad_op in [_named(op, made, grad_names, stopped)]
    ]


def _grad_ops_of(op: Operator) -> list[Operator]:
    grad = registry.get(op.type).grad
    return grad(op) if grad is not None else []


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
    return GradOp(named, frozenset(incoming.values()).intersection(named.input_arguments()))


def prune(grad_ops: Iterable[GradOp], produced: Collection[str], source: Mapping[str, str]) -> list[GradOp]:
    """Drop ops that write nothing or read only gradients that nobody makes; other missing gradients become zeros."""
    known = set(produced)
    kept: list[GradOp] = []
    for grad_op in grad_ops:
        outputs = list(grad_op.op.output_arguments())
        if not outputs or (grad_op.reads and known.isdisjoint(grad_op.reads)):
            continue
        missing = [name for name in dict.fromkeys(grad_op.op.input_arguments()) if name in grad_op.reads - known]
        zeros = tuple(_zeros(name, source[name], grad_op.op.origin) for name in missing)
        kept.append(replace(grad_op, zeros=zeros))
        known.update(missing, outputs)
    return kept


def _zeros(gradient: str, variable: str, origin: str) -> Operator:
    return Operator("fill_zeros_like", inputs={"X": [variable]}, outputs={"Out": [gradient]}, origin=origin)


@dataclass
class _Pending:
    """The contributions to one gradient since it was last read."""

    #: a contribution that exists already and keeps its name (the gradient that a target starts with)
    given: str | None = None
    #: where ops name their contribution: (argument list, position)
    places: list[tuple[list[str], int]] = field(default_factory=list)
    origin: str = ""


class _Accumulator:
    """Scans gradient ops in order and inserts a `sum` where a gradient has several contributions."""

    def __init__(self, start: Mapping[str, str], block: int) -> None:
        self.ops: list[Operator] = []
        self.pieces: dict[str, str] = {}
        self.pending = {gradient: _Pending(given=name) for gradient, name in start.items()}
        self._block = block
        self._count: dict[str, itertools.count[int]] = {}

    def add(self, grad_op: GradOp) -> None:
        op = grad_op.op
        for name in grad_op.reads:
            current = self.settle(name)
            if current != name:
                op.inputs = {key: [current if a == name else a for a in args] for key, args in op.inputs.items()}
            # Whoever writes it from here on speaks of an earlier value of the variable.
            self.pending.pop(name, None)
        self.ops += [*grad_op.zeros, op]
        for arguments in op.outputs.values():
            for position, name in enumerate(arguments):
                if name != EMPTY:
                    pending = self.pending.setdefault(name, _Pending())
                    pending.places.append((arguments, position))
                    pending.origin = op.origin

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
        for arguments, position in pending.places:
            arguments[position] = names.piece(gradient, self._block, next(count))
            parts.append(arguments[position])
            self.pieces[arguments[position]] = gradient
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


def accumulate(
    grad_ops: Iterable[GradOp], start: Mapping[str, str], source: Mapping[str, str], block: int
) -> BackwardOps:
    """Sum gradients that several ops write: pieces ``g@RENAME@block0@k``, summed right before ``g`` is read.

    Contributions are numbered in the order of backward, so the last use of a variable comes first. ``start`` maps
    gradients to the variables they start with; ``source`` maps gradients to forward variables.
    """
    scan = _Accumulator(start, block)
    for grad_op in grad_ops:
        scan.add(grad_op)
    for gradient in list(scan.pending):
        if scan.pending[gradient].places:
            scan.settle(gradient)
    written = {name for op in scan.ops for name in op.output_arguments()}
    final = {source[name]: name for name in written if name in source}
    final |= {source[gradient]: name for gradient, name in start.items() if gradient not in written}
    of_pieces = {piece: source[gradient] for piece, gradient in scan.pieces.items()}
    return BackwardOps(scan.ops, {**{name: source[name] for name in written if name in source}, **of_pieces}, final)
