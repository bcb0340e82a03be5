"""Runs passes. The order of the passes of each role is one of the tuples below, and nothing else decides it.

A pass edits the copy of a program that it is handed; whoever calls `apply`, `stages` or `run_passes` keeps the program as
it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from fluidlite.core import edit, text
from fluidlite.core.ir import Program
from fluidlite.core.verify import verify
from fluidlite.errors import FluidliteError, PassError
from fluidlite.ops import registry
from fluidlite.transpiler.passes.delay import back_up_parameters, compensate_delay
from fluidlite.transpiler.passes.deltas import add_deltas
from fluidlite.transpiler.passes.gradients import keep_on_trainer, send_gradients, send_table_gradients
from fluidlite.transpiler.passes.initial import grow_tables, keep_own_inits, slice_inits
from fluidlite.transpiler.passes.local import begin_exchanges, exchange, fetch_new_rows, keep_rows
from fluidlite.transpiler.passes.lookups import lower_lookups
from fluidlite.transpiler.passes.parameters import (
    commit_step,
    drop_updates,
    fake_rows,
    forget_unused,
    receive_parameters,
)
from fluidlite.transpiler.passes.serve import listen, serve_rows
from fluidlite.transpiler.passes.server import copy_schedule, drop_trainer_ops, merge_contributions, move_updates
from fluidlite.transpiler.plan import Plan

Pass = Callable[[Program, Plan], None]

TRAINER_PASSES: Final[tuple[Pass, ...]] = (
    keep_on_trainer,
    lower_lookups,
    send_table_gradients,
    send_gradients,
    commit_step,
    drop_updates,
    forget_unused,
)
TRAINER_STARTUP_PASSES: Final[tuple[Pass, ...]] = (fake_rows, receive_parameters, forget_unused)
PSERVER_PASSES: Final[tuple[Pass, ...]] = (
    copy_schedule,
    move_updates,
    drop_trainer_ops,
    merge_contributions,
    compensate_delay,
    serve_rows,
    listen,
)
PSERVER_STARTUP_PASSES: Final[tuple[Pass, ...]] = (keep_own_inits, grow_tables, slice_inits, back_up_parameters)
GEO_TRAINER_PASSES: Final[tuple[Pass, ...]] = (fetch_new_rows, exchange)
GEO_TRAINER_STARTUP_PASSES: Final[tuple[Pass, ...]] = (keep_rows, receive_parameters, begin_exchanges)
GEO_PSERVER_PASSES: Final[tuple[Pass, ...]] = (add_deltas, drop_trainer_ops, serve_rows, listen)
GEO_PSERVER_STARTUP_PASSES: Final[tuple[Pass, ...]] = (keep_own_inits, grow_tables, slice_inits)


class Passes(NamedTuple):
    """The passes of a role: of its main program, of its startup program."""

    main: tuple[Pass, ...]
    startup: tuple[Pass, ...]


def trainer_passes(plan: Plan) -> Passes:
    """What makes a trainer's programs."""
    if plan.geo is not None:
        return Passes(GEO_TRAINER_PASSES, GEO_TRAINER_STARTUP_PASSES)
    return Passes(TRAINER_PASSES, TRAINER_STARTUP_PASSES)


def pserver_passes(plan: Plan) -> Passes:
    """What makes the programs of the server ``plan.endpoint``."""
    if plan.geo is not None:
        return Passes(GEO_PSERVER_PASSES, GEO_PSERVER_STARTUP_PASSES)
    return Passes(PSERVER_PASSES, PSERVER_STARTUP_PASSES)


_FAILURES: Final = (FluidliteError, LookupError, TypeError, ValueError)


def apply(step: Pass, program: Program, plan: Plan) -> Program:
    """What a pass makes of a program, verified. Raises PassError naming the pass and showing the program before it."""
    after = edit.clone(program)
    try:
        step(after, plan)
        verify(after, registry.find)
    except _FAILURES as error:
        raise PassError(
            f"pass {step.__name__} failed: {error}\nthe program before it:\n{text.show(program)}"
        ) from error
    return after


def stages(program: Program, plan: Plan, passes: Iterable[Pass]) -> Iterator[tuple[Pass, Program]]:
    """Each pass with the program after it."""
    for step in passes:
        program = apply(step, program, plan)
        yield step, program


def run_passes(program: Program, plan: Plan, passes: Iterable[Pass]) -> Program:
    """The program after all passes, verified. The argument is not changed.

    All passes edit one copy, and only what the last one leaves is verified, which takes a fifth of the time. When anything
    is wrong they run again one by one, so that the error is that of `apply`.
    """
    steps = tuple(passes)
    result = edit.clone(program)
    try:
        for step in steps:
            step(result, plan)
        verify(result, registry.find)
    except _FAILURES:
        for _ in stages(program, plan, steps):
            pass
        raise
    return result
