"""Learning rates: which ops and variables a server needs besides gradients, parameters and accumulators."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from fluidlite.core.ir import Operator, Program
from fluidlite.ops import registry
from fluidlite.transpiler.analysis import accumulators, is_helper, is_optimizer, is_schedule, place_of, reads, writes
from fluidlite.transpiler.updates import Chain


@dataclass(frozen=True)
class Schedule:
    """``ops``: positions in block 0 of what computes the learning rates. ``state``: persistable variables that the
    servers hold for it, constants included. ``results``: variables that update blocks read."""

    ops: tuple[int, ...] = ()
    state: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


def outside_values(program: Program, chain: Chain) -> list[str]:
    """What the server ops of a parameter read besides its gradient, itself, its accumulators and each other."""
    ops = program.root.ops
    cut, whole = accumulators(ops[chain.optimizer])
    own = {chain.gradient, chain.param, *cut, *whole}
    outside: dict[str, None] = {}
    for position in chain.on_server:
        outside.update(dict.fromkeys(name for name in ops[position].input_arguments() if name not in own))
        own.update(ops[position].output_arguments())
    return list(outside)


def find_schedule(program: Program, chains: Sequence[Chain]) -> tuple[Schedule, list[str]]:
    """The ops and variables behind what servers read from outside, and why some of it cannot move to servers."""
    wanted: dict[str, Chain] = {}
    for chain in chains:
        wanted.update((name, chain) for name in outside_values(program, chain) if name not in wanted)
    positions, needed = _computed_from(program, wanted)
    trained = {chain.param: "a trained parameter" for chain in chains}
    refusals = []
    for name, chain in wanted.items():
        _, behind = _computed_from(program, [name])
        for part in behind:
            reason = trained.get(part) or _only_on_trainers(program, part)
            if reason:
                refusals.append(_refusal(program.root.ops[chain.optimizer], chain.param, name, part, reason))
                break
    persistable = [name for name in needed if (var := program.root.vars.get(name)) is not None and var.persistable]
    return Schedule(tuple(positions), tuple(persistable), tuple(wanted)), refusals


def _computed_from(program: Program, wanted: Iterable[str]) -> tuple[list[int], list[str]]:
    """(positions of all ops of block 0 that write what is needed, everything that is needed, in order of discovery)."""
    ops = program.root.ops
    written = [writes(program, op) if not is_optimizer(op) and not is_helper(op) else set() for op in ops]
    needed = dict.fromkeys(wanted)
    found: set[int] = set()
    while True:
        new = [p for p, names in enumerate(written) if p not in found and not needed.keys().isdisjoint(names)]
        if not new:
            return sorted(found), list(needed)
        for position in new:
            found.add(position)
            needed.update(dict.fromkeys(sorted(reads(program, ops[position]) | written[position])))


def _only_on_trainers(program: Program, name: str) -> str:
    """Why a variable is known to trainers only, "" when servers can have it too."""
    var = program.find_var(name, program.root)
    writers = [op for op in program.root.ops if name in writes(program, op)]
    if var is None:
        return "not declared"
    if var.is_data:
        return "fed data"
    if any(is_optimizer(op) or is_helper(op) for op in writers):
        return "changed by an update"
    for op in writers:
        op_def = registry.find(op.type)
        if op_def is not None and op_def.side_effect:
            return f"written by {place_of(op)}"
    return "" if writers or var.persistable else "never written"


def _refusal(optimizer: Operator, param: str, name: str, part: str, reason: str) -> str:
    through = "" if name == part else f", which depends on {part!r}"
    return (
        f"{place_of(optimizer)} of {param!r} reads {name!r}{through} ({reason}); "
        "a server only knows gradients, its parameters and learning rates that depend on nothing else"
    )


def staying_ops(program: Program, moved: Collection[int]) -> list[Operator]:
    """The ops of block 0 that trainers run once servers do those at the positions ``moved``.

    Learning-rate ops go as well, except those that an op that stays reads from.
    """
    ops = program.root.ops
    scheduled = {position for position, op in enumerate(ops) if is_schedule(op)}
    staying = {position for position in range(len(ops)) if position not in moved} - scheduled
    needed: set[str] = set()
    for position in staying:
        needed |= reads(program, ops[position])
    behind, _ = _computed_from(program, needed)
    return [ops[position] for position in sorted(staying | scheduled.intersection(behind))]
