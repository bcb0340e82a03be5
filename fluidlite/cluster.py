"""LocalCluster: the pservers and trainers of a job in one process, for tests, notebooks and the debugger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Self

from fluidlite.core.ir import Operator
from fluidlite.core.ir import Program as Desc
from fluidlite.errors import FluidliteError, ProgramError
from fluidlite.executor import Executor
from fluidlite.framework import Program, VarOrName
from fluidlite.ports import TrainerPorts, keeper_of
from fluidlite.pserver.host import Host, make_service
from fluidlite.pserver.service import IN_PROCESS, PServer
from fluidlite.rpc.inproc import inproc_port
from fluidlite.runtime.scope import Scope
from fluidlite.transpiler.distribute import DistributeTranspiler, DistributeTranspilerConfig


class _NoHost:
    """A trainer of a LocalCluster serves nothing."""

    def serve(self, program: Desc, op: Operator, scope: Any) -> None:
        raise ProgramError("a LocalCluster already runs its pservers; do not run a pserver program by its trainers")


class LocalTrainer:
    """One trainer: its transpiled programs ``main`` and ``startup``, its ``scope`` and its ``executor``."""

    def __init__(self, main: Program, startup: Program, services: Mapping[str, PServer], trainers: int) -> None:
        self.main = main
        self.startup = startup
        self.scope = Scope()
        self._ports = TrainerPorts(
            lambda trainer, _: inproc_port(services, trainer=trainer, trainers=trainers),
            _NoHost(),
        )
        self.executor = Executor(ports=self._ports)

    def run(
        self,
        feed: Mapping[str, Any] | None = None,
        fetch_list: VarOrName | Sequence[VarOrName] | None = None,
        program: Program | None = None,
        return_numpy: bool = True,
    ) -> list[Any]:
        """Run the main program, or another one, in this trainer's scope."""
        wanted = program if program is not None else self.main
        return self.executor.run(wanted, feed, fetch_list, scope=self.scope, return_numpy=return_numpy)

    def step(self, feed: Mapping[str, Any], fetch_list: VarOrName | Sequence[VarOrName] | None = None) -> list[Any]:
        """Run the main program beside the other trainers. An error makes this trainer leave the job, so that the others
        do not wait for it."""
        try:
            return self.run(feed, fetch_list)
        except Exception:
            self._ports.leave()
            raise


class LocalCluster:
    """A job in one process: calls take the place of messages, everything else is what separate processes run.

    ``main`` and ``startup`` are untouched programs, after ``minimize``; they are not changed. All trainers have run
    their startup programs when the constructor returns. Use as a context manager, or call `close`.

    Raises FluidliteError without pservers or trainers, TranspileError, and what the startup programs raise.
    """

    def __init__(
        self,
        main: Program,
        startup: Program,
        pservers: int = 1,
        trainers: int = 1,
        sync: bool = True,
        config: DistributeTranspilerConfig | None = None,
    ) -> None:
        if pservers < 1 or trainers < 1:
            raise FluidliteError(f"a job needs at least one pserver and one trainer, not {pservers} and {trainers}")
        endpoints = [f"pserver{index}:0" for index in range(pservers)]
        transpilers = []
        programs = []
        for trainer in range(trainers):
            mine = main.clone(), startup.clone()
            transpiler = DistributeTranspiler(config)
            transpiler.transpile(trainer, mine[0], ",".join(endpoints), trainers, sync, mine[1])
            transpilers.append(transpiler)
            programs.append(mine)
        self.scopes = {endpoint: Scope() for endpoint in endpoints}
        self._transpiler = transpilers[0]
        self.services = {endpoint: self._serve(endpoint) for endpoint in endpoints}
        self.trainers = [LocalTrainer(*mine, self.services, trainers) for mine in programs]
        self._threads = ThreadPoolExecutor(trainers, thread_name_prefix="trainer")
        for trainer_ in self.trainers:
            trainer_.run(program=trainer_.startup)

    def run(
        self, feeds: Sequence[Mapping[str, Any]], fetch_list: VarOrName | Sequence[VarOrName] | None = None
    ) -> list[list[Any]]:
        """One step of every trainer at the same time, ``feeds[i]`` for trainer i; the fetched values per trainer.

        Returns or raises when all have ended. Of several errors that of the first trainer is raised; who raised one has
        left the job.
        """
        if len(feeds) != len(self.trainers):
            raise FluidliteError(f"{len(self.trainers)} trainers need a feed each, not {len(feeds)}")
        for trainer, feed in zip(self.trainers, feeds, strict=True):
            trainer.executor.check(trainer.main, feed, fetch_list)
        steps = [
            self._threads.submit(trainer.step, feed, fetch_list)
            for trainer, feed in zip(self.trainers, feeds, strict=True)
        ]
        wait(steps)
        return [step.result() for step in steps]

    def get_test_program(self, program: Program) -> Program:
        """A program cloned ``for_test`` from the untouched main program, with its lookups asking the servers, read-only.
        Run it by a trainer: ``cluster.trainers[0].run(feed, fetch_list, program=test)``."""
        return self._transpiler.get_test_program(program)

    def close(self) -> None:
        """Complete every trainer; the servers then end, with a checkpoint where they keep some. Idempotent."""
        for trainer in self.trainers:
            trainer.executor.close()
        for service in self.services.values():
            service.close()
        self._threads.shutdown()

    def _serve(self, endpoint: str) -> PServer:
        program, startup = self._transpiler.get_pserver_programs(endpoint)
        scope = self.scopes[endpoint]
        Executor().run(startup, scope=scope)
        listen = program.desc.root.ops[-1]
        host = Host(program.desc, listen, scope)
        return make_service(host, IN_PROCESS, keeper=keeper_of(listen, host))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
