"""Programs of a process that is no trainer: their lookups of tables ask the servers of a job, and change nothing there."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.core.ir import Program, Variable
from fluidlite.inference import looked_up_tables, strip_training
from fluidlite.protocol.messages import READER
from fluidlite.transpiler.analysis import lookups_of
from fluidlite.transpiler.passes.lookups import lower_lookups
from fluidlite.transpiler.pipeline import run_passes
from fluidlite.transpiler.plan import Cluster, Plan, Table


def ask_servers(program: Program, endpoints: Sequence[str]) -> Program:
    """An inference program whose lookups of tables ask the servers at ``endpoints``, shard by shard, read-only.

    ``program`` stays as it is. Tables that nothing else reads are no longer among its variables.
    """
    found = [var for var in looked_up_tables(program) if lookups_of(program, var.name)]
    plan = Plan(Cluster(tuple(endpoints), 0, READER), tables=tuple(_table(var, tuple(endpoints)) for var in found))
    lowered = run_passes(program, plan, (lower_lookups,))
    strip_training(lowered)
    return lowered


def _table(var: Variable, endpoints: tuple[str, ...]) -> Table:
    height, width = var.shape or (0, 0)
    return Table(var.name, height, width, var.dtype, endpoints)
