"""``paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler``: the fleet of most scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from fluidlite import io
from fluidlite.compat.fleet.fleet_base import DistributedOptimizer, Fleet, programs_of
from fluidlite.compat.fleet.mode import Mode
from fluidlite.compat.fleet.strategy import (
    AsyncStrategy,
    DistributedStrategy,
    GeoStrategy,
    HalfAsyncStrategy,
    StrategyFactory,
    SyncStrategy,
    TrainerRuntimeConfig,
    strategy_of,
)
from fluidlite.errors import FleetError, MissingFileError
from fluidlite.executor import Executor
from fluidlite.framework import Program, Variable
from fluidlite.ports import complete_all
from fluidlite.transpiler.distribute import DistributeTranspiler, DistributeTranspilerConfig

__all__ = [
    "AsyncStrategy",
    "DistributeTranspilerConfig",
    "DistributedStrategy",
    "DistributedTranspiler",
    "GeoStrategy",
    "HalfAsyncStrategy",
    "StrategyFactory",
    "SyncStrategy",
    "TrainerRuntimeConfig",
    "TranspilerOptimizer",
    "fleet",
]


class DistributedTranspiler(Fleet):
    """A job of pservers and workers over `DistributeTranspiler`."""

    def __init__(self, mode: int = Mode.TRANSPILER) -> None:
        super().__init__(mode)
        self._transpile_config: DistributedStrategy | None = None
        self._transpiler: DistributeTranspiler | None = None

    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> DistributedOptimizer:
        """The optimizer whose ``minimize`` distributes the program, by a strategy or a DistributeTranspilerConfig.

        Without ``strategy`` in sync mode. Raises FleetError before ``init``, and for arguments that are neither.
        """
        self._role_maker.worker_index()
        self._optimizer = TranspilerOptimizer(optimizer, strategy, self)
        return self._optimizer

    def init_worker(self) -> None:
        """Be ready to train. Servers are met by the startup program or the first step, which wait for them."""
        self._main("init_worker")

    def init_server(self, model_dir: str | Path | None = None, **unused: object) -> None:
        """Run the startup program of this pserver; with ``model_dir`` then load its part of what `save_persistables` wrote.

        Raises FleetError at a worker and before ``minimize``, MissingFileError for a folder that is not there.
        """
        main = self._main("init_server")
        if not self.is_server():
            raise FleetError("fleet.init_server is for pservers; this process is a worker, which calls init_worker")
        executor = self._own_executor()
        executor.run(self.startup_program)
        if model_dir:
            if not Path(model_dir).is_dir():
                raise MissingFileError(
                    f"fleet.init_server: there is no folder {str(model_dir)!r} to load the model from"
                )
            io.load_persistables(executor, model_dir, main)

    def run_server(self) -> None:
        """Serve until every worker is done. Raises FleetError at a worker and before ``minimize``."""
        main = self._main("run_server")
        if not self.is_server():
            raise FleetError("fleet.run_server is for pservers; this process is a worker")
        self._own_executor().run(main)

    def stop_worker(self) -> None:
        """Tell the servers that this worker is done, whichever executors ran its programs."""
        self._main("stop_worker")
        complete_all()
        self._own_executor().close()

    def _distribute(self, given: Any, main: Program, startup: Program) -> None:
        """Turn the programs into those of this process' role."""
        self._transpile_config = strategy_of(given)
        config = self._transpile_config.get_program_config()
        self._origin_program = main.clone()
        self._transpiler = DistributeTranspiler(config)
        worker = self.is_worker()
        self._transpiler.transpile(
            self.worker_index() if worker else 0,
            main,
            self.server_endpoints(to_string=True),
            self.worker_num(),
            config.sync_mode,
            startup,
        )
        if worker:
            self.main_program, self.startup_program = self._transpiler.get_trainer_program(), startup
        else:
            endpoint = self.server_endpoints()[self.server_index()]
            self.main_program, self.startup_program = self._transpiler.get_pserver_programs(endpoint)

    def _main(self, method: str) -> Program:
        if self.main_program is None:
            raise FleetError(
                f"fleet.{method}: there is no program of this process yet; call init(role_maker) and "
                "distributed_optimizer(optimizer, strategy).minimize(loss) first"
            )
        return self.main_program

    def _own_executor(self) -> Executor:
        if self._executor is None:
            raise FleetError("fleet does not know its role yet; call fleet.init(role_maker) first")
        return self._executor


class TranspilerOptimizer(DistributedOptimizer):
    """Minimizes, then distributes the program of the loss."""

    def __init__(self, optimizer: Any, strategy: Any = None, owner: DistributedTranspiler | None = None) -> None:
        super().__init__(optimizer, strategy)
        self._owner = owner if owner is not None else fleet
        strategy_of(strategy)

    def minimize(
        self,
        loss: Variable,
        scopes: Any = None,
        startup_program: Program | None = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
    ) -> Any:
        """Append what one step needs, then make the programs those of this process' role.

        Returns (optimizer ops, (parameter, gradient) pairs). Raises FleetError for a list of losses, TranspileError.
        """
        main, startup = programs_of(loss, startup_program)
        result = super().minimize(loss, scopes, startup, parameter_list, no_grad_set)
        self._owner._distribute(self._strategy, main, startup)  # noqa: SLF001 (one class in two)
        return result


#: the fleet of this process
fleet: Final = DistributedTranspiler()
