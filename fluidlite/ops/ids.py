"""Ids inside kernels: reading an input of ids, finding ids among others, and the errors about single ids."""

from __future__ import annotations

from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import DtypeError, OutOfRangeError
from fluidlite.ops.context import KernelContext

#: value of the attribute ``padding_idx`` that means "no id is padding"
NO_PADDING: Final = -1


def flat_ids(ctx: KernelContext, value: Array, input_name: str = "Ids", index: int = 0) -> Array:
    """The ids of an input, of any shape, as (n,) int64; another dtype raises DtypeError."""
    if value.dtype != np.int64:
        raise DtypeError(
            f"op {ctx.op.type!r}: ids {argument(ctx, input_name, index)!r} must be int64, not {value.dtype}; cast them"
        )
    return value.reshape(-1)


def argument(ctx: KernelContext, input_name: str, index: int = 0) -> str:
    """The variable given to an input, for messages."""
    names = ctx.op.inputs.get(input_name, ())
    return names[index] if index < len(names) else input_name


def outside(ids: Array, height: int) -> Array:
    """Positions (k,) of the ids that are not in 0..height-1."""
    return np.flatnonzero((ids < 0) | (ids >= height))


def out_of_range(ctx: KernelContext, ids: str, position: int, id: int, whole: str, height: int) -> OutOfRangeError:
    """The error for an id outside ``whole``, a variable of ``height`` rows."""
    return OutOfRangeError(
        f"op {ctx.op.type!r}: id {id} at position {position} of {ids!r} is outside {whole!r}, "
        f"which has rows 0 to {height - 1}"
    )


def sections_of(ids: Array, height_sections: tuple[int, ...]) -> tuple[Array, Array]:
    """(section (n,) of each id, first id (k,) of each section) of a matrix cut by rows; ids must be in range."""
    ends = np.cumsum(height_sections, dtype=np.int64)
    return np.searchsorted(ends, ids, side="right"), ends - np.asarray(height_sections, np.int64)
