"""Tagging of words by a bidirectional GRU and a conditional random field."""
import argparse
import os

import numpy as np
import paddle.fluid as fluid

VOCAB, LABELS, EMB, HIDDEN = 90, 7, 10, 8


def lex_net(word, target, emb_dim=EMB, grnn_hidden_dim=HIDDEN, bigru_num=1):
    init_bound, emb_lr, crf_lr = 0.1, 2.0, 0.5
    uniform = fluid.initializer.Uniform(low=-init_bound, high=init_bound)

    def _bigru_layer(input_feature):
        def direction(is_reverse):
            pre_gru = fluid.layers.fc(
                input=input_feature, size=grnn_hidden_dim * 3,
                param_attr=fluid.ParamAttr(
                    initializer=uniform,
                    regularizer=fluid.regularizer.L2DecayRegularizer(regularization_coeff=1e-4)))
            return fluid.layers.dynamic_gru(
                input=pre_gru, size=grnn_hidden_dim, is_reverse=is_reverse,
                param_attr=fluid.ParamAttr(
                    initializer=uniform,
                    regularizer=fluid.regularizer.L2DecayRegularizer(regularization_coeff=1e-4)))

        return fluid.layers.concat(input=[direction(False), direction(True)], axis=1)

    word_embedding = fluid.embedding(
        input=word, size=[VOCAB, emb_dim], dtype="float32",
        param_attr=fluid.ParamAttr(learning_rate=emb_lr, name="word_emb", initializer=uniform))
    input_feature = word_embedding
    for _ in range(bigru_num):
        input_feature = _bigru_layer(input_feature)
    emission = fluid.layers.fc(
        size=LABELS, input=input_feature,
        param_attr=fluid.ParamAttr(
            initializer=uniform, regularizer=fluid.regularizer.L2DecayRegularizer(regularization_coeff=1e-4)))
    crf_cost = fluid.layers.linear_chain_crf(
        input=emission, label=target, param_attr=fluid.ParamAttr(name="crfw", learning_rate=crf_lr))
    avg_cost = fluid.layers.mean(x=crf_cost)
    crf_decode = fluid.layers.crf_decoding(input=emission, param_attr=fluid.ParamAttr(name="crfw"))
    return avg_cost, crf_decode


def sentences(seed):
    def reader():
        rng = np.random.RandomState(seed)
        for _ in range(20 * 6):
            words = rng.randint(0, VOCAB, rng.randint(3, 9))
            # B-x is 2x, I-x is 2x + 1, outside is 6
            tags, kind = [], 3
            for word in words:
                begins = word % 5 == 0
                kind = word % 3 if begins else (3 if word % 5 == 4 else kind)
                tags.append(6 if kind == 3 else 2 * kind + (0 if begins or not tags or tags[-1] // 2 != kind else 1))
            yield words.tolist(), tags

    return reader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--base_learning_rate", type=float, default=0.05)
    parser.add_argument("--batch_size", type=int, default=6)
    args = parser.parse_args()
    fluid.default_startup_program().random_seed = 110
    words = fluid.data(name="words", shape=[None, 1], dtype="int64", lod_level=1)
    targets = fluid.data(name="targets", shape=[None, 1], dtype="int64", lod_level=1)
    lexed = fluid.layers.reshape(words, [-1])
    lexed = fluid.layers.lod_reset(lexed, words)
    avg_cost, crf_decode = lex_net(lexed, targets)
    precision, recall, f1_score, num_infer, num_label, num_correct = fluid.layers.chunk_eval(
        input=crf_decode, label=targets, chunk_scheme="IOB", num_chunk_types=3)
    fluid.optimizer.SGD(learning_rate=args.base_learning_rate).minimize(avg_cost)
    exe = fluid.Executor(fluid.CPUPlace())
    role, trainer_id = os.getenv("TRAINING_ROLE"), int(os.getenv("PADDLE_TRAINER_ID", "0"))
    program = fluid.default_main_program()
    if role:
        t = fluid.DistributeTranspiler()
        t.transpile(trainer_id, pservers=os.getenv("PADDLE_PSERVERS_IP_PORT_LIST"),
                    trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
        if role == "PSERVER":
            endpoint = os.getenv("POD_IP") + ":" + os.getenv("PADDLE_PORT")
            prog = t.get_pserver_program(endpoint)
            exe.run(t.get_startup_program(endpoint, prog))
            exe.run(prog)
            return
        program = t.get_trainer_program()
    exe.run(fluid.default_startup_program())
    reader = fluid.io.PyReader(feed_list=[words, targets], capacity=10, iterable=True, return_list=False)
    reader.decorate_sample_list_generator(
        fluid.io.batch(sentences(trainer_id), args.batch_size), places=fluid.CPUPlace())
    evaluator = fluid.metrics.ChunkEvaluator()
    for step, data in enumerate(reader()):
        cost, infer, label, correct = exe.run(
            program, feed=data, fetch_list=[avg_cost, num_infer, num_label, num_correct])
        evaluator.update(infer, label, correct)
        p, r, f1 = evaluator.eval()
        print("step %d loss %.7g precision %.6f recall %.6f f1 %.6f" % (step, cost[0], p, r, f1))
    exe.close()


if __name__ == "__main__":
    main()
