"""Neural factorization machine."""
import os

import numpy as np
import paddle.fluid as fluid

FIELDS, FEATS, DIM = 7, 210, 10


class Nfm(object):
    def __init__(self, reg=1e-4):
        self.reg = reg

    def input(self):
        self.idx = fluid.data("feat_idx", [None, FIELDS], "int64")
        self.value = fluid.data("feat_value", [None, FIELDS], "float32")
        self.label = fluid.data("label", [None, 1], "float32")

        self.loader = fluid.io.DataLoader.from_generator(
            feed_list=[self.idx, self.value, self.label], capacity=4, iterable=False)

    def net(self):
        truncated = fluid.initializer.TruncatedNormalInitializer(loc=0.0, scale=0.1)
        regularizer = fluid.regularizer.L2DecayRegularizer(self.reg)
        value = fluid.layers.reshape(self.value, [-1, FIELDS, 1])
        first = fluid.embedding(self.idx, size=[FEATS, 1], param_attr=fluid.ParamAttr(
            initializer=truncated, regularizer=regularizer))
        y_first_order = fluid.layers.reduce_sum(first * value, 1)
        emb = fluid.embedding(self.idx, size=[FEATS, DIM], padding_idx=0, param_attr=fluid.ParamAttr(
            name="SparseFeatFactors", initializer=truncated, regularizer=regularizer))
        emb = emb * value
        summed = fluid.layers.square(fluid.layers.reduce_sum(emb, 1))
        squared = fluid.layers.reduce_sum(fluid.layers.square(emb), 1)
        bi = 0.5 * (summed - squared)
        y = bi
        for units in (16, 8):
            y = fluid.layers.fc(
                input=y, size=units, act="relu",
                param_attr=fluid.ParamAttr(initializer=fluid.initializer.MSRA(uniform=False)),
                bias_attr=fluid.ParamAttr(initializer=truncated))
        y_dnn = fluid.layers.fc(input=y, size=1, bias_attr=False)
        b = fluid.layers.create_global_var(shape=[1], value=0.01, dtype="float32", persistable=True, name="offset")
        self.predict = fluid.layers.sigmoid(y_first_order + y_dnn + b)
        cost = fluid.layers.log_loss(input=self.predict, label=self.label)
        self.loss = fluid.layers.reduce_sum(cost)
        self.avg = fluid.layers.reduce_mean(cost)


def reader(seed):
    rng = np.random.RandomState(seed)
    for _ in range(20):
        idx = rng.randint(0, 30, (32, FIELDS)) + 30 * np.arange(FIELDS)
        value = rng.uniform(0.2, 1.0, (32, FIELDS)).astype("float32")
        yield idx.astype("int64"), value, (rng.rand(32, 1) < 1 / (1 + np.exp(-np.sin(idx[:, :1])))).astype("float32")


if __name__ == "__main__":
    fluid.default_startup_program().random_seed = 5
    model = Nfm()
    model.input()
    model.net()
    optimizer = fluid.optimizer.MomentumOptimizer(learning_rate=0.004, momentum=0.9, use_nesterov=True)
    optimizer.minimize(model.loss)
    exe = fluid.Executor(fluid.CPUPlace())
    prog, rank = fluid.default_main_program(), int(os.getenv("PADDLE_TRAINER_ID", "0"))
    role = os.getenv("TRAINING_ROLE", "")
    if role:
        t = fluid.DistributeTranspiler()
        t.transpile(rank, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                    trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
    if role == "PSERVER":
        endpoint = ":".join([os.getenv("POD_IP"), os.getenv("PADDLE_PORT")])
        pserver_prog = t.get_pserver_program(endpoint)
        exe.run(t.get_startup_program(endpoint, pserver_prog))
        exe.run(pserver_prog)
    else:
        if role == "TRAINER":
            prog = t.get_trainer_program()
        exe.run(fluid.default_startup_program())
        loader = model.loader
        loader.set_batch_generator(lambda: reader(1000 + rank))
        loader.start()
        step = 0
        try:
            while True:
                total, avg = exe.run(prog, fetch_list=[model.loss, model.avg])
                print("step %d loss %.7g avg %.7g" % (step, total, avg))
                step += 1
        except fluid.core.EOFException:
            loader.reset()
        exe.close()
