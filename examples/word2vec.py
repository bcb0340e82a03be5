"""Skip-gram with negative sampling; both vector tables are distributed.

    python examples/word2vec.py TEXT
    fluidlite launch --pservers 2 --trainers 2 examples/word2vec.py TEXT --async

TEXT is a plain or gzipped text file, one sentence a line, each after a reference that is left out ("Ge1:1 In the
beginning", as in the King James Bible, say). Prints the neighbours of some words at the end.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import os
import re
import time
from functools import partial

import numpy as np

import fluidlite as fluid

WIDTH, WINDOW, NEGATIVES = 50, 5, 5
VERSE = re.compile(r"^\S+\d+:\d+ ")  # a line may begin with its place, as in "Ge1:1 In the beginning"


def read_sentences(path):
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return [re.findall(r"[a-z']+", VERSE.sub("", line).lower()) for line in lines]


class Corpus:
    """Word ids by falling frequency, the text as ids, and the distributions that sampling needs."""

    def __init__(self, sentences, min_count=5):
        counts = collections.Counter(word for sentence in sentences for word in sentence)
        self.words = [word for word, count in counts.most_common() if count >= min_count]
        self.ids = {word: index for index, word in enumerate(self.words)}
        self.sentences = [np.array([self.ids[w] for w in s if w in self.ids], np.int64) for s in sentences]
        frequency = np.array([counts[word] for word in self.words], float)
        self.keep = np.minimum(1.0, np.sqrt(1e-3 * frequency.sum() / frequency))
        noise = np.cumsum(frequency**0.75)
        self.noise = noise / noise[-1]

    def pairs(self, random, part, parts):
        """(centre, context) of one pass over this trainer's sentences, frequent words thinned out."""
        for sentence in self.sentences[part::parts]:
            kept = sentence[random.random(len(sentence)) < self.keep[sentence]]
            for offset in range(1, WINDOW + 1):
                if len(kept) > offset:
                    inside = random.integers(1, WINDOW + 1, len(kept) - offset) >= offset
                    left, right = kept[:-offset][inside], kept[offset:][inside]
                    yield np.concatenate([left, right]), np.concatenate([right, left])

    def batches(self, random, part, parts, size):
        """Batches of ``size`` centres, each with its context word and NEGATIVES words of noise."""
        chunks = list(self.pairs(random, part, parts))
        centre, context = (np.concatenate(side) for side in zip(*chunks, strict=True))
        order = random.permutation(len(centre))
        for start in range(0, len(order) - size + 1, size):
            index = order[start : start + size]
            noise = np.searchsorted(self.noise, random.random((size, NEGATIVES)))
            yield centre[index, None], np.concatenate([context[index, None], noise], axis=1)


def model(vocabulary):
    centre = fluid.data("centre", [None, 1], "int64")
    targets = fluid.data("targets", [None, 1 + NEGATIVES], "int64")
    spread = 0.5 / WIDTH
    a = fluid.embedding(centre, [vocabulary, WIDTH], is_sparse=True, is_distributed=True,
                        param_attr=fluid.ParamAttr("vectors", initializer=fluid.initializer.Uniform(-spread, spread)))  # fmt: skip
    b = fluid.embedding(targets, [vocabulary, WIDTH], is_sparse=True, is_distributed=True,
                        param_attr=fluid.ParamAttr("contexts", initializer=fluid.initializer.Constant(0.0)))  # fmt: skip
    logits = fluid.layers.reduce_sum(fluid.layers.elementwise_mul(b, a), dim=2)
    label = fluid.layers.concat([
        fluid.layers.fill_constant_batch_size_like(targets, [-1, 1], "float32", 1.0),
        fluid.layers.fill_constant_batch_size_like(targets, [-1, NEGATIVES], "float32", 0.0),
    ], axis=1)  # fmt: skip
    losses = fluid.layers.sigmoid_cross_entropy_with_logits(logits, label)
    return [centre, targets], a, fluid.layers.reduce_mean(fluid.layers.reduce_sum(losses, dim=1))


def show_neighbours(vectors, corpus, words):
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    for word in words:
        if word in corpus.ids:
            near = np.argsort(-unit @ unit[corpus.ids[word]])[1:7]
            print(f"{word}: {', '.join(corpus.words[index] for index in near)}")


def train(exe, corpus, args, part, parts, inputs, loss):
    loader = fluid.io.DataLoader.from_generator(feed_list=inputs, capacity=8)  # a thread makes the batches
    for epoch in range(args.epochs):
        random = np.random.default_rng([part, epoch])
        loader.set_batch_generator(partial(corpus.batches, random, part, parts, args.batch))
        start, losses = time.perf_counter(), []
        for feed in loader():
            losses += exe.run(feed=feed, fetch_list=[loss])
            if len(losses) == args.steps:
                break
        rate = len(losses) * args.batch / (time.perf_counter() - start)
        print(f"epoch {epoch} loss {np.mean(losses):.4f} pairs/s {rate:.0f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1024, help="pairs per trainer and step")
    parser.add_argument("--steps", type=int, default=0, help="stop every epoch after so many steps; 0: never")
    parser.add_argument("--async", dest="asynchronous", action="store_true")
    args = parser.parse_args()

    corpus = Corpus(read_sentences(args.text))
    inputs, vector, loss = model(len(corpus.words))
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adagrad(0.5).minimize(loss)
    part, parts = int(os.environ.get("PADDLE_TRAINER_ID", "0")), int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    role = os.environ.get("TRAINING_ROLE", "LOCAL")
    exe = fluid.Executor(fluid.CPUPlace())
    if role != "LOCAL":
        transpiler = fluid.DistributeTranspiler()
        servers = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"]
        transpiler.transpile(part, pservers=servers, trainers=parts, sync_mode=not args.asynchronous)
        if role == "PSERVER":
            program, startup = transpiler.get_pserver_programs(f"{os.environ['POD_IP']}:{os.environ['PADDLE_PORT']}")
            exe.run(startup)
            exe.run(program)
            return
        test_program = transpiler.get_test_program(test_program)

    exe.run(fluid.default_startup_program())
    train(exe, corpus, args, part, parts, inputs, loss)
    if part == 0:
        everything = np.arange(len(corpus.words))[:, None]
        feed = {"centre": everything, "targets": np.repeat(everything, 1 + NEGATIVES, axis=1)}
        (vectors,) = exe.run(test_program, feed=feed, fetch_list=[vector])
        show_neighbours(vectors.reshape(-1, WIDTH), corpus, ["jerusalem", "king", "water", "son", "seven", "sheep"])
    exe.close()


if __name__ == "__main__":
    main()
