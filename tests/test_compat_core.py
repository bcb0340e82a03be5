"""What scripts find in `fluid` and `fluid.core`: places, dtypes, tensors, executors of programs for many devices."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.compat import (
    compiler,
    core,
    events,
    fetched,
    install_check,
    legacy,
    log_helper,
    places,
    plot,
    python2,
    version,
)
from fluidlite.compat.average import WeightedAverage
from fluidlite.compat.inference import AnalysisConfig, PaddleBuf, PaddleDType, PaddleTensor, create_paddle_predictor
from fluidlite.compat.tensors import LoDTensorArray
from fluidlite.compat.trainer import CheckpointConfig, Inferencer, Trainer
from fluidlite.dtypes import VarKind
from fluidlite.errors import DataError, FeedError, FluidliteError, ProgramError, SettingError, UninitializedError
from tests.frontend import fresh_programs

ONES = np.ones([4, 2], np.float32)


@pytest.fixture(autouse=True)
def _own_programs() -> Iterator[None]:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


@pytest.fixture
def model() -> tuple[Any, Any, Any]:
    """(input, prediction, loss) of a trained net whose weights are 0.5, initialised in the global scope."""
    x = fluid.data("x", [None, 2])
    predicted = fluid.layers.fc(x, 1, param_attr=fluid.ParamAttr("w", fluid.initializer.Constant(0.5)), bias_attr=False)
    loss = fluid.layers.mean(predicted)
    return x, predicted, loss


def trained(loss: Any) -> fetched.Executor:
    fluid.optimizer.SGD(0.1).minimize(loss)
    executor = fetched.Executor(core.CPUPlace())
    executor.run(fluid.default_startup_program())
    return executor


# ---- places


def test_gpu_places_are_the_cpu_and_say_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_told", [])
    with pytest.warns(UserWarning, match=r"CUDAPlace\(3\): fluidlite has no GPU"):
        place = places.CUDAPlace(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        places.CUDAPinnedPlace()
        assert len(places.cuda_places([0, 1])) == 2
    assert isinstance(place, fluid.CPUPlace)
    assert (places.is_compiled_with_cuda(), places.get_cuda_device_count()) == (False, 0)


def test_numbers_of_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_told", ["told"])
    monkeypatch.delenv("CPU_NUM", raising=False)
    assert (len(fluid.cpu_places()), len(fluid.cpu_places(3))) == (1, 3)
    monkeypatch.setenv("CPU_NUM", "2")
    assert (len(fluid.cpu_places()), len(places.cuda_pinned_places())) == (2, 2)
    monkeypatch.setenv("FLAGS_selected_gpus", "0,2,5")
    assert len(places.cuda_places()) == 3
    monkeypatch.setenv("CPU_NUM", "many")
    with pytest.raises(ProgramError, match="CPU_NUM must be a positive number, not 'many'"):
        fluid.cpu_places()


def test_versions() -> None:
    assert (version.full_version, version.major, version.minor, version.patch) == ("1.8.5", "1", "8", "5")
    for wanted in (("1.6.0",), ("1.8.5.0", "1.8.5"), ("0", "2")):
        fluid.require_version(*wanted)
    for refused in (("1.8.6",), ("2",), ("1.0", "1.8.4")):
        with pytest.raises(FluidliteError, match=r"is required; this is 1\.8\.5"):
            fluid.require_version(*refused)
    for wrong in ("one", "1.2.3.4.5", "", 1.8):
        with pytest.raises(ProgramError, match="is no version"):
            fluid.require_version(wrong)  # type: ignore[arg-type]


def test_device_guard_marks_ops() -> None:
    x = fluid.data("x", [None, 2])
    with fluid.device_guard("gpu"):
        inner = fluid.layers.relu(x)
    outer = fluid.layers.relu(x)
    assert inner.op.attr("op_device") == "gpu"
    assert not outer.op.has_attr("op_device") or outer.op.attr("op_device") == ""
    with pytest.raises(ProgramError, match="device must be"), fluid.device_guard("tpu"):
        pass


# ---- core


def test_var_types_are_those_of_variables() -> None:
    x = fluid.data("x", [None, 2], core.VarDesc.VarType.INT64)
    assert x.dtype == core.VarDesc.VarType.INT64 != core.VarDesc.VarType.INT32
    assert x.type == core.VarDesc.VarType.LOD_TENSOR == VarKind.LOD_TENSOR
    numbers = [int(kind) for kind in (core.VarType.BOOL, core.VarType.FP32, core.VarType.INT8, core.VarType.READER)]
    assert numbers == [0, 5, 21, 15]
    assert np.zeros(1, core.VarType.FP64).dtype == np.float64
    assert fluid.layers.cast(x, core.VarType.FP32).dtype == "float32"


def test_roles_and_names_of_attributes() -> None:
    maker = core.op_proto_and_checker_maker
    assert [int(role) for role in (maker.OpRole.Forward, maker.OpRole.Backward, maker.OpRole.Optimize)] == [0, 1, 2]
    assert [int(role) for role in (maker.OpRole.RPC, maker.OpRole.Dist, maker.OpRole.LRSched, maker.OpRole.Loss)] == [
        *(4, 8, 16),
        256,
    ]
    names = [maker.kOpRoleAttrName(), maker.kOpRoleVarAttrName(), maker.kOpNameScopeAttrName()]
    assert [*names, maker.kOpCreationCallstackAttrName(), maker.kOpDeviceAttrName()] == [
        *("op_role", "op_role_var", "op_namescope"),
        *("op_callstack", "op_device"),
    ]
    assert (core.empty_var_name(), core.grad_var_suffix()) == ("@EMPTY@", "@GRAD")
    assert (core.is_compiled_with_mkldnn(), core.is_compiled_with_brpc(), core.is_compiled_with_dist()) == (
        *(False, False),
        True,
    )
    assert issubclass(core.EnforceNotMet, Exception)


def test_tensors() -> None:
    tensor = core.LoDTensor()
    assert (tensor._is_initialized(), tensor.lod()) == (False, [])
    tensor.set(np.arange(6.0).reshape(3, 2), core.CPUPlace())
    tensor.set_lod([[0, 1, 3]])
    assert (tensor.lod(), tensor.recursive_sequence_lengths()) == ([[0, 1, 3]], [[1, 2]])
    tensor.set_recursive_sequence_lengths([[2, 1]])
    assert (tensor.lod(), tensor.lod) == ([[0, 2, 3]], ((0, 2, 3),))
    assert (tensor.shape(), tensor._dtype(), np.array(tensor).sum()) == ([3, 2], "float64", 15.0)
    assert copy.deepcopy(tensor).lod() == [[0, 2, 3]]
    assert str(tensor) == "\tlod: {{0, 2, 3}}\n\tdim: 3, 2\n\tlayout: NCHW\n\tdtype: double\n\tdata: [0 1 2 3 4 5]\n"
    for item, part in ((1, [[2.0, 3.0]]), ((-1, 0), [[4.0]]), (slice(1, None), [[2, 3], [4, 5]]), ((0, ...), [[0, 1]])):
        assert np.array(tensor[item]).tolist() == part
    with pytest.raises(IndexError):
        _ = tensor[3]
    flags = core.LoDTensor(np.array([True, False]))
    flags.set_lod([[0, 1, 2], [0, 1, 2]])
    assert str(flags).splitlines()[::4] == ["\tlod: {{0, 1, 2}{0, 1, 2}}", "\tdata: [1 0]"]
    array = LoDTensorArray()
    array.append(tensor)
    assert (len(array), array._move_to_list(), array) == (1, [tensor], [])


def test_scopes() -> None:
    scope = fluid.Scope()
    scope.var("x").get_tensor().set(ONES, core.CPUPlace())
    child = scope.new_scope()
    found = child.find_var("x")
    assert found is not None
    np.testing.assert_array_equal(np.array(found.get_tensor()), ONES)
    found.get_tensor().set(2 * ONES, core.CPUPlace())
    np.testing.assert_array_equal(scope.get("x"), 2 * ONES)
    assert scope.find_var("y") is None


# ---- executors


def test_one_element_is_a_number(model: tuple[Any, Any, Any]) -> None:
    _, predicted, loss = model
    executor = trained(loss)
    value, rows = executor.run(feed={"x": ONES}, fetch_list=[loss, predicted])
    assert (float(value), int(value), f"{float(value):.1f}") == (1.0, 1, "1.0")
    assert rows.shape == (4, 1)


def test_what_a_program_does_not_have_is_not_fed(model: tuple[Any, Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched, "_told", set())
    executor = trained(model[2])
    feed = {"x": ONES, "other": ONES}
    with pytest.warns(UserWarning, match="what is fed for other is left out"):
        executor.run(feed=feed, fetch_list=[model[2]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        executor.run(feed=[feed], fetch_list=[model[2]])


def test_layers_data_takes_any_number_of_rows() -> None:
    x = fluid.layers.data("x", [4, 2], append_batch_size=False)
    fixed = fluid.data("fixed", [4, 2])
    total = fluid.layers.reduce_sum(x)
    feeder = fluid.DataFeeder([x])
    loader = fluid.io.DataLoader.from_generator([x], 2).set_batch_generator(lambda: iter([[ONES[:3]]]))
    for feed in ({"x": ONES[:1]}, feeder.feed([(ONES[0],), (ONES[1],)]), next(iter(loader))):
        fluid.Executor().run(feed=feed, fetch_list=[total])
    for feed, name in (({"fixed": ONES[:1]}, "fixed"), ({"x": np.ones([4, 3], np.float32)}, "x")):
        with pytest.raises(FeedError, match=f"the shape of fed '{name}' must be"):
            fluid.Executor().run(feed=feed, fetch_list=[total])
    assert fixed.shape == (4, 2)


def test_feeds_of_several_devices_are_joined() -> None:
    ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
    x = fluid.data("x", [None, 2])
    out = fluid.layers.sequence_pool(fluid.layers.cast(ids, "float32"), "sum")
    total = fluid.layers.reduce_sum(x)
    feeds = [
        {"ids": fluid.create_lod_tensor([[1, 2], [3]], [[2, 1]]), "x": ONES},
        {"ids": fluid.create_lod_tensor([[4]], [[1]]), "x": ONES[:1]},
    ]
    sums, whole = fluid.Executor().run(feed=feeds, fetch_list=[out, total])
    assert (sums.ravel().tolist(), whole.tolist()) == ([3.0, 3.0, 4.0], [10.0])
    with pytest.raises(FeedError, match="differ in what they feed"):
        fluid.Executor().run(feed=[feeds[0], {"x": ONES}], fetch_list=[out])
    with pytest.raises(FeedError, match="feeds of 'x' cannot be joined"):
        fluid.Executor().run(feed=[{"x": ONES}, {"x": np.ones([1, 3], np.float32)}], fetch_list=[total])
    with pytest.raises(FeedError, match="differ in levels of LoD"):
        fluid.Executor().run(feed=[{"ids": feeds[0]["ids"]}, {"ids": np.ones([1, 1], np.int64)}], fetch_list=[out])


def test_pruned_runs_train_nothing(model: tuple[Any, Any, Any]) -> None:
    _, predicted, loss = model
    done = fluid.optimizer.SGD(0.1).minimize(loss)
    executor = fluid.Executor()
    executor.run(fluid.default_startup_program())

    def weight() -> float:
        found: float = fluid.global_scope().get("w")[0, 0]
        return found

    for _ in range(2):
        assert executor.run(feed={"x": ONES}, fetch_list=[predicted], use_prune=True)[0].sum() == 4.0
        assert weight() == 0.5
    assert executor.run(feed={"x": ONES}, fetch_list=[loss, done])[0].tolist() == [1.0]
    assert weight() == np.float32(0.4)
    executor.run(feed={"x": ONES}, fetch_list=[done[0][0]])
    assert weight() < 0.4
    executor.run(feed={"x": ONES}, fetch_list=[loss])
    assert weight() == pytest.approx(0.2)


def test_compiled_programs(model: tuple[Any, Any, Any], tmp_path: Path) -> None:
    loss = model[2]
    executor = trained(loss)
    strategy = compiler.BuildStrategy()
    assert strategy.reduce_strategy == compiler.BuildStrategy.ReduceStrategy.AllReduce
    strategy.gradient_scale_strategy = compiler.BuildStrategy.GradientScaleStrategy.Customized
    compiled = compiler.CompiledProgram(fluid.default_main_program(), strategy)
    with pytest.raises(ProgramError, match="call its with_data_parallel first"):
        compiler.CompiledProgram(fluid.default_main_program()).with_data_parallel(share_vars_from=compiled)
    assert compiled.with_data_parallel(loss.name, exec_strategy=compiler.ExecutionStrategy()) is compiled
    with pytest.raises(ProgramError, match="called already"):
        compiled.with_data_parallel()
    assert executor.run(compiled, {"x": ONES}, [loss])[0].tolist() == [1.0]  # type: ignore[arg-type]
    assert executor.run(compiled, {"x": ONES}, [loss])[0].tolist() < [1.0]  # type: ignore[arg-type]
    assert compiled.global_block() is fluid.default_main_program().global_block()
    assert copy.copy(compiled).compiled_from is compiled.compiled_from
    fluid.io.save_persistables(executor, str(tmp_path), compiled)  # type: ignore[arg-type]
    assert (tmp_path / "w").exists()
    with pytest.raises(ProgramError, match="needs a Program, not str"):
        compiler.CompiledProgram("program")  # type: ignore[arg-type]


def test_parallel_executor(model: tuple[Any, Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_told", [])
    loss = model[2]
    trained(loss)
    with pytest.warns(UserWarning, match="no GPU"):
        parallel = compiler.ParallelExecutor(use_cuda=True, loss_name=loss.name)
    test = compiler.ParallelExecutor(False, share_vars_from=parallel, scope=fluid.global_scope())
    assert parallel.device_count == 1
    assert parallel.run([loss.name], feed=[{"x": ONES[:3]}, {"x": ONES[:1]}])[0].tolist() == [1.0]
    assert isinstance(test.run(loss, feed_dict={"x": ONES}, return_numpy=False)[0], core.LoDTensor)
    parallel.drop_local_exe_scopes()
    with pytest.raises(ProgramError, match="num_trainers=2"):
        compiler.ParallelExecutor(False, num_trainers=2)
    with pytest.raises(ProgramError, match="ParallelExecutor needs a Program, not int"):
        compiler.ParallelExecutor(False, main_program=3)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="must be a ParallelExecutor"):
        compiler.ParallelExecutor(False, share_vars_from=fluid.Executor())  # type: ignore[arg-type]


# ---- predictors: tests/compat_scripts/predictor.py runs them


def test_predictors_refuse(tmp_path: Path) -> None:
    x = fluid.data("x", [None, 2])
    fluid.io.save_inference_model(str(tmp_path), ["x"], [fluid.layers.scale(x, 2.0)], fluid.Executor())
    predictor = create_paddle_predictor(AnalysisConfig(str(tmp_path)))
    with pytest.raises(FeedError, match=r"takes 1 inputs \(x\), not 2"):
        predictor.run([PaddleTensor(ONES), PaddleTensor(ONES)])
    with pytest.raises(FeedError, match="float32, int64 and int32, not"):
        PaddleTensor(np.array(["text"]))
    with pytest.raises(ProgramError, match="needs model_dir, or prog_file and params_file"):
        create_paddle_predictor(core.NativeConfig())
    (result,) = predictor.clone().run([PaddleTensor(ONES)])
    np.testing.assert_array_equal(result.as_ndarray(), 2 * ONES)
    buffer = PaddleBuf(8)
    assert (buffer.length(), buffer.empty(), PaddleBuf().empty()) == (8, False, True)
    buffer.reset([1, 2, 3])
    buffer.resize(16)
    assert (buffer.int64_data(), buffer.int32_data(), buffer.float_data()) == ([1, 2], [1, 2], [1.0, 2.0])
    assert PaddleTensor(np.ones(1, np.int32)).dtype == PaddleDType.INT32


# ---- small things


def test_legacy_functions(model: tuple[Any, Any, Any]) -> None:
    x, predicted, loss = model
    fluid.layers.dropout(predicted, 0.5)
    with pytest.warns(UserWarning, match="memory_optimize has no effect"):
        legacy.memory_optimize(fluid.default_main_program(), skip_grads=True)
    with pytest.warns(UserWarning, match="release_memory has no effect"):
        legacy.release_memory(fluid.default_main_program())
    legacy.InferenceTranspiler().transpile(fluid.default_main_program(), core.CPUPlace())
    assert fluid.default_main_program().global_block().ops[-1].attr("is_test") is True
    with pytest.raises(ProgramError, match="needs a Program"):
        legacy.InferenceTranspiler().transpile("program", None)  # type: ignore[arg-type]
    pruned = legacy.get_inference_program([predicted])
    assert [op.type for op in pruned.global_block().ops] == ["feed", "mul", "scale", "fetch"]
    fluid.Executor().run(fluid.default_startup_program())
    assert (legacy.fetch_var("w").tolist(), legacy.fetch_var("w", return_numpy=False).shape()) == (
        [[0.5], [0.5]],
        [2, 1],
    )
    with pytest.raises(UninitializedError, match="nothing wrote 'w' in this scope"):
        legacy.fetch_var("w", fluid.Scope())
    assert legacy.get_var("w").name == "w"
    assert legacy.get_var("x", fluid.default_main_program()) is x
    with pytest.raises(ValueError, match="no variable 'nothing'"):
        legacy.get_var("nothing")
    assert not legacy.in_dygraph_mode()
    communicator = legacy.Communicator(fluid.default_main_program())
    communicator.start()
    assert communicator.is_running()
    communicator.stop()
    assert not communicator.is_running()
    with pytest.raises(ProgramError, match="Communicator needs a Program, not str"):
        legacy.Communicator("program")  # type: ignore[arg-type]
    shown = io.StringIO()
    legacy.program_to_code(fluid.default_main_program(), fout=shown)
    assert "mul(X=[x], Y=[w])" in shown.getvalue()
    assert loss.grad_name == "mean_0.tmp_0@GRAD"


def test_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy, "_flags", {})
    monkeypatch.setenv("FLAGS_from_environment", "1")
    legacy.set_flags({"FLAGS_set": 2})
    assert legacy.get_flags(["FLAGS_set", "FLAGS_from_environment"]) == {"FLAGS_set": 2, "FLAGS_from_environment": "1"}
    for wrong, message in (({"set": 1}, "begin with FLAGS_"), ([1], "takes a dict")):
        with pytest.raises(DataError, match=message):
            legacy.set_flags(wrong)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="'FLAGS_other' is not set"):
        legacy.get_flags("FLAGS_other")


def test_weighted_average() -> None:
    average = WeightedAverage()
    with pytest.raises(DataError, match="nothing was added"):
        average.eval()
    average.add(2.0, 1)
    average.add(np.array([5.0]), 3)
    assert average.eval() == pytest.approx(4.25)
    average.reset()
    average.add(1, 1)
    assert average.eval() == 1
    for value, weight, message in (
        ("a", 1, "value must be"),
        (1, "a", "weight must be"),
        (1, np.ones(2), "weight must be"),
    ):
        with pytest.raises(DataError, match=message):
            average.add(value, weight)


def test_python_2_and_3() -> None:
    assert python2.to_text([b"a", "b", 1]) == ["a", "b", 1]
    assert python2.to_text({b"a": b"b"}) == {"a": "b"}
    assert python2.to_bytes({"a"}) == {b"a"}
    for given, change, expected in (
        ([b"a"], python2.to_text, ["a"]),
        ({"a"}, python2.to_bytes, {b"a"}),
        ({b"k": b"v"}, python2.to_text, {"k": "v"}),
    ):
        assert change(given, inplace=True) is given
        assert given == expected
    assert (python2.to_text(b"x"), python2.to_text(None), python2.to_bytes("x")) == ("x", None, b"x")
    # as Fluid 1.8.5 rounds
    rounded = [
        (0.5, 0, 1.0),
        (-0.5, 0, -1.0),
        (2.5, 0, 3.0),
        (-2.5, 0, -3.0),
        (1.25, 1, 1.3),
        (0.0, 0, 0.0),
        (2.675, 2, 2.68),
    ]
    assert [python2.round(x, d) for x, d, _ in rounded] == [expected for _, _, expected in rounded]
    assert (python2.floor_division(7, 2), python2.get_exception_message(ValueError("x"))) == (3, "x")
    assert python2.long_type is python2.int_type is int


def test_ploter_needs_no_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISABLE_PLOT", "True")
    ploter = plot.Ploter("train", "test")
    ploter.append("train", 1, 0.5)
    ploter.plot(str(tmp_path / "curve.png"))
    assert ploter.__plot_data__["train"].value == [0.5]
    ploter.reset()
    assert ploter.__plot_data__["train"].step == []
    with pytest.raises(DataError, match="no curve 'other', but train, test"):
        ploter.append("other", 1, 1)


class _Pyplot:
    """Records what is drawn."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., _Pyplot]:
        def call(*arguments: object, **keywords: object) -> _Pyplot:
            self.calls.append(name)
            return self

        return call


def test_ploter_draws_what_has_points(monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = _Pyplot()
    monkeypatch.setattr(plot.Ploter, "_imported", staticmethod(lambda: pyplot))
    ploter = plot.Ploter("train", "test")
    ploter.append("train", 1, 0.5)
    ploter.plot()
    ploter.plot("file.png")
    assert pyplot.calls == ["plot", "legend", "show", "gcf", "clear", "plot", "legend", "savefig", "gcf", "clear"]


def test_loggers(capsys: pytest.CaptureFixture[str]) -> None:
    logger = log_helper.get_logger("fluidlite_test_logger", "INFO", "%(levelname)s: %(message)s")
    logger.info("told")
    assert log_helper.get_logger("fluidlite_test_logger", "INFO") is logger
    assert len(logger.handlers) == 1
    assert capsys.readouterr().err == "INFO: told\n"


def test_events() -> None:
    ended = events.EndIteration(1, 2, 0.5, {"accuracy": 0.9})
    assert (ended.pass_id, ended.batch_id, ended.cost, ended.metrics) == (1, 2, 0.5, {"accuracy": 0.9})
    assert (events.EndPass(3).metrics, events.TestResult({"a": 1.0}, 0.1).cost) == ({}, 0.1)
    assert (events.BeginPass(1).pass_id, events.BeginIteration(1, 2).batch_id, events.EndForwardBackward(1, 2).gm) == (
        *(1, 2),
        None,
    )


# ---- Trainer: tests/compat_scripts/trainer_inferencer.py runs it


def test_trainers_refuse(tmp_path: Path) -> None:
    def net() -> Any:
        return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", [2]), 1))

    with pytest.raises(ProgramError, match="optimizer_func must return an optimizer, not float"):
        Trainer(net, lambda: 0.1)  # type: ignore[arg-type, return-value]
    with pytest.raises(ProgramError, match="must be 1 or more"):
        CheckpointConfig(str(tmp_path), step_interval=0)
    trainer = Trainer(net, lambda: fluid.optimizer.SGD(0.1))
    with pytest.raises(ProgramError, match="needs a reader"):
        trainer.train(1, lambda event: None)
    with pytest.raises(ProgramError, match="without gaps"):
        trainer.train(1, lambda event: None, lambda: iter(()), {"x": 1})
    with pytest.raises(FluidliteError, match="the reader has no batch"):
        trainer.test(lambda: iter(()), {"x": 0})
    trainer.save_params(str(tmp_path / "params"))
    again = Trainer(net, lambda: fluid.optimizer.SGD(0.1), param_path=str(tmp_path / "params"))
    np.testing.assert_array_equal(again.scope.get("fc_0.w_0"), trainer.scope.get("fc_0.w_0"))
    with pytest.raises(ProgramError, match="takes a dict"):
        Inferencer(net, str(tmp_path / "params")).infer([ONES])  # type: ignore[arg-type]


def test_roles_of_trainers_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def net() -> Any:
        return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", [2]), 1))

    def types() -> list[str]:
        trainer = Trainer(net, lambda: fluid.optimizer.SGD(0.1))
        return [op.type for op in trainer.train_program.global_block().ops]

    # without the first run, which would wait for servers
    monkeypatch.setattr(Trainer, "_begin", lambda self, path: self._transpile())
    monkeypatch.setenv("PADDLE_TRAINING_ROLE", "TRAINER")
    with pytest.raises(SettingError, match="PADDLE_PSERVER_PORT must be, too"):
        types()
    for name, value in (
        ("PSERVER_PORT", "6174"),
        ("PSERVER_IPS", "127.0.0.1,127.0.0.2"),
        ("TRAINERS", "2"),
        ("CURRENT_IP", "127.0.0.2"),
    ):
        monkeypatch.setenv(f"PADDLE_{name}", value)
    assert {"send", "recv"} <= set(types())
    monkeypatch.setenv("PADDLE_TRAINING_ROLE", "PSERVER")
    assert types() == ["listen_and_serv"]
    monkeypatch.setenv("PADDLE_TRAINING_ROLE", "CHIEF")
    with pytest.raises(ProgramError, match="'CHIEF', neither TRAINER nor PSERVER"):
        types()


def test_a_trainer_that_came_to_its_end_leaves_no_checkpoint(tmp_path: Path) -> None:
    def net() -> Any:
        return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", [2]), 1))

    config = CheckpointConfig(str(tmp_path), max_num_checkpoints=1, step_interval=1)
    trainer = Trainer(net, lambda: fluid.optimizer.SGD(0.1), checkpoint_config=config)
    seen: list[str] = []

    def handler(event: Any) -> None:
        seen.append(type(event).__name__)
        if isinstance(event, events.BeginStepEvent):
            event.fetch_metrics = False
        if isinstance(event, events.EndStepEvent):
            assert event.metrics == []
            assert [path.name for path in tmp_path.iterdir()] == [f"checkpoint_{event.step}"]

    trainer.train(1, handler, lambda: iter([[(ONES[0],)], [(ONES[1],)]]), ["x"])
    steps = ["BeginStepEvent", "EndStepEvent"]
    assert seen == ["BeginEpochEvent", *steps, *steps, "EndEpochEvent"]
    assert list(tmp_path.iterdir()) == []


def test_an_installation_can_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    before = len(fluid.default_main_program().global_block().ops)
    install_check.run_check()
    assert "fluidlite works" in capsys.readouterr().out
    assert len(fluid.default_main_program().global_block().ops) == before
