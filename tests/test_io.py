"""Saving and loading: Fluid's files, inference models, tables, and every fault of a file named with the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.core import serde, text
from fluidlite.dtypes import VarKind
from fluidlite.errors import (
    CorruptFileError,
    DtypeError,
    MissingFileError,
    ProgramError,
    ShapeError,
    UninitializedError,
)
from fluidlite.ops import fluid_form
from fluidlite.values.sparse_table import SparseTable
from tests.frontend import fresh_programs
from tests.golden_programs import Snippet, missing
from tests.shared_data import golden, golden_array, golden_json

IDS = np.array([[3], [2**62], [-5], [3]], np.int64)


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


@pytest.fixture
def exe() -> fluid.Executor:
    return fluid.Executor(fluid.CPUPlace())


def regression(exe: fluid.Executor) -> tuple[Any, Any]:
    """A trained net of two layers: its prediction and its loss."""
    x = fluid.data("x", [None, 3])
    y = fluid.data("y", [None, 1])
    hidden = fluid.layers.dropout(fluid.layers.fc(x, 4, act="relu"), 0.5)
    predict = fluid.layers.fc(hidden, 1)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(predict, y))
    fluid.optimizer.Adam(0.1).minimize(loss)
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": np.ones((2, 3), np.float32), "y": np.ones((2, 1), np.float32)}, fetch_list=[loss])
    return predict, loss


def table_model(exe: fluid.Executor, height: int = 10**9) -> Any:
    """Looked up rows of a table of width 4, with adam's state, after one step on `IDS`."""
    ids = fluid.data("ids", [None, 1], "int64")
    attr = fluid.ParamAttr(name="emb", initializer=fluid.initializer.Uniform(-1.0, 1.0, seed=3))
    rows = fluid.layers.embedding(ids, [height, 4], is_sparse=True, is_distributed=True, param_attr=attr)
    loss = fluid.layers.mean(rows)
    fluid.optimizer.Adam(0.1).minimize(loss)
    exe.run(fluid.default_startup_program())
    exe.run(feed={"ids": IDS}, fetch_list=[loss])
    return rows


def value(name: str) -> Any:
    return fluid.global_scope().get(name)


def persistables() -> dict[str, Any]:
    names = [var.name for var in fluid.io.get_program_persistable_vars(fluid.default_main_program())]
    return {name: np.array(value(name)) for name in names}


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


# goldens


@pytest.mark.parametrize("folder", ["mlp_separate", "ctr_lod", "selected_rows_table"])
def test_golden_inference_models_of_fluid(folder: str, exe: fluid.Executor) -> None:
    described = golden_json("files", folder, "io.json")
    program, feeds, fetches = fluid.io.load_inference_model(golden("files", folder), exe)
    assert feeds == described["feed_names"]
    assert [var.name for var in fetches] == described["fetch_names"]
    feed = {name: fed(record) for name, record in described["inputs"].items()}
    outputs = exe.run(program, feed, fetches, return_numpy=False)
    for actual, expected in zip(outputs, described["outputs"], strict=True):
        np.testing.assert_allclose(np.array(actual), golden_array(expected), rtol=1e-5, atol=1e-6)


def fed(record: dict[str, Any]) -> Any:
    if "lod" not in record:
        return golden_array(record)
    return fluid.create_lod_tensor(golden_array(record), record["lod"], fluid.CPUPlace())


@pytest.mark.parametrize("filename", [None, "combined/all"])
def test_golden_persistables_of_fluid_and_the_next_step(filename: str | None, exe: fluid.Executor) -> None:
    described = golden_json("files", "persistables_adam", "io.json")
    folder = golden("files", "persistables_adam")
    program = fluid.Program.parse_from_string((folder / "program.bin").read_bytes())
    fluid.io.load_persistables(exe, folder, program, filename=filename)
    for name, record in described["values"].items():
        np.testing.assert_array_equal(value(name), golden_array(record))
    step = described["next_step"]
    feed = {name: golden_array(record) for name, record in step["feed"].items()}
    exe.run(program, feed)
    for name, record in step["values_after"].items():
        np.testing.assert_allclose(value(name), golden_array(record), rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ["save_persistables_files"])
def test_golden_names_of_saved_files(name: str, tmp_path: Path) -> None:
    described = golden_json("programs", f"{name}.json")
    if lacking := missing(described):
        pytest.skip(f"not there yet: {', '.join(lacking)}")
    assert Snippet(described["text"], str(tmp_path)).names["results"] == described["results"]


# variables


@pytest.mark.parametrize("filename", [None, "all"])
def test_what_is_saved_is_loaded(filename: str | None, exe: fluid.Executor, tmp_path: Path) -> None:
    regression(exe)
    before = persistables()
    fluid.io.save_persistables(exe, tmp_path, filename=filename)
    exe.run(fluid.default_startup_program())
    fluid.io.load_persistables(exe, tmp_path, filename=filename)
    for name, array in persistables().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    assert files_below(tmp_path) == (["all"] if filename else sorted(before))


def test_params_are_fewer_than_persistables(exe: fluid.Executor, tmp_path: Path) -> None:
    regression(exe)
    fluid.io.save_params(exe, str(tmp_path))
    names = ["fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0"]
    assert files_below(tmp_path) == names
    assert sorted(var.name for var in fluid.io.get_program_parameter(fluid.default_main_program())) == names
    fluid.io.load_params(exe, str(tmp_path))


def test_listed_variables_and_predicates(exe: fluid.Executor, tmp_path: Path) -> None:
    regression(exe)
    weight = fluid.default_main_program().global_block().var("fc_0.w_0")
    fluid.io.save_vars(exe, tmp_path / "a", vars=[weight, "fc_0.b_0", weight])
    fluid.io.save_vars(exe, tmp_path / "b", predicate=lambda var: "moment1" in var.name)
    fluid.io.save_vars(exe, tmp_path / "c", predicate=fluid.io.is_belong_to_optimizer)
    assert files_below(tmp_path / "a") == ["fc_0.b_0", "fc_0.w_0"]
    assert len(files_below(tmp_path / "b")) == 4
    assert not {"fc_0.w_0", "x", "y"} & set(files_below(tmp_path / "c"))
    before = np.array(value("fc_0.w_0"))
    exe.run(fluid.default_startup_program())
    fluid.io.load_vars(exe, tmp_path / "a", vars=[weight])
    np.testing.assert_array_equal(value("fc_0.w_0"), before)


def test_a_slash_in_a_name_makes_a_folder_but_none_outside(exe: fluid.Executor, tmp_path: Path) -> None:
    block = fluid.default_main_program().global_block()
    block.create_var("part/w", shape=[2], persistable=True)
    fluid.global_scope().set("part/w", np.ones(2, np.float32))
    fluid.io.save_vars(exe, tmp_path, vars=["part/w"])
    assert files_below(tmp_path) == ["part/w"]
    block.create_var("../w", shape=[2], persistable=True)
    fluid.global_scope().set("../w", np.ones(2, np.float32))
    with pytest.raises(ProgramError, match=r"'../w' points outside"):
        fluid.io.save_vars(exe, tmp_path, vars=["../w"])


def test_a_variable_without_a_value_cannot_be_saved(exe: fluid.Executor, tmp_path: Path) -> None:
    fluid.layers.fc(fluid.data("x", [None, 3]), 1)
    with pytest.raises(UninitializedError, match=r"'fc_0\.b_0' has no value to save; run the startup program"):
        fluid.io.save_params(exe, tmp_path)


def test_B085_truncated_parameter_file(exe: fluid.Executor, tmp_path: Path) -> None:
    regression(exe)
    fluid.io.save_persistables(exe, tmp_path)
    cut(tmp_path / "fc_0.w_0", 3)
    with pytest.raises(CorruptFileError, match=r"fc_0\.w_0.* is truncated: 48 more bytes are needed, 45 are left"):
        fluid.io.load_persistables(exe, tmp_path)


def test_B085_truncated_combined_file(exe: fluid.Executor, tmp_path: Path) -> None:
    regression(exe)
    fluid.io.save_persistables(exe, tmp_path, filename="all")
    cut(tmp_path / "all", 3)
    with pytest.raises(CorruptFileError, match=r"all \(variable 'learning_rate_0'\): .*truncated"):
        fluid.io.load_persistables(exe, tmp_path, filename="all")


def test_a_combined_file_of_other_variables_is_refused(exe: fluid.Executor, tmp_path: Path) -> None:
    regression(exe)
    fluid.io.save_vars(exe, tmp_path, vars=["fc_0.b_0", "fc_0.w_0"], filename="all")
    with pytest.raises(CorruptFileError, match="goes on after its last value"):
        fluid.io.load_vars(exe, tmp_path, vars=["fc_0.b_0"], filename="all")


def test_B086_missing_parameter_file(exe: fluid.Executor, tmp_path: Path) -> None:
    regression(exe)
    fluid.io.save_persistables(exe, tmp_path)
    (tmp_path / "fc_0.b_0").unlink()
    with pytest.raises(FileNotFoundError, match=r"variable 'fc_0\.b_0' cannot be loaded: there is no file .*fc_0\.b_0"):
        fluid.io.load_persistables(exe, tmp_path)
    with pytest.raises(MissingFileError, match="combined"):
        fluid.io.load_persistables(exe, tmp_path, filename="combined")


def test_B088_a_parameter_file_of_another_version(exe: fluid.Executor, tmp_path: Path) -> None:
    regression(exe)
    fluid.io.save_persistables(exe, tmp_path)
    path = tmp_path / "fc_0.w_0"
    path.write_bytes(b"\x5b\0\0\0" + path.read_bytes()[4:])
    with pytest.raises(CorruptFileError, match=r"fc_0\.w_0.*version 91 is not supported"):
        fluid.io.load_persistables(exe, tmp_path)


def test_values_of_another_model_are_refused(exe: fluid.Executor, tmp_path: Path) -> None:
    regression(exe)
    fluid.io.save_vars(exe, tmp_path, vars=["fc_0.w_0"])
    (tmp_path / "fc_1.w_0").write_bytes((tmp_path / "fc_0.w_0").read_bytes())
    with pytest.raises(ShapeError, match=r"holds shape \[3, 4\], but variable 'fc_1\.w_0' is \[4, 1\]"):
        fluid.io.load_vars(exe, tmp_path, vars=["fc_1.w_0"])
    fluid.default_main_program().global_block().var("fc_0.w_0").desc.dtype = "float64"
    with pytest.raises(DtypeError, match=r"holds float32, but variable 'fc_0\.w_0' is float64"):
        fluid.io.load_vars(exe, tmp_path, vars=["fc_0.w_0"])


def test_K09_long_unicode_and_spaced_paths(exe: fluid.Executor, tmp_path: Path) -> None:
    regression(exe)
    folder = tmp_path.joinpath(*["ein langer Pfad mit Ümläuten und 空格" * 3] * 10)
    assert len(str(folder)) > 1024
    fluid.io.save_persistables(exe, folder)
    fluid.io.load_persistables(exe, str(folder))
    fluid.io.save_inference_model(str(folder), ["x"], "fc_1.tmp_1", exe)
    fluid.io.load_inference_model(str(folder), exe)


def test_the_program_must_be_one(exe: fluid.Executor, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="main_program must be a Program, not str"):
        fluid.io.save_params(exe, tmp_path, "main")  # type: ignore[arg-type]


# tables


def test_B015_the_file_of_a_table_holds_the_rows_touched(exe: fluid.Executor, tmp_path: Path) -> None:
    table_model(exe)
    fluid.io.save_persistables(exe, tmp_path)
    assert (tmp_path / "emb").stat().st_size < 3 * (8 + 4 * 4) + 60
    assert {"emb", "emb_moment1_0", "emb_moment2_0"} < set(files_below(tmp_path))


@pytest.mark.parametrize("filename", [None, "all"])
def test_B115_a_table_and_its_state_come_back_row_by_row(
    filename: str | None, exe: fluid.Executor, tmp_path: Path
) -> None:
    table_model(exe)
    fluid.io.save_persistables(exe, tmp_path, filename=filename)
    saved = {name: value(name).export() for name in ("emb", "emb_moment1_0")}
    assert len(np.unique(saved["emb"].value, axis=0)) == 3
    exe.run(feed={"ids": np.array([[77], [3]])})
    fluid.io.load_persistables(exe, tmp_path, filename=filename)
    for name, rows in saved.items():
        np.testing.assert_array_equal(value(name).export().rows, rows.rows)
        np.testing.assert_array_equal(value(name).export().value, rows.value)


def test_a_restored_run_goes_on_like_the_one_that_was_saved(exe: fluid.Executor, tmp_path: Path) -> None:
    table_model(exe)
    fluid.io.save_persistables(exe, tmp_path)
    exe.run(feed={"ids": np.array([[8], [3]])})
    expected = value("emb").export()
    with fluid.scope_guard(fluid.Scope()):
        exe.run(fluid.default_startup_program())
        fluid.io.load_persistables(exe, tmp_path)
        exe.run(feed={"ids": np.array([[8], [3]])})
        actual = value("emb").export()
    np.testing.assert_array_equal(actual.rows, expected.rows)
    np.testing.assert_array_equal(actual.value, expected.value)


def test_loading_the_parameters_keeps_the_state_of_their_rows(exe: fluid.Executor, tmp_path: Path) -> None:
    table_model(exe)
    fluid.io.save_params(exe, tmp_path)
    exe.run(feed={"ids": np.array([[3], [77]])})
    state = dict(zip(*_columns("emb_moment1_0"), strict=True))
    fluid.io.load_params(exe, tmp_path)
    ids, rows = _columns("emb_moment1_0")
    assert set(ids) == set(IDS.ravel().tolist())
    assert rows == [state[id] for id in ids]


def _columns(name: str) -> tuple[list[int], list[list[float]]]:
    rows = value(name).export()
    return rows.rows.tolist(), rows.value.tolist()


def test_what_was_just_loaded_can_be_saved_again(exe: fluid.Executor, tmp_path: Path) -> None:
    table_model(exe)
    fluid.io.save_persistables(exe, tmp_path / "a")
    with fluid.scope_guard(fluid.Scope()):
        exe.run(fluid.default_startup_program())
        fluid.io.load_persistables(exe, tmp_path / "a")
        fluid.io.save_persistables(exe, tmp_path / "b")
    for name in files_below(tmp_path / "a"):
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "a" / name).read_bytes(), name


def test_K04_B118_an_empty_table_is_saved_and_loaded(exe: fluid.Executor, tmp_path: Path) -> None:
    table_model(exe)
    exe.run(fluid.default_startup_program())
    assert len(value("emb")) == 0
    fluid.io.save_persistables(exe, tmp_path)
    fluid.io.load_persistables(exe, tmp_path)
    assert len(value("emb")) == 0


def test_a_table_needs_the_startup_program_before_it_is_loaded(exe: fluid.Executor, tmp_path: Path) -> None:
    table_model(exe)
    fluid.io.save_persistables(exe, tmp_path)
    with fluid.scope_guard(fluid.Scope()), pytest.raises(UninitializedError, match="table 'emb' does not exist yet"):
        fluid.io.load_persistables(exe, tmp_path)


# inference models


def test_an_inference_model_computes_what_the_program_does(exe: fluid.Executor, tmp_path: Path) -> None:
    predict, _ = regression(exe)
    names = fluid.io.save_inference_model(str(tmp_path), ["x"], [predict], exe)
    assert names == ["save_infer_model/scale_0.tmp_0"]
    assert files_below(tmp_path) == ["__model__", "fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0"]
    feed = {"x": np.array([[1.0, -2.0, 3.0]], np.float32)}
    test_program = fluid.default_main_program().clone(for_test=True)
    expected = exe.run(test_program, {**feed, "y": np.ones((1, 1), np.float32)}, [predict])[0]
    with fluid.scope_guard(fluid.Scope()):
        program, feeds, fetches = fluid.io.load_inference_model(str(tmp_path), exe)
        assert feeds == ["x"]
        np.testing.assert_array_equal(exe.run(program, feed, fetches)[0], expected)


def test_the_form_of_a_saved_program(exe: fluid.Executor, tmp_path: Path) -> None:
    predict, loss = regression(exe)
    fluid.io.save_inference_model(str(tmp_path), ["x", "y"], [predict, loss], exe, program_only=True)
    assert files_below(tmp_path) == ["__model__"]
    program = serde.from_bytes((tmp_path / "__model__").read_bytes())
    ops = program.root.ops
    assert [(op.outputs["Out"], op.attr("col")) for op in ops[:2]] == [(["y"], 1), (["x"], 0)]
    assert [(op.inputs["X"], op.attr("col")) for op in ops[-2:]] == [
        (["save_infer_model/scale_0.tmp_0"], 0),
        (["save_infer_model/scale_1.tmp_0"], 1),
    ]
    assert [op.attr("is_test") for op in ops if op.type == "dropout"] == [True]
    assert not any("grad" in op.type or op.type == "adam" for op in ops)
    assert program.root.vars["feed"].kind is VarKind.FEED_MINIBATCH
    assert program.root.vars["fetch"].kind is VarKind.FETCH_LIST
    assert not any("@GRAD" in name or "moment" in name for name in program.root.vars)


def test_saving_leaves_the_program_alone(exe: fluid.Executor, tmp_path: Path) -> None:
    predict, _ = regression(exe)
    main = fluid.default_main_program()
    before, edits = text.show(main.desc), main.desc.edits
    for name in ("a", "b"):
        fluid.io.save_inference_model(str(tmp_path / name), ["x"], [predict], exe)
    assert (text.show(main.desc), main.desc.edits) == (before, edits)
    assert (tmp_path / "a/__model__").read_bytes() == (tmp_path / "b/__model__").read_bytes()


def test_names_of_the_files_of_a_model(exe: fluid.Executor, tmp_path: Path) -> None:
    predict, _ = regression(exe)
    fluid.io.save_inference_model(tmp_path, "x", predict, exe, model_filename="model", params_filename="params")
    assert files_below(tmp_path) == ["model", "params"]
    program, feeds, fetches = fluid.io.load_inference_model(tmp_path, exe, "model", "params")
    assert exe.run(program, {feeds[0]: np.ones((5, 3), np.float32)}, fetches)[0].shape == (5, 1)


def test_a_loaded_model_can_be_saved_again(exe: fluid.Executor, tmp_path: Path) -> None:
    predict, _ = regression(exe)
    fluid.io.save_inference_model(tmp_path / "a", ["x"], [predict], exe)
    program, feeds, fetches = fluid.io.load_inference_model(tmp_path / "a", exe)
    names = fluid.io.save_inference_model(tmp_path / "b", feeds, fetches, exe, program)
    assert names == ["save_infer_model/scale_0.tmp_1"]
    again, _, results = fluid.io.load_inference_model(tmp_path / "b", exe)
    feed = {"x": np.ones((1, 3), np.float32)}
    np.testing.assert_array_equal(exe.run(again, feed, results)[0], exe.run(program, feed, fetches)[0])


def test_a_model_to_train_on_keeps_everything(exe: fluid.Executor, tmp_path: Path) -> None:
    predict, _ = regression(exe)
    fluid.io.save_inference_model(tmp_path, ["x"], [predict], exe, export_for_deployment=False)
    program = serde.from_bytes((tmp_path / "__model__.main_program").read_bytes())
    original = fluid.default_main_program().desc
    assert program.root.ops == [fluid_form.complete(op) for op in original.root.ops]
    assert "fc_0.w_0_moment1_0" in files_below(tmp_path)


def test_data_that_is_not_fed_is_named(exe: fluid.Executor, tmp_path: Path) -> None:
    _, loss = regression(exe)
    with pytest.raises(ProgramError, match=r"need\(s\) the data variables y, which are not among the fed ones \(x\)"):
        fluid.io.save_inference_model(tmp_path, ["x"], [loss], exe)
    with pytest.raises(ProgramError, match="the program has no variable 'z'"):
        fluid.io.save_inference_model(tmp_path, ["z"], [loss], exe)


def test_only_the_sub_blocks_that_are_run_are_saved(exe: fluid.Executor, tmp_path: Path) -> None:
    predict, _ = regression(exe)
    desc = fluid.default_main_program().desc
    desc.blocks += text.parse("block 0\nblock 1\nvar x: [2]\nrelu(X=[x]) -> (Out=[x])").blocks[1:]
    fluid.io.save_inference_model(tmp_path, ["x"], [predict], exe)
    assert len(serde.from_bytes((tmp_path / "__model__").read_bytes()).blocks) == 1


def test_a_model_with_a_branch(exe: fluid.Executor, tmp_path: Path) -> None:
    x = fluid.data("x", [1])
    chosen = fluid.layers.cond(x > 0.0, lambda: x * 2.0, lambda: x - 1.0)
    fluid.io.save_inference_model(tmp_path, ["x"], [chosen], exe)
    program, _, fetches = fluid.io.load_inference_model(tmp_path, exe)
    for value_, expected in ((3.0, 6.0), (-3.0, -4.0)):
        assert exe.run(program, {"x": np.array([value_], np.float32)}, fetches)[0].tolist() == [expected]


def test_a_model_with_a_table_reads_zeros_for_unknown_ids(exe: fluid.Executor, tmp_path: Path) -> None:
    rows = table_model(exe)
    fluid.io.save_inference_model(tmp_path, ["ids"], [rows], exe)
    trained = value("emb").lookup(IDS, read_only=True)
    assert (tmp_path / "emb").stat().st_size < 200
    with fluid.scope_guard(fluid.Scope()):
        program, _, fetches = fluid.io.load_inference_model(tmp_path, exe)
        table = value("emb")
        assert isinstance(table, SparseTable)
        np.testing.assert_array_equal(exe.run(program, {"ids": IDS}, fetches)[0], trained)
        unknown = exe.run(program, {"ids": np.array([[12345]])}, fetches)[0]
        np.testing.assert_array_equal(unknown, np.zeros((1, 4), np.float32))
        assert len(table) == 3


def test_a_model_may_be_loaded_beside_the_training_that_made_it(exe: fluid.Executor, tmp_path: Path) -> None:
    rows = table_model(exe)
    fluid.io.save_inference_model(tmp_path, ["ids"], [rows], exe)
    program, _, fetches = fluid.io.load_inference_model(tmp_path, exe)
    exe.run(program, {"ids": np.array([[12345]])}, fetches)
    assert len(value("emb")) == 3
    exe.run(feed={"ids": IDS})


def test_a_model_in_memory(exe: fluid.Executor, tmp_path: Path) -> None:
    predict, _ = regression(exe)
    fluid.io.save_inference_model(tmp_path, ["x"], [predict], exe, model_filename="m", params_filename="p")
    feed = {"x": np.ones((2, 3), np.float32)}
    program, _, fetches = fluid.io.load_inference_model(tmp_path, exe, "m", "p")
    expected = exe.run(program, feed, fetches)[0]
    model, params = ((tmp_path / name).read_bytes() for name in "mp")
    with fluid.scope_guard(fluid.Scope()):
        program, feeds, fetches = fluid.io.load_inference_model(None, exe, model, params)
        assert feeds == ["x"]
        np.testing.assert_array_equal(exe.run(program, feed, fetches)[0], expected)
        with pytest.raises(CorruptFileError, match=r"the parameters in memory \(variable 'fc_1\.w_0'\): .* truncated"):
            fluid.io.load_inference_model(None, exe, model, params[:-1])
        with pytest.raises(CorruptFileError, match="the model in memory is not a program"):
            fluid.io.load_inference_model(None, exe, model[:-1], params)


def test_a_model_whose_file_names_hold_folders(exe: fluid.Executor, tmp_path: Path) -> None:
    """As in Fluid, only their last part counts."""
    predict, _ = regression(exe)
    fluid.io.save_inference_model(tmp_path, ["x"], [predict], exe, None, "a/m", "/b/p")
    assert files_below(tmp_path) == ["m", "p"]
    fluid.io.load_inference_model(tmp_path, exe, "a/m", "/b/p")


def test_every_attribute_of_a_saved_model_is_written_out(exe: fluid.Executor, tmp_path: Path) -> None:
    predict, _ = regression(exe)
    fluid.io.save_inference_model(tmp_path, ["x"], [predict], exe, program_only=True)
    program = serde.from_bytes((tmp_path / "__model__").read_bytes())
    attrs = {op.type: op.attrs for op in program.root.ops}
    assert attrs["mul"]["x_num_col_dims"].value == attrs["mul"]["y_num_col_dims"].value == 1
    assert attrs["scale"]["bias"].value == 0.0
    assert attrs["dropout"]["dropout_implementation"].value == "downgrade_in_infer"


@pytest.mark.parametrize("folder", ["mlp_separate", "ctr_lod"])
def test_golden_models_have_the_form_that_fluid_gives_them(folder: str, exe: fluid.Executor, tmp_path: Path) -> None:
    """Ops, arguments and attributes; call stacks aside, and in which order Fluid's hash tables have them."""
    golden_program = serde.from_bytes(golden("files", folder, "__model__").read_bytes())
    build_golden_model(folder, exe, tmp_path)
    ours = serde.from_bytes((tmp_path / "__model__").read_bytes())
    assert ours.version == golden_program.version
    assert ours.unknown == golden_program.unknown
    assert ours.root.vars == golden_program.root.vars
    for op, expected in zip(ours.root.ops, golden_program.root.ops, strict=True):
        assert (op.type, filled(op.inputs), filled(op.outputs)) == (
            expected.type,
            filled(expected.inputs),
            filled(expected.outputs),
        )
        common = op.attrs.keys() & expected.attrs.keys()
        assert {name: op.attrs[name] for name in common} == {name: expected.attrs[name] for name in common}


def filled(arguments: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: names for name, names in arguments.items() if names}


def build_golden_model(folder: str, exe: fluid.Executor, to: Path) -> None:
    """The programs of the golden inference models, saved with their parameters."""
    described = golden_json("files", folder, "io.json")
    if folder == "mlp_separate":
        x = fluid.data("x", [None, 4])
        feeds, targets = ["x"], [fluid.layers.fc(fluid.layers.fc(x, 5, act="relu"), 3, act="softmax")]
    else:
        ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
        dense = fluid.data("dense", [None, 2])
        rows = fluid.layers.embedding(ids, [12, 4], padding_idx=0, param_attr="table")
        pooled = [fluid.layers.sequence_pool(rows, how) for how in ("sum", "max")]
        both = fluid.layers.concat([*pooled, dense], axis=1)
        feeds, targets = ["ids", "dense"], [fluid.layers.sigmoid(fluid.layers.fc(both, 1)), both]
    for name, tensor in described["params"].items():
        fluid.global_scope().set(name, golden_array(tensor))
    fluid.io.save_inference_model(to, feeds, targets, exe)
    for name in described["params"]:
        assert (to / name).read_bytes() == golden("files", folder, name).read_bytes(), name


def test_feed_and_fetch_ops_are_added_by_hand(exe: fluid.Executor) -> None:
    x, y = fluid.data("x", [None, 3]), fluid.data("y", [None, 3])
    total = fluid.layers.elementwise_add(x, y)
    main = fluid.default_main_program()
    fluid.io.prepend_feed_ops(main, ["x", "y"])
    fluid.io.append_fetch_ops(main, [total.name], fetch_holder_name="got")
    ops = main.desc.root.ops
    assert [(op.type, op.attr("col")) for op in ops if op.type != "elementwise_add"] == [
        ("feed", 1),
        ("feed", 0),
        ("fetch", 0),
    ]
    assert ops[0].outputs["Out"] == ["y"]
    assert ops[-1].outputs["Out"] == ["got"]
    assert main.desc.root.vars["got"].kind is VarKind.FETCH_LIST
    before = len(ops)
    fluid.io.prepend_feed_ops(main, [])
    assert len(main.desc.root.ops) == before
    with pytest.raises(ProgramError, match="cannot feed 'z': the program has no such variable"):
        fluid.io.prepend_feed_ops(main, ["z"])
    with pytest.raises(ProgramError, match="cannot fetch 'z'"):
        fluid.io.append_fetch_ops(main, ["z"])


def test_the_inference_part_of_a_program(exe: fluid.Executor) -> None:
    predict, _ = regression(exe)
    program = fluid.io.get_inference_program([predict])
    assert not any("grad" in op.type or op.type in {"adam", "square", "mean"} for op in program.global_block().ops)
    assert not program.global_block().has_var("y")
    assert exe.run(program, {"x": np.ones((2, 3), np.float32)}, [predict])[0].shape == (2, 1)
    with pytest.raises(ProgramError, match="no inference program: the program has no variable 'none'"):
        fluid.io.get_inference_program("none")


def test_the_value_of_a_parameter(exe: fluid.Executor) -> None:
    regression(exe)
    block = fluid.default_main_program().global_block()
    weight = fluid.io.get_parameter_value(block.var("fc_0.w_0"), exe)
    np.testing.assert_array_equal(weight, value("fc_0.w_0"))
    weight[:] = 9
    assert not np.array_equal(value("fc_0.w_0"), weight)
    assert fluid.io.get_parameter_value_by_name("fc_1.b_0", exe).shape == (1,)
    for call in (
        lambda: fluid.io.get_parameter_value(block.var("x"), exe),
        lambda: fluid.io.get_parameter_value_by_name("x", exe),
    ):
        with pytest.raises(ProgramError, match="'x' is no parameter"):
            call()
    with fluid.scope_guard(fluid.Scope()), pytest.raises(UninitializedError, match=r"'fc_1\.b_0' has no value"):
        fluid.io.get_parameter_value_by_name("fc_1.b_0", exe)


def test_a_missing_or_broken_model_is_named(exe: fluid.Executor, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"the inference model cannot be loaded: there is no file .*__model__"):
        fluid.io.load_inference_model(tmp_path, exe)
    (tmp_path / "__model__").write_bytes(b"\x0a\x05no")
    with pytest.raises(CorruptFileError, match="__model__ is not a program"):
        fluid.io.load_inference_model(tmp_path, exe)
    program = text.parse("var x data\nvar y\nconv9d(X=[x]) -> (Out=[y])")
    (tmp_path / "__model__").write_bytes(serde.to_bytes(program))
    with pytest.raises(ProgramError, match=r"(?s)__model__: .*'conv9d': unknown op"):
        fluid.io.load_inference_model(tmp_path, exe)


# the ops


def test_save_and_load_ops(exe: fluid.Executor, tmp_path: Path) -> None:
    run_text(
        exe,
        f'save(X=[w]) {{file_path="{tmp_path}/w"}}\nload() -> (Out=[v]) {{file_path="{tmp_path}/w"}}\n'
        f'load() -> (Out=[part]) {{file_path="{tmp_path}/w", seek=2L, shape=longs(1, 2)}}\n'
        f'save_combine(X=[w v]) {{file_path="{tmp_path}/all", overwrite=true}}\n'
        f'load_combine() -> (Out=[a b]) {{file_path="{tmp_path}/all"}}',
    )
    for name in "vab":
        np.testing.assert_array_equal(value(name), value("w"))
    np.testing.assert_array_equal(value("part"), value("w")[1:])


def test_half_precision(exe: fluid.Executor, tmp_path: Path) -> None:
    run_text(
        exe,
        f'save(X=[w]) {{file_path="{tmp_path}/h", save_as_fp16=true}}\nload() -> (Out=[a]) {{file_path="{tmp_path}/h"}}\n'
        f'save(X=[w]) {{file_path="{tmp_path}/w"}}\nload() -> (Out=[b]) {{file_path="{tmp_path}/w", load_as_fp16=true}}',
    )
    assert value("a").dtype == value("b").dtype == np.float16


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ('save(X=[w]) {file_path="TMP/w", overwrite=false}', "exists and must not be overwritten"),
        ('save_combine(X=[w]) {file_path="TMP/c", save_to_memory=true}', "save_to_memory is not supported"),
        ('save_combine(X=[a]) {file_path="TMP/c"}', "'a' of op 'save_combine' was never written"),
        ('load_combine() -> (Out=[a]) {file_path="TMP/w", model_from_memory=true}', "model_from_memory"),
        ('load() -> (Out=[a]) {file_path="TMP/none"}', "there is no file"),
        ('load() -> (Out=[a]) {file_path="TMP/w", seek=3L, shape=longs(2)}', "elements 3 to 5 are asked"),
    ],
)
def test_what_the_ops_refuse(op: str, message: str, exe: fluid.Executor, tmp_path: Path) -> None:
    run_text(exe, f'save(X=[w]) {{file_path="{tmp_path}/w"}}')
    with pytest.raises((ProgramError, MissingFileError, CorruptFileError, UninitializedError), match=message):
        run_text(exe, op.replace("TMP", str(tmp_path)))


def test_feed_and_fetch_ops_read_and_write_lists(exe: fluid.Executor) -> None:
    fluid.global_scope().set("feed", [np.ones(2, np.float32), np.zeros(2, np.float32)])
    run_text(
        exe,
        "var feed: feed_minibatch persistable\nvar fetch: fetch_list persistable\nvar x: [2]\n"
        "feed(X=[feed]) -> (Out=[x]) {col=1}\nfetch(X=[x]) -> (Out=[fetch]) {col=2}",
    )
    fetched = value("fetch")
    assert fetched[:2] == [None, None]
    np.testing.assert_array_equal(fetched[2], np.zeros(2))


def test_a_program_with_feed_ops_is_fed_by_name(exe: fluid.Executor, tmp_path: Path) -> None:
    predict, _ = regression(exe)
    fluid.io.save_inference_model(tmp_path, ["x"], [predict], exe)
    program = fluid.Program.parse_from_string((tmp_path / "__model__").read_bytes())
    result = exe.run(program, {"x": np.ones((2, 3), np.float32)}, ["save_infer_model/scale_0.tmp_0"])[0]
    assert result.shape == (2, 1)


def run_text(exe: fluid.Executor, ops: str) -> None:
    """Run ops over persistable variables w (2, 2), v, a, b, part."""
    declared = "".join(f"var {name} persistable\n" for name in ("w", "v", "a", "b", "part"))
    fluid.global_scope().set("w", np.arange(4, dtype=np.float32).reshape(2, 2))
    exe.run(fluid.Program(text.parse(declared + ops)))


def test_values_are_saved_to_memory_and_loaded_from_there(exe: fluid.Executor, tmp_path: Path) -> None:
    regression(exe)
    content = fluid.io.save_persistables(exe, None)
    fluid.io.save_persistables(exe, tmp_path, filename="all")
    assert content == (tmp_path / "all").read_bytes()
    before = fluid.global_scope().get("fc_0.w_0").copy()
    fluid.global_scope().set("fc_0.w_0", np.zeros_like(before))
    fluid.io.load_persistables(exe, None, filename=content)
    assert np.array_equal(fluid.global_scope().get("fc_0.w_0"), before)
    for wrong in (lambda: fluid.io.load_params(exe, None), lambda: fluid.io.save_params(exe, None, filename="all")):
        with pytest.raises(ProgramError, match="dirname"):
            wrong()
    with pytest.raises(ProgramError, match="a file in memory goes with dirname None"):
        fluid.io.load_params(exe, tmp_path, filename=content)


def test_a_pipe_is_written_to_and_not_replaced(exe: fluid.Executor, tmp_path: Path) -> None:
    regression(exe)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        content = pool.submit(pipe.read_bytes)
        fluid.io.save_persistables(exe, tmp_path, filename="pipe")
        assert content.result(30) == fluid.io.save_persistables(exe, None)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("way", ["files", "state"])
def test_a_number_without_axes_is_one_of_shape_1(way: str, exe: fluid.Executor, tmp_path: Path) -> None:
    fluid.layers.create_parameter([1], "float32", name="w")
    fluid.global_scope().set("w", np.array(1.5, np.float32))
    main = fluid.default_main_program()
    if way == "files":
        fluid.io.save_params(exe, tmp_path)
        fluid.io.load_params(exe, tmp_path)
    else:
        fluid.save(main, tmp_path / "m")
        fluid.load(main, tmp_path / "m", exe)
    assert fluid.global_scope().get("w").tolist() == [1.5]
