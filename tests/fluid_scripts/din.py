"""Deep interest network: attention of a target item over the user's history (padded), Fluid 1.5 interfaces."""
from __future__ import print_function

import argparse
import os
import time

import numpy as np
import paddle.fluid as fluid

ITEMS, CATS, MAX_LEN = 90, 12, 7


def config_reader(seed, batch_size, steps):
    rng = np.random.RandomState(seed)
    cat_of = np.random.RandomState(0).randint(0, CATS, ITEMS)

    def reader():
        for _ in range(steps):
            batch = []
            lengths = rng.randint(2, MAX_LEN + 1, batch_size)
            for length in lengths:
                hist = np.zeros(MAX_LEN, "int64")
                hist[:length] = rng.randint(1, ITEMS, length)
                target = rng.randint(1, ITEMS)
                mask = np.zeros((MAX_LEN, 1), "float32")
                mask[length:] = -2 ** 31
                label = float(cat_of[target] in cat_of[hist[:length]])
                batch.append((hist.reshape(MAX_LEN, 1), cat_of[hist].reshape(MAX_LEN, 1), target, cat_of[target],
                              np.repeat(target, MAX_LEN).reshape(MAX_LEN, 1),
                              np.repeat(cat_of[target], MAX_LEN).reshape(MAX_LEN, 1), mask, label))
            yield batch

    return reader


def din_attention(hist, target_expand, max_len, mask):
    """activation weight"""
    hidden_size = hist.shape[-1]
    concat = fluid.layers.concat(
        [hist, target_expand, hist - target_expand, hist * target_expand], axis=2)
    atten_fc1 = fluid.layers.fc(name="atten_fc1", input=concat, size=16, act="sigmoid", num_flatten_dims=2)
    atten_fc2 = fluid.layers.fc(name="atten_fc2", input=atten_fc1, size=8, act="sigmoid", num_flatten_dims=2)
    atten_fc3 = fluid.layers.fc(name="atten_fc3", input=atten_fc2, size=1, num_flatten_dims=2)
    atten_fc3 = atten_fc3 + mask
    atten_fc3 = fluid.layers.transpose(x=atten_fc3, perm=[0, 2, 1])
    atten_fc3 = fluid.layers.scale(x=atten_fc3, scale=hidden_size ** -0.5)
    weight = fluid.layers.softmax(atten_fc3)
    out = fluid.layers.matmul(weight, hist)
    return fluid.layers.reshape(x=out, shape=[0, hidden_size])


def network():
    def emb(name, rows, size, data):
        return fluid.layers.embedding(
            input=data, size=[rows, size],
            param_attr=fluid.ParamAttr(name=name, initializer=fluid.initializer.Xavier()))

    hist_item = fluid.layers.data(name="hist_item_seq", shape=[MAX_LEN, 1], dtype="int64")
    hist_cat = fluid.layers.data(name="hist_cat_seq", shape=[MAX_LEN, 1], dtype="int64")
    target_item = fluid.layers.data(name="target_item", shape=[1], dtype="int64")
    target_cat = fluid.layers.data(name="target_cat", shape=[1], dtype="int64")
    target_item_seq = fluid.layers.data(name="target_item_seq", shape=[MAX_LEN, 1], dtype="int64")
    target_cat_seq = fluid.layers.data(name="target_cat_seq", shape=[MAX_LEN, 1], dtype="int64")
    mask = fluid.layers.data(name="mask", shape=[MAX_LEN, 1], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="float32")
    hist_concat = fluid.layers.concat(
        [emb("item_emb", ITEMS, 8, hist_item), emb("cat_emb", CATS, 4, hist_cat)], axis=2)
    target_concat = fluid.layers.concat(
        [emb("item_emb", ITEMS, 8, target_item), emb("cat_emb", CATS, 4, target_cat)], axis=1)
    target_seq = fluid.layers.concat(
        [emb("item_emb", ITEMS, 8, target_item_seq), emb("cat_emb", CATS, 4, target_cat_seq)], axis=2)
    item_b = fluid.layers.embedding(
        input=target_item, size=[ITEMS, 1],
        param_attr=fluid.ParamAttr(name="item_b", initializer=fluid.initializer.Constant(value=0.0)))
    seq_emb = din_attention(hist_concat, target_seq, MAX_LEN, mask)
    seq_emb = fluid.layers.fc(seq_emb, size=12, name="seq_fc")
    embedding_concat = fluid.layers.concat([seq_emb, target_concat], axis=1)
    fc1 = fluid.layers.fc(embedding_concat, size=16, act="sigmoid", name="fc1")
    fc2 = fluid.layers.fc(fc1, size=8, act="sigmoid", name="fc2")
    logit = fluid.layers.fc(fc2, size=1, name="fc3") + item_b
    loss = fluid.layers.sigmoid_cross_entropy_with_logits(x=logit, label=label)
    feeds = [hist_item, hist_cat, target_item, target_cat, target_item_seq, target_cat_seq, mask, label]
    return feeds, fluid.layers.mean(loss), fluid.layers.sigmoid(logit)


def train():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--base_lr", type=float, default=0.85)
    parser.add_argument("--num_devices", type=int, default=1)
    args = parser.parse_args()
    fluid.default_startup_program().random_seed = 1234
    fluid.default_main_program().random_seed = 1234
    feeds, avg_cost, pred = network()
    fluid.clip.set_gradient_clip(clip=fluid.clip.GradientClipByGlobalNorm(clip_norm=5.0))
    boundaries, values = [8, 14], [args.base_lr, args.base_lr / 2, args.base_lr / 4]
    sgd = fluid.optimizer.SGD(learning_rate=fluid.layers.piecewise_decay(boundaries=boundaries, values=values))
    sgd.minimize(avg_cost)
    place = fluid.CUDAPlace(0) if fluid.core.is_compiled_with_cuda() else fluid.CPUPlace()
    exe = fluid.Executor(place)
    feeder = fluid.DataFeeder(feed_list=feeds, place=place)

    def train_loop(main_program, trainer_id):
        exe.run(fluid.default_startup_program())
        start, total = time.time(), 0.0
        for step, batch in enumerate(config_reader(31 + trainer_id, args.batch_size, 20)()):
            loss, = exe.run(main_program, feed=feeder.feed(batch), fetch_list=[avg_cost])
            total += float(loss[0])
            print("step %d loss %.7g" % (step, loss[0]))
        print("epoch done, mean loss %.4f in %.2f s" % (total / 20, time.time() - start))

    role = os.getenv("TRAINING_ROLE")
    if role is None:
        train_loop(fluid.default_main_program(), 0)
        fluid.io.save_inference_model("din", [v.name for v in feeds[:-1]], [pred], exe)
    else:
        trainer_id = int(os.getenv("PADDLE_TRAINER_ID", "0"))
        t = fluid.DistributeTranspiler()
        t.transpile(trainer_id, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                    trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
        if role == "PSERVER":
            ep = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
            prog = t.get_pserver_program(ep)
            exe.run(t.get_startup_program(ep, prog))
            exe.run(prog)
        else:
            train_loop(t.get_trainer_program(), trainer_id)
            exe.close()


if __name__ == "__main__":
    train()
