"""Runs fusion passes. Their order is the tuple below; which of them run is for the executor or the environment to say."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeAlias

from fluidlite.core import edit
from fluidlite.core.ir import Program
from fluidlite.errors import FluidliteError
from fluidlite.fusion.graph import Graph
from fluidlite.fusion.passes.fc import fc
from fluidlite.fusion.passes.fetches import fetches
from fluidlite.fusion.passes.lookup_concat import lookup_concat
from fluidlite.fusion.passes.lookups import lookups
from fluidlite.fusion.passes.losses import sigmoid_loss, softmax_loss
from fluidlite.fusion.passes.updates import updates

Pass = Callable[[Graph], None]
#: what an executor is told: all passes (True, "1", "all"), none (False, "0"), these by name, or (None) the environment's
Choice: TypeAlias = "bool | str | Sequence[str] | None"

PASSES: Final[tuple[Pass, ...]] = (fetches, lookup_concat, lookups, fc, softmax_loss, sigmoid_loss, updates)
NAMES: Final = tuple(step.__name__ for step in PASSES)
#: the environment variable with a `Choice` for executors that are not told: 1, 0, or names separated by commas
VARIABLE: Final = "FLUIDLITE_FUSION"


def chosen(choice: Choice = None) -> tuple[Pass, ...]:
    """The passes of a choice, in their order. Raises FluidliteError for a name that is no pass."""
    source = f"the environment variable {VARIABLE}" if choice is None else "fusion"
    if choice is None:
        choice = os.environ.get(VARIABLE) or "1"
    if isinstance(choice, bool) or choice in ("0", "1", "all"):
        return PASSES if choice in (True, "1", "all") else ()
    names = [name.strip() for name in choice.split(",")] if isinstance(choice, str) else list(choice)
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise FluidliteError(f"{source} names {unknown[0]!r}, which is no fusion pass; there are {', '.join(NAMES)}")
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
    reason = os.environ.get(VARIABLE)
    names = ", ".join(step.__name__ for step in chosen()) or "none"
    return f"{names} ({VARIABLE}={reason})" if reason else names
