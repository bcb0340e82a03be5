"""Stacked bidirectional LSTMs for sentiment (Fluid 1.5 style, ParallelExecutor)."""
from __future__ import print_function

import os

import numpy as np
import paddle
import paddle.fluid as fluid

DICT, CLASSES = 100, 2


def stacked_lstm_net(data, label, input_dim, class_dim=CLASSES, emb_dim=8, hid_dim=16, stacked_num=3):
    assert stacked_num % 2 == 1
    emb = fluid.layers.embedding(input=data, size=[input_dim, emb_dim], is_sparse=True)
    fc1 = fluid.layers.fc(input=emb, size=hid_dim)
    lstm1, cell1 = fluid.layers.dynamic_lstm(input=fc1, size=hid_dim)
    inputs = [fc1, lstm1]
    for i in range(2, stacked_num + 1):
        fc = fluid.layers.fc(input=inputs, size=hid_dim)
        lstm, cell = fluid.layers.dynamic_lstm(
            input=fc, size=hid_dim, is_reverse=(i % 2) == 0, use_peepholes=(i == 2))
        inputs = [fc, lstm]
    fc_last = fluid.layers.sequence_pool(input=inputs[0], pool_type="max")
    lstm_last = fluid.layers.sequence_pool(input=inputs[1], pool_type="max")
    prediction = fluid.layers.fc(input=[fc_last, lstm_last], size=class_dim, act="softmax")
    cost = fluid.layers.cross_entropy(input=prediction, label=label)
    accuracy = fluid.layers.accuracy(input=prediction, label=label)
    return fluid.layers.mean(cost), accuracy, prediction


def reviews(seed):
    def reader():
        rng = np.random.RandomState(seed)
        for _ in range(20 * 8):
            label = rng.randint(0, 2)
            yield (rng.randint(0, 60, rng.randint(3, 12)) + 40 * label).tolist(), label

    return reader


def main(seed=5):
    fluid.default_startup_program().random_seed = 1
    data = fluid.layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    cost, acc, prediction = stacked_lstm_net(data, label, DICT)
    fluid.optimizer.Adagrad(learning_rate=0.05).minimize(cost)
    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    feeder = fluid.DataFeeder(place=place, feed_list=[data, label])
    role = os.getenv("PADDLE_TRAINING_ROLE")

    if not role:
        exe.run(fluid.default_startup_program())
        train_exe = fluid.ParallelExecutor(use_cuda=False, loss_name=cost.name)
        for i, batch in enumerate(paddle.batch(reviews(seed), 8)()):
            loss, accuracy = train_exe.run(feed=feeder.feed(batch), fetch_list=[cost.name, acc.name])
            print("step %d loss %.7g acc %.6f" % (i, np.array(loss).mean(), np.array(accuracy).mean()))
        fluid.io.save_inference_model("sentiment", ["words"], [prediction], exe)
        return
    # the way of Fluid's book: addresses and one port
    port = os.getenv("PADDLE_PSERVER_PORT", "6174")
    eplist = [":".join([ip, port]) for ip in os.getenv("PADDLE_PSERVER_IPS", "").split(",")]
    trainers = int(os.getenv("PADDLE_TRAINERS"))
    current_endpoint = os.getenv("POD_IP", "") + ":" + port
    trainer_id = int(os.getenv("PADDLE_TRAINER_ID", "0"))
    t = fluid.DistributeTranspiler()
    t.transpile(trainer_id, pservers=",".join(eplist), trainers=trainers)
    if role == "PSERVER":
        pserver_prog = t.get_pserver_program(current_endpoint)
        exe.run(t.get_startup_program(current_endpoint, pserver_prog))
        exe.run(pserver_prog)
    elif role == "TRAINER":
        program = t.get_trainer_program()
        exe.run(fluid.default_startup_program())
        for i, batch in enumerate(paddle.batch(reviews(seed + trainer_id), 8)()):
            loss, accuracy = exe.run(program, feed=feeder.feed(batch), fetch_list=[cost, acc])
            print("step %d loss %.7g acc %.6f" % (i, loss[0], accuracy[0]))
        exe.close()


if __name__ == "__main__":
    main()
