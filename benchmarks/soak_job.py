"""One process of the soak: ``python -m benchmarks.soak_job --role server|trainer ...``.

The gradient of every row, and of one dense parameter, is fed: small integers. With sgd at rate 1 and rows that begin at
zero, a row is minus the sum of what was pushed to it, exactly, as long as it stays below 2**24.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.processes import mark

if TYPE_CHECKING:
    import fluidlite as fluid

MODULE: Final = "benchmarks.soak_job"
WIDTH: Final = 16
#: the dense parameter, about as large as the weights of the CTR job's first layer
SHAPE: Final = (429, 400)
VOCAB: Final = 200_000
LISTS: Final = 32
_LARGEST: Final = 3
_SCATTER: Final = 7919
#: repeats of the fixed piece of work beside which a step is timed
_REFERENCES: Final = 5

Array = np.ndarray[Any, np.dtype[Any]]


class Pool:
    """What a trainer pushes: half batches, and gradients of the dense parameter. Entry k >= LISTS is the negative of
    entry k - LISTS, so that sums stay small however long it takes.

    ``ids`` (LISTS, count) int64, Zipf with exponent 1, so with duplicates; ``weights`` (2 * LISTS, count, WIDTH) float32 and ``dense``
    (2, *SHAPE) float32 hold integers.
    """

    def __init__(self, trainer: int, count: int) -> None:
        random = np.random.default_rng([77, trainer])
        ranks = (VOCAB ** random.random((LISTS, count))).astype(np.int64)
        self.ids = ranks * _SCATTER % VOCAB
        self.weights = _and_negative(random.integers(-_LARGEST, _LARGEST + 1, (LISTS, count, WIDTH)))
        self.dense = _and_negative(random.integers(-_LARGEST, _LARGEST + 1, (1, *SHAPE)))

    def feed(self, one: int, two: int, dense: int) -> dict[str, Array]:
        """A batch of two halves."""
        ids = np.concatenate([self.ids[one % LISTS], self.ids[two % LISTS]])
        weights = np.concatenate([self.weights[one], self.weights[two]])
        return {"ids": ids[:, None], "weight": weights, "push": self.dense[dense]}

    def rows(self, counts: Array) -> Array:
        """Sum of gradients by id, (VOCAB, WIDTH) int64, when entry k was pushed ``counts[k]`` times."""
        sums = np.zeros((VOCAB, WIDTH), np.int64)
        net = counts[:LISTS] - counts[LISTS:]
        for ids, weights, times in zip(self.ids, self.weights, net, strict=False):
            np.add.at(sums, ids, times * weights.astype(np.int64))
        return sums

    def touched(self, counts: Array) -> Array:
        """Ids that were pushed at least once, ascending."""
        used = counts[:LISTS] + counts[LISTS:] > 0
        return np.unique(self.ids[used])


def _and_negative(values: Array) -> Array:
    return np.concatenate([values, -values]).astype(np.float32)


def build() -> fluid.Variable:
    """Append the model to the default programs; the loss, whose gradients are the fed weights."""
    import fluidlite as fluid

    ids = fluid.data("ids", [None, 1], "int64")
    weight = fluid.data("weight", [None, WIDTH], "float32")
    push = fluid.data("push", list(SHAPE), "float32")
    zero = fluid.initializer.Constant(0.0)
    table = fluid.ParamAttr("emb", initializer=zero)
    rows = fluid.layers.embedding(ids, [VOCAB, WIDTH], is_sparse=True, is_distributed=True, param_attr=table)
    dense = fluid.layers.create_parameter(list(SHAPE), "float32", name="dense", default_initializer=zero)
    loss = fluid.layers.reduce_sum(rows * weight) + fluid.layers.reduce_sum(dense * push)
    fluid.optimizer.SGD(1.0).minimize(loss)
    return loss


def play(args: argparse.Namespace) -> None:
    """One process of the job. When its stdin ends, a trainer leaves; before it the first one reads all values."""
    import fluidlite as fluid

    loss = build()
    transpiler = fluid.DistributeTranspiler()
    trainer = 0 if args.role == "server" else args.index
    transpiler.transpile(trainer, pservers=args.endpoints, trainers=args.trainers, sync_mode=False)
    exe = fluid.Executor()
    if args.role == "server":
        program, startup = transpiler.get_pserver_programs(args.endpoints.split(",")[args.index])
        exe.run(startup)
        threading.Thread(target=report_objects, args=(args.interval,), daemon=True).start()
        exe.run(program)
        return
    exe.run(fluid.default_startup_program())
    train(args, exe, loss)
    sys.stdin.read()
    if args.index == 0:
        read(args, exe)
    exe.close()


def train(args: argparse.Namespace, exe: fluid.Executor, loss: fluid.Variable) -> None:
    """Push at full rate for so long; report medians of every interval, and at the end how often what was pushed."""
    pool, random = Pool(args.index, args.ids), np.random.default_rng([78, args.index])
    counts, dense = np.zeros(2 * LISTS, np.int64), np.zeros(2, np.int64)
    reference, ends = reference_work(), time.monotonic() + args.seconds
    while time.monotonic() < ends:
        ms: list[float] = []
        until = min(ends, time.monotonic() + args.interval)
        while time.monotonic() < until or not ms:
            one, two, third = (int(random.integers(0, most)) for most in (2 * LISTS, 2 * LISTS, 2))
            feed, start = pool.feed(one, two, third), time.perf_counter()
            exe.run(feed=feed, fetch_list=[loss])
            ms.append((time.perf_counter() - start) * 1e3)
            np.add.at(counts, [one, two], 1)
            dense[third] += 1
        mark("interval", steps=len(ms), ms=statistics.median(ms), reference=next(reference), **held())
    mark("pushed", counts=counts.tolist(), dense=dense.tolist())


def reference_work() -> Iterator[float]:
    """Milliseconds that a fixed piece of work takes now: a product of matrices, and a copy beyond the cache."""
    matrix, source = np.ones((256, 256), np.float32), np.ones(1 << 20, np.float32)
    target = np.empty_like(source)
    while True:
        ms = []
        for _ in range(_REFERENCES):
            start = time.perf_counter()
            matrix @ matrix
            np.copyto(target, source)
            ms.append((time.perf_counter() - start) * 1e3)
        yield statistics.median(ms)


def report_objects(interval: float) -> None:
    """Say again and again what this process holds."""
    pause = threading.Event()
    while not pause.wait(interval):
        mark("interval", **held())


def held() -> dict[str, int]:
    """Objects that the garbage collector tracks, and blocks of memory of all Python objects."""
    return {"objects": len(gc.get_objects()), "blocks": sys.getallocatedblocks()}


def read(args: argparse.Namespace, exe: fluid.Executor) -> None:
    """Store all values as the servers have them: ``ids`` (n,), ``rows`` (n, WIDTH), ``dense`` SHAPE."""
    import fluidlite as fluid
    from fluidlite.dist_io import ServerStore
    from fluidlite.io import ScopeStore

    program = fluid.default_main_program()
    assert program.distribution is not None
    store = ServerStore(program.distribution.plan, program.desc, ScopeStore(fluid.global_scope()), exe)
    table, dense = store.read(["emb", "dense"])
    np.savez(args.out, ids=table.rows, rows=table.value, dense=dense)


def main() -> None:
    """Play the role that the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--role", choices=["server", "trainer"], required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--endpoints", required=True)
    parser.add_argument("--trainers", type=int, required=True)
    parser.add_argument("--ids", type=int, required=True, help="ids of half a batch")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--interval", type=float, required=True)
    parser.add_argument("--out", required=True)
    play(parser.parse_args())


if __name__ == "__main__":
    main()
