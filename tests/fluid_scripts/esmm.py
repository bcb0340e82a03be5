"""Entire space multi-task model: click and conversion towers over shared embeddings of variable-length fields."""
import argparse
import os

import numpy as np
import paddle.fluid as fluid

VOCAB, EMB, SLOTS = 160, 6, 4


def fc(tag, data, out_dim, active="relu"):
    init_range = 0.2
    scale = init_range / (data.shape[1] ** 0.5)
    if active == "relu":
        active = fluid.layers.relu
    p_attr = fluid.ParamAttr(name="%s_weight" % tag, initializer=fluid.initializer.NormalInitializer(0.0, scale))
    b_attr = fluid.ParamAttr(name="%s_bias" % tag, initializer=fluid.initializer.Constant(0.1))
    out = fluid.layers.fc(input=data, size=out_dim, param_attr=p_attr, bias_attr=b_attr, name=tag)
    return active(out) if active else out


def esmm():
    slots = [fluid.data(name="field_%d" % i, shape=[-1, 1], dtype="int64", lod_level=1) for i in range(SLOTS)]
    ctr_clk = fluid.data(name="click", shape=[-1, 1], dtype="int64")
    ctcvr_buy = fluid.data(name="buy", shape=[-1, 1], dtype="int64")
    emb = []
    for data in slots:
        feat_emb = fluid.embedding(
            input=data, size=[VOCAB, EMB], dtype="float32", is_sparse=False,
            param_attr=fluid.ParamAttr(name="dis_emb", learning_rate=5.0, initializer=fluid.initializer.Xavier(
                fan_in=EMB, fan_out=EMB)))
        feat_emb = fluid.layers.lod_reset(fluid.layers.reshape(feat_emb, [-1, EMB]), data)
        emb.append(fluid.layers.sequence_pool(input=feat_emb, pool_type="sum"))
    concat_emb = fluid.layers.concat(emb, axis=1)

    def tower(name):
        hidden = fc(name + "_fc_2", fc(name + "_fc_1", concat_emb, 16), 8)
        return fc(name + "_out", hidden, 2, active=fluid.layers.softmax)

    ctr_out, cvr_out = tower("ctr"), tower("cvr")
    ctr_one = fluid.layers.slice(ctr_out, axes=[1], starts=[1], ends=[2])
    cvr_one = fluid.layers.slice(cvr_out, axes=[1], starts=[1], ends=[2])
    ctcvr_one = fluid.layers.elementwise_mul(ctr_one, cvr_one)
    ctcvr_two = fluid.layers.concat(input=[1 - ctcvr_one, ctcvr_one], axis=1)
    auc_ctr, _, _ = fluid.layers.auc(input=ctr_out, label=ctr_clk)
    auc_ctcvr, _, _ = fluid.layers.auc(input=ctcvr_two, label=ctcvr_buy)
    loss_ctr = fluid.layers.cross_entropy(input=ctr_out, label=ctr_clk)
    loss_ctcvr = fluid.layers.cross_entropy(input=ctcvr_two, label=ctcvr_buy)
    avg_cost = fluid.layers.mean(loss_ctr + loss_ctcvr)
    return slots + [ctr_clk, ctcvr_buy], avg_cost, auc_ctr, auc_ctcvr


def reader(seed, steps, batch_size):
    rng = np.random.RandomState(seed)

    def batch_generator():
        for _ in range(steps):
            instances = []
            for _ in range(batch_size):
                fields = [rng.randint(0, VOCAB, rng.randint(1, 4)).tolist() for _ in range(SLOTS)]
                click = int(sum(fields[0]) % 5 < 2)
                instances.append(fields + [[click], [click * int(fields[1][0] % 3 == 0)]])
            yield instances

    return batch_generator


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=24)
    args = parser.parse_args()
    fluid.default_startup_program().random_seed = 8
    feeds, avg_cost, auc_ctr, auc_ctcvr = esmm()
    fluid.optimizer.Adam(learning_rate=0.01).minimize(avg_cost)
    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    program, trainer_id = fluid.default_main_program(), int(os.getenv("PADDLE_TRAINER_ID", "0"))
    role = os.getenv("TRAINING_ROLE")
    if role:
        config = fluid.DistributeTranspilerConfig()
        config.slice_var_up = False
        config.split_method = fluid.transpiler.ps_dispatcher.RoundRobin
        t = fluid.DistributeTranspiler(config)
        t.transpile(trainer_id, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                    trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
        if role == "PSERVER":
            endpoint = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
            pserver = t.get_pserver_program(endpoint)
            exe.run(t.get_startup_program(endpoint, pserver))
            exe.run(pserver)
            return
        program = t.get_trainer_program()
    exe.run(fluid.default_startup_program())
    loader = fluid.io.DataLoader.from_generator(feed_list=feeds, capacity=16, iterable=True)
    loader.set_sample_list_generator(reader(90 + trainer_id, args.steps, args.batch_size), places=place)
    for i, data in enumerate(loader()):
        cost, ctr, ctcvr = exe.run(program, feed=data, fetch_list=[avg_cost, auc_ctr, auc_ctcvr])
        print("step %d loss %.7g ctr_auc %.6f ctcvr_auc %.6f" % (i, cost, ctr, ctcvr))
    if role is None:
        fluid.io.save_persistables(exe, "esmm_model", filename="params")
    exe.close()


if __name__ == "__main__":
    main()
