"""The way of one row through a job: the ops that its id, its value and its gradient pass (`fluidlite trace`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

from fluidlite.core import names, text
from fluidlite.core.ir import Operator, Program
from fluidlite.errors import ProgramError
from fluidlite.ops import registry
from fluidlite.transpiler.analysis import LOOKUP_GRADS, LOOKUPS, is_optimizer, lookups_of
from fluidlite.transpiler.pipeline import pserver_passes, run_passes, trainer_passes
from fluidlite.transpiler.plan import Plan, RowSource

TRAINER: Final = "trainer"


class Hop(NamedTuple):
    """An op on the way. ``where``: `TRAINER`, or the endpoint of a server."""

    where: str
    op: Operator

    def __str__(self) -> str:
        """Where, the op without its attributes but the role, and the module that runs it."""
        attrs = {name: attr for name, attr in self.op.attrs.items() if name == "op_role"}
        bare = Operator(self.op.type, self.op.inputs, self.op.outputs, attrs)
        return f"{self.where}: {text.show_op(bare)}  # {_module(self.op)}"


def source_of(plan: Plan, name: str) -> RowSource:
    """Where lookups of a parameter find its rows; ProgramError for one whose rows do not travel."""
    found = {source.name: source for source in plan.row_sources}
    if name not in found:
        raise ProgramError(f"no rows of {name!r} travel in this job; rows travel of {', '.join(found) or 'nothing'}")
    return found[name]


def pull(program: Program, plan: Plan, source: RowSource, server: int) -> Iterator[Hop]:
    """From the ids of each lookup to its output. ``program``: the untouched main program; ``server``: position among the
    source's endpoints of the one that holds the row."""
    ops = run_passes(program, plan, trainer_passes(plan).main).root.ops
    there = source.names[server]
    answer = _server_ops(program, plan.at(source.endpoints[server]), lambda op: op.input("W") == there)
    for index in range(len(lookups_of(program, source.name))):
        ids, rows = (names.lookup_part(source.name, part, index) for part in ("ids", "rows"))
        asked, answered = names.shard_of_var(ids, server), names.shard_of_var(rows, server)
        yield from _hops(TRAINER, [op for op in ops if asked in (*op.output_arguments(), *op.input_arguments())])
        yield from _hops(source.endpoints[server], answer)
        yield from _hops(TRAINER, [op for op in ops if answered in op.input_arguments()])
        yield from _hops(TRAINER, [op for op in ops if op.type in LOOKUPS and op.input("W") == rows])


def push(program: Program, plan: Plan, source: RowSource, server: int) -> Iterator[Hop]:
    """From the gradients of the lookups to the update; nothing when nothing trains the parameter."""
    ops = run_passes(program, plan, trainer_passes(plan).main).root.ops
    count = len(lookups_of(program, source.name))
    fetched = {names.lookup_part(source.name, "rows", index) for index in range(count)}
    grads = [op for op in ops if op.type in LOOKUP_GRADS and op.input("W") in fetched]
    sends = [op for op in ops if op.type == "send" and source.name in op.role_var]
    there = source.names[server]
    if sends:
        yield from _hops(TRAINER, _between(ops, grads, sends))
        yield from _hops(TRAINER, [op for op in ops if op.type == "send_barrier"])
        update = _server_ops(
            program, plan.at(source.endpoints[server]), lambda op: is_optimizer(op) and op.input("Param") == there
        )
        yield from _hops(source.endpoints[server], update)


def _module(op: Operator) -> str:
    """Where the code of an op is."""
    kernel = registry.get(op.type).kernel
    return kernel.__module__ if kernel is not None else ""


def _hops(where: str, ops: Sequence[Operator]) -> Iterator[Hop]:
    return (Hop(where, op) for op in ops)


def _server_ops(program: Program, plan: Plan, wanted: Callable[[Operator], bool]) -> list[Operator]:
    """The ops of the blocks of a server's program that hold a wanted op."""
    blocks = run_passes(program, plan, pserver_passes(plan).main).blocks[1:]
    return [op for block in blocks if any(map(wanted, block.ops)) for op in block.ops]


def _between(ops: Sequence[Operator], first: Collection[Operator], last: Collection[Operator]) -> list[Operator]:
    """The ops on the ways of values from ``first`` to ``last``, these included."""
    after = _reached(ops, first, lambda op: (op.input_arguments(), op.output_arguments()))
    before = _reached(ops[::-1], last, lambda op: (op.output_arguments(), op.input_arguments()))
    return [op for op in ops if id(op) in after & before]


def _reached(
    ops: Sequence[Operator],
    start: Collection[Operator],
    ends: Callable[[Operator], tuple[Iterator[str], Iterator[str]]],
) -> set[int]:
    """The identities of the ops that one of ``start`` leads to; ``ends`` gives what an op takes and what it gives."""
    found = {id(op) for op in start}
    given: set[str] = set()
    for op in ops:
        takes, gives = ends(op)
        if id(op) in found or not given.isdisjoint(takes):
            found.add(id(op))
            given.update(gives)
    return found
