"""A script for Fluid 1.8's fleet as users write it: ``fleet_script.py MODE STEPS FOLDER``; roles by Fluid's environment.

MODE is local, half0 or half1 (local on a trainer's half), sync, async, half_async, geo or config (a DistributeTranspilerConfig as strategy). Every trainer takes its
half of each batch of 8; a local run takes all of it. Trainers print their losses as one line of JSON.
"""

import json
import os
import sys

import numpy as np
import paddle.fluid as fluid
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy import StrategyFactory

MODE, STEPS, FOLDER = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def network():
    ids = fluid.data(name="ids", shape=[None, 1], dtype="int64", lod_level=1)
    dense = fluid.data(name="dense", shape=[None, 4], dtype="float32")
    label = fluid.data(name="label", shape=[None, 1], dtype="float32")
    emb = fluid.embedding(
        input=ids,
        size=[50, 8],
        is_sparse=True,
        param_attr=fluid.ParamAttr(name="emb", initializer=fluid.initializer.Constant(0.1)),
    )
    pooled = fluid.layers.sequence_pool(input=emb, pool_type="sum")
    pooled = fluid.layers.reshape(pooled, [-1, 8])
    joined = fluid.layers.concat([pooled, dense], axis=1)
    hidden = fluid.layers.fc(
        input=joined,
        size=6,
        act="relu",
        param_attr=fluid.ParamAttr(name="fc_w", initializer=fluid.initializer.Constant(0.05)),
    )
    out = fluid.layers.fc(
        input=hidden, size=1, param_attr=fluid.ParamAttr(name="out_w", initializer=fluid.initializer.Constant(0.2))
    )
    return [ids, dense, label], out, fluid.layers.mean(fluid.layers.square_error_cost(input=out, label=label))


def batch(step, begin, end):
    made = np.random.RandomState(step)
    ids, dense, label = (
        made.randint(0, 50, (8, 3)),
        made.rand(8, 4).astype("float32"),
        made.rand(8, 1).astype("float32"),
    )
    lod = fluid.create_lod_tensor(
        ids[begin:end].reshape(-1, 1).astype("int64"), [[3] * (end - begin)], fluid.CPUPlace()
    )
    return {"ids": lod, "dense": dense[begin:end], "label": label[begin:end]}


def train(exe, program, loss, begin, end):
    losses = [float(exe.run(program, feed=batch(s, begin, end), fetch_list=[loss.name])[0][0]) for s in range(STEPS)]
    print("losses " + json.dumps(losses), flush=True)


def strategy():
    if MODE == "config":
        config = fluid.DistributeTranspilerConfig()
        config.sync_mode = True
        return config
    if MODE == "geo":
        return StrategyFactory.create_geo_strategy(2)
    return getattr(StrategyFactory, "create_%s_strategy" % MODE)()


def main():
    feeds, out, loss = network()
    optimizer = fluid.optimizer.SGD(learning_rate=0.1)
    exe = fluid.Executor(fluid.CPUPlace())
    if MODE in ("local", "half0", "half1"):
        optimizer.minimize(loss)
        exe.run(fluid.default_startup_program())
        train(exe, fluid.default_main_program(), loss, *{"local": (0, 8), "half0": (0, 4), "half1": (4, 8)}[MODE])
        print(
            "sums "
            + json.dumps(
                {n: float(np.sum(fluid.global_scope().find_var(n).get_tensor())) for n in ("emb", "fc_w", "out_w")}
            )
        )
        return
    role = role_maker.PaddleCloudRoleMaker()
    fleet.init(role)
    chosen = strategy()
    fleet.distributed_optimizer(optimizer, chosen).minimize(loss)
    if fleet.is_server():
        fleet.init_server(os.environ.get("MODEL_DIR"))
        fleet.run_server()
    elif fleet.is_worker():
        fleet.init_worker()
        exe.run(fleet.startup_program)
        if MODE == "geo":
            fleet.barrier_worker()  # both begin with the servers' first values
        share = 8 // fleet.worker_num()
        begin = share * fleet.worker_index()
        program = fleet.main_program
        if MODE == "sync":
            program = fluid.compiler.CompiledProgram(program).with_data_parallel(
                loss_name=loss.name,
                build_strategy=chosen.get_build_strategy(),
                exec_strategy=chosen.get_execute_strategy(),
            )
        train(exe, program, loss, begin, begin + share)
        fleet.barrier_worker()
        if fleet.is_first_worker():
            fleet.save_persistables(executor=exe, dirname=os.path.join(FOLDER, "persistables"))
            fleet.save_inference_model(exe, os.path.join(FOLDER, "model"), ["ids", "dense"], [out])
        fleet.stop_worker()


if __name__ == "__main__":
    main()
