"""Which ops update which parameter, and which of them must run on the trainer.

The ops between a raw gradient and its optimizer op (clips, regularisation) carry the role Optimize; here they are
called helpers. They run on the server that holds the parameter, after the trainers' gradients are averaged, as they do
in a local run on the whole batch. Only what needs more than one server can know stays on the trainer: what depends on
the gradients of several parameters (a global norm), and norms over the gradient of a table, whose rows are spread over
all servers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final, NamedTuple

from fluidlite.core.ir import Operator, Program
from fluidlite.transpiler.analysis import (
    LOOKUP_GRADS,
    LOOKUPS,
    accumulators,
    arguments_of,
    is_helper,
    is_optimizer,
    is_persistable,
    is_schedule,
    place_of,
)

#: computed element by element: right on a slice of their arguments
ELEMENTWISE: Final = frozenset(
    {
        "abs",
        "assign",
        "cast",
        "clip",
        "elementwise_add",
        "elementwise_div",
        "elementwise_max",
        "elementwise_min",
        "elementwise_mul",
        "elementwise_pow",
        "elementwise_sub",
        "exp",
        "fill_constant",
        "fill_zeros_like",
        "pow",
        "scale",
        "sign",
        "sqrt",
        "square",
        "sum",
    }
)
#: change rows of a parameter beside its optimizer op
ROW_UPDATES: Final = frozenset({"constrain_rows", "decay_rows", "lazy_ftrl", "lazy_momentum"})
#: computed row by row: right on the part of a sparse gradient that one server gets
ROW_BY_ROW: Final = ELEMENTWISE | {
    "extract_rows",
    "lookup_sparse_table",
    "merge_selected_rows",
    "table_rows",
    *LOOKUPS,
    *LOOKUP_GRADS,
}


class Value(NamedTuple):
    """A variable as one op reads it. ``made_by``: position of the helper that wrote it, None for any other origin."""

    name: str
    made_by: int | None


@dataclass(frozen=True)
class Chain:
    """The ops that update one parameter, by position in block 0.

    ``gradient`` is the variable that goes from trainer to server; ``on_server`` holds the helpers behind it, the
    optimizer op and what follows it (adamax's beta powers), in order.
    """

    param: str
    optimizer: int
    gradient: str
    on_server: tuple[int, ...]


@dataclass(frozen=True)
class Updates:
    """How the Optimize ops of a program are split.

    ``chains`` are the updates that servers run, ``on_trainer`` positions of the helpers in front of them that the trainer
    runs before it sends. ``kept`` are positions of the updates that are no server's at all, see `keep_updates`.
    """

    chains: tuple[Chain, ...]
    on_trainer: tuple[int, ...]
    refusals: tuple[str, ...]
    kept: frozenset[int] = frozenset()

    @property
    def moved(self) -> frozenset[int]:
        """Positions of the ops that only servers run."""
        moved = frozenset(p for chain in self.chains for p in chain.on_server)
        return moved.difference(self.on_trainer, self.kept)


class _Flow:
    """Who made the values that helpers and optimizer ops read, and the raw gradients behind them."""

    def __init__(self, program: Program) -> None:
        self.ops = program.root.ops
        self.reads: dict[int, list[Value]] = {}
        #: position of a helper -> the raw gradients that its inputs depend on
        self.gradients: dict[int, frozenset[Value]] = {}
        rates = {name for op in self.ops if is_schedule(op) for name in op.output_arguments()}
        made: dict[str, int] = {}
        for position, op in enumerate(self.ops):
            helper = is_helper(op)
            if helper or is_optimizer(op):
                self.reads[position] = [Value(name, made.get(name)) for name in op.input_arguments()]
            if helper:
                known = {name for name in op.input_arguments() if name in rates or is_persistable(program, name)}
                self.gradients[position] = self._behind(self.reads[position], known)
                made.update(dict.fromkeys(op.output_arguments(), position))
            else:
                for name in op.output_arguments():
                    made.pop(name, None)

    def _behind(self, values: Iterable[Value], known: Collection[str]) -> frozenset[Value]:
        """The raw gradients that values depend on. What a helper makes of several counts as a new one, since only
        trainers can make it. ``known``: persistable variables and learning rates, which are no gradients."""
        found: set[Value] = set()
        for value in values:
            if value.made_by is None:
                found.update(set() if value.name in known else {value})
            elif len(self.gradients[value.made_by]) > 1:
                found.add(value)
            else:
                found |= self.gradients[value.made_by]
        return frozenset(found)

    @property
    def optimizers(self) -> list[int]:
        """Positions of the optimizer ops."""
        return [position for position in self.reads if position not in self.gradients]

    def upstream(self, positions: Iterable[int]) -> set[int]:
        """Helpers that these ops are computed from, these ops included."""
        found: set[int] = set()
        waiting = list(positions)
        while waiting:
            position = waiting.pop()
            if position not in found:
                found.add(position)
                waiting += [value.made_by for value in self.reads[position] if value.made_by is not None]
        return found

    def gradient_of(self, optimizer: int) -> list[Value]:
        """What an optimizer op reads as its gradient."""
        return [value for value in self.reads[optimizer] if value.name == self.ops[optimizer].input("Grad")]


def split_updates(program: Program, tables: Collection[str]) -> Updates:
    """Decide for each Optimize op of block 0 whether it runs on the trainer or with one parameter on its server."""
    flow = _Flow(program)
    forced = _forced(flow, tables)
    chains: list[Chain] = []
    refusals: list[str] = []
    for position in flow.optimizers:
        chain = _chain(flow, position, forced)
        if isinstance(chain, Chain):
            chains.append(chain)
        else:
            refusals.append(chain)
    in_chains = {p for chain in chains for p in chain.on_server} | forced
    rest = [position for position in flow.gradients if position not in in_chains]
    chains, kept, refused = _attach_rest(program, chains, rest)
    return Updates(tuple(chains), tuple(sorted(forced | kept)), (*refusals, *refused))


def keep_updates(program: Program, updates: Updates, params: Collection[str]) -> Updates:
    """The same split when the trainer updates ``params`` itself."""
    chains = tuple(chain for chain in updates.chains if chain.param not in params)
    return replace(updates, chains=chains, kept=updates_of(program, params))


def updates_of(program: Program, params: Collection[str]) -> frozenset[int]:
    """Positions of the optimizer ops of parameters, of the helpers that name these or their accumulators, and of the
    helpers that all those are computed from."""
    flow = _Flow(program)
    optimizers = [position for position in flow.optimizers if flow.ops[position].input("Param") in params]
    state = {*params, *(name for p in optimizers for names in accumulators(flow.ops[p]) for name in names)}
    named = [p for p in flow.gradients if not state.isdisjoint(arguments_of(flow.ops[p]))]
    return frozenset(flow.upstream([*optimizers, *named]))


def _forced(flow: _Flow, tables: Collection[str]) -> set[int]:
    """Helpers that must run on the trainer, with all they are computed from."""
    seeds = {position for position, gradients in flow.gradients.items() if len(gradients) > 1}
    for position in flow.optimizers:
        if flow.ops[position].input("Param") in tables:
            makers = [value.made_by for value in flow.gradient_of(position) if value.made_by is not None]
            behind = flow.upstream(makers)
            seeds |= {p for p in behind if flow.gradients[p] and flow.ops[p].type not in ROW_BY_ROW}
    return flow.upstream(seeds)


def _chain(flow: _Flow, optimizer: int, forced: Collection[int]) -> Chain | str:
    """The chain of an optimizer op, or why it cannot be cut between trainer and server."""
    op = flow.ops[optimizer]
    gradients = flow.gradient_of(optimizer)
    travelling: set[Value] = {value for value in gradients if value.made_by is None}
    on_server: set[int] = set()
    waiting = [value for value in gradients if value.made_by is not None]
    while waiting:
        value = waiting.pop()
        position = value.made_by
        if position is None:
            continue
        if position in forced and flow.gradients[position]:
            travelling.add(value)
        elif position not in on_server:
            on_server.add(position)
            travelling |= {v for v in flow.gradients[position] if v.made_by is None and v in flow.reads[position]}
            waiting += flow.reads[position]
    names = sorted(value.name for value in travelling)
    if len(names) != 1:
        return (
            f"the update of {op.input('Param')!r} by {place_of(op)} needs {len(names)} variables of the trainer "
            f"({', '.join(names) or 'none'}); exactly one gradient can be sent"
        )
    return Chain(op.input("Param") or "", optimizer, names[0], (*sorted(on_server), optimizer))


def _attach_rest(
    program: Program, chains: Sequence[Chain], rest: Sequence[int]
) -> tuple[list[Chain], set[int], list[str]]:
    """Give helper ops outside the chains to the parameter whose state they change, or leave them on the trainer.

    Returns the chains with these ops, the positions that stay on the trainer, and refusals.
    """
    ops = program.root.ops
    owner = {}
    for chain in chains:
        cut, whole = accumulators(ops[chain.optimizer])
        owner.update(dict.fromkeys((chain.param, *cut, *whole), chain.param))
    extra: dict[str, list[int]] = {chain.param: [] for chain in chains}
    kept, refusals = set(), []
    for position in rest:
        op = ops[position]
        owners = sorted({owner[name] for name in arguments_of(op) if name in owner})
        persistable = {name for name in op.output_arguments() if is_persistable(program, name)}
        if not owners and not persistable:
            kept.add(position)
        elif len(owners) == 1 and all(owner.get(name) == owners[0] for name in persistable):
            extra[owners[0]].append(position)
            owner.update(dict.fromkeys(op.output_arguments(), owners[0]))
        else:
            refusals.append(_no_owner(op, owners, sorted(persistable - set(owner))))
    attached = [Chain(c.param, c.optimizer, c.gradient, tuple(sorted({*c.on_server, *extra[c.param]}))) for c in chains]
    return attached, kept, refusals


def _no_owner(op: Operator, owners: Sequence[str], unknown: Sequence[str]) -> str:
    if len(owners) > 1:
        return f"{place_of(op)} has the role Optimize but changes the state of several parameters ({', '.join(owners)})"
    return (
        f"{place_of(op)} has the role Optimize and writes {', '.join(map(repr, unknown))}, "
        "which no optimizer op declares as an accumulator"
    )


def sliceable(program: Program, ops: Iterable[Operator], param: str, *, sparse: bool) -> Operator | None:
    """The first of ``ops`` that is wrong on a slice of the parameter, None when all are right.

    An op is right on slices when it works element by element (row by row on a sparse gradient) and its arguments
    have the parameter's shape or one element.
    """
    shape = program.root.vars[param].shape
    allowed = ROW_UPDATES | (ROW_BY_ROW if sparse else ELEMENTWISE)
    for op in ops:
        if op.type not in allowed:
            return op
        variables = [program.find_var(name, program.root) for name in arguments_of(op)]
        shapes = [var.shape for var in variables if var is not None and var.shape is not None]
        fits = shape if op.type != "fill_constant" else None
        if op.type in ELEMENTWISE and any(s != fits and prod(s) != 1 and -1 not in s for s in shapes):
            return op
    return None
