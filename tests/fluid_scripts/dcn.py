"""Deep & Cross network."""
import argparse
import os
from collections import OrderedDict

import numpy as np
import paddle.fluid as fluid


class DCN(object):
    def __init__(self, cross_num=3, dnn_hidden_units=(24, 16), l2_reg_cross=0.005, dnn_use_bn=False, clip_by_norm=1.0,
                 cat_feat_dims_dict=None, is_sparse=False):
        self.cross_num = cross_num
        self.dnn_hidden_units = dnn_hidden_units
        self.l2_reg_cross = l2_reg_cross
        self.dnn_use_bn = dnn_use_bn
        self.clip_by_norm = clip_by_norm
        self.cat_feat_dims_dict = cat_feat_dims_dict if cat_feat_dims_dict else OrderedDict()
        self.is_sparse = is_sparse
        self.dense_feat_names = ["I" + str(i) for i in range(1, 5)]
        self.sparse_feat_names = ["C" + str(i) for i in range(1, 6)]

    def build_network(self, is_test=False):
        self.target_input = fluid.data(name="label", shape=[None, 1], dtype="float32")
        data_dict = OrderedDict()
        for feat_name in self.dense_feat_names:
            data_dict[feat_name] = fluid.data(name=feat_name, shape=[None, 1], dtype="float32")
        for feat_name in self.sparse_feat_names:
            data_dict[feat_name] = fluid.data(name=feat_name, shape=[None, 1], dtype="int64")
        self.net_input = self._create_embedding_input(data_dict)
        deep_out = self._deep_net(self.net_input, is_test)
        cross_out, l2_reg_cross_loss = self._cross_net(self.net_input)
        last_out = fluid.layers.concat([deep_out, cross_out], axis=-1)
        logit = fluid.layers.fc(last_out, 1)
        self.prob = fluid.layers.sigmoid(logit)
        self.logloss = fluid.layers.log_loss(input=self.prob, label=self.target_input)
        self.avg_logloss = fluid.layers.reduce_mean(self.logloss)
        self.loss = self.avg_logloss + self.l2_reg_cross * l2_reg_cross_loss
        return [self.target_input] + list(data_dict.values())

    def _deep_net(self, x, is_test=False):
        for units in self.dnn_hidden_units:
            x = fluid.layers.fc(input=x, size=units, act=None if self.dnn_use_bn else "relu")
            if self.dnn_use_bn:
                x = fluid.layers.batch_norm(input=x, act="relu", is_test=is_test)
        return x

    def _create_embedding_input(self, data_dict):
        sparse_emb_dict = OrderedDict(
            (name, fluid.embedding(
                input=fluid.layers.cast(data_dict[name], dtype="int64"),
                size=[self.cat_feat_dims_dict[name] + 1, 6 * int(pow(self.cat_feat_dims_dict[name], 0.25))],
                is_sparse=self.is_sparse)) for name in self.sparse_feat_names)
        dense_input_dict = [data_dict[name] for name in self.dense_feat_names]
        sparse = fluid.layers.concat(list(sparse_emb_dict.values()), axis=-1)
        sparse = fluid.layers.flatten(sparse)
        return fluid.layers.concat(dense_input_dict + [sparse], axis=-1)

    def _cross_layer(self, x0, x, i):
        w = fluid.layers.create_parameter(
            [x0.shape[-1]], dtype="float32", name="cross_w%d" % i,
            default_initializer=fluid.initializer.TruncatedNormalInitializer(0.0, 0.05))
        b = fluid.layers.create_parameter(
            [x0.shape[-1]], dtype="float32", name="cross_b%d" % i,
            default_initializer=fluid.initializer.Constant(0.0))
        xw = fluid.layers.reduce_sum(x * w, dim=1, keep_dim=True)
        return x0 * xw + b + x, w

    def _cross_net(self, x0):
        x, regs = x0, []
        for i in range(self.cross_num):
            x, w = self._cross_layer(x0, x, i)
            regs.append(fluid.layers.reduce_sum(w * w))
        return x, fluid.layers.sums(regs)

    def minimize(self, lr):
        fluid.clip.set_gradient_clip(clip=fluid.clip.GradientClipByGlobalNorm(clip_norm=self.clip_by_norm))
        fluid.optimizer.Adam(learning_rate=lr).minimize(self.loss)


def train_reader(model, batch_size, steps, seed):
    rng = np.random.RandomState(seed)
    for _ in range(steps):
        feed = {name: rng.rand(batch_size, 1).astype("float32") for name in model.dense_feat_names}
        for name in model.sparse_feat_names:
            feed[name] = rng.randint(0, model.cat_feat_dims_dict[name], (batch_size, 1)).astype("int64")
        feed["label"] = (feed["I1"] + (feed["C1"] % 2) * feed["I2"] > 0.8).astype("float32")
        yield feed


def main():
    parser = argparse.ArgumentParser("dcn")
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--batch_size", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--is_local", type=int, default=int("TRAINING_ROLE" not in os.environ))
    args = parser.parse_args()

    dims = OrderedDict(("C%d" % (i + 1), n) for i, n in enumerate([10, 40, 90, 30, 17]))
    fluid.default_startup_program().random_seed = 1234
    model = DCN(cat_feat_dims_dict=dims)
    model.build_network()
    model.minimize(args.lr)
    exe = fluid.Executor(fluid.CPUPlace())

    def train_loop(program, trainer_id):
        exe.run(fluid.default_startup_program())
        for step, feed in enumerate(train_reader(model, args.batch_size, args.steps, trainer_id)):
            loss, logloss = exe.run(program, feed=feed, fetch_list=[model.loss, model.avg_logloss])
            print("step %d loss %.7g logloss %.7g" % (step, loss[0], logloss[0]))

    if args.is_local:
        train_loop(fluid.default_main_program(), 0)
        fluid.io.save_params(executor=exe, dirname="dcn_params")
    else:
        trainer_id = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
        t = fluid.DistributeTranspiler()
        t.transpile(trainer_id, pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"],
                    trainers=int(os.environ["PADDLE_TRAINERS_NUM"]))
        if os.environ["TRAINING_ROLE"] == "PSERVER":
            endpoint = os.environ["POD_IP"] + ":" + os.environ["PADDLE_PORT"]
            prog, startup = t.get_pserver_programs(endpoint)
            exe.run(startup)
            exe.run(prog)
        else:
            train_loop(t.get_trainer_program(), trainer_id)
            exe.close()


if __name__ == "__main__":
    main()
