"""Strategies of fleets, fleets of pslib and of one collective worker, and the helpers beside them."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.compat.fleet import collective, distribute_transpiler, fleet_util, pslib, two, utils
from fluidlite.compat.fleet.hdfs import HDFSClient
from fluidlite.compat.fleet.role_maker import (
    Role,
    UserDefinedCollectiveRoleMaker,
    UserDefinedRoleMaker,
)
from fluidlite.compat.fleet.strategy import (
    AsyncStrategy,
    DistributedMode,
    DistributedStrategy,
    GeoStrategy,
    HalfAsyncStrategy,
    StrategyFactory,
    SyncStrategy,
    TrainerRuntimeConfig,
    strategy_of,
)
from fluidlite.compat.left_out import LEFT_OUT
from fluidlite.errors import (
    DataError,
    FleetError,
    MissingFileError,
    NotSupported,
    ShapeError,
    TextFormError,
)
from fluidlite.ops.modes import Mode
from fluidlite.transpiler.modes import asked_for


def worker(index: int = 0, workers: int = 1) -> UserDefinedRoleMaker:
    return UserDefinedRoleMaker(index, Role.WORKER, workers, ["127.0.0.1:6174"])


def loss() -> fluid.Variable:
    x = fluid.data("x", [None, 2])
    return fluid.layers.mean(fluid.layers.fc(x, 1, name="fc_0", param_attr="fc_0.w_0", bias_attr="fc_0.b_0"))


# strategies


@pytest.mark.parametrize(
    ("strategy", "mode", "number"),
    [
        (StrategyFactory.create_sync_strategy(), Mode.SYNC, DistributedMode.SYNC),
        (StrategyFactory.create_async_strategy(), Mode.ASYNC, DistributedMode.ASYNC),
        (StrategyFactory.create_half_async_strategy(), Mode.HALF_ASYNC, DistributedMode.HALF_ASYNC),
        (StrategyFactory.create_geo_strategy(7), Mode.GEO, DistributedMode.GEO),
    ],
)
def test_strategies_are_modes_of_the_transpiler(strategy: DistributedStrategy, mode: Mode, number: int) -> None:
    config = strategy.get_program_config()
    asked = asked_for(config, config.sync_mode)
    assert (asked.settings.mode, asked.refusals, strategy.get_trainer_runtime_config().mode) == (mode, (), number)
    strategy.set_program_config({"slice_var_up": False})
    strategy.set_program_config(fluid.DistributeTranspilerConfig(min_block_size=10))
    config = strategy.get_program_config()
    assert (config.min_block_size, asked_for(config, config.sync_mode).settings.mode) == (10, mode)


@pytest.mark.parametrize(
    ("config", "strategy"),
    [
        ({}, SyncStrategy),
        ({"sync_mode": False, "runtime_split_send_recv": True}, AsyncStrategy),
        ({"sync_mode": False}, HalfAsyncStrategy),
        ({"sync_mode": False, "runtime_split_send_recv": True, "half_async": True}, HalfAsyncStrategy),
        ({"sync_mode": False, "geo_sgd_mode": True, "geo_sgd_need_push_nums": 5}, GeoStrategy),
    ],
)
def test_configurations_ask_for_strategies(config: dict[str, Any], strategy: type) -> None:
    given = fluid.DistributeTranspilerConfig(**config)
    chosen = strategy_of(given)
    assert type(chosen) is strategy
    assert chosen.get_program_config().geo_sgd_need_push_nums == config.get("geo_sgd_need_push_nums", 100)


def test_settings_of_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_NUM", "4")
    monkeypatch.setenv("FLAGS_communicator_send_wait_times", "9")
    strategy = HalfAsyncStrategy()
    flags = strategy.get_trainer_runtime_config()
    assert flags.runtime_configs["communicator_send_wait_times"] == "9"
    strategy.set_trainer_runtime_config({"communicator_max_merge_var_num": 20})
    assert flags.get_communicator_flags()["communicator_max_merge_var_num"] == "4"
    assert strategy.get_program_config().max_merge_var_num == 4
    strategy.set_trainer_runtime_config(TrainerRuntimeConfig())
    assert "communicator_thread_pool_size: 5" in repr(strategy.get_trainer_runtime_config())
    strategy.set_server_runtime_config({"_rpc_send_thread_num": 3})
    strategy.set_build_strategy({"async_mode": False})
    strategy.set_execute_strategy({"num_threads": 2})
    strategy.set_debug_opt({"dump_slot": True})
    assert vars(strategy.get_server_runtime_config())["_rpc_send_thread_num"] == 3
    assert (strategy.get_build_strategy().async_mode, strategy.get_execute_strategy().num_threads) == (False, 2)
    assert strategy.get_debug_opt() == {"dump_slot": True}


@pytest.mark.parametrize(
    "set_wrongly",
    [
        lambda strategy: strategy.set_program_config({"sync": True}),
        lambda strategy: strategy.set_program_config("sync"),
        lambda strategy: strategy.set_trainer_runtime_config({"threads": 1}),
        lambda strategy: strategy.set_trainer_runtime_config(1),
        lambda strategy: strategy.set_server_runtime_config({"threads": 1}),
        lambda strategy: strategy.set_build_strategy({"fast": True}),
        lambda strategy: strategy.set_execute_strategy([]),
        lambda strategy: DistributedStrategy(),
    ],
)
def test_settings_that_there_are_not(set_wrongly: Callable[[DistributedStrategy], object]) -> None:
    with pytest.raises(FleetError):
        set_wrongly(SyncStrategy())


def test_strategies_of_2x() -> None:
    strategy = two.DistributedStrategy()
    assert isinstance(two._strategy_of(strategy), SyncStrategy)
    strategy.a_sync = True
    assert isinstance(two._strategy_of(strategy), AsyncStrategy)
    strategy.a_sync_configs = {"k_steps": 8}
    assert two._strategy_of(strategy).get_program_config().geo_sgd_need_push_nums == 8
    strategy.a_sync_configs = 8  # type: ignore[assignment]
    with pytest.raises(FleetError, match="a_sync_configs must be a dict"):
        two._strategy_of(strategy)
    strategy.amp = True  # type: ignore[attr-defined]
    with pytest.raises(NotSupported, match=r"DistributedStrategy\.amp is not supported"):
        two._strategy_of(strategy)


# the other fleets


def test_a_collective_of_one_trains(tmp_path: Path) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        fleet = collective.Collective()
        fleet.init()
        fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), collective.DistributedStrategy()).minimize(loss())
        exe = fluid.Executor()
        exe.run(fleet.startup_program)
        exe.run(fleet.main_program, feed={"x": np.ones((2, 2), np.float32)})
        fleet.save_persistables(exe, tmp_path)
        (rate,) = (var.name for var in fleet.main_program.list_vars() if var.name.startswith("learning_rate"))
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["fc_0.b_0", "fc_0.w_0", rate])
        for method in (fleet.init_worker, fleet.init_server, fleet.run_server, fleet.stop_worker):
            with pytest.warns(UserWarning, match="does nothing"):
                method()


def test_a_collective_of_several_is_not_supported() -> None:
    several = UserDefinedCollectiveRoleMaker(0, ["a:1", "a:2"])
    with pytest.raises(NotSupported, match=r"fleet\.collective with 2 workers"):
        collective.Collective().init(several)
    with pytest.raises(NotSupported, match="is_collective"):
        two.Fleet().init(several)
    fleet = collective.Collective()
    fleet.init()
    strategy = collective.DistributedStrategy()
    strategy.use_amp = True
    with pytest.raises(NotSupported, match="use_amp"):
        fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), strategy)
    assert collective.TrainStatus(3).next() == 4


def test_what_pslib_alone_can_is_not_supported() -> None:
    fleet = pslib.PSLib()
    fleet.init(worker())
    prefix = "fluid.incubate.fleet.parameter_server.pslib.fleet."
    names = [name.removeprefix(prefix) for name in LEFT_OUT if name.startswith(prefix)]
    assert len(names) == 11
    for name in names:
        with pytest.raises(NotSupported, match=rf"fleet\.{name} is not supported"):
            getattr(fleet, name)()
    with pytest.raises(NotSupported, match="fleet_embedding"):
        pslib.fleet_embedding("click")
    with pytest.raises(NotSupported, match="mode=1"):
        fleet.save_persistables(None, "x", mode=1)
    optimizer = fleet.distributed_optimizer(fluid.optimizer.SGD(0.1))
    with pytest.raises(NotSupported, match="2 losses"):
        optimizer.minimize([loss(), loss()])
    with pytest.raises(NotSupported, match="apply_gradients"):
        optimizer.apply_gradients([])
    assert not hasattr(fleet, "unknown")


def test_datasets_of_2x_take_what_they_need_at_once(tmp_path: Path) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
        (tmp_path / "a").write_text("2 1 2\n1 3\n")
        dataset = two.InMemoryDataset()
        dataset.init(use_var=[ids], batch_size=2, thread_num=1, pipe_command="cat", input_type=0)
        dataset.set_filelist([tmp_path / "a"])
        dataset.load_into_memory()
        (feed,) = dataset.feeds()
        assert feed["ids"].array.ravel().tolist() == [1, 2, 3]
        with pytest.raises(DataError, match="not batchsize"):
            two.QueueDataset().init(batchsize=1)


# helpers


def test_variables_in_files(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32)
    utils.save_var(array, "w", [2, 3], "float32", tmp_path / "w")
    (read,) = utils.load_var("w", [2, 3], "float32", tmp_path / "w")
    np.testing.assert_array_equal(read, array.reshape(2, 3))
    assert utils.load_var("w", [-1, 3], "float32", tmp_path / "w")[0].shape == (2, 3)
    for shape, dtype in (([3, 2], "float32"), ([2, 3], "int64")):
        with pytest.raises(ShapeError, match=r"holds float32\[2, 3\]"):
            utils.load_var("w", shape, dtype, tmp_path / "w")
    with pytest.raises(MissingFileError):
        utils.load_var("b", [1], "float32", tmp_path / "b")


def test_programs_in_files(tmp_path: Path) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        loss()
        program = fluid.default_main_program()
        utils.save_program(program, tmp_path / "main")
        assert fleet_util.FleetUtil().program_type_trans(tmp_path, "main", is_text=False) == "main.pbtxt"
        assert utils.program_type_trans(tmp_path, "main.pbtxt", is_text=True) == "main.pbtxt.bin"
        assert (tmp_path / "main").read_bytes() == (tmp_path / "main.pbtxt.bin").read_bytes()
        assert utils.check_pruned_program_vars(program, utils.load_program(tmp_path / "main"))
        for name, shape in (("fc_0.w_0", [2, 1]), ("fc_0.b_0", [1])):
            utils.save_var(np.ones(shape), name, shape, "float32", tmp_path / name)
        assert len(utils.check_saved_vars_try_dump(tmp_path, "main", False, {}, {})) == 2
    (tmp_path / "proto").write_text("blocks {\n}\n")
    with pytest.raises(TextFormError, match="not protobuf's"):
        utils.load_program(tmp_path / "proto", is_text=True)


def test_numbers_in_lines(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1 2 3 4 5 6 7\n8 9 10 11\n")
    ((first, second),) = utils.feed_gen(2, [[1, 2]], [tmp_path / "x"])
    assert (first.tolist(), second.shape) == ([[[1.0, 2.0]], [[3.0, 4.0]]], (2, 1, 2))


def test_fleet_util(capsys: pytest.CaptureFixture[str]) -> None:
    distribute_transpiler.fleet.init(worker())
    util = fleet_util.FleetUtil("transpiler")
    scope = fluid.Scope()
    metric = fluid.metrics.Auc(num_thresholds=10)
    made = np.random.RandomState(0)
    scores, labels = made.rand(50, 1), made.randint(0, 2, (50, 1))
    metric.update(np.hstack([1 - scores, scores]), labels)
    scope.set("pos", metric.stat_pos.reshape(1, -1))
    scope.set("neg", metric.stat_neg.reshape(1, -1))
    assert util.get_global_auc(scope, "pos", "neg") == pytest.approx(metric.eval())
    util.print_global_auc(scope, "pos", "neg", "pass 1")
    assert capsys.readouterr().out.startswith("pass 1 global auc = 0.")
    util.set_zero("pos", scope)
    assert util.get_global_auc(scope, "pos", "neg") == 0.5
    with pytest.raises(FleetError, match="'nothing' has no value"):
        util.set_zero("nothing", scope)
    with pytest.raises(FleetError, match="mode must be one of pslib, transpiler"):
        fleet_util.FleetUtil("collective")
    with pytest.raises(NotSupported, match=r"FleetUtil\.save_delta_model"):
        util.save_delta_model("x", 1, 2)


def test_passes_of_a_day() -> None:
    util = fleet_util.FleetUtil()
    assert util.get_online_pass_interval("{20190720..20190729}", "{0..1}", 20, 2, False) == [
        ["0000", "0020"], ["0040", "0100"], ["0120", "0140"],
    ]  # fmt: skip
    assert util.get_online_pass_interval("20190720", "22 23", 60, 1, True) == [["22"], ["23"]]
    with pytest.raises(FleetError, match="hours must be like"):
        util.get_online_pass_interval("20190720", "noon", 60, 1, True)


HADOOP = """#!/bin/sh
# hadoop fs -Dk=v COMMAND ARGUMENTS over a local folder
shift 2; command=$1; shift
case $command in
  -test) test "$1" "$2" ;;
  -ls) [ "$1" = -R ] && shift; for f in $(find "$1" -mindepth 1 | sort); do
         [ -d "$f" ] && kind=drwxr-xr-x || kind=-rw-r--r--
         echo "$kind 3 me group 1 2020-01-01 00:00 $f"; done ;;
  -cat) cat "$1" ;;
  -get|-put) [ "$1" = -f ] && shift; cp -r "$1" "$2" ;;
  -mkdir) mkdir -p "$2" ;;
  -mv) mv "$1" "$2" ;;
  -rm) [ "$1" = -r ] && shift; rm -r "$1" ;;
  *) exit 1 ;;
esac
"""


@pytest.fixture
def hdfs(tmp_path: Path) -> HDFSClient:
    """A client of a script that takes the place of hadoop."""
    command = tmp_path / "bin" / "hadoop"
    command.parent.mkdir()
    command.write_text(HADOOP)
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return HDFSClient(str(tmp_path), {"k": "v"})


def test_hdfs_client(hdfs: HDFSClient, tmp_path: Path) -> None:
    far, near = str(tmp_path / "far"), tmp_path / "near"
    near.mkdir()
    (near / "a").write_text("alpha\n")
    assert hdfs.makedirs(f"{far}/data")
    assert hdfs.upload(f"{far}/data", str(near))
    assert (hdfs.is_dir(far), hdfs.is_file(f"{far}/data/a"), hdfs.is_exist(f"{far}/b")) == (True, True, False)
    assert (hdfs.cat(f"{far}/data/a"), hdfs.cat(far)) == ("alpha", "")
    assert hdfs.lsr(far) == [f"{far}/data/a"]
    assert f"{far}/data" in hdfs.ls(far)
    assert hdfs.rename(f"{far}/data/a", f"{far}/data/b")
    assert not hdfs.rename(f"{far}/data/b", f"{far}/data")
    assert [Path(path).name for path in hdfs.download(f"{far}/data", str(tmp_path / "got"))] == ["b"]
    assert (tmp_path / "got" / "b").read_text() == "alpha\n"
    assert hdfs.upload_dir(far, str(near))
    assert not hdfs.upload_dir(far, str(near))
    assert hdfs.delete(far)
    assert hdfs.delete(far)
    assert hdfs.ls(far) == []
    with pytest.raises(MissingFileError, match="say the right hadoop_home"):
        HDFSClient(str(tmp_path / "nowhere"), {}).is_exist("x")
