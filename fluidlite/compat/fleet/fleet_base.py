"""``paddle.fluid.incubate.fleet.base.fleet_base``: what every fleet answers, and the optimizer that it wraps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from fluidlite import framework, io
from fluidlite.compat.fleet.mode import Mode
from fluidlite.compat.fleet.role_maker import RoleMakerBase, from_environment
from fluidlite.errors import FleetError
from fluidlite.executor import Executor
from fluidlite.framework import Program, Variable, VarOrName
from fluidlite.optimizer import Optimizer

__all__ = ["DistributedOptimizer", "Fleet", "Mode"]

Item = TypeVar("Item")


class Fleet:
    """The job as one of its processes sees it. Everything but ``init`` raises FleetError before ``init``."""

    def __init__(self, mode: int) -> None:
        self._mode = mode
        self._is_initialized = False
        self._role: RoleMakerBase | None = None
        self._executor: Executor | None = None
        self._optimizer: DistributedOptimizer | None = None
        #: the programs of this process, after ``minimize``
        self.main_program: Program | None = None
        self.startup_program: Program | None = None
        self._origin_program: Program | None = None

    def init(self, role_maker: RoleMakerBase | None = None) -> None:
        """Take a role. Without ``role_maker`` the environment says it. Raises FleetError, SettingError, NotSupported."""
        if role_maker is None:
            role_maker = from_environment()
        if not isinstance(role_maker, RoleMakerBase):
            raise FleetError(f"fleet.init: role_maker must be a RoleMakerBase, not {type(role_maker).__name__}")
        role_maker.generate_role()
        self._role = role_maker
        self._executor = Executor()
        self._is_initialized = True

    @property
    def _role_maker(self) -> RoleMakerBase:
        if self._role is None:
            raise FleetError("fleet does not know its role yet; call fleet.init(role_maker) first")
        return self._role

    def is_first_worker(self) -> bool:
        """Whether this is worker 0."""
        return self._role_maker.is_first_worker()

    def is_worker(self) -> bool:
        """Whether this process trains."""
        return self._role_maker.is_worker()

    def is_server(self) -> bool:
        """Whether this process is a pserver."""
        return self._role_maker.is_server()

    def worker_index(self) -> int:
        """The number of this worker."""
        return self._role_maker.worker_index()

    def worker_num(self) -> int:
        """How many workers there are."""
        return self._role_maker.worker_num()

    def server_index(self) -> int:
        """The number of this pserver."""
        return self._role_maker.server_index()

    def server_num(self) -> int:
        """How many pservers there are."""
        return len(self._role_maker.get_pserver_endpoints())

    @overload
    def worker_endpoints(self, to_string: Literal[False] = ...) -> list[str]: ...
    @overload
    def worker_endpoints(self, to_string: Literal[True]) -> str: ...
    def worker_endpoints(self, to_string: bool = False) -> list[str] | str:
        """The endpoints of the workers: a list, or with commas between them."""
        endpoints = self._role_maker.get_trainer_endpoints()
        return ",".join(endpoints) if to_string else endpoints

    @overload
    def server_endpoints(self, to_string: Literal[False] = ...) -> list[str]: ...
    @overload
    def server_endpoints(self, to_string: Literal[True]) -> str: ...
    def server_endpoints(self, to_string: bool = False) -> list[str] | str:
        """The endpoints of the pservers: a list, or with commas between them."""
        endpoints = self._role_maker.get_pserver_endpoints()
        return ",".join(endpoints) if to_string else endpoints

    def split_files(self, files: Sequence[Item]) -> list[Item]:
        """This worker's share of ``files``: contiguous, the first ``len(files) % workers`` shares one longer."""
        if not isinstance(files, list):
            raise FleetError(f"fleet.split_files: files must be a list of paths, not {type(files).__name__}")
        index = self.worker_index()
        share, longer = divmod(len(files), self.worker_num())
        begin = index * share + min(index, longer)
        return files[begin : begin + share + (index < longer)]

    def barrier_worker(self) -> None:
        """Return when every worker has called it; see `RoleMakerBase.barrier_worker`."""
        self._role_maker.barrier_worker()

    def all_reduce_worker(self, input: Any, output: Any) -> None:
        """Write the sum of every worker's ``input`` into ``output``; see `RoleMakerBase.all_reduce_worker`."""
        self._role_maker.all_reduce_worker(input, output)

    def save_inference_model(
        self,
        executor: Any,
        dirname: str | Path,
        feeded_var_names: Sequence[str] | None = None,
        target_vars: Sequence[VarOrName] | None = None,
        main_program: Program | None = None,
        export_for_deployment: bool = True,
    ) -> None:
        """Save what computes ``target_vars`` from the fed variables, with the values that the servers have.

        Of the program before ``minimize`` distributed it, or of ``main_program``. Raises FleetError for an executor that is
        none and a program that was compiled.
        """
        program = self._program("save_inference_model", executor, main_program)
        io.save_inference_model(
            dirname, feeded_var_names or [], target_vars or [], executor, program, None, None, export_for_deployment
        )

    def save_persistables(
        self, executor: Any, dirname: str | Path, main_program: Program | None = None, **unused: object
    ) -> None:
        """Save all that training must remember, one file per variable, with the values that the servers have."""
        program = self._program("save_persistables", executor, main_program)
        if program.distribution is None and self._mode != Mode.COLLECTIVE:
            raise FleetError("fleet.save_persistables: the program is local; save it by fluid.io.save_persistables")
        io.save_persistables(executor, dirname, program)

    def _program(self, method: str, executor: Any, program: Program | None) -> Program:
        """The program to save: the given one or this process' own."""
        if not isinstance(executor, Executor):
            raise FleetError(f"fleet.{method}: executor must be a fluid.Executor, not {type(executor).__name__}")
        program = program if program is not None else self.main_program
        if program is None:
            raise FleetError(f"fleet.{method}: there is no program yet; minimize by fleet.distributed_optimizer first")
        if not isinstance(program, Program):
            raise FleetError(f"fleet.{method}: main_program must be a fluid.Program, not {type(program).__name__}")
        return program


class DistributedOptimizer:
    """An optimizer whose ``minimize`` also distributes the program."""

    def __init__(self, optimizer: Any, strategy: Any = None) -> None:
        if not hasattr(optimizer, "minimize"):
            raise FleetError(f"fleet.distributed_optimizer: optimizer must be an Optimizer, not {optimizer!r}")
        self._optimizer: Optimizer = optimizer
        self._strategy = strategy

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
        callbacks: Any = None,
    ) -> Any:
        """The wrapped optimizer's ``backward``."""
        return self._optimizer.backward(loss, startup_program, parameter_list, no_grad_set, callbacks)

    def apply_gradients(self, params_grads: Any) -> Any:
        """The wrapped optimizer's ``apply_gradients``."""
        return self._optimizer.apply_gradients(params_grads)

    def minimize(
        self,
        loss: Variable,
        scopes: Any = None,
        startup_program: Program | None = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
    ) -> Any:
        """The wrapped optimizer's ``minimize``; ``scopes`` is not used."""
        return self._optimizer.minimize(loss, startup_program, parameter_list, no_grad_set)


def programs_of(loss: Variable, startup: Program | None) -> tuple[Program, Program]:
    """(main program, startup program) that ``minimize`` of a loss changes."""
    if not isinstance(loss, Variable) or isinstance(startup, list):
        raise FleetError("fleet's minimize takes one loss and one startup program, no lists")
    return loss.program, startup if startup is not None else framework.default_startup_program()
