"""Figures of tables in one process: does size matter, does growth pause."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import numpy as np

import fluidlite as fluid
from benchmarks import data, fluidlite_ctr
from benchmarks.figures import Figure, Sample, Settings, Target, Values
from benchmarks.inside import KERNELS, with_kernels
from benchmarks.servers import RATE, fill
from benchmarks.timing import median_ms, times_ms
from fluidlite.dtypes import Array
from fluidlite.runtime.scope import Scope
from fluidlite.values.initial import Constant
from fluidlite.values.memory import keep_freed_memory
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable

_WIDTH: Final = 16
_ROWS: Final = 1_000_000
_LOW, _HIGH = 10_000, 10_000_000
_FEEDS: Final = 8
_IDS: Final = 13_000


class Trained:
    """The peers' job in this process, with a table that holds ``rows`` rows before the first step."""

    def __init__(self, settings: Settings, rows: int) -> None:
        args = fluidlite_ctr.parser().parse_args([])
        self._main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(self._main, startup), fluid.unique_name.guard():
            self._loss = fluidlite_ctr.build(args)
            fluidlite_ctr.minimize(args, self._loss)
        self._exe, self._scope = fluid.Executor(), Scope()
        self._exe.run(startup, scope=self._scope)
        self.table: SparseTable = self._scope.get("emb")
        fill(self.table, rows)
        self._feeds = some_feeds(args.batch, min(settings.size(_LOW), rows))
        self._turn = 0

    def step(self) -> None:
        """One training step; the feeds take turns."""
        feed = self._feeds[self._turn % _FEEDS]
        self._turn += 1
        self._exe.run(self._main, feed=feed, fetch_list=[self._loss], scope=self._scope)


def some_feeds(batch: int, ids: int) -> list[dict[str, Any]]:
    """Batches whose ids are below ``ids``: the same at every height."""
    random = np.random.default_rng(3)
    return [
        {
            "ids": random.integers(0, ids, (batch, data.SLOTS)),
            "dense": random.random((batch, data.NUMBERS), np.float32),
            "label": random.integers(0, 2, (batch, 1)).astype(np.float32),
        }
        for _ in range(_FEEDS)
    ]


@contextmanager
def open_height(settings: Settings) -> Iterator[Sequence[Sample]]:
    """The job's step, and the table's part of it alone, with few rows and with many."""
    jobs = {f"{rows:.0e} rows": Trained(settings, settings.size(rows)) for rows in (_LOW, _HIGH)}
    ids = np.random.default_rng(5).permutation(settings.size(_LOW))
    gradient = SelectedRows(ids, np.full((len(ids), _WIDTH), 1e-6, np.float32), 0)

    def sampler(name: str, job: Trained) -> Sample:
        def rows_alone() -> None:
            job.table.lookup(ids)
            job.table.update(gradient, (), sgd_step)

        def sample() -> Values:
            alone = median_ms(rows_alone, settings.steps)
            return {name: median_ms(job.step, settings.steps), f"{name}, rows alone": alone}

        return sample

    yield [sampler(name, job) for name, job in jobs.items()]


def sgd_step(value: Any, gradient: Any) -> None:
    """sgd on a block of rows."""
    value -= RATE * gradient


@contextmanager
def open_growth(settings: Settings) -> Iterator[Sequence[Sample]]:
    """A sample lets a new table grow from 1 M to 16 M rows by pushes of new ids only."""
    keep_freed_memory()  # as executors and servers do
    start, end, count = settings.size(1_000_000), settings.size(16_000_000), settings.size(_IDS)

    def sample() -> Values:
        table = SparseTable("growing", _WIDTH, "float32", Constant())
        fill(table, start)
        value = np.full((count, _WIDTH), 1e-6, np.float32)
        ids = iter(range(start, end, count))

        def push() -> None:
            first = next(ids)
            table.update(SelectedRows(np.arange(first, first + count), value, 0), (), sgd_step)

        ms = times_ms(push, len(range(start, end, count)))
        return {"worst push": max(ms), "median push": statistics.median(ms)}

    yield [sample]


@contextmanager
def open_local_rows(settings: Settings) -> Iterator[Sequence[Sample]]:
    """Pull and push of unique rows: the table with either kernels, and a bare array that needs no index."""
    bare = np.zeros((settings.size(_ROWS), _WIDTH), np.float32)

    def without(ids: Array) -> None:
        value = bare[ids]
        bare[ids] -= RATE * value

    with ExitStack() as stack:
        tables = [stack.enter_context(with_kernels(open_table, kernels, settings)) for kernels in KERNELS]
        yield [*tables, lambda: {"bare numpy": rows_per_second(without, settings)}]


@contextmanager
def open_table(settings: Settings) -> Iterator[Sequence[Sample]]:
    """The table alone."""
    table = SparseTable("rows", _WIDTH, "float32", Constant())
    fill(table, settings.size(_ROWS))

    def pair(ids: Array) -> None:
        table.update(SelectedRows(ids, table.lookup(ids), 0), (), sgd_step)

    yield [lambda: {"table": rows_per_second(pair, settings)}]


def rows_per_second(pair: Callable[[Array], None], settings: Settings) -> float:
    """Rate of pull + push of lists of unique ids."""
    count = settings.size(10_000)
    lists = data.unique_rows(settings.size(_ROWS), count)
    return count / median_ms(lambda: pair(next(lists)), settings.steps, settings.warmup) * 1e3


FIGURES: Final = (
    Figure(
        "table-height",
        "step of the local CTR job as the table's height goes from 10⁴ to 10⁷ rows, the same 10⁴ ids touched",
        "ms",
        open_height,
        (Target("10⁷ against 10⁴ rows", "1e+07 rows", 1.3, ("1e+04 rows",)),),
        steps=60,
    ),
    Figure(
        "table-growth",
        "pushes of 13,000 new ids while a table grows from 1 M to 16 M rows",
        "ms",
        open_growth,
        (Target("worst against median push", "worst push", 10.0, ("median push",)),),
        steps=1,
    ),
    Figure(
        "local-rows",
        "pull + push of 10,000 unique rows of a table in the same process",
        "rows/s",
        open_local_rows,
        (
            Target("C kernels against bare numpy without an index", "table (c)", 1.0, ("bare numpy",), at_most=False),
            Target("numpy kernels against the same", "table (numpy)", 0.8, ("bare numpy",), at_most=False),
        ),
        steps=300,
        warmup=16,
    ),
)
