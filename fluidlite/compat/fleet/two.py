"""``paddle.distributed.fleet`` of Paddle 2.x for parameter servers, and its datasets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fluidlite import dataset
from fluidlite.compat.fleet.distribute_transpiler import DistributedTranspiler
from fluidlite.compat.fleet.fleet_base import DistributedOptimizer, Item
from fluidlite.compat.fleet.role_maker import (
    PaddleCloudRoleMaker,
    Role,
    RoleMakerBase,
    UserDefinedCollectiveRoleMaker,
    UserDefinedRoleMaker,
)
from fluidlite.compat.fleet.strategy import AsyncStrategy, GeoStrategy, SyncStrategy
from fluidlite.errors import DataError, FleetError, NotSupported

__all__ = [
    "DistributedStrategy",
    "Fleet",
    "InMemoryDataset",
    "PaddleCloudRoleMaker",
    "QueueDataset",
    "Role",
    "UserDefinedRoleMaker",
    "UtilBase",
    "barrier_worker",
    "distributed_optimizer",
    "init",
    "init_server",
    "init_worker",
    "is_first_worker",
    "is_server",
    "is_worker",
    "run_server",
    "save_inference_model",
    "save_persistables",
    "server_endpoints",
    "server_index",
    "server_num",
    "stop_worker",
    "util",
    "worker_endpoints",
    "worker_index",
    "worker_num",
]


class DistributedStrategy:
    """How the job trains: ``a_sync`` False by the round, True on arrival, with ``a_sync_configs["k_steps"]`` > 0 geo.

    Other settings of Paddle's are accepted when they are off, and refused by ``distributed_optimizer`` when they are on.
    """

    def __init__(self) -> None:
        self.a_sync = False
        #: only ``k_steps`` is read; the other keys are numbers of threads and queue sizes
        self.a_sync_configs: dict[str, Any] = {"k_steps": 0}

    def unsupported(self) -> list[str]:
        """The settings that are on and mean something that fluidlite does not do."""
        known = ("a_sync", "a_sync_configs", "build_strategy", "execution_strategy")
        return sorted(
            k for k, v in vars(self).items() if k not in known and v is not False and not k.endswith("_configs")
        )


def _strategy_of(given: Any) -> Any:
    """The strategy of 1.x that one of 2.x asks for; those of 1.x stay what they are."""
    if given is None or not isinstance(given, DistributedStrategy):
        return given
    if given.unsupported():
        raise NotSupported(f"DistributedStrategy.{given.unsupported()[0]} is not supported by fluidlite: leave it off")
    if not isinstance(given.a_sync_configs, Mapping):
        raise FleetError(f"DistributedStrategy.a_sync_configs must be a dict, not {given.a_sync_configs!r}")
    steps = int(given.a_sync_configs.get("k_steps", 0))
    if not given.a_sync:
        return SyncStrategy()
    return GeoStrategy(steps) if steps > 0 else AsyncStrategy()


class UtilBase:
    """``fleet.util``: what workers tell each other."""

    def __init__(self, owner: Fleet) -> None:
        self._fleet = owner

    def get_file_shard(self, files: Sequence[Item]) -> list[Item]:
        """This worker's share of a list of files; see `Fleet.split_files`."""
        return self._fleet.split_files(files)

    def print_on_rank(self, message: str, rank_id: int) -> None:
        """Print at one worker only."""
        if self._fleet.worker_index() == rank_id:
            print(message)

    def barrier(self, comm_world: str = "worker") -> None:
        """Return when every worker has called it."""
        self._only_workers(comm_world)
        self._fleet.barrier_worker()

    def all_reduce(self, input: Any, mode: str = "sum", comm_world: str = "worker") -> Any:
        """Every worker's arrays reduced element by element."""
        import numpy as np

        self._only_workers(comm_world)
        array = np.asarray(input)
        output = np.empty(array.size, array.dtype)
        self._fleet._role_maker.all_reduce_worker(array.reshape(-1), output, mode)  # noqa: SLF001 (its own utilities)
        return output.reshape(array.shape)

    def all_gather(self, input: Any, comm_world: str = "worker") -> list[Any]:
        """Every worker's value."""
        self._only_workers(comm_world)
        return self._fleet._role_maker._worker_gather(input) or []  # noqa: SLF001 (its own utilities)

    @staticmethod
    def _only_workers(comm_world: str) -> None:
        if comm_world != "worker":
            raise NotSupported(f"fleet.util: comm_world={comm_world!r} is not supported by fluidlite; use 'worker'")


class Fleet(DistributedTranspiler):
    """The job over `DistributeTranspiler`, with the arguments of Paddle 2.x."""

    def __init__(self) -> None:
        super().__init__()
        self.util = UtilBase(self)

    def init(
        self,
        role_maker: RoleMakerBase | None = None,
        is_collective: bool = False,
        strategy: DistributedStrategy | None = None,
        **unused: object,
    ) -> None:
        """Take a role; without ``role_maker`` the one of the environment. Raises NotSupported for several collective workers."""
        role_maker = role_maker if role_maker is not None else PaddleCloudRoleMaker(is_collective=is_collective)
        super().init(role_maker)
        collective = isinstance(role_maker, UserDefinedCollectiveRoleMaker) or is_collective
        if collective and self.worker_num() > 1:
            raise NotSupported(
                "fleet.init(is_collective=True) with several workers is not supported; use parameter servers"
            )

    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> DistributedOptimizer:
        """The optimizer whose ``minimize`` distributes the program. Raises NotSupported for settings that are left out."""
        if not self.server_num():
            self._optimizer = DistributedOptimizer(optimizer, strategy)
            return self._optimizer
        return super().distributed_optimizer(optimizer, _strategy_of(strategy))


class _Initialised(dataset.DatasetBase):
    """Datasets of Paddle 2.x take what they need at once."""

    def init(self, **settings: Any) -> None:
        """``use_var``, ``batch_size``, ``thread_num``, ``pipe_command``; ``input_type``, ``fs_name``, ``fs_ugi``,
        ``download_cmd`` change nothing. Raises DataError for any other."""
        takes: dict[str, Callable[..., None]] = {
            "use_var": self.set_use_var,
            "batch_size": self.set_batch_size,
            "thread_num": self.set_thread,
            "pipe_command": self.set_pipe_command,
        }
        ignored = ("input_type", "fs_name", "fs_ugi", "download_cmd")
        unknown = sorted(set(settings) - set(takes) - set(ignored))
        if unknown:
            raise DataError(f"dataset.init takes {', '.join((*takes, *ignored))}, not {', '.join(unknown)}")
        for name in set(takes) & set(settings):
            takes[name](settings[name])


class InMemoryDataset(_Initialised, dataset.InMemoryDataset):
    """Fluid's InMemoryDataset with ``init``."""


class QueueDataset(_Initialised, dataset.QueueDataset):
    """Fluid's QueueDataset with ``init``."""


_fleet: Final = Fleet()
init = _fleet.init
is_first_worker = _fleet.is_first_worker
is_worker = _fleet.is_worker
is_server = _fleet.is_server
worker_index = _fleet.worker_index
worker_num = _fleet.worker_num
worker_endpoints = _fleet.worker_endpoints
server_index = _fleet.server_index
server_num = _fleet.server_num
server_endpoints = _fleet.server_endpoints
barrier_worker = _fleet.barrier_worker
distributed_optimizer = _fleet.distributed_optimizer
init_worker = _fleet.init_worker
init_server = _fleet.init_server
run_server = _fleet.run_server
stop_worker = _fleet.stop_worker
save_inference_model = _fleet.save_inference_model
save_persistables = _fleet.save_persistables
util = _fleet.util
