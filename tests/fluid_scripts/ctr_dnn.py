"""Click prediction from 13 counts and 10 categories, in the manner of the elastic CTR demo (Fluid 1.5 style)."""
from __future__ import print_function

import argparse
import logging
import os
import time

import numpy as np
import paddle
import paddle.fluid as fluid

logging.basicConfig(format="%(asctime)s - %(levelname)s - %(message)s")
logger = logging.getLogger("fluid")
logger.setLevel(logging.INFO)

DENSE, SLOTS = 13, 10


def parse_args():
    parser = argparse.ArgumentParser(description="PaddlePaddle CTR example")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--embedding_size", type=int, default=10)
    parser.add_argument("--sparse_feature_dim", type=int, default=1501)
    parser.add_argument("--num_passes", type=int, default=2)
    parser.add_argument("--model_output_dir", type=str, default="models")
    parser.add_argument("--cloud_train", type=int, default=0)
    return parser.parse_args()


def ctr_dnn_model(embedding_size, sparse_feature_dim, use_py_reader=True):
    def embedding_layer(input):
        return fluid.layers.embedding(
            input=input, is_sparse=True, is_distributed=False, size=[sparse_feature_dim, embedding_size],
            param_attr=fluid.ParamAttr(name="SparseFeatFactors", initializer=fluid.initializer.Uniform()))

    dense_input = fluid.layers.data(name="dense_input", shape=[DENSE], dtype="float32")
    sparse_input_ids = [
        fluid.layers.data(name="C" + str(i), shape=[1], lod_level=1, dtype="int64") for i in range(1, SLOTS + 1)]
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    words = [dense_input] + sparse_input_ids + [label]
    py_reader = None
    if use_py_reader:
        py_reader = fluid.layers.create_py_reader_by_data(
            capacity=64, feed_list=words, name="py_reader", use_double_buffer=True)
        words = fluid.layers.read_file(py_reader)
    sparse_embed_seq = list(map(embedding_layer, words[1:-1]))
    concated = fluid.layers.concat(
        [fluid.layers.sequence_pool(input=seq, pool_type="sum") for seq in sparse_embed_seq] + words[0:1], axis=1)
    fc1 = fluid.layers.fc(
        input=concated, size=32, act="relu",
        param_attr=fluid.ParamAttr(initializer=fluid.initializer.Normal(scale=1 / np.sqrt(concated.shape[1]))))
    fc2 = fluid.layers.fc(
        input=fc1, size=16, act="relu",
        param_attr=fluid.ParamAttr(initializer=fluid.initializer.Normal(scale=1 / np.sqrt(fc1.shape[1]))))
    predict = fluid.layers.fc(
        input=fc2, size=2, act="softmax",
        param_attr=fluid.ParamAttr(initializer=fluid.initializer.Normal(scale=1 / np.sqrt(fc2.shape[1]))))
    cost = fluid.layers.cross_entropy(input=predict, label=words[-1])
    avg_cost = fluid.layers.reduce_mean(cost)
    accuracy = fluid.layers.accuracy(input=predict, label=words[-1])
    auc_var, batch_auc_var, auc_states = fluid.layers.auc(input=predict, label=words[-1], num_thresholds=2 ** 12)
    return avg_cost, auc_var, batch_auc_var, py_reader


class CriteoDataset(object):
    def __init__(self, sparse_feature_dim, count):
        self.hash_dim_, self.count = sparse_feature_dim, count

    def train(self, trainer_num, trainer_id):
        def local_iter():
            rng = np.random.RandomState(2018)
            for line in range(self.count * trainer_num):
                dense = rng.exponential(0.3, DENSE).round(4).tolist()
                sparse = [[int(v * 31 + slot) % self.hash_dim_ for v in rng.zipf(1.4, rng.randint(1, 3))]
                          for slot in range(SLOTS)]
                label = int(dense[0] + (sparse[0][0] % 4 == 0) > 0.8)
                if line % trainer_num == trainer_id:  # its own share of the file
                    yield [dense] + sparse + [[label]]

        return local_iter


def train_loop(args, train_program, py_reader, loss, auc_var, trainer_num, trainer_id):
    dataset = CriteoDataset(args.sparse_feature_dim, args.batch_size * 10)
    train_reader = paddle.batch(dataset.train(trainer_num, trainer_id), batch_size=args.batch_size)
    py_reader.decorate_paddle_reader(train_reader)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    step, total_time = 0, 0
    for pass_id in range(args.num_passes):
        pass_start = time.time()
        py_reader.start()
        try:
            while True:
                loss_val, auc_val = exe.run(program=train_program, fetch_list=[loss.name, auc_var.name])
                print("step %d loss %.7g auc %.6f" % (step, np.mean(loss_val), np.mean(auc_val)))
                step += 1
        except fluid.core.EOFException:
            py_reader.reset()
        total_time += time.time() - pass_start
        logger.info("pass %d done", pass_id)
        if trainer_id == 0:
            model_dir = args.model_output_dir + "/pass-" + str(pass_id)
            fluid.io.save_persistables(executor=exe, dirname=model_dir, main_program=train_program)
    return exe


def train():
    args = parse_args()
    fluid.default_startup_program().random_seed = 1
    loss, auc_var, batch_auc_var, py_reader = ctr_dnn_model(args.embedding_size, args.sparse_feature_dim)
    optimizer = fluid.optimizer.SGD(learning_rate=1e-1)
    optimizer.minimize(loss)
    role = os.getenv("TRAINING_ROLE")
    if role is None:
        train_loop(args, fluid.default_main_program(), py_reader, loss, auc_var, 1, 0)
        return
    trainers, trainer_id = int(os.getenv("PADDLE_TRAINERS_NUM")), int(os.getenv("PADDLE_TRAINER_ID", "0"))
    config = fluid.DistributeTranspilerConfig()
    config.slice_var_up = False
    t = fluid.DistributeTranspiler(config=config)
    t.transpile(trainer_id, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"), trainers=trainers)
    if role == "PSERVER":
        logger.info("run pserver")
        current_endpoint = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
        prog = t.get_pserver_program(current_endpoint)
        startup = t.get_startup_program(current_endpoint, pserver_program=prog)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        exe.run(prog)
    elif role == "TRAINER":
        logger.info("run trainer")
        exe = train_loop(args, t.get_trainer_program(), py_reader, loss, auc_var, trainers, trainer_id)
        exe.close()


if __name__ == "__main__":
    train()
