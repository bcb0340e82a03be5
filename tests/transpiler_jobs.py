"""Hand-written programs (tests/transpiler/programs) and the jobs that tests transpile them for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import fluidlite.ops
from fluidlite.core import edit, text
from fluidlite.core.ir import Program
from fluidlite.ops.modes import Mode, Settings
from fluidlite.transpiler.pipeline import (
    GEO_PSERVER_PASSES,
    GEO_PSERVER_STARTUP_PASSES,
    GEO_TRAINER_PASSES,
    GEO_TRAINER_STARTUP_PASSES,
    PSERVER_PASSES,
    PSERVER_STARTUP_PASSES,
    TRAINER_PASSES,
    TRAINER_STARTUP_PASSES,
    Pass,
    run_passes,
    stages,
)
from fluidlite.transpiler.plan import Cluster, Options, Plan
from fluidlite.transpiler.planner import make_plan

FOLDER = Path(__file__).parent / "transpiler"
#: role -> (its passes, whether they work on the startup program, whether it is a server's)
ROLES: dict[str, tuple[tuple[Pass, ...], bool, bool]] = {
    "trainer": (TRAINER_PASSES, False, False),
    "trainer_startup": (TRAINER_STARTUP_PASSES, True, False),
    "pserver": (PSERVER_PASSES, False, True),
    "pserver_startup": (PSERVER_STARTUP_PASSES, True, True),
    "geo_trainer": (GEO_TRAINER_PASSES, False, False),
    "geo_trainer_startup": (GEO_TRAINER_STARTUP_PASSES, True, False),
    "geo_pserver": (GEO_PSERVER_PASSES, False, True),
    "geo_pserver_startup": (GEO_PSERVER_STARTUP_PASSES, True, True),
}
assert fluidlite.ops


class Together:
    """A dispatcher that puts all slices of w on the first server."""

    @staticmethod
    def prefer(names: Sequence[str], servers: int) -> list[int]:
        return [0 if name.startswith("w.") else 1 for name in names]


@cache
def _source(name: str) -> tuple[str, Program, Program]:
    intro, _, rest = (FOLDER / "programs" / f"{name}.txt").read_text(encoding="utf-8").partition("== main\n")
    main, _, startup = rest.partition("== startup\n")
    programs = []
    for part in (main, startup):
        program = text.parse(part)
        for _, op in program.all_ops():
            op.origin = ""
        programs.append(program)
    return intro.removeprefix("#").strip(), programs[0], programs[1]


@dataclass(frozen=True)
class Job:
    """A program and the cluster that it is transpiled for. ``server`` is the server whose programs are looked at."""

    program: str
    servers: int = 2
    trainers: int = 2
    trainer_id: int = 0
    sync: bool = True
    options: Options = field(default_factory=lambda: Options(min_block_size=8))
    server: int = 0

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(f"ps{index}:1" for index in range(self.servers))

    @property
    def intro(self) -> str:
        return _source(self.program)[0]

    @property
    def main(self) -> Program:
        return edit.clone(_source(self.program)[1])

    @property
    def startup(self) -> Program:
        return edit.clone(_source(self.program)[2])

    @property
    def plan(self) -> Plan:
        cluster = Cluster(self.endpoints, self.trainers, self.trainer_id, self.sync)
        return make_plan(self.main, self.startup, cluster, self.options)

    def view(self, role: str) -> tuple[Program, Plan, tuple[Pass, ...]]:
        """(untouched program, plan, passes) of a role."""
        passes, startup, serves = ROLES[role]
        plan = self.plan.at(self.endpoints[self.server]) if serves else self.plan
        return self.startup if startup else self.main, plan, passes

    def result(self, role: str) -> Program:
        """What all passes of a role make."""
        return run_passes(*self.view(role))

    def around(self, role: str, pass_name: str) -> tuple[Program, Program]:
        """The programs before and after one pass of a role."""
        program, plan, passes = self.view(role)
        for step, after in stages(program, plan, passes):
            if step.__name__ == pass_name:
                return program, after
            program = after
        raise KeyError(pass_name)


ON_TRAINER = Options(min_block_size=8, dense_on_trainer=True)
COMPENSATED = Options(min_block_size=8, training=Settings(Mode.ASYNC, dc_asgd=True))
GEO = Options(min_block_size=8, training=Settings(Mode.GEO), geo_every=10)
PUSHES = Settings(grads_to_wait=3, distinct_trainers=False, sparse_grad_reduce="sum", nan_policy="skip")
JOBS = {
    "table": Job("table"),
    "table_async": Job("table", sync=False),
    "table_adam": Job("table_adam", servers=3, server=2),
    "rows": Job("rows", server=1),
    "rows_one_server": Job("rows", servers=1, trainers=1),
    "dense": Job("dense"),
    "dense_together": Job("dense", options=Options(min_block_size=8, dispatcher=Together)),
    "dense_async": Job("dense", sync=False),
    "dense_compensated": Job("dense", sync=False, options=COMPENSATED),
    "dense_pushes": Job("dense", trainers=1, options=Options(min_block_size=8, training=PUSHES)),
    "dense_one_server": Job("dense", servers=1, trainers=1),
    "global_norm": Job("global_norm"),
    "global_norm_on_trainer": Job("global_norm", trainers=1, options=ON_TRAINER),
    "schedule": Job("schedule"),
    "schedule_idle": Job("schedule", servers=3, server=2),
    "geo_table": Job("table_adam", sync=False, options=GEO),
    "geo_rows": Job("rows", sync=False, options=GEO),
    "geo_dense": Job("dense", sync=False, options=GEO),
    "geo_schedule": Job("schedule", sync=False, options=GEO),
    "schedule_on_trainer": Job("schedule", trainers=1, options=ON_TRAINER),
}
