"""Trainer passes of geo training: the program trains by itself, and now and then exchanges with the servers.

A parameter's *exchanged* value is what the servers have of it as far as this trainer knows. In an exchange the trainer sends
delta = (value - exchanged) * share, counts it as exchanged, and adds to its own value what the servers' one differs from the
exchanged one otherwise: the work of others. So nothing is sent twice and nothing is dropped: what was not sent stays the
difference between value and exchanged value. Rows are fetched before their deltas are sent, since a push names the ids of
a pull for free; dense parameters come with the answer to the push.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fluidlite.core import edit, names
from fluidlite.core.ir import Block, Operator, OpRole, Program
from fluidlite.dtypes import VarKind, dtype_number
from fluidlite.ops import registry
from fluidlite.ops.ids import NO_PADDING
from fluidlite.transpiler.analysis import lookups_of
from fluidlite.transpiler.build import declare, make_op
from fluidlite.transpiler.passes.lookups import prefetch_attrs
from fluidlite.transpiler.plan import DenseParam, Plan, RowSource


def fetch_new_rows(program: Program, plan: Plan) -> None:
    """Lookups say which rows they use; those of a table that this trainer does not have yet are fetched. Lookups of one
    parameter whose ids are all there before the first of them do so together."""
    for source in plan.row_sources:
        _declare_state(program, source)
        for index, group in enumerate(_groups(program, source)):
            edit.replace_op(program, program.root, group[0], [*_fetch(program, plan, source, index, group), group[0]])


def exchange(program: Program, plan: Plan) -> None:
    """The step ends with a `geo_exchange`, whose block sends deltas, commits them and takes the servers' values."""
    assert plan.geo is not None
    root = program.root
    declare(program, root, names.GEO_STEPS, (1,), "int64", persistable=True)
    declare(program, root, names.GEO_SHARE, (1,), "float64", persistable=True)
    declare(program, root, names.GEO_LAST, (1,), "bool", persistable=True)
    block = edit.add_block(program, 0)
    trained = {table.name for table in plan.trained_tables}.union(param.name for param in plan.dense)
    sources = [source for source in plan.row_sources if source.name in trained]
    by_row = {param.name: param for param in plan.dense if param.fetched_by_row}
    ops: list[Operator] = []
    for source in sources:
        ops += _exchange_rows(program, block, plan, source, by_row.get(source.name))
    for param in _whole(plan):
        declare(program, root, names.geo_part(param.name, "exchanged"), param.shape, param.dtype, persistable=True)
        ops += _dense_delta(program, block, plan, param)
    attrs = {"endpoints": plan.cluster.endpoints, **plan.cluster.trainer_attrs, "wait": True}
    ops.append(_op("exchange", "send_barrier", {}, {}, OpRole.RPC, attrs))
    for source in sources:
        state = [names.geo_part(source.name, "rows")]
        ops.append(_op("exchange", "rows_sent", {"Rows": state}, {"RowsOut": state}))
    for param in _whole(plan):
        ops += _take_dense(program, block, plan, param)
    for op in ops:
        edit.append_op(program, block, op)
    steps = {"Steps": [names.GEO_STEPS]}, {"StepsOut": [names.GEO_STEPS]}
    gate = _op("exchange", "geo_exchange", *steps, OpRole.DIST, {"sub_block": block.idx, "every": plan.geo.every})
    edit.append_op(program, root, gate)


def keep_rows(program: Program, plan: Plan) -> None:
    """Startup: tables start without rows, and accumulators belong to the rows."""
    assert plan.geo is not None
    columns = dict(plan.geo.columns)
    for source in (table.row_source for table in plan.tables):
        attrs = {
            "shape": (source.height, source.width),
            "dtype": dtype_number(source.dtype),
            "auto_grown_table": True,
        }
        state = _declare_state(program, source)
        empty = [
            _op("keep_rows", "fill_constant", {}, {"Out": [source.name]}, OpRole.FORWARD, attrs),
            _op("keep_rows", "local_rows", {"W": [source.name]}, {"Out": [state]}, OpRole.FORWARD),
        ]
        writers = _writers(program, source.name)
        edit.replace_op(program, program.root, writers[-1], empty)
        edit.remove_ops(program, program.root, writers[:-1])
        for accumulator in columns.get(source.name, ()):
            for op in _writers(program, accumulator):
                edit.set_attr(program, op, "table_name", registry.attrs_for_one(op.type, "table_name", source.name))


def begin_exchanges(program: Program, plan: Plan) -> None:
    """Startup: what was received is what the servers have; no step was made since."""
    ops = []
    for param in plan.dense:
        if param.fetched_by_row:
            state = _declare_state(program, param.row_source)
            ops.append(_op("begin_exchanges", "local_rows", {"W": [param.name]}, {"Out": [state]}, OpRole.FORWARD))
    for param in _whole(plan):
        exchanged = names.geo_part(param.name, "exchanged")
        declare(program, program.root, exchanged, param.shape, param.dtype, persistable=True)
        ops.append(_op("begin_exchanges", "assign", {"X": [param.name]}, {"Out": [exchanged]}, OpRole.FORWARD))
    share = 1 / plan.cluster.trainers
    for name, dtype, value in (
        (names.GEO_STEPS, "int64", {"value": 0.0}),
        (names.GEO_SHARE, "float64", {"str_value": repr(share)}),
        (names.GEO_LAST, "bool", {"value": 0.0}),
    ):
        declare(program, program.root, name, (1,), dtype, persistable=True)
        attrs = {"shape": (1,), "dtype": dtype_number(dtype), **value}
        ops.append(_op("begin_exchanges", "fill_constant", {}, {"Out": [name]}, OpRole.FORWARD, attrs))
    for op in ops:
        edit.append_op(program, program.root, op)


def _op(
    by: str,
    type: str,
    inputs: Mapping[str, list[str]],
    outputs: Mapping[str, list[str]],
    role: OpRole = OpRole.DIST,
    attrs: Mapping[str, Any] | None = None,
) -> Operator:
    return make_op(by, type, inputs, outputs, role, attrs)


def _writers(program: Program, name: str) -> list[Operator]:
    return [op for op in program.root.ops if name in op.output_arguments()]


def _whole(plan: Plan) -> list[DenseParam]:
    """The parameters that are exchanged whole."""
    return [param for param in plan.dense if not param.fetched_by_row]


def _declare_state(program: Program, source: RowSource) -> str:
    """The variable with the bookkeeping of a source's rows."""
    shape = (source.height, source.width)
    return declare(
        program, program.root, names.geo_part(source.name, "rows"), shape, source.dtype, VarKind.RAW, persistable=True
    )


def _groups(program: Program, source: RowSource) -> list[list[Operator]]:
    """Lookups that fetch together: of one padding id, their ids there before the first of them."""
    position = {id(op): at for at, op in enumerate(program.root.ops)}
    groups: list[list[Operator]] = []
    for lookup in lookups_of(program, source.name):
        made = max((position[id(op)] for op in _writers(program, lookup.input("Ids") or "")), default=-1)
        group = next(
            (g for g in groups if made < position[id(g[0])] and _padding(g[0]) == _padding(lookup)),
            None,
        )
        if group is None:
            groups.append([lookup])
        else:
            group.append(lookup)
    return groups


def _padding(lookup: Operator) -> int:
    padding: int = lookup.attr("padding_idx", NO_PADDING)
    return padding


def _fetch(
    program: Program, plan: Plan, source: RowSource, index: int, lookups: Sequence[Operator]
) -> Iterator[Operator]:
    """The ops that note what lookups use, and fetch what of it is not here."""
    by, root, role = "fetch_new_rows", program.root, lookups[0].role
    state = names.geo_part(source.name, "rows")
    ids = list(dict.fromkeys(lookup.input("Ids") or "" for lookup in lookups))
    touching, attrs = {"Ids": ids, "Rows": [state]}, {"padding_idx": _padding(lookups[0])}
    if source.sections:
        yield make_op(by, "touch_rows", touching, {"RowsOut": [state]}, role, attrs, of=lookups[0])
        return
    asked, answered = _travelling(root, program, source, names.geo_part(source.name, f"new{index}"))
    yield make_op(by, "touch_rows", touching, {"Out": asked, "RowsOut": [state]}, role, attrs, of=lookups[0])
    yield _op(by, "prefetch", {"X": asked}, {"Out": answered}, role, prefetch_attrs(plan, source))
    inserted = {"X": answered, "Rows": [state], "W": [source.name]}
    yield _op(by, "insert_rows", inserted, {"WOut": [source.name], "RowsOut": [state]}, role)


def _travelling(block: Block, program: Program, source: RowSource, name: str) -> tuple[list[str], list[str]]:
    """(ids, rows) that go to and come from each server."""
    shape = (source.height, source.width)
    shards = [names.shard_of_var(name, shard) for shard in range(len(source.endpoints))]
    ids = [declare(program, block, f"{shard}.ids", (-1, 1), "int64") for shard in shards]
    return ids, [declare(program, block, f"{s}.rows", shape, source.dtype, VarKind.SELECTED_ROWS) for s in shards]


def _dense_delta(program: Program, block: Block, plan: Plan, param: DenseParam) -> Iterator[Operator]:
    """The ops that make the delta of a parameter and send it, slice by slice."""
    gain = declare(program, block, names.geo_part(param.name, "gain"), param.shape, param.dtype)
    delta = declare(program, block, param.gradient, param.shape, param.dtype)
    exchanged = names.geo_part(param.name, "exchanged")
    yield _op("exchange", "elementwise_sub", {"X": [param.name], "Y": [exchanged]}, {"Out": [gain]})
    yield _op("exchange", "scale", {"X": [gain], "ScaleTensor": [names.GEO_SHARE]}, {"Out": [delta]})
    there = [param.on_server(delta, part) for part in param.slices]
    if len(there) > 1:
        for name, part in zip(there, param.slices, strict=True):
            declare(program, block, name, (part.rows, *param.shape[1:]), param.dtype)
        yield _op("exchange", "split_byref", {"X": [delta]}, {"Out": there}, OpRole.DIST, {"sections": param.sections})
    yield _send(plan, (param.name, delta), there, param.endpoints, there)


def _exchange_rows(
    program: Program, block: Block, plan: Plan, source: RowSource, param: DenseParam | None
) -> Iterator[Operator]:
    """The ops that fetch rows once more, take what others did to them, and send each one's delta to its server."""
    state, delta = names.geo_part(source.name, "rows"), names.delta(source.name)
    asked, answered = _travelling(block, program, source, names.geo_part(source.name, "old"))
    shape, sections = (source.height, source.width), {"height_sections": source.sections}
    sent = [names.shard_of_var(delta, shard) for shard in range(len(asked))]
    for name in sent:
        declare(program, block, name, shape, source.dtype, VarKind.SELECTED_ROWS)
    begun = {"Out": asked, "RowsOut": [state]}
    yield _op(
        "exchange",
        "rows_to_exchange",
        {"Rows": [state], "W": [source.name], "Last": [names.GEO_LAST]},
        begun,
        OpRole.DIST,
        sections,
    )
    yield _op("exchange", "prefetch", {"X": asked}, {"Out": answered}, OpRole.DIST, prefetch_attrs(plan, source))
    given = {"X": answered, "Rows": [state], "W": [source.name], "Share": [names.GEO_SHARE]}
    taken = {"Out": sent, "WOut": [source.name], "RowsOut": [state]}
    yield _op("exchange", "exchange_rows", given, taken, OpRole.DIST, sections)
    there = [delta] * len(sent) if param is None else [param.on_server(delta, part) for part in param.slices]
    yield _send(plan, (source.name, delta), sent, source.endpoints, there)


def _send(
    plan: Plan, pair: tuple[str, str], sent: Sequence[str], endpoints: Sequence[str], there: Sequence[str]
) -> Operator:
    attrs = {
        "trainer_id": plan.cluster.trainer_id,
        "epmap": endpoints,
        "send_varnames": there,
        "op_role_var": pair,
    }
    return _op("exchange", "send", {"X": list(sent)}, {}, OpRole.RPC, attrs)


def _take_dense(program: Program, block: Block, plan: Plan, param: DenseParam) -> Iterator[Operator]:
    """The ops that count a delta as exchanged, and then take what others did: a delta that was taken is not sent again when
    receiving fails."""
    exchanged = names.geo_part(param.name, "exchanged")
    fresh = declare(program, block, names.geo_part(param.name, "fresh"), param.shape, param.dtype)
    others = declare(program, block, names.geo_part(param.name, "others"), param.shape, param.dtype)
    attrs = {**plan.cluster.trainer_attrs, "epmap": param.endpoints, "varnames": param.parts}
    parts = [param.on_server(fresh, part) for part in param.slices]
    yield _op("exchange", "elementwise_add", {"X": [exchanged], "Y": [param.gradient]}, {"Out": [exchanged]})
    if len(parts) > 1:
        for name, part in zip(parts, param.slices, strict=True):
            declare(program, block, name, (part.rows, *param.shape[1:]), param.dtype)
    yield _op("exchange", "recv", {"X": [exchanged]}, {"Out": parts}, OpRole.RPC, attrs)
    if len(parts) > 1:
        yield _op("exchange", "concat", {"X": parts}, {"Out": [fresh]}, OpRole.DIST, {"axis": 0})
    yield _op("exchange", "elementwise_sub", {"X": [fresh], "Y": [exchanged]}, {"Out": [others]})
    yield _op("exchange", "elementwise_add", {"X": [param.name], "Y": [others]}, {"Out": [param.name]})
    yield _op("exchange", "assign", {"X": [fresh]}, {"Out": [exchanged]})
