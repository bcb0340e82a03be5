"""skip-gram word vectors with noise-contrastive estimation."""
import os

import numpy as np
import paddle.fluid as fluid

VOCAB, DIM = 60, 10


def skip_gram_word2vec(dict_size, embedding_size):
    word = fluid.data(name="input_word", shape=[None, 1], dtype="int64")
    predict_word = fluid.data(name="true_label", shape=[None, 1], dtype="int64")
    emb = fluid.embedding(
        input=word, size=[dict_size, embedding_size],
        param_attr=fluid.ParamAttr(name="embeding", initializer=fluid.initializer.Normal(scale=0.3)))
    emb = fluid.layers.squeeze(input=emb, axes=[1])
    cost = fluid.layers.nce(
        input=emb, label=predict_word, num_total_classes=dict_size, num_neg_samples=5, seed=7,
        param_attr=fluid.ParamAttr(name="nce_w", initializer=fluid.initializer.Normal(scale=0.1)),
        bias_attr=fluid.ParamAttr(name="nce_b"), sampler=os.getenv("SAMPLER", "uniform"))
    return fluid.layers.reduce_mean(cost)


def corpus(seed):
    rng = np.random.RandomState(seed)
    for _ in range(20):
        word = rng.randint(0, VOCAB, (40, 1))
        context = (word + rng.choice([-2, -1, 1, 2], (40, 1))) % VOCAB
        yield {"input_word": word.astype("int64"), "true_label": context.astype("int64")}


def main():
    fluid.default_startup_program().random_seed = 4
    loss = skip_gram_word2vec(VOCAB, DIM)
    fluid.optimizer.SGD(learning_rate=fluid.layers.natural_exp_decay(0.4, 8, 0.3)).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    role = os.getenv("TRAINING_ROLE")
    rank = int(os.getenv("PADDLE_TRAINER_ID", "0"))
    program = fluid.default_main_program()
    if role:
        t = fluid.DistributeTranspiler()
        t.transpile(rank, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                    trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
        if role == "PSERVER":
            me = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
            server = t.get_pserver_program(me)
            exe.run(t.get_startup_program(me, server))
            exe.run(server)
            return
        program = t.get_trainer_program()
    exe.run(fluid.default_startup_program())
    for step, feed in enumerate(corpus(rank)):
        cost, = exe.run(program, feed=feed, fetch_list=[loss])
        print("step %d loss %.7g" % (step, cost))
    exe.close()


if __name__ == "__main__":
    main()
