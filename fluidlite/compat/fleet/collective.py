"""``paddle.fluid.incubate.fleet.collective``: workers without servers. One worker trains; several are not supported."""

from __future__ import annotations

import os
import warnings
from typing import Any, Final

from fluidlite.compat.compiler import BuildStrategy
from fluidlite.compat.fleet.fleet_base import DistributedOptimizer, Fleet, programs_of
from fluidlite.compat.fleet.mode import Mode
from fluidlite.compat.fleet.role_maker import PaddleCloudRoleMaker, RoleMakerBase, UserDefinedCollectiveRoleMaker
from fluidlite.errors import NotSupported
from fluidlite.framework import Program, Variable

__all__ = ["Collective", "CollectiveOptimizer", "DistributedStrategy", "TrainStatus", "fleet"]


class DistributedStrategy(BuildStrategy):
    """Settings of training on several devices. They change nothing, except those that change the result: NotSupported."""

    def __init__(self) -> None:
        super().__init__()
        self.use_local_sgd = False
        self.use_dist_fc = False
        self.dist_fc_config: Any = None
        self.mode = "nccl2"
        self.collective_mode: str | None = None
        self.forward_recompute = False
        self.recompute_checkpoints: list[Any] = []
        self.use_amp = False
        self.amp_loss_scaling = 2**15
        self.exec_strategy: Any = None

    def unsupported(self) -> list[str]:
        """The settings that are on and change the result."""
        return [name for name in ("use_amp", "use_dist_fc") if getattr(self, name)]


class TrainStatus:
    """Up to which epoch a job has come."""

    def __init__(self, epoch_no: int = -1) -> None:
        self._epoch_no = epoch_no

    def next(self) -> int:
        """The epoch to come."""
        return self._epoch_no + 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainStatus) and self._epoch_no == other._epoch_no

    def __hash__(self) -> int:
        return hash(self._epoch_no)


class Collective(Fleet):
    """The fleet of one worker."""

    def __init__(self) -> None:
        super().__init__(Mode.COLLECTIVE)

    def init(self, role_maker: RoleMakerBase | None = None) -> None:
        """Take a role; without ``role_maker`` the environment's, or the only one. Raises NotSupported for several workers."""
        if role_maker is None:
            given = os.environ.get("PADDLE_TRAINER_ENDPOINTS")
            role_maker = PaddleCloudRoleMaker(is_collective=True) if given else _only_worker()
        super().init(role_maker)
        if self.worker_num() > 1:
            raise NotSupported(
                f"fleet.collective with {self.worker_num()} workers is not supported by fluidlite: they would exchange "
                "gradients without servers; use incubate.fleet.parameter_server.distribute_transpiler"
            )

    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> DistributedOptimizer:
        """The optimizer itself, as one worker needs it. Raises NotSupported for settings that change the result."""
        self._role_maker.worker_index()
        self._optimizer = CollectiveOptimizer(optimizer, strategy, self)
        return self._optimizer

    def init_worker(self) -> None:
        """Not needed: warns."""
        _not_needed("init_worker")

    def init_server(self, model_dir: Any = None) -> None:
        """Not needed: warns."""
        _not_needed("init_server")

    def run_server(self) -> None:
        """Not needed: warns."""
        _not_needed("run_server")

    def stop_worker(self) -> None:
        """Not needed: warns."""
        _not_needed("stop_worker")


class CollectiveOptimizer(DistributedOptimizer):
    """Minimizes, and tells the fleet which programs are its own."""

    def __init__(self, optimizer: Any, strategy: Any = None, owner: Collective | None = None) -> None:
        super().__init__(optimizer, strategy)
        self._owner = owner if owner is not None else fleet
        if isinstance(strategy, DistributedStrategy) and strategy.unsupported():
            raise NotSupported(
                f"fleet.collective: {strategy.unsupported()[0]} is not supported by fluidlite; leave it off"
            )

    def minimize(
        self,
        loss: Variable,
        scopes: Any = None,
        startup_program: Program | None = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
    ) -> Any:
        """The wrapped optimizer's ``minimize``."""
        main, startup = programs_of(loss, startup_program)
        result = super().minimize(loss, scopes, startup, parameter_list, no_grad_set)
        self._owner.main_program, self._owner.startup_program = main, startup
        return result


def _only_worker() -> UserDefinedCollectiveRoleMaker:
    return UserDefinedCollectiveRoleMaker(0, ["127.0.0.1:0"])


def _not_needed(method: str) -> None:
    warnings.warn(f"fleet.collective has no servers, so {method} does nothing", stacklevel=3)


#: the fleet of this process
fleet: Final = Collective()
