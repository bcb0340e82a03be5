"""Click prediction on Criteo-style files: 26 slots share one table of 64-bit hashed ids, 13 numbers beside them.

    python examples/criteo_ctr.py FILE...
    fluidlite launch --pservers 2 --trainers 2 examples/criteo_ctr.py FILE...

Three forms of lines are read: Criteo's own (label, 13 integers, 26 hexadecimal strings, comma or tab separated, blanks
allowed), ``click:0 dense_feature:0.1 ... 1:737395 ...`` and ``id:slot`` pairs with many unsigned 64-bit ids per slot.
Without files the script makes examples up.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import numpy as np

import fluidlite as fluid

SLOTS, NUMBERS, WIDTH = 26, 13, 16


def hashed(slot, value):
    """A 64-bit id of one value of one slot, the same in every process."""
    return int.from_bytes(hashlib.blake2b(f"{slot}:{value}".encode(), digest_size=8).digest(), "little")


def parse_criteo(line):
    label, *fields = line.rstrip("\n").split("\t" if "\t" in line else ",")
    numbers = [float(field or 0) for field in fields[:NUMBERS]]
    slots = [[hashed(slot, value)] if value else [] for slot, value in enumerate(fields[NUMBERS:])]
    return float(label), np.sign(numbers) * np.log1p(np.abs(numbers)), slots


def parse_named(line):
    label, numbers, slots = 0.0, [], [[] for _ in range(SLOTS)]
    for field in line.split():
        name, value = field.split(":")
        if name == "click":
            label = float(value)
        elif name == "dense_feature":
            numbers.append(float(value))
        else:
            slots[int(name) - 1].append(hashed(name, value))
    return label, numbers, slots


def parse_feasigns(line):
    """Slot 1 holds the label; higher slots fold onto the 26. Ids are used as they are, above 2^63 too."""
    label, slots = 0.0, [[] for _ in range(SLOTS)]
    for field in line.split():
        value, slot = field.split(":")
        if slot == "1":
            label = float(value)
        else:
            slots[int(slot) % SLOTS].append(int(value))
    return label, np.zeros(NUMBERS), slots


def read(paths):
    examples = []
    for path in paths:
        lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
        if lines and lines[0].startswith("label"):
            lines = lines[1:]
        for line in lines:
            parse = (
                parse_named
                if line.startswith("click:")
                else parse_criteo
                if "," in line or "\t" in line
                else parse_feasigns
            )
            examples.append(parse(line))
    return examples


def make_up(count):
    """Examples whose label depends on the parity of some slots' values."""
    random = np.random.default_rng(0)
    values = random.zipf(1.3, (count, SLOTS)) % 1000
    score = (values[:, :6] % 2 * 2 - 1).sum(axis=1)
    labels = (score + random.normal(size=count) > 0).astype(float)
    numbers = random.normal(size=(count, NUMBERS))
    return [
        (label, row, [[hashed(slot, value)] for slot, value in enumerate(ids)])
        for label, row, ids in zip(labels, numbers, values, strict=True)
    ]


def feed_of(examples):
    """Ids of all slots one after another; a sequence is one slot of one example, empty where the field is blank."""
    sequences = [slot for _, _, slots in examples for slot in slots]
    ids = np.array([value for slot in sequences for value in slot], np.uint64).view(np.int64).reshape(-1, 1)
    return {
        "ids": fluid.create_lod_tensor(ids, [[len(slot) for slot in sequences]], fluid.CPUPlace()),
        "numbers": np.array([numbers for _, numbers, _ in examples], np.float32),
        "label": np.array([[label] for label, _, _ in examples], np.float32),
    }


def model():
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    numbers = fluid.data("numbers", [None, NUMBERS], "float32")
    label = fluid.data("label", [None, 1], "float32")
    rows = fluid.layers.embedding(
        ids, [10**9, WIDTH], is_sparse=True, is_distributed=True,
        param_attr=fluid.ParamAttr("table", initializer=fluid.initializer.Uniform(-0.01, 0.01)),
    )  # fmt: skip
    pooled = fluid.layers.sequence_pool(rows, "sum")
    deep = fluid.layers.concat([fluid.layers.reshape(pooled, [-1, SLOTS * WIDTH]), numbers], axis=1)
    for size in (400, 400):
        deep = fluid.layers.fc(deep, size, act="relu")
    logit = fluid.layers.fc(deep, 1)
    return fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logit, label))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64, help="examples per trainer and step")
    parser.add_argument("--steps", type=int, default=0, help="stop every epoch after so many steps; 0: never")
    args = parser.parse_args()

    loss = model()
    fluid.optimizer.Adagrad(0.05).minimize(loss)
    trainer, trainers = int(os.environ.get("PADDLE_TRAINER_ID", "0")), int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    role = os.environ.get("TRAINING_ROLE", "LOCAL")
    exe = fluid.Executor(fluid.CPUPlace())
    if role != "LOCAL":
        transpiler = fluid.DistributeTranspiler()
        transpiler.transpile(trainer, pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"], trainers=trainers)
        if role == "PSERVER":
            main_program, startup = transpiler.get_pserver_programs(
                f"{os.environ['POD_IP']}:{os.environ['PADDLE_PORT']}"
            )
            exe.run(startup)
            exe.run(main_program)
            return

    exe.run(fluid.default_startup_program())
    examples = read(args.files) if args.files else make_up(20_000)
    mine = examples[trainer::trainers][: len(examples) // trainers]
    for epoch in range(args.epochs):
        losses = []
        for start in range(0, len(mine), args.batch):
            losses += exe.run(feed=feed_of(mine[start : start + args.batch]), fetch_list=[loss])
            if len(losses) == args.steps:
                break
        print(f"epoch {epoch} loss {np.mean(losses):.4f}", flush=True)
    exe.close()


if __name__ == "__main__":
    main()
