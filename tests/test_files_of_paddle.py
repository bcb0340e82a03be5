"""Files that Paddle 2.6.2 and 3.3.1 wrote (tests/files_of_paddle, made by tests/interop/make_with_paddle.py)."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.core import serde
from fluidlite.errors import MissingFileError, NotSupported, ProgramError
from fluidlite.values.state_reader import read_arrays, read_state
from fluidlite.values.state_writer import write_state
from tests.frontend import fresh_programs
from tests.shared_data import REPO

FOLDER = REPO / "tests" / "files_of_paddle"
VERSIONS = ("v2.6.2", "v3.3.1")
MODELS = ("cnn", "ctr", "numbers", "traced")
by_version = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


@pytest.fixture
def exe() -> fluid.Executor:
    return fluid.Executor(fluid.CPUPlace())


def expect_same_results(prefix: Path, loaded: list[Any], exe: fluid.Executor) -> None:
    """The model computes what the file beside it says."""
    program, feeds, fetches = loaded
    with np.load(f"{prefix}.npz") as known:
        assert feeds == known["names"].tolist()
        results = exe.run(program, {name: known[name] for name in feeds}, fetches)
        for index, result in enumerate(results):
            expected = known[f"out{index}"]
            assert result.dtype == expected.dtype
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6, err_msg=f"output {index}")
        assert f"out{len(results)}" not in known


@by_version
@pytest.mark.parametrize("name", MODELS)
def test_models_compute_what_they_do_in_paddle(version: str, name: str, exe: fluid.Executor) -> None:
    prefix = FOLDER / version / name
    expect_same_results(prefix, fluid.io.load_inference_model(prefix, exe), exe)


@by_version
@pytest.mark.parametrize("name", MODELS)
def test_files_of_models_are_written_as_they_were(version: str, name: str, exe: fluid.Executor, tmp_path: Path) -> None:
    prefix = FOLDER / version / name
    model = Path(f"{prefix}.pdmodel").read_bytes()
    assert serde.to_bytes(serde.from_bytes(model)) == model
    program, _, _ = fluid.io.load_inference_model(str(prefix), exe)
    fluid.io.save_persistables(exe, tmp_path, program, filename="all")
    assert (tmp_path / "all").read_bytes() == Path(f"{prefix}.pdiparams").read_bytes()


@by_version
def test_a_model_is_loaded_by_its_file_names_and_from_memory(version: str, exe: fluid.Executor) -> None:
    folder = FOLDER / version
    expect_same_results(folder / "ctr", fluid.io.load_inference_model(folder, exe, "ctr.pdmodel", "ctr.pdiparams"), exe)
    contents = ((folder / f"ctr.{end}").read_bytes() for end in ("pdmodel", "pdiparams"))
    with fluid.scope_guard(fluid.Scope()):
        expect_same_results(folder / "ctr", fluid.io.load_inference_model(None, exe, *contents), exe)


@by_version
def test_a_model_of_paddle_is_saved_again(version: str, exe: fluid.Executor, tmp_path: Path) -> None:
    prefix = FOLDER / version / "numbers"
    program, feeds, fetches = fluid.io.load_inference_model(prefix, exe)
    fluid.io.save_inference_model(tmp_path, feeds, fetches, exe, program)
    expect_same_results(prefix, fluid.io.load_inference_model(tmp_path, exe), exe)


@by_version
def test_states_of_static_programs(version: str, exe: fluid.Executor) -> None:
    prefix = FOLDER / version / "ctr_state"
    program = fluid.Program.parse_from_string(Path(f"{prefix}.pdmodel").read_bytes())
    state = fluid.io.load_program_state(prefix)
    assert sorted(state) == ["emb", "fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0"]
    for name in state:
        fluid.global_scope().set(name, np.zeros_like(state[name]))
    fluid.io.set_program_state(program, state)
    for name, array in state.items():
        np.testing.assert_array_equal(fluid.global_scope().get(name), array)
    fluid.io.load_inference_model(FOLDER / version / "ctr", exe)
    for name, array in state.items():
        np.testing.assert_array_equal(fluid.global_scope().get(name), array)


@by_version
@pytest.mark.parametrize("name", ["net.pdparams", "net2.pdparams"])
def test_states_of_dynamic_nets(version: str, name: str) -> None:
    state = read_arrays((FOLDER / version / name).read_bytes(), name)
    with np.load(FOLDER / version / "net.npz") as known:
        assert sorted(state) == sorted(known) == ["0.bias", "0.weight", "2.bias", "2.weight"]
        for key, array in state.items():
            np.testing.assert_array_equal(array, known[key])


@by_version
def test_states_of_optimizers_and_nested_tensors(version: str) -> None:
    state = fluid.io.load_program_state(FOLDER / version / "net.pdopt")
    assert {name for name in state if "moment" in name} > {"linear_0.w_0_moment1_0", "linear_1.b_0_moment2_0"}
    assert state["linear_0.w_0_beta1_pow_acc_0"].tolist() == [0.809999942779541]
    tensors = read_arrays((FOLDER / version / "tensors.pdparams").read_bytes(), "tensors")
    assert tensors["a"].tolist() == [1.0, 1.0]
    (_, array), three, x = tensors["nested"]["b"]
    assert (array.tolist(), three, x) == ([1.5], 3, "x")


@by_version
def test_the_notes_on_parameters_are_written_as_they_were(version: str) -> None:
    data = (FOLDER / version / "traced.pdiparams.info").read_bytes()
    notes = read_state(data, "notes")
    assert notes["linear_0.w_0"] == {"structured_name": "0.weight", "stop_gradient": False, "trainable": True}
    stream = io.BytesIO()
    write_state(stream, notes)
    assert stream.getvalue() == data


def test_the_json_form_of_paddle_3_is_refused(exe: fluid.Executor, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('{"base_code":{"magic":"pir","trainable":true,"version":4},"program":{}}')
    for arguments in ((tmp_path / "m", exe), (tmp_path, exe, "m.json", "m.pdiparams")):
        with pytest.raises(NotSupported, match=r"m\.json is a model in the JSON form.* FLAGS_enable_pir_api=0"):
            fluid.io.load_inference_model(*arguments)


def test_what_is_missing_of_a_model_is_named(exe: fluid.Executor, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"there is no file .*none/__model__"):
        fluid.io.load_inference_model(tmp_path / "none", exe)
    shutil.copy(FOLDER / "v3.3.1" / "ctr.pdmodel", tmp_path)
    with pytest.raises(MissingFileError, match="variable 'emb' cannot be loaded: there is no file"):
        fluid.io.load_inference_model(tmp_path / "ctr", exe)
    with pytest.raises(ProgramError, match="with dirname None, model_filename is the content"):
        fluid.io.load_inference_model(None, exe, "ctr.pdmodel", b"")
    with pytest.raises(ProgramError, match="a model in memory goes with dirname None"):
        fluid.io.load_inference_model(tmp_path, exe, b"", b"")
