"""Files of Fluid 1.8.5, made now, are read here and written with the same bytes; ours are read by Fluid. Needs
``FLUIDLITE_ORACLE_PYTHON``: a Python with paddlepaddle 1.8.5."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.core import serde
from fluidlite.values import files, records
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.state_reader import read_arrays
from fluidlite.values.state_writer import write_state
from tests.frontend import fresh_programs
from tests.interop import models
from tests.shared_data import REPO

ORACLE = os.environ.get("FLUIDLITE_ORACLE_PYTHON", "")
HERE = REPO / "tests" / "oracle"

pytestmark = pytest.mark.skipif(not ORACLE, reason="FLUIDLITE_ORACLE_PYTHON names no Python with paddlepaddle 1.8.5")


def in_fluid(script: str, *arguments: str | Path) -> str:
    command = [ORACLE, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert not done.returncode, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fluid")
    assert in_fluid("file_writer.py", folder).endswith("done\n")
    return folder


def is_program(path: Path) -> bool:
    return path.suffix in {".bin", ".pdmodel"} or path.name == "__model__"


def test_programs_keep_their_bytes(theirs: Path) -> None:
    paths = [path for path in theirs.rglob("*") if path.is_file() and is_program(path)]
    assert len(paths) == 4 * 3 + 2 + 4 + 4
    for path in paths:
        data = path.read_bytes()
        program = serde.from_bytes(data, str(path))
        assert serde.to_bytes(program) == data, path.name
        assert len(program.blocks) > 1 or not path.name.startswith(("loop.main", "sequences.main", "mlp.pserver"))


def test_values_keep_their_bytes(theirs: Path) -> None:
    paths = [path for path in theirs.rglob("*") if path.is_file() and not is_program(path) and "_all" not in path.name]
    assert len(paths) > 40
    for path in paths:
        stream = io.BytesIO()
        if path.suffix in {".pdparams", ".pdopt"}:
            write_state(stream, read_arrays(path.read_bytes(), str(path)))
        else:
            records.write(stream, files.load(path, path.name))
        assert stream.getvalue() == path.read_bytes(), path


def test_values_of_every_kind(theirs: Path) -> None:
    rows = files.load(theirs / "record_rows", "rows")
    assert isinstance(rows, SelectedRows)
    assert (rows.rows.tolist(), rows.height, rows.value.tolist()) == ([7, 0, 3], 10, [[0, 1], [2, 3], [4, 5]])
    for dtype in ("float32", "float64", "int8", "int32", "int64"):
        value = files.load(theirs / f"record_{dtype}", dtype)
        array = value.array if isinstance(value, LoDTensor) else value
        np.testing.assert_array_equal(array, np.arange(3, dtype=dtype)[:, None], strict=True)
        assert isinstance(value, LoDTensor) is (dtype == "int64")


@pytest.mark.parametrize("name", ["mlp", "loop", "sequences", "cnn"])
def test_combined_and_separate_values_are_the_same(theirs: Path, name: str) -> None:
    program = fluid.Program.parse_from_string((theirs / f"{name}.main.bin").read_bytes())
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.global_scope()
    fluid.io.load_persistables(exe, theirs / f"{name}_vars", program)
    names = [var.name for var in fluid.io.get_program_persistable_vars(program)]
    apart = {key: np.array(scope.get(key)) for key in names}
    fluid.io.load_persistables(exe, theirs, program, filename=f"{name}_all")
    state = fluid.io.load_program_state(theirs / f"{name}_state")
    assert names
    for key, value in apart.items():
        np.testing.assert_array_equal(scope.get(key), value, err_msg=key)
        np.testing.assert_array_equal(state[key], value, err_msg=key)
    fluid.io.save_persistables(exe, theirs / "again", program, filename=name)
    assert (theirs / "again" / name).read_bytes() == (theirs / f"{name}_all").read_bytes()


def test_fluid_reads_what_we_write(tmp_path: Path) -> None:
    models.save_all(tmp_path)
    x = fluid.data("x", [None, 3])
    loss = fluid.layers.mean(fluid.layers.fc(x, 2))
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    fluid.Executor().run(fluid.default_startup_program())
    fluid.save(fluid.default_main_program(), tmp_path / "state")
    names = [name for name in models.NAMES if name != "table"]
    output = in_fluid("file_reader.py", tmp_path, *names).splitlines()
    found = {tuple(words[1:-1]): float(words[-1]) for words in map(str.split, output) if words[0] == "difference"}
    expected = {(name, form) for name in names for form in ("folder", "files")}
    assert set(found) == expected | {("state", "loaded")}
    assert max(found.values()) < 1e-5, found
    assert output[-1].split()[1:] == [op.type for op in fluid.default_main_program().desc.root.ops]
    ours = fluid.io.load_program_state(tmp_path / "state")
    with np.load(tmp_path / "state_read.npz") as state:
        assert sorted(state) == sorted(ours)
        for name, array in ours.items():
            np.testing.assert_array_equal(state[name], array)
