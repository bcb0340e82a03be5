"""Linear regression of house prices, as in the first chapter of the book (Fluid 1.5 style)."""
from __future__ import print_function

import argparse
import math
import os
import sys

import numpy
import paddle
import paddle.fluid as fluid


def parse_args():
    parser = argparse.ArgumentParser("fit_a_line")
    parser.add_argument("--use_gpu", type=bool, default=False, help="Whether to use GPU or not.")
    parser.add_argument("--num_epochs", type=int, default=2, help="number of epochs.")
    return parser.parse_args()


def housing(seed, count):
    def reader():
        rng = numpy.random.RandomState(seed)
        weights = numpy.random.RandomState(3).uniform(-2, 2, 13)
        for _ in range(count):
            x = rng.uniform(-1, 1, 13)
            yield x.astype("float32"), numpy.array([x.dot(weights) + 22.5 + rng.normal(0, 0.1)], "float32")

    return reader


def save_result(points1, points2):
    return numpy.abs(numpy.array(points1) - numpy.array(points2)).mean()


def train_test(executor, program, reader, feeder, fetch_list):
    accumulated = 1 * [0]
    count = 0
    for data_test in reader():
        outs = executor.run(program=program, feed=feeder.feed(data_test), fetch_list=fetch_list)
        accumulated = [x_c[0] + x_c[1][0] for x_c in zip(accumulated, outs)]
        count += 1
    return [x_d / count for x_d in accumulated]


def main(use_cuda, params_dirname="fit_a_line.inference.model"):
    batch_size = 20
    trainer_id = int(os.getenv("PADDLE_TRAINER_ID", "0"))
    train_reader = paddle.batch(housing(10 + trainer_id, 200), batch_size=batch_size)
    test_reader = paddle.batch(housing(1, 60), batch_size=batch_size)
    fluid.default_startup_program().random_seed = 90
    fluid.default_main_program().random_seed = 90

    x = fluid.layers.data(name="x", shape=[13], dtype="float32")
    y = fluid.layers.data(name="y", shape=[1], dtype="float32")
    y_predict = fluid.layers.fc(input=x, size=1, act=None)
    main_program = fluid.default_main_program()
    startup_program = fluid.default_startup_program()
    cost = fluid.layers.square_error_cost(input=y_predict, label=y)
    avg_loss = fluid.layers.mean(cost)
    test_program = main_program.clone(for_test=True)
    sgd_optimizer = fluid.optimizer.SGD(learning_rate=0.05)
    sgd_optimizer.minimize(avg_loss)
    place = fluid.CUDAPlace(0) if use_cuda else fluid.CPUPlace()
    exe = fluid.Executor(place)

    def train_loop(main_program, local):
        feeder = fluid.DataFeeder(place=place, feed_list=[x, y])
        exe.run(startup_program)
        step = 0
        for pass_id in range(num_epochs):
            for data_train in train_reader():
                avg_loss_value, = exe.run(main_program, feed=feeder.feed(data_train), fetch_list=[avg_loss])
                print("step %d loss %f" % (step, avg_loss_value[0]))
                step += 1
                if math.isnan(float(avg_loss_value)):
                    sys.exit("got NaN loss, training failed.")
            if local:
                test_metics = train_test(
                    executor=exe, program=test_program, reader=test_reader, fetch_list=[avg_loss], feeder=feeder)
                print("test loss %f" % test_metics[0])
        if local and params_dirname is not None:
            fluid.io.save_inference_model(params_dirname, ["x"], [y_predict], exe)
            infer_exe, inference_scope = fluid.Executor(place), fluid.core.Scope()
            with fluid.scope_guard(inference_scope):
                [inference_program, feed_target_names, fetch_targets] = fluid.io.load_inference_model(
                    params_dirname, infer_exe)
                infer_data = next(paddle.batch(housing(2, 10), batch_size=10)())
                infer_feat = numpy.array([data[0] for data in infer_data]).astype("float32")
                infer_label = numpy.array([data[1] for data in infer_data]).astype("float32")
                results = infer_exe.run(
                    inference_program, feed={feed_target_names[0]: numpy.array(infer_feat)}, fetch_list=fetch_targets)
                print("infer shape: ", results[0].shape)
                print("test error %f" % save_result(results[0], infer_label))

    if os.getenv("PADDLE_TRAINING_ROLE") is None:
        train_loop(main_program, True)
    else:
        port = os.getenv("PADDLE_PSERVER_PORT", "6174")
        pserver_ips = os.getenv("PADDLE_PSERVER_IPS")
        eplist = []
        for ip in pserver_ips.split(","):
            eplist.append(":".join([ip, port]))
        pserver_endpoints = ",".join(eplist)
        trainers = int(os.getenv("PADDLE_TRAINERS"))
        current_endpoint = os.getenv("POD_IP", "") + ":" + port
        t = fluid.DistributeTranspiler()
        t.transpile(trainer_id, pservers=pserver_endpoints, trainers=trainers)
        if os.getenv("PADDLE_TRAINING_ROLE") == "PSERVER":
            pserver_prog = t.get_pserver_program(current_endpoint)
            pserver_startup = t.get_startup_program(current_endpoint, pserver_prog)
            exe.run(pserver_startup)
            exe.run(pserver_prog)
        else:
            train_loop(t.get_trainer_program(), False)
            exe.close()


if __name__ == "__main__":
    args = parse_args()
    num_epochs = args.num_epochs
    main(args.use_gpu)
