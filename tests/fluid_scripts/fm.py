"""Factorization machine on Criteo-like fields: 8 continuous and 12 categorical ones, each with an id and a value."""
import argparse
import os
import sys

import numpy as np
import paddle.fluid as fluid


def parse_args():
    parser = argparse.ArgumentParser(description="FM")
    parser.add_argument("--num_feat", type=int, default=600, help="number of features")
    parser.add_argument("--num_field", type=int, default=20)
    parser.add_argument("--embedding_size", type=int, default=8)
    parser.add_argument("--reg", type=float, default=1e-4)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--num_batch", type=int, default=20)
    parser.add_argument("--model_dir", default="fm_model")
    parser.add_argument("--role", default=os.getenv("TRAINING_ROLE", "local"))
    return parser.parse_args()


def fm(args):
    init_value_ = 0.1
    raw_feat_idx = fluid.data(name="feat_idx", shape=[None, args.num_field], dtype="int64")
    raw_feat_value = fluid.data(name="feat_value", shape=[None, args.num_field], dtype="float32")
    label = fluid.data(name="label", shape=[None, 1], dtype="float32")
    feat_idx = fluid.layers.reshape(raw_feat_idx, [-1, 1])
    feat_value = fluid.layers.reshape(raw_feat_value, [-1, args.num_field, 1])

    first_weights = fluid.embedding(
        input=feat_idx, is_sparse=True, size=[args.num_feat + 1, 1], padding_idx=None, dtype="float32",
        param_attr=fluid.ParamAttr(
            initializer=fluid.initializer.TruncatedNormalInitializer(loc=0.0, scale=init_value_)))
    first_weights = fluid.layers.reshape(first_weights, shape=[-1, args.num_field, 1])
    y_first_order = fluid.layers.reduce_sum(first_weights * feat_value, 1)
    b_linear = fluid.layers.create_parameter(
        shape=[1], dtype="float32", default_initializer=fluid.initializer.ConstantInitializer(value=0))

    feat_embeddings = fluid.embedding(
        input=feat_idx, is_sparse=True, size=[args.num_feat + 1, args.embedding_size], dtype="float32",
        param_attr=fluid.ParamAttr(
            initializer=fluid.initializer.TruncatedNormalInitializer(
                loc=0.0, scale=init_value_ / (args.embedding_size ** 0.5))))
    feat_embeddings = fluid.layers.reshape(feat_embeddings, shape=[-1, args.num_field, args.embedding_size])
    feat_embeddings = feat_embeddings * feat_value
    summed_features_emb_square = fluid.layers.square(fluid.layers.reduce_sum(feat_embeddings, 1))
    squared_sum_features_emb = fluid.layers.reduce_sum(fluid.layers.square(feat_embeddings), 1)
    y_FM = 0.5 * fluid.layers.reduce_sum(
        summed_features_emb_square - squared_sum_features_emb, dim=1, keep_dim=True)

    predict = fluid.layers.sigmoid(b_linear + y_first_order + y_FM)
    cost = fluid.layers.log_loss(input=predict, label=label)
    batch_cost = fluid.layers.reduce_sum(cost)
    label_int = fluid.layers.cast(label, "int64")
    predict_2d = fluid.layers.concat([1 - predict, predict], 1)
    auc_var, batch_auc_var, auc_states = fluid.layers.auc(input=predict_2d, label=label_int, slide_steps=0)
    return [raw_feat_idx, raw_feat_value, label], batch_cost, auc_var, predict


def batches(args, shard):
    rng = np.random.RandomState(2020 + shard)
    for _ in range(args.num_batch):
        dense = rng.rand(args.batch_size, 8).astype("float32")
        first = np.tile(np.arange(8), (args.batch_size, 1))
        categories = rng.zipf(1.5, (args.batch_size, 12)) % 49 + 8 + 49 * np.arange(12)
        idx = np.concatenate([first, categories], axis=1).astype("int64")
        value = np.concatenate([dense, np.ones((args.batch_size, 12), "float32")], axis=1)
        label = (dense.sum(1) + categories[:, 0] % 3 > 4.5).astype("float32").reshape(-1, 1)
        yield {"feat_idx": idx, "feat_value": value, "label": label}


def train(args, exe, program, loss, auc, trainer_id=0):
    for i, feed in enumerate(batches(args, trainer_id)):
        loss_val, auc_val = exe.run(program, feed=feed, fetch_list=[loss.name, auc.name])
        print("step {} loss {:.7g} auc {:.6f}".format(i, float(loss_val), float(auc_val)))
        sys.stdout.flush()


def main():
    args = parse_args()
    fluid.default_startup_program().random_seed = 2020
    feeds, loss, auc, predict = fm(args)
    test_program = fluid.default_main_program().clone(for_test=True)
    optimizer = fluid.optimizer.SGD(
        learning_rate=fluid.layers.exponential_decay(args.lr, decay_steps=5, decay_rate=0.8, staircase=True))
    optimizer.minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())

    if args.role == "local":
        exe.run(fluid.default_startup_program())
        train(args, exe, fluid.default_main_program(), loss, auc)
        fluid.io.save_inference_model(args.model_dir, [v.name for v in feeds[:2]], [predict], exe)
        feed = next(batches(args, 77))
        test_loss, = exe.run(test_program, feed=feed, fetch_list=[loss])
        print("test loss %.7g" % test_loss)
        return
    eps = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"]
    trainer_id = int(os.environ.get("PADDLE_TRAINER_ID", 0))
    config = fluid.DistributeTranspilerConfig()
    config.slice_var_up = False
    t = fluid.DistributeTranspiler(config=config)
    t.transpile(trainer_id, program=fluid.default_main_program(), pservers=eps,
                trainers=int(os.environ["PADDLE_TRAINERS_NUM"]), sync_mode=True)
    if args.role == "PSERVER":
        current = "%s:%s" % (os.environ["POD_IP"], os.environ["PADDLE_PORT"])
        pserver_prog = t.get_pserver_program(current)
        pserver_startup = t.get_startup_program(current, pserver_prog)
        exe.run(pserver_startup)
        exe.run(pserver_prog)
    elif args.role == "TRAINER":
        trainer_prog = t.get_trainer_program()
        exe.run(fluid.default_startup_program())
        train(args, exe, trainer_prog, loss, auc, trainer_id)
        exe.close()


if __name__ == "__main__":
    main()
