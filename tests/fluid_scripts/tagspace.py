"""tagspace: texts and tags in one space (Fluid 1.5 style)."""
import os

import numpy as np
import paddle
import paddle.fluid as fluid
import paddle.fluid.layers.nn as nn
import paddle.fluid.layers.tensor as tensor
import paddle.fluid.layers.control_flow as cf

VOCAB_TEXT, VOCAB_TAG, NEG, EMB, HID, WIN, MARGIN = 120, 10, 3, 8, 12, 5, 0.1


def network(vocab_text_size, vocab_tag_size, emb_dim=EMB, hid_dim=HID, win_size=WIN, margin=MARGIN, neg_size=NEG):
    """ network definition """
    text = fluid.layers.data(name="text", shape=[1], lod_level=1, dtype="int64")
    pos_tag = fluid.layers.data(name="pos_tag", shape=[1], lod_level=1, dtype="int64")
    neg_tag = fluid.layers.data(name="neg_tag", shape=[1], lod_level=1, dtype="int64")
    text_emb = fluid.layers.embedding(
        input=text, size=[vocab_text_size, emb_dim], param_attr="text_emb", is_sparse=True)
    text_emb = fluid.layers.squeeze(input=text_emb, axes=[1]) if len(text_emb.shape) == 3 else text_emb
    pos_tag_emb = fluid.layers.embedding(input=pos_tag, size=[vocab_tag_size, emb_dim], param_attr="tag_emb")
    neg_tag_emb = fluid.layers.embedding(input=neg_tag, size=[vocab_tag_size, emb_dim], param_attr="tag_emb")
    conv_1d = fluid.nets.sequence_conv_pool(
        input=text_emb, num_filters=hid_dim, filter_size=win_size, act="tanh", pool_type="max", param_attr="cnn")
    text_hid = fluid.layers.fc(input=conv_1d, size=emb_dim, param_attr="text_hid")
    cos_pos = nn.cos_sim(pos_tag_emb, text_hid)
    mul_text_hid = fluid.layers.sequence_expand_as(x=text_hid, y=neg_tag_emb)
    mul_cos_neg = nn.cos_sim(neg_tag_emb, mul_text_hid)
    cos_neg_all = fluid.layers.sequence_reshape(input=mul_cos_neg, new_dim=neg_size)
    #choose max negtive cosine
    cos_neg = nn.reduce_max(cos_neg_all, dim=1, keep_dim=True)
    #calculate hinge loss
    loss_part1 = nn.elementwise_sub(
        tensor.fill_constant_batch_size_like(input=cos_pos, shape=[-1, 1], value=margin, dtype="float32"), cos_pos)
    loss_part2 = nn.elementwise_add(loss_part1, cos_neg)
    loss_part3 = nn.elementwise_max(
        tensor.fill_constant_batch_size_like(input=loss_part2, shape=[-1, 1], value=0.0, dtype="float32"), loss_part2)
    avg_cost = nn.mean(loss_part3)
    less = tensor.cast(cf.less_than(cos_neg, cos_pos), dtype="float32")
    correct = nn.reduce_sum(less)
    return [text, pos_tag, neg_tag], avg_cost, correct, cos_pos


def texts(seed):
    rng = np.random.RandomState(seed)

    def reader():
        for _ in range(20 * 16):
            tag = rng.randint(0, VOCAB_TAG)
            text = (tag * 12 + rng.randint(0, 12, rng.randint(3, 9))) % VOCAB_TEXT
            negative = (tag + 1 + rng.permutation(VOCAB_TAG - 1)[:NEG]) % VOCAB_TAG
            yield text.tolist(), [tag], negative.tolist()

    return reader


def train_loop(exe, program, feeds, fetches, seed):
    exe.run(fluid.default_startup_program())
    feeder = fluid.DataFeeder(feed_list=feeds, place=fluid.CPUPlace())
    for i, batch in enumerate(paddle.batch(texts(seed), batch_size=16)()):
        lod_text, lod_pos, lod_neg = [fluid.create_lod_tensor(
            np.concatenate([row[k] for row in batch]).reshape(-1, 1).astype("int64"),
            [[len(row[k]) for row in batch]], fluid.CPUPlace()) for k in range(3)]
        cost, correct = exe.run(
            program, feed={"text": lod_text, "pos_tag": lod_pos, "neg_tag": lod_neg}, fetch_list=fetches)
        print("step %d loss %.7g correct %d" % (i, cost[0], correct[0]))
    return feeder


def main():
    fluid.default_startup_program().random_seed = 90
    feeds, avg_cost, correct, cos_pos = network(VOCAB_TEXT, VOCAB_TAG)
    fluid.optimizer.Adagrad(learning_rate=0.02).minimize(avg_cost)
    exe = fluid.Executor(fluid.CPUPlace())
    role, tid = os.getenv("TRAINING_ROLE"), int(os.getenv("PADDLE_TRAINER_ID", "0"))
    if role is None:
        train_loop(exe, fluid.default_main_program(), feeds, [avg_cost, correct], 0)
        fluid.io.save_inference_model("tagspace", ["text", "pos_tag"], [cos_pos], exe)
        return
    t = fluid.DistributeTranspiler()
    t.transpile(tid, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"), trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
    if role == "PSERVER":
        endpoint = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
        prog = t.get_pserver_program(endpoint)
        exe.run(t.get_startup_program(endpoint, prog))
        exe.run(prog)
    else:
        train_loop(exe, t.get_trainer_program(), feeds, [avg_cost, correct], tid)
        exe.close()


if __name__ == "__main__":
    main()
