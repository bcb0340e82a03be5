"""Small programs for the tests of gradients and training: fresh programs, their ops as lines, runs from given values."""

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

Array = np.ndarray[Any, np.dtype[Any]]


@contextmanager
def fresh_programs() -> Iterator[tuple[Program, Program]]:
    """New default programs (main, startup), name counters and name scopes."""
    main, startup = Program(), Program()
    scopes = framework.state.name_scope
    framework.state.name_scope = [("", {})]
    try:
        with unique_name.guard(), framework.program_guard(main, startup):
            yield main, startup
    finally:
        framework.state.name_scope = scopes


def lines(program: Program, role: OpRole | None = None, block: int = 0) -> list[str]:
    """The ops of a block, one line each; ``role`` keeps those whose role has this bit."""
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
