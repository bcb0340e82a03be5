"""gru4rec: the next item of a session, whole sessions as LoD tensors (Fluid 1.5 style)."""
import argparse
import os
import time

import numpy as np
import paddle.fluid as fluid

VOCAB, HID = 80, 16


def all_vocab_network(vocab_size, hid_size=HID, init_low_bound=-0.04, init_high_bound=0.04):
    emb_lr_x, gru_lr_x, fc_lr_x = 2.0, 1.0, 1.0
    src_wordseq = fluid.layers.data(name="src_wordseq", shape=[1], dtype="int64", lod_level=1)
    dst_wordseq = fluid.layers.data(name="dst_wordseq", shape=[1], dtype="int64", lod_level=1)
    uniform = fluid.initializer.Uniform(low=init_low_bound, high=init_high_bound)
    emb = fluid.layers.embedding(
        input=src_wordseq, size=[vocab_size, hid_size], is_sparse=True,
        param_attr=fluid.ParamAttr(name="emb", initializer=uniform, learning_rate=emb_lr_x))
    fc0 = fluid.layers.fc(
        input=emb, size=hid_size * 3, param_attr=fluid.ParamAttr(initializer=uniform, learning_rate=gru_lr_x))
    gru_h0 = fluid.layers.dynamic_gru(
        input=fc0, size=hid_size, param_attr=fluid.ParamAttr(initializer=uniform, learning_rate=gru_lr_x))
    fc = fluid.layers.fc(
        input=gru_h0, size=vocab_size, act="softmax",
        param_attr=fluid.ParamAttr(initializer=uniform, learning_rate=fc_lr_x))
    cost = fluid.layers.cross_entropy(input=fc, label=dst_wordseq)
    acc = fluid.layers.accuracy(input=fc, label=dst_wordseq, k=20)
    return src_wordseq, dst_wordseq, fluid.layers.mean(x=cost), acc


def to_lodtensor(data, place):
    """convert to LODtensor"""
    seq_lens = [len(seq) for seq in data]
    cur_len = 0
    lod = [cur_len]
    for l in seq_lens:
        cur_len += l
        lod.append(cur_len)
    flattened_data = np.concatenate(data, axis=0).astype("int64")
    flattened_data = flattened_data.reshape([len(flattened_data), 1])
    res = fluid.LoDTensor()
    res.set(flattened_data, place)
    res.set_lod([lod])
    return res


def sessions(seed, batch_size, batches):
    rng = np.random.RandomState(seed)
    for _ in range(batches):
        batch = []
        for _ in range(batch_size):
            start, length = rng.randint(0, VOCAB), rng.randint(2, 8)
            batch.append((start + np.cumsum(rng.randint(1, 3, length))) % VOCAB)
        yield batch


def train():
    parser = argparse.ArgumentParser("gru4rec benchmark.")
    parser.add_argument("--base_lr", type=float, default=0.05)
    parser.add_argument("--batch_size", type=int, default=10)
    parser.add_argument("--model_dir", default="model_recall20")
    args = parser.parse_args()
    fluid.default_startup_program().random_seed = 1000
    src, dst, avg_cost, acc = all_vocab_network(VOCAB)
    fluid.optimizer.Adagrad(learning_rate=args.base_lr).minimize(avg_cost)
    place = fluid.CPUPlace()
    exe = fluid.Executor(place)

    def train_loop(main_program, trainer_id):
        exe.run(fluid.default_startup_program())
        t0 = time.time()
        for i, data in enumerate(sessions(trainer_id, args.batch_size, 20)):
            lod_src = to_lodtensor([d[:-1] for d in data], place)
            lod_dst = to_lodtensor([d[1:] for d in data], place)
            ret = exe.run(main_program, feed={"src_wordseq": lod_src, "dst_wordseq": lod_dst},
                          fetch_list=[avg_cost, acc], return_numpy=False)
            print("step %d loss %.7g recall20 %.6f" % (i, np.array(ret[0])[0], np.array(ret[1])[0]))
        print("epoch:%d num_steps:%d time_cost(s):%f" % (0, 20, time.time() - t0))

    if os.getenv("TRAINING_ROLE") is None:
        train_loop(fluid.default_main_program(), 0)
        fluid.io.save_inference_model(args.model_dir, ["src_wordseq", "dst_wordseq"], [avg_cost, acc], exe)
    else:
        trainer_id = int(os.getenv("PADDLE_TRAINER_ID", "0"))
        t = fluid.DistributeTranspiler()
        t.transpile(trainer_id, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                    trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
        if os.getenv("TRAINING_ROLE") == "PSERVER":
            endpoint = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
            pserver_prog = t.get_pserver_program(endpoint)
            exe.run(t.get_startup_program(endpoint, pserver_prog))
            exe.run(pserver_prog)
        else:
            train_loop(t.get_trainer_program(), trainer_id)
            exe.close()


if __name__ == "__main__":
    train()
