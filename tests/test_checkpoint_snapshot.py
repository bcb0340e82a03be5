"""Snapshots of a table: its rows as they were at one moment, whatever happens while they are read."""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidlite.checkpoint.writer import CheckpointWriter
from fluidlite.pserver.cut import load
from fluidlite.values import row_snapshot
from fluidlite.values.row_snapshot import RowSnapshot
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable, TableColumn
from tests.checkpoint_host import contents, make_host, make_table, push, save


def read(snapshot: RowSnapshot, most: int = 3, between: Any = None) -> dict[int, list[float]]:
    """All rows of a snapshot, each checked to come once; ``between`` is called after each chunk."""
    found: dict[int, list[float]] = {}
    while (chunk := snapshot.take(most)) is not None:
        assert 0 < len(chunk.ids) <= most
        for id, record in zip(chunk.ids.tolist(), chunk.records.tolist(), strict=True):
            assert id not in found
            found[id] = record
        if between is not None:
            between()
    assert len(found) == snapshot.count
    return found


def test_what_comes_after_the_cut_is_not_in_it() -> None:
    host = make_host(range(10))
    before = contents(host.table)
    snapshot = host.table.snapshot()
    push(host, [0, 9, 20, 21], 5)
    found = read(snapshot, between=lambda: push(host, [1, 4, 8, 30], 1))
    assert found == before
    assert contents(host.table)[9] == [v + f * 5 for v, f in zip(before[9], (1, 1, 2, 2), strict=True)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.lists(st.integers(-6, 6), max_size=5)),
        st.tuples(st.just("write"), st.lists(st.integers(-6, 6), min_size=1, max_size=5)),
        st.tuples(st.just("lookup"), st.lists(st.integers(-9, 9), max_size=4)),
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("cut"), st.booleans()),
        st.tuples(st.just("attach"), st.integers(0, 1)),
        st.tuples(st.just("replace"), st.lists(st.integers(-6, 6), max_size=4, unique=True)),
        st.tuples(st.just("reset"), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_any_number_of_snapshots_between_any_changes(  # noqa: C901 (one branch per kind of change)
    steps: list[tuple[str, Any]],
) -> None:
    """Each snapshot is what the table was at its cut; full ones and those of what changed after the cut before."""
    host = make_host(range(-3, 3))
    table = host.table
    open_: list[tuple[RowSnapshot, dict[int, list[float]], dict[int, list[float]] | None, dict[int, list[float]]]] = []
    last: dict[int, list[float]] | None = None
    for number, (what, argument) in enumerate(steps):
        if what == "push":
            push(host, argument, number + 1)
        elif what == "write":
            ids = np.array(argument)
            positions = table.positions(ids, create=True)
            table.write(positions, np.full((len(ids), 2), number, np.float32), table.columns[0])
        elif what == "lookup":
            table.lookup(np.array(argument, np.int64))
        elif what == "attach":
            table.attach(TableColumn(f"more_{argument}", 1, float(number), "float32"))
        elif what == "reset":
            table.attach(TableColumn("emb_0", 2, 9.0, "float32"))
        elif what == "replace":
            table.replace(SelectedRows(np.array(argument, np.int64), np.ones((len(argument), 2), np.float32), 0))
        elif what == "cut":
            now = contents(table)
            snapshot = table.snapshot("cut" if argument else None, "cut")
            open_.append((snapshot, now, last if snapshot.since else None, {}))
            last = now
        elif open_:
            chunk = open_[number % len(open_)][0].take(argument)
            if chunk is not None:
                open_[number % len(open_)][3].update(zip(chunk.ids.tolist(), chunk.records.tolist(), strict=True))
    for snapshot, now, base, found in open_:
        found.update(read_rest(snapshot))
        assert len(found) == snapshot.count
        if base is None:
            assert found == now
        else:
            assert {**base, **found} == now


def read_rest(snapshot: RowSnapshot) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    while (chunk := snapshot.take(2)) is not None:
        found.update(zip(chunk.ids.tolist(), chunk.records.tolist(), strict=True))
    return found


def test_K01_rows_are_never_torn_under_concurrent_pushes() -> None:
    """Every push adds a whole number to value and accumulators alike: in a snapshot they agree, and pushes of one step are
    all in it or none."""
    host = make_host(range(4000), width=4)
    stop = threading.Event()

    def fire(seed: int) -> None:
        random = np.random.default_rng(seed)
        while not stop.is_set():
            push(host, random.permutation(4000)[:500], 1)

    threads = [threading.Thread(target=fire, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            snapshot = host.table.snapshot()
            total = 0.0
            while (chunk := snapshot.take(97)) is not None:
                pushed = chunk.records[:, 4:] - 0.5
                np.testing.assert_array_equal(pushed, pushed[:, :1].repeat(4, axis=1))
                np.testing.assert_array_equal(2 * (chunk.records[:, :4] - 1), pushed)
                total += float(pushed[:, 0].sum()) / 2
            assert (total - 4000) % 500 == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_B116_what_is_saved_while_pushes_add_rows_comes_back_complete(tmp_path: Path) -> None:
    """In every checkpoint, full or not, each row has what its pushes gave it and its accumulators."""
    host, stop = make_host(range(50), columns=2), threading.Event()

    def fire(seed: int) -> None:
        random = np.random.default_rng(seed)
        while not stop.is_set() and len(host.table) < 200_000:
            push(host, random.permutation(np.arange(2 * len(host.table)))[:500], 1)

    threads = [threading.Thread(target=fire, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    writer = CheckpointWriter(tmp_path)
    try:
        for number in range(1, 6):
            save(tmp_path, host, number, writer)
            push(host, [-number], 1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    counts = []
    for number in range(1, 6):
        again = make_host(columns=2)
        load(again, tmp_path, 0, 1, number=number)
        rows = np.array(list(contents(again.table).values()))
        counts.append(len(rows))
        pushes = rows[:, :2] - 1
        assert pushes.min() >= 1
        np.testing.assert_array_equal(rows[:, 2:4] - 0.5, 2 * pushes)
        np.testing.assert_array_equal(rows[:, 4:6] - 0.5, 3 * pushes)
    assert sorted(counts) == counts
    assert counts[0] < counts[-1]


def test_only_what_changed_comes_after_a_tracked_cut() -> None:
    host = make_host(range(100))
    host.table.snapshot(None, "a").close()
    push(host, [3, 50], 1)
    host.table.lookup(np.array([200]))
    second = host.table.snapshot("a", "b")
    assert second.since == "a"
    assert second.count == 3
    push(host, [3, 4], 1)
    assert sorted(read(second)) == [3, 50, 200]
    assert sorted(read(host.table.snapshot("b", "c"))) == [3, 4]


@pytest.mark.parametrize("what", ["another cut", "replaced", "widened", "not tracked"])
def test_a_table_that_cannot_tell_what_changed_gives_all(what: str) -> None:
    host = make_host(range(10))
    host.table.snapshot(None, None if what == "not tracked" else "a").close()
    if what == "replaced":
        host.table.replace(SelectedRows(np.arange(10), np.ones((10, 2), np.float32), 0))
    elif what == "widened":
        host.table.attach(TableColumn("another", 1, 0.0, "float32"))
    snapshot = host.table.snapshot("b" if what == "another cut" else "a", "c")
    assert snapshot.since is None
    assert len(read(snapshot)) == 10


def test_a_closed_snapshot_gives_nothing_and_costs_nothing() -> None:
    host = make_host(range(10))
    snapshot = host.table.snapshot()
    push(host, [5], 1)
    snapshot.close()
    snapshot.close()
    assert snapshot.take(5) is None
    push(host, range(10), 1)


@pytest.mark.parametrize("broken", [False, True], ids=["to a file", "without a file"])
def test_much_that_is_put_aside_goes_to_a_file(monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    monkeypatch.setattr(row_snapshot, "_LEAST_ASIDE", 100)
    spilled = []

    def temporary(**options: Any) -> Any:
        if broken:
            raise OSError("no space")
        spilled.append(real(**options))
        return spilled[-1]

    real = row_snapshot.tempfile.TemporaryFile
    monkeypatch.setattr(row_snapshot.tempfile, "TemporaryFile", temporary)
    host = make_host(range(1000))
    before = contents(host.table)
    snapshot = host.table.snapshot()
    for first in range(0, 1000, 50):
        push(host, range(first, first + 50), 1)
    assert len(spilled) == (0 if broken else 1)
    assert read(snapshot, most=70) == before


def test_M04_a_snapshot_is_no_copy() -> None:
    """Numpy's allocations are traced; the table's own array is made before."""
    table = make_table(width=64)
    table.lookup(np.arange(100_000))
    size = 100_000 * 64 * 4
    tracemalloc.start()
    try:
        snapshot = table.snapshot(None, "a")
        while snapshot.take(1000) is not None:
            table.load(SelectedRows(np.arange(500), np.ones((500, 64), np.float32), 0))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 0.1 * size


def test_an_empty_table() -> None:
    snapshot = SparseTable("t", 2, "float32", make_table().init).snapshot()
    assert snapshot.count == 0
    assert snapshot.take(5) is None
