"""Behaviour sequence transformer for click prediction."""
import argparse
import os

import numpy as np
import paddle.fluid as fluid

ITEMS, CATS, LEN = 70, 9, 6
D_MODEL, N_HEAD = 12, 2


def positionwise_feed_forward(x, d_inner_hid, d_hid):
    hidden = fluid.layers.fc(input=x, size=d_inner_hid, num_flatten_dims=2, act="relu")
    return fluid.layers.fc(input=hidden, size=d_hid, num_flatten_dims=2)


def pre_post_process_layer(prev_out, out, process_cmd):
    for cmd in process_cmd:
        if cmd == "a":
            out = out + prev_out if prev_out is not None else out
        elif cmd == "n":
            out = fluid.layers.layer_norm(
                out, begin_norm_axis=len(out.shape) - 1, param_attr=fluid.initializer.Constant(1.0),
                bias_attr=fluid.initializer.Constant(0.0))
        elif cmd == "d":
            out = fluid.layers.dropout(out, dropout_prob=0.0, dropout_implementation="upscale_in_train")
    return out


def multi_head_attention(queries, d_key, d_value, d_model, n_head):
    q = fluid.layers.fc(input=queries, size=d_key * n_head, bias_attr=False, num_flatten_dims=2)
    k = fluid.layers.fc(input=queries, size=d_key * n_head, bias_attr=False, num_flatten_dims=2)
    v = fluid.layers.fc(input=queries, size=d_value * n_head, bias_attr=False, num_flatten_dims=2)

    def split_heads(x):
        reshaped = fluid.layers.reshape(x=x, shape=[0, 0, n_head, x.shape[-1] // n_head], inplace=True)
        return fluid.layers.transpose(x=reshaped, perm=[0, 2, 1, 3])

    q, k, v = split_heads(q), split_heads(k), split_heads(v)
    product = fluid.layers.matmul(x=q, y=k, transpose_y=True, alpha=d_key ** -0.5)
    weights = fluid.layers.softmax(product)
    out = fluid.layers.transpose(fluid.layers.matmul(weights, v), perm=[0, 2, 1, 3])
    out = fluid.layers.reshape(out, shape=[0, 0, d_value * n_head], inplace=True)
    return fluid.layers.fc(input=out, size=d_model, bias_attr=False, num_flatten_dims=2)


def bst():
    items = fluid.data(name="items", shape=[None, LEN], dtype="int64")
    cats = fluid.data(name="cats", shape=[None, LEN], dtype="int64")
    position = fluid.data(name="position", shape=[None, LEN], dtype="int64")
    profile = fluid.data(name="profile", shape=[None, 4], dtype="float32")
    label = fluid.data(name="label", shape=[None, 1], dtype="float32")

    def emb(x, rows, size, name):
        return fluid.embedding(x, [rows, size], param_attr=fluid.ParamAttr(
            name=name, initializer=fluid.initializer.Normal(0.0, size ** -0.5)))

    x = fluid.layers.concat([emb(items, ITEMS, 6, "item"), emb(cats, CATS, 4, "cat"), emb(position, LEN, 2, "pos")], 2)
    attn = multi_head_attention(pre_post_process_layer(None, x, "n"), D_MODEL // N_HEAD, D_MODEL // N_HEAD, D_MODEL, N_HEAD)
    attn = pre_post_process_layer(x, attn, "da")
    ffd = positionwise_feed_forward(pre_post_process_layer(None, attn, "n"), 24, D_MODEL)
    out = pre_post_process_layer(attn, ffd, "dan")
    out = fluid.layers.concat([fluid.layers.flatten(out, axis=1), profile], axis=1)
    for size in (16, 8):
        out = fluid.layers.fc(out, size, act="leaky_relu")
    logit = fluid.layers.fc(out, 1)
    return fluid.layers.reduce_mean(fluid.layers.sigmoid_cross_entropy_with_logits(logit, label))


def data(seed, batch_size):
    rng = np.random.RandomState(seed)
    cat_of = np.arange(ITEMS) % CATS
    for _ in range(20):
        items = rng.randint(0, ITEMS, (batch_size, LEN)).astype("int64")
        cats = cat_of[items]
        label = (cats[:, -1:] == cats[:, :-1]).any(1).astype("float32")[:, None]
        yield {"items": items, "cats": cats.astype("int64"), "label": label,
               "position": np.tile(np.arange(LEN, dtype="int64"), (batch_size, 1)),
               "profile": rng.rand(batch_size, 4).astype("float32")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--warmup", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.3)
    args = parser.parse_args()
    fluid.default_startup_program().random_seed = 6
    loss = bst()
    rate = fluid.layers.noam_decay(D_MODEL, args.warmup, learning_rate=args.lr)
    fluid.optimizer.SGD(learning_rate=rate).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    tid, role = int(os.getenv("PADDLE_TRAINER_ID", "0")), os.getenv("TRAINING_ROLE", "LOCAL").upper()
    program = fluid.default_main_program()
    if role != "LOCAL":
        t = fluid.DistributeTranspiler()
        t.transpile(tid, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                    trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
        if role == "PSERVER":
            me = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
            server, startup = t.get_pserver_programs(me)
            exe.run(startup)
            exe.run(server)
            return
        program = t.get_trainer_program()
    exe.run(fluid.default_startup_program())
    for i, feed in enumerate(data(20 + tid, args.batch_size)):
        value, = exe.run(program, feed=feed, fetch_list=[loss])
        print("step %d loss %.7g" % (i, value[0]))
    exe.close()


if __name__ == "__main__":
    main()
