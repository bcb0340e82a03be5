"""MultiSlot and Criteo text: kernels in C and numpy against plain loops with Python's own int() and float()."""

from __future__ import annotations

import itertools
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidlite.errors import DataError, DtypeError, MissingFileError, ShapeError
from fluidlite.kernels import number_text
from fluidlite.kernels.in_numpy import parse as in_numpy
from fluidlite.reader import criteo_reader
from fluidlite.reader.columns import Slot, slot_of
from fluidlite.reader.faults import criteo_fault, first_fault, slot_fault
from fluidlite.reader.lines import Block, read_blocks
from fluidlite.reader.multislot import parse, read_columns
from tests.shared_data import shared

try:
    from fluidlite.kernels import _c
    from fluidlite.kernels.in_c import parse as in_c

    KERNELS: list[ModuleType] = [in_numpy, in_c]
except ImportError:
    KERNELS = [in_numpy]

kernels = pytest.mark.parametrize("kernel", KERNELS, ids=lambda module: module.__name__.split(".")[-2])
needs_c = pytest.mark.skipif(len(KERNELS) < 2, reason="the C extension is not built")

INTEGERS = st.integers(-(2**63), 2**64 - 1)
FLOATS = st.floats(width=64)
DIGITS = st.text("0123456789", min_size=1, max_size=30)


@st.composite
def float_texts(draw: st.DrawFn) -> str:
    """Decimal texts of all forms, among them those that are hard to round."""
    kind = draw(st.integers(0, 4))
    if kind == 0:
        return repr(draw(FLOATS))
    if kind == 1:
        return f"{draw(FLOATS):.{draw(st.integers(1, 20))}g}"
    if kind == 2:
        point, exponent = draw(st.sampled_from(["", ".", "." + draw(DIGITS)])), draw(st.integers(-60, 60))
        return (
            draw(st.sampled_from(["", "-", "+"])) + draw(DIGITS) + point + draw(st.sampled_from(["", f"e{exponent}"]))
        )
    if kind == 3:
        return draw(
            st.sampled_from(["inf", "-Infinity", "NaN", "+nan", "-nan", ".5", "5.", "0e9999", "1e9999", "-.5E-3"])
        )
    return str(between_floats(draw(st.integers(0, 2**31 - 2**23 - 2))) + draw(st.integers(-1, 1)) * Decimal(10) ** -60)


def between_floats(bits: int) -> Decimal:
    """Exactly halfway between two neighbouring float32 numbers."""
    low, high = np.array([bits, bits + 1], np.int32).view(np.float32).tolist()
    return (Decimal(low) + Decimal(high)) / 2


@st.composite
def slot_texts(draw: st.DrawFn) -> tuple[bytes, list[bool], list[list[list[str]]]]:
    """(text, which slots are floats, tokens by line and slot)."""
    floats = draw(st.lists(st.booleans(), min_size=1, max_size=4))
    blank = st.sampled_from([" ", "  ", "\t", " \v\f "])
    lines = []
    text = draw(st.sampled_from(["", "\n", " \r\n"]))
    for number in range(draw(st.integers(0, 6))):
        line = [draw(st.lists(float_texts() if is_float else INTEGERS.map(str), max_size=4)) for is_float in floats]
        tokens = itertools.chain.from_iterable([str(len(values)), *values] for values in line)
        text += "\n" * bool(number) + draw(st.sampled_from(["", " "]))
        text += draw(blank).join(tokens) + draw(st.sampled_from(["", "\r", " ", "\n", "\n \n"]))
        lines.append(line)
    return text.encode() + draw(st.sampled_from([b"", b"\n"])), floats, lines


def same_bits(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def as_float32(texts: list[str]) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):
        return np.array([float(text) for text in texts], np.float64).astype(np.float32)


def as_int64(texts: list[str]) -> np.ndarray[Any, Any]:
    return np.array([int(text) % 2**64 for text in texts], np.uint64).view(np.int64)


# ---- MultiSlot


@kernels
@given(case=slot_texts())
def test_slots_are_what_int_and_float_say(kernel: ModuleType, case: Any) -> None:
    text, floats, lines = case
    values, lengths = kernel.parse_slots(text, floats)
    assert lengths.tolist() == [[len(slot) for slot in line] for line in lines]
    for slot, is_float in enumerate(floats):
        tokens = [token for line in lines for token in line[slot]]
        assert same_bits(values[slot], (as_float32 if is_float else as_int64)(tokens))


@kernels
@given(
    text=st.text(" \n\t\r1234567890.+-eEnaifx,", max_size=60).map(str.encode)
    | st.binary(max_size=40)
    | st.text("1 2\n", max_size=40).map(str.encode),
    floats=st.lists(st.booleans(), min_size=1, max_size=3),
)
def test_kernels_refuse_what_the_loops_find_wrong(kernel: ModuleType, text: bytes, floats: list[bool]) -> None:
    slots = [Slot("x", "float32" if is_float else "int64", (1,), is_sequence=True) for is_float in floats]
    fault = first_fault(text, lambda line: slot_fault(line, slots))
    assert (kernel.parse_slots(text, floats) is None) == (fault is not None), fault


@needs_c
@given(
    text=st.text(" \n1234567890.-e", max_size=200).map(str.encode),
    floats=st.lists(st.booleans(), min_size=1, max_size=3),
)
def test_both_kernels_make_the_same_of_anything(text: bytes, floats: list[bool]) -> None:
    one, other = in_c.parse_slots(text, floats), in_numpy.parse_slots(text, floats)
    if one is None or other is None:
        assert one is other
        return
    assert same_bits(one.lengths, other.lengths)
    assert all(same_bits(a, b) for a, b in zip(one.values, other.values, strict=True))


@kernels
@pytest.mark.parametrize("text", ["2 \t", "9 123456789", "1 1 9 123456789", "3 1\n2", "1"])
def test_a_count_that_the_line_cannot_hold(kernel: ModuleType, text: str) -> None:
    assert kernel.parse_slots(text.encode(), [False]) is None


@kernels
@given(bits=st.lists(st.integers(0, 2**31 - 2**23 - 2), min_size=1, max_size=20), shift=st.integers(-1, 1))
def test_floats_around_the_middle_between_two(kernel: ModuleType, bits: list[int], shift: int) -> None:
    texts = [f"{between_floats(each) + shift * Decimal(2) ** -1100:f}" for each in bits]
    (values,), _ = kernel.parse_slots(f"{len(texts)} {' '.join(texts)}".encode(), [True])
    assert same_bits(values, as_float32(texts))


@given(st.binary(max_size=12) | st.text("0123456789+-.eEinfaty_ ", max_size=8).map(str.encode))
def test_a_number_is_what_python_takes_for_one(token: bytes) -> None:
    """Without blanks around it and underscores inside; integers in the range of int64 and uint64."""
    odd = token.strip() != token or b"_" in token or b"\0" in token
    try:
        value: float | None = None if odd else float(token)
    except ValueError:
        value = None
    found = number_text.float32(token)
    assert (found is None) == (value is None)
    try:
        whole: int | None = None if odd else int(token)
    except ValueError:
        whole = None
    expected = None if whole is None or not -(2**63) <= whole < 2**64 else (whole + 2**63) % 2**64 - 2**63
    assert number_text.integer(token) == expected


SLOTS = [Slot("words", "int64", (1,), True), Slot("pair", "float32", (2,), False)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 5 2 1 x", "line 3, slot 'pair': 'x' is no number"),
        ("1 5", "line 3, slot 'pair': the line ends before its count"),
        ("2 5", "line 3, slot 'words': the count is 2, but 1 values follow"),
        ("-1 5", "line 3, slot 'words': '-1' is no count"),
        ("1.0 5", "line 3, slot 'words': '1.0' is no count"),
        ("1 5.0 2 1 2", "line 3, slot 'words': '5.0' is no integer of 64 bits"),
        ("1 18446744073709551616 2 1 2", "line 3, slot 'words': '18446744073709551616' is no integer of 64 bits"),
        ("1 -9223372036854775809 2 1 2", "slot 'words': '-9223372036854775809' is no integer"),
        ("1 5 2 1 2 7 8", "line 3: 2 tokens after the last slot"),
        ("1 5 3 1 2 3", r"line 3, slot 'pair': 3 values do not fill the shape \[2\]"),
        ("9223372036854775807 5 2 1 2", "slot 'words': the count is 9223372036854775807, but 4 values follow"),
        ("1 \xff 2 1 2", r"slot 'words': '\\\\xff' is no integer"),
        ("1 " + "9" * 100 + " 2 1 2", r"slot 'words': '9{40}\.\.\.' is no integer"),
    ],
)
def test_malformed_lines_are_named(line: str, message: str) -> None:
    text = f"1 1 2 1 2\n\n{line}\n1 x 2 3 4\n".encode("latin-1")
    with pytest.raises(
        DataError, match=f"^data.txt, {message if message.startswith('line') else 'line 3, ' + message}"
    ):
        parse(Block(text, "data.txt", 1), SLOTS)


def test_lines_are_counted_across_blocks(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("1 5 2 1 2\n" * 99 + "1 5 2 1 oops\n")
    blocks = list(read_blocks(path, size=64))
    assert len(blocks) > 5
    assert b"".join(block.text for block in blocks) == path.read_bytes()
    with pytest.raises(DataError, match=r"data, line 100, slot 'pair': 'oops'"):
        [parse(block, SLOTS) for block in blocks]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("text", ["", "\n", "1 5 2 1 2", "1 5 2 1 2\r\n\r\n0 2 3 4\r\n"])
def test_blocks_of_any_size_are_the_file(tmp_path: Path, size: int, text: str) -> None:
    path = tmp_path / "data"
    path.write_bytes(text.encode())
    blocks = list(read_blocks(path, size=size))
    assert b"".join(block.text for block in blocks) == text.encode()
    assert all(block.text.endswith(b"\n") for block in blocks[:-1])
    assert sum(len(parse(block, SLOTS)) for block in blocks) == len([line for line in text.split("\n") if line.strip()])


def test_an_id_may_be_any_64_bits() -> None:
    ids = [0, -1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]
    columns = parse(Block(f"6 {' '.join(map(str, ids))}".encode(), "", 1), [SLOTS[0]])
    assert [each % 2**64 for each in columns.values[0].tolist()] == [each % 2**64 for each in ids]


def test_files_are_read_in_turn_with_threads(tmp_path: Path) -> None:
    paths = []
    for number in range(5):
        paths.append(tmp_path / str(number))
        paths[-1].write_text(f"1 {number}\n")
    slots = [slot_of("x", "int64", [-1, 1], 0)]

    def order(threads: int) -> list[int]:
        return [int(columns.values[0][0]) for columns in read_columns(paths, slots, threads=threads)]

    assert order(1) == [0, 1, 2, 3, 4]
    assert order(2) == [0, 1, 2, 3, 4]
    assert order(9) == [0, 1, 2, 3, 4]


def test_a_pipe_command_makes_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("5\n7\n")
    slots = [slot_of("x", "int64", [-1, 1], 0)]
    (columns,) = read_columns([path], slots, "sed 's/^/1 /'")
    assert columns.values[0].tolist() == [5, 7]
    with pytest.raises(DataError, match=r"pipe command 'exit 3' failed on '.*data': exit code 3"):
        list(read_columns([path], slots, "exit 3"))


def test_a_pipe_command_ends_with_its_reader(tmp_path: Path) -> None:
    """Also its children: the shell here waits for a process that would write for ever."""
    path = tmp_path / "data"
    path.write_text("")
    columns = read_columns([path], [slot_of("x", "int64", [-1, 1], 0)], "echo 1 2; yes 1 3 | cat; true")
    assert next(columns).values[0][0] == 2
    columns.close()  # type: ignore[attr-defined]  # waits for the shell


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"cannot read the data file '.*gone'"):
        list(read_columns([tmp_path / "gone"], SLOTS))


@pytest.mark.parametrize(
    ("dtype", "shape", "lod_level", "message"),
    [
        ("float64", [-1, 1], 0, "slot 'x' is float64"),
        ("int64", [-1, -1, 2], 0, "only the first dimension may be unknown"),
        ("int64", [-1, 1], 2, "lod_level 2; text gives one level"),
    ],
)
def test_slots_that_text_cannot_fill(dtype: str, shape: list[int], lod_level: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        slot_of("x", dtype, shape, lod_level)


# ---- Criteo

FIELDS = {"labelled": True, "separator": b"\t", "missing": -1.5}


@st.composite
def criteo_texts(draw: st.DrawFn) -> tuple[bytes, bool, bytes, list[list[str]]]:
    """(text, whether lines have a label, separator, fields by line): 2 numbers and 3 ids."""
    labelled, separator = draw(st.booleans()), draw(st.sampled_from(["\t", ","]))
    hexadecimal = st.text("0123456789abcdefABCDEF", max_size=8)
    lines = draw(
        st.lists(
            st.tuples(
                *[st.sampled_from(["0", "1", "1.0"])] * labelled, *[st.just("") | float_texts()] * 2, *[hexadecimal] * 3
            ).map(list),
            max_size=6,
        )
    )
    ends = [draw(st.sampled_from(["\n", "\r\n", "\n\n", "\n\r\n"])) for _ in lines]
    text = "".join(separator.join(line) + end for line, end in zip(lines, ends, strict=True))
    return (text.rstrip("\n") if draw(st.booleans()) else text).encode(), labelled, separator.encode(), lines


@kernels
@given(case=criteo_texts())
def test_criteo_is_what_float_and_int_say(kernel: ModuleType, case: Any) -> None:
    text, labelled, separator, lines = case
    parsed = kernel.parse_criteo(text, 2, 3, labelled=labelled, separator=separator, missing=-1.5)
    assert parsed.numbers.shape == (len(lines), 2)
    assert parsed.ids.shape == (len(lines), 3)
    assert (parsed.labels is not None) == labelled
    if labelled:
        assert same_bits(parsed.labels, as_float32([line[0] for line in lines]))
    numbers = as_float32([field or "-1.5" for line in lines for field in line[labelled : labelled + 2]])
    assert same_bits(parsed.numbers.ravel(), numbers)
    for line, ids in zip(lines, parsed.ids.tolist(), strict=True):
        assert [value % 2**64 for value in ids] == [id_of(slot, text) for slot, text in enumerate(line[labelled + 2 :])]


def id_of(slot: int, text: str) -> int:
    """Steele, Lea and Flood's splitmix64 (variant 13 of its finaliser), in whole numbers."""
    if not text:
        return 0
    x = (slot + 1) << 32 | int(text, 16)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


@kernels
@given(
    text=st.text("\t\t\t\t\n\r1a.-,\v ", max_size=60).map(str.encode) | st.binary(max_size=40),
    labelled=st.booleans(),
    separator=st.sampled_from([b"\t", b","]),
)
def test_criteo_kernels_refuse_what_the_loops_find_wrong(
    kernel: ModuleType, text: bytes, labelled: bool, separator: bytes
) -> None:
    fault = first_fault(text, lambda line: criteo_fault(line, labelled, 1, 1, separator))
    parsed = kernel.parse_criteo(text, 1, 1, labelled=labelled, separator=separator, missing=0.0)
    assert (parsed is None) == (fault is not None), fault


def test_an_id_is_the_same_in_every_release() -> None:
    (parsed,) = {kernel.parse_criteo(b"68fd1e64,,0\n", 0, 3, labelled=False, separator=b",", missing=0.0).ids.tobytes() for kernel in KERNELS}  # fmt: skip
    assert np.frombuffer(parsed, np.int64).tolist() == [id_of(0, "68fd1e64") - 2**64 * (id_of(0, "68fd1e64") >= 2**63), 0, id_of(2, "0") - 2**64 * (id_of(2, "0") >= 2**63)]  # fmt: skip


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_batches_cross_files(tmp_path: Path) -> None:
    paths = [write(tmp_path / str(n), [f"{n}\t{n}{line}\t\tab\t" for line in range(5)]) for n in range(2)]
    batches = list(criteo_reader(paths, 4, number_count=2, id_count=2)())
    assert [tuple(array.shape for array in batch) for batch in batches] == [((n, 1), (n, 2), (n, 2)) for n in (4, 4, 2)]
    label, numbers, ids = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    assert label.ravel().tolist() == [0] * 5 + [1] * 5
    assert numbers[:, 0].tolist() == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert (numbers[:, 1] == 0).all()
    assert (ids[:, 1] == 0).all()
    assert len(set(ids[:, 0].tolist()) - {0}) == 1
    assert [len(batch[0]) for batch in criteo_reader(paths, 4, 2, 2, drop_last=True)()] == [4, 4]


def test_ids_fold_into_buckets_and_blanks_stay_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "data", [f"{value:x}," for value in range(200)])
    ((_, ids),) = criteo_reader([path], 999, 0, 2, labelled=False, separator=",", buckets=10)()
    assert set(ids[:, 0].tolist()) == set(range(1, 10))
    assert set(ids[:, 1].tolist()) == {0}


def test_the_real_file() -> None:
    """200 lines with a header, blanks, negative numbers and floats in place of integers."""
    path = shared("data", "criteo", "criteo_raw_200.txt")
    ((label, numbers, ids),) = criteo_reader([path], 999, separator=",", header=True, missing=-99.0)()
    rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
    assert label.ravel().tolist() == [float(row[0]) for row in rows]
    assert numbers.tolist() == [[float(field or -99) for field in row[1:14]] for row in rows]
    assert [[value % 2**64 for value in line] for line in ids.tolist()] == [
        [id_of(slot, field) for slot, field in enumerate(row[14:])] for row in rows
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x\t1\tab", "line 2, field label: 'x' is no number"),
        ("\t1\tab", "line 2, field label: '' is no number"),
        ("1\t1 \tab", "line 2, field I1: '1 ' is no number"),
        ("1\t1\txy", "line 2, field C1: 'xy' is not 1 to 8 hexadecimal digits"),
        ("1\t1\t123456789", "line 2, field C1: '123456789' is not 1 to 8"),
        ("1\t1", "line 2: 2 fields, not 3"),
        ("1\t1\tab\t", "line 2: 4 fields, not 3"),
    ],
)
def test_malformed_criteo_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "data", ["1\t2\t3", line, "?"])
    with pytest.raises(DataError, match=f"data, {message}"):
        list(criteo_reader([path], 1, 1, 1)())


@pytest.mark.parametrize("wrong", [{"separator": ";"}, {"batch_size": 0}, {"buckets": 1}, {"id_count": -1}])
def test_criteo_arguments_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="separator" if "separator" in wrong else "batches of"):
        criteo_reader(["data"], **{"batch_size": 1, **wrong})


# ---- arguments of the C functions


@needs_c
def test_arrays_that_are_too_short_are_refused() -> None:
    kinds = np.array([0], np.uint8)
    with pytest.raises(ShapeError, match="too short"):
        _c.parse_slots(b"2 1 2", kinds, np.empty(1, np.int64), np.empty((1, 1), np.int64))
    with pytest.raises(ShapeError, match="too short"):
        _c.parse_slots(b"1 1\n1 2", kinds, np.empty(9, np.int64), np.empty((1, 1), np.int64))
    with pytest.raises(ShapeError, match="slots"):
        _c.parse_slots(b"1 1", kinds, np.empty(9, np.int64), np.empty((1, 2), np.int64))
    with pytest.raises(DtypeError):
        _c.parse_slots(b"1 1", kinds, np.empty(9, np.int32), np.empty((1, 1), np.int64))
    labels, numbers, ids = np.empty(1, np.float32), np.empty((1, 0), np.float32), np.empty((1, 1), np.int64)
    with pytest.raises(ShapeError, match="too short"):
        _c.parse_criteo(b"1\ta\n1\ta", 9, 0.0, labels, numbers, ids)
    with pytest.raises(ShapeError, match="separator"):
        _c.parse_criteo(b"1\ta", 32, 0.0, labels, numbers, ids)
    with pytest.raises(ShapeError, match="differ"):
        _c.parse_criteo(b"1\ta", 9, 0.0, labels, np.empty((2, 0), np.float32), ids)


@needs_c
@given(
    lengths=st.lists(st.lists(st.integers(-2, 4), min_size=2, max_size=2), max_size=4),
    starts=st.lists(st.integers(-1, 6), min_size=2, max_size=2),
    used=st.integers(0, 8),
    room=st.lists(st.integers(0, 8), min_size=2, max_size=2),
)
def test_splitting_stays_inside_its_arrays(
    lengths: list[list[int]], starts: list[int], used: int, room: list[int]
) -> None:
    arrays = np.arange(used), np.array(lengths, np.int64).reshape(-1, 2), np.array([0, 1], np.uint8), np.array(starts)
    integers, floating = np.full(room[0], -7), np.full(room[1], -7, np.float32)
    totals = arrays[1].sum(axis=0)
    fits = (arrays[1] >= 0).all() and totals.sum() == used
    if fits and all(
        start >= 0 and start + total <= most for start, total, most in zip(starts, totals, room, strict=True)
    ):
        _c.split_slots(*arrays, integers, floating)
        mine = np.repeat(np.tile([0, 1], len(lengths)), arrays[1].ravel())
        assert integers[starts[0] : starts[0] + totals[0]].tolist() == np.flatnonzero(mine == 0).tolist()
        assert floating.view(np.int32)[starts[1] : starts[1] + totals[1]].tolist() == np.flatnonzero(mine == 1).tolist()
    else:
        with pytest.raises(ShapeError, match="do not fit"):
            _c.split_slots(*arrays, integers, floating)
