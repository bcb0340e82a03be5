"""The book's recommender: users and films on one scale, film titles by convolution (Fluid 1.5 style)."""
from __future__ import print_function

import os

import numpy as np
import paddle
import paddle.fluid as fluid
import paddle.fluid.layers as layers
import paddle.fluid.nets as nets

IS_SPARSE = True
USERS, FILMS, CATEGORIES, TITLE_WORDS, JOBS, AGES = 40, 60, 9, 80, 11, 7


def get_usr_combined_features():
    def one(name, size, width, table, fc_width):
        value = layers.data(name=name, shape=[1], dtype="int64")
        emb = layers.embedding(
            input=value, dtype="float32", size=[size, width], param_attr=table, is_sparse=IS_SPARSE)
        return layers.fc(input=emb, size=fc_width)

    features = [one("user_id", USERS, 16, "user_table", 16), one("gender_id", 2, 8, "gender_table", 8),
                one("age_id", AGES, 8, "age_table", 8), one("job_id", JOBS, 8, "job_table", 8)]
    return layers.fc(input=layers.concat(input=features, axis=1), size=24, act="tanh")


def get_mov_combined_features():
    mov_id = layers.data(name="movie_id", shape=[1], dtype="int64")
    mov_emb = layers.embedding(
        input=mov_id, dtype="float32", size=[FILMS, 16], param_attr="movie_table", is_sparse=IS_SPARSE)
    mov_fc = layers.fc(input=mov_emb, size=16)
    category_id = layers.data(name="category_id", shape=[1], dtype="int64", lod_level=1)
    category_emb = layers.embedding(input=category_id, size=[CATEGORIES, 8], is_sparse=IS_SPARSE)
    category_hidden = layers.sequence_pool(input=category_emb, pool_type="sum")
    title_id = layers.data(name="movie_title", shape=[1], dtype="int64", lod_level=1)
    title_emb = layers.embedding(input=title_id, size=[TITLE_WORDS, 8], is_sparse=IS_SPARSE)
    title_conv = nets.sequence_conv_pool(
        input=title_emb, num_filters=8, filter_size=3, act="tanh", pool_type="sum")
    concat_embed = layers.concat(input=[mov_fc, category_hidden, title_conv], axis=1)
    return layers.fc(input=concat_embed, size=24, act="tanh")


def inference_program():
    usr_combined_features = get_usr_combined_features()
    mov_combined_features = get_mov_combined_features()
    inference = layers.cos_sim(X=usr_combined_features, Y=mov_combined_features)
    return layers.scale(x=inference, scale=5.0)


def train_program():
    scale_infer = inference_program()
    label = layers.data(name="score", shape=[1], dtype="float32")
    square_cost = layers.square_error_cost(input=scale_infer, label=label)
    return [layers.mean(square_cost), scale_infer]


def movielens(seed, count):
    films = np.random.RandomState(4)
    categories = [films.randint(0, CATEGORIES, films.randint(1, 4)).tolist() for _ in range(FILMS)]
    titles = [films.randint(0, TITLE_WORDS, films.randint(1, 6)).tolist() for _ in range(FILMS)]

    def reader():
        rng = np.random.RandomState(seed)
        for _ in range(count):
            user, film = rng.randint(0, USERS), rng.randint(0, FILMS)
            score = float((user * 7 + categories[film][0]) % 5 + 1)
            yield [user], [user % 2], [user % AGES], [user % JOBS], [film], categories[film], titles[film], [score]

    return reader


def train(place):
    fluid.default_startup_program().random_seed = 55
    avg_cost, scale_infer = train_program()
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.SGDOptimizer(learning_rate=0.2).minimize(avg_cost)
    exe = fluid.Executor(place)
    feed_order = ["user_id", "gender_id", "age_id", "job_id", "movie_id", "category_id", "movie_title", "score"]

    def train_loop(main_program, seed):
        feed_list = [main_program.global_block().var(var_name) for var_name in feed_order]
        feeder = fluid.DataFeeder(feed_list, place)
        exe.run(fluid.default_startup_program())
        for batch_id, data in enumerate(paddle.batch(movielens(seed, 20 * 16), batch_size=16)()):
            outs = exe.run(program=main_program, feed=feeder.feed(data), fetch_list=[avg_cost])
            out = np.array(outs[0])
            print("step %d loss %.7g" % (batch_id, out[0]))
        return feeder

    role, tid = os.getenv("PADDLE_TRAINING_ROLE", "LOCAL"), int(os.getenv("PADDLE_TRAINER_ID", "0"))
    if role == "LOCAL":
        feeder = train_loop(fluid.default_main_program(), 0)
        for data in paddle.batch(movielens(888, 32), batch_size=32)():
            avg_cost_np = exe.run(program=test_program, feed=feeder.feed(data), fetch_list=[avg_cost])
            print("test loss %.7g" % avg_cost_np[0])
        fluid.io.save_inference_model("recommender", feed_order[:-1], [scale_infer], exe)
        return
    port = os.getenv("PADDLE_PSERVER_PORT", "6174")
    endpoints = ",".join(ip + ":" + port for ip in os.getenv("PADDLE_PSERVER_IPS", "").split(","))
    t = fluid.DistributeTranspiler()
    t.transpile(tid, pservers=endpoints, trainers=int(os.getenv("PADDLE_TRAINERS")))
    if role == "PSERVER":
        current = os.getenv("PADDLE_CURRENT_IP", "") + ":" + port
        pserver_prog = t.get_pserver_program(current)
        exe.run(t.get_startup_program(current, pserver_prog))
        exe.run(pserver_prog)
    else:
        train_loop(t.get_trainer_program(), tid)
        exe.close()


if __name__ == "__main__":
    train(fluid.CPUPlace())
