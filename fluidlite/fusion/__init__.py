"""Fusion: before it compiles a program, an executor puts one op in the place of several that compute the same.

`show` prints what each pass makes of a program. ``FLUIDLITE_FUSION=0`` or ``Executor(fusion=False)`` leaves programs as
they are; names of passes, separated by commas, run these alone.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from fluidlite.core import ir, text
from fluidlite.errors import FetchError, ProgramError
from fluidlite.fusion.pipeline import NAMES, Choice, chosen, describe, fuse

__all__ = ["NAMES", "Choice", "chosen", "describe", "fuse", "show"]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class _HasProgram(Protocol):
    @property
    def desc(self) -> ir.Program: ...


def show(
    program: ir.Program | _HasProgram,
    fetch: Collection[str | _Named] = (),
    after: str | None = None,
    fusion: Choice = None,
) -> str:
    """The text of a program as an executor would run it that fetches ``fetch`` (variables, or names).

    ``after``: as it is after this pass and those before it. ``fusion``: the passes, as an Executor takes them.
    Raises FetchError for a variable that is not there, ProgramError for a pass that does not run.
    """
    desc = program if isinstance(program, ir.Program) else program.desc
    names = [item if isinstance(item, str) else item.name for item in fetch]
    for name in names:
        if desc.find_var(name, desc.root) is None:
            raise FetchError(f"cannot fetch {name!r}: the program has no such variable")
    passes = chosen(fusion)
    if after is not None:
        if after not in [step.__name__ for step in passes]:
            raise ProgramError(
                f"{after!r} is none of the passes {', '.join(step.__name__ for step in passes) or '(none)'}"
            )
        passes = passes[: [step.__name__ for step in passes].index(after) + 1]
    return text.show(fuse(desc, names, passes), brief=True)
