"""Digits by convolutions, as in the book (Fluid 1.5 style)."""
from __future__ import print_function

import os

import numpy as np
import paddle
import paddle.fluid as fluid

SIDE = 14


def loss_net(hidden, label):
    prediction = fluid.layers.fc(input=hidden, size=10, act="softmax")
    loss = fluid.layers.cross_entropy(input=prediction, label=label)
    avg_loss = fluid.layers.mean(loss)
    acc = fluid.layers.accuracy(input=prediction, label=label)
    return prediction, avg_loss, acc


def conv_net(img, label):
    conv_pool_1 = fluid.nets.simple_img_conv_pool(
        input=img, filter_size=3, num_filters=4, pool_size=2, pool_stride=2, act="relu")
    conv_pool_1 = fluid.layers.batch_norm(conv_pool_1)
    conv_pool_2 = fluid.nets.simple_img_conv_pool(
        input=conv_pool_1, filter_size=3, num_filters=6, pool_size=2, pool_stride=2, act="relu", pool_type="avg")
    return loss_net(conv_pool_2, label)


def digits(seed, count):
    shapes = np.random.RandomState(0).uniform(-1, 1, (10, SIDE * SIDE))

    def reader():
        rng = np.random.RandomState(seed)
        for _ in range(count):
            label = rng.randint(0, 10)
            yield (shapes[label] + rng.normal(0, 0.5, SIDE * SIDE)).astype("float32"), int(label)

    return reader


def train_test(exe, test_program, feeder, fetches):
    acc_set, loss_set = [], []
    for data in paddle.batch(digits(77, 64), batch_size=32)():
        acc_np, loss_np = exe.run(program=test_program, feed=feeder.feed(data), fetch_list=fetches)
        acc_set.append(float(acc_np))
        loss_set.append(float(loss_np))
    return np.array(loss_set).mean(), np.array(acc_set).mean()


def train(nn_type="convolutional_neural_network"):
    startup_program, main_program = fluid.default_startup_program(), fluid.default_main_program()
    startup_program.random_seed = main_program.random_seed = 90
    img = fluid.layers.data(name="img", shape=[1, SIDE, SIDE], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    prediction, avg_loss, acc = conv_net(img, label)
    test_program = main_program.clone(for_test=True)
    fluid.optimizer.Adam(learning_rate=0.005).minimize(avg_loss)
    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    feeder = fluid.DataFeeder(feed_list=[img, label], place=place)
    role, tid = os.getenv("TRAINING_ROLE"), int(os.getenv("PADDLE_TRAINER_ID", "0"))

    def loop(program):
        exe.run(startup_program)
        reader = paddle.batch(digits(tid, 20 * 16), batch_size=16, drop_last=True)
        for step, data in enumerate(reader()):
            metrics = exe.run(program, feed=feeder.feed(data), fetch_list=[avg_loss, acc])
            print("step %d loss %f acc %f" % (step, metrics[0], metrics[1]))

    if role is None:
        loop(main_program)
        print("test loss %f acc %f" % train_test(exe, test_program, feeder, [acc, avg_loss]))
        fluid.io.save_inference_model(
            "digits", ["img"], [prediction], exe, model_filename="model", params_filename="params")
        return
    t = fluid.DistributeTranspiler()
    t.transpile(tid, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"), trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
    if role == "PSERVER":
        current_endpoint = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
        pserver_prog = t.get_pserver_program(current_endpoint)
        exe.run(t.get_startup_program(current_endpoint, pserver_prog))
        exe.run(pserver_prog)
    else:
        loop(t.get_trainer_program())
        exe.close()


if __name__ == "__main__":
    train()
