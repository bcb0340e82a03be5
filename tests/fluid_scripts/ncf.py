"""Neural collaborative filtering: generalized matrix factorization and a perceptron, fleet for the distributed run."""
import argparse
import os

import numpy as np
import paddle.fluid as fluid
import paddle.fluid.incubate.fleet.base.role_maker as role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy import StrategyFactory

USERS, ITEMS, LATENT = 50, 70, 8


def input_data():
    user_input = fluid.data(name="user_input", shape=[-1, 1], dtype="int64")
    item_input = fluid.data(name="item_input", shape=[-1, 1], dtype="int64")
    label = fluid.data(name="label", shape=[-1, 1], dtype="int64")
    return [user_input, item_input, label]


def net(inputs, layers=(16, 8)):
    def embedding(x, rows, name):
        emb = fluid.embedding(
            input=x, size=[rows, LATENT],
            param_attr=fluid.ParamAttr(name=name, initializer=fluid.initializer.Normal(loc=0.0, scale=0.05),
                                       regularizer=fluid.regularizer.L2DecayRegularizer(1e-3)))
        return fluid.layers.flatten(x=emb, axis=1)

    user, item = inputs[0], inputs[1]
    mf_vector = fluid.layers.elementwise_mul(
        embedding(user, USERS, "MF_Embedding_User"), embedding(item, ITEMS, "MF_Embedding_Item"))
    mlp_vector = fluid.layers.concat(
        [embedding(user, USERS, "MLP_Embedding_User"), embedding(item, ITEMS, "MLP_Embedding_Item")], axis=-1)
    for i, size in enumerate(layers):
        mlp_vector = fluid.layers.fc(
            input=mlp_vector, size=size, act="relu", name="layer_%d" % (i + 1),
            param_attr=fluid.ParamAttr(initializer=fluid.initializer.TruncatedNormal(
                loc=0.0, scale=1.0 / mlp_vector.shape[1] ** 0.5)))
    predict_vector = fluid.layers.concat([mf_vector, mlp_vector], axis=-1)
    prediction = fluid.layers.fc(
        input=predict_vector, size=1, act="sigmoid", name="prediction",
        param_attr=fluid.ParamAttr(initializer=fluid.initializer.MSRAInitializer(uniform=True)))
    cost = fluid.layers.log_loss(input=prediction, label=fluid.layers.cast(x=inputs[2], dtype="float32"))
    return fluid.layers.mean(cost)


def ratings(seed, batch_size):
    taste, kind = np.arange(USERS) % 5, np.arange(ITEMS) % 5

    def batch_generator():
        rng = np.random.RandomState(seed)
        for _ in range(20):
            users, items = rng.randint(0, USERS, (batch_size, 1)), rng.randint(0, ITEMS, (batch_size, 1))
            yield users, items, (taste[users] == kind[items]).astype("int64")

    return batch_generator


def train(args, exe, program, inputs, loss, seed):
    loader = fluid.io.DataLoader.from_generator(feed_list=inputs, capacity=16, iterable=True)
    loader.set_batch_generator(ratings(seed, args.batch_size), places=fluid.CPUPlace())
    for batch, data in enumerate(loader()):
        value = exe.run(program=program, feed=data, fetch_list=[loss])[0]
        print("step {} loss {:.7g}".format(batch, np.mean(value)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    fluid.default_startup_program().random_seed = 28
    inputs = input_data()
    loss = net(inputs)
    optimizer = fluid.optimizer.AdamOptimizer(args.lr)
    exe = fluid.Executor(fluid.CPUPlace())
    if "TRAINING_ROLE" not in os.environ:
        optimizer.minimize(loss)
        exe.run(fluid.default_startup_program())
        train(args, exe, fluid.default_main_program(), inputs, loss, 0)
        return

    role = role_maker.UserDefinedRoleMaker(
        current_id=int(os.environ["PADDLE_TRAINER_ID"]) if os.environ["TRAINING_ROLE"] == "TRAINER" else
        os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(",").index(
            os.environ["POD_IP"] + ":" + os.environ["PADDLE_PORT"]),
        role=role_maker.Role.WORKER if os.environ["TRAINING_ROLE"] == "TRAINER" else role_maker.Role.SERVER,
        worker_num=int(os.environ["PADDLE_TRAINERS_NUM"]),
        server_endpoints=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(","))
    fleet.init(role)
    strategy = StrategyFactory.create_sync_strategy()
    optimizer = fleet.distributed_optimizer(optimizer, strategy)
    optimizer.minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    elif fleet.is_worker():
        fleet.init_worker()
        exe.run(fleet.startup_program)
        train(args, exe, fleet.main_program, inputs, loss, fleet.worker_index())
        if fleet.is_first_worker():
            fleet.save_persistables(executor=exe, dirname="ncf_model")
        fleet.stop_worker()


if __name__ == "__main__":
    main()
