"""Makes the plan of a distributed job, or says everything that stands in its way."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from fluidlite.core import names
from fluidlite.core.ir import Program
from fluidlite.dtypes import numpy_dtype
from fluidlite.errors import TranspileError
from fluidlite.ops import registry
from fluidlite.ops.modes import Mode
from fluidlite.transpiler import checks, fluid_wire, geo
from fluidlite.transpiler.analysis import (
    LOOKUP_GRADS,
    LOOKUPS,
    accumulators,
    find_tables,
    is_schedule,
    is_sparse_var,
    lookups_of,
    place_of,
    reads,
    users,
    writes,
)
from fluidlite.transpiler.placement import place, slice_rows
from fluidlite.transpiler.plan import Cluster, DenseParam, Note, Options, Plan, Slice, Table
from fluidlite.transpiler.schedule import Schedule, find_schedule, outside_values, staying_ops
from fluidlite.transpiler.updates import Chain, Updates, keep_updates, sliceable, split_updates


def make_plan(main: Program, startup: Program, cluster: Cluster, options: Options | None = None) -> Plan:
    """The plan for a program and a cluster.

    A pure function: neither program is changed, and equal arguments give equal plans in every process. Raises
    TranspileError with every reason at once.
    """
    options = options or Options()
    if not cluster.sync and options.training.rounds:
        options = replace(options, training=replace(options.training, mode=Mode.ASYNC))
    _raise_all([*checks.cluster(cluster), *checks.options(options, cluster), *checks.ops(main)])
    _raise_all([*checks.invariants(main, "main"), *checks.invariants(startup, "startup")])
    tables = find_tables(main)
    updates = split_updates(main, tables)
    copied = _copied(main, updates, tables)
    is_geo = options.training.mode is Mode.GEO
    if is_geo:
        by_row = {chain.param for chain in updates.chains} - {*copied, *tables}
        copied |= geo.why_whole(main, by_row)
    if options.dense_on_trainer:
        updates = keep_updates(main, updates, copied)
    schedule, refusals = find_schedule(main, updates.chains)
    _raise_all(
        [
            *updates.refusals,
            *([] if is_geo else [*refusals, *checks.trainer(main, updates)]),
            *checks.optimizers(main, updates),
            *checks.tables(main, startup, updates, tables),
            *checks.initialised(main, startup, updates, schedule, tables),
        ]
    )
    plan = _plan(main, cluster, options, updates, schedule, tables, copied)
    if is_geo:
        plan = geo.as_geo(plan, options.geo_every)
        _raise_all(geo.refusals(main, startup, options, plan))
    _raise_all(fluid_wire.refusals(main, options, cluster, plan, schedule))
    _raise_all([*checks.derived_names(main, plan), *checks.training(main, plan, updates)])
    return plan


def _raise_all(refusals: Iterable[str]) -> None:
    found = list(dict.fromkeys(refusals))
    if found:
        raise TranspileError(found)


def _plan(
    main: Program,
    cluster: Cluster,
    options: Options,
    updates: Updates,
    schedule: Schedule,
    tables: Sequence[str],
    copied: Mapping[str, str],
) -> Plan:
    chains = {chain.param: chain for chain in updates.chains}
    drafts = [
        _draft(main, chain, options, len(cluster.endpoints), by_row=chain.param not in copied)
        for chain in updates.chains
        if chain.param not in tables
    ]
    on_trainer = tuple(copied) if options.dense_on_trainer else ()
    return Plan(
        cluster=cluster,
        dense=_spread(main, drafts, cluster, options),
        tables=tuple(_table(main, name, chains.get(name), cluster) for name in tables),
        on_trainer=on_trainer,
        shared=schedule.state,
        server_only=_server_only(main, updates),
        rows_wire_dtype=options.rows_wire_dtype,
        gradients_wire_dtype=options.gradients_wire_dtype,
        training=options.training,
        keeping=options.keeping,
        two_phase=options.two_phase,
        wire=options.wire,
        notes=(
            *_update_notes(main, updates),
            *_param_notes(main, updates, copied, on_trainer),
            *(note for draft in drafts for note in draft.notes),
        ),
    )


@dataclass(frozen=True)
class _Draft:
    """A dense parameter whose slices have no servers yet."""

    chain: Chain
    by_row: bool
    cuts: tuple[tuple[int, int], ...]
    notes: tuple[Note, ...]

    def piece_name(self, index: int) -> str:
        return names.slice_of(self.chain.param, index) if len(self.cuts) > 1 else self.chain.param


def _draft(main: Program, chain: Chain, options: Options, servers: int, *, by_row: bool) -> _Draft:
    shape = main.root.vars[chain.param].shape or ()
    why_whole = _why_whole(main, chain, options)
    cuts = tuple(slice_rows(shape, 1 if why_whole else servers, options.min_block_size))
    notes: tuple[Note, ...] = ()
    if len(cuts) == 1 and servers > 1:
        why_whole = why_whole or f"shape {list(shape)} is less than two blocks of {options.min_block_size} elements"
        notes = (Note("send_gradients", chain.param, f"not sliced: {why_whole}"),)
    return _Draft(chain, by_row, cuts, notes)


def _why_whole(main: Program, chain: Chain, options: Options) -> str:
    """Why a parameter may not be sliced, "" when it may."""
    optimizer = main.root.ops[chain.optimizer]
    if not options.slice_var_up:
        return "slice_var_up is off"
    if registry.get(optimizer.type).needs_whole_param:
        return f"{place_of(optimizer)} needs the norm of the whole parameter"
    helpers = [main.root.ops[position] for position in chain.on_server if position != chain.optimizer]
    wrong = sliceable(main, helpers, chain.param, sparse=is_sparse_var(main, chain.gradient))
    if wrong is not None:
        return f"{place_of(wrong)} needs the whole gradient"
    for name in outside_values(main, chain):
        var = main.root.vars.get(name)
        if var is not None and var.shape is not None and prod(var.shape) != 1:
            return f"its update reads {name!r}, which is no single number"
    return ""


def _copied(main: Program, updates: Updates, tables: Sequence[str]) -> dict[str, str]:
    """The dense parameters that trainers hold whole, each with the reason why rows are not enough; the reason is "" when
    nothing looks it up sparsely."""
    copied = {}
    for chain in updates.chains:
        sparse = any(op.attr("is_sparse", default=False) for op in lookups_of(main, chain.param))
        reason = _why_copied(main, updates, chain) if sparse else ""
        if chain.param not in tables and (reason or not sparse):
            copied[chain.param] = reason
    return copied


def _why_copied(main: Program, updates: Updates, chain: Chain) -> str:
    """Why trainers need a copy of a parameter that is looked up sparsely, "" when rows are enough."""
    moved = {id(main.root.ops[p]) for p in chain.on_server if p not in updates.on_trainer}
    for block, op in users(main, [chain.param])[chain.param]:
        if id(op) in moved:
            continue
        if block.idx != 0:
            return f"{place_of(op)} in block {block.idx} uses it"
        if op.type not in (*LOOKUPS, *LOOKUP_GRADS) or not op.attr("is_sparse", default=False):
            return f"{place_of(op)} uses it"
    return "" if is_sparse_var(main, chain.gradient) else f"its gradient {chain.gradient!r} is dense"


def _spread(main: Program, drafts: Sequence[_Draft], cluster: Cluster, options: Options) -> tuple[DenseParam, ...]:
    """Give every slice a server."""
    pieces = [
        (draft.piece_name(index), _bytes(main, draft.chain.param, rows))
        for draft in drafts
        for index, (_, rows) in enumerate(draft.cuts)
    ]
    if options.wire:
        counts = [len(draft.cuts) for draft in drafts]
        servers = fluid_wire.place_as_fluid(counts, len(cluster.endpoints), options, main.random_seed)
    else:
        servers = place(
            [name for name, _ in pieces],
            [size for _, size in pieces],
            len(cluster.endpoints),
            options.dispatcher,
            slack=4 * options.min_block_size,
        )
    endpoints = iter([cluster.endpoints[server] for server in servers])
    return tuple(_dense(main, draft, endpoints) for draft in drafts)


def _bytes(main: Program, param: str, rows: int) -> int:
    var = main.root.vars[param]
    return rows * prod((var.shape or ())[1:]) * numpy_dtype(var.dtype).itemsize


def _dense(main: Program, draft: _Draft, endpoints: Iterator[str]) -> DenseParam:
    param = draft.chain.param
    var = main.root.vars[param]
    cut, whole = accumulators(main.root.ops[draft.chain.optimizer])
    return DenseParam(
        name=param,
        shape=var.shape or (),
        dtype=var.dtype,
        gradient=draft.chain.gradient,
        slices=tuple(Slice(param, i, first, rows, next(endpoints)) for i, (first, rows) in enumerate(draft.cuts)),
        sparse_gradient=is_sparse_var(main, draft.chain.gradient),
        fetched_by_row=draft.by_row,
        accumulators=tuple(cut),
        whole_accumulators=tuple(whole),
    )


def _table(main: Program, name: str, chain: Chain | None, cluster: Cluster) -> Table:
    var = main.root.vars[name]
    height, dim = var.shape or (0, 0)
    cut, whole = accumulators(main.root.ops[chain.optimizer]) if chain is not None else ([], [])
    gradient = chain.gradient if chain is not None else None
    return Table(name, height, dim, var.dtype, cluster.endpoints, gradient, tuple(cut), tuple(whole))


def _server_only(main: Program, updates: Updates) -> tuple[str, ...]:
    """Persistable variables, other than parameters, that no op of the trainer names."""
    staying = staying_ops(main, updates.moved)
    still_named: set[str] = set()
    for op in staying:
        still_named |= reads(main, op) | writes(main, op)
    kept = {id(op) for op in staying}
    params = {chain.param for chain in updates.chains}
    gone: dict[str, None] = {}
    for op in main.root.ops:
        if id(op) not in kept:
            gone.update(dict.fromkeys(sorted(reads(main, op) | writes(main, op))))
    return tuple(
        name
        for name, var in main.root.vars.items()
        if var.persistable and name in gone and name not in still_named and name not in params
    )


def _update_notes(main: Program, updates: Updates) -> Iterator[Note]:
    """What passes leave alone of the Optimize ops and of the learning rates."""
    ops = main.root.ops
    for position in updates.on_trainer:
        reason = "needs the gradients of several parameters, or the whole of a table's: it sees each trainer's gradient"
        yield Note("move_updates", place_of(ops[position]), f"stays on the trainer: {reason}")
    for chain in updates.chains:
        for position in chain.on_server:
            if position < chain.optimizer and position in updates.moved:
                reason = f"runs on the server of {chain.param!r}, on the averaged gradient"
                yield Note("keep_on_trainer", place_of(ops[position]), reason)
    for op in staying_ops(main, updates.moved):
        if is_schedule(op):
            yield Note("drop_updates", place_of(op), "an op of the trainer reads this learning rate")


def _param_notes(
    main: Program, updates: Updates, copied: Mapping[str, str], on_trainer: Collection[str]
) -> Iterator[Note]:
    """What passes leave alone of the parameters."""
    for name, why in copied.items():
        if why:
            yield Note("lower_lookups", name, f"not fetched by row: {why}")
    for name in on_trainer:
        reason = "no server holds it: dense_on_trainer leaves it and its update to the only trainer"
        yield Note("send_gradients", name, reason)
    trained = {chain.param for chain in updates.chains}.union(on_trainer)
    for param in main.parameters():
        if param.name not in trained and not param.is_distributed:
            yield Note("receive_parameters", param.name, "nothing trains it: every trainer has its own copy")
