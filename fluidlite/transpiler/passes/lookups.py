"""Trainer pass: lookups ask the servers for rows."""

from __future__ import annotations

from typing import Any

from fluidlite.core import edit, names
from fluidlite.core.ir import Operator, Program
from fluidlite.dtypes import VarKind, dtype_number
from fluidlite.transpiler.analysis import lookups_of
from fluidlite.transpiler.build import declare, make_op
from fluidlite.transpiler.plan import Plan, RowSource

_BY = "lower_lookups"


def lower_lookups(program: Program, plan: Plan) -> None:
    """Each lookup of a table or row-fetched parameter, where it stands, becomes split_ids, prefetch and concat, and
    then looks its ids up among the fetched rows. Each has variables of its own, so none waits for another."""
    for source in plan.row_sources:
        for index, lookup in enumerate(lookups_of(program, source.name)):
            rows = _fetch(program, plan, source, index, lookup)
            for grad in _gradients(program, lookup):
                edit.rename_arguments(program, grad, {source.name: rows})
            edit.rename_arguments(program, lookup, {source.name: rows})


def _fetch(program: Program, plan: Plan, source: RowSource, index: int, lookup: Operator) -> str:
    """Insert the ops that fetch the rows of one lookup before it; the name of the fetched rows."""
    ids = names.lookup_part(source.name, "ids", index)
    rows = names.lookup_part(source.name, "rows", index)
    shards = range(len(source.endpoints))
    id_shards = [_declare_ids(program, names.shard_of_var(ids, shard)) for shard in shards]
    row_shards = [_declare_rows(program, names.shard_of_var(rows, shard), source) for shard in shards]
    _declare_rows(program, rows, source)
    padding = {"padding_idx": lookup.attr("padding_idx", -1)}
    sections = {"height_sections": source.sections}
    fetch = prefetch_attrs(plan, source)
    role = lookup.role
    new = [
        make_op(
            _BY,
            "split_ids",
            {"Ids": lookup.inputs["Ids"]},
            {"Out": id_shards},
            role,
            {**padding, **sections},
            of=lookup,
        ),
        make_op(_BY, "prefetch", {"X": id_shards}, {"Out": row_shards}, role, fetch, of=lookup),
        make_op(_BY, "concat", {"X": row_shards}, {"Out": [rows]}, role, {"axis": 0}, of=lookup),
    ]
    edit.replace_op(program, program.root, lookup, [*new, lookup])
    return rows


def prefetch_attrs(plan: Plan, source: RowSource) -> dict[str, Any]:
    """The attributes of a `prefetch` of rows of a source, shard by shard."""
    return {
        "trainer_id": plan.cluster.trainer_id,
        "epmap": source.endpoints,
        "table_names": source.names,
        "width": source.width,
        "height": source.height,
        "dtype": dtype_number(source.dtype),
        "wire_dtype": plan.rows_wire_dtype or None,
        "height_sections": source.sections,
        **plan.wire_attrs,
    }


def _declare_ids(program: Program, name: str) -> str:
    return declare(program, program.root, name, (-1, 1), "int64")


def _declare_rows(program: Program, name: str, source: RowSource) -> str:
    shape = (source.height, source.width)
    return declare(program, program.root, name, shape, source.dtype, VarKind.SELECTED_ROWS)


def _gradients(program: Program, lookup: Operator) -> list[Operator]:
    """The gradient ops of a lookup: same table, same ids, gradient of the same output."""
    return [
        op
        for op in program.root.ops
        if op.type == f"{lookup.type}_grad"
        and op.inputs.get("W") == lookup.inputs["W"]
        and op.inputs.get("Ids") == lookup.inputs["Ids"]
        and names.forward_of(op.input("Out@GRAD") or "") == lookup.output("Out")
    ]
