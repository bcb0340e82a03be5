"""Multi-gate mixture of experts for two tasks on census-like rows."""
import os

import numpy as np
import paddle.fluid as fluid

FEATURES, EXPERTS, EXPERT_SIZE, TOWER = 20, 4, 8, 6


def fc_layers(input, layers, acts, prefix):
    fc_layers_input, fc_layers_size, fc_layers_act = [input], layers, acts
    init_range, scales_tmp = 0.2, [input.shape[1]] + fc_layers_size
    scales = [init_range / (size ** 0.5) for size in scales_tmp]
    for i in range(len(fc_layers_size)):
        name = prefix + "_" + str(i)
        fc = fluid.layers.fc(
            input=fc_layers_input[-1], size=fc_layers_size[i], act=fc_layers_act[i],
            param_attr=fluid.ParamAttr(
                initializer=fluid.initializer.Normal(loc=0.0, scale=scales[i]), name=name + ".w_0"),
            bias_attr=fluid.ParamAttr(name=name + ".b_0"), name=name)
        fc_layers_input.append(fc)
    return fc_layers_input[-1]


def mmoe(inputs, label_income, label_marital):
    experts = fluid.layers.fc(input=inputs, size=EXPERTS * EXPERT_SIZE, act="relu", name="experts")
    experts = fluid.layers.reshape(experts, [-1, EXPERTS, EXPERT_SIZE])
    outputs = []
    for task in range(2):
        gate = fluid.layers.fc(input=inputs, size=EXPERTS, act="softmax", bias_attr=False, name="gate_%d" % task)
        mixed = fluid.layers.elementwise_mul(experts, gate, axis=0)
        mixed = fluid.layers.reduce_sum(mixed, dim=1)
        tower = fc_layers(mixed, [TOWER, 2], ["relu", "softmax"], "tower_%d" % task)
        outputs.append(fluid.layers.clip(tower, min=1e-15, max=1.0 - 1e-15))
    income, marital = outputs
    cost_income = fluid.layers.cross_entropy(income, label_income, soft_label=True)
    cost_marital = fluid.layers.cross_entropy(marital, label_marital, soft_label=True)
    avg_income, avg_marital = fluid.layers.mean(cost_income), fluid.layers.mean(cost_marital)
    auc_label = fluid.layers.cast(fluid.layers.slice(label_income, [1], [1], [2]), "int64")
    auc, _, _ = fluid.layers.auc(input=income, label=auc_label)
    return avg_income + avg_marital, avg_income, auc


def census(seed):
    rng = np.random.RandomState(seed)
    for _ in range(20):
        x = rng.normal(size=(32, FEATURES)).astype("float32")
        income, marital = x[:, 0] * x[:, 1] > 0, x[:, 2] + 0.5 * x[:, 0] > 0
        yield x, np.eye(2, dtype="float32")[income.astype(int)], np.eye(2, dtype="float32")[marital.astype(int)]


def train(exe, program, fetches, seed):
    exe.run(fluid.default_startup_program())
    for step, (x, income, marital) in enumerate(census(seed)):
        out = exe.run(program, feed={"x": x, "income": income, "marital": marital},
                      fetch_list=[v.name for v in fetches], return_numpy=True)
        print("step %d loss %.7g income %.7g auc %.6f" % (step, out[0], out[1], out[2]))


def main():
    fluid.default_startup_program().random_seed = 77
    x = fluid.data(name="x", shape=[None, FEATURES], dtype="float32")
    income = fluid.data(name="income", shape=[None, 2], dtype="float32")
    marital = fluid.data(name="marital", shape=[None, 2], dtype="float32")
    fetches = mmoe(x, income, marital)
    adam = fluid.optimizer.AdamOptimizer(learning_rate=fluid.layers.polynomial_decay(
        learning_rate=0.02, decay_steps=15, end_learning_rate=0.005, power=2.0))
    adam.minimize(fetches[0])
    exe = fluid.Executor(fluid.CPUPlace())
    if os.getenv("TRAINING_ROLE") is None:
        return train(exe, fluid.default_main_program(), fetches, 6)
    trainer_id = int(os.getenv("PADDLE_TRAINER_ID", "0"))
    t = fluid.DistributeTranspiler()
    t.transpile(trainer_id, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
    if os.getenv("TRAINING_ROLE") == "PSERVER":
        endpoint = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
        program = t.get_pserver_program(endpoint)
        exe.run(t.get_startup_program(endpoint, program))
        exe.run(program)
    else:
        train(exe, t.get_trainer_program(), fetches, 6 + trainer_id)
        exe.close()


if __name__ == "__main__":
    main()
