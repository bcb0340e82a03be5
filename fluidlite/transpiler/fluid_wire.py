"""What Fluid's own wire asks of a plan: its messages name slices, so both sides must cut and place alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Final

from fluidlite.core.ir import Program
from fluidlite.environment import one_of
from fluidlite.ops.fluid_order import shuffled
from fluidlite.ops.modes import Mode, Settings, Wire
from fluidlite.transpiler.placement import RoundRobin, slice_rows
from fluidlite.transpiler.plan import Cluster, Options, Plan
from fluidlite.transpiler.schedule import Schedule

#: the environment variable with the wire of jobs that do not say one: scripts and programs made for Fluid cannot
VARIABLE: Final = "FLUIDLITE_WIRE"
#: Fluid refuses smaller ones
_LEAST_BLOCK: Final = 8192
_MODES: Final = (Mode.SYNC, Mode.ASYNC)
#: settings that only the server's own update knows of
_OF_THE_SERVER: Final = ("mode", "nan_policy", "sparse_grad_reduce")


def of_environment() -> str:
    """The wire that `VARIABLE` asks for, as ``DistributeTranspilerConfig.wire`` says it. Raises SettingError."""
    asked = one_of(VARIABLE, ("fluid", "own"), "own")
    return str(Wire.FLUID if asked == "fluid" else Wire.OWN)


def place_as_fluid(pieces: Sequence[int], servers: int, options: Options, seed: int) -> list[int]:
    """The server of each piece, all pieces of a parameter together; ``pieces``: how many each parameter has.

    Round robin in the order of the parameters; in that of Fluid's shuffle by the program's ``seed`` when they stay whole.
    """
    order = range(len(pieces)) if options.slice_var_up else shuffled(len(pieces), seed)
    placed: dict[int, list[int]] = {}
    next_piece = 0
    for param in order:
        placed[param] = [(next_piece + k) % servers for k in range(pieces[param])]
        next_piece += pieces[param]
    return [server for param in range(len(pieces)) for server in placed[param]]


def refusals(main: Program, options: Options, cluster: Cluster, plan: Plan, schedule: Schedule) -> Iterator[str]:
    """Every reason why Fluid's processes could not take part."""
    if not options.wire:
        return
    yield from _of_options(options)
    yield from _of_settings(plan.training)
    for table in plan.tables:
        yield f"wire='fluid': {table.name!r} is a distributed table, which Fluid 1.8 cannot serve; use is_sparse alone"
    if schedule.ops and not plan.training.rounds:
        yield "wire='fluid': without rounds a learning-rate schedule is not carried; use a constant rate, or sync_mode"
    wanted = len(cluster.endpoints) if options.slice_var_up else 1
    reasons = {note.subject: note.reason for note in plan.notes}
    for param in plan.dense:
        cuts = slice_rows(param.shape, wanted, options.min_block_size)
        if len(cuts) != len(param.slices):
            why = reasons.get(param.name, "it is whole here")
            yield f"wire='fluid': Fluid cuts {param.name!r} into {len(cuts)} slices, but {why}; set slice_var_up=False"


def _of_options(options: Options) -> Iterator[str]:
    if options.min_block_size < _LEAST_BLOCK:
        yield f"wire='fluid': Fluid takes a min_block_size of {_LEAST_BLOCK} or more, not {options.min_block_size}"
    if options.dispatcher is not RoundRobin:
        yield "wire='fluid': split_method must be RoundRobin: Fluid's hash of a name is another one in every process"
    for name in ("rows_wire_dtype", "gradients_wire_dtype", "dense_on_trainer"):
        if getattr(options, name):
            yield f"wire='fluid': Fluid's processes know nothing of {name}"


def _of_settings(settings: Settings) -> Iterator[str]:
    if settings.mode not in _MODES:
        yield f"wire='fluid' carries sync and async training, not {settings.mode.name.lower()}"
        return
    for each in fields(Settings):
        if each.name not in _OF_THE_SERVER and getattr(settings, each.name) != each.default:
            yield f"wire='fluid': Fluid's processes know nothing of {each.name}"
