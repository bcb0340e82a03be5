"""Pages touched ahead of need: nothing changes but when they come, they stay few, and all works where the system refuses."""

from __future__ import annotations

import mmap
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluidlite.dtypes import Array
from fluidlite.values import pages_ahead, row_index, row_store
from fluidlite.values.initial import Constant
from fluidlite.values.pages_ahead import PagesAhead
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable, TableColumn

PAGE = mmap.PAGESIZE


def supported() -> bool:
    return sys.platform == "linux" and pages_ahead._populate(pages(1).ctypes.data, PAGE)


def pages(count: int) -> Array:
    """Bytes in fresh pages of their own, none of them there yet."""
    return np.frombuffer(mmap.mmap(-1, count * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)


needs_populate = pytest.mark.skipif(not supported(), reason="the system cannot populate pages")


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything that large tables do, with small ones, and with a thread that the test ends."""
    monkeypatch.setattr(pages_ahead, "_populator", pages_ahead._Populator())
    monkeypatch.setattr(pages_ahead, "_IDLE", 0.01)
    for module in (pages_ahead, row_store):
        monkeypatch.setattr(module, "HUGE_PAGE", PAGE)
    monkeypatch.setattr(row_store, "_LEAST", PAGE)
    monkeypatch.setattr(row_store, "_SMALL", 4 * PAGE)
    monkeypatch.setattr(row_index, "_AT_ONCE_BITS", 8)
    monkeypatch.setattr(row_index, "_AHEAD_BITS", 10)
    yield
    end_thread()


def end_thread() -> None:
    thread = pages_ahead._populator._thread
    if thread is not None:
        thread.join(60)
        assert not thread.is_alive()


class Signal:
    """Stands in the queue behind all pages that were asked for."""

    def __init__(self) -> None:
        self.reached = threading.Event()

    def populate(self, page: int) -> bool:
        self.reached.set()
        return True


def wait_for_pages() -> None:
    signal = Signal()
    pages_ahead._populator.put(signal, 0)  # type: ignore[arg-type]
    assert signal.reached.wait(60)


@needs_populate
def test_pages_are_there_when_they_are_written_and_hold_what_they_held() -> None:
    resource = pytest.importorskip("resource")
    array = pages(512)
    array = array[: 511 * PAGE + 1]  # the last page is not whole
    array[: 3 * PAGE] = np.arange(3 * PAGE) % 251
    ahead = PagesAhead(array, used=2 * PAGE + 1)
    ahead.ask(2 * PAGE + 1, array.nbytes)
    wait_for_pages()
    assert ahead.ready == ahead.nbytes == 511 * PAGE
    np.testing.assert_array_equal(array[: 3 * PAGE], np.arange(3 * PAGE) % 251)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    array[::PAGE] = 1
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < 100
    assert not array[1 + 3 * PAGE :: PAGE].any()


def test_an_array_lacks_the_pages_that_nobody_touched() -> None:
    array = pages(8)
    ahead = PagesAhead(array, used=PAGE // 2)
    assert not ahead.lacks(PAGE // 2, PAGE)
    assert ahead.lacks(PAGE // 2, PAGE + 1)
    ahead.ready = 2 * PAGE
    assert not ahead.lacks(PAGE // 2, 2 * PAGE)
    assert ahead.lacks(PAGE // 2, 2 * PAGE + 1)
    assert not ahead.lacks(2 * PAGE + 1, 3 * PAGE)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 1500), max_size=25), refused=st.booleans(), seed=st.integers(0, 2**32 - 1))
def test_tables_hold_the_same_with_pages_ahead_and_without(sizes: list[int], refused: bool, seed: int) -> None:
    pages_ahead._populator.refused = refused
    random = np.random.default_rng(seed)
    emb, velocity = SparseTable("emb", 5, "float32", Constant(0.5)), TableColumn("v", 5, 2.0, "float32")
    emb.attach(velocity)
    expected: dict[int, float] = {}
    for size in sizes:
        ids = np.unique(random.integers(-2000, 2000 + 4 * sum(sizes), size))
        emb.update(SelectedRows(ids, np.ones((len(ids), 5), np.float32), 0), [velocity], subtract)
        for key in ids.tolist():
            expected[key] = expected.get(key, 0.5) - 1.0
    assert sorted(emb.ids.tolist()) == sorted(expected)
    values = emb.export().value
    assert values.T.tolist() == 5 * [[expected[key] for key in emb.ids.tolist()]]
    np.testing.assert_array_equal(emb.export_column(velocity).value, 2.5 - values)


def subtract(value: Array, gradient: Array, velocity: Array) -> None:
    value -= gradient
    velocity += gradient


@pytest.mark.parametrize("accumulators", [0, 1, 2])
def test_bytes_per_row_stay_below_a_third_more_than_is_needed(accumulators: int) -> None:
    """As without pages ahead: values, accumulators, id and a cell of the index are needed. Counted at every moment."""
    emb = SparseTable("emb", 16, "float32", Constant())
    for index in range(accumulators):
        emb.attach(TableColumn(f"m{index}", 16, 0.0, "float32"))
    worst, asked = 0.0, 0
    for start in range(0, 90000, 1500):
        emb.lookup(np.arange(start, start + 1500) * 7919)
        worst = max(worst, emb.nbytes / (len(emb) * (64 * (1 + accumulators) + 8 + 4)))
        asked += emb._store.nbytes(len(emb)) > emb._store._bytes(len(emb)) + PAGE
    assert worst <= 1.35
    assert asked or pages_ahead._populator.refused


def test_no_more_than_the_share_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_store, "_MOST_AHEAD", 8 * PAGE)
    store = row_store.RowStore(8, np.dtype(np.float64))
    for rows in range(0, 40000, 700):
        store.reserve(rows + 700, rows)
        store.array[rows : rows + 700] = rows
        size = (rows + 700) * 64
        assert store.nbytes(rows + 700) <= size + PAGE + min(size // 20, 8 * PAGE)


@needs_populate
def test_a_system_that_refuses_is_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    array, calls = pages(64), []

    def refuse(page: int, size: int) -> bool:
        calls.append(page)
        return False

    monkeypatch.setattr(pages_ahead, "_populate", refuse)
    ahead = PagesAhead(array, 0)
    ahead.ask(0, 8 * PAGE)
    wait_for_pages()
    ahead.ask(8 * PAGE, 16 * PAGE)
    wait_for_pages()
    assert (len(calls), ahead.ready, ahead.nbytes) == (8, 0, 8 * PAGE)
    assert pages_ahead._populator.refused


@needs_populate
def test_only_a_system_that_does_not_know_how_refuses() -> None:
    array = pages(2)
    assert pages_ahead._populate(array.ctypes.data, PAGE)
    assert not pages_ahead._populate(array.ctypes.data + 1, PAGE), (
        "an argument that is wrong, as an unknown advice would be"
    )
    assert pages_ahead._populate((1 << 46) + PAGE, PAGE), "no such memory"


@needs_populate
def test_pages_of_an_array_that_is_gone_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    populated: list[int] = []

    def note(page: int, size: int) -> bool:
        populated.append(page)
        return True

    monkeypatch.setattr(pages_ahead, "_populate", note)
    first = threading.Event()
    pages_ahead._populator.put(Blocker(first), 0, rare=True)  # type: ignore[arg-type]
    array, other = pages(4), pages(1)
    gone = weakref.ref(array)
    PagesAhead(array, 0).ask(0, array.nbytes)
    PagesAhead(other, 0).ask(0, other.nbytes)
    del array
    assert gone() is None
    first.set()
    wait_for_pages()
    assert populated == [other.ctypes.data]


@needs_populate
def test_rare_pages_come_first_each_kind_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    populated: list[int] = []

    def note(page: int, size: int) -> bool:
        populated.append(page)
        return True

    monkeypatch.setattr(pages_ahead, "_populate", note)
    first = threading.Event()
    pages_ahead._populator.put(Blocker(first), 0, rare=True)  # type: ignore[arg-type]
    rows, ids = pages(3), pages(2)
    PagesAhead(rows, 0).ask(0, rows.nbytes)
    PagesAhead(ids, 0, rare=True).ask(0, ids.nbytes)
    first.set()
    wait_for_pages()
    assert populated == [
        array.ctypes.data + at * PAGE for array, at in [(ids, 0), (ids, 1), (rows, 0), (rows, 1), (rows, 2)]
    ]


class Blocker:
    """Holds the thread until the test lets it go on."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event

    def populate(self, page: int) -> bool:
        return self._event.wait(60)


def test_the_thread_ends_without_work_and_starts_again() -> None:
    threads = []
    for _ in range(2):
        wait_for_pages()
        threads.append(pages_ahead._populator._thread)
        end_thread()
        assert pages_ahead._populator._thread is None
    assert threads[0] is not threads[1] or threads == [None, None]


def test_without_a_thread_tables_grow_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    emb = SparseTable("emb", 16, "float32", Constant(3.0))
    for start in range(0, 20000, 1000):
        assert (emb.lookup(np.arange(start, start + 1000)) == 3.0).all()
    assert pages_ahead._populator.refused
    assert pages_ahead._populator._thread is None


def test_small_tables_start_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_store, "_SMALL", 1 << 25)
    monkeypatch.setattr(row_index, "_AHEAD_BITS", 22)
    SparseTable("emb", 16, "float32", Constant()).lookup(np.arange(10000))
    assert pages_ahead._populator._thread is None


FORKED = """
import mmap, os, threading
import numpy as np
from fluidlite.values import pages_ahead

pages_ahead.HUGE_PAGE = mmap.PAGESIZE
array = np.frombuffer(mmap.mmap(-1, 64 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
array[:] = 7
ahead = pages_ahead.PagesAhead(array, 0)

def go(used, stop):
    ahead.ask(used * mmap.PAGESIZE, stop * mmap.PAGESIZE)
    thread = pages_ahead._populator._thread
    assert thread is not None
    while ahead.ready < stop * mmap.PAGESIZE:
        assert thread.is_alive()
        thread.join(0.001)
    assert (array == 7).all()

go(0, 32)
child = os.fork()
go(32, 64)
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@needs_populate
def test_a_forked_process_has_a_thread_of_its_own() -> None:
    """And a process ends while its thread waits for work."""
    subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED], check=True, timeout=60)


@pytest.mark.parametrize(("ready", "emptied"), [(0, 100), (600, 600), (3000, 1000)])
def test_cells_aside_go_as_far_as_they_must_or_as_their_pages_are_there(ready: int, emptied: int) -> None:
    pages_ahead._populator.refused = True
    cells = row_index.Cells(12)
    assert cells._ahead is not None
    cells._ahead.ready = 4 * ready
    assert not cells.empty(100, 1000)
    assert cells._emptied == emptied


def test_an_index_in_haste_leaves_emptying_to_the_next_call() -> None:
    pages_ahead._populator.refused = True
    index, emptied = row_index.RowIndex(), []
    for step, in_haste in enumerate([False] * 8 + [True, False]):
        index.add(np.arange(step * 50, step * 50 + 50), in_haste)
        emptied.append(index._aside._emptied if index._aside else 0)
    begun = index._aside_from
    assert emptied[7:] == [13 * (size - begun) for size in (400, 400, 500)]
    assert index.find(np.arange(500)).tolist() == list(range(500))
