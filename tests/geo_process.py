"""A geo job as processes: ``python -m tests.geo_process``; roles by Fluid's environment variables.

Every trainer's step takes 1 off the row that it looks up and off a dense weight. A server prints what it holds in the end.
"""

from __future__ import annotations

import json
import os

import numpy as np

import fluidlite as fluid

STEPS = 23
EVERY = 5
#: ids that step ``s`` of trainer ``t`` looks up: one of their own, one shared, one negative
IDS = [(100 + 7 * s, 5, -1 - s % 3) for s in range(STEPS)]


def build() -> None:
    """The model."""
    ids = fluid.data("ids", [None, 1], "int64")
    zeros = fluid.initializer.Constant(0.0)
    row = fluid.layers.embedding(
        ids, [10, 1], is_distributed=True, param_attr=fluid.ParamAttr("emb", zeros), dtype="float64"
    )
    weight = fluid.layers.create_parameter([1], "float64", attr=fluid.ParamAttr("w", zeros))
    fluid.optimizer.SGD(1.0).minimize(fluid.layers.reduce_sum(row + weight))


def main() -> None:
    """One process of the job."""
    build()
    trainer, trainers = int(os.environ.get("PADDLE_TRAINER_ID", "0")), int(os.environ["PADDLE_TRAINERS_NUM"])
    config = fluid.DistributeTranspilerConfig(sync_mode=False, geo_sgd_mode=True, geo_sgd_need_push_nums=EVERY)
    transpiler = fluid.DistributeTranspiler(config)
    endpoints = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"]
    transpiler.transpile(trainer, pservers=endpoints, trainers=trainers, sync_mode=False)
    if os.environ["TRAINING_ROLE"] == "PSERVER":
        serve(transpiler, f"{os.environ['POD_IP']}:{os.environ['PADDLE_PORT']}")
        return
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    for step, ids in enumerate(IDS):
        exe.run(
            feed={"ids": np.array([[ids[0] + trainer], *([id] for id in ids[1:])]) if step else np.zeros((0, 1), int)}
        )
    exe.close()


def serve(transpiler: fluid.DistributeTranspiler, endpoint: str) -> None:
    """Serve, then print every row of the table and, where it is, the weight."""
    program, startup = transpiler.get_pserver_programs(endpoint)
    exe = fluid.Executor()
    exe.run(startup)
    exe.run(program)
    table = fluid.global_scope().get("emb").export()
    weight = fluid.global_scope().get("w")
    held = {str(id): float(row[0]) for id, row in zip(table.rows, table.value, strict=True)}
    print("held " + json.dumps(held | ({} if weight is None else {"w": float(weight[0])})), flush=True)


if __name__ == "__main__":
    main()
