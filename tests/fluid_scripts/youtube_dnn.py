"""Candidate generation: averages of watched and searched items, softmax over all items, top-k recall."""
import os

import numpy as np
import paddle.fluid as fluid

WATCH, SEARCH, OTHER, CLASSES = 12, 8, 5, 60


def youtubednn(watch_vec, search_vec, other_feat, label, hidden=(32, 16)):
    concat = fluid.layers.concat([watch_vec, search_vec, other_feat], axis=1)
    x = concat
    for i, size in enumerate(hidden):
        x = fluid.layers.fc(
            x, size, act="relu", name="l%d" % i,
            param_attr=fluid.ParamAttr(initializer=fluid.initializer.Normal(scale=0.1)))
    video_vec = fluid.layers.create_parameter(
        shape=[hidden[-1], CLASSES], dtype="float32", attr=fluid.ParamAttr(name="l4_weight"),
        default_initializer=fluid.initializer.UniformInitializer(low=-0.1, high=0.1, seed=12))
    logits = fluid.layers.matmul(x, video_vec)
    loss, softmax = fluid.layers.softmax_with_cross_entropy(logits, label, return_softmax=True)
    acc = fluid.layers.accuracy(input=softmax, label=label, k=5)
    return fluid.layers.mean(loss), acc, x


def reader(seed):
    rng = np.random.RandomState(seed)
    centers = np.random.RandomState(1).normal(size=(CLASSES, WATCH + SEARCH))
    for _ in range(20):
        label = rng.randint(0, CLASSES, 48)
        taste = centers[label] + rng.normal(size=(48, WATCH + SEARCH)) * 0.5
        yield {"watch_vec": taste[:, :WATCH].astype("float32"), "search_vec": taste[:, WATCH:].astype("float32"),
               "other_feat": rng.rand(48, OTHER).astype("float32"), "label": label.reshape(-1, 1).astype("int64")}


def main():
    fluid.default_startup_program().random_seed = 9
    watch_vec = fluid.data(name="watch_vec", shape=[None, WATCH], dtype="float32")
    search_vec = fluid.data(name="search_vec", shape=[None, SEARCH], dtype="float32")
    other_feat = fluid.data(name="other_feat", shape=[None, OTHER], dtype="float32")
    label = fluid.data(name="label", shape=[None, 1], dtype="int64")
    loss, acc, user_vec = youtubednn(watch_vec, search_vec, other_feat, label)
    optimizer = fluid.optimizer.RMSProp(
        learning_rate=0.003, rho=0.9, momentum=0.5, epsilon=1e-5,
        regularization=fluid.regularizer.L2Decay(regularization_coeff=1e-3))
    optimizer.minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    role, tid = os.getenv("TRAINING_ROLE"), int(os.getenv("PADDLE_TRAINER_ID", "0"))
    program = fluid.default_main_program()
    if role is not None:
        t = fluid.DistributeTranspiler()
        t.transpile(tid, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                    trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
    if role == "PSERVER":
        endpoint = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
        pserver_prog, pserver_startup = t.get_pserver_programs(endpoint)
        exe.run(pserver_startup)
        exe.run(pserver_prog)
        return
    if role == "TRAINER":
        program = t.get_trainer_program()
    exe.run(fluid.default_startup_program())
    accuracy = fluid.metrics.Accuracy()
    for step, feed in enumerate(reader(60 + tid)):
        cost, top5 = exe.run(program, feed=feed, fetch_list=[loss, acc])
        accuracy.update(value=top5, weight=48)
        print("step %d loss %.7g top5 %.6f" % (step, cost[0], accuracy.eval()))
    if role is None:
        fluid.io.save_inference_model(
            "youtube", feeded_var_names=["watch_vec", "search_vec", "other_feat"], target_vars=[user_vec],
            executor=exe, model_filename="__model__", params_filename="params")
        program, names, targets = fluid.io.load_inference_model(
            "youtube", exe, model_filename="__model__", params_filename="params")
        feed = next(reader(5))
        vectors, = exe.run(program, feed={name: feed[name] for name in names}, fetch_list=targets)
        print("test mean %.7g max %.7g" % (vectors.mean(), vectors.max()))
    exe.close()


if __name__ == "__main__":
    main()
