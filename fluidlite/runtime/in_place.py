"""Which steps may compute in the memory of an input, and whether a run lets them.

An `Overwrite` kernel writes to an input that dies with its op. Two things are needed, and each is found where it can be:

- nobody asks for the *variable* afterwards: liveness tells it when the plan is made, the fetches at each run;
- nobody else holds the *array*: views, other variables, feeds, scopes, tensor arrays and gradients on their way to a server
  all count as references to it, so that it is enough to count them. After the step the plan would drop the last one, and
  the memory would be free.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Sequence
from sys import getrefcount
from typing import Any, Final, NamedTuple

import numpy as np

from fluidlite.core.ir import EMPTY, Variable
from fluidlite.dtypes import numpy_dtype
from fluidlite.errors import SettingError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Kernel, OpDef
from fluidlite.runtime.env import Env

#: the environment variable that switches it off (0) for plans that are not told
VARIABLE: Final = "FLUIDLITE_IN_PLACE"
#: bytes of the smallest array whose memory is worth taking: a smaller one fits beside its input into a near cache
SMALLEST: Final = 1 << 16
#: rows beyond which no batch is expected: where an array of that many is too small, steps need not look at each run
_ROWS: Final = 1024


class Taking(NamedTuple):
    """A step's other way to run."""

    kernel: Kernel
    #: the position of the value whose memory is taken
    at: int
    #: whether a run may do so with these values, of which that one is an array of at least `SMALLEST` bytes
    allowed: Callable[[Env, Sequence[Any]], bool]


def chosen(choice: bool | None = None) -> bool:
    """Whether plans may compute in place: as told, else as the environment says, else yes.

    Raises SettingError where the environment says something else than 0 or 1.
    """
    if choice is not None:
        return choice
    value = os.environ.get(VARIABLE) or "1"
    if value not in ("0", "1"):
        raise SettingError(f"the environment variable {VARIABLE} must be 0 or 1, not {value!r}")
    return value == "1"


def taking(ctx: KernelContext, op_def: OpDef, names: Sequence[str], dying: Collection[str]) -> Taking | None:
    """How a fast step may use the memory of one of its inputs; None where it may not.

    ``names``: the variables whose values it collects, in order. ``dying``: those that nothing touches after the op.
    """
    for overwrite in op_def.overwrites:
        name = next(iter(ctx.op.inputs.get(overwrite.input, ())), EMPTY)
        if name in dying and names.count(name) == 1 and _may_be_taken(ctx.program.find_var(name, ctx.block)):
            index = names.index(name)
            return Taking(overwrite.kernel, index, _condition(name, index, len(names)))
    return None


def _may_be_taken(var: Variable | None) -> bool:
    """Whether a variable's declaration leaves that open: the user's data is the user's, and a small array does not pay."""
    if var is None or var.is_data:
        return False
    elements = math.prod(size if size >= 0 else _ROWS for size in var.shape or (-1,))
    return elements * numpy_dtype(var.dtype).itemsize >= SMALLEST


def _condition(name: str, index: int, count: int) -> Callable[[Env, Sequence[Any]], bool]:
    """The check at each run. Besides the step's list, ``Env.local`` holds the array, and the name under which the step
    collected its values the last one."""
    expected = _LISTED + 1 + (index == count - 1)

    def allowed(env: Env, values: Sequence[Any]) -> bool:
        if env.keep is None or name in env.keep or _references(values, index) != expected:
            return False
        flags = values[index].flags
        return bool(flags.owndata and flags.carray)

    return allowed


def _references(values: Sequence[Any], index: int) -> int:
    return getrefcount(values[index])


#: what `_references` counts for an array that only the list holds
_LISTED: Final = _references([np.empty(0)], 0)
