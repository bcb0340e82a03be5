"""FNN: factors of a machine that was trained before, then a multilayer perceptron on them."""
from __future__ import print_function

import os

import numpy as np
import paddle.fluid as fluid

FIELDS, FEATS, K = 5, 100, 4
fm_factors = np.random.RandomState(41).normal(0, 0.1, (FEATS, K + 1)).astype("float32")


def fnn():
    idx = fluid.data(name="idx", shape=[None, FIELDS], dtype="int64")
    label = fluid.data(name="label", shape=[None, 1], dtype="int64")
    flat = fluid.layers.reshape(idx, shape=[-1, 1])
    emb = fluid.embedding(
        input=flat, size=[FEATS, K + 1], is_sparse=True,
        param_attr=fluid.ParamAttr(name="fm_factors", initializer=fluid.initializer.NumpyArrayInitializer(fm_factors)))
    x = fluid.layers.reshape(emb, shape=[-1, FIELDS * (K + 1)])
    for i, size in enumerate([20, 10]):
        x = fluid.layers.fc(
            x, size, act="tanh", name="hidden_%d" % i,
            param_attr=fluid.ParamAttr(regularizer=fluid.regularizer.L1Decay(1e-4), learning_rate=0.5))
    prob = fluid.layers.fc(x, 2, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(prob, label))
    auc, _, _ = fluid.layers.auc(prob, label, num_thresholds=200, slide_steps=5)
    return loss, auc


def samples(seed, batches=20, size=25):
    rng = np.random.RandomState(seed)
    for _ in range(batches):
        ids = rng.randint(0, 20, (size, FIELDS)) + 20 * np.arange(FIELDS)
        yield ids.astype("int64"), ((ids[:, :1] + ids[:, 1:2]) % 3 == 0).astype("int64")


def run(exe, program, seed, fetch):
    exe.run(fluid.default_startup_program())
    for n, (ids, label) in enumerate(samples(seed)):
        loss, auc = exe.run(program, feed={"idx": ids, "label": label}, fetch_list=fetch)
        print("step", n, "loss", np.mean(loss), "auc", "%.6f" % np.mean(auc))


def main():
    fluid.default_startup_program().random_seed = 2
    loss, auc = fnn()
    fluid.optimizer.SGD(fluid.layers.inverse_time_decay(0.3, decay_steps=4, decay_rate=0.3)).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    role = os.environ.get("TRAINING_ROLE")
    if not role:
        run(exe, fluid.default_main_program(), 1, [loss, auc])
        return
    trainer_id = int(os.environ.get("PADDLE_TRAINER_ID", 0))
    t = fluid.transpiler.DistributeTranspiler()
    t.transpile(trainer_id, pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"],
                trainers=int(os.environ["PADDLE_TRAINERS_NUM"]))
    if role == "PSERVER":
        endpoint = os.environ["POD_IP"] + ":" + os.environ["PADDLE_PORT"]
        program = t.get_pserver_program(endpoint)
        exe.run(t.get_startup_program(endpoint, program))
        exe.run(program)
    else:
        run(exe, t.get_trainer_program(), 1 + trainer_id, [loss, auc])
        exe.close()


if __name__ == "__main__":
    main()
