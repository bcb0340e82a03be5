"""Logistic regression on sparse click features, local or with parameter servers."""
from __future__ import print_function

import argparse
import logging
import os

import numpy as np
import paddle.fluid as fluid

logging.basicConfig(format="%(asctime)s - %(levelname)s - %(message)s")
logger = logging.getLogger("fluid")
logger.setLevel(logging.INFO)

SPARSE_DIM = 1001


def parse_args():
    parser = argparse.ArgumentParser(description="LR example")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--learning_rate", type=float, default=0.1)
    parser.add_argument("--model_output_dir", type=str, default="models")
    return parser.parse_args()


def click_log(seed, batch_size, steps):
    rng = np.random.RandomState(seed)
    weight = np.random.RandomState(0).normal(0, 0.7, SPARSE_DIM)

    def reader():
        for _ in range(batch_size * steps):
            ids = rng.randint(0, SPARSE_DIM, rng.randint(2, 9))
            click = int(weight[ids].sum() + rng.normal(0, 0.1) > 0)
            yield ids.astype("int64").reshape(-1, 1), np.array([click], "int64")

    return reader


def network(words, label):
    scores = fluid.embedding(
        input=words, size=[SPARSE_DIM, 1], is_sparse=True,
        param_attr=fluid.ParamAttr(name="lr_weight", initializer=fluid.initializer.Constant(0.0)))
    scores = fluid.layers.reshape(scores, shape=[-1, 1])
    scores = fluid.layers.lod_reset(scores, words)
    score = fluid.layers.sequence_pool(scores, pool_type="sum")
    bias = fluid.layers.create_parameter(
        shape=[1], dtype="float32", name="lr_bias", default_initializer=fluid.initializer.Constant(0.0))
    logit = fluid.layers.elementwise_add(score, bias)
    predict = fluid.layers.sigmoid(logit)
    cost = fluid.layers.sigmoid_cross_entropy_with_logits(x=logit, label=fluid.layers.cast(label, "float32"))
    avg_cost = fluid.layers.mean(cost)
    two = fluid.layers.concat([fluid.layers.scale(predict, scale=-1.0, bias=1.0), predict], axis=1)
    auc, batch_auc, _ = fluid.layers.auc(input=two, label=label, num_thresholds=2 ** 10)
    return avg_cost, auc, predict


def train_loop(args, exe, program, startup, feeds, fetches, trainer_id):
    exe.run(startup)
    loader = fluid.io.DataLoader.from_generator(feed_list=feeds, capacity=8, iterable=True)
    loader.set_sample_generator(
        click_log(100 + trainer_id, args.batch_size, args.steps), batch_size=args.batch_size,
        drop_last=True, places=fluid.CPUPlace())
    for step, data in enumerate(loader()):
        cost, auc = exe.run(program, feed=data, fetch_list=fetches)
        print("step %d loss %.7g auc %.6f" % (step, cost[0], auc[0]))
    logger.info("trained %d batches", args.steps)
    if trainer_id == 0:
        fluid.io.save_persistables(exe, args.model_output_dir, program)


def main():
    args = parse_args()
    words = fluid.data(name="words", shape=[None, 1], dtype="int64", lod_level=1)
    label = fluid.data(name="click", shape=[None, 1], dtype="int64")
    avg_cost, auc, _ = network(words, label)
    fluid.optimizer.SGD(learning_rate=args.learning_rate).minimize(avg_cost)

    exe = fluid.Executor(fluid.CPUPlace())
    role = os.getenv("TRAINING_ROLE", "LOCAL")
    if role == "LOCAL":
        train_loop(args, exe, fluid.default_main_program(), fluid.default_startup_program(),
                   [words, label], [avg_cost, auc], 0)
        return
    trainer_id = int(os.getenv("PADDLE_TRAINER_ID", "0"))
    t = fluid.DistributeTranspiler()
    t.transpile(trainer_id, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
    if role == "PSERVER":
        endpoint = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
        prog, startup = t.get_pserver_programs(endpoint)
        exe.run(startup)
        exe.run(prog)
    else:
        train_loop(args, exe, t.get_trainer_program(), fluid.default_startup_program(),
                   [words, label], [avg_cost, auc], trainer_id)
        exe.close()


if __name__ == "__main__":
    main()
