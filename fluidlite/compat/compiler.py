"""``CompiledProgram``, ``ParallelExecutor`` and their strategies: programs for many devices, run on the one there is."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Self

from fluidlite import framework
from fluidlite.compat.fetched import Executor
from fluidlite.compat.places import tell_once
from fluidlite.errors import ProgramError
from fluidlite.framework import Program, VarOrName
from fluidlite.runtime.scope import Scope


class ReduceStrategy(enum.IntEnum):
    """Where devices bring their gradients together."""

    AllReduce = 0
    Reduce = 1
    _NoReduce = 2


class GradientScaleStrategy(enum.IntEnum):
    """How the first gradient of each device is scaled."""

    CoeffNumDevice = 0
    One = 1
    Customized = 2


class BuildStrategy:
    """How Fluid builds the graph of a program. All of it is accepted; one device needs none of it."""

    ReduceStrategy = ReduceStrategy
    GradientScaleStrategy = GradientScaleStrategy

    def __init__(self) -> None:
        self.reduce_strategy = ReduceStrategy.AllReduce
        self.gradient_scale_strategy = GradientScaleStrategy.CoeffNumDevice
        self.debug_graphviz_path = ""
        self.async_mode = False
        self.cache_runtime_context = False
        self.enable_auto_fusion = False
        self.enable_backward_optimizer_op_deps = True
        self.enable_inplace = True
        self.enable_sequential_execution = False
        self.fuse_all_optimizer_ops = False
        self.fuse_all_reduce_ops = True
        self.fuse_bn_act_ops = False
        self.fuse_broadcast_ops = True
        self.fuse_elewise_add_act_ops = False
        self.fuse_relu_depthwise_conv = False
        self.hierarchical_allreduce_inter_nranks = 0
        self.is_distribution = False
        self.memory_optimize: bool | None = None
        self.mkldnn_enabled_op_types: set[str] = set()
        self.nccl_comm_num = 1
        self.num_trainers = 1
        self.remove_unnecessary_lock = True
        self.sync_batch_norm = False
        self.trainer_id = 0
        self.trainers_endpoints: list[str] = []
        self.use_hierarchical_allreduce = False


class ExecutionStrategy:
    """How Fluid runs a graph. All of it is accepted and changes nothing."""

    ExecutorType = enum.IntEnum("ExecutorType", {"Default": 0, "Experimental": 1})

    def __init__(self) -> None:
        self.num_threads = 0
        self.num_iteration_per_drop_scope = 100
        self.num_iteration_per_run = 1
        self.allow_op_delay = False
        self.use_cuda = False
        self.use_experimental_executor = True
        self.use_thread_barrier = False


class CompiledProgram:
    """A program with strategies: ``Executor.run`` runs the program itself.

    ``with_data_parallel`` uses one device, whatever ``places`` says: the batch is not split, so a mean is the mean of all
    of it.
    """

    def __init__(self, program_or_graph: Program, build_strategy: BuildStrategy | None = None) -> None:
        if not isinstance(program_or_graph, Program):
            raise ProgramError(f"CompiledProgram needs a Program, not {type(program_or_graph).__name__}")
        #: what an executor runs
        self.compiled_from = program_or_graph
        self._build_strategy = build_strategy
        self.is_data_parallel = False

    def with_data_parallel(
        self,
        loss_name: str | None = None,
        build_strategy: BuildStrategy | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        share_vars_from: CompiledProgram | None = None,
        places: object = None,
    ) -> Self:
        """The same; ProgramError when it is called twice, or when ``share_vars_from`` is not data parallel."""
        if self.is_data_parallel:
            raise ProgramError("with_data_parallel was called already for this CompiledProgram")
        if share_vars_from is not None and not share_vars_from.is_data_parallel:
            raise ProgramError("share_vars_from is not data parallel: call its with_data_parallel first")
        self.is_data_parallel = True
        return self

    def __getattr__(self, name: str) -> Any:
        """Scripts ask a compiled program for what the program has."""
        if name.startswith("__") or name == "compiled_from":
            raise AttributeError(name)
        return getattr(self.compiled_from, name)


class ParallelExecutor:
    """An executor and a program in one: `run` runs the program on one device.

    ``main_program`` defaults to the default main program. ``use_cuda``, ``share_vars_from`` (parameters are in the scope
    anyway) and the strategies change nothing; ``num_trainers`` above 1 raises ProgramError, as trainers of this kind
    exchange gradients without servers.
    """

    def __init__(
        self,
        use_cuda: bool,
        loss_name: str | None = None,
        main_program: Program | None = None,
        share_vars_from: ParallelExecutor | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        build_strategy: BuildStrategy | None = None,
        num_trainers: int = 1,
        trainer_id: int = 0,
        scope: Scope | None = None,
    ) -> None:
        if num_trainers > 1:
            raise ProgramError(
                f"ParallelExecutor with num_trainers={num_trainers}: trainers exchange gradients through parameter servers "
                "here; use DistributeTranspiler"
            )
        if main_program is not None and not isinstance(framework.as_program(main_program), Program):
            raise ProgramError(f"ParallelExecutor needs a Program, not {type(main_program).__name__}")
        if share_vars_from is not None and not isinstance(share_vars_from, ParallelExecutor):
            raise ProgramError("share_vars_from must be a ParallelExecutor")
        if use_cuda:
            tell_once("ParallelExecutor(use_cuda=True)")
        self._program = main_program if main_program is not None else framework.default_main_program()
        self._scope = scope
        self._executor = Executor()

    @property
    def device_count(self) -> int:
        """1."""
        return 1

    def run(
        self,
        fetch_list: VarOrName | Sequence[VarOrName],
        feed: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        feed_dict: Mapping[str, Any] | None = None,
        return_numpy: bool = True,
    ) -> list[Any]:
        """As `Executor.run`; a list of feeds, one per device of old, is joined into one batch."""
        feed = feed if feed is not None else feed_dict
        return self._executor.run(self._program, feed, fetch_list, scope=self._scope, return_numpy=return_numpy)

    def drop_local_exe_scopes(self) -> None:
        """Nothing: temporaries do not outlive a run."""
