"""Sums of duplicates, growing stores and blocked updates: each equals its plain form, bit for bit."""

from __future__ import annotations

import mmap
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidlite.errors import ShapeError
from fluidlite.kernels import ABSENT, is_ascending, put_rows, take_rows
from fluidlite.kernels.in_numpy.rows import add_rows, first_positions
from fluidlite.values import row_index, row_store
from fluidlite.values.initial import Constant
from fluidlite.values.row_index import RowIndex
from fluidlite.values.row_store import RowStore
from fluidlite.values.row_update import RowUpdate
from fluidlite.values.selected_rows import (
    SelectedRows,
    first_occurrences,
    merge_rows,
    segment_sum,
    to_dense,
    unique_ids,
)
from fluidlite.values.sparse_table import SparseTable, TableColumn

LOW, HIGH = -(2**63), 2**63 - 1
any_id = st.integers(LOW, HIGH) | st.integers(-3, 3) | st.integers(0, 2**17) | st.sampled_from([LOW, LOW + 1, HIGH])
DTYPES = (np.float16, np.float32, np.float64, np.int64)


def plain_sum(value: Any, segment: Any, count: int) -> Any:
    out = np.zeros((count, *value.shape[1:]), value.dtype)
    np.add.at(out, segment, value)
    return out


def plain_merge(selected: SelectedRows, *, always_sort: bool = False) -> SelectedRows:
    unique, inverse = np.unique(selected.rows, return_inverse=True)
    if len(unique) == len(selected.rows) and not always_sort:
        return selected
    return SelectedRows(unique, plain_sum(selected.value, inverse.reshape(-1), len(unique)), selected.height)


def same_bits(got: Any, wanted: Any) -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    assert got.tobytes() == wanted.tobytes()


def values_of(seed: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Numbers whose sum depends on the order, with zeros of both signs among them."""
    rng = np.random.default_rng(seed)
    value = np.asarray(rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape))
    return np.where(rng.random(shape) < 0.2, -0.0, value).astype(dtype)


# ---- duplicates


@given(st.lists(any_id, max_size=300))
@settings(deadline=None)
def test_unique_ids_equals_numpy(ids: list[int]) -> None:
    given_ids = np.array(ids, np.int64)
    wanted = np.unique(given_ids, return_index=True, return_inverse=True)
    for got, expected in zip(unique_ids(given_ids), wanted, strict=True):
        same_bits(got, np.asarray(expected).reshape(-1))
    unique, inverse = first_occurrences(given_ids)
    assert unique[inverse].tolist() == ids
    assert is_ascending(given_ids) == (sorted(set(ids)) == ids)


@pytest.mark.parametrize("dtype", [np.int32, np.uint64])
def test_unique_ids_of_other_dtypes_keep_them(dtype: Any) -> None:
    unique, first, inverse = unique_ids(np.array([[7], [2**31 - 1], [7]], dtype))
    assert (unique.dtype, unique.tolist(), first.tolist()) == (dtype, [7, 2**31 - 1], [0, 1])
    assert inverse.tolist() == [0, 1, 0]


@given(
    st.lists(st.integers(0, 12) | st.just(3), max_size=200),
    st.sampled_from([(), (1,), (3,), (16,), (64,), (70,), (2, 3), (0,)]),
    st.sampled_from(DTYPES),
    st.integers(0, 9),
)
@settings(deadline=None)
def test_segment_sum_adds_in_order_of_occurrence(
    segments: list[int], shape: tuple[int, ...], dtype: Any, seed: int
) -> None:
    segment = np.array(segments, np.int64)
    value = values_of(seed, (len(segment), *shape), dtype)
    same_bits(segment_sum(value, segment, 13), plain_sum(value, segment, 13))
    same_bits(segment_sum(value[::-1], segment, 13), plain_sum(value[::-1], segment, 13))


@pytest.mark.parametrize("width", [1, 16, 64, 100])
@pytest.mark.parametrize("distinct", [1, 3, 500, 20000])
def test_segment_sum_of_many_rows(distinct: int, width: int) -> None:
    rng = np.random.default_rng(distinct)
    segment = np.where(rng.random(3000) < 0.2, 0, rng.integers(0, distinct, 3000))
    value = values_of(width, (3000, width), np.float32)
    same_bits(segment_sum(value, segment, distinct), plain_sum(value, segment, distinct))


def test_segments_count_from_the_end_and_outside_are_refused() -> None:
    value = np.array([1.0, 2.0, 4.0])
    assert segment_sum(value, np.array([-1, 0, -1]), 3).tolist() == [2.0, 0.0, 5.0]
    for bad in (-4, 3):
        with pytest.raises(IndexError):
            segment_sum(value, np.array([0, bad, 0]), 3)
    with pytest.raises(ShapeError, match="3 rows of values to sum by 2 segments"):
        segment_sum(value, np.array([0, 1]), 3)


@given(st.lists(any_id, max_size=120), st.sampled_from([1, 16, 64]), st.booleans())
@settings(deadline=None)
def test_merge_rows_equals_its_plain_form(ids: list[int], width: int, always_sort: bool) -> None:
    rows = SelectedRows(np.array(ids, np.int64), values_of(len(ids), (len(ids), width), np.float32), 9)
    got, wanted = merge_rows(rows, always_sort=always_sort), plain_merge(rows, always_sort=always_sort)
    same_bits(got.rows, wanted.rows)
    same_bits(got.value, wanted.value)
    assert got.height == 9


def test_to_dense_sums_duplicates() -> None:
    rows = SelectedRows(np.array([2, 0, 2]), np.array([[1.0], [2.0], [4.0]]), 4)
    assert to_dense(rows).tolist() == [[2.0], [0.0], [5.0], [0.0]]


# ---- kernels


def test_rows_are_taken_into_a_buffer_and_put_back() -> None:
    matrix = np.arange(20.0).reshape(5, 4)
    out = np.empty((2, 4))
    assert take_rows(matrix, np.array([3, 1]), out) is out
    np.testing.assert_array_equal(out, matrix[[3, 1]])
    put_rows(matrix, np.array([0, 4]), out)
    np.testing.assert_array_equal(matrix[[0, 4]], out)


@pytest.mark.parametrize("width", [1, 16, 64])
def test_add_rows_equals_a_loop(width: int) -> None:
    rng = np.random.default_rng(width)
    rows, values = rng.integers(0, 40, 1000), values_of(1, (1000, width), np.float32)
    matrix = values_of(2, (40, width), np.float32)
    wanted = matrix.copy()
    for row, value in zip(rows, values, strict=True):
        wanted[row] += value
    add_rows(matrix, rows, values)
    same_bits(matrix, wanted)


def test_first_positions() -> None:
    assert first_positions(np.array([4, 1, 4, 0, 1]), 5).tolist() == [True, True, False, True, False]


# ---- blocked updates


def formula(p: Any, g: Any, *state: Any) -> None:
    for total in state:
        np.multiply(total, total.dtype.type(0.9), out=total)
        np.add(total, g[:, : total.shape[1]], out=total)
    p -= g / (np.sqrt(np.abs(p)) + p.dtype.type(1e-3))


@pytest.mark.parametrize("spans", [[(0, 4)], [(0, 4), (4, 4)], [(0, 4), (4, 1), (5, 4)], [(0, 4), (8, 2)]], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 2048, 5000])
def test_a_blocked_update_equals_one_on_whole_columns(spans: list[tuple[int, int]], rows: int) -> None:
    record_width = max(start + width for start, width in spans)
    rng = np.random.default_rng(rows)
    matrix = values_of(3, (6000, record_width), np.float32)
    picked, gradient = rng.permutation(6000)[:rows], values_of(4, (rows, 4), np.float32)
    wanted = matrix.copy()
    parts = [wanted[picked, start : start + width] for start, width in spans]
    formula(parts[0], gradient, *parts[1:])
    for (start, width), part in zip(spans, parts, strict=True):
        wanted[picked, start : start + width] = part
    RowUpdate(record_width, matrix.dtype, spans).run(matrix, picked, gradient, formula)
    same_bits(matrix, wanted)


def test_a_failing_step_leaves_its_block_as_it_was() -> None:
    def fail(p: Any, g: Any) -> None:
        p += g
        raise ArithmeticError

    emb = SparseTable("emb", 2, "float64", Constant(1.0))
    with pytest.raises(ArithmeticError):
        emb.update(SelectedRows(np.array([3]), np.ones((1, 2)), 0), [], fail)
    assert emb.lookup(np.array([3])).tolist() == [[1.0, 1.0]]


# ---- growth


@pytest.fixture(params=["reserved", "counted", "refused"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The three kinds of system: address space is free, is counted, is refused at the call."""

    def refuse(*args: Any, **kwargs: Any) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(row_store, "_LEAST", 1 << 12)
    monkeypatch.setattr(row_store, "_SMALL", 1 << 14)
    if request.param == "counted":
        monkeypatch.setattr(row_store, "_reservable", lambda: 0)
    elif request.param == "refused":
        monkeypatch.setattr(row_store.mmap, "mmap", refuse)
    return str(request.param)


def test_a_store_keeps_its_rows_while_it_grows(memory: str) -> None:
    store = RowStore(3, np.dtype(np.float32))
    assert (store.array.shape, store.nbytes(0)) == ((0, 3), 0)
    for used in range(0, 3000, 700):
        store.reserve(used + 700, used)
        store.array[used : used + 700] = np.arange(used, used + 700)[:, None]
    np.testing.assert_array_equal(store.array[:3500, 2], np.arange(3500))
    assert store.nbytes(100) == mmap.PAGESIZE
    assert store.nbytes(3500) == 2**21


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere rows are copied")
def test_M09_a_store_grows_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_store, "_LEAST", 1 << 12)
    store = RowStore(2, np.dtype(np.float64))
    store.reserve(1000, 0)
    before = store.array.ctypes.data
    for rows in (5000, 300_000):
        store.reserve(rows, rows // 2)
        assert store.array.ctypes.data == before


def test_a_store_larger_than_what_was_reserved_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_store, "_LEAST", 0)
    monkeypatch.setattr(row_store, "_reservable", lambda: 1 << 16)
    store = RowStore(1, np.dtype(np.int64))
    store.reserve(1 << 13, 0)
    store.array[:, 0] = np.arange(1 << 13)
    store.reserve((1 << 13) + 1, 1 << 13)
    np.testing.assert_array_equal(store.array[: 1 << 13, 0], np.arange(1 << 13))


@pytest.mark.parametrize("at_once", [0, 8])
@pytest.mark.parametrize("batch", [1, 37, 1000])
def test_an_index_finds_every_id_while_larger_cells_are_built(
    batch: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_index, "_AT_ONCE_BITS", at_once)
    index = RowIndex()
    ids = np.random.default_rng(batch).permutation(np.arange(-4000, 4000) * 7919)[: 700 * min(batch, 10)]
    built_aside = 0
    for start in range(0, len(ids), batch):
        index.add(ids[start : start + batch])
        assert index.find(ids[: start + 2 * batch]).tolist() == [
            position if position < len(index) else ABSENT for position in range(len(ids[: start + 2 * batch]))
        ]
        built_aside += index._aside is not None
    assert built_aside or batch == 1000, "steps this large leave no time"


def test_M09_no_add_builds_much_more_than_its_own_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    claims: list[int] = []
    claim = row_index.Cells.claim

    def counted(cells: row_index.Cells, ids: Any, first: int, last: int) -> None:
        claims[-1] += last - first
        claim(cells, ids, first, last)

    monkeypatch.setattr(row_index.Cells, "claim", counted)
    index = RowIndex()
    for start in range(0, 600_000, 3000):
        claims.append(0)
        index.add(np.arange(start, start + 3000))
    large = claims[30_000 // 3000 :]
    assert max(large) <= 3000 * 10


def test_a_table_grows_with_its_accumulators(memory: str) -> None:
    emb, columns = SparseTable("emb", 2, "float64", Constant(1.0)), []
    for size in (10, 1000, 100_000):
        columns.append(TableColumn(f"m{size}", 1, float(size), "float64"))
        emb.attach(columns[-1])
        emb.update(SelectedRows(np.arange(size), np.full((size, 2), 2.0), 0), columns, lambda p, g, *state: None)
        for column in columns:
            assert (column.export().value == column.fill).all()
    assert (emb.export().value == 1.0).all()
    assert len(emb) == 100_000


# ---- threads


def test_updates_and_lookups_of_threads_equal_a_serial_order() -> None:
    """The formula does not commute; it runs inside the critical section, so it can note the order."""
    emb, column = SparseTable("emb", 4, "float32", Constant(0.5)), TableColumn("m", 4, 0.25, "float32")
    serial: list[SelectedRows] = []
    errors: list[BaseException] = []
    start = threading.Barrier(4)
    pool = np.arange(-200, 200) * 2**40

    def step_of(rows: SelectedRows) -> Any:
        def step(p: Any, g: Any, total: Any) -> None:
            serial.append(rows)
            formula(p, g, total)

        return step

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            start.wait()
            for turn in range(60):
                # ids of its own make the index grow, below the feet of the others
                own = np.arange(turn * 300, turn * 300 + 300) * 4 + seed
                ids = np.concatenate([rng.choice(pool, 100), own])
                rows = SelectedRows(ids, rng.standard_normal((400, 4)).astype(np.float32), 0)
                emb.update(rows, [column], step_of(rows))
                assert (emb.lookup(own, read_only=True) != 0.0).any(axis=1).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    again, state = SparseTable("emb", 4, "float32", Constant(0.5)), TableColumn("m", 4, 0.25, "float32")
    for rows in serial:
        again.update(rows, [state], formula)
    assert len(serial) == 240
    same_bits(emb.ids, again.ids)
    same_bits(emb.export().value, again.export().value)
    same_bits(column.export().value, state.export().value)
