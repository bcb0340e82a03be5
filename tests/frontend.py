"""Helpers for tests that build programs with the front end: fresh default programs, ops as lines, runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fluidlite import framework, unique_name
from fluidlite.core.ir import OpRole
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
    """The ops of a block with their attributes, a line each, attributes at their default left out."""
    return [show(canonical(op)) for op in program.desc.blocks[block].ops]


def lines(program: Program, role: OpRole | None = None, block: int = 0) -> list[str]:
    """The ops of a block without attributes, one line each; ``role`` keeps those whose role has this bit."""
    return [
        f"{op.type}({_arguments(op.inputs)}) -> {_arguments(op.outputs)}"
        for op in program.block(block).desc.ops
        if role is None or op.role & role
    ]


def _arguments(arguments: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{name}={' '.join(found)}" for name, found in sorted(arguments.items()) if found)


def op_types(program: Program, role: OpRole | None = None) -> list[str]:
    """The types of the ops of block 0 that have a role."""
    return [op.type for op in program.global_block().desc.ops if role is None or op.role & role]


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


class Session:
    """Runs programs in one scope."""

    def __init__(self, startup: Program | None = None, values: Mapping[str, Any] | None = None) -> None:
        self.scope = Scope()
        self._core = ExecutorCore()
        if startup is not None:
            self._core.run(startup.desc, scope=self.scope)
        for name, value in (values or {}).items():
            self.scope.set(name, np.array(value))

    def run(
        self, program: Program, feed: Mapping[str, Any] | None = None, fetch: Sequence[Variable | str] = ()
    ) -> list[Any]:
        """One run; values as the scope holds them (LoD and SelectedRows are kept)."""
        names = [framework.name_of(item) for item in fetch]
        return self._core.run(program.desc, feed, names, self.scope)

    def value(self, name: str) -> Any:
        """A copy of what the scope holds, so that later runs do not change it."""
        found = self.scope.get(name)
        return found.copy() if isinstance(found, np.ndarray) else found
