"""Axes and sizes that come as attributes or as tensors; what the shape ops share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.ids import argument
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.registry import Infer

Shape = tuple[int, ...]


def axis_in(rank: int, axis: int) -> int:
    """An axis as a non-negative number; ShapeError when it is out of range."""
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} of a value of rank {rank}")
    return axis % rank


def like_along(source: str, *outputs: str, axis: str = "axis") -> Infer:
    """As `infer.like`; attribute ``axis`` must be one of ``source``'s."""
    same = like(source, *outputs)

    def infer(ctx: InferContext) -> None:
        try:
            axis_in(len(ctx.shape(source)), ctx.attr(axis))
        except ShapeError as error:
            raise ctx.error(str(error)) from None
        same(ctx)

    return infer


def check_same(ctx: KernelContext, source: str, array: Array, **others: Array | None) -> None:
    """ShapeError unless other inputs, by their keywords, have the shape of input ``source``; those of None pass."""
    for key, other in others.items():
        if other is not None:
            check_shape(ctx, key.replace("_GRAD", "@GRAD"), other, array.shape, source)


def check_shape(ctx: KernelContext, name: str, array: Array, wanted: Shape, source: str) -> None:
    """ShapeError unless an input has the shape that it must have beside input ``source``."""
    if array.shape != wanted:
        raise ShapeError(
            f"op {ctx.op.type!r}: {name} {argument(ctx, name)!r} must have shape {list(wanted)} to fit {source} "
            f"{argument(ctx, source)!r}, not {list(array.shape)}"
        )


def check_rows(ctx: KernelContext, source: str, array: Array, **others: Array | None) -> None:
    """ShapeError unless other inputs, by their keywords, have as many rows as input ``source``; those of None pass."""
    for key, other in others.items():
        if other is not None and other.shape[:1] != array.shape[:1]:
            name = key.replace("_GRAD", "@GRAD")
            check_shape(ctx, name, other, (len(array), *other.shape[1:]), source)


def check_one_each(ctx: KernelContext, name: str, array: Array) -> None:
    """ShapeError unless an input has one number per row."""
    if array.size != len(array):
        raise ShapeError(
            f"op {ctx.op.type!r}: {name} {argument(ctx, name)!r} must have one number per row, not shape {list(array.shape)}"
        )


def check_labels(
    ctx: KernelContext, source: str, array: Array, name: str, labels: Array, *, axis: int = -1, soft: bool = False
) -> None:
    """ShapeError unless labels fit scores of classes along ``axis``: of size 1 there, or ``soft``: of the same shape."""
    wanted = list(array.shape)
    if not soft:
        wanted[axis] = 1
    check_shape(ctx, name, labels, tuple(wanted), source)


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
