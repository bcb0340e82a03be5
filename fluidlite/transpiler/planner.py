"""Makes the plan of a distributed job, or says everything that stands in its way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fluidlite.core.ir import Operator, Program
from fluidlite.dtypes import numpy_dtype
from fluidlite.errors import TranspileError
from fluidlite.ops import registry
from fluidlite.transpiler import checks
from fluidlite.transpiler.analysis import (
    LOOKUP_GRADS,
    LOOKUPS,
    Chain,
    Updates,
    accumulators,
    is_schedule,
    is_sparse_var,
    lookups_of,
    place_of,
    reads,
    sliceable,
    split_updates,
    users,
    writes,
)
from fluidlite.transpiler.placement import Dispatcher, RoundRobin, place, slice_rows
from fluidlite.transpiler.plan import Cluster, DenseParam, Note, Plan, Slice, Table
from fluidlite.transpiler.schedule import Schedule, find_schedule, needed_by_trainer, outside_values


@dataclass(frozen=True)
class Options:
    """How dense parameters are cut and spread: Fluid's ``slice_var_up``, ``min_block_size`` and ``split_method``."""

    slice_var_up: bool = True
    min_block_size: int = 8192
    dispatcher: type[Dispatcher] = RoundRobin


def make_plan(main: Program, startup: Program, cluster: Cluster, options: Options | None = None) -> Plan:
    """The plan for a program and a cluster.

    A pure function: neither program is changed, and equal arguments give equal plans in every process. Raises
    TranspileError with every reason at once.
    """
    options = options or Options()
    refusals = [*checks.cluster(cluster), *checks.options(options), *checks.ops(main)]
    if refusals:
        raise TranspileError(refusals)
    tables = find_tables(main)
    updates = split_updates(main, tables)
    schedule, schedule_refusals = find_schedule(main, updates.chains)
    refusals = [
        *updates.refusals,
        *schedule_refusals,
        *checks.optimizers(main, updates),
        *checks.tables(main, startup, tables, updates),
        *checks.trainer(main, updates, schedule, tables),
        *checks.initialised(main, startup, updates, schedule, tables),
    ]
    if refusals:
        raise TranspileError(refusals)
    plan = _plan(main, cluster, options, updates, schedule, tables)
    refusals = list(checks.derived_names(main, plan))
    if refusals:
        raise TranspileError(refusals)
    return plan


def find_tables(program: Program) -> tuple[str, ...]:
    """The distributed parameters, in order of declaration: declared so, or looked up with ``is_distributed``."""
    looked_up = {
        op.input("W") for _, op in program.all_ops() if op.type in LOOKUPS and op.attr("is_distributed", default=False)
    }
    return tuple(
        name for name, var in program.root.vars.items() if name in looked_up or getattr(var, "is_distributed", False)
    )


def _plan(
    main: Program, cluster: Cluster, options: Options, updates: Updates, schedule: Schedule, tables: Sequence[str]
) -> Plan:
    chains = {chain.param: chain for chain in updates.chains}
    drafts = [_draft(main, chain, options, cluster) for chain in updates.chains if chain.param not in tables]
    return Plan(
        cluster=cluster,
        dense=_spread(main, drafts, cluster, options),
        tables=tuple(_table(main, name, chains.get(name), cluster) for name in tables),
        shared=schedule.state,
        server_only=_server_only(main, updates, schedule),
        notes=(*_helper_notes(main, updates), *(note for draft in drafts for note in draft.notes)),
    )


@dataclass(frozen=True)
class _Draft:
    """A dense parameter before its slices have servers."""

    chain: Chain
    by_row: bool
    cuts: tuple[tuple[int, int], ...]
    notes: tuple[Note, ...]


def _draft(main: Program, chain: Chain, options: Options, cluster: Cluster) -> _Draft:
    shape = main.root.vars[chain.param].shape or ()
    notes = []
    why_whole = _why_whole(main, chain, options)
    count = 1 if why_whole else len(cluster.endpoints)
    cuts = tuple(slice_rows(shape, count, options.min_block_size))
    if len(cuts) == 1 and len(cluster.endpoints) > 1:
        why_whole = why_whole or f"shape {list(shape)} has no two slices of min_block_size {options.min_block_size}"
        notes.append(Note("send_gradients", chain.param, f"not sliced: {why_whole}"))
    why_dense = _why_not_by_row(main, chain)
    if why_dense:
        notes.append(Note("lower_lookups", chain.param, f"received whole, not fetched by row: {why_dense}"))
    by_row = why_dense is None
    return _Draft(chain, by_row, cuts, tuple(notes))


def _why_whole(main: Program, chain: Chain, options: Options) -> str:
    """Why a parameter may not be sliced, "" when it may."""
    ops = [main.root.ops[position] for position in chain.on_server]
    optimizer = main.root.ops[chain.optimizer]
    if not options.slice_var_up:
        return "slice_var_up is off"
    if registry.get(optimizer.type).needs_whole_param:
        return f"{place_of(optimizer)} needs the norm of the whole parameter"
    helpers = [op for op in ops if op is not optimizer]
    wrong = sliceable(main, helpers, chain.param, sparse=is_sparse_var(main, chain.gradient))
    if wrong is not None:
        return f"{place_of(wrong)} needs the whole gradient"
    for name in outside_values(main, chain):
        var = main.root.vars.get(name)
        if var is not None and var.shape is not None and checks.numel(var.shape) != 1:
            return f"its update reads {name!r}, which is no single number"
    return ""


def _why_not_by_row(main: Program, chain: Chain) -> str | None:
    """Why trainers hold a copy of a parameter: None when they do not, "" when nothing asks for rows."""
    lookups = lookups_of(main, chain.param)
    if not any(op.attr("is_sparse", default=False) for op in lookups):
        return ""
    dense = next((op for op in lookups if not op.attr("is_sparse", default=False)), None)
    if dense is not None:
        return f"{place_of(dense)} is not is_sparse"
    on_server = {id(main.root.ops[position]) for position in chain.on_server}
    for block, op in users(main, chain.param):
        if id(op) not in on_server and (block.idx != 0 or op.type not in (*LOOKUPS, *LOOKUP_GRADS)):
            return f"it is used by {place_of(op)} in block {block.idx}"
    if not is_sparse_var(main, chain.gradient):
        return f"its gradient {chain.gradient!r} is dense"
    return None


def _spread(
    main: Program, drafts: Sequence[_Draft], cluster: Cluster, options: Options
) -> tuple[DenseParam, ...]:
    """Give every slice a server."""
    pieces = [
        (names_of(draft.chain.param, index, len(draft.cuts)), _bytes(main, draft.chain.param, rows))
        for draft in drafts
        for index, (_, rows) in enumerate(draft.cuts)
    ]
    slack = 4 * options.min_block_size
    servers = place(
        [name for name, _ in pieces],
        [size for _, size in pieces],
        len(cluster.endpoints),
        options.dispatcher,
        slack,
    )
    endpoints = iter([cluster.endpoints[server] for server in servers])
    return tuple(_dense(main, draft, endpoints) for draft in drafts)


def _dense(main: Program, draft: _Draft, endpoints: Iterator[str]) -> DenseParam:
    chain = draft.chain
    var = main.root.vars[chain.param]
    cut, whole = accumulators(main.root.ops[chain.optimizer])
    return DenseParam(
        name=chain.param,
        shape=var.shape or (),
        dtype=var.dtype,
        gradient=chain.gradient,
        slices=tuple(
            Slice(chain.param, index, first, rows, next(endpoints)) for index, (first, rows) in enumerate(draft.cuts)
        ),
        sparse_gradient=is_sparse_var(main, chain.gradient),
        fetched_by_row=draft.by_row,
        accumulators=tuple(cut),
        whole_accumulators=tuple(whole),
    )
