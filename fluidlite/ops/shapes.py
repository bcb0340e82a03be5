"""Axes and sizes that come as attributes or as tensors; what the shape ops share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.infer import InferContext

Shape = tuple[int, ...]


def axis_in(rank: int, axis: int) -> int:
    """An axis as a non-negative number; ShapeError when it is out of range."""
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} of a value of rank {rank}")
    return axis % rank


def scalar(tensor: Array) -> int:
    """The number in a tensor of one element."""
    if tensor.size != 1:
        raise ShapeError(f"expected one number, got a tensor of shape {list(tensor.shape)}")
    return int(tensor.reshape(-1)[0])


def given(tensor: Array | None, parts: Sequence[Array], attr: Sequence[int]) -> Shape:
    """Sizes from one tensor, else from a list of tensors of one element, else from the attribute."""
    if tensor is not None:
        return tuple(int(size) for size in tensor.reshape(-1))
    return tuple(scalar(part) for part in parts) if parts else tuple(attr)


def declared(ctx: InferContext, tensor: str, parts: str, attr: str) -> Shape | None:
    """What is known of such sizes before the run: -1 for each that a tensor gives, None when not even their number.

    Beside a list of tensors the attribute holds the sizes that are numbers, and -1 for the others.
    """
    if parts and ctx.inputs(parts):
        count = len(ctx.inputs(parts))
        return tuple(ctx.attr(attr)) if len(ctx.attr(attr)) == count else (-1,) * count
    var = ctx.maybe_input(tensor)
    if var is None:
        return tuple(ctx.attr(attr))
    count = var.shape[0] if var.shape is not None and len(var.shape) == 1 else -1
    return (-1,) * count if count >= 0 else None


def set_like(ctx: InferContext, output: str, shape: Shape | None, source: str) -> None:
    """Set an output's shape with the dtype of an input, and its LoD when dimension 0 is the same."""
    var = ctx.input(source)
    same = shape is not None and var.shape is not None and shape[:1] == var.shape[:1]
    ctx.set(output, shape, var.dtype, lod_level=var.lod_level if same else 0)


def set_xshape(ctx: InferContext) -> None:
    """``XShape`` carries the shape of X after a 0, and no data; the gradient op restores it."""
    x = ctx.input("X")
    ctx.set("XShape", None if x.shape is None else (0, *x.shape), x.dtype, lod_level=x.lod_level)


def xshape(x: Array) -> Array:
    """The value of ``XShape``."""
    return np.empty((0, *x.shape), x.dtype)


def restored(ctx: Any, XShape: Array, Out_GRAD: Array) -> Array:
    """Kernel of the gradients that only undo a change of shape."""
    return Out_GRAD.reshape(XShape.shape[1:])


def infer_restored(ctx: InferContext) -> None:
    """X@GRAD has the shape that XShape carries."""
    source = ctx.input("XShape")
    shape = None if source.shape is None else source.shape[1:]
    ctx.set("X@GRAD", shape, source.dtype, lod_level=source.lod_level)
