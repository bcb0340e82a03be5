"""Trainer passes: gradients go to the servers."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.core import edit, names
from fluidlite.core.ir import Attr, AttrType, Operator, OpRole, Program
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError
from fluidlite.transpiler.analysis import is_helper
from fluidlite.transpiler.build import declare, make_op
from fluidlite.transpiler.plan import DenseParam, Plan, Table
from fluidlite.transpiler.updates import split_updates


def keep_on_trainer(program: Program, plan: Plan) -> None:
    """Ops of clips that need the gradients of several parameters, or a table's whole gradient, get the role Backward:
    they run here, before gradients are sent."""
    for position in split_updates(program, [table.name for table in plan.tables]).on_trainer:
        edit.set_attr(program, program.root.ops[position], "op_role", Attr(AttrType.INT, int(OpRole.BACKWARD)))


def send_table_gradients(program: Program, plan: Plan) -> None:
    """The gradient of a table: duplicate rows summed, each row with its values to the server of its id."""
    for table in plan.trained_tables:
        gradient = table.gradient or ""
        merged = _merge(program, gradient)
        parts = _declare_parts(program, gradient, table)
        split = make_op(
            "send_table_gradients", "split_ids", {"Ids": [merged.output("Out") or ""]}, {"Out": parts}, OpRole.DIST
        )
        everywhere = [gradient] * len(parts)
        send = _send("send_table_gradients", plan, (table.name, gradient), parts, table.shards, everywhere)
        _after_gradient(program, gradient, [merged, split, send])


def send_gradients(program: Program, plan: Plan) -> None:
    """The gradient of a dense parameter goes to the servers of its slices right after the op that makes it."""
    for param in plan.dense:
        gradient = param.gradient
        ops: list[Operator] = []
        source = gradient
        if param.sparse_gradient:
            ops.append(_merge(program, gradient, by="send_gradients"))
            source = names.merged(gradient)
        parts = [param.on_server(gradient, part) for part in param.slices]
        if len(parts) > 1:
            ops.append(_split(program, param, source, parts))
        sent = parts if len(parts) > 1 else [source]
        ops.append(_send("send_gradients", plan, (param.name, gradient), sent, param.endpoints, parts))
        _after_gradient(program, gradient, ops)


def _merge(program: Program, gradient: str, by: str = "send_table_gradients") -> Operator:
    var = program.root.vars[gradient]
    merged = declare(program, program.root, names.merged(gradient), var.shape or (), var.dtype, VarKind.SELECTED_ROWS)
    return make_op(by, "merge_selected_rows", {"X": [gradient]}, {"Out": [merged]}, OpRole.DIST)


def _declare_parts(program: Program, gradient: str, table: Table) -> list[str]:
    shape = (table.height, table.dim)
    shards = (names.shard_of_var(gradient, shard) for shard in range(len(table.shards)))
    return [declare(program, program.root, name, shape, table.dtype, VarKind.SELECTED_ROWS) for name in shards]


def _split(program: Program, param: DenseParam, source: str, parts: Sequence[str]) -> Operator:
    """The op that cuts a gradient into the slices of its parameter."""
    kind = VarKind.SELECTED_ROWS if param.sparse_gradient else VarKind.LOD_TENSOR
    for name, part in zip(parts, param.slices, strict=True):
        declare(program, program.root, name, (part.rows, *param.shape[1:]), param.dtype, kind)
    type, sizes = ("split_selected_rows", "height_sections") if param.sparse_gradient else ("split_byref", "sections")
    return make_op("send_gradients", type, {"X": [source]}, {"Out": list(parts)}, OpRole.DIST, {sizes: param.sections})


def _send(
    by: str,
    plan: Plan,
    pair: tuple[str, str],
    sent: Sequence[str],
    endpoints: Sequence[str],
    names_there: Sequence[str],
) -> Operator:
    attrs = {
        "trainer_id": plan.cluster.trainer_id,
        "epmap": endpoints,
        "send_varnames": names_there,
        "op_role_var": pair,
        "wire_dtype": plan.gradients_wire_dtype or None,
    }
    return make_op(by, "send", {"X": list(sent)}, {}, OpRole.RPC, attrs)


def _after_gradient(program: Program, gradient: str, ops: Sequence[Operator]) -> None:
    """Insert ops behind the last op of the trainer that writes a gradient (regularisation may write it in place)."""
    for writer in reversed(program.root.ops):
        if gradient in writer.output_arguments() and not is_helper(writer):
            edit.replace_op(program, program.root, writer, [writer, *ops])
            return
    raise ProgramError(f"no op of the trainer writes gradient {gradient!r}")
