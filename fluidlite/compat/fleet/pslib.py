"""``paddle.fluid.incubate.fleet.parameter_server.pslib``: scripts for Baidu's own servers, over fluidlite's.

A job trains asynchronously: the program is transpiled, and rows and gradients travel by its ops. What pslib knows and
fluidlite does not (shows and clicks of a row, its caches, its ids of tables) raises NotSupported.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from fluidlite import io
from fluidlite.compat import left_out
from fluidlite.compat.fleet.distribute_transpiler import DistributedTranspiler, TranspilerOptimizer
from fluidlite.compat.fleet.mode import Mode
from fluidlite.compat.fleet.strategy import AsyncStrategy
from fluidlite.dist_io import ServerStore
from fluidlite.errors import NotSupported
from fluidlite.framework import Program, Variable
from fluidlite.runtime.scope import global_scope
from fluidlite.transpiler.plan import Storage
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.var_io import ScopeStore

__all__ = ["DownpourOptimizer", "PSLib", "fleet", "fleet_embedding"]


class PSLib(DistributedTranspiler):
    """The fleet of pslib scripts."""

    def __init__(self) -> None:
        super().__init__(Mode.PSLIB)

    def __getattr__(self, name: str) -> Any:
        """What is left out."""
        return left_out.find("fluid.incubate.fleet.parameter_server.pslib.fleet", name)

    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> DownpourOptimizer:
        """The optimizer whose ``minimize`` distributes the program, asynchronously.

        The settings of ``strategy`` are those of pslib's accessors; the optimizer's own take their place, with one warning.
        """
        self._role_maker.worker_index()
        self._optimizer = made = DownpourOptimizer(optimizer, strategy, self)
        return made

    def set_pull_local_thread_num(self, thread_num: int) -> None:
        """Accepted: the port of a trainer needs no number of threads."""

    def _set_client_communication_config(
        self, request_timeout_ms: int, connect_timeout_ms: int, max_retry: int
    ) -> None:
        """Accepted: how long servers are waited for is said by FLUIDLITE_CONNECT_SECONDS and FLUIDLITE_RETRY_SECONDS."""

    def stop_worker(self) -> None:
        """Wait for the other workers, then tell the servers that this one is done."""
        self.barrier_worker()
        super().stop_worker()

    def save_persistables(
        self, executor: Any, dirname: str | Path, main_program: Program | None = None, **unused: object
    ) -> None:
        """Worker 0 saves all that training must remember, one file per variable; the others wait for it.

        ``mode`` of pslib, which chooses among rows by their shows and clicks, is accepted as 0 or left out.
        Raises NotSupported for another.
        """
        if unused.get("mode", 0) != 0:
            raise NotSupported(
                f"save_persistables: mode={unused['mode']!r} is not supported by fluidlite: rows keep no shows and clicks to "
                "choose them by"
            )
        self.barrier_worker()
        if self.is_first_worker():
            super().save_persistables(executor or self._own_executor(), dirname, main_program)
        self.barrier_worker()

    def save_model(self, model_dir: str | Path, mode: int = 0) -> None:
        """`save_persistables` of this fleet's program."""
        self.save_persistables(None, model_dir, mode=mode)

    def load_model(self, model_dir: str | Path, **unused: object) -> None:
        """Worker 0 puts what `save_model` wrote onto the servers; the others wait for it."""
        self.barrier_worker()
        if self.is_first_worker():
            io.load_persistables(self._own_executor(), model_dir, self._main("load_model"))
        self.barrier_worker()

    def clear_model(self) -> None:
        """Worker 0 empties all tables on the servers; the others wait for it."""
        self.barrier_worker()
        if self.is_first_worker():
            self._clear()
        self.barrier_worker()

    def _clear(self) -> None:
        main = self._main("clear_model")
        plan = main.distribution.plan
        store = ServerStore(plan, main.desc, ScopeStore(global_scope()), self._own_executor())
        for held in plan.held():
            if held.storage is Storage.ROWS:
                (rows,) = store.read([held.name])
                store.write(held.name, SelectedRows(np.empty(0, np.int64), rows.value[:0], rows.height))


class DownpourOptimizer(TranspilerOptimizer):
    """Minimizes, then distributes the program for asynchronous training."""

    def __init__(self, optimizer: Any, strategy: Any = None, owner: DistributedTranspiler | None = None) -> None:
        super().__init__(optimizer, AsyncStrategy(), owner if owner is not None else fleet)
        if strategy:
            settings = sorted(strategy) if isinstance(strategy, Mapping) else [repr(strategy)]
            warnings.warn(
                f"settings of pslib change nothing, the optimizer's own hold: {', '.join(settings)}", stacklevel=3
            )

    def minimize(
        self,
        losses: Variable | Sequence[Variable],
        scopes: Any = None,
        startup_programs: Any = None,
        parameter_list: Any = None,
        no_grad_set: Any = None,
    ) -> Any:
        """Like `TranspilerOptimizer.minimize`; a loss and a startup program may each come as a list of one.

        Raises NotSupported for several losses.
        """
        return super().minimize(
            _only("losses", losses), scopes, _only("startup_programs", startup_programs), parameter_list, no_grad_set
        )

    def apply_gradients(self, params_grads: Any) -> NoReturn:
        """Refused, as in Fluid: only ``minimize`` distributes."""
        raise NotSupported("pslib's DownpourOptimizer.apply_gradients is not supported, in Fluid neither; use minimize")


def _only(argument: str, given: Any) -> Any:
    if not isinstance(given, (list, tuple)):
        return given
    if len(given) != 1:
        raise NotSupported(
            f"pslib's minimize of {len(given)} {argument} is not supported by fluidlite; make one program"
        )
    return given[0]


class fleet_embedding:  # noqa: N801 (Fluid's name)
    """pslib's own embedding: not supported."""

    def __init__(self, click_name: str | None = None, scale_sparse_grad: bool = True) -> None:
        raise NotSupported(
            "fleet_embedding is not supported by fluidlite: use fluid.layers.embedding(is_distributed=True, is_sparse=True)"
        )


#: the fleet of this process
fleet: Final = PSLib()
