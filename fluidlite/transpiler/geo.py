"""The plan of geo training: trainers update everything themselves, servers add up what they gained."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from fluidlite.core import names
from fluidlite.core.ir import Operator, Program
from fluidlite.transpiler.analysis import is_optimizer, place_of
from fluidlite.transpiler.plan import DenseParam, Geo, Options, Plan, Table

#: optimizers that move the rows of a sparse gradient and no others; adam does in its lazy mode
_ROWS_ONLY: Final = frozenset({"sgd", "adagrad", "adadelta", "adamax", "decayed_adagrad", "ftrl"})
_PARTS: Final = ("exchanged", "rows", "gain", "fresh", "others")


def why_whole(main: Program, params: Collection[str]) -> dict[str, str]:
    """Which of ``params``, all looked up sparsely, change beyond the rows that a trainer uses, with the reason."""
    reasons = {}
    for op in main.root.ops:
        param = op.input("Param") or ""
        if is_optimizer(op) and param in params and not _moves_rows_only(op):
            reasons[param] = f"{place_of(op)} moves rows that have no gradient"
    return reasons


def _moves_rows_only(optimizer: Operator) -> bool:
    lazy: bool = optimizer.attr("lazy_mode", default=False)
    return lazy or optimizer.type in _ROWS_ONLY


def as_geo(plan: Plan, every: int) -> Plan:
    """The plan of the same job when trainers exchange every so many steps: deltas travel in place of gradients, and
    servers hold parameters only."""
    return replace(
        plan,
        dense=tuple(map(_dense, plan.dense)),
        tables=tuple(map(_table, plan.tables)),
        shared=(),
        server_only=(),
        notes=tuple(note for note in plan.notes if note.pass_name in ("lower_lookups", "receive_parameters")),
        geo=Geo(every, tuple((table.name, table.accumulators) for table in plan.tables)),
    )


def _dense(param: DenseParam) -> DenseParam:
    return replace(
        param,
        gradient=names.delta(param.name),
        sparse_gradient=param.fetched_by_row,
        accumulators=(),
        whole_accumulators=(),
    )


def _table(table: Table) -> Table:
    gradient = None if table.gradient is None else names.delta(table.name)
    return replace(table, gradient=gradient, accumulators=(), whole_accumulators=())


def refusals(main: Program, startup: Program, options: Options, plan: Plan) -> Iterator[str]:
    """Why a job cannot be trained this way."""
    if options.dense_on_trainer:
        yield "dense_on_trainer leaves the updates of dense parameters on the trainer; geo_sgd_mode does so by itself"
    for name in ("rows_wire_dtype", "gradients_wire_dtype"):
        if getattr(options, name):
            yield f"{name} rounds what travels; in geo_sgd_mode values are exchanged again and again, and would drift"
    taken = {name for program in (main, startup) for block in program.blocks for name in block.vars}
    for name in _derived(plan):
        if name in taken:
            yield f"the program has a variable {name!r}, a name that geo_sgd_mode needs; rename it"


def _derived(plan: Plan) -> Iterator[str]:
    yield from (names.GEO_STEPS, names.GEO_SHARE, names.GEO_LAST)
    for name in (*(param.name for param in plan.dense), *(table.name for table in plan.tables)):
        yield names.delta(name)
        yield from (names.geo_part(name, part) for part in _PARTS)
