"""Checkpoints of a job, as its scripts use them: ask for one, wait for new ones, and load one into a local program.

`fluid.io` has these functions. What checkpoints are is said in docs/checkpoints.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fluidlite import framework
from fluidlite.checkpoint.catalogue import Catalogue, numbers, split
from fluidlite.checkpoint.restore import restore_model
from fluidlite.checkpoint.source import open_checkpoint
from fluidlite.checkpoint.storage import Folder, open_folder
from fluidlite.core.ir import Parameter
from fluidlite.dist_io import NOT_SAVED, servers_of
from fluidlite.errors import DataError, ProgramError, UninitializedError
from fluidlite.framework import Program
from fluidlite.runtime.scope import global_scope

log = logging.getLogger("fluidlite")


def save_checkpoint(executor: Any, main_program: Program | None = None) -> int:
    """Make the servers of a job write a checkpoint now, and wait until it is whole; its number.

    ``main_program`` is a trainer's, which ``executor`` runs (default: the default main program). The servers write to the
    ``checkpoint_dir`` of their program, each what it is between two steps; all steps of this trainer so far are in it. The
    number is the highest of their versions. Of trainers that ask at the same version, all get the same checkpoint.
    Raises RequestRefusedError of servers that keep no checkpoints, ServerFailedError when it cannot be written, and
    ProgramError for a program that is no trainer's.
    """
    program = main_program if main_program is not None else framework.default_main_program()
    distribution = program.distribution
    if distribution is None or distribution.plan.endpoint is not None:
        raise ProgramError(
            "only servers write checkpoints, and this program is not that of a trainer that has some; save what one "
            "process holds by fluid.io.save_persistables"
        )
    return servers_of(program.desc, executor).checkpoint(distribution.plan.cluster.endpoints)


def load_checkpoint(
    executor: Any, url: str | Path, main_program: Program | None = None, number: int | None = None
) -> int:
    """Load a checkpoint, of any number of servers, into the global scope for a program of one process; its version.

    ``main_program`` (default: the default main program) is one that was not transpiled, whose startup program was run: for
    training, or a clone ``for_test``, whose lookups read zeros for ids without a row and make none. Tables become local
    ones. Only what the program declares is loaded. Of what is no trainable parameter, such as running statistics, that
    which the servers did not have stays as it is.

    ``url``: the folder of the checkpoints, or of one of them. ``number``: which one; by default the last good one.
    The version is the highest of the servers'. ``executor`` is there as in the other functions, and not used. Raises
    MissingFileError where there is no checkpoint, CorruptFileError, ProgramError for variables that it does not have,
    ShapeError and TableError for what does not fit; what was loaded by then stays.
    """
    program = main_program if main_program is not None else framework.default_main_program()
    if program.distribution is not None:
        raise ProgramError(
            "this program was transpiled: its parameters are the servers', which take a checkpoint when they start; load "
            "it into a program that was cloned before"
        )
    folder, named = split(str(url))
    number = named if number is None else number
    source = open_checkpoint(folder, number, check=number is None)
    needed, others = _persistables(program)
    left = restore_model(global_scope(), source, needed, others)
    if constant := sorted(_weights(program).intersection(left)):
        log.warning("checkpoint %d has no %s, which stay(s) as it is", source.number, ", ".join(map(repr, constant)))
    return max(source.versions.values())


def watch_checkpoints(
    url: str | Path,
    *,
    after: int = -1,
    newest: bool = False,
    timeout: float | None = None,
    poll: float = 1.0,
    stop: threading.Event | None = None,
) -> Iterator[int]:
    """The number of each checkpoint in a folder once it is whole, ascending; those that are there come first.

    Waits for more, looking every ``poll`` seconds, until ``stop`` is set or none came for ``timeout`` seconds (None:
    forever). ``after``: begin behind this number. ``newest``: those that a newer one has overtaken are left out, for an
    evaluation that takes longer than the job between two of them: servers remove old ones. The folder need not exist.
    Raises DataError for durations that are none.
    """
    if not poll > 0 or (timeout is not None and not timeout >= 0):
        raise DataError(f"poll must be above 0 and timeout at least 0 seconds, not {poll!r} and {timeout!r}")
    folder, stop = open_folder(url), stop if stop is not None else threading.Event()
    last = time.monotonic()
    while not stop.is_set():
        new = _whole_after(folder, after)
        if new:
            after = new[-1] if newest else new[0]
            yield after
            last = time.monotonic()
            continue
        left = poll if timeout is None else min(poll, last + timeout - time.monotonic())
        if left <= 0:
            return
        stop.wait(left)


def _whole_after(folder: Folder, number: int) -> list[int]:
    """The numbers of the whole checkpoints above a number, ascending. Manifests are read only where there are any."""
    if max(numbers(folder), default=-1) <= number:
        return []
    return sorted({checkpoint.number for checkpoint in Catalogue(folder).whole() if checkpoint.number > number})


def _persistables(program: Program) -> tuple[list[str], list[str]]:
    """(trainable parameters, other variables that outlive a run) of a program. UninitializedError for those without a
    value."""
    variables = [var.desc for var in program.list_vars() if var.persistable and var.type not in NOT_SAVED]
    found = sorted(variables, key=lambda var: var.name)
    scope = global_scope()
    for var in found:
        if scope.get(var.name) is None:
            raise UninitializedError(f"variable {var.name!r} does not exist yet; run the startup program first")
    needed = [var.name for var in found if isinstance(var, Parameter) and var.trainable]
    return needed, [var.name for var in found if var.name not in needed]


def _weights(program: Program) -> set[str]:
    """What makes up the model, as far as can be told: parameters, and what the ops read and none of them writes."""
    ops = [op for _, op in program.desc.all_ops()]
    written = {name for op in ops for name in op.output_arguments()}
    parameters = {var.name for var in program.list_vars() if isinstance(var.desc, Parameter)}
    return parameters | {name for op in ops for name in op.input_arguments()} - written
