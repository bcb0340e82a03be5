"""What `fluidlite trace` prints: where the row of one id is, its first value, and all that it passes in a step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fluidlite.core import edit
from fluidlite.core.ir import Program
from fluidlite.dtypes import Array
from fluidlite.errors import OutOfRangeError
from fluidlite.executor import Executor
from fluidlite.framework import Program as Facade
from fluidlite.ops.ids import sections_of
from fluidlite.runtime.scope import Scope
from fluidlite.transpiler import trace
from fluidlite.transpiler.passes.initial import grow_tables, keep_own_inits
from fluidlite.transpiler.pipeline import run_passes
from fluidlite.transpiler.plan import Plan, RowSource
from fluidlite.values.sharding import shard_of
from fluidlite.values.sparse_table import SparseTable


def describe(main: Program, startup: Program, plan: Plan, table: str, id: int) -> Iterator[str]:
    """The lines, for a table or a parameter that is fetched by row; ``id`` is an int64.

    Raises ProgramError for another parameter, OutOfRangeError for an id that a parameter of fixed height has not.
    """
    source = trace.source_of(plan, table)
    server = server_of(source, id)
    endpoint = source.endpoints[server]
    yield f"{table}: rows of {source.width} {source.dtype} on {len(source.endpoints)} server(s)"
    yield f"id {id}: part {server}, at {endpoint}"
    if not source.sections:
        row = first_row(startup, plan.at(endpoint), table, id)
        yield f"first value: {' '.join(f'{value:.6g}' for value in row.tolist())}"
    for title, hops in (("pull", trace.pull), ("push", trace.push)):
        yield f"{title}:"
        yield from (f"  {hop}" for hop in hops(main, plan, source, server))


def server_of(source: RowSource, id: int) -> int:
    """Position of the server that holds the row of an id."""
    ids = np.array([id], np.int64)
    if not source.sections:
        return int(shard_of(ids, len(source.endpoints))[0])
    if not 0 <= id < source.height:
        raise OutOfRangeError(f"{source.name!r} has {source.height} rows; it has none of id {id}")
    return int(sections_of(ids, source.sections)[0][0])


def first_row(startup: Program, plan: Plan, table: str, id: int) -> Array:
    """The value with which the server of ``plan.endpoint`` starts a row of a table, (width,)."""
    program = run_passes(startup, plan, (keep_own_inits, grow_tables))
    edit.set_ops(program, program.root, [op for op in program.root.ops if table in op.output_arguments()])
    scope = Scope()
    Executor().run(Facade(program), scope=scope)
    rows: SparseTable = scope.get(table)
    value: Array = rows.lookup(np.array([id], np.int64))[0]
    return value
