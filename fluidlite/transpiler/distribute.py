"""`DistributeTranspiler`: Fluid's interface to the transpiler. What it does is in `planner` and `pipeline`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fluidlite import framework
from fluidlite.core import edit
from fluidlite.errors import TranspileError
from fluidlite.transpiler.pipeline import (
    PSERVER_PASSES,
    PSERVER_STARTUP_PASSES,
    TRAINER_PASSES,
    TRAINER_STARTUP_PASSES,
    run_passes,
)
from fluidlite.transpiler.placement import Dispatcher, RoundRobin
from fluidlite.transpiler.plan import Cluster, Distribution, Options
from fluidlite.transpiler.planner import make_plan

#: fields of the config that ask for another kind of job, and the value that asks for none
_OTHER_MODES: Final = {"mode": "pserver", "enable_dc_asgd": False, "half_async": False, "geo_sgd_mode": False}


@dataclass
class DistributeTranspilerConfig:
    """How to transpile. Fields have Fluid's names.

    ``slice_var_up``: cut dense parameters over the servers, into slices of at least ``min_block_size`` elements (any
    number from 1 on). ``split_method``: `RoundRobin` (the default) or `HashName`. ``sync_mode`` False, here or as an
    argument of ``transpile``, trains asynchronously. ``runtime_split_send_recv`` changes nothing: gradients are always
    split by ops. ``wait_port``, ``print_log`` likewise: a trainer's first message waits for its servers.
    """

    slice_var_up: bool = True
    split_method: type[Dispatcher] | None = None
    min_block_size: int = 8192
    sync_mode: bool = True
    mode: str = "pserver"
    runtime_split_send_recv: bool = False
    enable_dc_asgd: bool = False
    half_async: bool = False
    completely_not_async: bool = False
    geo_sgd_mode: bool = False
    geo_sgd_need_push_nums: int = 100
    print_log: bool = False
    wait_port: bool = True


class DistributeTranspiler:
    """Rewrites a training program for trainers and pservers.

    ``transpile`` keeps clones of both programs, from which every ``get_*`` result is derived, in any order, and installs the
    trainer's programs into the objects that it was given.
    """

    def __init__(self, config: DistributeTranspilerConfig | None = None) -> None:
        self.config = config if config is not None else DistributeTranspilerConfig()
        self._main: framework.Program | None = None

    def transpile(
        self,
        trainer_id: int,
        program: framework.Program | None = None,
        pservers: str = "127.0.0.1:6174",
        trainers: int = 1,
        sync_mode: bool = True,
        startup_program: framework.Program | None = None,
        current_endpoint: str = "127.0.0.1:6174",
    ) -> None:
        """Make the plan and turn ``program`` and ``startup_program`` (default: the default ones) into the trainer's.

        ``pservers``: endpoints separated by commas. ``current_endpoint`` is not used (Fluid's other modes need it).
        Raises TranspileError with all reasons, and then changes nothing.
        """
        main = program if program is not None else framework.default_main_program()
        startup = startup_program if startup_program is not None else framework.default_startup_program()
        cluster = Cluster(
            endpoints=tuple(endpoint.strip() for endpoint in pservers.split(",")),
            trainers=trainers,
            trainer_id=trainer_id,
            sync=sync_mode and self.config.sync_mode,
        )
        distribution = distribute(main, startup, cluster, self.config)
        plan = distribution.plan
        edit.install(main.desc, run_passes(distribution.main, plan, TRAINER_PASSES))
        edit.install(startup.desc, run_passes(distribution.startup, plan, TRAINER_STARTUP_PASSES))
        main.distribution = startup.distribution = distribution
        self._main = main
