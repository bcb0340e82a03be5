"""Runs fusion passes. Their order is the tuple below; which of them run is for the executor or the environment to say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeAlias

from fluidlite.core import edit
from fluidlite.core.ir import Program
from fluidlite.environment import NO, YES, setting, switch
from fluidlite.errors import SettingError
from fluidlite.fusion.graph import Graph
from fluidlite.fusion.passes.fc import fc
from fluidlite.fusion.passes.fetches import fetches
from fluidlite.fusion.passes.lookup_concat import lookup_concat
from fluidlite.fusion.passes.lookups import lookups
from fluidlite.fusion.passes.losses import sigmoid_loss, softmax_loss
from fluidlite.fusion.passes.updates import updates

Pass = Callable[[Graph], None]
#: what an executor is told: all passes (True, "all", or a word for yes), none (False, or a word for no), these by name, or
#: (None) the environment's
Choice: TypeAlias = "bool | str | Sequence[str] | None"

PASSES: Final[tuple[Pass, ...]] = (fetches, lookup_concat, lookups, fc, softmax_loss, sigmoid_loss, updates)
NAMES: Final = tuple(step.__name__ for step in PASSES)
#: the environment variable with a `Choice` for executors that are not told: a word, or names separated by commas
VARIABLE: Final = "FLUIDLITE_FUSION"


def chosen(choice: Choice = None) -> tuple[Pass, ...]:
    """The passes of a choice, in their order. Raises SettingError for a name that is no pass."""
    source = f"the environment variable {VARIABLE}" if choice is None else "fusion"
    if choice is None:
        choice = setting(VARIABLE) or "all"
    wanted = switch(choice) if isinstance(choice, str) else choice
    if isinstance(wanted, int) and wanted in (0, 1):  # False and True among them
        return PASSES if wanted else ()
    if isinstance(choice, str) and choice.strip().lower() == "all":
        return PASSES
    if not isinstance(choice, Iterable):
        raise SettingError(f"fusion is {choice!r}, not True, False, or names of passes: {', '.join(NAMES)}")
    names = [name.strip() for name in choice.split(",")] if isinstance(choice, str) else list(choice)
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise SettingError(
            f"{source} names {unknown[0]!r}, which is no fusion pass; there are {', '.join(NAMES)}. Or one word: all, "
            f"{', '.join(YES)} for all of them, {', '.join(NO)} for none"
        )
    return tuple(step for step in PASSES if step.__name__ in names)


def fuse(program: Program, fetched: Collection[str] = (), passes: Sequence[Pass] | None = None) -> Program:
    """A program that computes what ``program`` does, by fewer ops; ``program`` itself where no pass finds anything.

    ``fetched``: variables of block 0 that are wanted after a run. Other temporaries may no longer be there. ``passes``:
    those of `chosen`, by default all.
    """
    copy = edit.clone(program)
    graph = Graph(copy, fetched)
    for step in PASSES if passes is None else passes:
        step(graph)
    return copy if graph.finish() else program


def describe() -> str:
    """Which passes executors run that are not told, for people: ``fc, updates (FLUIDLITE_FUSION=fc,updates)``."""
    reason = setting(VARIABLE)
    names = ", ".join(step.__name__ for step in chosen()) or "none"
    return f"{names} ({VARIABLE}={reason})" if reason else names
