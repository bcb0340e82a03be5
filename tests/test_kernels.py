"""The kernels of tables in C: each equals the one in numpy bit for bit, and answers what it cannot take by an error."""

from __future__ import annotations

import contextlib
import threading
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite.errors import DtypeError, KernelError, OutOfRangeError, SettingError, ShapeError
from fluidlite.kernels import choice
from fluidlite.kernels.in_numpy import cells as np_cells
from fluidlite.kernels.in_numpy import ids as np_ids
from fluidlite.kernels.in_numpy import rows as np_rows

_c = pytest.importorskip("fluidlite.kernels._c", reason="the C kernels are not built", exc_type=ImportError)

from fluidlite.kernels.in_c import cells as c_cells  # noqa: E402
from fluidlite.kernels.in_c import ids as c_ids  # noqa: E402
from fluidlite.kernels.in_c import rows as c_rows  # noqa: E402

LOW, HIGH = -(2**63), 2**63 - 1
any_id = st.integers(LOW, HIGH) | st.integers(-3, 3) | st.sampled_from([LOW, LOW + 1, HIGH, -1, 2**62, 2**32, -(2**32)])
WIDTHS = (1, 3, 16, 64, 200)


def array(ids: Any) -> Any:
    return np.array(ids, np.int64)


def same(got: Any, wanted: Any) -> None:
    got, wanted = (x if isinstance(x, tuple) else (x,) for x in (got, wanted))
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        assert g.tobytes() == w.tobytes()


def numbers(seed: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """Numbers whose sum depends on the order, with zeros of both signs among them."""
    rng = np.random.default_rng(seed)
    value = np.asarray(rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape))
    return np.where(rng.random(shape) < 0.2, -0.0, value).astype(dtype)


def unaligned(whole: Any) -> Any:
    """The same elements at an odd address, as of an array that was read out of a message."""
    return np.frombuffer(b"x" + whole.tobytes(), np.uint8)[1:].view(whole.dtype).reshape(whole.shape)


# ---- the choice


def test_the_choice_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choice._choose("auto") == ("c", "the extension is there")
    assert choice._choose("numpy") == ("numpy", "FLUIDLITE_KERNELS=numpy")
    for word, name in {"": "c", " C ": "c", "NumPy": "numpy"}.items():
        monkeypatch.setenv("FLUIDLITE_KERNELS", word)
        assert choice._chosen()[::2] == (name, None)
    monkeypatch.setenv("FLUIDLITE_KERNELS", "fast")
    name, reason, wrong = choice._chosen()
    assert (name, reason) == ("numpy", str(wrong))
    monkeypatch.setattr(choice, "_WRONG", wrong)
    with pytest.raises(SettingError, match="FLUIDLITE_KERNELS must be one of auto, c, numpy, not 'fast'"):
        fluid.Executor()

    def missing(name: str) -> None:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(choice.importlib, "import_module", missing)
    assert choice._choose("auto") == ("numpy", "the extension cannot be imported: no fluidlite.kernels._c")
    with pytest.raises(KernelError, match="no fluidlite"):
        choice._choose("c")
    monkeypatch.setenv("FLUIDLITE_KERNELS", "c")
    name, reason, wrong = choice._chosen()
    assert (name, type(wrong)) == ("numpy", KernelError)


def test_an_extension_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    older = ModuleType("_c")
    older.__file__ = "/somewhere/_c.abi3.so"
    monkeypatch.setattr(choice.importlib, "import_module", lambda name: older)
    reason = "the extension cannot be imported: /somewhere/_c.abi3.so was built from other sources"
    assert choice._choose("auto")[0] == "numpy"
    assert choice._choose("auto")[1].startswith(reason)
    with pytest.raises(KernelError, match="built from other sources"):
        choice._choose("c")
    older.INTERFACE = choice.INTERFACE  # type: ignore[attr-defined]
    assert choice._choose("auto") == ("c", "the extension is there")

    def of_errors_that_are_gone(name: str) -> None:
        raise AttributeError("module 'fluidlite.errors' has no attribute 'OldError'")

    monkeypatch.setattr(choice.importlib, "import_module", of_errors_that_are_gone)
    assert choice._choose("auto")[0] == "numpy"


def test_the_interface_has_the_number_of_its_declaration() -> None:
    """After a change of `_c.pyi` write the new number into choice.py, and build the extension."""
    stub = Path(choice.__file__).with_name("_c.pyi").read_text(encoding="utf-8")
    assert f"0x{choice.INTERFACE:08X}" == f"0x{zlib.crc32(stub.encode()) & 0x7FFFFFFF:08X}"
    assert _c.INTERFACE == choice.INTERFACE


# ---- the index


def cells_of(kernels: Any, ids: Any, bits: int, dtype: Any) -> Any:
    cells = np.full(1 << bits, -1, dtype)
    half = len(ids) // 2
    kernels.claim_cells(cells, ids, 0, half)
    kernels.claim_cells(cells, ids, half, len(ids))
    return cells


@given(st.lists(any_id, unique=True, max_size=80), st.lists(any_id, max_size=80), st.sampled_from([np.int32, np.int64]))
@settings(deadline=None)
def test_ids_are_found_in_cells_of_either_kind(known: list[int], others: list[int], dtype: Any) -> None:
    ids, wanted = array(known), array([*others, *known[::2], *others[:5]])
    model = {id: position for position, id in enumerate(known)}
    for claimed_by in (np_cells, c_cells):
        cells = cells_of(claimed_by, ids, 7, dtype)
        assert sorted(cells[cells >= 0].tolist()) == list(range(len(ids)))
        for kernels in (np_cells, c_cells):
            assert kernels.find_positions(cells, ids, wanted).tolist() == [model.get(id, -1) for id in wanted.tolist()]
        same(c_cells.find_or_number(cells, ids, wanted), np_cells.find_or_number(cells, ids, wanted))


@pytest.mark.parametrize("bits", [1, 2, 11, 15, 17])
def test_many_ids_in_crowded_cells(bits: int) -> None:
    rng = np.random.default_rng(bits)
    ids = np.unique(rng.integers(LOW, HIGH, (1 << bits) - 1))
    rng.shuffle(ids)
    cells = cells_of(c_cells, ids, bits, np.int32)
    assert np.count_nonzero(cells == -1) == 1, "the search ends at the last free cell"
    wanted = np.concatenate([ids[:3000], rng.integers(LOW, HIGH, 50)])
    same(c_cells.find_positions(cells, ids, wanted), np_cells.find_positions(cells, ids, wanted))


def test_cells_without_a_free_one() -> None:
    ids = np.arange(5)
    cells = np.full(4, -1, np.int32)
    with pytest.raises(ShapeError, match="no cell of 4 is free"):
        _c.index_claim(cells, ids, 0, 5)
    assert sorted(cells.tolist()) == [0, 1, 2, 3]
    assert c_cells.find_positions(cells, ids[:4], array([2, 77])).tolist() == [2, -1]


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=8, max_size=8), st.integers(0, 6), st.data())
@settings(deadline=None)
def test_cells_of_any_content_lead_nowhere_else(content: list[int], known: int, data: st.DataObject) -> None:
    cells, ids = np.array(content, np.int32), np.arange(known)
    wanted = array(data.draw(st.lists(st.integers(-2, 8), max_size=20)))
    for position, id in zip(c_cells.find_positions(cells, ids, wanted), wanted, strict=True):
        assert position == -1 or ids[position] == id


# ---- lists of ids


@given(st.lists(any_id, max_size=120), st.lists(any_id, max_size=60))
@settings(deadline=None)
def test_lists_of_ids(ids: list[int], more: list[int]) -> None:
    one, other = array(ids), array([*more, *ids[:20]])
    same(c_ids.unique_ids(one), np_ids.unique_ids(one))
    assert c_ids.is_ascending(one) == np_ids.is_ascending(one) == (sorted(set(ids)) == ids)
    same(c_ids.find_ids(one, other), np_ids.find_ids(one, other))
    for groups in (1, 2, 3, 8, 1000):
        same(c_ids.group_ids(one, groups), np_ids.group_ids(one, groups))


RANDOM = np.random.default_rng(0)
PATTERNS = {
    "below 100": RANDOM.integers(0, 100, 13_000),
    "below 2**20": RANDOM.integers(0, 2**20, 13_000),
    "hashes": RANDOM.integers(LOW, HIGH, 13_000),
    "repeated hashes": RANDOM.choice(RANDOM.integers(LOW, HIGH, 2000), 13_000),
    "slots with small numbers": (np.arange(13_000) % 26 << 58) | RANDOM.integers(0, 1000, 13_000),
    "two clusters": RANDOM.choice([LOW, HIGH], 13_000) ^ RANDOM.integers(0, 2**18, 13_000),
    "one id": np.full(13_000, 2**62),
    "descending": np.arange(13_000)[::-1].copy(),
    "ascending but for the last": np.append(np.arange(13_000) << 40, -1),
    "few": RANDOM.integers(LOW, HIGH, 32),
}


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_many_ids_of_any_pattern(pattern: str) -> None:
    ids = PATTERNS[pattern]
    same(c_ids.unique_ids(ids), np_ids.unique_ids(ids))
    known = ids[: len(ids) // 2]
    same(c_ids.find_ids(known, ids), np_ids.find_ids(known, ids))
    for groups in (2, 5):
        same(c_ids.group_ids(ids, groups), np_ids.group_ids(ids, groups))


# ---- rows


@given(
    st.lists(st.integers(0, 8), max_size=100),
    st.sampled_from(WIDTHS),
    st.sampled_from([np.float16, np.float32, np.float64, np.int64, np.bool_]),
)
@settings(deadline=None)
def test_rows_are_moved(rows: list[int], width: int, dtype: Any) -> None:
    at, matrix = array(rows), numbers(len(rows), (9, width), np.float32).astype(dtype)
    values = numbers(1, (len(rows), width), np.float32).astype(dtype)
    same(c_rows.take_rows(matrix, at), np_rows.take_rows(matrix, at))
    out = np.empty_like(values)
    assert c_rows.take_rows(matrix, at, out) is out
    same(out, matrix[at])
    put = [matrix.copy(), matrix.copy()]
    c_rows.put_rows(put[0], at, values)
    np_rows.put_rows(put[1], at, values)
    same(put[0], put[1])


@pytest.mark.parametrize("span", [(0, 16), (16, 16), (0, 1), (47, 1), (3, 20), (0, 48)], ids=str)
def test_parts_of_rows_are_moved(span: tuple[int, int]) -> None:
    start, width = span
    matrix, at = numbers(3, (50, 48), np.float32), np.random.default_rng(0).integers(0, 50, 200)
    same(c_rows.take_parts(matrix, at, start, width), np_rows.take_parts(matrix, at, start, width))
    same(c_rows.take_parts(matrix, at, start, width), matrix[at, start : start + width])
    values, put = numbers(4, (200, width), np.float32), [matrix.copy(), matrix.copy()]
    c_rows.put_parts(put[0], at, start, values)
    np_rows.put_parts(put[1], at, start, values)
    same(put[0], put[1])
    for row in np.unique(at):
        assert (put[0][row, start : start + width] == values[np.flatnonzero(at == row)[-1]]).all()


@given(
    st.lists(st.integers(0, 8) | st.just(4), max_size=150),
    st.sampled_from(WIDTHS),
    st.sampled_from([np.float16, np.float32, np.float64]),
)
@settings(deadline=None)
def test_rows_are_summed_in_order(rows: list[int], width: int, dtype: Any) -> None:
    at, values = array(rows), numbers(len(rows), (len(rows), width), dtype)
    same(c_rows.sum_rows(values, at, 9), np_rows.sum_rows(values, at, 9))
    if dtype is np.float16:
        return
    sums = [numbers(2, (9, width), dtype) for _ in range(2)]
    _c.add_rows(sums[0], at, values)
    np_rows.add_rows(sums[1], at, values)
    same(sums[0], sums[1])


def test_arrays_out_of_a_message_need_not_be_aligned() -> None:
    ids, at, matrix = array([5, 3, 5]), array([1, 0, 1]), numbers(1, (2, 4), np.float32)
    same(c_ids.unique_ids(unaligned(ids)), np_ids.unique_ids(ids))
    same(c_rows.take_rows(unaligned(matrix), unaligned(at)), matrix[at])
    same(c_rows.sum_rows(unaligned(matrix), array([0, 0]), 1), np_rows.sum_rows(matrix, array([0, 0]), 1))
    same(c_ids.find_ids(ids[::2], ids[::-1]), np_ids.find_ids(ids[::2], ids[::-1]))


# ---- what cannot be taken


def calls() -> dict[str, tuple[list[Any], list[int]]]:
    """Good arguments of each function, and which of them it writes into."""
    n, empty = array([4, 1, 4]), lambda count: np.zeros(count, np.int64)
    return {
        "index_find": ([np.full(8, -1, np.int32), empty(4), n, empty(3)], [3]),
        "index_find_or_number": ([np.full(8, -1, np.int32), empty(4), n, empty(3), empty(3)], [3, 4]),
        "index_claim": ([np.full(8, -1, np.int32), empty(4), 0, 4], [0]),
        "unique_ids": ([n, empty(3), empty(3), empty(3)], [1, 2, 3]),
        "ids_ascend": ([n], []),
        "find_ids": ([n, n, empty(3)], [2]),
        "group_ids": ([n, empty(3), empty(3), empty(2)], [1, 2, 3]),
        "take_rows": ([np.zeros((5, 2)), n, 0, np.zeros((3, 2))], [3]),
        "put_rows": ([np.zeros((5, 2)), n, 0, np.zeros((3, 2))], [0]),
        "add_rows": ([np.zeros((5, 2)), n, np.zeros((3, 2))], [0]),
    }


def wrong(whole: Any) -> dict[str, Any]:
    """Arguments that do not fit where ``whole`` does."""
    if isinstance(whole, int):
        return {"negative": -1, "huge": 2**70, "no integer": 0.5}
    return {
        "not contiguous": np.repeat(whole, 2, axis=0)[::2],
        "another size of item": whole.astype(np.float16),
        "objects": whole.astype(object),
        "another byte order": whole.astype(whole.dtype.newbyteorder()),
        "one dimension more": whole[None],
        "none": np.array(7, whole.dtype),
        "no array": [1, 2, 3],
        "missing": None,
    }


@pytest.mark.parametrize("name", calls())
def test_arguments_that_do_not_fit_are_refused(name: str) -> None:
    function = getattr(_c, name)
    good, written = calls()[name]
    function(*good)
    with pytest.raises(TypeError, match="arguments"):
        function(*good, None)
    for place, whole in enumerate(calls()[name][0]):
        bad = wrong(whole)
        if place in written:
            bad["read-only"] = whole.copy()
            bad["read-only"].setflags(write=False)
        if name in ("take_rows", "put_rows") and place != 1:
            bad.pop("another byte order", None)  # moved as bytes
        for why, argument in bad.items():
            arguments = calls()[name][0]
            arguments[place] = argument
            try:
                function(*arguments)
            except (ShapeError, DtypeError, TypeError, OverflowError):
                continue
            pytest.fail(f"{name}: argument {place}, {why}, was taken")


LENGTHS: list[tuple[str, dict[int, Any]]] = [
    ("index_find", {0: np.zeros(6, np.int32)}),
    ("index_find", {0: np.zeros(1, np.int32)}),
    ("index_find", {0: np.zeros(0, np.int32)}),
    ("index_find", {3: np.zeros(2, np.int64)}),
    ("index_find_or_number", {3: np.zeros(4, np.int64)}),
    ("index_find_or_number", {4: np.zeros(2, np.int64)}),
    ("index_claim", {3: 5}),
    ("index_claim", {2: 3, 3: 2}),
    ("unique_ids", {2: np.zeros(2, np.int64)}),
    ("find_ids", {2: np.zeros(4, np.int64)}),
    ("group_ids", {2: np.zeros(1, np.int64)}),
    ("group_ids", {3: np.zeros(0, np.int64)}),
    ("take_rows", {2: 1}),
    ("take_rows", {2: 3, 3: np.zeros((3, 0))}),
    ("take_rows", {3: np.zeros((2, 2))}),
    ("take_rows", {3: np.zeros((3, 2), np.float32)}),
    ("put_rows", {2: 2**62}),
    ("add_rows", {2: np.zeros((3, 1))}),
    ("add_rows", {2: np.zeros((3, 2), np.float32)}),
]


@pytest.mark.parametrize(("name", "changed"), LENGTHS)
def test_lengths_that_do_not_agree_are_refused(name: str, changed: dict[int, Any]) -> None:
    arguments, _ = calls()[name]
    for place, argument in changed.items():
        arguments[place] = argument
    with pytest.raises(ShapeError, match=name):
        getattr(_c, name)(*arguments)


@pytest.mark.parametrize("bad", [-1, 5, HIGH, LOW])
@pytest.mark.parametrize("name", ["take_rows", "put_rows", "add_rows"])
def test_rows_outside_the_matrix_are_refused_before_anything_is_written(name: str, bad: int) -> None:
    arguments, (written,) = calls()[name]
    arguments[1] = array([0, bad, 1])
    arguments[-1][:] = 1.0
    before = arguments[written].copy()
    with pytest.raises(OutOfRangeError, match=r"outside 0\.\.4"):
        getattr(_c, name)(*arguments)
    same(arguments[written], before)


@pytest.mark.parametrize("name", [name for name, (_, written) in calls().items() if written])
def test_arrays_that_share_memory_with_one_that_is_written_are_refused(name: str) -> None:
    """Else the loop would change what was checked before it."""
    good, written = calls()[name]
    for place in written:
        for other in range(len(good)):
            if other == place or not isinstance(good[other], np.ndarray):
                continue
            memory = np.zeros(good[place].nbytes + good[other].nbytes, np.uint8)
            arguments = calls()[name][0]
            for at, first in ((place, good[other].nbytes - 8), (other, 0)):
                part = memory[first : first + good[at].nbytes].view(good[at].dtype).reshape(good[at].shape)
                part[...] = good[at]
                arguments[at] = part
            with pytest.raises(ShapeError, match=f"{name}: .* share memory"):
                getattr(_c, name)(*arguments)


def test_part_of_the_matrix_is_not_added_to_it() -> None:
    matrix = np.zeros((5, 2))
    with pytest.raises(ShapeError, match="matrix and values share memory"):
        _c.add_rows(matrix, array([0, 1]), matrix[1:3])
    _c.add_rows(matrix[:3], array([0, 1]), matrix[3:])


@pytest.mark.parametrize("name", ["take_rows", "put_rows", "add_rows", "update"])
def test_rows_that_another_thread_changes_meanwhile_do_not_lead_outside(name: str) -> None:
    n, matrix = 50_000, np.zeros((100, 2))
    good = np.arange(n) % 100
    rows, values = good.copy(), np.zeros((n, 2))
    arguments = {
        "add_rows": (matrix, rows, values),
        "update": ("sgd", (1.0,), rows, values, (matrix,), (0,)),
    }.get(name, (matrix, rows, 0, values))

    done = threading.Event()

    def spoil() -> None:
        while not done.is_set():
            rows[:] = good
            rows[-1000:] = 2**40

    thread = threading.Thread(target=spoil)
    thread.start()
    try:
        for _ in range(300):
            with contextlib.suppress(OutOfRangeError):
                getattr(_c, name)(*arguments)
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("width", [0, 2])
def test_nothing_is_fine(width: int) -> None:
    none, matrix = array([]), np.zeros((0, width), np.float32)
    same(c_rows.take_rows(matrix, none), np_rows.take_rows(matrix, none))
    same(c_rows.sum_rows(matrix, none, 0), matrix)
    same(c_rows.sum_rows(np.zeros((2, width)), array([1, 1]), 2), np.zeros((2, width)))
    c_rows.put_rows(matrix, none, matrix.copy())
    same(c_cells.find_positions(np.full(2, -1, np.int32), none, array([3])), array([-1]))
