"""Runs a transpiled program with real servers and trainers in this process, one thread per trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from fluidlite import framework, unique_name
from fluidlite.core.ir import Program
from fluidlite.ports import TrainerPorts
from fluidlite.pserver.host import Host, make_service
from fluidlite.rpc.inproc import InprocChannel
from fluidlite.rpc.port import TrainerPort
from fluidlite.runtime.executor import ExecutorCore
from fluidlite.runtime.scope import Scope
from fluidlite.transpiler.pipeline import (
    PSERVER_PASSES,
    PSERVER_STARTUP_PASSES,
    TRAINER_PASSES,
    TRAINER_STARTUP_PASSES,
    run_passes,
)
from fluidlite.transpiler.plan import Cluster, Options, Plan
from fluidlite.transpiler.planner import make_plan

Feed = Mapping[str, Any]
#: builds a net in the default programs and returns its loss
Net = Callable[[], framework.Variable]


class Model:
    """A net's two programs and the name of its loss."""

    def __init__(self, net: Net) -> None:
        main, startup = framework.Program(), framework.Program()
        with unique_name.guard(), framework.program_guard(main, startup):
            self.loss = net().name
        self.main: Program = main.desc
        self.startup: Program = startup.desc


class LocalRun:
    """The model in one process, without servers."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.scope = Scope()
        self.executor = ExecutorCore()
        self.executor.run(model.startup, scope=self.scope)

    def step(self, feed: Feed) -> Any:
        return self.executor.run(self.model.main, feed, [self.model.loss], self.scope)[0]


class TranspiledRun:
    """The model on servers and trainers."""

    def __init__(
        self, model: Model, servers: int = 2, trainers: int = 1, sync: bool = True, options: Options | None = None
    ) -> None:
        self.model = model
        endpoints = tuple(f"ps{index}:1" for index in range(servers))
        options = options if options is not None else Options(min_block_size=1)
        self.plans = [
            make_plan(model.main, model.startup, Cluster(endpoints, trainers, trainer, sync), options)
            for trainer in range(trainers)
        ]
        self.scopes = {endpoint: Scope() for endpoint in endpoints}
        self.services = {endpoint: make_service(self._host(self.plans[0].at(endpoint))) for endpoint in endpoints}
        self._pool = ThreadPoolExecutor(trainers)
        self.trainers = [_Trainer(self, plan) for plan in self.plans]
        self._each(lambda trainer: trainer.start())

    def _host(self, plan: Plan) -> Host:
        scope = self.scopes[plan.endpoint or ""]
        ExecutorCore().run(run_passes(self.model.startup, plan, PSERVER_STARTUP_PASSES), scope=scope)
        program = run_passes(self.model.main, plan, PSERVER_PASSES)
        return Host(program, program.root.ops[0], scope)

    def step(self, feeds: Sequence[Feed]) -> list[Any]:
        """One step of every trainer; their losses."""
        pairs = dict(zip(map(id, self.trainers), feeds, strict=True))
        return self._each(lambda trainer: trainer.step(pairs[id(trainer)]))

    def _each(self, call: Callable[[_Trainer], Any]) -> list[Any]:
        return list(self._pool.map(call, self.trainers))

    def param(self, name: str) -> Any:
        """The value of a dense parameter on its servers."""
        param = next(param for param in self.plans[0].dense if param.name == name)
        pieces = [self.scopes[part.endpoint].get(param.on_server(name, part)) for part in param.slices]
        return np.concatenate(pieces)

    def rows(self, name: str) -> dict[int, Any]:
        """The rows of a table on all servers."""
        shards = [scope.get(name).export() for scope in self.scopes.values()]
        return {int(id): row for shard in shards for id, row in zip(shard.rows, shard.value, strict=True)}

    def close(self) -> None:
        for trainer in self.trainers:
            trainer.executor.close()
        self._pool.shutdown()


class _Trainer:
    def __init__(self, run: TranspiledRun, plan: Plan) -> None:
        self.main = run_passes(run.model.main, plan, TRAINER_PASSES)
        self.startup = run_passes(run.model.startup, plan, TRAINER_STARTUP_PASSES)
        self.loss = run.model.loss
        self.scope = Scope()
        self.executor = ExecutorCore(
            TrainerPorts(
                lambda trainer, trainers: TrainerPort(
                    lambda endpoint: InprocChannel(run.services[endpoint]), trainer=trainer, trainers=trainers
                ),
                host=None,  # type: ignore[arg-type]
            )
        )

    def start(self) -> None:
        self.executor.run(self.startup, scope=self.scope)

    def step(self, feed: Feed) -> Any:
        return self.executor.run(self.main, feed, [self.loss], self.scope)[0]
