"""Wide & Deep on a census-like table, with fleet when roles are given."""
from __future__ import print_function

import argparse
import os

import numpy as np
import paddle.fluid as fluid
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.transpiler.distribute_transpiler import DistributeTranspilerConfig

WIDE, DEEP = 8, 20


def wide_part(data):
    out = fluid.layers.fc(
        input=data, size=1,
        param_attr=fluid.ParamAttr(
            initializer=fluid.initializer.TruncatedNormal(loc=0.0, scale=1.0 / (WIDE ** 0.5)),
            regularizer=fluid.regularizer.L2DecayRegularizer(regularization_coeff=1e-4)),
        act=None, name="wide")
    return out


def fc(data, hidden_units, active, tag):
    output = fluid.layers.fc(
        input=data, size=hidden_units,
        param_attr=fluid.ParamAttr(
            initializer=fluid.initializer.Normal(loc=0.0, scale=1.0 / (data.shape[1] ** 0.5))),
        act=active, name=tag)
    return output


def deep_part(data, hidden1_units, hidden2_units, hidden3_units):
    l1 = fc(data, hidden1_units, "relu", "l1")
    l2 = fc(l1, hidden2_units, "relu", "l2")
    l3 = fc(l2, hidden3_units, "relu", "l3")
    return l3


def build(args):
    wide_input = fluid.data(name="wide_input", shape=[None, WIDE], dtype="float32")
    deep_input = fluid.data(name="deep_input", shape=[None, DEEP], dtype="float32")
    label_y = fluid.data(name="label", shape=[None, 1], dtype="float32")
    wide_output = wide_part(wide_input)
    deep_output = deep_part(deep_input, args.hidden1_units, args.hidden2_units, args.hidden3_units)
    wide_model = fluid.layers.fc(input=wide_output, size=1, name="w_wide")
    deep_model = fluid.layers.fc(input=deep_output, size=1, name="w_deep")
    prediction = fluid.layers.elementwise_add(wide_model, deep_model)
    pred = fluid.layers.sigmoid(fluid.layers.clip(prediction, min=-15.0, max=15.0), name="prediction")
    num_seqs = fluid.layers.create_tensor(dtype="int64")
    acc = fluid.layers.accuracy(
        input=fluid.layers.concat([1 - pred, pred], 1), label=fluid.layers.cast(label_y, "int64"), total=num_seqs)
    cost = fluid.layers.sigmoid_cross_entropy_with_logits(x=prediction, label=label_y)
    avg_cost = fluid.layers.mean(cost)
    return avg_cost, acc, num_seqs


def data(args, seed):
    rng = np.random.RandomState(seed)
    for _ in range(args.steps):
        wide = (rng.rand(args.batch_size, WIDE) < 0.3).astype("float32")
        deep = rng.normal(size=(args.batch_size, DEEP)).astype("float32")
        score = wide[:, 0] + deep[:, 0] * deep[:, 1] + 0.5 * deep[:, 2]
        yield {"wide_input": wide, "deep_input": deep, "label": (score > 0.3).astype("float32").reshape(-1, 1)}


def main():
    parser = argparse.ArgumentParser(description="wide and deep")
    parser.add_argument("--batch_size", type=int, default=40)
    parser.add_argument("--hidden1_units", type=int, default=24)
    parser.add_argument("--hidden2_units", type=int, default=16)
    parser.add_argument("--hidden3_units", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()

    distributed = os.getenv("TRAINING_ROLE") is not None
    if distributed:
        fleet.init(role_maker.PaddleCloudRoleMaker())
    fluid.default_startup_program().random_seed = 3
    avg_cost, acc, num_seqs = build(args)
    optimizer = fluid.optimizer.AdagradOptimizer(learning_rate=0.02, regularization=fluid.regularizer.L1Decay(1e-5))
    if distributed:
        strategy = DistributeTranspilerConfig()
        strategy.sync_mode = True
        optimizer = fleet.distributed_optimizer(optimizer, strategy)
    optimizer.minimize(avg_cost)

    if distributed and fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    exe = fluid.Executor(fluid.CPUPlace())
    seed = 50
    if distributed:
        fleet.init_worker()
        exe.run(fleet.startup_program)
        program, seed = fleet.main_program, 50 + fleet.worker_index()
    else:
        exe.run(fluid.default_startup_program())
        program = fluid.default_main_program()
    for step, feed in enumerate(data(args, seed)):
        loss, accuracy, n = exe.run(program, feed=feed, fetch_list=[avg_cost, acc, num_seqs])
        print("step {} loss {:.7g} acc {:.6f} n {}".format(step, loss[0], accuracy[0], n[0]))
    if distributed:
        fleet.stop_worker()


if __name__ == "__main__":
    main()
