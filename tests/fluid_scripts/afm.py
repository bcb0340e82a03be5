"""Attentional factorization machine."""
import itertools
import os

import numpy as np
import paddle.fluid as fluid


class AFM(object):
    num_feat, num_field, embedding_size, hidden = 140, 7, 6, 5

    def __init__(self):
        self.raw_feat_idx = fluid.data("feat_idx", shape=[None, self.num_field], dtype="int64")
        self.label = fluid.data("label", shape=[None, 1], dtype="float32")
        init = fluid.initializer.TruncatedNormalInitializer(loc=0.0, scale=0.3)
        idx = fluid.layers.reshape(self.raw_feat_idx, [-1, 1])
        first = fluid.embedding(idx, size=[self.num_feat, 1], is_sparse=True, param_attr=fluid.ParamAttr(
            initializer=fluid.initializer.ConstantInitializer(0.0)))
        first = fluid.layers.reduce_sum(fluid.layers.reshape(first, [-1, self.num_field]), 1, keep_dim=True)
        emb = fluid.embedding(idx, size=[self.num_feat, self.embedding_size], is_sparse=True,
                              param_attr=fluid.ParamAttr(initializer=init))
        emb = fluid.layers.reshape(emb, [-1, self.num_field, self.embedding_size])

        pairs = list(itertools.combinations(range(self.num_field), 2))
        by_field = fluid.layers.transpose(emb, [1, 0, 2])
        left = fluid.layers.gather(by_field, fluid.layers.assign(np.array([i for i, _ in pairs], "int32")))
        right = fluid.layers.gather(by_field, fluid.layers.assign(np.array([j for _, j in pairs], "int32")))
        products = fluid.layers.transpose(left * right, [1, 0, 2])

        attention = fluid.layers.fc(products, self.hidden, num_flatten_dims=2, act="relu", name="attention")
        h = fluid.layers.create_parameter([self.hidden, 1], "float32", default_initializer=init)
        scores = fluid.layers.softmax(fluid.layers.matmul(attention, h), axis=1)
        pooled = fluid.layers.reduce_sum(products * scores, dim=1)
        p = fluid.layers.create_parameter([self.embedding_size, 1], "float32", default_initializer=init)
        y = first + fluid.layers.matmul(pooled, p)
        self.predict = fluid.layers.sigmoid(y)
        self.loss = fluid.layers.reduce_mean(fluid.layers.log_loss(self.predict, self.label, epsilon=1e-6))


def batches(seed):
    rng = np.random.RandomState(seed)
    for _ in range(20):
        idx = rng.randint(0, 20, (20, AFM.num_field)) + 20 * np.arange(AFM.num_field)
        yield idx.astype("int64"), ((idx[:, :1] + idx[:, 3:4]) % 2).astype("float32")


def main():
    fluid.default_startup_program().random_seed = 44
    model = AFM()
    fluid.optimizer.SGD(learning_rate=0.5).minimize(model.loss)
    exe = fluid.Executor(fluid.CPUPlace())
    distributed = "TRAINING_ROLE" in os.environ
    trainer_id = int(os.environ.get("PADDLE_TRAINER_ID", 0))
    program = fluid.default_main_program()
    if distributed:
        t = fluid.DistributeTranspiler()
        t.transpile(trainer_id, pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"],
                    trainers=int(os.environ["PADDLE_TRAINERS_NUM"]))
        if os.environ["TRAINING_ROLE"] == "PSERVER":
            endpoint = os.environ["POD_IP"] + ":" + os.environ["PADDLE_PORT"]
            server = t.get_pserver_program(endpoint)
            exe.run(t.get_startup_program(endpoint, server))
            return exe.run(server)
        program = t.get_trainer_program()
    exe.run(fluid.default_startup_program())
    for i, (idx, label) in enumerate(batches(trainer_id + 1)):
        cost = exe.run(program, feed={"feat_idx": idx, "label": label}, fetch_list=[model.loss])
        print("step %d loss %.7g" % (i, cost[0]))
    if distributed and trainer_id == 0:
        fluid.io.save_persistables(exe, "afm", program)
    exe.close()


if __name__ == "__main__":
    main()
