"""Passes over a server's main program that Fluid made: its blocks and attributes in the form that `pserver.host` serves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from fluidlite.core import edit, names
from fluidlite.core.ir import Attr, AttrType, Block, Operator, OpRole, Program
from fluidlite.dtypes import VarKind
from fluidlite.ops.modes import Mode
from fluidlite.transpiler.analysis import blocks_run_by, is_optimizer
from fluidlite.transpiler.build import declare, make_op
from fluidlite.transpiler.legacy.forms import is_rows, listen_of, pairs, set_value

_LOOKUP: Final = "lookup_sparse_table"
#: Fluid's ``distributed_mode`` by its number: sync, the communicator's modes, async, geo
_MODES: Final = (Mode.SYNC, Mode.HALF_ASYNC, Mode.ASYNC, Mode.GEO)


def bind_gradients(program: Program) -> None:
    """A server that does not say which block applies a gradient (`fl_listen_and_serv`): the one whose optimizer op takes it."""
    listen = listen_of(program)
    if listen is None or listen.attr("grad_to_block_id", ()):
        return
    blocks = [program.blocks[index] for index in listen.attr("optimize_blocks", ())]
    bound = [f"{op.inputs['Grad'][0]}:{block.idx}" for block in blocks for op in block.ops if is_optimizer(op)]
    _set_pairs(program, listen, "grad_to_block_id", bound)


def name_table_gradients(program: Program) -> None:
    """The gradient of a table has one name on all servers: ``emb@GRAD.trainer_0.pserver_1`` is ``emb@GRAD.trainer_0`` here."""
    listen = listen_of(program)
    if listen is None:
        return
    new = {name: there for name in program.root.vars if (there := names.without_server(name)) != name}
    for name, there in new.items():
        edit.add_var(program, program.root, replace(program.root.vars[name], name=there))
        edit.remove_var(program, program.root, name)
    if new:
        for _, op in program.all_ops():
            edit.rename_arguments(program, op, new)
    for attr in ("grad_to_block_id", "sparse_grad_to_param"):
        given = [f"{names.without_server(name)}:{what}" for name, what in pairs(listen, attr)]
        _set_pairs(program, listen, attr, given)


def apart_from_schedule(program: Program) -> None:
    """The schedule is no update: it has its own attribute (in Fluid from 1.6 on), runs once per step, and what it computes
    for the updates outlives it. A counter that sums what trainers say counts by itself."""
    listen = listen_of(program)
    if listen is None:
        return
    blocks = [program.blocks[index] for index in listen.attr("optimize_blocks", ())]
    bound = {int(block) for _, block in pairs(listen, "grad_to_block_id")}
    schedule = listen.attr("lr_decay_block_id", -1)
    if schedule <= 0:
        first = blocks[0] if blocks and blocks[0].idx not in bound and blocks[0].ops else None
        schedule = first.idx if first is not None and _makes_rates(first, blocks[1:]) else -1
    if schedule <= 0:
        return
    block = program.blocks[schedule]
    set_value(program, listen, "lr_decay_block_id", schedule)
    set_value(program, listen, "optimize_blocks", [b.idx for b in blocks if b is not block])
    for op in list(block.ops):
        if op.type == "sum" and all(map(names.is_clock, op.input_arguments())):
            counter = op.outputs["Out"]
            count = make_op(
                "apart_from_schedule", "increment", {"X": counter}, {"Out": counter}, OpRole.LR_SCHED, {"step": 1.0}
            )
            edit.replace_op(program, block, op, [count])
    _outlive(program, block, blocks)


def _makes_rates(block: Block, others: Iterable[Block]) -> bool:
    """Whether a block computes what optimizer ops of the others take for their learning rate."""
    made = {name for op in block.ops for name in op.output_arguments()}
    return any(op.input("LearningRate") in made for other in others for op in other.ops if is_optimizer(op))


def _outlive(program: Program, schedule: Block, blocks: Iterable[Block]) -> None:
    read = {name for block in blocks if block is not schedule for op in block.ops for name in op.input_arguments()}
    for op in schedule.ops:
        for name in read.intersection(op.output_arguments()):
            var = program.find_var(name, schedule)
            if var is not None and not var.persistable:
                schedule.vars.pop(name, None)
                edit.add_var(program, program.root, replace(var, persistable=True))


def update_in_one_block(program: Program) -> None:
    """A block updates a parameter and what belongs to it, and stands below block 0. Until 1.0 a last block, bound to no
    gradient, advanced the powers of adam's betas; blocks that do nothing are not listed."""
    listen = listen_of(program)
    if listen is None:
        return
    bound = dict.fromkeys(int(block) for _, block in pairs(listen, "grad_to_block_id"))
    listed = list(listen.attr("optimize_blocks", ()))
    for idx in listed:
        if idx not in bound:
            for op in program.blocks[idx].ops:
                _move(program, op, [program.blocks[other] for other in bound])
    wanted = [idx for idx in listed if idx in bound] + [idx for idx in bound if idx not in listed]
    set_value(program, listen, "optimize_blocks", wanted)
    for idx in wanted:
        _stand_below_root(program, program.blocks[idx])


def _move(program: Program, op: Operator, blocks: Iterable[Block]) -> None:
    """Append an op to the block that uses what it writes."""
    written = set(op.output_arguments())
    for block in blocks:
        if any(written.intersection(other.input_arguments()) for other in block.ops if is_optimizer(other)):
            edit.append_op(program, block, edit.clone_op(op))
            return


def _stand_below_root(program: Program, block: Block) -> None:
    """Fluid puts a block below the one that was made before it; what that declares is declared here then."""
    above = program.blocks[block.parent] if block.parent > 0 else None
    if above is None:
        return
    for op in block.ops:
        for name in (*op.input_arguments(), *op.output_arguments()):
            var = program.find_var(name, block)
            if var is not None and name not in block.vars and name not in program.root.vars:
                edit.add_var(program, block, edit.clone_var(var))
    block.parent = 0
    program.edits += 1


def add_deltas(program: Program) -> None:
    """Geo: what trainers gained is added by `add_delta`, under the names that our trainers give their deltas."""
    listen = listen_of(program)
    if listen is None or _mode(listen) is not Mode.GEO:
        return
    bound = dict(pairs(listen, "grad_to_block_id"))
    sparse = dict(pairs(listen, "sparse_grad_to_param"))
    for delta, idx in bound.items():
        block = program.blocks[int(idx)]
        total = next(op for op in block.ops if op.type == "sum" and delta in op.inputs["X"])
        param, gained = total.outputs["Out"][0], names.delta_on_wire(delta)
        var = program.root.vars[param]
        kind = VarKind.SELECTED_ROWS if delta in sparse else VarKind.LOD_TENSOR
        edit.remove_var(program, program.root, delta)
        declare(program, program.root, gained, var.shape or (), var.dtype, kind)
        inputs, attrs = {"Param": [param], "Grad": [gained]}, {"op_role_var": (param, gained)}
        add = make_op("add_deltas", "add_delta", inputs, {"ParamOut": [param]}, OpRole.OPTIMIZE, attrs, of=total)
        edit.replace_op(program, block, total, [add])
    new = {delta: names.delta_on_wire(delta) for delta in bound}
    _set_pairs(program, listen, "grad_to_block_id", [f"{new[d]}:{idx}" for d, idx in bound.items()])
    _set_pairs(program, listen, "sparse_grad_to_param", [f"{new[d]}:{param}" for d, param in sparse.items()])


def scale_by_contributions(program: Program) -> None:
    """The sum of a round is divided by how many took part, which is fewer than there were when a trainer has left. Where
    Fluid does not divide (a table; before 1.0 every sparse gradient) the sum stays."""
    listen = listen_of(program)
    if listen is None:
        return
    for gradient, idx in pairs(listen, "grad_to_block_id"):
        var = program.root.vars.get(gradient)
        if var is not None and var.persistable:
            edit.add_var(program, program.root, replace(var, persistable=False))
        block = program.blocks[int(idx)]
        for before, op in zip(block.ops, block.ops[1:], strict=False):
            summed = before.type == "sum" and names.of_trainer(gradient, 0) in before.inputs["X"]
            if summed and op.type == "scale" and op.inputs["X"] == [gradient]:
                declare(program, program.root, names.CONTRIBUTION_SCALE, (1,), "float64", persistable=True)
                factor = {"X": [gradient], "ScaleTensor": [names.CONTRIBUTION_SCALE]}
                mean = make_op("scale_by_contributions", "scale", factor, {"Out": [gradient]}, OpRole.OPTIMIZE, of=op)
                edit.replace_op(program, block, op, [mean])
                break


def answer_lookups(program: Program) -> None:
    """Lookups name the parameter whose rows they want, and each that is fetched by row has a block that answers. In Fluid a
    table's names the variable that the ids come in, and others need no block."""
    listen = listen_of(program)
    if listen is None:
        return
    blocks: dict[str, int] = {}
    for _, idx in pairs(listen, "prefetch_var_name_to_block_id"):
        block = program.blocks[int(idx)]
        table = next((op.input("W") for op in block.ops if op.type == _LOOKUP), None)
        if table is not None:
            blocks.setdefault(table, block.idx)
    for param in _fetched_by_row(program, listen):
        if param not in blocks and not is_rows(program, param):
            blocks[param] = _lookup_block(program, param)
    _set_pairs(program, listen, "prefetch_var_name_to_block_id", [f"{name}:{idx}" for name, idx in blocks.items()])


def _fetched_by_row(program: Program, listen: Operator) -> Iterator[str]:
    """Parameters whose gradients are rows."""
    sparse = dict(pairs(listen, "sparse_grad_to_param"))
    for gradient, idx in pairs(listen, "grad_to_block_id"):
        updates = (op.input("Param") for op in program.blocks[int(idx)].ops if is_optimizer(op))
        param = sparse.get(gradient) or (next(updates, None) if is_rows(program, gradient) else None)
        if param is not None:
            yield param


def _lookup_block(program: Program, name: str) -> int:
    var = program.root.vars[name]
    block = edit.add_block(program, 0)
    ids = declare(program, block, names.served_part(name, "ids"), (-1,), "int64")
    rows = declare(program, block, names.served_part(name, "rows"), (-1, (var.shape or ())[-1]), var.dtype)
    op = make_op("answer_lookups", "lookup_table_v2", {"W": [name], "Ids": [ids]}, {"Out": [rows]}, OpRole.FORWARD)
    edit.append_op(program, block, op)
    return block.idx


def count_as_here(program: Program) -> None:
    """The mode by our number, and what a server of ours is told besides. Blocks that nothing names (a table's that is saved)
    are dropped."""
    listen = listen_of(program)
    if listen is None:
        return
    mode = _mode(listen)
    set_value(program, listen, "distributed_mode", int(mode))
    if mode is Mode.SYNC and listen.attr("dc_asgd", default=False):
        edit.set_attr(program, listen, "dc_asgd", None)
    for mark in ("sync_mode", "rpc_get_thread_num", "rpc_send_thread_num", "checkpint_block_id"):
        edit.set_attr(program, listen, mark, None)
    for op in list(program.root.ops):
        if op is not listen:
            edit.remove_ops(program, program.root, [op])
    named = {
        int(idx) for attr in ("grad_to_block_id", "prefetch_var_name_to_block_id") for _, idx in pairs(listen, attr)
    }
    named.update(listen.attr("optimize_blocks", ()))
    schedule = listen.attr("lr_decay_block_id", -1)
    if schedule > 0:
        named.add(schedule)
    _keep(program, listen, named)


def _keep(program: Program, listen: Operator, named: set[int]) -> None:
    """Drop the other blocks; what names one by text or number follows."""
    ops = [op for idx in named for op in program.blocks[idx].ops]
    kept = [0, *sorted(named | blocks_run_by(program, ops))]
    if len(kept) == len(program.blocks):
        return
    new = {old: index for index, old in enumerate(kept)}
    for idx in kept[1:]:
        block = program.blocks[idx]
        if block.parent not in new:
            _stand_below_root(program, block)
    for attr in ("grad_to_block_id", "prefetch_var_name_to_block_id"):
        _set_pairs(program, listen, attr, [f"{name}:{new[int(idx)]}" for name, idx in pairs(listen, attr)])
    schedule = listen.attr("lr_decay_block_id", -1)
    set_value(program, listen, "lr_decay_block_id", new.get(schedule, -1))
    edit.keep_blocks(program, kept)


def _mode(listen: Operator) -> Mode:
    if "sync_mode" in listen.attrs and "distributed_mode" not in listen.attrs:
        return Mode.SYNC if listen.attr("sync_mode") else Mode.ASYNC
    number = listen.attr("distributed_mode", 0)
    mode = _MODES[number] if 0 <= number < len(_MODES) else Mode.SYNC
    return Mode.ASYNC if mode is Mode.HALF_ASYNC and listen.attr("dc_asgd", default=False) else mode


def _set_pairs(program: Program, listen: Operator, attr: str, given: list[str]) -> None:
    if given != list(listen.attr(attr, ())):
        edit.set_attr(program, listen, attr, Attr(AttrType.STRINGS, tuple(given)))
