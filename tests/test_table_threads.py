"""Many threads on one table: what each sees is the state between two of the others' calls (docs/decisions/0018)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from fluidlite.kernels.rules import Rule
from fluidlite.values.initial import Constant
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable, TableColumn

WIDTH = 16
PUSHERS, READERS, PUSHES = 4, 3, 60
#: rows that every push changes, far apart; and those that only one thread's pushes change
COMMON = np.arange(-40, 40) * 2**54
OWN = [np.arange(50) * 2**40 + 2**30 + thread for thread in range(PUSHERS)]
SGD = Rule("sgd", (1.0,))


def together(works: list[Callable[[], None]]) -> None:
    """Run all at once in threads; the first error is raised here."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def guarded(work: Callable[[], None]) -> None:
        start.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Job:
    """Pushers that lower rows by whole numbers, and readers that note what they see.

    A push lowers every row of COMMON and of its thread's OWN by 1, a third of COMMON in two parts of one gradient, and
    makes 300 rows. So between two calls each group has one value, and that of COMMON is the sum of the others.
    """

    def __init__(self) -> None:
        self.table = SparseTable("emb", WIDTH, "float32", Constant(0.0))
        self.pushing = PUSHERS
        self.lock = threading.Lock()
        #: pushes of all and of each thread as they were seen, in the order of each reader
        self.seen: list[list[tuple[float, ...]]] = [[] for _ in range(READERS)]

    def push(self, thread: int) -> None:
        own = OWN[thread]
        try:
            for turn in range(PUSHES):
                new = (np.arange(300) + turn * 300) * PUSHERS + thread + 10
                value = np.ones((len(COMMON), WIDTH), np.float32)
                value[::3] = 3.0
                less = np.full((len(COMMON[::3]), WIDTH), -2.0, np.float32)
                ones = np.ones((len(own) + len(new), WIDTH), np.float32)
                ids = np.concatenate([COMMON, own, new, COMMON[::3]])
                self.table.update(SelectedRows(ids, np.concatenate([value, ones, less]), 0), (), SGD)
                mine = self.table.lookup(np.concatenate([own, new]), read_only=True)
                assert (mine[: len(own)] == -(turn + 1.0)).all(), "a thread sees its own pushes"
                assert (mine[len(own) :] == -1.0).all()
        finally:
            with self.lock:
                self.pushing -= 1

    def read(self, reader: int) -> None:
        groups = [COMMON, *OWN]
        while self.pushing:
            if reader == 0:
                rows = self.table.export()
                assert len(np.unique(rows.rows)) == len(rows.rows)
                values = [rows.value[np.isin(rows.rows, group)] for group in groups]
            else:
                looked_up = self.table.lookup(np.concatenate(groups), read_only=True)
                values = np.split(looked_up, np.cumsum([len(group) for group in groups])[:-1])
            assert all((value == value[:1, :1]).all() for value in values), "no push is seen in part"
            self.seen[reader].append(tuple(-float(value[:1, :1].sum()) for value in values))


def assert_grows(states: list[tuple[float, ...]]) -> None:
    assert all(a <= b for before, after in pairwise(states) for a, b in zip(before, after, strict=True))


def test_M09_pulls_pushes_growth_and_exports_equal_a_serial_order() -> None:
    job = Job()
    works = [partial(job.push, thread) for thread in range(PUSHERS)]
    together([*works, *(partial(job.read, reader) for reader in range(READERS))])
    for seen in job.seen:
        assert_grows(seen)
        assert all(common == sum(own) for common, *own in seen)
    assert_grows(sorted({state for seen in job.seen for state in seen}))  # one order for all readers
    assert len(job.table) == len(COMMON) + PUSHERS * (len(OWN[0]) + 300 * PUSHES)
    assert (job.table.lookup(COMMON) == -float(PUSHERS * PUSHES)).all()


def test_values_and_accumulators_change_together() -> None:
    """With momentum 1 and gradients of 1 the n-th push makes the velocity n and the value minus the n-th triangle."""
    table, velocity = SparseTable("emb", WIDTH, "float32", Constant(0.0)), TableColumn("v", WIDTH, 0.0, "float32")
    table.attach(velocity)
    pushed = threading.Event()
    rows = SelectedRows(COMMON, np.ones((len(COMMON), WIDTH), np.float32), 0)

    def push() -> None:
        try:
            for _ in range(200):
                table.update(rows, [velocity], Rule("momentum", (1.0, 1.0)))
        finally:
            pushed.set()

    def read(part: TableColumn | None) -> None:
        while not pushed.is_set():
            values = table.export_column(part).value
            assert (values == values[:1, :1]).all()

    together([push, partial(read, None), partial(read, velocity)])
    assert (velocity.export().value == 200.0).all()
    assert (table.lookup(COMMON) == -200.0 * 201.0 / 2.0).all()
