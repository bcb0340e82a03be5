"""Pserver pass of geo training: what trainers gained is added to parameters."""

from __future__ import annotations

from dataclasses import replace

from fluidlite.core import edit
from fluidlite.core.ir import OpRole, Program
from fluidlite.dtypes import VarKind
from fluidlite.transpiler.build import declare, make_op
from fluidlite.transpiler.passes.server import units
from fluidlite.transpiler.plan import Plan


def add_deltas(program: Program, plan: Plan) -> None:
    """One block per slice and table of this server, which adds a delta. Updates are the trainers' business."""
    for unit in units(plan):
        var = program.root.vars[unit.param]
        param, delta = unit.names[unit.param], unit.names[unit.gradient]
        if param != unit.param:
            edit.add_var(program, program.root, replace(var, name=param, shape=unit.shape))
        kind = VarKind.SELECTED_ROWS if unit.sparse else VarKind.LOD_TENSOR
        declare(program, program.root, delta, unit.shape, var.dtype, kind)
        inputs, attrs = {"Param": [param], "Grad": [delta]}, {"op_role_var": (param, delta)}
        op = make_op("add_deltas", "add_delta", inputs, {"ParamOut": [param]}, OpRole.OPTIMIZE, attrs)
        edit.append_op(program, edit.add_block(program, 0), op)
