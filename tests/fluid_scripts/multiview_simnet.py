"""Multi-view simnet: query slots and title slots, each through an encoder of its own (Fluid 1.5 style)."""
import argparse
import os

import numpy as np
import paddle
import paddle.fluid as fluid
import paddle.fluid.layers.nn as nn
import paddle.fluid.layers.tensor as tensor
import paddle.fluid.layers.control_flow as cf


class BowEncoder(object):
    """ bow-encoder """

    def __init__(self):
        self.param_name = ""

    def forward(self, emb):
        return fluid.layers.sequence_pool(input=emb, pool_type="sum")


class CNNEncoder(object):
    """ cnn-encoder"""

    def __init__(self, param_name="cnn", win_size=3, ksize=10, act="tanh", pool_type="max"):
        self.param_name, self.win_size, self.ksize, self.act, self.pool_type = param_name, win_size, ksize, act, pool_type

    def forward(self, emb):
        return fluid.nets.sequence_conv_pool(
            input=emb, num_filters=self.ksize, filter_size=self.win_size, act=self.act, pool_type=self.pool_type,
            param_attr=self.param_name + ".param", bias_attr=self.param_name + ".bias")


class GrnnEncoder(object):
    """ grnn-encoder """

    def __init__(self, param_name="grnn", hidden_size=10):
        self.param_name, self.hidden_size = param_name, hidden_size

    def forward(self, emb):
        fc0 = nn.fc(input=emb, size=self.hidden_size * 3, param_attr=self.param_name + "_fc.w", bias_attr=False)
        gru_h = fluid.layers.dynamic_gru(
            input=fc0, size=self.hidden_size, is_reverse=False,
            param_attr=self.param_name + ".param", bias_attr=self.param_name + ".bias")
        return fluid.layers.sequence_pool(input=gru_h, pool_type="max")


class SimpleEncoderFactory(object):
    BOW, CNN, GRNN = 1, 2, 3

    def create(self, enc_type, enc_hid_size, name):
        if enc_type == self.BOW:
            return BowEncoder()
        if enc_type == self.CNN:
            return CNNEncoder(name, ksize=enc_hid_size)
        return GrnnEncoder(name, hidden_size=enc_hid_size)


class MultiviewSimnet(object):
    def __init__(self, embedding_size, query_encoders, title_encoders, hidden_size, margin):
        self.emb_size, self.emb_shape = embedding_size, [200, embedding_size]
        self.query_encoders, self.title_encoders = query_encoders, title_encoders
        self.hidden_size, self.margin = hidden_size, margin

    def slots(self, name, count):
        return [fluid.layers.data(name="%s%d" % (name, i), shape=[1], lod_level=1, dtype="int64") for i in range(count)]

    def encode(self, slots, encoders, fc_name):
        embs = [nn.embedding(input=s, size=self.emb_shape, is_sparse=True, param_attr="emb.w") for s in slots]
        encodes = [encoder.forward(emb) for encoder, emb in zip(encoders, embs)]
        return nn.fc(input=tensor.concat(encodes, axis=1) if len(encodes) > 1 else encodes[0], size=self.hidden_size,
                     param_attr=fc_name + ".w", bias_attr=fc_name + ".b")

    def train_net(self):
        q_slots = self.slots("q", len(self.query_encoders))
        pt_slots = self.slots("pt", len(self.title_encoders))
        nt_slots = self.slots("nt", len(self.title_encoders))
        q = self.encode(q_slots, self.query_encoders, "q_fc")
        pt = self.encode(pt_slots, self.title_encoders, "t_fc")
        nt = self.encode(nt_slots, self.title_encoders, "t_fc")
        cos_pos, cos_neg = nn.cos_sim(q, pt), nn.cos_sim(q, nt)
        loss_part1 = nn.elementwise_sub(
            tensor.fill_constant_batch_size_like(input=cos_pos, shape=[-1, 1], value=self.margin, dtype="float32"),
            cos_pos)
        loss_part2 = nn.elementwise_add(loss_part1, cos_neg)
        loss_part3 = nn.elementwise_max(
            tensor.fill_constant_batch_size_like(input=loss_part2, shape=[-1, 1], value=0.0, dtype="float32"),
            loss_part2)
        less = tensor.cast(cf.less_than(cos_neg, cos_pos), dtype="float32")
        return q_slots + pt_slots + nt_slots, nn.mean(loss_part3), nn.reduce_sum(less)


def synthetic(seed, batch_size, n_query, n_title):
    rng = np.random.RandomState(seed)

    def reader():
        for _ in range(20 * batch_size):
            topic, other = rng.permutation(8)[:2]
            words = lambda t: (t * 25 + rng.randint(0, 25, rng.randint(1, 6))).tolist()
            yield [words(topic) for _ in range(n_query + n_title)] + [words(other) for _ in range(n_title)]

    return paddle.batch(reader, batch_size)


def main():
    parser = argparse.ArgumentParser("multi-view simnet")
    parser.add_argument("--batch_size", type=int, default=12)
    parser.add_argument("--embedding_size", type=int, default=8)
    parser.add_argument("--hidden_size", type=int, default=8)
    parser.add_argument("--margin", type=float, default=0.2)
    args = parser.parse_args()
    fluid.default_startup_program().random_seed = 100
    factory = SimpleEncoderFactory()
    query = [factory.create(factory.BOW, 8, "q0"), factory.create(factory.GRNN, 8, "q1")]
    title = [factory.create(factory.CNN, 8, "t0")]
    net = MultiviewSimnet(args.embedding_size, query, title, args.hidden_size, args.margin)
    all_slots, avg_cost, correct = net.train_net()
    fluid.optimizer.Adagrad(learning_rate=0.05).minimize(avg_cost)
    exe = fluid.Executor(fluid.CPUPlace())

    def train_loop(program, trainer_id):
        exe.run(fluid.default_startup_program())
        feeder = fluid.DataFeeder(feed_list=[s.name for s in all_slots], place=fluid.CPUPlace(), program=program)
        for i, data in enumerate(synthetic(trainer_id, args.batch_size, len(query), len(title))()):
            loss_val, right = exe.run(program, feed=feeder.feed(data), fetch_list=[avg_cost, correct])
            print("step %d loss %.7g correct %d" % (i, loss_val, right))

    if os.getenv("TRAINING_ROLE") is None:
        train_loop(fluid.default_main_program(), 0)
        return
    trainer_id = int(os.getenv("PADDLE_TRAINER_ID", "0"))
    t = fluid.DistributeTranspiler()
    t.transpile(trainer_id, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
    if os.getenv("TRAINING_ROLE") == "PSERVER":
        me = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
        prog = t.get_pserver_program(me)
        exe.run(t.get_startup_program(me, prog))
        exe.run(prog)
    else:
        train_loop(t.get_trainer_program(), trainer_id)
        exe.close()


if __name__ == "__main__":
    main()
