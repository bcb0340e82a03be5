"""Bytes of parameter files: exactly Fluid's, and damage is always found."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fluidlite.errors import CorruptFileError
from fluidlite.values import records
from fluidlite.values.lod import LoDTensor, lod_from_lengths
from fluidlite.values.selected_rows import SelectedRows
from tests.shared_data import golden, golden_array, golden_json, needs_golden

FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)
FLOATS_HEAD = bytes.fromhex("000000000000000000000000000000000600000008051002" + "1003")


def encoded(value: Any) -> bytes:
    stream = io.BytesIO()
    records.write(stream, value)
    return stream.getvalue()


def decoded(data: bytes, *, rows: bool = False) -> Any:
    stream = io.BytesIO(data)
    value = records.read_selected_rows(stream, "f") if rows else records.read_tensor(stream, "f")
    records.check_end(stream, "f")
    return value


def golden_value(record: dict[str, Any]) -> Any:
    if "rows" in record:
        rows = np.array(record["rows"], np.int64)
        return SelectedRows(rows, golden_array(record["value"]), record["height"])
    array = golden_array(record)
    return LoDTensor(array, lod_from_lengths(record["lod"])) if "lod" in record else array


def read_any(path: Path) -> Any:
    with path.open("rb") as stream:
        return records.read_any(stream, str(path))


def assert_same(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    if isinstance(expected, SelectedRows):
        assert actual.height == expected.height
        np.testing.assert_array_equal(actual.rows, expected.rows)
        actual, expected = actual.value, expected.value
    elif isinstance(expected, LoDTensor):
        assert actual.lod == expected.lod
        actual, expected = actual.array, expected.array
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual, expected)


@needs_golden
def test_golden_records_of_fluid_byte_for_byte() -> None:
    seen = 0
    for record in golden_json("files", "records.json"):
        if "hex" not in record:
            continue
        value, data = golden_value(record["value"]), bytes.fromhex(record["hex"])
        assert encoded(value) == data, record["id"]
        assert_same(decoded(data, rows=isinstance(value, SelectedRows)), value)
        seen += 1
    assert seen == 9


@pytest.mark.parametrize("folder", ["ctr_lod", "mlp_separate", "persistables_adam", "selected_rows_table"])
def test_golden_parameter_files_byte_for_byte(folder: str) -> None:
    described = golden_json("files", folder, "io.json")
    values = described.get("params") or described.get("values") or {}
    for name, record in values.items():
        data = golden("files", folder, name).read_bytes()
        value = golden_value(record)
        assert encoded(value) == data, name
        assert_same(read_any(golden("files", folder, name)), value)


def test_golden_combined_file() -> None:
    described = golden_json("files", "persistables_adam", "io.json")
    path = golden("files", "persistables_adam", described["combined_file"])
    values = [golden_value(described["values"][name]) for name in described["order_in_combined_file"]]
    assert b"".join(map(encoded, values)) == path.read_bytes()
    with path.open("rb") as stream:
        for value in values:
            assert_same(records.read_tensor(stream, "all"), value)
        records.check_end(stream, "all")


def test_head_of_a_float_record() -> None:
    assert encoded(FLOATS) == FLOATS_HEAD + FLOATS.tobytes()


arrays = hnp.arrays(
    st.sampled_from(["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@given(arrays)
def test_any_array_round_trips(array: Any) -> None:
    assert_same(decoded(encoded(array)), array)


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
    st.integers(0, 3),
    st.integers(-1, 2**62),
)
def test_any_rows_round_trip(rows: list[int], width: int, height: int) -> None:
    value = SelectedRows(np.array(rows, np.int64), np.ones((len(rows), width), np.float32), height)
    assert_same(decoded(encoded(value), rows=True), value)


@given(st.lists(st.integers(0, 3), max_size=4))
def test_any_sequences_round_trip(lengths: list[int]) -> None:
    rows = sum(lengths)
    value = LoDTensor(np.arange(rows, dtype=np.int64).reshape(rows, 1), lod_from_lengths([lengths]))
    assert_same(decoded(encoded(value)), value)


@pytest.mark.parametrize("array", [FLOATS.T, FLOATS.astype(">f4"), FLOATS[:, ::2], np.float32(2.5).astype(">f4")])
def test_strided_and_big_endian_arrays_are_written_in_chunks(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_CHUNK", 8)
    plain = np.array(array, "<f4", order="C")
    assert encoded(np.asarray(array)) == encoded(plain)


@needs_golden
def test_read_any_tells_the_kinds_apart(tmp_path: Path) -> None:
    for number, record in enumerate(golden_json("files", "records.json")):
        if "hex" in record:
            path = tmp_path / str(number)
            path.write_bytes(bytes.fromhex(record["hex"]))
            assert_same(read_any(path), golden_value(record["value"]))


def test_K04_a_table_without_rows_round_trips(tmp_path: Path) -> None:
    for height in (0, 1, 10, 2**40):
        value = SelectedRows(np.empty(0, np.int64), np.empty((0, 8), np.float32), height)
        path = tmp_path / "empty"
        path.write_bytes(encoded(value))
        assert_same(read_any(path), value)


def test_B015_a_file_holds_the_rows_there_are_not_the_height(tmp_path: Path) -> None:
    value = SelectedRows(np.arange(10) * 10**8, np.ones((10, 8), np.float32), 10**9)
    path = tmp_path / "table"
    path.write_bytes(encoded(value))
    assert path.stat().st_size < 10 * (8 + 8 * 4) + 60
    assert_same(read_any(path), value)


def test_B085_every_truncation_is_found_and_names_the_file() -> None:
    lod = LoDTensor(FLOATS, ((0, 1, 2),))
    rows = SelectedRows(np.array([7, 1]), FLOATS, 9)
    for value in (FLOATS, lod, rows):
        data = encoded(value)
        for cut in range(len(data)):
            with pytest.raises(CorruptFileError, match=r"^f: .*truncated: \d+ more bytes are needed, \d+ are left"):
                decoded(data[:cut], rows=value is rows)


def test_B085_a_file_that_is_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fc_0.w_0"
    path.write_bytes(encoded(FLOATS) + b"\0")
    with pytest.raises(CorruptFileError, match=r"fc_0\.w_0: the file goes on after its last value"):
        read_any(path)


@pytest.mark.parametrize("version", [5, 91])
@pytest.mark.parametrize(("at", "what"), [(0, "LoDTensor"), (12, "tensor")])
def test_B088_another_version_is_refused_with_version_and_file(version: int, at: int, what: str) -> None:
    data = bytearray(encoded(FLOATS))
    data[at : at + 4] = struct.pack("<I", version)
    with pytest.raises(CorruptFileError, match=f"f: {what} version {version} is not supported"):
        decoded(bytes(data))


def test_B115_different_rows_stay_different() -> None:
    value = SelectedRows(np.array([9, 2, 5, -1, 2**62]), np.arange(10, dtype=np.float32).reshape(5, 2), 0)
    assert_same(decoded(encoded(value), rows=True), value)


@pytest.mark.parametrize("lod", [((0, 1),), ((0, 3),), ((0, 2, 1, 2),), ((1, 2),), ((0, 2), (0, 2))])
def test_C36_a_lod_that_does_not_fit_the_rows_is_refused(lod: Any) -> None:
    with pytest.raises(CorruptFileError, match=r"f: LoD level \d of the record"):
        decoded(encoded(LoDTensor(FLOATS, lod)))


def test_a_huge_claim_takes_no_memory() -> None:
    desc = bytes([0x08, 0x05, 0x10, *b"\xff" * 8, 0x7F])
    data = b"\0" * 16 + struct.pack("<i", len(desc)) + desc
    with pytest.raises(CorruptFileError, match="truncated"):
        decoded(data)


@pytest.mark.parametrize(
    ("desc", "message"),
    [
        (b"", "description of 0 bytes"),
        (b"\x10\x02", "dtype 0 and dims"),
        (b"\x08\x07\x10\x02", "dtype 7 and dims"),
        (b"\x08\x05\x10" + b"\xff" * 9 + b"\x01", r"dims \[-1\]"),
        (b"\x08\x05\x12\x7f", "cannot be read"),
        (b"\x08\x05\x10\x00" + b"\x10" + b"\xff" * 8 + b"\x7f", "which no array can have"),
    ],
)
def test_a_broken_description_is_refused(desc: bytes, message: str) -> None:
    data = b"\0" * 16 + struct.pack("<i", len(desc)) + desc
    with pytest.raises(CorruptFileError, match=message):
        decoded(data)


def test_row_ids_and_values_must_agree() -> None:
    data = bytearray(encoded(SelectedRows(np.array([1, 2]), FLOATS, 4)))
    data[4] = 3
    data[12:12] = bytes(8)
    with pytest.raises(CorruptFileError, match=r"3 row ids but values of shape \(2, 3\)"):
        decoded(bytes(data), rows=True)


def test_the_free_rows_of_a_table_of_fluid_are_kept() -> None:
    value = SelectedRows(np.array([7]), FLOATS, 9)
    assert_same(decoded(encoded(value), rows=True), value)


def test_a_lod_level_of_odd_size_is_refused() -> None:
    data = struct.pack("<IQQ", 0, 1, 7) + b"\0" * 40
    with pytest.raises(CorruptFileError, match="level of 7 bytes"):
        decoded(data)


def test_a_slice_of_a_tensor() -> None:
    stream = io.BytesIO(encoded(FLOATS))
    np.testing.assert_array_equal(records.read_slice(stream, "f", 3, (1, 3)), FLOATS[1:])
    with pytest.raises(CorruptFileError, match=r"elements 3 to 9 are asked of a tensor of shape \(2, 3\)"):
        records.read_slice(io.BytesIO(encoded(FLOATS)), "f", 3, (2, 3))
