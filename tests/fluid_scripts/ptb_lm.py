"""Language model with a StaticRNN of LSTM cells; hidden states are carried from batch to batch."""
import os

import numpy as np
import paddle.fluid as fluid
import paddle.fluid.layers as layers

VOCAB, HIDDEN, STEPS, BATCH, LAYERS = 40, 10, 5, 6, 2


def lm_model(init_scale=0.5):
    x = fluid.data(name="x", shape=[None, STEPS], dtype="int64")
    y = fluid.data(name="y", shape=[None, 1], dtype="int64")
    init_hidden = fluid.data(name="init_hidden", shape=[LAYERS, BATCH, HIDDEN], dtype="float32")
    init_cell = fluid.data(name="init_cell", shape=[LAYERS, BATCH, HIDDEN], dtype="float32")
    uniform = fluid.initializer.UniformInitializer(low=-init_scale, high=init_scale)
    x_emb = fluid.embedding(
        input=x, size=[VOCAB, HIDDEN], is_sparse=False,
        param_attr=fluid.ParamAttr(name="embedding_para", initializer=uniform))

    weights, biases, hiddens, cells = [], [], [], []
    for i in range(LAYERS):
        weights.append(layers.create_parameter(
            [HIDDEN * 2, HIDDEN * 4], dtype="float32", name="fc_weight1_%d" % i, default_initializer=uniform))
        biases.append(layers.create_parameter(
            [HIDDEN * 4], dtype="float32", name="fc_bias1_%d" % i,
            default_initializer=fluid.initializer.Constant(0.0)))
        hiddens.append(layers.reshape(
            layers.slice(init_hidden, axes=[0], starts=[i], ends=[i + 1]), shape=[-1, HIDDEN]))
        cells.append(layers.reshape(layers.slice(init_cell, axes=[0], starts=[i], ends=[i + 1]), shape=[-1, HIDDEN]))

    x_emb = layers.transpose(x_emb, perm=[1, 0, 2])
    rnn = layers.StaticRNN()
    with rnn.step():
        input = rnn.step_input(x_emb)
        for k in range(LAYERS):
            pre_hidden = rnn.memory(init=hiddens[k])
            pre_cell = rnn.memory(init=cells[k])
            nn = layers.concat([input, pre_hidden], 1)
            gate_input = layers.elementwise_add(layers.matmul(x=nn, y=weights[k]), biases[k])
            i, j, f, o = layers.split(gate_input, num_or_sections=4, dim=-1)
            c = pre_cell * layers.sigmoid(f) + layers.sigmoid(i) * layers.tanh(j)
            m = layers.tanh(c) * layers.sigmoid(o)
            rnn.update_memory(pre_hidden, m)
            rnn.update_memory(pre_cell, c)
            rnn.step_output(m)
            rnn.step_output(c)
            input = m
        rnn.step_output(input)
    outs = rnn()
    last_hidden = layers.concat(
        [layers.slice(outs[2 * k], axes=[0], starts=[STEPS - 1], ends=[STEPS]) for k in range(LAYERS)], axis=0)
    last_cell = layers.concat(
        [layers.slice(outs[2 * k + 1], axes=[0], starts=[STEPS - 1], ends=[STEPS]) for k in range(LAYERS)], axis=0)
    rnn_out = layers.reshape(layers.transpose(outs[-1], perm=[1, 0, 2]), shape=[-1, HIDDEN])
    softmax_weight = layers.create_parameter([HIDDEN, VOCAB], "float32", "softmax_weight", default_initializer=uniform)
    projection = layers.matmul(rnn_out, softmax_weight)
    loss = layers.softmax_with_cross_entropy(logits=projection, label=y, soft_label=False)
    loss = layers.reshape(loss, shape=[-1, STEPS])
    loss = layers.reduce_sum(layers.reduce_mean(loss, dim=[0]))
    return loss, last_hidden, last_cell


def text(seed):
    rng = np.random.RandomState(seed)
    words = np.cumsum(rng.randint(1, 4, BATCH * (20 * STEPS + 1))) % VOCAB
    words = words.reshape(BATCH, -1).astype("int64")
    for i in range(20):
        yield words[:, i * STEPS:(i + 1) * STEPS], words[:, i * STEPS + 1:(i + 1) * STEPS + 1]


def train(exe, program, fetches, seed):
    exe.run(fluid.default_startup_program())
    hidden = cell = np.zeros((LAYERS, BATCH, HIDDEN), "float32")
    total, iters = 0.0, 0
    for step, (x, y) in enumerate(text(seed)):
        feed = {"x": x, "y": y.reshape(-1, 1), "init_hidden": hidden, "init_cell": cell}
        loss, hidden, cell = exe.run(program, feed=feed, fetch_list=fetches)
        hidden, cell = np.array(hidden), np.array(cell)
        total, iters = total + loss[0], iters + STEPS
        print("step %d loss %.7g ppl %.6f" % (step, loss[0], np.exp(total / iters)))


def main():
    fluid.default_startup_program().random_seed = 123
    loss, last_hidden, last_cell = lm_model()
    fluid.clip.set_gradient_clip(clip=fluid.clip.GradientClipByGlobalNorm(clip_norm=5.0))
    lr = layers.piecewise_decay(boundaries=[10], values=[3.0, 1.5])
    fluid.optimizer.SGD(learning_rate=lr).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    fetches = [loss, last_hidden, last_cell]
    role, tid = os.getenv("TRAINING_ROLE"), int(os.getenv("PADDLE_TRAINER_ID", "0"))
    if role is None:
        train(exe, fluid.default_main_program(), fetches, 0)
        return
    t = fluid.DistributeTranspiler()
    t.transpile(tid, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"), trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
    if role == "PSERVER":
        endpoint = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
        prog = t.get_pserver_program(endpoint)
        exe.run(t.get_startup_program(endpoint, prog))
        exe.run(prog)
    else:
        train(exe, t.get_trainer_program(), fetches, tid)
        exe.close()


if __name__ == "__main__":
    main()
