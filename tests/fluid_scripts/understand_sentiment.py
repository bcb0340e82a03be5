"""The book's sentiment chapter: two convolutions over words (Fluid 1.5 style)."""
from __future__ import print_function

import os

import numpy as np
import paddle
import paddle.fluid as fluid

CLASS_DIM, EMB_DIM, HID_DIM, BATCH_SIZE, DICT = 2, 10, 8, 12, 130


def convolution_net(data, input_dim, class_dim, emb_dim, hid_dim):
    emb = fluid.embedding(input=data, size=[input_dim, emb_dim], is_sparse=False)
    conv_3 = fluid.nets.sequence_conv_pool(
        input=emb, num_filters=hid_dim, filter_size=3, act="tanh", pool_type="sqrt")
    conv_4 = fluid.nets.sequence_conv_pool(
        input=emb, num_filters=hid_dim, filter_size=4, act="tanh", pool_type="sqrt")
    return fluid.layers.fc(input=[conv_3, conv_4], size=class_dim, act="softmax")


def imdb(seed, count):
    def reader():
        rng = np.random.RandomState(seed)
        for _ in range(count):
            label = rng.randint(0, 2)
            yield (rng.zipf(1.4, rng.randint(4, 15)) % 65 * 2 + (label if rng.rand() < 0.9 else 1 - label)).tolist(), label

    return reader


def train(params_dirname="understand_sentiment_conv.inference.model"):
    fluid.default_startup_program().random_seed = 90
    data = fluid.data(name="words", shape=[None], dtype="int64", lod_level=1)
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    prediction = convolution_net(data, DICT, CLASS_DIM, EMB_DIM, HID_DIM)
    cost = fluid.layers.cross_entropy(input=prediction, label=label)
    avg_cost, accuracy = fluid.layers.mean(cost), fluid.layers.accuracy(input=prediction, label=label)
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adamax(learning_rate=0.02, regularization=fluid.regularizer.L2Decay(1e-3)).minimize(avg_cost)
    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    feeder = fluid.DataFeeder(feed_list=["words", "label"], place=place)
    role, tid = os.getenv("TRAINING_ROLE"), int(os.getenv("PADDLE_TRAINER_ID", "0"))

    def loop(main_program):
        exe.run(fluid.default_startup_program())
        reader = paddle.batch(imdb(tid, 20 * BATCH_SIZE), batch_size=BATCH_SIZE)
        for step_id, rows in enumerate(reader()):
            metrics = exe.run(main_program, feed=feeder.feed(rows), fetch_list=[avg_cost.name, accuracy.name])
            print("step {0} loss {1:.7g} acc {2:.6f}".format(step_id, *(np.asscalar(m) if hasattr(np, "asscalar") else m.item() for m in metrics)))

    if role is None:
        loop(fluid.default_main_program())
        rows = next(paddle.batch(imdb(500, 30), 30)())
        out = exe.run(test_program, feed=feeder.feed(rows), fetch_list=[avg_cost, accuracy])
        print("test loss %.7g acc %.6f" % (out[0][0], out[1][0]))
        fluid.io.save_inference_model(params_dirname, ["words"], prediction, exe)
        with fluid.scope_guard(fluid.core.Scope()):
            program, feeds, fetches = fluid.io.load_inference_model(params_dirname, exe)
            words = [[3, 5, 8, 11], [2], [100, 50, 2]]
            tensor = fluid.create_lod_tensor(
                np.concatenate(words).astype("int64"), [[len(w) for w in words]], place)
            results = exe.run(program, feed={feeds[0]: tensor}, fetch_list=fetches, return_numpy=False)
            for row in np.array(results[0]):
                print("test negative %.6f positive %.6f" % tuple(row))
        return
    t = fluid.DistributeTranspiler()
    t.transpile(tid, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"), trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
    if role == "PSERVER":
        me = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
        pserver_prog = t.get_pserver_program(me)
        exe.run(t.get_startup_program(me, pserver_prog))
        exe.run(pserver_prog)
    else:
        loop(t.get_trainer_program())
        exe.close()


if __name__ == "__main__":
    train()
