"""skip-gram word vectors, negative samples come with the data."""
import argparse
import os
import time

import numpy as np
import paddle.fluid as fluid


def parse_args():
    parser = argparse.ArgumentParser(description="PaddlePaddle Word2vec example")
    parser.add_argument("--embedding_size", type=int, default=8)
    parser.add_argument("--dict_size", type=int, default=90)
    parser.add_argument("--neg_num", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=30)
    parser.add_argument("--base_lr", type=float, default=1.0)
    parser.add_argument("--is_sparse", action="store_true", default=True)
    return parser.parse_args()


def skip_gram_word2vec(args):
    words = [
        fluid.data(name="input_word", shape=[None, 1], dtype="int64"),
        fluid.data(name="true_label", shape=[None, 1], dtype="int64"),
        fluid.data(name="neg_label", shape=[None, args.neg_num], dtype="int64"),
    ]
    loader = fluid.io.DataLoader.from_generator(
        capacity=64, feed_list=words, iterable=False, use_double_buffer=False)
    init_width = 0.5 / args.embedding_size
    neg_word_reshape = fluid.layers.reshape(words[2], shape=[-1, 1])
    neg_word_reshape.stop_gradient = True
    input_emb = fluid.embedding(
        input=words[0], is_sparse=args.is_sparse, size=[args.dict_size, args.embedding_size],
        param_attr=fluid.ParamAttr(name="emb", initializer=fluid.initializer.Uniform(-init_width, init_width)))
    true_emb_w = fluid.embedding(
        input=words[1], is_sparse=args.is_sparse, size=[args.dict_size, args.embedding_size],
        param_attr=fluid.ParamAttr(name="emb_w", initializer=fluid.initializer.Constant(value=0.0)))
    true_emb_b = fluid.embedding(
        input=words[1], is_sparse=args.is_sparse, size=[args.dict_size, 1],
        param_attr=fluid.ParamAttr(name="emb_b", initializer=fluid.initializer.Constant(value=0.0)))
    input_emb = fluid.layers.squeeze(input=input_emb, axes=[1])
    true_emb_w = fluid.layers.squeeze(input=true_emb_w, axes=[1])
    true_emb_b = fluid.layers.squeeze(input=true_emb_b, axes=[1])

    neg_emb_w = fluid.embedding(
        input=neg_word_reshape, is_sparse=args.is_sparse, size=[args.dict_size, args.embedding_size],
        param_attr=fluid.ParamAttr(name="emb_w", learning_rate=1.0))
    neg_emb_w_re = fluid.layers.reshape(neg_emb_w, shape=[-1, args.neg_num, args.embedding_size])
    neg_emb_b = fluid.embedding(
        input=neg_word_reshape, is_sparse=args.is_sparse, size=[args.dict_size, 1],
        param_attr=fluid.ParamAttr(name="emb_b", learning_rate=1.0))
    neg_emb_b_vec = fluid.layers.reshape(neg_emb_b, shape=[-1, args.neg_num])

    true_logits = fluid.layers.elementwise_add(
        fluid.layers.reduce_sum(fluid.layers.elementwise_mul(input_emb, true_emb_w), dim=1, keep_dim=True), true_emb_b)
    input_emb_re = fluid.layers.reshape(input_emb, shape=[-1, 1, args.embedding_size])
    neg_matmul = fluid.layers.matmul(input_emb_re, neg_emb_w_re, transpose_y=True)
    neg_logits = fluid.layers.elementwise_add(
        fluid.layers.reshape(neg_matmul, shape=[-1, args.neg_num]), neg_emb_b_vec)

    label_ones = fluid.layers.fill_constant_batch_size_like(true_logits, shape=[-1, 1], value=1.0, dtype="float32")
    label_zeros = fluid.layers.fill_constant_batch_size_like(
        true_logits, shape=[-1, args.neg_num], value=0.0, dtype="float32")
    true_xent = fluid.layers.sigmoid_cross_entropy_with_logits(true_logits, label_ones)
    neg_xent = fluid.layers.sigmoid_cross_entropy_with_logits(neg_logits, label_zeros)
    cost = fluid.layers.elementwise_add(
        fluid.layers.reduce_sum(true_xent, dim=1), fluid.layers.reduce_sum(neg_xent, dim=1))
    return fluid.layers.reduce_mean(cost), loader


def batches(args, seed):
    def generator():
        rng = np.random.RandomState(seed)
        for _ in range(20):
            word = (rng.zipf(1.3, (args.batch_size, 1)) % args.dict_size).astype("int64")
            label = (word * 3 + rng.randint(0, 3, word.shape)) % args.dict_size
            neg = rng.randint(0, args.dict_size, (args.batch_size, args.neg_num)).astype("int64")
            yield word, label, neg

    return generator


def train_loop(args, exe, train_program, loss, loader, trainer_id):
    loader.set_batch_generator(batches(args, 500 + trainer_id))
    exe.run(fluid.default_startup_program())
    loader.start()
    start, batch_id = time.time(), 0
    try:
        while True:
            loss_val = exe.run(train_program, fetch_list=[loss.name])
            loss_val = np.mean(loss_val)
            print("step {} loss {:.7g}".format(batch_id, loss_val))
            batch_id += 1
    except fluid.core.EOFException:
        loader.reset()
    print("speed: {:.1f} words a second".format(batch_id * args.batch_size / (time.time() - start)))
    if os.getenv("TRAINING_ROLE") is None:
        fluid.io.save_params(executor=exe, dirname="word2vec", main_program=train_program)


def main():
    args = parse_args()
    fluid.default_startup_program().random_seed = 1
    loss, loader = skip_gram_word2vec(args)
    optimizer = fluid.optimizer.SGD(learning_rate=fluid.layers.exponential_decay(
        learning_rate=args.base_lr, decay_steps=10, decay_rate=0.9, staircase=True))
    optimizer.minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    role = os.getenv("TRAINING_ROLE", "local")
    if role == "local":
        train_loop(args, exe, fluid.default_main_program(), loss, loader, 0)
        return
    trainer_id = int(os.getenv("PADDLE_TRAINER_ID", "0"))
    t = fluid.DistributeTranspiler()
    t.transpile(trainer_id, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
    if role == "PSERVER":
        here = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
        pserver_prog = t.get_pserver_program(here)
        exe.run(t.get_startup_program(here, pserver_prog))
        exe.run(pserver_prog)
    else:
        train_loop(args, exe, t.get_trainer_program(), loss, loader, trainer_id)
        exe.close()


if __name__ == "__main__":
    main()
