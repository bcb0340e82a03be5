"""Trainer passes: the step is committed, new parameters come back, and what servers do is dropped."""

from __future__ import annotations

from fluidlite.core import edit
from fluidlite.core.ir import Operator, OpRole, Parameter, Program
from fluidlite.ops import registry
from fluidlite.ops.modes import Mode
from fluidlite.transpiler.analysis import arguments_of, blocks_run_by, is_helper, is_optimizer
from fluidlite.transpiler.build import declare, make_op
from fluidlite.transpiler.plan import Plan
from fluidlite.transpiler.schedule import staying_ops
from fluidlite.transpiler.updates import updates_of


def commit_step(program: Program, plan: Plan) -> None:
    """After the last update op: the step is closed on every server, and dense parameters are received."""
    ops = program.root.ops
    position = max(p for p, op in enumerate(ops) if is_optimizer(op) or is_helper(op) or op.type == "send") + 1
    attrs = {"endpoints": plan.cluster.endpoints, **plan.cluster.trainer_attrs, **plan.wire_attrs}
    if not plan.two_phase:
        attrs["two_phase"] = False
    if plan.training.mode is Mode.HALF_ASYNC:
        attrs |= {"half_async": True, "max_merge_var_num": plan.training.max_merge_var_num}
    barrier = make_op("commit_step", "send_barrier", {}, {}, OpRole.RPC, attrs)
    received, joined = _receive(program, plan, "commit_step", paired=True)
    for offset, op in enumerate([barrier, *received, *joined]):
        edit.insert_op(program, program.root, position + offset, op)


def drop_updates(program: Program, plan: Plan) -> None:
    """Optimizer ops, the clips and regularisation in front of them, and learning rates that nothing here reads. Those
    of parameters that the trainer keeps stay."""
    kept = updates_of(program, plan.on_trainer)
    ops = enumerate(program.root.ops)
    moved = {p for p, op in ops if (is_optimizer(op) or is_helper(op)) and p not in kept}
    edit.set_ops(program, program.root, staying_ops(program, moved))
    edit.keep_blocks(program, [0, *sorted(blocks_run_by(program, program.root.ops))])


def forget_unused(program: Program, plan: Plan) -> None:
    """Declarations of temporaries that no op names, and of variables that only servers have. Parameters stay."""
    named = {name for _, op in program.all_ops() for name in arguments_of(op)}
    for block in program.blocks:
        for name, var in list(block.vars.items()):
            goes = name in plan.server_only if var.persistable else not var.is_data
            if goes and name not in named and not isinstance(var, Parameter):
                edit.remove_var(program, block, name)


def fake_rows(program: Program, plan: Plan) -> None:
    """Startup: tables and row-fetched parameters are not initialised here."""
    for source in plan.row_sources:
        shape = (source.height, source.width)
        fake = make_op("fake_rows", "fake_init", {}, {"Out": [source.name]}, OpRole.FORWARD, {"shape": shape})
        writers = [op for op in program.root.ops if source.name in op.output_arguments()]
        edit.replace_op(program, program.root, writers[-1], [fake])
        edit.remove_ops(program, program.root, writers[:-1])


def receive_parameters(program: Program, plan: Plan) -> None:
    """Startup: dense parameters come from the servers, what only servers need is not initialised. All servers are named,
    so that a trainer that comes back meets all before it takes values from one."""
    replaced = {param.name for param in plan.received} | set(plan.server_only)
    _drop_writers(program, replaced)
    kept = [p for p, op in enumerate(program.root.ops) if replaced.intersection(op.output_arguments())]
    position = max(kept, default=-1) + 1
    attrs = {"endpoints": plan.cluster.endpoints, "trainer_id": plan.cluster.trainer_id, **plan.wire_attrs}
    met = make_op("receive_parameters", "fetch_barrier", {}, {}, OpRole.RPC, attrs)
    received, joined = _receive(program, plan, "receive_parameters")
    for offset, op in enumerate([*received, met, *joined]):
        edit.insert_op(program, program.root, position + offset, op)


def _receive(program: Program, plan: Plan, by: str, *, paired: bool = False) -> tuple[list[Operator], list[Operator]]:
    """One recv per dense parameter, ``paired`` with its gradient, and the concats of slices."""
    received, joined = [], []
    for param in plan.received:
        attrs = {**plan.cluster.trainer_attrs, "epmap": param.endpoints, "varnames": param.parts, **plan.wire_attrs}
        if paired:
            attrs["op_role_var"] = (param.name, param.gradient)
        received.append(make_op(by, "recv", {}, {"Out": list(param.parts)}, OpRole.RPC, attrs))
        if len(param.slices) > 1:
            for name, part in zip(param.parts, param.slices, strict=True):
                declare(program, program.root, name, (part.rows, *param.shape[1:]), param.dtype)
            join = make_op(by, "concat", {"X": list(param.parts)}, {"Out": [param.name]}, OpRole.DIST, {"axis": 0})
            joined.append(join)
    return received, joined


def _drop_writers(program: Program, replaced: set[str]) -> None:
    """Remove ops whose outputs are all replaced, or temporaries that only removed ops read."""
    kept: list[Operator] = []
    read: set[str] = set()
    for op in reversed(program.root.ops):
        needless = all(
            name in replaced or (name not in read and not program.root.vars[name].persistable)
            for name in op.output_arguments()
        )
        if needless and not registry.get(op.type).side_effect:
            continue
        kept.append(op)
        read.update(op.input_arguments())
    edit.set_ops(program, program.root, kept[::-1])
