"""Fleets of one process: roles, shares of files, strategies, helpers, and what is refused."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.compat.fleet import pslib
from fluidlite.compat.fleet.distribute_transpiler import DistributedTranspiler
from fluidlite.compat.fleet.gather import Alone, Comm, Members
from fluidlite.compat.fleet.hdfs import HDFSClient
from fluidlite.compat.fleet.role_maker import (
    GeneralRoleMaker,
    MPISymetricRoleMaker,
    PaddleCloudRoleMaker,
    Role,
    RoleMakerBase,
    UserDefinedCollectiveRoleMaker,
    UserDefinedRoleMaker,
)
from fluidlite.errors import (
    AddressInUseError,
    FleetError,
    MissingFileError,
    NotSupported,
    PeerLostError,
    SettingError,
)
from fluidlite.launch import free_endpoints

SERVERS = "127.0.0.1:6174,127.0.0.1:6175"
TRAINER = {
    "TRAINING_ROLE": "TRAINER",
    "PADDLE_TRAINER_ID": "1",
    "PADDLE_TRAINERS_NUM": "3",
    "PADDLE_PSERVERS_IP_PORT_LIST": SERVERS,
}
PSERVER = {**TRAINER, "TRAINING_ROLE": "PSERVER", "POD_IP": "127.0.0.1", "PADDLE_PORT": "6175"}


#: what scripts for fleets import: module -> names
NAMES = """
paddle.fluid.incubate.fleet.base.role_maker: PaddleCloudRoleMaker UserDefinedRoleMaker Role GeneralRoleMaker MPISymetricRoleMaker RoleMakerBase UserDefinedCollectiveRoleMaker
paddle.fluid.incubate.fleet.base.fleet_base: Fleet DistributedOptimizer Mode
paddle.fluid.incubate.fleet.base.mode: Mode
paddle.fluid.incubate.fleet.parameter_server.mode: DistributedMode
paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler: fleet DistributedTranspiler StrategyFactory SyncStrategy distributed_strategy
paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy: StrategyFactory TrainerRuntimeConfig DistributedStrategy GeoStrategy DistributeTranspilerConfig
paddle.fluid.incubate.fleet.parameter_server.pslib: fleet PSLib DownpourOptimizer
paddle.fluid.incubate.fleet.collective: fleet DistributedStrategy CollectiveOptimizer
paddle.fluid.incubate.fleet.utils.utils: load_var load_program
paddle.fluid.incubate.fleet.utils.hdfs: HDFSClient
paddle.fluid.incubate.fleet.utils.fleet_util: FleetUtil
paddle.distributed.launch_ps: launch
paddle.distributed.launch: launch
paddle.distributed: InMemoryDataset QueueDataset fleet
paddle.distributed.fleet: init is_server is_worker run_server init_server init_worker stop_worker distributed_optimizer DistributedStrategy worker_index worker_num PaddleCloudRoleMaker util
paddle.distributed.fleet.base.role_maker: PaddleCloudRoleMaker
paddle.static: default_main_program default_startup_program Executor global_scope create_global_var data accuracy auc
paddle: enable_static assign shape concat full sum cast norm sqrt reshape add mean CPUPlace ParamAttr dataset distributed nn optimizer static
paddle.nn: Linear ReLU Embedding Layer functional initializer
paddle.nn.functional: sigmoid l1_loss mse_loss log_loss
paddle.nn.initializer: Uniform TruncatedNormal Normal
paddle.optimizer: SGD
paddle.dataset: uci_housing mnist imdb imikolov movielens conll05 cifar wmt14 wmt16 flowers sentiment common
"""


def test_every_name_can_be_imported(tmp_path: Path) -> None:
    script = tmp_path / "names.py"
    lines = [line.split(": ") for line in NAMES.strip().splitlines()]
    script.write_text("\n".join(f"from {module} import {', '.join(names.split())}" for module, names in lines))
    done = subprocess.run(
        [sys.executable, "-m", "fluidlite.compat", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(autouse=True)
def no_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    """No role from outside."""
    for name in [
        name for name in os.environ if name.startswith(("PADDLE_", "TRAINING_ROLE", "POD_IP", "CPU_NUM", "FLAGS_"))
    ]:
        monkeypatch.delenv(name)


def set_environment(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def worker(index: int = 0, workers: int = 1, **rest: Any) -> UserDefinedRoleMaker:
    return UserDefinedRoleMaker(index, Role.WORKER, workers, ["127.0.0.1:6174"], **rest)


# roles


def test_the_environment_says_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, TRAINER)
    role = PaddleCloudRoleMaker()
    assert (role.is_worker(), role.is_server(), role.is_first_worker()) == (True, False, False)
    assert (role.worker_index(), role.worker_num(), role.server_num()) == (1, 3, 2)
    assert role.get_pserver_endpoints() == SERVERS.split(",")
    set_environment(monkeypatch, PSERVER)
    role = PaddleCloudRoleMaker()
    assert (role.is_worker(), role.is_server(), role.server_index()) == (False, True, 1)
    assert role.get_local_endpoint() == "127.0.0.1:6175"
    assert "current_id: 1" in role.to_string()


def test_general_and_collective_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, {**TRAINER, "PADDLE_TRAINER_ENDPOINTS": "h:1,h:2"})
    role = GeneralRoleMaker(path="/somewhere", http_ip_port="h:80")
    assert (role.worker_num(), role.get_local_endpoint()) == (2, "h:2")
    set_environment(monkeypatch, {"TRAINING_ROLE": "PSERVER", "PADDLE_PSERVER_ID": "0"})
    assert GeneralRoleMaker().get_local_endpoint() == "127.0.0.1:6174"
    collective_role = PaddleCloudRoleMaker(is_collective=True)
    assert (collective_role.is_worker(), collective_role.worker_num(), collective_role.worker_index()) == (True, 2, 1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"TRAINING_ROLE": "BOSS"}, "TRAINING_ROLE must be TRAINER or PSERVER, not 'BOSS'"),
        ({"PADDLE_TRAINER_ID": "-1"}, "PADDLE_TRAINER_ID must be a whole number"),
        ({"PADDLE_TRAINERS_NUM": "many"}, "PADDLE_TRAINERS_NUM must be a whole number"),
        ({"PADDLE_PSERVERS_IP_PORT_LIST": ""}, "PADDLE_PSERVERS_IP_PORT_LIST must be set"),
        ({**PSERVER, "PADDLE_PORT": "1"}, "POD_IP:PADDLE_PORT must be one of PADDLE_PSERVERS_IP_PORT_LIST"),
        ({**PSERVER, "PADDLE_PSERVER_ID": "2"}, "PADDLE_PSERVER_ID must be below 2"),
    ],
)
def test_environments_that_say_no_role(changed: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch, {**TRAINER, **changed})
    with pytest.raises(SettingError, match=message):
        PaddleCloudRoleMaker().generate_role()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UserDefinedRoleMaker(0, Role.WORKER, 1, "127.0.0.1:1"), "server_endpoints must be a list"),
        (lambda: UserDefinedRoleMaker(0, Role.WORKER, 1, []), "server_endpoints must be a list"),
        (lambda: UserDefinedRoleMaker(0, Role.WORKER, 1, ["a:1", "a:1"]), "server_endpoints must be distinct"),
        (lambda: UserDefinedRoleMaker(0, 7, 1, ["a:1"]), r"Role\.WORKER or Role\.SERVER, not 7"),
        (lambda: UserDefinedRoleMaker(0, Role.WORKER, 0, ["a:1"]), "worker_num must be a whole number at least 1"),
        (lambda: UserDefinedRoleMaker(1, Role.SERVER, 1, ["a:1"]), "current_id must be a whole number from 0 to 0"),
        (lambda: UserDefinedRoleMaker(-1, Role.WORKER, 1, ["a:1"]), "current_id must be a whole number at least 0"),
        (lambda: UserDefinedCollectiveRoleMaker(2, ["a:1", "a:2"]), "current_id must be a whole number from 0 to 1"),
        (lambda: GeneralRoleMaker(hdfs="x"), "takes hdfs_name, .*, not hdfs"),
    ],
)
def test_arguments_that_make_no_role(make: Callable[[], object], message: str) -> None:
    with pytest.raises(FleetError, match=message) as caught:
        make()
    assert isinstance(caught.value, (TypeError, ValueError))


def test_mpi_is_not_supported() -> None:
    with pytest.raises(NotSupported, match="MPISymetricRoleMaker is not supported"):
        MPISymetricRoleMaker()
    with pytest.raises(NotSupported, match="MPISymetricRoleMaker"):
        pslib.PSLib().init()


# what processes exchange


def together(size: int, call: Callable[[Comm], Any], endpoint: str = "") -> list[Any]:
    """What ``call`` gives to each member of a group of threads."""
    endpoint = endpoint or free_endpoints(1)[0]
    found: list[Any] = [None] * size

    def member(rank: int) -> None:
        with contextlib.closing(Members("workers", endpoint, rank, size)) as group:
            found[rank] = call(Comm(group))

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_members_gather_and_reduce() -> None:
    def calls(comm: Comm) -> tuple[Any, ...]:
        rank = comm._group._rank  # type: ignore[attr-defined]
        comm.barrier()
        output = np.zeros(2, np.float32)
        comm.Allreduce(np.array([rank, 0.1], np.float32), output)
        return (
            comm.all_gather(rank),
            comm.all_reduce([rank, -rank], "min"),
            comm.all_reduce([rank], "max"),
            output.tolist(),
        )

    for gathered, least, most, total in together(3, calls):
        assert (gathered, least, most) == ([0, 1, 2], [0, -2], [2])
        np.testing.assert_allclose(total, [3.0, 0.3], rtol=1e-6)
    with pytest.raises(FleetError, match="mode must be one of sum, min, max, not 'mean'"):
        Comm(Alone()).all_reduce([1], "mean")


def test_a_member_that_leaves_is_told_to_the_others() -> None:
    def leaves(comm: Comm) -> str:
        group: Any = comm._group
        comm.barrier()
        if group._rank == 1:
            group.close()
            return ""
        with pytest.raises(PeerLostError, match="member 1 is gone") as caught:
            comm.barrier()
        return str(caught.value)

    (endpoint,) = free_endpoints(1)
    first, _ = together(2, leaves, endpoint)
    assert f"member 0 of 2 lost the others (met at {endpoint})" in first


def test_members_that_never_come_and_taken_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUIDLITE_CONNECT_SECONDS", "0")
    (endpoint,) = free_endpoints(1)
    with pytest.raises(PeerLostError, match="member 1 of 2"):
        Members("workers", endpoint, 1, 2).all_gather(None)
    import socket

    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(AddressInUseError, match="worker 0 cannot meet"),
    ):
        Members("workers", f"127.0.0.1:{taken.getsockname()[1]}", 0, 2).all_gather(None)


def test_workers_without_endpoints_say_so() -> None:
    role = worker(0, 2)
    with pytest.warns(UserWarning, match="barrier_worker does not wait: the 2 workers"):
        role.barrier_worker()
    with pytest.warns(UserWarning, match="barrier_all does not wait"):
        role.barrier_all()
    with pytest.raises(NotSupported, match="PADDLE_TRAINER_ENDPOINTS"):
        role.all_reduce_worker([1], [0])
    server = UserDefinedRoleMaker(0, Role.SERVER, 1, ["a:1", "a:2"])
    output = [0]
    server.all_reduce_worker([1], output)
    server.barrier_worker()
    assert output == [0]
    with pytest.raises(NotSupported, match="the pservers of this job"):
        server._node_type_comm.barrier()


def test_one_worker_reduces_by_itself() -> None:
    output = np.zeros(2)
    fleet = DistributedTranspiler()
    fleet.init(worker())
    fleet.all_reduce_worker(np.array([1.5, 2.5]), output)
    fleet.barrier_worker()
    assert output.tolist() == [1.5, 2.5]


# the fleet


@pytest.mark.parametrize(
    ("files", "workers", "shares"),
    [("abcde", 2, ["abc", "de"]), ("ab", 3, ["a", "b", ""]), ("abcdef", 3, ["ab", "cd", "ef"]), ("", 2, ["", ""])],
)
def test_split_files(files: str, workers: int, shares: list[str]) -> None:
    for index, share in enumerate(shares):
        fleet = DistributedTranspiler()
        fleet.init(worker(index, workers))
        assert fleet.split_files(list(files)) == list(share)
        assert HDFSClient.split_files(list(files), index, workers) == list(share)
    with pytest.raises(FleetError, match="files must be a list"):
        fleet.split_files("abc")


def test_a_fleet_answers_who_it_is() -> None:
    fleet = DistributedTranspiler()
    fleet.init(UserDefinedRoleMaker(1, Role.WORKER, 2, ["a:1", "a:2"], worker_endpoints=["b:1", "b:2"]))
    assert (fleet.worker_endpoints(), fleet.server_endpoints(to_string=True)) == (["b:1", "b:2"], "a:1,a:2")
    assert (fleet.server_num(), fleet.is_first_worker(), fleet.is_server()) == (2, False, False)


def test_users_write_their_own_role_makers() -> None:
    class Mine(RoleMakerBase):
        def generate_role(self) -> None:
            self._role, self._current_id, self._trainers_num = Role.SERVER, 0, 1
            self._server_endpoints, self._role_is_generated = ["a:1"], True

    fleet = DistributedTranspiler()
    fleet.init(Mine())
    assert (fleet.is_server(), fleet.worker_num(), fleet.server_index()) == (True, 1, 0)


def loss() -> fluid.Variable:
    x = fluid.data("x", [None, 2])
    return fluid.layers.mean(fluid.layers.fc(x, 1, name="fc_0", param_attr="fc_0.w_0", bias_attr="fc_0.b_0"))


def test_calls_that_come_too_early(tmp_path: Path) -> None:
    fleet = DistributedTranspiler()
    optimizer = fluid.optimizer.SGD(0.1)
    for early in (fleet.is_worker, fleet.worker_num, lambda: fleet.distributed_optimizer(optimizer)):
        with pytest.raises(FleetError, match=r"call fleet\.init"):
            early()
    with pytest.raises(FleetError, match="must be a RoleMakerBase, not str"):
        fleet.init("worker")  # type: ignore[arg-type]
    fleet.init(worker())
    for early in (fleet.init_worker, fleet.init_server, fleet.run_server, fleet.stop_worker):
        with pytest.raises(FleetError, match=r"distributed_optimizer.*minimize"):
            early()
    with pytest.raises(FleetError, match="there is no program yet"):
        fleet.save_persistables(fluid.Executor(), tmp_path)


def test_calls_of_the_other_role_and_wrong_arguments(tmp_path: Path) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        fleet = DistributedTranspiler()
        fleet.init(worker())
        with pytest.raises(FleetError, match="optimizer must be an Optimizer"):
            fleet.distributed_optimizer("sgd")
        with pytest.raises(FleetError, match="strategy must be a strategy of StrategyFactory or a"):
            fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), {"sync": True})
        optimizer = fleet.distributed_optimizer(fluid.optimizer.SGD(0.1))
        with pytest.raises(FleetError, match="takes one loss"):
            optimizer.minimize([loss()])  # type: ignore[arg-type]
        optimizer.minimize(loss())
        for other in (fleet.init_server, fleet.run_server):
            with pytest.raises(FleetError, match="is for pservers"):
                other()
        with pytest.raises(FleetError, match=r"executor must be a fluid\.Executor, not str"):
            fleet.save_persistables("exe", tmp_path)
        with pytest.raises(FleetError, match=r"main_program must be a fluid\.Program, not str"):
            fleet.save_persistables(fluid.Executor(), tmp_path, "main")  # type: ignore[arg-type]
        with pytest.raises(FleetError, match="the program is local"):
            fleet.save_persistables(fluid.Executor(), tmp_path, fluid.Program())


def test_a_pserver_without_its_model(tmp_path: Path) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        fleet = DistributedTranspiler()
        fleet.init(UserDefinedRoleMaker(0, Role.SERVER, 1, ["127.0.0.1:0"]))
        fleet.distributed_optimizer(fluid.optimizer.SGD(0.1)).minimize(loss())
        with pytest.raises(MissingFileError, match="there is no folder"):
            fleet.init_server(tmp_path / "nothing")
        with pytest.raises(MissingFileError, match="fc_0"):
            fleet.init_server(tmp_path)


def test_both_halves_of_minimize_can_be_called() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        fleet = DistributedTranspiler()
        fleet.init(worker())
        optimizer = fleet.distributed_optimizer(fluid.optimizer.SGD(0.1))
        pairs = optimizer.backward(loss())
        assert [op.type for op in optimizer.apply_gradients(pairs)].count("sgd") == 2
