"""A language model over sentences of any length, a DynamicRNN with two memories."""
import os

import numpy as np
import paddle.fluid as fluid

VOCAB, DIM = 45, 9


def model(words, next_words):
    emb = fluid.embedding(
        words, size=[VOCAB, DIM], param_attr=fluid.ParamAttr(initializer=fluid.initializer.Normal(scale=0.2)))
    drnn = fluid.layers.DynamicRNN()
    with drnn.block():
        word = drnn.step_input(emb)
        hidden = drnn.memory(shape=[DIM], value=0.0)
        slow = drnn.memory(shape=[DIM], value=0.1)
        gate = fluid.layers.fc([word, hidden], DIM, act="sigmoid")
        new_hidden = fluid.layers.fc([word, hidden, slow], DIM, act="tanh")
        new_slow = slow * gate + new_hidden * fluid.layers.scale(gate, scale=-1.0, bias=1.0)
        drnn.update_memory(hidden, new_hidden)
        drnn.update_memory(slow, new_slow)
        drnn.output(new_slow)
    out = drnn()
    logits = fluid.layers.fc(out, VOCAB)
    cost = fluid.layers.softmax_with_cross_entropy(logits, next_words)
    return fluid.layers.reduce_mean(cost)


def feed_of(rng, place):
    lengths = rng.randint(2, 7, 6)
    data = [(rng.randint(0, VOCAB) + np.arange(n + 1) * 3) % VOCAB for n in lengths]
    words = fluid.create_lod_tensor(np.concatenate([d[:-1] for d in data]).astype("int64"), [lengths.tolist()], place)
    labels = np.concatenate([d[1:] for d in data]).astype("int64").reshape(-1, 1)
    return {"words": words, "next_words": fluid.create_lod_tensor(labels, [lengths.tolist()], place)}


def main():
    fluid.default_startup_program().random_seed = 15
    words = fluid.data("words", [None], "int64", lod_level=1)
    next_words = fluid.data("next_words", [None, 1], "int64", lod_level=1)
    loss = model(words, next_words)
    adam = fluid.optimizer.Adam(learning_rate=0.02, grad_clip=None)
    adam.minimize(loss)
    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    program, tid = fluid.default_main_program(), int(os.getenv("PADDLE_TRAINER_ID", "0"))
    if os.getenv("TRAINING_ROLE"):
        t = fluid.DistributeTranspiler()
        t.transpile(tid, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                    trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
        if os.getenv("TRAINING_ROLE") == "PSERVER":
            endpoint = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
            prog = t.get_pserver_program(endpoint)
            exe.run(t.get_startup_program(endpoint, prog))
            exe.run(prog)
            return
        program = t.get_trainer_program()
    exe.run(fluid.default_startup_program())
    rng = np.random.RandomState(70 + tid)
    for step in range(20):
        value, = exe.run(program, feed=feed_of(rng, place), fetch_list=[loss])
        print("step %d loss %.7g" % (step, value[0]))
    exe.close()


if __name__ == "__main__":
    main()
