"""Figures of data feeding: parsers against loops over split lines, and a job fed from text against ready arrays."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

import fluidlite as fluid
from benchmarks import data, dataset_feed, fluidlite_ctr
from benchmarks.figures import Figure, Sample, Settings, Target
from fluidlite.kernels import parse
from fluidlite.kernels.in_numpy import parse as in_numpy

_LINES: Final = 4000  # about a megabyte, as the readers take
_FLOATS: Final = (False,) * data.SLOTS + (True, True)


@contextmanager
def open_multislot(settings: Settings) -> Iterator[Sequence[Sample]]:
    """26 slots of one id, one of 13 numbers, a label."""
    lines = settings.size(_LINES)
    ids, numbers, label = _examples(lines)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "lines"
        dataset_feed.write_multislot(path, [(ids, numbers, label)], split=True)
        text = path.read_bytes()
    yield _rows_per_second(
        lines,
        {
            "fluidlite": lambda: parse.parse_slots(text, _FLOATS),
            "fluidlite in numpy": lambda: in_numpy.parse_slots(text, _FLOATS),
            "split loops": lambda: split_slots(text, _FLOATS),
        },
    )


@contextmanager
def open_criteo(settings: Settings) -> Iterator[Sequence[Sample]]:
    """A label, 13 integers and 26 hexadecimal strings, one in ten of each empty."""
    lines = settings.size(_LINES)
    random = np.random.default_rng(0)
    integers, strings = random.integers(-2, 5000, (lines, data.NUMBERS)), random.integers(0, 2**32, (lines, data.SLOTS))
    text = "".join(
        "\t".join([str(n % 2), *(str(v) if v % 10 else "" for v in a), *(f"{v:08x}" if v % 10 else "" for v in b)])
        + "\n"
        for n, (a, b) in enumerate(zip(integers.tolist(), strings.tolist(), strict=True))
    ).encode()
    form = {"labelled": True, "separator": b"\t", "missing": 0.0}
    yield _rows_per_second(
        lines,
        {
            "fluidlite": lambda: parse.parse_criteo(text, data.NUMBERS, data.SLOTS, **form),
            "fluidlite in numpy": lambda: in_numpy.parse_criteo(text, data.NUMBERS, data.SLOTS, **form),
            "split loops": lambda: split_criteo(text),
        },
    )


@contextmanager
def open_feed(settings: Settings) -> Iterator[Sequence[Sample]]:
    """The peers' job in this process; the text is parsed by one thread."""
    args = fluidlite_ctr.parser().parse_args([])
    stored = settings.data or data.data_file(args.vocab)
    feeds = list(itertools.islice(data.batches(stored, args.batch), settings.steps))
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        fluidlite_ctr.minimize(args, fluidlite_ctr.build(args))
    exe = fluid.Executor()
    exe.run(startup)

    def from_arrays() -> None:
        for ids, numbers, label in feeds:
            exe.run(main, feed={"ids": ids, "dense": numbers, "label": label})

    with TemporaryDirectory() as folder, fluid.program_guard(main, startup):
        path = Path(folder) / "lines"
        dataset_feed.write_multislot(path, feeds, split=False)
        from_text = partial(dataset_feed.run, exe, path, args.batch)
        from_arrays()
        yield _rows_per_second(len(feeds) * args.batch, {"from text": from_text, "from arrays": from_arrays})


def split_slots(text: bytes, floats: Sequence[bool]) -> list[data.Array]:
    """MultiSlot lines by plain loops."""
    columns: list[list[Any]] = [[] for _ in floats]
    for line in text.decode().splitlines():
        tokens, at = line.split(), 0
        for column, is_float in zip(columns, floats, strict=True):
            count = int(tokens[at])
            column.extend(map(float if is_float else int, tokens[at + 1 : at + 1 + count]))
            at += 1 + count
    return [np.array(column) for column in columns]


def split_criteo(text: bytes) -> list[data.Array]:
    """Criteo lines by plain loops; ids are the digits, not hashed."""
    labels, numbers, ids = [], [], []
    for line in text.decode().splitlines():
        fields = line.split("\t")
        labels.append(float(fields[0]))
        numbers.append([float(field or 0) for field in fields[1 : 1 + data.NUMBERS]])
        ids.append([int(field, 16) if field else 0 for field in fields[1 + data.NUMBERS :]])
    return [np.array(labels, np.float32), np.array(numbers, np.float32), np.array(ids)]


def _examples(count: int) -> tuple[data.Array, data.Array, data.Array]:
    random = np.random.default_rng(0)
    ids = random.zipf(1.2, (count, data.SLOTS)) % 1_000_000
    return ids, random.random((count, data.NUMBERS)), random.integers(0, 2, (count, 1)).astype(np.float32)


def _rows_per_second(rows: int, calls: dict[str, Callable[[], object]]) -> list[Sample]:
    """A sample per call, in turn."""

    def sample(name: str) -> dict[str, float]:
        start = time.perf_counter()
        calls[name]()
        return {name: rows / (time.perf_counter() - start)}

    return [partial(sample, name) for name in calls]


_FASTER: Final = Target("against split loops", "fluidlite", 4.0, ("split loops",), at_most=False)

FIGURES: Final = (
    Figure("parse-multislot", "MultiSlot text, 28 slots, 40 values a line", "rows/s", open_multislot, (_FASTER,)),
    Figure("parse-criteo", "Criteo text", "rows/s", open_criteo, (_FASTER,)),
    Figure(
        "feed",
        "CTR job, local, sgd, loss not fetched: QueueDataset from text by one thread, and ready arrays",
        "examples/s",
        open_feed,
        (Target("from text against from arrays", "from text", 0.9, ("from arrays",), at_most=False),),
    ),
)
