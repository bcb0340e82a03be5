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


def read_criteo(path, separator, header):
    """Criteo's own lines, by the parser that takes whole blocks of them; id 0 is a blank."""
    batches = fluid.reader.criteo_reader([path], 1_000_000, separator=separator, header=header)()
    label, numbers, ids = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    given = ids != 0
    return label, np.sign(numbers) * np.log1p(np.abs(numbers)), ids[given], given.astype(np.int64)


def read_lines(path, parse):
    rows = [parse(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    label, numbers, slots = zip(*rows, strict=True)
    ids = np.array([value for row in slots for slot in row for value in slot], np.uint64).view(np.int64)
    return np.array(label)[:, None], np.array(numbers), ids, np.array([[len(slot) for slot in row] for row in slots])


def read(path):
    with Path(path).open(encoding="utf-8") as lines:
        first = lines.readline()
    if first.startswith("click:"):
        return read_lines(path, parse_named)
    if "," in first or "\t" in first:
        return read_criteo(path, "\t" if "\t" in first else ",", first.startswith("label"))
    return read_lines(path, parse_feasigns)


def make_up(count):
    """Examples whose label depends on the parity of some slots' values."""
    random = np.random.default_rng(0)
    values = random.zipf(1.3, (count, SLOTS)) % 1000
    score = (values[:, :6] % 2 * 2 - 1).sum(axis=1)
    labels = (score + random.normal(size=count) > 0)[:, None]
    numbers = random.normal(size=(count, NUMBERS))
    ids = np.array([hashed(slot, value) for row in values for slot, value in enumerate(row)], np.uint64).view(np.int64)
    return labels, numbers, ids, np.ones((count, SLOTS), np.int64)


class Examples:
    """label (n, 1), numbers (n, 13), ids of all slots of all examples, and how many each slot has, lengths (n, 26)."""

    def __init__(self, parts):
        label, numbers, self.ids, lengths = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        self.label, self.numbers = label.astype(np.float32), numbers.astype(np.float32)
        self.ends = np.concatenate([[0], np.cumsum(lengths)])

    def batches(self, size, trainer, trainers):
        """This trainer's share of the examples; a sequence is one slot of one example, empty where the field is blank."""
        share = len(self.label) // trainers
        for start in range(trainer * share, (trainer + 1) * share, size):
            stop = min(start + size, (trainer + 1) * share)
            ends = self.ends[start * SLOTS : stop * SLOTS + 1]
            ids = self.ids[ends[0] : ends[-1], None]
            yield (
                fluid.LoDTensor(ids, (tuple((ends - ends[0]).tolist()),)),
                self.numbers[start:stop],
                self.label[start:stop],
            )


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
    loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logit, label))
    return loss, [ids, numbers, label]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64, help="examples per trainer and step")
    parser.add_argument("--steps", type=int, default=0, help="stop every epoch after so many steps; 0: never")
    args = parser.parse_args()

    loss, inputs = model()
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
    examples = Examples([read(path) for path in args.files] or [make_up(20_000)])
    loader = fluid.io.DataLoader.from_generator(feed_list=inputs, capacity=8)  # a thread makes the batches
    loader.set_batch_generator(lambda: examples.batches(args.batch, trainer, trainers))
    for epoch in range(args.epochs):
        losses = []
        for feed in loader():
            losses += exe.run(feed=feed, fetch_list=[loss])
            if len(losses) == args.steps:
                break
        print(f"epoch {epoch} loss {np.mean(losses):.4f}", flush=True)
    exe.close()


if __name__ == "__main__":
    main()
