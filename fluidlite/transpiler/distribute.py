"""`DistributeTranspiler`: Fluid's interface to the transpiler. The work is done by `planner` and `pipeline`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

from fluidlite import framework
from fluidlite.core import edit
from fluidlite.errors import TranspileError
from fluidlite.ops.keeping import Keeping
from fluidlite.ops.modes import Wire
from fluidlite.transpiler.fluid_wire import of_environment
from fluidlite.transpiler.modes import asked_for
from fluidlite.transpiler.passes.lookups import lower_lookups
from fluidlite.transpiler.pipeline import pserver_passes, run_passes, trainer_passes
from fluidlite.transpiler.placement import Dispatcher, RoundRobin
from fluidlite.transpiler.plan import Cluster, Distribution, Options, Plan
from fluidlite.transpiler.planner import make_plan

_TOO_EARLY: Final = "no program was transpiled yet; call transpile first"


@dataclass(slots=True)
class DistributeTranspilerConfig:
    """How to transpile. Fields have Fluid's names.

    ``slice_var_up``: cut dense parameters over the servers, into slices of at least ``min_block_size`` elements (any
    number from 1 on). ``split_method``: `RoundRobin` (the default) or `HashName`. ``sync_mode`` False, here or as an
    argument of ``transpile``, trains asynchronously. ``dense_on_trainer``: in a job of one trainer, dense parameters and
    their updates stay on it, and only tables and row-fetched parameters go to servers. ``rows_wire_dtype`` and
    ``gradients_wire_dtype`` "float16" or "bfloat16": the rows that trainers fetch, and the gradients of rows that they
    send, travel at half their size, rounded to nearest. The relative error is at most 2^-11 and 2^-8; float16 loses what is
    below 2^-25 and refuses what is above 65504, so it suits rows better than gradients.

    How pushes count: ``sync_mode`` (the default) by the round, off: on arrival (ElasticDL's ``use_async``).
    ``half_async``: the trainer merges up to ``max_merge_var_num`` pushes and sends them behind its back.
    ``geo_sgd_mode``: it trains by itself and sends what has changed every ``geo_sgd_need_push_nums`` steps. ``staleness``,
    a number from 0 on: a trainer is at most so many steps ahead of the slowest. ``completely_not_async``: sync all the same
    (Fluid's synchronous communicator). ``enable_dc_asgd``: async, with gradients compensated for their delay. A round is
    made of ``grads_to_wait`` steps (0: one of every live trainer), each of another trainer unless ``distinct_trainers`` is
    off; steps more than ``sync_version_tolerance`` versions old are refused (-1: none are); gradients that are rows are
    averaged or, with ``sparse_grad_reduce`` "sum", added. ``lr_staleness_modulation``: off the round, the rate is divided
    by how many versions a gradient is behind. ``lr_from_trainer``: the rate that a step carries counts. ``nan_policy``
    "error", "skip" or "zero": what becomes of gradients that are not finite. ``transpile`` refuses what contradicts itself,
    and a ``mode`` other than "pserver".

    ``two_phase_commit``: of several servers each accepts a step before it counts on any, so one that is refused by one
    counts on none; off, it takes a message less. What servers keep on disk: ``checkpoint_dir`` and its kin, ``log_dir`` and its kin, see `ops.keeping.Keeping` and
    docs/fault_tolerance.md. ``wire`` "fluid": trainers and servers speak Fluid's own messages, so that processes of Fluid 1.8
    can take part; parameters are cut and placed as Fluid does (docs/fluid_wire.md); empty: what ``FLUIDLITE_WIRE`` says, else our
    own. ``collective_mode``, ``nccl_comm_num`` and those of hierarchical_allreduce belong to modes that are refused.
    ``runtime_split_send_recv`` (async only), ``print_log`` and ``wait_port`` change
    nothing: gradients are always cut by ops of the program, and a trainer's first message waits for its servers.
    """

    slice_var_up: bool = True
    split_method: type[Dispatcher] | None = None
    min_block_size: int = 8192
    sync_mode: bool = True
    dense_on_trainer: bool = False
    rows_wire_dtype: str = ""
    gradients_wire_dtype: str = ""
    mode: str = "pserver"
    runtime_split_send_recv: bool = False
    enable_dc_asgd: bool = False
    half_async: bool = False
    completely_not_async: bool = False
    geo_sgd_mode: bool = False
    geo_sgd_need_push_nums: int = 100
    max_merge_var_num: int = 20
    staleness: int | None = None
    grads_to_wait: int = 0
    distinct_trainers: bool = True
    sync_version_tolerance: int = -1
    sparse_grad_reduce: str = "mean"
    lr_staleness_modulation: bool = False
    lr_from_trainer: bool = False
    nan_policy: str = ""
    two_phase_commit: bool = True
    checkpoint_dir: str = ""
    checkpoint_every: int = 0
    checkpoint_full_every: int = 8
    checkpoint_keep_max: int = 3
    log_dir: str = ""
    log_fsync: bool = False
    log_limit: int = 256
    wire: str = ""
    print_log: bool = False
    wait_port: bool = True
    collective_mode: str | None = None
    nccl_comm_num: int = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: int = 0

    def options(self, sync_mode: bool = True) -> Options:
        """What the planner needs of it. ``sync_mode``: the argument of ``transpile``."""
        asked = asked_for(self, sync_mode)
        return Options(
            slice_var_up=self.slice_var_up,
            min_block_size=self.min_block_size,
            dispatcher=self.split_method if self.split_method is not None else RoundRobin,
            dense_on_trainer=self.dense_on_trainer,
            rows_wire_dtype=self.rows_wire_dtype,
            gradients_wire_dtype=self.gradients_wire_dtype,
            training=asked.settings,
            two_phase=self.two_phase_commit,
            keeping=Keeping(**{field.name: getattr(self, field.name) for field in fields(Keeping)}),
            geo_every=self.geo_sgd_need_push_nums,
            wire=_wire(self.wire or of_environment(), asked.settings.rounds),
            contradictions=(*asked.refusals, *_unknown_wire(self.wire)),
            other_mode="" if self.mode == "pserver" else f"mode={self.mode!r}",
        )


def _wire(asked: str, rounds: bool) -> Wire:
    if asked != Wire.FLUID:
        return Wire.OWN
    return Wire.FLUID if rounds else Wire.FLUID_ASYNC


def _unknown_wire(asked: str) -> tuple[str, ...]:
    known = asked in (Wire.OWN, Wire.FLUID)
    return () if known else (f"wire must be 'fluid' (Fluid's own messages) or '' (ours), not {asked!r}",)


class DistributeTranspiler:
    """Rewrites a training program for trainers and pservers.

    ``transpile`` keeps clones of both programs. Every result is derived from them, so the order of calls does not
    matter.
    """

    def __init__(self, config: DistributeTranspilerConfig | None = None) -> None:
        self.config = config if config is not None else DistributeTranspilerConfig()
        self._main: framework.Program | None = None
        self._distribution: Distribution | None = None

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
        """Plan the job, and turn ``program`` and ``startup_program`` (by default the default ones) into the trainer's.

        ``pservers``: endpoints separated by commas. ``current_endpoint`` is not used. Raises TranspileError with every
        reason at once, and then leaves both programs as they were.
        """
        main = program if program is not None else framework.default_main_program()
        startup = startup_program if startup_program is not None else framework.default_startup_program()
        if not isinstance(pservers, str):
            raise TranspileError([f"pservers must be a string, endpoints separated by commas, not {pservers!r}"])
        endpoints = tuple(endpoint.strip() for endpoint in pservers.split(","))
        options = self.config.options(sync_mode)
        cluster = Cluster(endpoints, trainers, trainer_id, options.training.rounds)
        plan = make_plan(main.desc, startup.desc, cluster, options)
        distribution = Distribution(plan, edit.clone(main.desc), edit.clone(startup.desc))
        passes = trainer_passes(plan)
        trainer_main = run_passes(distribution.main, plan, passes.main)
        trainer_startup = run_passes(distribution.startup, plan, passes.startup)
        edit.install(main.desc, trainer_main)
        edit.install(startup.desc, trainer_startup)
        main.distribution = self._distribution = distribution
        self._main = main

    def get_trainer_program(self, wait_port: bool = True) -> framework.Program:
        """The trainer's main program: the very object that was given to ``transpile``. ``wait_port`` is not used."""
        if self._main is None:
            raise TranspileError([_TOO_EARLY])
        return self._main

    def get_test_program(self, program: framework.Program) -> framework.Program:
        """A program cloned ``for_test`` before ``transpile``, with its lookups asking the servers, read-only."""
        lowered = run_passes(program.desc, self._done.plan, (lower_lookups,))
        return framework.Program(lowered).clone(for_test=True)

    def get_pserver_program(self, endpoint: str) -> framework.Program:
        """The main program of one server. Its ``distribution`` says what of the model the server holds."""
        plan = self._plan_at(endpoint)
        program = framework.Program(run_passes(self._done.main, plan, pserver_passes(plan).main))
        program.distribution = replace(self._done, plan=plan)
        return program

    def get_pserver_programs(self, endpoint: str) -> tuple[framework.Program, framework.Program]:
        """(main program, startup program) of one server."""
        return self.get_pserver_program(endpoint), self.get_startup_program(endpoint)

    def get_startup_program(
        self,
        endpoint: str,
        pserver_program: framework.Program | None = None,
        startup_program: framework.Program | None = None,
    ) -> framework.Program:
        """The startup program of one server. The programs are arguments in Fluid; here both are known already."""
        plan = self._plan_at(endpoint)
        return framework.Program(run_passes(self._done.startup, plan, pserver_passes(plan).startup))

    def _plan_at(self, endpoint: str) -> Plan:
        plan = self._done.plan
        if endpoint not in plan.cluster.endpoints:
            known = ", ".join(plan.cluster.endpoints)
            raise TranspileError([f"{endpoint!r} is none of the endpoints given to transpile ({known})"])
        return plan.at(endpoint)

    @property
    def _done(self) -> Distribution:
        if self._distribution is None:
            raise TranspileError([_TOO_EARLY])
        return self._distribution
