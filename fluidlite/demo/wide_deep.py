"""Wide & Deep on the census income data. The same file runs alone, or in every role of a job:

python wide_deep.py
fluidlite launch --pservers 2 --trainers 2 wide_deep.py [--async]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite.demo import census

Feed = dict[str, Any]
WIDTH = 8  # floats in an embedding row
DECLARED = 10**9  # declared height of the tables; ids are 64-bit hashes and may be anything


def model() -> tuple[fluid.Variable, fluid.Variable]:
    """Append the model; returns (probability, mean loss)."""
    ids = fluid.data("ids", [None, census.WIDE_SLOTS], "int64")
    numbers = fluid.data("numbers", [None, census.NUMBERS], "float32")
    label = fluid.data("label", [None, 1], "float32")

    wide = fluid.embedding(ids, [DECLARED, 1], is_sparse=True, is_distributed=True, param_attr=table("wide", 0.0))
    single = fluid.layers.slice(ids, axes=[1], starts=[0], ends=[census.DEEP_SLOTS])
    rows = fluid.embedding(
        single, [DECLARED, WIDTH], is_sparse=True, is_distributed=True, param_attr=table("deep", 0.05)
    )
    deep = fluid.layers.concat([fluid.layers.reshape(rows, [-1, census.DEEP_SLOTS * WIDTH]), numbers], axis=1)
    for size in (64, 32):
        deep = fluid.layers.fc(deep, size, act="relu")
    logit = fluid.layers.reduce_sum(wide, dim=1) + fluid.layers.fc(fluid.layers.concat([deep, numbers], axis=1), 1)

    loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logit, label))
    return fluid.layers.sigmoid(logit), loss


def table(name: str, spread: float) -> fluid.ParamAttr:
    """An embedding table whose rows start uniformly within ±spread."""
    return fluid.ParamAttr(name=name, initializer=fluid.initializer.Uniform(-spread, spread))


def feed_of(examples: census.Examples, index: Any) -> Feed:
    """The chosen examples as a feed."""
    return {"ids": examples.ids[index], "numbers": examples.numbers[index], "label": examples.label[index]}


def batches(examples: census.Examples, size: int, epochs: int, part: int = 0, parts: int = 1) -> Iterator[Feed]:
    """Feeds of ``size`` examples: of every batch of ``size * parts`` the share number ``part``."""
    order = np.random.default_rng(0)
    whole = size * parts
    for _ in range(epochs):
        shuffled = order.permutation(len(examples.label))
        for start in range(0, len(shuffled) - whole + 1, whole):
            yield feed_of(examples, shuffled[start + part * size : start + (part + 1) * size])


def test_auc(exe: fluid.Executor, program: fluid.Program, probability: fluid.Variable) -> float:
    """AUC over the test split; rows of unknown ids read as zeros and are not made."""
    examples = census.load("test")
    auc = fluid.metrics.Auc("auc")
    for index in np.array_split(np.arange(len(examples.label)), 16):
        (p,) = exe.run(program, feed=feed_of(examples, index), fetch_list=[probability])
        auc.update(np.concatenate([1 - p, p], axis=1), examples.label[index].astype("int64"))
    return float(auc.eval())


def train(exe: fluid.Executor, args: argparse.Namespace, part: int, parts: int, loss: fluid.Variable) -> None:
    """Run every batch of this trainer's share, printing the progress."""
    examples = census.load("train")
    size = args.batch // parts
    steps = args.epochs * (len(examples.label) // (size * parts))
    start = time.perf_counter()
    losses: list[Any] = []
    for step, feed in enumerate(batches(examples, size, args.epochs, part, parts), 1):
        losses += exe.run(feed=feed, fetch_list=[loss])
        if step % 20 == 0 or step == steps:
            rate = step * size / (time.perf_counter() - start)
            print(f"step {step}/{steps} loss {np.mean(losses):.4f} examples/s {rate:.0f}", flush=True)
            losses = []


def save(exe: fluid.Executor, folder: Path, probability: fluid.Variable) -> None:
    """The model for inference, and every parameter and table, in Fluid's formats."""
    fluid.io.save_persistables(exe, str(folder / "persistables"))
    fluid.io.save_inference_model(str(folder / "model"), ["ids", "numbers"], [probability], exe)


def main() -> None:
    """Play the role that the environment says; without one, train alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256, help="examples of one step, all trainers together")
    parser.add_argument("--async", dest="asynchronous", action="store_true", help="servers apply pushes on arrival")
    parser.add_argument("--save", type=Path, help="folder for the trained model and the programs")
    args = parser.parse_args()
    part, parts = int(os.environ.get("PADDLE_TRAINER_ID", "0")), int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    if args.batch < parts:
        parser.error(f"a batch of {args.batch} examples cannot be shared by {parts} trainers")

    probability, loss = model()
    test_program = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adagrad(0.05).minimize(loss)
    programs = {
        "main.program": str(fluid.default_main_program()),
        "startup.program": str(fluid.default_startup_program()),
    }

    role = os.environ.get("TRAINING_ROLE", "LOCAL")
    exe = fluid.Executor(fluid.CPUPlace())
    if role != "LOCAL":
        transpiler = fluid.DistributeTranspiler()
        servers = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"]
        transpiler.transpile(part, pservers=servers, trainers=parts, sync_mode=not args.asynchronous)
        if role == "PSERVER":
            endpoint = f"{os.environ['POD_IP']}:{os.environ['PADDLE_PORT']}"
            program, startup = transpiler.get_pserver_programs(endpoint)
            exe.run(startup)
            exe.run(program)  # serves until every trainer is done
            return
        test_program = transpiler.get_test_program(test_program)

    exe.run(fluid.default_startup_program())
    train(exe, args, part, parts, loss)
    if part == 0:
        print(f"test AUC {test_auc(exe, test_program, probability):.4f} (logistic regression: {census.REFERENCE_AUC})")
        if args.save:
            save(exe, args.save, probability)
            for name, content in programs.items():
                (args.save / name).write_text(content, encoding="utf-8")
    exe.close()


if __name__ == "__main__":
    main()
