"""xDeepFM with its compressed interaction network."""
import argparse
import os

import numpy as np
import paddle.fluid as fluid


def parse_args():
    parser = argparse.ArgumentParser("xdeepfm")
    parser.add_argument("--embedding_size", type=int, default=5)
    parser.add_argument("--num_field", type=int, default=6)
    parser.add_argument("--num_feat", type=int, default=180)
    parser.add_argument("--layer_sizes_dnn", type=str, default="10,10")
    parser.add_argument("--layer_sizes_cin", type=str, default="8,8")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--act", default="relu")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--reg", type=float, default=1e-4)
    parser.add_argument("--num_epoch", type=int, default=2)
    return parser.parse_args()


def ctr_xdeepfm_model(args, is_sparse=False):
    init_value_ = 0.1
    initer = fluid.initializer.TruncatedNormalInitializer(loc=0.0, scale=init_value_)
    num_field, k = args.num_field, args.embedding_size
    raw_feat_idx = fluid.data(name="feat_idx", dtype="int64", shape=[None, num_field])
    raw_feat_value = fluid.data(name="feat_value", dtype="float32", shape=[None, num_field])
    label = fluid.data(name="label", dtype="float32", shape=[None, 1])
    feat_idx = fluid.layers.reshape(raw_feat_idx, [-1, 1])
    feat_value = fluid.layers.reshape(raw_feat_value, [-1, num_field, 1])
    feat_embeddings = fluid.embedding(
        input=feat_idx, is_sparse=is_sparse, dtype="float32", size=[args.num_feat + 1, k], padding_idx=0,
        param_attr=fluid.ParamAttr(initializer=initer))
    feat_embeddings = fluid.layers.reshape(feat_embeddings, [-1, num_field, k]) * feat_value

    # linear
    weights_linear = fluid.embedding(
        input=feat_idx, is_sparse=is_sparse, dtype="float32", size=[args.num_feat + 1, 1], padding_idx=0,
        param_attr=fluid.ParamAttr(initializer=initer))
    weights_linear = fluid.layers.reshape(weights_linear, [-1, num_field, 1])
    b_linear = fluid.layers.create_parameter(
        shape=[1], dtype="float32", default_initializer=fluid.initializer.ConstantInitializer(value=0))
    y_linear = fluid.layers.reduce_sum(weights_linear * feat_value, 1) + b_linear

    # CIN
    Xs, last_s = [feat_embeddings], num_field
    for s in [int(v) for v in args.layer_sizes_cin.split(",")]:
        X_0 = fluid.layers.reshape(fluid.layers.transpose(Xs[0], [0, 2, 1]), [-1, k, num_field, 1])
        X_k = fluid.layers.reshape(fluid.layers.transpose(Xs[-1], [0, 2, 1]), [-1, k, 1, last_s])
        Z_k_1 = fluid.layers.matmul(X_0, X_k)
        Z_k_1 = fluid.layers.reshape(Z_k_1, [-1, k, last_s * num_field])
        Z_k_1 = fluid.layers.transpose(Z_k_1, [0, 2, 1])
        Z_k_1 = fluid.layers.reshape(Z_k_1, [-1, last_s * num_field, 1, k])
        X_k_1 = fluid.layers.conv2d(
            Z_k_1, num_filters=s, filter_size=(1, 1), act=None, bias_attr=False,
            param_attr=fluid.ParamAttr(initializer=initer))
        X_k_1 = fluid.layers.reshape(X_k_1, [-1, s, k])
        Xs.append(X_k_1)
        last_s = s
    y_cin = fluid.layers.concat(Xs[1:], 1)
    y_cin = fluid.layers.reduce_sum(y_cin, -1)
    y_cin = fluid.layers.fc(input=y_cin, size=1, param_attr=fluid.ParamAttr(initializer=initer))

    # DNN
    y_dnn = fluid.layers.reshape(feat_embeddings, [-1, num_field * k])
    for s in [int(v) for v in args.layer_sizes_dnn.split(",")]:
        y_dnn = fluid.layers.fc(
            input=y_dnn, size=s, act=args.act, param_attr=fluid.ParamAttr(initializer=initer),
            bias_attr=fluid.ParamAttr(initializer=initer))
    y_dnn = fluid.layers.fc(input=y_dnn, size=1, param_attr=fluid.ParamAttr(initializer=initer))

    predict = fluid.layers.sigmoid(y_linear + y_cin + y_dnn)
    cost = fluid.layers.log_loss(input=predict, label=label, epsilon=0.0000001)
    batch_cost = fluid.layers.reduce_mean(cost)
    predict_2d = fluid.layers.concat([1 - predict, predict], 1)
    label_int = fluid.layers.cast(label, "int64")
    auc_var, batch_auc_var, auc_states = fluid.layers.auc(input=predict_2d, label=label_int, slide_steps=0)
    return batch_cost, auc_var, [raw_feat_idx, raw_feat_value, label], auc_states


def epoch_reader(args, seed):
    def reader():
        rng = np.random.RandomState(seed)
        for _ in range(args.batch_size * 10):
            idx = rng.randint(1, 30, args.num_field) + 30 * np.arange(args.num_field)
            val = rng.rand(args.num_field).round(2)
            yield idx, val.astype("float32"), np.array([float(idx[0] % 3 == idx[1] % 3)], "float32")

    return fluid.io.batch(reader, batch_size=args.batch_size)


def train(args, exe, program, loss, auc, data_list, auc_states, trainer_id):
    exe.run(fluid.default_startup_program())
    feeder = fluid.DataFeeder(data_list, fluid.CPUPlace())
    step = 0
    for epoch in range(args.num_epoch):
        for batch in epoch_reader(args, 10 * epoch + trainer_id)():
            loss_val, auc_val = exe.run(program, feed=feeder.feed(batch), fetch_list=[loss, auc])
            print("step %d loss %.7g auc %.6f" % (step, float(loss_val), float(auc_val)))
            step += 1
        for var in auc_states:  # the metric starts anew with every epoch
            stat = fluid.global_scope().find_var(var.name).get_tensor()
            stat.set(np.zeros(stat.shape(), "int64"), fluid.CPUPlace())


def main():
    args = parse_args()
    fluid.default_startup_program().random_seed = 1234
    loss, auc, data_list, auc_states = ctr_xdeepfm_model(args)
    optimizer = fluid.optimizer.Adam(
        learning_rate=args.lr, regularization=fluid.regularizer.L2DecayRegularizer(args.reg))
    optimizer.minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    role = os.getenv("TRAINING_ROLE")
    trainer_id = int(os.getenv("PADDLE_TRAINER_ID", "0"))
    if role is None:
        train(args, exe, fluid.default_main_program(), loss, auc, data_list, auc_states, trainer_id)
        return
    t = fluid.DistributeTranspiler()
    t.transpile(trainer_id, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
    if role == "PSERVER":
        endpoint = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
        pserver_prog = t.get_pserver_program(endpoint)
        exe.run(t.get_startup_program(endpoint, pserver_prog))
        exe.run(pserver_prog)
    else:
        train(args, exe, t.get_trainer_program(), loss, auc, data_list, auc_states, trainer_id)
        exe.close()


if __name__ == "__main__":
    main()
