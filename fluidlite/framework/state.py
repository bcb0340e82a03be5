"""What layers are inside of while they append ops: name counters, role, name scope; and the user's line."""

from __future__ import annotations

import collections
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fluidlite.core.ir import OpRole
from fluidlite.environment import whole_number

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
#: files that are never the user's: our own but for the demo's script, and contextlib's between a `with` block and our
#: context managers
_OURS = (_PACKAGE, contextlib.__file__)
_DEMO = f"{_PACKAGE}demo{os.sep}"


class NameGenerator:
    """Counters of automatic names, one per key."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.counters: dict[str, int] = collections.defaultdict(int)

    def generate(self, key: str) -> str:
        count = self.counters[key]
        self.counters[key] += 1
        return f"{self.prefix}{key}_{count}"


class _State:
    """Name counters, role and name scope of the front end."""

    def __init__(self) -> None:
        self.names = NameGenerator()
        #: what a script made the seed of new programs
        self.seed: int | None = None
        self.role = OpRole.FORWARD
        self.role_var: tuple[str, ...] = ()
        self.device = ""
        self.name_scope: list[tuple[str, dict[str, int]]] = [("", {})]


state = _State()


def launch_seed() -> int:
    """The seed of new programs: what ``fluidlite launch --seed`` was given, else 0. Raises SettingError."""
    return whole_number("FLUIDLITE_SEED", 0)


def first_seed() -> int:
    """The seed of a new program: `launch_seed`, unless a script made another one that of all."""
    return launch_seed() if state.seed is None else state.seed


@contextlib.contextmanager
def role_guard(role: OpRole, role_var: Sequence[str] = ()) -> Iterator[None]:
    """Ops appended inside the ``with`` get this role and ``op_role_var``."""
    before = state.role, state.role_var
    state.role, state.role_var = role, tuple(role_var)
    try:
        yield
    finally:
        state.role, state.role_var = before


def role_attrs() -> dict[str, Any]:
    """The attributes that say where in the model an op belongs."""
    scope = "/".join(name for name, _ in state.name_scope)
    return {
        "op_role": int(state.role),
        "op_role_var": state.role_var or None,
        "op_namescope": f"{scope}/" if scope else None,
        "op_device": state.device or None,
    }


def user_line() -> str:
    """``file:line`` of the nearest caller outside the package."""
    frame = sys._getframe(1)
    while _is_ours(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_ours(path: str) -> bool:
    return path.startswith(_OURS) and not path.startswith(_DEMO)
