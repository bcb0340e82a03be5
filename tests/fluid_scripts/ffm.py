"""Field-aware factorization machine."""
import os

import numpy as np
import paddle.fluid as fluid
import paddle.fluid.layers as layers

NUM_FIELD = 6
NUM_FEAT = 120
FACTOR = 4
BATCH = 24


def ffm():
    feat_idx = fluid.data(name="feat_idx", shape=[None, NUM_FIELD], dtype="int64")
    feat_value = fluid.data(name="feat_value", shape=[None, NUM_FIELD], dtype="float32")
    label = fluid.data(name="label", shape=[None, 1], dtype="float32")
    value = layers.reshape(feat_value, [-1, NUM_FIELD, 1])

    linear = fluid.embedding(
        input=feat_idx, size=[NUM_FEAT, 1],
        param_attr=fluid.ParamAttr(name="linear", initializer=fluid.initializer.Normal(scale=0.05)))
    first_order = layers.reduce_sum(layers.elementwise_mul(linear, value), dim=1)

    pairs = fluid.embedding(
        input=feat_idx, size=[NUM_FEAT, NUM_FIELD * FACTOR],
        param_attr=fluid.ParamAttr(
            name="field_factors", initializer=fluid.initializer.Uniform(-0.2, 0.2),
            regularizer=fluid.regularizer.L2DecayRegularizer(1e-3)))
    pairs = layers.reshape(pairs, [-1, NUM_FIELD, NUM_FIELD, FACTOR])
    pairs = pairs * layers.unsqueeze(value, axes=[3])
    second_order = []
    for i in range(NUM_FIELD):
        for j in range(i + 1, NUM_FIELD):
            v_ij = layers.squeeze(layers.slice(pairs, axes=[1, 2], starts=[i, j], ends=[i + 1, j + 1]), axes=[1, 2])
            v_ji = layers.squeeze(layers.slice(pairs, axes=[1, 2], starts=[j, i], ends=[j + 1, i + 1]), axes=[1, 2])
            second_order.append(layers.reduce_sum(v_ij * v_ji, dim=-1, keep_dim=True))
    logit = first_order + layers.sums(second_order)
    predict = layers.sigmoid(logit)
    avg_cost = layers.mean(layers.log_loss(predict, label, epsilon=1e-7))
    return avg_cost, predict


def reader(shard, steps=20):
    rng = np.random.RandomState(7 * (shard + 1))
    for _ in range(steps):
        idx = rng.randint(0, NUM_FEAT // NUM_FIELD, (BATCH, NUM_FIELD)) + np.arange(NUM_FIELD) * (NUM_FEAT // NUM_FIELD)
        val = np.where(rng.rand(BATCH, NUM_FIELD) < 0.5, 1.0, rng.rand(BATCH, NUM_FIELD)).astype("float32")
        lab = ((idx[:, 0] * idx[:, 1]) % 5 < 2).astype("float32")[:, None]
        yield dict(feat_idx=idx.astype("int64"), feat_value=val, label=lab)


def main():
    fluid.default_startup_program().random_seed = 11
    fluid.default_main_program().random_seed = 11
    avg_cost, predict = ffm()
    fluid.optimizer.Adagrad(learning_rate=0.05, epsilon=1e-6).minimize(avg_cost)
    exe = fluid.Executor(fluid.CPUPlace())
    main_program, trainer_id = fluid.default_main_program(), 0

    if "TRAINING_ROLE" in os.environ:
        trainer_id = int(os.getenv("PADDLE_TRAINER_ID", "0"))
        transpiler = fluid.DistributeTranspiler()
        transpiler.transpile(
            trainer_id=trainer_id, pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"],
            trainers=int(os.environ["PADDLE_TRAINERS_NUM"]))
        if os.environ["TRAINING_ROLE"] == "PSERVER":
            me = os.environ["POD_IP"] + ":" + os.environ["PADDLE_PORT"]
            pserver = transpiler.get_pserver_program(me)
            exe.run(transpiler.get_startup_program(me, pserver))
            exe.run(pserver)
            return
        main_program = transpiler.get_trainer_program()

    exe.run(fluid.default_startup_program())
    metric = fluid.metrics.Auc(name="auc")
    for step, feed in enumerate(reader(trainer_id)):
        loss, p = exe.run(main_program, feed=feed, fetch_list=[avg_cost, predict])
        metric.update(preds=np.concatenate([1 - p, p], axis=1), labels=feed["label"].astype("int64"))
        print("step %d loss %s auc %s" % (step, loss[0], metric.eval()))
    exe.close()


if __name__ == "__main__":
    main()
