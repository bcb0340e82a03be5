"""Translation without attention: GRU encoder, DynamicRNN decoder with teacher forcing (Fluid 1.5 style)."""
from __future__ import print_function

import os

import numpy as np
import paddle
import paddle.fluid as fluid
import paddle.fluid.layers as pd

dict_size, word_dim, hidden_dim, decoder_size = 50, 8, 12, 12


def encoder():
    src_word_id = pd.data(name="src_word_id", shape=[1], dtype="int64", lod_level=1)
    src_embedding = pd.embedding(
        input=src_word_id, size=[dict_size, word_dim], dtype="float32", is_sparse=True,
        param_attr=fluid.ParamAttr(name="vemb"))
    fc1 = pd.fc(input=src_embedding, size=hidden_dim * 3, act="tanh", bias_attr=True)
    gru = pd.dynamic_gru(input=fc1, size=hidden_dim)
    return pd.sequence_last_step(input=gru)


def train_decoder(context):
    trg_language_word = pd.data(name="target_language_word", shape=[1], dtype="int64", lod_level=1)
    trg_embedding = pd.embedding(
        input=trg_language_word, size=[dict_size, word_dim], dtype="float32", is_sparse=True,
        param_attr=fluid.ParamAttr(name="vemb"))
    rnn = pd.DynamicRNN()
    with rnn.block():
        current_word = rnn.step_input(trg_embedding)
        pre_state = rnn.memory(init=context, need_reorder=True)
        current_state = pd.fc(input=[current_word, pre_state], size=decoder_size, act="tanh")
        current_score = pd.fc(input=current_state, size=dict_size, act="softmax")
        rnn.update_memory(pre_state, current_state)
        rnn.output(current_score)
    return rnn()


def train_program():
    rnn_out = train_decoder(encoder())
    label = pd.data(name="target_language_next_word", shape=[1], dtype="int64", lod_level=1)
    cost = pd.cross_entropy(input=rnn_out, label=label)
    return pd.mean(cost)


def pairs(seed):
    def reader():
        rng = np.random.RandomState(seed)
        for _ in range(20 * 5):
            source = rng.randint(2, dict_size, rng.randint(2, 6))
            target = ((source * 7) % dict_size).tolist()
            yield source.tolist(), [0] + target, target + [1]

    return reader


def train_loop(exe, program, avg_cost, seed):
    exe.run(fluid.default_startup_program())
    feed_order = ["src_word_id", "target_language_word", "target_language_next_word"]
    feed_list = [program.global_block().var(var_name) for var_name in feed_order]
    feeder = fluid.DataFeeder(feed_list, fluid.CPUPlace())
    batch_id = 0
    for data in paddle.batch(pairs(seed), batch_size=5)():
        outs = exe.run(program, feed=feeder.feed(data), fetch_list=[avg_cost])
        print("step " + str(batch_id) + " loss " + str(np.array(outs[0])[0]))
        batch_id += 1


def main():
    fluid.default_startup_program().random_seed = 33
    avg_cost = train_program()
    optimizer = fluid.optimizer.Adagrad(
        learning_rate=0.1, regularization=None)
    optimizer.minimize(avg_cost)
    exe = fluid.Executor(fluid.CPUPlace())
    role, tid = os.getenv("TRAINING_ROLE"), int(os.getenv("PADDLE_TRAINER_ID", "0"))
    if role is None:
        return train_loop(exe, fluid.default_main_program(), avg_cost, 0)
    t = fluid.DistributeTranspiler()
    t.transpile(tid, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"), trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
    if role == "PSERVER":
        endpoint = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
        prog = t.get_pserver_program(endpoint)
        exe.run(t.get_startup_program(endpoint, prog))
        exe.run(prog)
    else:
        train_loop(exe, t.get_trainer_program(), avg_cost, tid)
        exe.close()


if __name__ == "__main__":
    main()
