"""Auto-grown tables: any id, one row per id, records with accumulators, threads; and the index below them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidlite.errors import TableError
from fluidlite.kernels import ABSENT
from fluidlite.kernels.in_numpy.cells import home
from fluidlite.values.initial import Constant, FromArray, Normal, Uniform
from fluidlite.values.row_index import RowIndex
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sharding import shard_of
from fluidlite.values.sparse_table import SparseTable, TableColumn

LOW, HIGH = -(2**63), 2**63 - 1
EXTREMES = [LOW, LOW + 1, -(2**53) - 1, -(2**32), -1, 0, 1, 2**31, 2**32, 2**53, 2**53 + 1, HIGH - 1, HIGH]

any_id = st.integers(LOW, HIGH) | st.integers(-3, 3) | st.sampled_from(EXTREMES)


def table(width: int = 2, dtype: Any = "float64", init: Any = None, **rest: Any) -> SparseTable:
    return SparseTable("emb", width, dtype, init or Uniform(), **rest)


def ids_of(*ids: int) -> Any:
    return np.array(ids, np.int64)


def rows_of(ids: Any, value: Any, height: int = 0) -> SelectedRows:
    return SelectedRows(np.asarray(ids, np.int64), np.asarray(value, np.float64), height)


def together(work: Callable[[int], None], threads: int) -> None:
    """Run ``work(i)`` in threads that start at the same moment; the first error is raised here."""
    start, errors = threading.Barrier(threads), []

    def run(index: int) -> None:
        start.wait()
        try:
            work(index)
        except Exception as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(index,)) for index in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]


# ---- the index


@given(st.lists(st.lists(any_id, max_size=60), max_size=8))
@settings(deadline=None)
def test_index_equals_a_dict(batches: list[list[int]]) -> None:
    index, model = RowIndex(), dict[int, int]()
    for batch in batches:
        wanted = np.array(batch, np.int64)
        assert index.find(wanted).tolist() == [model.get(i, ABSENT) for i in batch]
        new = [i for i in dict.fromkeys(batch) if i not in model]
        model.update({i: len(model) + k for k, i in enumerate(new)})
        numbered = index.find_or_number(wanted)
        assert [part.tolist() for part in numbered] == [[model[i] for i in batch], new]
        index.add(np.array(new, np.int64))
        assert index.find(wanted).tolist() == [model[i] for i in batch]
    assert index.ids.tolist() == list(model)


PATTERNS = {
    "consecutive": np.arange(20000),
    "around zero": np.arange(-10000, 10000),
    "multiples of 2**20": np.arange(20000) << 20,
    "multiples of 2**44": np.arange(20000) << 44,
    "one shard of 7": np.arange(20000) * 7 + 3,
    "26 slots with hashes": (np.arange(20000) % 26 << 58) | (np.arange(20000) * 2654435761 % 2**40),
    "random": np.random.default_rng(0).integers(LOW, HIGH, 20000),
}


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_index_spreads_ids_of_any_pattern(pattern: str) -> None:
    ids, index = PATTERNS[pattern], RowIndex()
    index.add(ids)
    assert index.find(ids).tolist() == list(range(len(ids)))
    homes = np.bincount(home(index._cells._cells, ids), minlength=1 << index._cells.bits)
    assert homes.max() <= 12, "a good hash puts at most about 8 of 20000 ids into one of 32768 slots"
    assert (index.find(ids ^ ids_of(1 << 62)) == ABSENT).sum() == (~np.isin(ids ^ ids_of(1 << 62), ids)).sum()


# ---- rows


def test_lookup_makes_rows_once_and_repeats_them_for_duplicates() -> None:
    emb = table()
    first = emb.lookup(ids_of(5, -1, 5))
    assert first.shape == (3, 2)
    assert (len(emb), emb.ids.tolist()) == (2, [5, -1])
    np.testing.assert_array_equal(first[0], first[2])
    first[:] = 9.0
    assert (emb.lookup(ids_of(5)) != 9.0).all(), "what lookup returns is a copy"


def test_b113_a_row_looked_up_twice_is_the_same() -> None:
    emb = table(init=Normal())
    np.testing.assert_array_equal(emb.lookup(ids_of(1)), emb.lookup(ids_of(1)))


def test_b016_grows_beyond_the_declared_height() -> None:
    emb = table(height=5)
    assert emb.lookup(np.arange(1000)).shape == (1000, 2)
    assert (len(emb), emb.height, emb.export().height) == (1000, 5, 5)


def test_b018_ids_are_any_int64() -> None:
    emb = table(width=4, height=3)
    emb.lookup(ids_of(2**62 + 1, 7, 2**63 - 1))
    assert emb.export().rows.tolist() == [2**62 + 1, 7, 2**63 - 1]


def test_c29_no_id_is_reserved() -> None:
    emb = table()
    rows = emb.lookup(np.array(EXTREMES))
    assert emb.ids.tolist() == EXTREMES
    assert len(np.unique(rows, axis=0)) == len(EXTREMES)
    emb.update(rows_of(EXTREMES, np.ones((len(EXTREMES), 2))), [], subtract)
    np.testing.assert_array_equal(emb.lookup(np.array(EXTREMES)), rows - 1.0)


@pytest.mark.parametrize("height", [1, 2, 3, 10**9])
@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_c46_c49_rows_are_the_same_for_any_servers_order_and_height(servers: int, height: int) -> None:
    ids = np.concatenate([np.array(EXTREMES), np.arange(200)])
    shards = [table(init=Normal(), height=height, seed=3) for _ in range(servers)]
    order = np.random.default_rng(servers).permutation(ids)
    for index, shard in enumerate(shards):
        shard.lookup(order[shard_of(order, servers) == index])
    alone = table(init=Normal(), seed=3).lookup(ids)
    owner = shard_of(ids, servers)
    for index, shard in enumerate(shards):
        np.testing.assert_array_equal(shard.lookup(ids[owner == index], read_only=True), alone[owner == index])


def test_c02_read_only_lookup_of_an_unknown_id_is_zeros_and_makes_no_row() -> None:
    emb = table()
    known = emb.lookup(ids_of(3))[0]
    np.testing.assert_array_equal(emb.lookup(ids_of(4, 3, -9), read_only=True), [[0, 0], known, [0, 0]])
    assert emb.ids.tolist() == [3]
    assert emb.positions(ids_of(4, 3), create=False).tolist() == [-1, 0]


def test_empty_lookups_and_updates() -> None:
    emb = table()
    assert emb.lookup(ids_of()).shape == (0, 2)
    assert emb.lookup(ids_of(), read_only=True).shape == (0, 2)
    emb.update(SelectedRows(ids_of(), np.empty((0, 7)), 0), [], subtract)
    assert len(emb) == 0
    assert emb.export().value.shape == (0, 2)


def test_ids_may_be_a_column_or_unsigned_or_narrow() -> None:
    emb = table()
    emb.lookup(np.array([[2**64 - 1], [7]], np.uint64))
    emb.lookup(np.array([7, 8], np.int32))
    assert emb.ids.tolist() == [-1, 7, 8]
    with pytest.raises(TableError, match="float64, not integers"):
        emb.lookup(np.array([1.0]))


def test_nothing_is_allocated_by_height() -> None:
    assert table(height=10**9).nbytes < 1000


def test_first_values_follow_the_initialiser() -> None:
    np.testing.assert_array_equal(table(init=Constant(0.5)).lookup(ids_of(9)), [[0.5, 0.5]])
    given_rows = table(init=FromArray(np.arange(4.0).reshape(2, 2)))
    np.testing.assert_array_equal(given_rows.lookup(ids_of(1, 5)), [[2, 3], [0, 0]])


# ---- accumulators


def subtract(p: Any, g: Any) -> None:
    p -= g


def accumulate(p: Any, g: Any, total: Any) -> None:
    total += g
    p -= g


def test_accumulators_have_a_fill_of_their_own_in_old_and_new_rows() -> None:
    emb, column = table(init=Constant(7.0)), TableColumn("emb_moment_0", 2, 0.25, "float64")
    emb.lookup(ids_of(1, 2))
    emb.attach(column)
    emb.lookup(ids_of(3))
    assert column.export().rows.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(column.export().value, np.full((3, 2), 0.25))
    np.testing.assert_array_equal(emb.export().value, np.full((3, 2), 7.0))


def test_accumulators_of_several_widths_share_the_record() -> None:
    emb = table(width=4, init=Constant(1.0))
    columns = [
        TableColumn(name, width, fill, "float64") for name, width, fill in (("a", 4, 2.0), ("b", 1, 3.0), ("c", 4, 4.0))
    ]
    emb.lookup(np.arange(100))
    for column in columns:
        emb.attach(column)
    positions = emb.positions(ids_of(50, 1000), create=True)
    emb.write(positions, np.full((2, 1), 5.0), columns[1])
    emb.write(positions, np.full((2, 4), 6.0))
    assert [emb.read(positions, c).tolist() for c in (None, *columns)] == [
        [[v] * w] * 2 for v, w in ((6.0, 4), (2.0, 4), (5.0, 1), (4.0, 4))
    ]
    assert [emb.read(ids_of(51), c)[0, 0] for c in (None, *columns)] == [1.0, 2.0, 3.0, 4.0]
    np.testing.assert_array_equal(emb.lookup(ids_of(50, 51))[:, 0], [6.0, 1.0])


def test_update_sums_duplicates_and_makes_missing_rows() -> None:
    emb, column = table(init=Constant(0.0)), TableColumn("m", 2, 0.0, "float64")
    calls = []

    def step(p: Any, g: Any, total: Any) -> None:
        calls.append(len(p))
        accumulate(p, g, total)

    emb.update(rows_of([9, 4, 9], [[1, 1], [2, 2], [4, 4]]), [column], step)
    assert calls == [2]
    np.testing.assert_array_equal(emb.lookup(ids_of(9, 4)), [[-5, -5], [-2, -2]])
    np.testing.assert_array_equal(emb.read(emb.positions(ids_of(9, 4), create=False), column), [[5, 5], [2, 2]])


def test_update_of_many_rows_touches_each_once() -> None:
    emb, column = table(init=Constant(0.0)), TableColumn("m", 2, 0.0, "float64")
    ids = np.random.default_rng(1).permutation(10000)
    emb.update(rows_of(ids, np.repeat(ids[:, None], 2, axis=1)), [column], accumulate)
    np.testing.assert_array_equal(emb.lookup(ids)[:, 0], -ids)
    np.testing.assert_array_equal(column.export().value[:, 1], ids)


def test_a_new_column_of_a_known_name_starts_over() -> None:
    emb, column = table(), TableColumn("m", 2, 0.0, "float64")
    emb.update(rows_of([1], [[1, 1]]), [column], accumulate)
    again = TableColumn("m", 2, 0.5, "float64")
    emb.attach(again)
    np.testing.assert_array_equal(again.export().value, [[0.5, 0.5]])
    assert (emb.columns, column.table) == ((again,), None)


def test_updates_go_on_after_an_accumulator_was_attached_between_them() -> None:
    made = SparseTable("emb", 2, "float32", Constant(0.0))
    gradient = SelectedRows(np.array([1, 5]), np.ones((2, 2), np.float32), 0)

    def step(value: Any, gradient: Any) -> None:
        value -= gradient

    made.update(gradient, (), step)
    column = TableColumn("moment", 2, 7.0, "float32")
    made.attach(column)
    made.update(gradient, (), step)
    assert made.export().value.tolist() == [[-2.0, -2.0]] * 2
    assert column.export().value.tolist() == [[7.0, 7.0]] * 2


def test_rows_loaded_into_an_accumulator_before_its_table_is_known_wait_for_it() -> None:
    emb, column = table(), TableColumn("m", 2, 0.0, "float64")
    assert column.export().value.shape == (0, 2)
    column.load(rows_of([7], [[3, 4]]))
    emb.attach(column)
    assert column.export().rows.tolist() == [7]
    np.testing.assert_array_equal(column.export().value, [[3, 4]])


# ---- export and load


def test_export_and_load_of_values_and_accumulators() -> None:
    emb, column = table(height=9), TableColumn("m", 2, 0.0, "float64")
    emb.update(rows_of([5, 3, 8], [[1, 2], [3, 4], [5, 6]]), [column], accumulate)
    other, copied = table(seed=1), TableColumn("m", 2, 0.0, "float64")
    other.attach(copied)
    other.load(emb.export())
    copied.load(column.export())
    assert other.export().rows.tolist() == [5, 3, 8]
    np.testing.assert_array_equal(other.export().value, emb.export().value)
    np.testing.assert_array_equal(copied.export().value, column.export().value)


def test_b115_loaded_rows_keep_their_own_values_and_the_rest_stays() -> None:
    emb = table(init=Constant(1.0))
    emb.lookup(ids_of(100))
    emb.load(rows_of(np.arange(5), np.arange(10.0).reshape(5, 2)))
    np.testing.assert_array_equal(emb.lookup(ids_of(3, 100)), [[6, 7], [1, 1]])


def test_replace_forgets_rows_and_keeps_the_accumulators_of_those_that_stay() -> None:
    emb, column = table(), TableColumn("m", 2, 0.5, "float64")
    emb.update(rows_of([5, 3], [[1, 2], [3, 4]]), [column], accumulate)
    kept = dict(zip(column.export().rows.tolist(), column.export().value.tolist(), strict=True))
    with pytest.raises(TableError, match="got"):
        emb.replace(rows_of([7], [[1.0, 2.0, 3.0]]))
    assert emb.ids.tolist() == [5, 3]
    emb.replace(rows_of([8, 5], [[7, 7], [9, 9]]))
    np.testing.assert_array_equal(emb.export().value, [[7, 7], [9, 9]])
    assert column.export().rows.tolist() == [8, 5]
    assert column.export().value.tolist() == [[0.5, 0.5], kept[5]]


def test_k04_an_empty_table_round_trips() -> None:
    emb = table()
    emb.load(table().export())
    assert len(emb) == 0


# ---- refusals


@pytest.mark.parametrize("width", [0, -1])
def test_width_must_be_positive(width: int) -> None:
    with pytest.raises(TableError, match="'emb' has width"):
        table(width=width)


@pytest.mark.parametrize("dtype", ["int64", "float16"])
def test_dtype_must_be_a_float(dtype: str) -> None:
    with pytest.raises(TableError, match=f"'emb' is {dtype}"):
        table(dtype=dtype)


def test_initialiser_of_another_width_is_refused_at_once() -> None:
    with pytest.raises(TableError, match="table of width 3"):
        table(width=3, init=FromArray(np.zeros((5, 2))))


@pytest.mark.parametrize("value", [np.zeros((1, 3)), np.zeros((1, 2), np.float32), np.zeros((1, 2, 1)), np.zeros(1)])
def test_width_and_dtype_of_values_are_checked_before_anything_changes(value: Any) -> None:
    emb = table()
    wrong = SelectedRows(ids_of(1), value, 0)
    with pytest.raises(TableError, match=r"'the gradient of emb' needs values of shape \[1, 2\] and dtype float64"):
        emb.update(wrong, [], subtract)
    with pytest.raises(TableError, match="'emb' needs values"):
        emb.load(wrong)
    assert len(emb) == 0


def test_positions_outside_the_table_are_refused() -> None:
    emb = table()
    emb.lookup(ids_of(1))
    for bad in (ids_of(-1), ids_of(1)):
        with pytest.raises(TableError, match="outside the 1 rows"):
            emb.read(bad)
        with pytest.raises(TableError, match="outside the 1 rows"):
            emb.write(bad, np.zeros((1, 2)))


def test_accumulators_that_do_not_fit_are_refused() -> None:
    emb, column = table(), TableColumn("m", 2, 0.0, "float64")
    with pytest.raises(TableError, match="not attached"):
        emb.read(ids_of(), column)
    emb.attach(column)
    with pytest.raises(TableError, match="belongs to table 'emb', not to 'other'"):
        SparseTable("other", 2, "float64", Uniform()).attach(column)
    with pytest.raises(TableError, match="is float32, its table 'emb' is float64"):
        emb.attach(TableColumn("v", 2, 0.0, "float32"))
    with pytest.raises(TableError, match="has width 2, not 3"):
        emb.attach(TableColumn("m", 3, 0.0, "float64"))
    with pytest.raises(TableError, match="'m' has width 0"):
        TableColumn("m", 0, 0.0, "float64")


# ---- threads


def test_two_threads_that_touch_a_new_id_get_one_row() -> None:
    for attempt in range(20):
        emb = table(init=Normal())
        seen: list[Any] = [None] * 4
        ids = np.arange(attempt, attempt + 50)

        def look(index: int, emb: SparseTable = emb, ids: Any = ids, seen: list[Any] = seen) -> None:
            seen[index] = emb.lookup(ids)

        together(look, 4)
        assert len(emb) == 50
        assert all(np.array_equal(rows, seen[0]) for rows in seen)


def test_no_update_is_lost_among_many_threads() -> None:
    emb, column = table(init=Constant(0.0)), TableColumn("m", 2, 0.0, "float64")
    pool = np.array(EXTREMES * 1 + list(range(1000, 1400)))
    expected = np.zeros((6, len(pool)))

    def work(index: int) -> None:
        rng = np.random.default_rng(index)
        for _ in range(40):
            picks = rng.integers(0, len(pool), 100)
            np.add.at(expected[index], picks, 1.0)
            emb.update(rows_of(pool[picks], np.ones((100, 2))), [column], accumulate)
            rows = emb.lookup(pool[rng.integers(0, len(pool), 50)])
            assert (rows[:, 0] == rows[:, 1]).all(), "a row is never seen half written"

    together(work, 6)
    totals = expected.sum(0)
    touched = np.isin(pool, emb.ids)
    assert len(np.unique(emb.ids)) == len(emb)
    np.testing.assert_array_equal(emb.lookup(pool[touched])[:, 0], -totals[touched])
    np.testing.assert_array_equal(emb.read(emb.positions(pool[touched], create=False), column)[:, 1], totals[touched])
    assert (totals[~touched] == 0).all()


# ---- memory


@pytest.mark.parametrize("accumulators", [0, 1, 2])
def test_m01_bytes_per_row_stay_below_a_third_more_than_is_needed(accumulators: int) -> None:
    """Needed: values and accumulators, the id and one cell of the index. Counted at every moment, also while it grows."""
    emb = table(width=16, dtype="float32")
    for index in range(accumulators):
        emb.attach(TableColumn(f"m{index}", 16, 0.0, "float32"))
    worst = 0.0
    for start in range(0, 90000, 1500):
        emb.lookup(np.arange(start, start + 1500) * 7919)
        worst = max(worst, emb.nbytes / (len(emb) * (64 * (1 + accumulators) + 8 + 4)))
    assert worst <= 1.35


RESIDENT = """
import mmap

import numpy as np
from fluidlite.values.initial import Constant
from fluidlite.values.sparse_table import SparseTable, TableColumn

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE

def grown(rows):
    table = SparseTable("emb", 16, "float32", Constant(0.5))
    table.attach(TableColumn("m", 16, 0.0, "float32"))
    for start in range(0, rows, 8192):
        table.lookup(np.arange(start, start + 8192) * 7919)
    return table

grown(8192)
before = resident()
table = grown(ROWS)
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell resident memory")
def test_m01_resident_memory_of_a_table_stays_below_a_third_more_than_is_needed() -> None:
    """With as many ids as half of the cells: the moment when larger cells beside them take most."""
    rows = 1 << 18
    script = RESIDENT.replace("ROWS", str(rows))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=100)
    assert int(done.stdout) <= 1.35 * rows * (2 * 64 + 8 + 4)
