"""CBOW with hierarchical sigmoid over a complete tree of words (Fluid 1.5 style, py_reader)."""
from __future__ import print_function

import os

import numpy as np
import paddle.fluid as fluid

VOCAB, DIM, WINDOW = 64, 12, 4


def cbow(reader_capacity=10):
    py_reader = fluid.layers.py_reader(
        capacity=reader_capacity, shapes=[(-1, WINDOW, 1), (-1, 1)], dtypes=["int64", "int64"], name="train_reader",
        use_double_buffer=True)
    context, word = fluid.layers.read_file(py_reader)
    emb = fluid.layers.embedding(
        context, size=[VOCAB, DIM],
        param_attr=fluid.ParamAttr(name="emb", initializer=fluid.initializer.Uniform(-0.5 / DIM, 0.5 / DIM)))
    hidden = fluid.layers.reduce_mean(emb, dim=1)
    cost = fluid.layers.hsigmoid(
        input=hidden, label=word, num_classes=VOCAB,
        param_attr=fluid.ParamAttr(name="hs_w", initializer=fluid.initializer.Normal(scale=0.1)), bias_attr="hs_b")
    return py_reader, fluid.layers.mean(cost)


def convert(seed):
    rng = np.random.RandomState(seed)

    def reader():
        for _ in range(20):
            center = rng.randint(0, VOCAB, (32, 1))
            around = (center + rng.randint(-3, 4, (32, WINDOW))) % VOCAB
            yield around.reshape(32, WINDOW, 1).astype("int64"), center.astype("int64")

    return reader


def train_loop(exe, program, py_reader, loss, seed):
    py_reader.decorate_tensor_provider(convert(seed))
    exe.run(fluid.default_startup_program())
    py_reader.start()
    batch_id = 0
    try:
        while True:
            loss_val = exe.run(program, fetch_list=[loss.name])
            print("step %d loss %.7g" % (batch_id, np.mean(loss_val)))
            batch_id += 1
    except fluid.core.EOFException:
        py_reader.reset()


if __name__ == "__main__":
    fluid.default_startup_program().random_seed = 13
    py_reader, loss = cbow()
    fluid.optimizer.SGD(learning_rate=0.5).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    role, rank = os.getenv("TRAINING_ROLE"), int(os.getenv("PADDLE_TRAINER_ID", "0"))
    if role is None:
        train_loop(exe, fluid.default_main_program(), py_reader, loss, 1)
    else:
        t = fluid.DistributeTranspiler()
        t.transpile(rank, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                    trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
        if role == "PSERVER":
            endpoint = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
            prog = t.get_pserver_program(endpoint)
            exe.run(t.get_startup_program(endpoint, prog))
            exe.run(prog)
        else:
            train_loop(exe, t.get_trainer_program(), py_reader, loss, 1 + rank)
            exe.close()
