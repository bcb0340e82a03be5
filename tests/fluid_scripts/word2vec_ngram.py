"""The book's neural language model of five words (Fluid 1.5 style)."""
from __future__ import print_function

import os

import numpy as np
import paddle
import paddle.fluid as fluid

EMBED_SIZE, HIDDEN_SIZE, N, DICT_SIZE = 8, 16, 5, 60


def ngram_reader(seed):
    def reader():
        rng = np.random.RandomState(seed)
        for _ in range(20 * 16):
            start = rng.randint(0, DICT_SIZE)
            yield tuple(int(w) for w in (start + np.cumsum(rng.randint(1, 3, N))) % DICT_SIZE)

    return reader


def inference_program(words, is_sparse):
    embeds = [fluid.layers.embedding(
        input=word, size=[DICT_SIZE, EMBED_SIZE], dtype="float32", is_sparse=is_sparse, param_attr="shared_w")
        for word in words]
    concat_embed = fluid.layers.concat(input=embeds, axis=1)
    hidden1 = fluid.layers.fc(input=concat_embed, size=HIDDEN_SIZE, act="sigmoid")
    return fluid.layers.fc(input=hidden1, size=DICT_SIZE, act="softmax")


def train(if_use_cuda, params_dirname, is_sparse=True):
    place = fluid.CUDAPlace(0) if if_use_cuda else fluid.CPUPlace()
    fluid.default_startup_program().random_seed = 3
    names = ["firstw", "secondw", "thirdw", "fourthw", "nextw"]
    words = [fluid.layers.data(name=name, shape=[1], dtype="int64") for name in names]
    predict_word = inference_program(words[:4], is_sparse)
    cost = fluid.layers.cross_entropy(input=predict_word, label=words[4])
    avg_cost = fluid.layers.mean(cost)
    sgd_optimizer = fluid.optimizer.SGDOptimizer(learning_rate=fluid.layers.exponential_decay(
        learning_rate=0.5, decay_steps=100, decay_rate=0.9))
    sgd_optimizer.minimize(avg_cost)
    exe = fluid.Executor(place)
    feeder = fluid.DataFeeder(feed_list=words, place=place)

    def train_loop(main_program, tid):
        exe.run(fluid.default_startup_program())
        reader = paddle.batch(paddle.reader.firstn(ngram_reader(tid), 20 * 16), 16)
        for step, data in enumerate(reader()):
            avg_cost_np = exe.run(main_program, feed=feeder.feed(data), fetch_list=[avg_cost])
            print("step %d loss %f" % (step, avg_cost_np[0]))
            if np.isnan(avg_cost_np[0]):
                raise SystemExit("got NaN loss, training failed.")

    def infer(params_dirname):
        inference_scope = fluid.core.Scope()
        with fluid.scope_guard(inference_scope):
            inferencer, feed_target_names, fetch_targets = fluid.io.load_inference_model(params_dirname, exe)
            lod = [[1]]
            words = [fluid.create_lod_tensor([[w]], lod, place) for w in (21, 14, 8, 18)]
            results = exe.run(inferencer, feed=dict(zip(feed_target_names, words)), fetch_list=fetch_targets,
                              return_numpy=False)
            np_data = np.array(results[0])
            print("test word %d" % np.argmax(np_data[0]), "probability", np_data.max())

    if os.getenv("TRAINING_ROLE") is None:
        train_loop(fluid.default_main_program(), 0)
        fluid.io.save_inference_model(params_dirname, names[:4], [predict_word], exe)
        infer(params_dirname)
        return
    tid = int(os.getenv("PADDLE_TRAINER_ID", "0"))
    t = fluid.DistributeTranspiler()
    t.transpile(tid, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"), trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
    if os.getenv("TRAINING_ROLE") == "PSERVER":
        me = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
        prog = t.get_pserver_program(me)
        exe.run(t.get_startup_program(me, prog))
        exe.run(prog)
    else:
        train_loop(t.get_trainer_program(), tid)
        exe.close()


if __name__ == "__main__":
    train(fluid.core.is_compiled_with_cuda(), "word2vec.inference.model")
