"""A pserver program written by hand: a dense parameter ``w`` [3], a row-fetched one ``v.block0`` [4, 2], a table ``emb``
of width 2, sgd on all with rate 1, halved by the schedule before every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import fluidlite  # noqa: F401 (loads the ops)
from fluidlite.core import edit, names
from fluidlite.core.ir import Block, Operator, Program, Variable
from fluidlite.dtypes import VarKind
from fluidlite.ops import registry
from fluidlite.runtime.scope import Scope
from fluidlite.values.initial import Constant
from fluidlite.values.sparse_table import SparseTable

PARAMS = {"w@GRAD": "w", "v.block0@GRAD": "v.block0", "emb@GRAD": "emb"}
SHAPES = {"w": (3,), "v.block0": (4, 2), "emb": (0, 2)}
SPARSE = ("v.block0@GRAD", "emb@GRAD")


def append(
    program: Program,
    block: Block,
    type: str,
    inputs: Mapping[str, Sequence[str]],
    outputs: Mapping[str, Sequence[str]],
    **attrs: Any,
) -> Operator:
    typed = registry.attrs_for(registry.get(type), attrs)
    made = Operator(type, {k: list(v) for k, v in inputs.items()}, {k: list(v) for k, v in outputs.items()}, typed)
    return edit.append_op(program, block, made)


def declare(program: Program, block: Block, name: str, **fields: Any) -> str:
    edit.add_var(program, block, Variable(name, **{"dtype": "float64", **fields}))
    return name


def update_block(program: Program, gradient: str, *, sync: bool, trainers: int) -> Block:
    block = edit.add_block(program, 0)
    param = PARAMS[gradient]
    kind = VarKind.SELECTED_ROWS if gradient in SPARSE else VarKind.LOD_TENSOR
    declare(program, program.root, gradient, shape=SHAPES[param], kind=kind)
    if sync:
        parts = [
            declare(program, program.root, names.of_trainer(gradient, t), shape=SHAPES[param], kind=kind)
            for t in range(trainers)
        ]
        append(program, block, "sum", {"X": parts}, {"Out": [gradient]})
        append(
            program, block, "scale", {"X": [gradient], "ScaleTensor": [names.CONTRIBUTION_SCALE]}, {"Out": [gradient]}
        )
    sgd = {"Param": [param], "Grad": [gradient], "LearningRate": ["lr"]}
    append(program, block, "sgd", sgd, {"ParamOut": [param]}, op_role_var=[param, gradient])
    return block


def lookup_block(program: Program, type: str, table: str) -> Block:
    block = edit.add_block(program, 0)
    ids = declare(program, block, f"{table}.ids", shape=(-1,), dtype="int64")
    rows = declare(program, block, f"{table}.rows", shape=(-1, 2))
    append(program, block, type, {"W": [table], "Ids": [ids]}, {"Out": [rows]})
    return block


def pserver_program(*, sync: bool = True, trainers: int = 2, **attrs: Any) -> tuple[Program, Operator, Scope]:
    """Program, its listen_and_serv op, and a scope with initial values. ``attrs`` of the op override what is built."""
    program = Program()
    for param, shape in SHAPES.items():
        declare(program, program.root, param, shape=shape, persistable=True)
    declare(program, program.root, "lr", shape=(1,), persistable=True)
    declare(program, program.root, names.CONTRIBUTION_SCALE, shape=(1,), persistable=True)
    schedule = edit.add_block(program, 0)
    append(program, schedule, "scale", {"X": ["lr"]}, {"Out": ["lr"]}, scale=0.5)
    updates = {g: update_block(program, g, sync=sync, trainers=trainers).idx for g in PARAMS}
    lookups = {
        "emb": lookup_block(program, "lookup_sparse_table", "emb").idx,
        "v.block0": lookup_block(program, "lookup_table_v2", "v.block0").idx,
    }
    built = {
        "Fanin": trainers,
        "distributed_mode": 0 if sync else 1,
        "optimize_blocks": list(updates.values()),
        "grad_to_block_id": [f"{gradient}:{block}" for gradient, block in updates.items()],
        "sparse_grad_to_param": [f"{gradient}:{PARAMS[gradient]}" for gradient in SPARSE],
        "prefetch_var_name_to_block_id": [f"{table}:{block}" for table, block in lookups.items()],
        "lr_decay_block_id": schedule.idx,
    }
    listen = append(program, program.root, "listen_and_serv", {}, {}, **{**built, **attrs})
    return program, listen, initial_scope()


def initial_scope() -> Scope:
    scope = Scope()
    scope.set("w", np.zeros(3))
    scope.set("v.block0", np.arange(8.0).reshape(4, 2))
    scope.set("emb", SparseTable("emb", 2, "float64", Constant(1.0)))
    scope.set("lr", np.array([2.0]))
    return scope
