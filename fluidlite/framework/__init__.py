"""The front end's ground: facades of programs, the default programs, and what the next op inherits.

Together with the scopes of `runtime.scope` this is the only process-wide state (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np

from fluidlite.errors import ProgramError
from fluidlite.framework.dtypes import dtype_name
from fluidlite.framework.program import (
    Arguments,
    Block,
    Operator,
    Parameter,
    Program,
    Variable,
    VarOrName,
    as_program,
    name_of,
    op_role,
)
from fluidlite.framework.state import NameGenerator, state, user_line
from fluidlite.framework.versions import device_guard, require_version

__all__ = [
    "Arguments",
    "Block",
    "NameGenerator",
    "Operator",
    "Parameter",
    "Program",
    "VarOrName",
    "Variable",
    "as_program",
    "convert_np_dtype_to_dtype_",
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "name_of",
    "name_scope",
    "op_role",
    "program_guard",
    "require_version",
    "state",
    "user_line",
]


class _Defaults:
    """The programs that layers append to, made when they are first asked for."""

    @cached_property
    def main(self) -> Program:
        return Program()

    @cached_property
    def startup(self) -> Program:
        return Program()


_defaults = _Defaults()


def default_main_program() -> Program:
    """The program that layers append to."""
    return _defaults.main


def default_startup_program() -> Program:
    """The program that initialises parameters."""
    return _defaults.startup


@contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Make these the default programs inside the ``with``."""
    if not isinstance(main_program, Program):
        raise ProgramError(f"program_guard needs a Program, not {type(main_program).__name__}")
    before = _defaults.main, _defaults.startup
    _defaults.main = main_program
    if startup_program is not None:
        _defaults.startup = startup_program
    try:
        yield
    finally:
        _defaults.main, _defaults.startup = before


@contextmanager
def name_scope(prefix: str | None = None) -> Iterator[None]:
    """Group ops for people who read the program; a repeated name in one parent becomes ``name_1``."""
    prefix = prefix or ""
    children = state.name_scope[-1][1]
    count = children.get(prefix, 0)
    children[prefix] = count + 1
    state.name_scope.append((f"{prefix}_{count}" if count else prefix, {}))
    try:
        yield
    finally:
        state.name_scope.pop()


def convert_np_dtype_to_dtype_(dtype: object) -> str:
    """The dtype's name (Fluid's function of this name gives an enum value)."""
    return dtype_name(np.dtype(dtype) if not isinstance(dtype, (str, int)) else dtype)  # type: ignore[call-overload]
