"""Reads a training program: which ops update which parameter, and which of them must run on the trainer.

The ops between a raw gradient and its optimizer op (clips, regularisation) carry the role Optimize. They run on the
server that holds the parameter, after the trainers' gradients are averaged, as they do in a local run on the whole
batch. Only what needs more than one server can know stays on the trainer: ops that depend on the gradients of several
parameters (a global norm), and norms over the gradient of a table, whose rows are spread over all servers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from fluidlite.core.dataflow import effects, sub_blocks
from fluidlite.core.ir import EMPTY, Block, Operator, OpRole, Program
from fluidlite.dtypes import VarKind
from fluidlite.ops import registry

LOOKUPS: Final = ("lookup_table", "lookup_table_v2")
LOOKUP_GRADS: Final = tuple(f"{type}_grad" for type in LOOKUPS)
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
#: computed row by row: right on the part of a sparse gradient that one server gets
ROW_BY_ROW: Final = ELEMENTWISE | {
    "extract_rows",
    "lookup_sparse_table",
    "merge_selected_rows",
    *LOOKUPS,
    *LOOKUP_GRADS,
}


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


def users(program: Program, name: str) -> list[tuple[Block, Operator]]:
    """Every op of every block that names a variable of block 0."""
    return [
        (block, op)
        for block, op in program.all_ops()
        if (block.idx == 0 or name not in block.vars)
        and (name in op.input_arguments() or name in op.output_arguments())
    ]


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


def trace(ops: Sequence[Operator], end: int, wanted: Iterable[str]) -> list[int]:
    """Positions below ``end`` of the helper ops that the variables ``wanted`` are computed from, ascending."""
    needed = set(wanted)
    found = []
    for position in range(end - 1, -1, -1):
        op = ops[position]
        outputs = needed.intersection(op.output_arguments())
        if not outputs:
            continue
        needed -= outputs
        if is_helper(op):
            found.append(position)
            needed.update(op.input_arguments())
    return found[::-1]


@dataclass(frozen=True)
class Chain:
    """The ops that update one parameter, by position in block 0.

    ``gradient`` is the variable that goes from trainer to server; ``on_server`` holds the helper ops behind it, the
    optimizer op and what follows it (adamax's beta powers), in order.
    """

    param: str
    optimizer: int
    gradient: str
    on_server: tuple[int, ...]


@dataclass(frozen=True)
class Updates:
    """How the Optimize ops of a program are split. ``on_trainer`` are positions of helper ops."""

    chains: tuple[Chain, ...]
    on_trainer: tuple[int, ...]
    refusals: tuple[str, ...]

    @property
    def moved(self) -> frozenset[int]:
        """Positions of the ops that only servers run."""
        return frozenset(p for chain in self.chains for p in chain.on_server).difference(self.on_trainer)


def split_updates(program: Program, tables: Collection[str]) -> Updates:
    """Decide for each Optimize op of block 0 whether it runs on the trainer or with one parameter on its server."""
    ops = program.root.ops
    optimizers = {position: op for position, op in enumerate(ops) if is_optimizer(op)}
    taint = _taints(program)
    forced = _forced(ops, optimizers, taint, tables)
    refusals: list[str] = []
    chains = []
    for position, op in optimizers.items():
        chain = _chain(ops, position, op, taint, forced)
        if isinstance(chain, Chain):
            chains.append(chain)
        else:
            refusals.append(chain)
    in_chains = {p for chain in chains for p in chain.on_server} | forced
    rest = [p for p, op in enumerate(ops) if is_helper(op) and p not in in_chains]
    chains, kept, refused = _attach_rest(program, chains, rest)
    return Updates(tuple(chains), tuple(sorted(forced | kept)), (*refusals, *refused))


def accumulators(op: Operator) -> tuple[list[str], list[str]]:
    """(variables cut like the parameter, variables that each slice has whole) of an optimizer op."""
    cut: list[str] = []
    whole: list[str] = []
    for accumulator in registry.get(op.type).accumulators:
        name = op.input(accumulator.input)
        if name is not None and name != EMPTY:
            (whole if accumulator.whole else cut).append(name)
    return cut, whole


def sliceable(program: Program, ops: Iterable[Operator], param: str, *, sparse: bool) -> Operator | None:
    """The first of ``ops`` that is wrong on a slice of the parameter, None when all are right.

    An op is right on slices when it works element by element (row by row on a sparse gradient) and its arguments
    have the parameter's shape or one element.
    """
    shape = program.root.vars[param].shape
    allowed = ROW_BY_ROW if sparse else ELEMENTWISE
    for op in ops:
        if op.type not in allowed:
            return op
        variables = [program.find_var(name, program.root) for name in (*op.input_arguments(), *op.output_arguments())]
        shapes = [var.shape for var in variables if var is not None and var.shape is not None]
        fits = shape if op.type != "fill_constant" else None
        if op.type in ELEMENTWISE and any(s != fits and prod(s) != 1 and -1 not in s for s in shapes):
            return op
    return None


def is_sparse_var(program: Program, name: str) -> bool:
    """Whether a variable is declared to hold SelectedRows."""
    var = program.find_var(name, program.root)
    return var is not None and var.kind is VarKind.SELECTED_ROWS


def _taints(program: Program) -> dict[int, frozenset[str]]:
    """Position of each helper op -> the raw gradients that its inputs depend on.

    Persistable variables and scheduled learning rates are no gradients; any other variable that comes from outside
    the Optimize ops counts as one. So does what an op makes of several: it can only be made on the trainer.
    """
    carried: dict[str, frozenset[str]] = {}
    scheduled = {name for op in program.root.ops if is_schedule(op) for name in op.output_arguments()}
    result = {}
    for position, op in enumerate(program.root.ops):
        if not is_helper(op):
            for name in op.output_arguments():
                carried.pop(name, None)
            continue
        sources: frozenset[str] = frozenset()
        for name in op.input_arguments():
            known = name in scheduled or _is_persistable(program, name)
            sources |= carried.get(name, frozenset() if known else frozenset({name}))
        result[position] = sources
        for name in op.output_arguments():
            carried[name] = frozenset({name}) if len(sources) > 1 else sources
    return result


def _forced(
    ops: Sequence[Operator],
    optimizers: Mapping[int, Operator],
    taint: Mapping[int, frozenset[str]],
    tables: Collection[str],
) -> set[int]:
    """Helper ops that must run on the trainer, with all they are computed from."""
    seeds = {position for position, sources in taint.items() if len(sources) > 1}
    for end, optimizer in optimizers.items():
        if optimizer.input("Param") in tables:
            positions = trace(ops, end, optimizer.inputs.get("Grad", ()))
            seeds |= {p for p in positions if taint[p] and ops[p].type not in ROW_BY_ROW}
    return seeds.union(*(trace(ops, seed, ops[seed].input_arguments()) for seed in seeds))


def _chain(
    ops: Sequence[Operator],
    end: int,
    optimizer: Operator,
    taint: Mapping[int, frozenset[str]],
    forced: Collection[int],
) -> Chain | str:
    """The chain of an optimizer op, or why it cannot be cut between trainer and server."""
    param = optimizer.input("Param") or ""
    gradient = optimizer.input("Grad") or ""
    needed = {gradient}
    travelling = []
    on_server = []
    for position in reversed(trace(ops, end, needed)):
        outputs = needed.intersection(ops[position].output_arguments())
        if not outputs:
            continue
        needed -= outputs
        if position in forced and taint[position]:
            travelling += sorted(outputs)
        else:
            on_server.append(position)
            needed.update(ops[position].input_arguments())
    sources = frozenset({gradient}).union(*(taint[p] for p in on_server))
    travelling += sorted(name for name in needed if name in sources)
    if len(travelling) != 1:
        return (
            f"the update of {param!r} by {place_of(optimizer)} needs {len(travelling)} variables of the trainer "
            f"({', '.join(travelling) or 'none'}); exactly one gradient can be sent"
        )
    return Chain(param, end, travelling[0], (*on_server[::-1], end))


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
        arguments = [*op.input_arguments(), *op.output_arguments()]
        owners = sorted({owner[name] for name in arguments if name in owner})
        persistable = {name for name in op.output_arguments() if _is_persistable(program, name)}
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


def _is_persistable(program: Program, name: str) -> bool:
    var = program.find_var(name, program.root)
    return var is not None and var.persistable
