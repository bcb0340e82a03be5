"""`fluidlite export`: what it writes computes the same here; Paddle and ONNX are asked in tests/interop."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fluidlite as fluid
from fluidlite import cli, export
from fluidlite.core import serde
from fluidlite.dtypes import VarKind
from fluidlite.errors import MissingFileError, MissingPackageError, NotSupported
from tests.frontend import fresh_programs
from tests.interop import models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    models.save_all(path)
    return path


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


def ops_of(path: Path) -> list[str]:
    return [op.type for _, op in serde.from_bytes(path.read_bytes()).all_ops()]


@pytest.mark.parametrize("name", models.PLAIN_NAMES)
def test_an_exported_model_computes_the_same(name: str, folder: Path, tmp_path: Path) -> None:
    exported = export.export(folder / name, export.Form.PADDLE, tmp_path / name)
    assert exported == [tmp_path / f"{name}.pdmodel", tmp_path / f"{name}.pdiparams"]
    exe = fluid.Executor(fluid.CPUPlace())
    program, feeds, fetches = fluid.io.load_inference_model(tmp_path / name, exe)
    example = dict(np.load(folder / f"{name}.npz"))
    results = exe.run(program, {feed: example[f"in_{feed}"] for feed in feeds}, fetches)
    for index, result in enumerate(results):
        expected = example[f"out_{index}"]
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-7)
    assert not {"lookup_table", "lookup_sparse_table", "matmul"} & set(ops_of(exported[0]))


def test_a_model_is_exported_by_its_prefix_and_file_names(folder: Path, tmp_path: Path) -> None:
    whole = [path.read_bytes() for path in export.export(folder / "mlp", export.Form.PADDLE, tmp_path / "a")]
    by_prefix = export.export(folder / "mlp.pdmodel", export.Form.PADDLE, tmp_path / "b.pdmodel")
    assert [path.name for path in by_prefix] == ["b.pdmodel", "b.pdiparams"]
    names = {"model_filename": "mlp.pdmodel", "params_filename": "mlp.pdiparams"}
    by_names = export.export(folder, export.Form.PADDLE, tmp_path / "c.pdiparams", **names)
    for written in (by_prefix, by_names):
        assert [path.read_bytes() for path in written] == whole


def test_ids_with_sequences_keep_their_lookup(folder: Path, tmp_path: Path) -> None:
    model, _ = export.export(folder / "sequences", export.Form.PADDLE, tmp_path / "s")
    assert ops_of(model)[:3] == ["feed", "lookup_table", "sequence_pool"]


def test_every_attribute_is_written_out(folder: Path, tmp_path: Path) -> None:
    """Converters read attributes without asking for a default."""
    model, _ = export.export(folder / "matrices", export.Form.PADDLE, tmp_path / "m")
    ops = serde.from_bytes(model.read_bytes()).root.ops
    assert {"x_num_col_dims", "y_num_col_dims"} <= next(op for op in ops if op.type == "mul").attrs.keys()
    product = next(op for op in ops if op.type == "matmul_v2")
    assert [product.attr(name) for name in ("trans_x", "trans_y")] == [False, False]
    assert ops[ops.index(product) + 1].attr("scale") == 0.5


def test_a_table_becomes_a_dense_parameter(folder: Path, tmp_path: Path) -> None:
    model, _ = export.export(folder / "table", export.Form.PADDLE, tmp_path / "t")
    assert VarKind.SELECTED_ROWS not in {var.kind for var in serde.from_bytes(model.read_bytes()).root.vars.values()}
    exe = fluid.Executor(fluid.CPUPlace())
    fluid.io.load_inference_model(folder / "table", exe)
    (name,) = [name for name in ("embedding_0.w_0",) if fluid.global_scope().get(name) is not None]
    known = fluid.global_scope().get(name).export()
    with fluid.scope_guard(fluid.Scope()):
        fluid.io.load_inference_model(tmp_path / "t", exe)
        dense = fluid.global_scope().get(name)
    assert dense.shape == (50, 4)
    np.testing.assert_array_equal(dense[known.rows], known.value[: len(known.rows)])
    assert np.count_nonzero(dense.any(axis=1)) == len(known.rows) == 2


def save_table(folder: Path, height: int, ids: list[int]) -> None:
    given = fluid.data("ids", [None, 1], "int64")
    rows = fluid.layers.embedding(given, [height, 4], is_sparse=True, is_distributed=True, param_attr="emb")
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    exe.run(feed={"ids": np.array(ids)[:, None]}, fetch_list=[rows])
    fluid.io.save_inference_model(folder, ["ids"], [rows], exe)


def test_tables_that_cannot_be_dense_are_refused(tmp_path: Path) -> None:
    save_table(tmp_path / "high", 10**9, [1])
    with pytest.raises(
        NotSupported, match=r"table 'emb' of height 1000000000 cannot be written row by row \(16000000000"
    ):
        export.export(tmp_path / "high", export.Form.PADDLE, tmp_path / "out")
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        save_table(tmp_path / "ids", 10, [3, -5])
        with pytest.raises(NotSupported, match="table 'emb' has rows for ids outside 0 to 9"):
            export.export(tmp_path / "ids", export.Form.PADDLE, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_onnx_without_its_packages_names_the_extra(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(cli.app, ["export", str(folder / "mlp"), "--to", "onnx", str(tmp_path / "m.onnx")])
    assert isinstance(result.exception, MissingPackageError)
    assert "install fluidlite[interop]" in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_what_paddle2onnx_says_is_told(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a converter in its place that ends as paddle2onnx does."""
    commands = []

    def fail(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        assert Path(command[3]).stat().st_size
        return subprocess.CompletedProcess(command, -6, "Begin\n[ERROR] no mapper for mul\n", "C++ Traceback\n")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(subprocess, "run", fail)
    message = r"whose ops are .*mul.* to opset 11: \[ERROR\] no mapper for mul$"
    with pytest.raises(NotSupported, match=message):
        export.export(folder / "mlp", export.Form.ONNX, tmp_path / "m.onnx", opset=11)
    assert commands[0][-1] == "11"
    assert not Path(commands[0][3]).exists()


def test_the_command_writes_and_lists_the_files(folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["export", str(folder / "mlp"), "--to", "paddle", str(tmp_path / "x" / "m")])
    assert result.exit_code == 0
    assert result.output.split() == [str(tmp_path / "x" / "m.pdmodel"), str(tmp_path / "x" / "m.pdiparams")]
    wrong = CliRunner().invoke(cli.app, ["export", str(tmp_path / "no"), "--to", "paddle", str(tmp_path / "m")])
    assert isinstance(wrong.exception, MissingFileError)
    assert CliRunner().invoke(cli.app, ["export", str(folder / "mlp"), "--to", "tflite", "x"]).exit_code == 2
