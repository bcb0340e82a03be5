"""A script for Paddle 2.x's static graphs and its fleet: ``static_script.py MODE FOLDER``, MODE local, sync, async or geo."""

import json
import sys

import numpy as np
import paddle
import paddle.distributed.fleet as fleet
import paddle.nn as nn
import paddle.nn.functional as F

paddle.enable_static()
MODE, FOLDER = sys.argv[1:]


class Model(nn.Layer):
    def __init__(self):
        super(Model, self).__init__()
        self.embedding = nn.Embedding(
            30, 4, sparse=True, weight_attr=paddle.ParamAttr(name="emb", initializer=nn.initializer.Constant(0.2))
        )
        self.layers = []
        for i, size in enumerate((3, 1)):
            linear = nn.Linear(
                in_features=(6, 3)[i],
                out_features=size,
                weight_attr=paddle.ParamAttr(initializer=nn.initializer.Constant(0.1)),
            )
            self.add_sublayer("linear_%d" % i, linear)
            self.layers.append(linear)
        self.relu = nn.ReLU()

    def forward(self, ids, dense):
        emb = paddle.sum(self.embedding(ids), axis=1)
        joined = paddle.concat(x=[emb, dense], axis=1)
        return F.sigmoid(self.layers[1](self.relu(self.layers[0](joined))))


def batch(step, begin, end):
    made = np.random.RandomState(step)
    ids, dense, label = made.randint(0, 30, (8, 3)), made.rand(8, 2), made.randint(0, 2, (8, 1))
    return {"ids": ids[begin:end], "dense": dense[begin:end].astype("float32"), "label": label[begin:end]}


def train(exe, loss, begin, end):
    program = paddle.static.default_main_program()
    found = [exe.run(program, feed=batch(s, begin, end), fetch_list=[loss])[0].reshape(-1)[0] for s in range(4)]
    print("losses " + json.dumps([float(x) for x in found]), flush=True)


def main():
    ids = paddle.static.data(name="ids", shape=[None, 3], dtype="int64")
    dense = paddle.static.data(name="dense", shape=[None, 2], dtype="float32")
    label = paddle.static.data(name="label", shape=[None, 1], dtype="int64")
    model = Model()
    predict = model(ids, dense)
    assert len(model.parameters()) == 5
    loss = paddle.mean(F.log_loss(input=predict, label=paddle.cast(label, dtype="float32")))
    auc, _, _ = paddle.static.auc(input=paddle.concat([1 - predict, predict], axis=1), label=label, num_thresholds=2**8)
    optimizer = paddle.optimizer.SGD(learning_rate=0.5)
    exe = paddle.static.Executor(paddle.CPUPlace())
    if MODE == "local":
        optimizer.minimize(loss)
        exe.run(paddle.static.default_startup_program())
        train(exe, loss, 0, 8)
        paddle.static.save_inference_model(FOLDER + "/model", [ids, dense], [predict], exe)
        program, feeds, fetches = paddle.static.load_inference_model(FOLDER + "/model", exe)
        feed = {name: batch(0, 0, 8)[name] for name in feeds}
        print("predicted %d" % len(exe.run(program, feed=feed, fetch_list=fetches)[0]))
        return
    fleet.init()
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = MODE != "sync"
    strategy.a_sync_configs = {"k_steps": 2 if MODE == "geo" else 0}
    fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    elif fleet.is_worker():
        exe.run(paddle.static.default_startup_program())
        fleet.init_worker()
        share = 8 // fleet.worker_num()
        train(exe, loss, share * fleet.worker_index(), share * (fleet.worker_index() + 1))
        total = fleet.util.all_reduce(np.array([1.0 + fleet.worker_index()]), "sum")
        print("total %g" % total[0], flush=True)
        fleet.stop_worker()


if __name__ == "__main__":
    main()
