"""Helpers for tests that build programs with layers: fresh default programs, ops as lines, and a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fluidlite import framework, unique_name
from fluidlite.framework import Program, Variable
from fluidlite.runtime.executor import ExecutorCore
from fluidlite.runtime.scope import Scope
from tests.golden_programs import canonical, fresh_state, show


@contextmanager
def fresh_programs() -> Iterator[tuple[Program, Program]]:
    """New default programs (main, startup) and name counters inside the ``with``."""
    main, startup = Program(), Program()
    with fresh_state(), unique_name.guard(), framework.program_guard(main, startup):
        yield main, startup


def op_lines(program: Program, block: int = 0) -> list[str]:
    """The ops of a block, a line each, attributes at their default left out."""
    return [show(canonical(op)) for op in program.desc.blocks[block].ops]


def run(
    fetch: Sequence[Variable | str], feed: Mapping[str, Any] | None = None, scope: Scope | None = None
) -> list[Any]:
    """Initialise a new scope by the startup program (unless one is given) and run the main program once."""
    executor = ExecutorCore()
    if scope is None:
        scope = Scope()
        executor.run(framework.default_startup_program().desc, scope=scope)
    names = [framework.name_of(var) for var in fetch]
    return executor.run(framework.default_main_program().desc, feed, names, scope, return_numpy=False)
