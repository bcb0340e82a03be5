"""Runs the passes over a program that Fluid transpiled. Their order is the tuple below, and nothing else decides it.

A pass edits the copy that it is handed, and leaves alone what has not the form that it is for: those for servers find no
`listen_and_serv` of Fluid in a trainer's program, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fluidlite.core import edit
from fluidlite.core.ir import Program
from fluidlite.errors import FluidliteError, ProgramError
from fluidlite.ops.modes import Wire
from fluidlite.transpiler.legacy.lookups import look_up_here
from fluidlite.transpiler.legacy.server import (
    add_deltas,
    answer_lookups,
    apart_from_schedule,
    bind_gradients,
    count_as_here,
    name_table_gradients,
    scale_by_contributions,
    update_in_one_block,
)
from fluidlite.transpiler.legacy.startup import count_from_here, grow_tables
from fluidlite.transpiler.legacy.trainer import (
    commit_once,
    cut_in_program,
    drop_clock,
    drop_control,
    forget_dead_blocks,
    name_gradients,
    name_trainer,
    rename_old_ops,
)
from fluidlite.transpiler.legacy.wire import is_of_fluid, speak_as_fluid

Pass = Callable[[Program], None]

PASSES: Final[tuple[Pass, ...]] = (
    rename_old_ops,
    look_up_here,
    cut_in_program,
    name_gradients,
    commit_once,
    drop_clock,
    name_trainer,
    drop_control,
    forget_dead_blocks,
    bind_gradients,
    name_table_gradients,
    apart_from_schedule,
    update_in_one_block,
    add_deltas,
    scale_by_contributions,
    answer_lookups,
    count_as_here,
    grow_tables,
    count_from_here,
)


def translate(program: Program, wire: str = Wire.OWN) -> Program:
    """The program in our form; ``program`` itself where it is none that Fluid transpiled. The argument is not changed.

    ``wire``: what those speak that it talks to, as ``DistributeTranspilerConfig.wire`` says it.
    Raises ProgramError for one that cannot run here, naming the op and what to do.
    """
    copy = edit.clone(program)
    for step in PASSES:
        _take(step, copy)
    if wire == Wire.FLUID and (copy.edits or is_of_fluid(copy)):
        speak_as_fluid(copy, program)
    return copy if copy.edits else program


def _take(step: Pass, copy: Program) -> None:
    """One pass. Programs come from files, in which anything may be missing that Fluid's transpiler writes."""
    try:
        step(copy)
    except FluidliteError:
        raise
    except (LookupError, ValueError, TypeError, StopIteration) as error:
        raise ProgramError(
            f"the program talks to servers, but not in a form that Fluid's transpiler writes ({step.__name__}: {error!r}); "
            "transpile the untouched program with fluidlite"
        ) from error
