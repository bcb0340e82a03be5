"""Product-based network with inner products."""
import os

import numpy as np
import paddle.fluid as fluid

FIELDS, FEATS, D = 5, 100, 6


def inner_product(emb):
    rows, cols = [], []
    for i in range(FIELDS - 1):
        for j in range(i + 1, FIELDS):
            rows.append(i)
            cols.append(j)
    fields = fluid.layers.split(emb, num_or_sections=FIELDS, dim=1)
    products = [fluid.layers.reduce_sum(fields[i] * fields[j], dim=2) for i, j in zip(rows, cols)]
    return fluid.layers.concat(products, axis=1)


def pnn(idx, label):
    emb = fluid.embedding(idx, [FEATS, D], param_attr=fluid.ParamAttr(initializer=fluid.initializer.Uniform(-0.3, 0.3)))
    linear = fluid.layers.reshape(emb, [-1, FIELDS * D])
    l_z = fluid.layers.fc(linear, 16, bias_attr=False)
    l_p = fluid.layers.fc(inner_product(emb), 16, bias_attr=False)
    bias = fluid.layers.create_parameter([16], "float32", is_bias=True)
    l1 = fluid.layers.relu(fluid.layers.elementwise_add(l_z + l_p, bias, axis=1))
    l2 = fluid.layers.fc(l1, 8, act="leaky_relu" if False else "relu")
    logit = fluid.layers.fc(l2, 1)
    cost = fluid.layers.sigmoid_cross_entropy_with_logits(logit, fluid.layers.cast(label, "float32"))
    prob = fluid.layers.sigmoid(logit)
    auc = fluid.layers.auc(fluid.layers.concat([1.0 - prob, prob], 1), label, curve="ROC")[0]
    return fluid.layers.reduce_mean(cost), auc


def reader(shard):
    rng = np.random.RandomState(300 + shard)
    while True:
        idx = (rng.randint(0, 20, (30, FIELDS)) + 20 * np.arange(FIELDS)).astype("int64")
        yield {"idx": idx, "label": (idx[:, :1] % 3 == idx[:, 1:2] % 3).astype("int64")}


def loop(exe, program, fetch, shard, steps=20):
    exe.run(fluid.default_startup_program())
    data = reader(shard)
    for step in range(steps):
        loss, auc = exe.run(program, next(data), fetch)
        print("step %d loss %.7g auc %.6f" % (step, loss[0], auc[0]))


if __name__ == "__main__":
    fluid.default_startup_program().random_seed = 60
    idx, label = fluid.data("idx", [None, FIELDS], "int64"), fluid.data("label", [None, 1], "int64")
    loss, auc = pnn(idx, label)
    fluid.optimizer.Ftrl(learning_rate=0.05, l1=1e-4, l2=1e-4).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    role, shard = os.environ.get("TRAINING_ROLE"), int(os.environ.get("PADDLE_TRAINER_ID", "0"))
    if role is None:
        loop(exe, fluid.default_main_program(), [loss, auc], shard)
    else:
        t = fluid.DistributeTranspiler()
        t.transpile(shard, pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"],
                    trainers=int(os.environ["PADDLE_TRAINERS_NUM"]))
        if role == "TRAINER":
            loop(exe, t.get_trainer_program(), [loss, auc], shard)
            exe.close()
        else:
            endpoint = os.environ["POD_IP"] + ":" + os.environ["PADDLE_PORT"]
            pserver = t.get_pserver_program(endpoint)
            exe.run(t.get_startup_program(endpoint, pserver))
            exe.run(pserver)
