"""Every file and record of the goldens: read, its values compared, written again with the same bytes, and run."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.core import serde
from fluidlite.dtypes import VarKind
from fluidlite.values import files, records
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.state_reader import read_arrays
from fluidlite.values.state_writer import write_state
from tests.frontend import fresh_programs
from tests.shared_data import GOLDEN, golden, golden_array, golden_feed, golden_json

PROGRAMS = {"__model__", "program.bin", "ckpt.pdmodel"}
FOLDERS = sorted(path.parent.name for path in (GOLDEN / "files").glob("*/io.json"))
FILES = [
    f"{path.parent.name}/{name}"
    for path in sorted((GOLDEN / "files").glob("*/io.json"))
    for name in json.loads(path.read_bytes())["files"]
]
RECORDS = [item["id"] for item in json.loads((GOLDEN / "files/records.json").read_bytes())] if FOLDERS else []


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


@pytest.fixture
def exe() -> fluid.Executor:
    return fluid.Executor(fluid.CPUPlace())


def split(file: str) -> tuple[str, str]:
    folder, _, name = file.partition("/")
    return folder, name


def expect_value(actual: Any, expected: dict[str, Any]) -> None:
    if "rows" in expected:
        assert isinstance(actual, SelectedRows)
        assert (actual.rows.tolist(), actual.height) == (expected["rows"], expected["height"])
        expect_value(actual.value, expected["value"])
        return
    array = actual.array if isinstance(actual, LoDTensor) else actual
    np.testing.assert_array_equal(array, golden_array(expected), strict=True)
    lengths = [np.diff(level).tolist() for level in actual.lod] if isinstance(actual, LoDTensor) else []
    assert lengths == expected.get("lod", [])


def rewritten(file: str, described: dict[str, Any]) -> bytes:
    """What we write of what we read, after its values were compared."""
    folder, name = split(file)
    path = golden("files", folder, name)
    values = {**described.get("params", {}), **described.get("values", {})}
    if name in PROGRAMS:
        return serde.to_bytes(serde.from_bytes(path.read_bytes(), name))
    stream = io.BytesIO()
    if path.suffix in {".pdparams", ".pdopt"}:
        state = read_arrays(path.read_bytes(), name)
        for key, array in state.items():
            expect_value(array, values[key])
        write_state(stream, state)
    else:
        names = described["order_in_combined_file"] if name == described.get("combined_file") else [name]
        found = files.load_all(path, names, ["rows" in values[key] for key in names])
        for key, value in zip(names, found, strict=True):
            expect_value(value, values[key])
            records.write(stream, value)
    return stream.getvalue()


@pytest.mark.parametrize("file", FILES)
def test_a_file_is_read_and_written_byte_for_byte(file: str) -> None:
    folder, name = split(file)
    described = golden_json("files", folder, "io.json")
    data = golden("files", folder, name).read_bytes()
    written = rewritten(file, described)
    facts = described["files"][name]
    assert (len(written), hashlib.sha256(written).hexdigest()) == (facts["bytes"], facts["sha256"])
    assert written == data


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_loaded_and_run(folder: str, exe: fluid.Executor, tmp_path: Path) -> None:
    described = golden_json("files", folder, "io.json")
    path = golden("files", folder)
    if described["kind"] == "inference_model":
        run_model(path, described, exe)
    elif described["kind"] == "persistables":
        for filename in (None, described["combined_file"]):
            take_a_step(path, filename, described, exe)
    else:
        assert described["kind"] == "fluid.save"
        state = fluid.io.load_program_state(path / described["prefix"])
        assert sorted(state) == described["state_keys"]
        for name, value in state.items():
            expect_value(value, described["values"][name])


def run_model(path: Path, described: dict[str, Any], exe: fluid.Executor) -> None:
    """The ops, the parameters and what they compute."""
    program, feeds, fetches = fluid.io.load_inference_model(
        path, exe, described["model_filename"], described["params_filename"]
    )
    assert feeds == described["feed_names"]
    assert [var.name for var in fetches] == described["fetch_names"]
    inner = [name for name in described["ops"] if name not in {"feed", "fetch"}]
    assert [op.type for op in program.global_block().ops] == inner
    feed = {name: golden_feed(tensor) for name, tensor in described["inputs"].items()}
    outputs = exe.run(program, feed, fetches, return_numpy=False)
    for actual, expected in zip(outputs, described["outputs"], strict=True):
        np.testing.assert_allclose(np.array(actual), golden_array(expected), rtol=1e-5, atol=1e-6)


def take_a_step(path: Path, filename: str | None, described: dict[str, Any], exe: fluid.Executor) -> None:
    """The program trains on from the values of the files."""
    program = fluid.Program.parse_from_string((path / "program.bin").read_bytes())
    fluid.io.load_persistables(exe, path, program, filename=filename)
    for name, tensor in described["values"].items():
        expect_value(fluid.global_scope().get(name), tensor)
    step = described["next_step"]
    exe.run(program, {name: golden_array(tensor) for name, tensor in step["feed"].items()})
    for name, tensor in step["values_after"].items():
        after = fluid.global_scope().get(name)
        np.testing.assert_allclose(after, golden_array(tensor), rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("id", RECORDS)
def test_a_record_is_read_and_written_byte_for_byte(id: str) -> None:
    (record,) = (item for item in golden_json("files", "records.json") if item["id"] == id)
    if "program_hex" in record:
        data = bytes.fromhex(record["program_hex"])
        program = serde.from_bytes(data)
        assert serde.to_bytes(program) == data
        assert [op.type for op in program.root.ops] == ["scale"]
        assert {var.kind for var in program.root.vars.values()} == {VarKind.LOD_TENSOR}
        return
    data = bytes.fromhex(record["hex"])
    value = records.read_any(io.BytesIO(data), id)
    expect_value(value, record["value"])
    stream = io.BytesIO()
    records.write(stream, value)
    assert stream.getvalue() == data
