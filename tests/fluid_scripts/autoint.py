"""AutoInt: self-attention between feature fields."""
import os

import numpy as np
import paddle.fluid as fluid

FIELDS, FEATS, D = 6, 150, 8


def interacting_layer(x, heads, att_size, use_residual, name):
    def project(tag):
        out = fluid.layers.fc(x, heads * att_size, num_flatten_dims=2, bias_attr=False, name=name + tag)
        out = fluid.layers.reshape(out, [0, 0, heads, att_size])
        return fluid.layers.transpose(out, [0, 2, 1, 3])

    q, k, v = project("_q"), project("_k"), project("_v")
    scores = fluid.layers.matmul(q, k, transpose_y=True, alpha=att_size ** -0.5)
    weights = fluid.layers.softmax(scores)
    out = fluid.layers.matmul(weights, v)
    out = fluid.layers.reshape(fluid.layers.transpose(out, [0, 2, 1, 3]), [0, 0, heads * att_size])
    if use_residual:
        out = out + fluid.layers.fc(x, heads * att_size, num_flatten_dims=2, bias_attr=False, name=name + "_res")
    return fluid.layers.layer_norm(fluid.layers.relu(out), begin_norm_axis=2, name=name + "_ln")


def net(idx, label):
    emb = fluid.embedding(idx, [FEATS, D], param_attr=fluid.ParamAttr(
        name="feat_emb", initializer=fluid.initializer.Xavier(uniform=False)))
    y = emb
    for i in range(2):
        y = interacting_layer(y, 2, 6, True, "inter_%d" % i)
    logit = fluid.layers.fc(fluid.layers.flatten(y), 1, name="output")
    cost = fluid.layers.sigmoid_cross_entropy_with_logits(logit, label)
    return fluid.layers.mean(cost)


def batch(rng):
    idx = rng.randint(0, 25, (24, FIELDS)) + 25 * np.arange(FIELDS)
    label = ((idx[:, 0] + idx[:, 2]) % 4 < 2).astype("float32").reshape(-1, 1)
    return {"idx": idx.astype("int64"), "label": label}


def train(exe, program, loss, rng):
    exe.run(fluid.default_startup_program())
    for i in range(20):
        out = exe.run(program, feed=batch(rng), fetch_list=[loss], use_program_cache=True)
        print("step %d loss %.7g" % (i, np.array(out[0]).item()))


def main():
    main_prog, startup = fluid.Program(), fluid.Program()
    main_prog.random_seed = startup.random_seed = 17
    with fluid.program_guard(main_prog, startup):
        with fluid.unique_name.guard():
            idx = fluid.data("idx", [None, FIELDS], "int64")
            label = fluid.data("label", [None, 1], "float32")
            loss = net(idx, label)
            lr = fluid.layers.cosine_decay(0.01, step_each_epoch=10, epochs=4)
            fluid.optimizer.Adam(lr, beta1=0.9, beta2=0.98, epsilon=1e-5).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.program_guard(main_prog, startup):
        if "TRAINING_ROLE" not in os.environ:
            train(exe, main_prog, loss, np.random.RandomState(0))
            fluid.save(main_prog, "./autoint")
            return
        tid = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
        t = fluid.DistributeTranspiler()
        t.transpile(tid, program=main_prog, startup_program=startup, trainers=int(os.environ["PADDLE_TRAINERS_NUM"]),
                    pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"])
        if os.environ["TRAINING_ROLE"] == "PSERVER":
            me = "%s:%s" % (os.environ["POD_IP"], os.environ["PADDLE_PORT"])
            server, server_startup = t.get_pserver_programs(me)
            exe.run(server_startup)
            exe.run(server)
        else:
            train(exe, t.get_trainer_program(), loss, np.random.RandomState(tid))
            exe.close()


if __name__ == "__main__":
    main()
