"""Class numbers inside kernels: reading an input of them, checked."""

from __future__ import annotations

from fluidlite.dtypes import Array
from fluidlite.errors import OutOfRangeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.ids import argument, outside


def class_numbers(ctx: KernelContext, name: str, values: Array, count: int) -> Array:
    """The class numbers of an input of any shape as (n,); one that is not below ``count`` raises OutOfRangeError."""
    flat = values.reshape(-1)
    wrong = outside(flat, count)
    if len(wrong):
        raise OutOfRangeError(
            f"op {ctx.op.type!r}: class {flat[wrong[0]]} at position {wrong[0]} of {argument(ctx, name)!r} is not one of "
            f"the {count} classes 0 to {count - 1}"
        )
    return flat
