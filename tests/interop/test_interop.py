"""What fluidlite writes, in Paddle 3, ONNX and Netron; and what Paddle writes, here. `nox -s interop` runs all of it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.core import serde
from fluidlite.export import Form, export
from tests.frontend import fresh_programs
from tests.interop import models, peers
from tests.test_files_of_paddle import MODELS, expect_same_results

#: Paddle takes seconds to begin, paddle2onnx tens of them for each model
pytestmark = pytest.mark.timeout(900)

#: float32 sums in another order
CLOSE = 1e-5
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every model of `models`, in the forms that fluidlite writes."""
    if peers.lacking("paddle") and peers.lacking("netron"):
        peers.need("paddle", "netron")
    path = tmp_path_factory.mktemp("models")
    models.save_all(path)
    (path / "exported").mkdir()
    for name in models.NAMES:
        export(path / name, Form.PADDLE, path / "exported" / name)
    return path


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


def differences(output: str) -> dict[str, float]:
    """The lines ``difference NAME... NUMBER``."""
    found = (line.split() for line in output.splitlines() if line.startswith("difference "))
    return {" ".join(words[1:-1]): float(words[-1]) for words in found}


def test_paddle_3_predicts_the_same_from_what_is_saved(folder: Path) -> None:
    """A table is a SelectedRows file there, as in Fluid; Paddle 3 has no such parameters."""
    peers.need("paddle")
    names = [name for name in models.NAMES if name != "table"]
    forms = [f"{folder / name}={form}" for name in names for form in ("folder", "files")]
    found = differences(peers.run_here("predict_with_paddle.py", folder, *forms))
    assert sorted(found) == sorted(f"{name} {form}" for name in names for form in ("folder", "files"))
    assert max(found.values()) < CLOSE, found


def test_paddle_3_predicts_the_same_from_what_is_exported(folder: Path) -> None:
    peers.need("paddle")
    forms = [f"{folder / 'exported' / name}=files" for name in models.NAMES]
    found = differences(peers.run_here("predict_with_paddle.py", folder, *forms))
    assert sorted(found) == sorted(f"{name} files" for name in models.NAMES)
    assert max(found.values()) < CLOSE, found


def test_paddle_3_loads_states_and_static_models(folder: Path, tmp_path: Path) -> None:
    peers.need("paddle")
    x = fluid.data("x", [None, 3])
    loss = fluid.layers.mean(fluid.layers.fc(x, 2))
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    fluid.Executor().run(fluid.default_startup_program())
    fluid.save(fluid.default_main_program(), tmp_path / "m")
    code = f"""
import paddle, numpy as np
paddle.enable_static()
state = paddle.static.load_program_state({str(tmp_path / "m")!r})
np.savez({str(tmp_path / "state.npz")!r}, **state)
exe = paddle.static.Executor(paddle.CPUPlace())
program, feeds, fetches = paddle.static.load_inference_model({str(folder / "mlp")!r}, exe)
x = np.load({str(folder / "mlp.npz")!r})
print("difference mlp", abs(exe.run(program, feed={{feeds[0]: x["in_x"]}}, fetch_list=fetches)[0] - x["out_0"]).max())
"""
    found = differences(peers.run("-c", code))
    assert found["mlp"] < CLOSE
    ours = fluid.io.load_program_state(tmp_path / "m")
    with np.load(tmp_path / "state.npz") as theirs:
        assert sorted(theirs) == sorted(ours)
        for name, array in ours.items():
            np.testing.assert_array_equal(theirs[name], array)


def test_models_that_paddle_makes_now_run_here(tmp_path: Path) -> None:
    peers.need("paddle")
    peers.run_here("make_with_paddle.py", tmp_path)
    exe = fluid.Executor(fluid.CPUPlace())
    for name in MODELS:
        with fluid.scope_guard(fluid.Scope()):
            expect_same_results(tmp_path / name, fluid.io.load_inference_model(tmp_path / name, exe), exe)


def test_onnx_computes_the_same(folder: Path, tmp_path: Path) -> None:
    """By the command, in the Python that has paddle2onnx."""
    peers.need("paddle", "paddle2onnx", "onnx", "onnxruntime", "typer", "grpc")
    for name in models.PLAIN_NAMES:
        shutil.copy(folder / f"{name}.npz", tmp_path)
        output = peers.run("-m", "fluidlite", "export", folder / name, "--to", "onnx", tmp_path / f"{name}.onnx")
        assert output.strip().endswith(f"{name}.onnx")
    found = differences(peers.run_here("predict_with_onnx.py", tmp_path, *models.PLAIN_NAMES))
    assert sorted(found) == sorted(models.PLAIN_NAMES)
    assert max(found.values()) < CLOSE, found


def test_what_onnx_has_no_ops_for_is_refused(folder: Path, tmp_path: Path) -> None:
    peers.need("paddle", "paddle2onnx", "typer", "grpc")
    command = ("-m", "fluidlite", "export", folder / "sequences", "--to", "onnx", tmp_path / "s.onnx")
    output = peers.run(*command, fails=True)
    assert (
        "fluidlite: paddle2onnx does not convert this model, whose ops are elementwise_add, lookup_table, mul" in output
    )
    assert "sequence_pool" in output
    assert "to opset 13: " in output
    assert "unsupported operators" in output
    assert not list(tmp_path.iterdir())


def test_netron_parses_every_node(folder: Path) -> None:
    """Feed and fetch ops are inputs and outputs there."""
    peers.need("netron", "playwright")
    if BROWSER is None:
        pytest.skip("no Chromium to open Netron's page in")
    paths = [folder / "ctr" / "__model__", *(folder / "exported" / f"{name}.pdmodel" for name in ("cnn", "sequences"))]
    output = peers.run_here("see_with_netron.py", BROWSER, *paths)
    drawn = dict(json.loads(line.removeprefix("nodes ")) for line in output.splitlines() if line.startswith("nodes "))
    assert sorted(drawn) == sorted(map(str, paths))
    for path in paths:
        ops = [op.type for _, op in serde.from_bytes(path.read_bytes()).all_ops()]
        assert Counter(drawn[str(path)]) == Counter(op for op in ops if op not in {"feed", "fetch"}), path
