"""``distribute_transpiler.distributed_strategy``: how a fleet trains, as settings of `DistributeTranspilerConfig`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from fluidlite.compat.compiler import BuildStrategy, ExecutionStrategy
from fluidlite.errors import FleetError
from fluidlite.transpiler.distribute import DistributeTranspilerConfig

__all__ = [
    "AsyncStrategy",
    "DistributedMode",
    "DistributedStrategy",
    "GeoStrategy",
    "HalfAsyncStrategy",
    "ServerRuntimeConfig",
    "StrategyFactory",
    "SyncStrategy",
    "TrainerRuntimeConfig",
]

#: settings of Fluid's communicator -> default ("": the number of threads, CPU_NUM)
_COMMUNICATOR: Final = {
    "communicator_max_merge_var_num": "",
    "communicator_send_queue_size": "",
    "communicator_independent_recv_thread": "1",
    "communicator_min_send_grad_num_before_recv": "",
    "communicator_thread_pool_size": "5",
    "communicator_send_wait_times": "5",
    "communicator_is_sgd_optimizer": "1",
    "rpc_deadline": "180000",
    "rpc_retry_times": "3",
}


class DistributedMode:
    """How pushes count, as Fluid numbers it."""

    SYNC = 0
    ASYNC = 1
    HALF_ASYNC = 2
    GEO = 3


class ServerRuntimeConfig:
    """Numbers of threads of Fluid's server. fluidlite's needs no such number; they are kept and not used."""

    def __init__(self) -> None:
        for verb in ("send", "get", "prefetch"):
            setattr(self, f"_rpc_{verb}_thread_num", int(os.environ.get(f"FLAGS_rpc_{verb}_thread_num", "12")))


class TrainerRuntimeConfig:
    """Settings of Fluid's communicator; the environment variable FLAGS_<name> sets another default.

    ``communicator_max_merge_var_num`` says how many steps a half-asynchronous trainer merges. The others are kept and not
    used: gradients leave a trainer by its program, one step after the other.
    """

    def __init__(self) -> None:
        threads = os.environ.get("CPU_NUM", "1")
        self.mode: int | None = None
        self.runtime_configs: dict[str, Any] = {
            name: os.environ.get(f"FLAGS_{name}", default or threads) for name, default in _COMMUNICATOR.items()
        }

    def get_communicator_flags(self) -> dict[str, str]:
        """The settings as text. In sync and half-async mode a trainer merges the steps of its CPU_NUM threads."""
        flags = {name: str(value) for name, value in self.runtime_configs.items()}
        if self.mode in (DistributedMode.SYNC, DistributedMode.HALF_ASYNC):
            threads = os.environ.get("CPU_NUM", "1")
            flags |= {"communicator_max_merge_var_num": threads, "communicator_send_queue_size": threads}
        return flags

    def __repr__(self) -> str:
        return "\n".join(["TrainerRuntimeConfig", *(f"  {k}: {v}" for k, v in self.get_communicator_flags().items())])


class DistributedStrategy:
    """Settings of one kind of training. Use a subclass, or `StrategyFactory`."""

    #: the kind
    mode: int
    #: what it sets of the program's configuration
    program_settings: ClassVar[Mapping[str, Any]]

    def __init__(self) -> None:
        if type(self) is DistributedStrategy:
            raise FleetError(
                "DistributedStrategy has no kind of its own; make one by StrategyFactory.create_..._strategy"
            )
        threads = int(os.environ.get("CPU_NUM", "1"))
        self._program_config = DistributeTranspilerConfig()
        self._trainer_runtime_config = TrainerRuntimeConfig()
        self._server_runtime_config = ServerRuntimeConfig()
        self._execute_strategy = ExecutionStrategy()
        self._execute_strategy.num_threads = threads
        self._build_strategy = BuildStrategy()
        self._build_strategy.async_mode = True
        self.debug_opt: Mapping[str, Any] | None = None
        self._trainer_runtime_config.mode = self.mode
        self._choose()

    def _choose(self) -> None:
        """Whatever the configuration said, this is the kind of training."""
        for name, value in self.program_settings.items():
            setattr(self._program_config, name, value)

    def get_program_config(self) -> DistributeTranspilerConfig:
        """How programs are transpiled."""
        return self._program_config

    def set_program_config(self, config: DistributeTranspilerConfig | Mapping[str, Any]) -> None:
        """Take another configuration, or fields of one. Raises FleetError for a field that there is not."""
        self._program_config = _set(self._program_config, config, DistributeTranspilerConfig)
        self._choose()

    def get_trainer_runtime_config(self) -> TrainerRuntimeConfig:
        """Settings of trainers."""
        return self._trainer_runtime_config

    def set_trainer_runtime_config(self, config: TrainerRuntimeConfig | Mapping[str, Any]) -> None:
        """Take other settings, or some of them. Raises FleetError for one that there is not."""
        if isinstance(config, Mapping):
            unknown = sorted(set(config) - set(self._trainer_runtime_config.runtime_configs))
            if unknown:
                raise FleetError(f"TrainerRuntimeConfig has no {', '.join(unknown)}; it has {', '.join(_COMMUNICATOR)}")
            self._trainer_runtime_config.runtime_configs.update(config)
        else:
            self._trainer_runtime_config = _set(self._trainer_runtime_config, config, TrainerRuntimeConfig)
        self._trainer_runtime_config.mode = self.mode

    def get_server_runtime_config(self) -> ServerRuntimeConfig:
        """Settings of pservers."""
        return self._server_runtime_config

    def set_server_runtime_config(self, config: ServerRuntimeConfig | Mapping[str, Any]) -> None:
        """Take other settings, or some of them. Raises FleetError for one that there is not."""
        self._server_runtime_config = _set(self._server_runtime_config, config, ServerRuntimeConfig)

    def get_execute_strategy(self) -> ExecutionStrategy:
        """Settings of Fluid's executor of several threads; kept and not used."""
        return self._execute_strategy

    def set_execute_strategy(self, config: ExecutionStrategy | Mapping[str, Any]) -> None:
        """Take other settings, or some of them. Raises FleetError for one that there is not."""
        self._execute_strategy = _set(self._execute_strategy, config, ExecutionStrategy)

    def get_build_strategy(self) -> BuildStrategy:
        """Settings of Fluid's graphs; kept and not used."""
        return self._build_strategy

    def set_build_strategy(self, config: BuildStrategy | Mapping[str, Any]) -> None:
        """Take other settings, or some of them. Raises FleetError for one that there is not."""
        self._build_strategy = _set(self._build_strategy, config, BuildStrategy)

    def set_debug_opt(self, opt_info: Mapping[str, Any]) -> None:
        """What Fluid is to dump while it trains; kept and not used."""
        self.debug_opt = opt_info

    def get_debug_opt(self) -> dict[str, Any]:
        """What `set_debug_opt` took."""
        return dict(self.debug_opt or {})


class SyncStrategy(DistributedStrategy):
    """A step counts when every trainer has made it."""

    mode = DistributedMode.SYNC
    program_settings: ClassVar[Mapping[str, Any]] = {
        "sync_mode": False,
        "runtime_split_send_recv": True,
        "half_async": True,
        "completely_not_async": True,
    }


class AsyncStrategy(DistributedStrategy):
    """A step counts on arrival."""

    mode = DistributedMode.ASYNC
    program_settings: ClassVar[Mapping[str, Any]] = {"sync_mode": False, "runtime_split_send_recv": True}


class HalfAsyncStrategy(DistributedStrategy):
    """A trainer merges steps and sends them behind its back."""

    mode = DistributedMode.HALF_ASYNC
    program_settings: ClassVar[Mapping[str, Any]] = {
        "sync_mode": False,
        "runtime_split_send_recv": True,
        "half_async": True,
    }

    def get_program_config(self) -> DistributeTranspilerConfig:
        """How programs are transpiled; it merges as many steps as the settings of trainers say."""
        flags = self._trainer_runtime_config.get_communicator_flags()
        self._program_config.max_merge_var_num = int(flags["communicator_max_merge_var_num"])
        return self._program_config


class GeoStrategy(DistributedStrategy):
    """A trainer trains by itself and exchanges what has changed every ``update_frequency`` steps."""

    mode = DistributedMode.GEO
    program_settings: ClassVar[Mapping[str, Any]] = {
        "sync_mode": False,
        "runtime_split_send_recv": True,
        "geo_sgd_mode": True,
    }

    def __init__(self, update_frequency: int = 100) -> None:
        super().__init__()
        self._program_config.geo_sgd_need_push_nums = update_frequency


class StrategyFactory:
    """Makes strategies."""

    @staticmethod
    def create_sync_strategy() -> SyncStrategy:
        """A step counts when every trainer has made it."""
        return SyncStrategy()

    @staticmethod
    def create_async_strategy() -> AsyncStrategy:
        """A step counts on arrival."""
        return AsyncStrategy()

    @staticmethod
    def create_half_async_strategy() -> HalfAsyncStrategy:
        """A trainer merges steps and sends them behind its back."""
        return HalfAsyncStrategy()

    @staticmethod
    def create_geo_strategy(update_frequency: int = 100) -> GeoStrategy:
        """A trainer exchanges what has changed every ``update_frequency`` steps."""
        return GeoStrategy(update_frequency)


def strategy_of(given: Any) -> DistributedStrategy:
    """The strategy that ``fleet.distributed_optimizer`` was given, directly or as a configuration; None: sync.

    Raises FleetError for anything else.
    """
    if given is None:
        return SyncStrategy()
    if isinstance(given, DistributedStrategy):
        return given
    if not isinstance(given, DistributeTranspilerConfig):
        raise FleetError(
            f"fleet.distributed_optimizer: strategy must be a strategy of StrategyFactory or a DistributeTranspilerConfig, not {given!r}"
        )
    strategy = _asked_by(given)
    if isinstance(strategy, GeoStrategy):
        strategy.set_program_config({"geo_sgd_need_push_nums": given.geo_sgd_need_push_nums})
    strategy.set_program_config(given)
    return strategy


def _asked_by(config: DistributeTranspilerConfig) -> DistributedStrategy:
    """Asynchronous without ``runtime_split_send_recv`` is half-asynchronous in Fluid's fleet."""
    if config.sync_mode or config.completely_not_async:
        return SyncStrategy()
    if config.geo_sgd_mode:
        return GeoStrategy()
    if config.half_async or not config.runtime_split_send_recv:
        return HalfAsyncStrategy()
    return AsyncStrategy()


def _set(target: Any, config: Any, kind: type) -> Any:
    """``target`` with the fields that a dict names, or another object of its kind in its place."""
    if isinstance(config, kind):
        return config
    if not isinstance(config, Mapping):
        raise FleetError(f"a {kind.__name__} or a dict of its fields is needed, not {config!r}")
    for name, value in config.items():
        if not hasattr(target, name):
            raise FleetError(f"{kind.__name__} has no field {name!r}")
        setattr(target, name, value)
    return target
