"""Pserver passes: lookups are answered, and the server listens."""

from __future__ import annotations

from fluidlite.core import edit, names
from fluidlite.core.ir import Block, OpRole, Program
from fluidlite.transpiler.analysis import LOOKUPS, is_schedule
from fluidlite.transpiler.build import declare, make_op
from fluidlite.transpiler.passes.server import units, update_blocks
from fluidlite.transpiler.plan import Plan, Storage

_LOOKUP = "lookup_sparse_table"


def serve_rows(program: Program, plan: Plan) -> None:
    """One block per table and row-fetched slice of this server: ids to rows."""
    for table in plan.tables:
        _lookup_block(program, _LOOKUP, table.name, table.dim, table.dtype)
    for param, part in plan.owned_slices:
        if param.fetched_by_row:
            name = param.on_server(param.name, part)
            _lookup_block(program, "lookup_table_v2", name, param.shape[1], param.dtype)


def _lookup_block(program: Program, type: str, name: str, width: int, dtype: str) -> None:
    block = edit.add_block(program, 0)
    ids = declare(program, block, names.served_part(name, "ids"), (-1,), "int64")
    rows = declare(program, block, names.served_part(name, "rows"), (-1, width), dtype)
    op = make_op("serve_rows", type, {"W": [name], "Ids": [ids]}, {"Out": [rows]}, OpRole.FORWARD)
    edit.append_op(program, block, op)


def listen(program: Program, plan: Plan) -> None:
    """Block 0 becomes one listen_and_serv, which says what each block is for."""
    moved = list(zip(units(plan), update_blocks(program), strict=True))
    received = [name for unit, _ in moved for name in _received(plan, unit.names[unit.gradient])]
    attrs = {
        "endpoint": plan.endpoint,
        "pserver_id": plan.pserver_id,
        "pservers": len(plan.cluster.endpoints),
        "Fanin": plan.cluster.trainers,
        **plan.training.attributes(),
        **plan.keeping.attributes(),
        **plan.wire_attrs,
        "optimize_blocks": [block.idx for _, block in moved],
        "grad_to_block_id": [f"{unit.names[unit.gradient]}:{block.idx}" for unit, block in moved],
        "sparse_grad_to_param": [
            f"{unit.names[unit.gradient]}:{unit.names[unit.param]}" for unit, _ in moved if unit.sparse
        ],
        "prefetch_var_name_to_block_id": [
            f"{block.ops[0].input('W')}:{block.idx}" for block in program.blocks if _answers_lookups(block)
        ],
        **_slices(plan),
        "lr_decay_block_id": next((block.idx for block in program.blocks if _is_schedule_block(block)), -1),
    }
    op = make_op("listen", "listen_and_serv", {"X": received} if received else {}, {}, OpRole.RPC, attrs)
    edit.set_ops(program, program.root, [op])


def _slices(plan: Plan) -> dict[str, list[str]]:
    """What this server holds a piece of under another name; nothing where it holds no such."""
    found = [
        f"{piece.name}:{piece.first_row if held.storage is Storage.SLICES else -1}"
        for held in plan.held()
        for piece in held.pieces
        if piece.endpoint == plan.endpoint and piece.name != held.name
    ]
    return {"slices": found} if found else {}


def _received(plan: Plan, gradient: str) -> list[str]:
    """The variables in which a gradient arrives."""
    if not plan.averages:
        return [gradient]
    return [names.of_trainer(gradient, trainer) for trainer in range(plan.cluster.trainers)]


def _answers_lookups(block: Block) -> bool:
    return len(block.ops) == 1 and block.ops[0].type in (_LOOKUP, *LOOKUPS)


def _is_schedule_block(block: Block) -> bool:
    return block.parent == 0 and bool(block.ops) and all(is_schedule(op) for op in block.ops)
