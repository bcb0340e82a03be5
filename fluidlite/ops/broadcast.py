"""Fluid's broadcasting of two operands: the smaller one is placed at `axis` of the larger one.

``axis`` -1 aligns the last dimensions, as numpy does; another value is the dimension of the larger operand at which
the smaller one starts: X (2, 3, 4) and Y (3,) with axis 1. Dimensions of size 1 stretch on either side.
"""

from __future__ import annotations

import functools
import math
from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import DtypeError, ShapeError
from fluidlite.kernels.dense import column_sums
from fluidlite.ops.infer import InferContext

Shape = tuple[int, ...]
_BLAS: Final = (np.dtype(np.float32), np.dtype(np.float64))


def align(x: Shape, y: Shape, axis: int) -> tuple[Shape, Shape]:
    """Both shapes with the rank of the larger one. Raises ShapeError where they do not fit in that place."""
    if len(x) == len(y):
        if axis not in (-1, 0):
            raise ShapeError(f"axis must be -1 or 0 for operands of equal rank, not {axis}")
        return x, y
    rank = max(len(x), len(y))
    if len(x) < rank:
        return _place(x, rank, axis), y
    return x, _place(y, rank, axis)


def _place(small: Shape, rank: int, axis: int) -> Shape:
    start = rank - len(small) if axis == -1 else axis
    while small and start + len(small) > rank and small[-1] == 1:
        small = small[:-1]
    if start < 0 or start + len(small) > rank:
        raise ShapeError(f"an operand of shape {list(small)} does not fit into rank {rank} at axis {axis}")
    return (1,) * start + small + (1,) * (rank - start - len(small))


def result_shape(x: Shape, y: Shape, axis: int) -> Shape:
    """Shape of the result; -1 where it is not known. Raises ShapeError when the shapes do not fit each other."""
    aligned = align(x, y, axis)
    return tuple(_stretch(a, b, x, y, axis) for a, b in zip(*aligned, strict=True))


def _stretch(a: int, b: int, x: Shape, y: Shape, axis: int) -> int:
    if b in (a, 1):
        return a
    if a == 1:
        return b
    if -1 in (a, b):
        return max(a, b)
    raise ShapeError(f"shapes {list(x)} and {list(y)} cannot be broadcast together (axis {axis}: {a} against {b})")


def operands(x: Array, y: Array, axis: int) -> tuple[Array, Array]:
    """Both arrays, reshaped so that numpy broadcasts them as Fluid does.

    Raises ShapeError when the shapes do not fit, DtypeError when the dtypes differ: there is no promotion.
    """
    if x.dtype != y.dtype:
        raise DtypeError(f"operands have dtypes {x.dtype} and {y.dtype}; cast one of them")
    if x.shape == y.shape:
        return x, y
    x_shape, y_shape = _fitting(x.shape, y.shape, axis)
    return x.reshape(x_shape), y.reshape(y_shape)


@functools.lru_cache(maxsize=1024)
def _fitting(x: Shape, y: Shape, axis: int) -> tuple[Shape, Shape]:
    """The aligned shapes of operands that fit each other; a step asks for the same ones as the step before."""
    result_shape(x, y, axis)
    return align(x, y, axis)


def sum_to(gradient: Array, aligned: Shape, shape: Shape) -> Array:
    """The gradient of an operand: summed over what broadcasting stretched, in the operand's own ``shape``.

    ``aligned`` is the shape that `operands` gave it.
    """
    if gradient.shape == shape:
        return gradient
    stretched = tuple(i for i, size in enumerate(aligned) if size == 1 and gradient.shape[i] != 1)
    if stretched == tuple(range(len(stretched))) and gradient.dtype in _BLAS and gradient.flags.c_contiguous:
        gradient = column_sums(gradient.reshape(math.prod(gradient.shape[: len(stretched)]), math.prod(shape)))
    elif stretched:
        gradient = gradient.sum(axis=stretched, keepdims=True, dtype=gradient.dtype)
    return gradient.reshape(shape)


def infer_broadcast(ctx: InferContext, dtype: str | None = None) -> None:
    """Out has the broadcast shape of X and Y, X's LoD, kind and dtype (or ``dtype``)."""
    x, y = ctx.input("X"), ctx.input("Y")
    if x.dtype != y.dtype:
        raise DtypeError(
            f"op {ctx.op.type!r}: X={x.name!r} is {x.dtype} and Y={y.name!r} is {y.dtype}; "
            f"cast one of them ({ctx.op.origin})"
        )
    try:
        axis = ctx.attr("axis") if "axis" in ctx.op_def.attrs else -1
        shape = result_shape(ctx.shape("X"), ctx.shape("Y"), axis)
    except ShapeError as error:
        raise ctx.error(str(error)) from None
    ctx.set("Out", shape, dtype or x.dtype, lod_level=x.lod_level, kind=x.kind)
