"""Sentence classification by convolutions of three widths; CompiledProgram and a test program (Fluid 1.5 style)."""
from __future__ import print_function

import os

import numpy as np
import paddle
import paddle.fluid as fluid

DICT, CLASSES = 150, 3


def textcnn_net(data, label, dict_dim, emb_dim=10, hid_dim=8, class_dim=CLASSES, win_sizes=(2, 3, 4)):
    emb = fluid.layers.embedding(input=data, size=[dict_dim, emb_dim], is_sparse=True)
    convs = [fluid.nets.sequence_conv_pool(
        input=emb, num_filters=hid_dim, filter_size=w, act="tanh", pool_type="max") for w in win_sizes]
    convs_out = fluid.layers.concat(convs, 1)
    fc_1 = fluid.layers.fc(input=[convs_out], size=12, act="relu")
    prediction = fluid.layers.fc(input=[fc_1], size=class_dim, act="softmax")
    cost = fluid.layers.cross_entropy(input=prediction, label=label)
    avg_cost = fluid.layers.mean(x=cost)
    acc = fluid.layers.accuracy(input=prediction, label=label)
    return avg_cost, acc, prediction


def sentences(seed, count):
    def reader():
        rng = np.random.RandomState(seed)
        for _ in range(count):
            label = rng.randint(0, CLASSES)
            words = np.where(rng.rand(rng.randint(4, 14)) < 0.4, label * 7 + 3, 0) + rng.randint(0, DICT - 30)
            yield words.tolist(), label

    return reader


def train_loop(exe, program, test_program, feeder, fetches, seed, parallel):
    exe.run(fluid.default_startup_program())
    if parallel:
        build_strategy = fluid.BuildStrategy()
        build_strategy.memory_optimize = True
        exec_strategy = fluid.ExecutionStrategy()
        exec_strategy.num_threads = 1
        program = fluid.CompiledProgram(program).with_data_parallel(
            loss_name=fetches[0].name, build_strategy=build_strategy, exec_strategy=exec_strategy)
    train_reader = paddle.batch(sentences(seed, 20 * 16), batch_size=16)
    for step, data in enumerate(train_reader()):
        cost, acc = exe.run(program, feed=feeder.feed(data), fetch_list=[v.name for v in fetches])
        print("step %d loss %.7g acc %.6f" % (step, cost.mean(), acc.mean()))
    if test_program is not None:
        costs = []
        for data in paddle.batch(sentences(999, 40), batch_size=16)():
            costs.append(exe.run(test_program, feed=feeder.feed(data), fetch_list=fetches)[0][0])
        print("test loss %.7g" % np.mean(costs))


if __name__ == "__main__":
    fluid.default_startup_program().random_seed = 21
    data = fluid.layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    avg_cost, acc, prediction = textcnn_net(data, label, DICT)
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.SGD(learning_rate=0.1).minimize(avg_cost)
    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    feeder = fluid.DataFeeder(feed_list=[data, label], place=place)
    role = os.getenv("TRAINING_ROLE")
    if not role:
        train_loop(exe, fluid.default_main_program(), test_program, feeder, [avg_cost, acc], 0, True)
        fluid.io.save_inference_model("textcnn", ["words"], prediction, exe, params_filename="weights")
    else:
        trainer_id = int(os.getenv("PADDLE_TRAINER_ID", "0"))
        t = fluid.DistributeTranspiler()
        t.transpile(trainer_id, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                    trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
        if role == "PSERVER":
            endpoint = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
            pserver_prog = t.get_pserver_program(endpoint)
            exe.run(t.get_startup_program(endpoint, pserver_prog))
            exe.run(pserver_prog)
        else:
            train_loop(exe, t.get_trainer_program(), None, feeder, [avg_cost, acc], trainer_id, False)
            exe.close()
