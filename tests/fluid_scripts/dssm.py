"""Deep structured semantic model: query and documents as bags of words, hinge loss on cosines (Fluid 1.5 style)."""
from __future__ import print_function

import os

import numpy as np
import paddle
import paddle.fluid as fluid

TRIGRAM_D, L1_N, L2_N = 200, 24, 12


def fc(data, d, nid, name, act):
    fc_layer = fluid.layers.fc(
        input=data, size=nid, act=act,
        param_attr=fluid.ParamAttr(name=name + "_w", initializer=fluid.initializer.Xavier()),
        bias_attr=fluid.ParamAttr(name=name + "_b", initializer=fluid.initializer.Constant(0.01)))
    return fc_layer


def tower(words):
    emb = fluid.layers.embedding(words, size=[TRIGRAM_D, L1_N], is_sparse=True, param_attr="trigram")
    bag = fluid.layers.softsign(fluid.layers.sequence_pool(emb, "sum"))
    return fc(fc(bag, L1_N, L1_N, "l1", "relu"), L1_N, L2_N, "l2", "tanh")


def network():
    query = fluid.layers.data(name="query", shape=[1], dtype="int64", lod_level=1)
    pos = fluid.layers.data(name="doc_pos", shape=[1], dtype="int64", lod_level=1)
    neg = fluid.layers.data(name="doc_neg", shape=[1], dtype="int64", lod_level=1)
    q = tower(query)
    cos_pos, cos_neg = fluid.layers.cos_sim(q, tower(pos)), fluid.layers.cos_sim(q, tower(neg))
    margin = fluid.layers.fill_constant_batch_size_like(cos_pos, shape=[-1, 1], value=0.5, dtype="float32")
    zero = fluid.layers.zeros_like(cos_pos)
    loss = fluid.layers.elementwise_max(zero, margin - cos_pos + cos_neg)
    right = fluid.layers.cast(fluid.layers.less_than(cos_neg, cos_pos), "float32")
    return [query, pos, neg], fluid.layers.mean(loss), fluid.layers.mean(right)


def train_reader(seed):
    rng = np.random.RandomState(seed)

    def reader():
        for _ in range(400):
            topic = rng.randint(0, 10)
            words = lambda t, n: (t * 20 + rng.randint(0, 20, n)).tolist()
            yield words(topic, rng.randint(1, 5)), words(topic, rng.randint(3, 9)), words((topic + 3) % 10, 5)

    return reader


def event_loop(exe, program, seed, feeds, loss, acc):
    exe.run(fluid.default_startup_program())
    feeder = fluid.DataFeeder(feed_list=feeds, place=fluid.CPUPlace())
    reader = paddle.batch(paddle.reader.buffered(train_reader(seed), 50), batch_size=20, drop_last=True)
    for batch_id, data in enumerate(reader()):
        cost, right = exe.run(program, feed=feeder.feed(data), fetch_list=[loss, acc])
        print("step %d loss %.7g acc %.6f" % (batch_id, cost[0], right[0]))


if __name__ == "__main__":
    fluid.default_startup_program().random_seed = 30
    feeds, loss, acc = network()
    fluid.optimizer.SGD(learning_rate=0.2).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    role = os.getenv("TRAINING_ROLE", "LOCAL")
    tid = int(os.getenv("PADDLE_TRAINER_ID", "0"))
    if role == "LOCAL":
        event_loop(exe, fluid.default_main_program(), 3, feeds, loss, acc)
    else:
        t = fluid.DistributeTranspiler()
        t.transpile(tid, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                    trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
        if role == "PSERVER":
            ep = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
            pserver_prog = t.get_pserver_program(ep)
            exe.run(t.get_startup_program(ep, pserver_prog))
            exe.run(pserver_prog)
        else:
            event_loop(exe, t.get_trainer_program(), 3 + tid, feeds, loss, acc)
            exe.close()
