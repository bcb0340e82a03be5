"""DeepFM trained from MultiSlot text files through a pipe command, in the manner of the CTR demos."""
import argparse
import os
import sys

import numpy as np
import paddle.fluid as fluid
import paddle.fluid.incubate.data_generator as dg

NUM_FIELD = 9
NUM_FEAT = 300
LINES = 64


class CriteoLike(dg.MultiSlotDataGenerator):
    """id:value pairs of the fields and the label, one line an instance"""

    def generate_sample(self, line):
        def reader():
            label, features = line.rstrip("\n").split("\t")
            pairs = [feature.split(":") for feature in features.split(" ")]
            yield ("feat_idx", [int(i) for i, _ in pairs]), \
                ("feat_value", [float(v) for _, v in pairs]), ("label", [int(label)])

        return reader


def write_file(name, seed):
    rng = np.random.RandomState(seed)
    with open(name, "w") as out:
        for _ in range(LINES):
            ids = rng.randint(0, 33, NUM_FIELD) + 33 * np.arange(NUM_FIELD)
            values = np.round(rng.rand(NUM_FIELD) + 0.5, 3)
            label = int((ids[0] % 4 < 2) != (ids[1] % 6 < 2))
            out.write("%d\t%s\n" % (label, " ".join("%d:%s" % (i, v) for i, v in zip(ids, values))))
    return name


def deepfm(args, layer_sizes=(16, 16), embedding_size=6):
    init = 0.1
    raw_feat_idx = fluid.data(name="feat_idx", shape=[None, NUM_FIELD], dtype="int64")
    raw_feat_value = fluid.data(name="feat_value", shape=[None, NUM_FIELD], dtype="float32")
    raw_label = fluid.data(name="label", shape=[None, 1], dtype="int64")
    feat_value = fluid.layers.reshape(raw_feat_value, [-1, NUM_FIELD, 1])
    regularizer = fluid.regularizer.L2DecayRegularizer(args.reg)

    first_weights = fluid.embedding(
        raw_feat_idx, size=[NUM_FEAT, 1],
        param_attr=fluid.ParamAttr(initializer=fluid.initializer.TruncatedNormal(0.0, init), regularizer=regularizer))
    y_first = fluid.layers.reduce_sum(first_weights * feat_value, 1)
    emb = fluid.embedding(
        raw_feat_idx, size=[NUM_FEAT, embedding_size],
        param_attr=fluid.ParamAttr(initializer=fluid.initializer.TruncatedNormal(0.0, init), regularizer=regularizer))
    emb = emb * feat_value
    sum_square = fluid.layers.square(fluid.layers.reduce_sum(emb, 1))
    square_sum = fluid.layers.reduce_sum(fluid.layers.square(emb), 1)
    y_second = 0.5 * fluid.layers.reduce_sum(sum_square - square_sum, dim=1, keep_dim=True)
    y_dnn = fluid.layers.reshape(emb, [-1, NUM_FIELD * embedding_size])
    for s in layer_sizes:
        y_dnn = fluid.layers.fc(
            input=y_dnn, size=s, act="relu",
            param_attr=fluid.ParamAttr(initializer=fluid.initializer.TruncatedNormal(0.0, init / s ** 0.5)),
            bias_attr=fluid.ParamAttr(initializer=fluid.initializer.TruncatedNormal(0.0, init)))
    y_dnn = fluid.layers.fc(input=y_dnn, size=1)
    predict = fluid.layers.sigmoid(y_first + y_second + y_dnn)
    cost = fluid.layers.log_loss(input=predict, label=fluid.layers.cast(raw_label, "float32"))
    batch_cost = fluid.layers.reduce_mean(cost)
    return [raw_feat_idx, raw_feat_value, raw_label], batch_cost, predict


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--reg", type=float, default=1e-3)
    args = parser.parse_args()
    fluid.default_startup_program().random_seed = 123
    feeds, loss, predict = deepfm(args)
    eval_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adam(learning_rate=fluid.layers.linear_lr_warmup(0.01, 10, 0.002, 0.01)).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())

    dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    dataset.set_use_var(feeds)
    dataset.set_pipe_command("%s %s --generate" % (sys.executable, os.path.abspath(__file__)))
    dataset.set_batch_size(32)
    dataset.set_thread(1)
    dataset.set_filelist([write_file("part-0", 10)])
    dataset.load_into_memory()
    rng = np.random.RandomState(99)
    held_out = {
        "feat_idx": rng.randint(0, NUM_FEAT, (32, NUM_FIELD)).astype("int64"),
        "feat_value": rng.rand(32, NUM_FIELD).astype("float32"),
        "label": rng.randint(0, 2, (32, 1)).astype("int64"),
    }
    for epoch in range(args.epochs):
        exe.train_from_dataset(program=fluid.default_main_program(), dataset=dataset)
        value, = exe.run(eval_program, feed=held_out, fetch_list=[loss])
        print("step %d loss %.7g" % (epoch, value))
    dataset.release_memory()
    fluid.io.save_inference_model("deepfm", ["feat_idx", "feat_value"], [predict], exe)


if __name__ == "__main__":
    if "--generate" in sys.argv:
        CriteoLike().run_from_stdin()
    else:
        main()
