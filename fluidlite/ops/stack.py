"""A new axis from several values (stack), and several values from an axis (unstack)."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import DtypeError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, Infer, int_attr, register
from fluidlite.ops.shapes import Shape, axis_in


def stack(ctx: KernelContext, X: list[Array], *, axis: int) -> Array:
    _stacked([x.shape for x in X], axis)
    if len({x.dtype for x in X}) > 1:
        raise DtypeError(f"cannot stack dtypes {', '.join(str(x.dtype) for x in X)}")
    return np.stack(X, axis)


def stack_grad(ctx: KernelContext, Y_GRAD: Array, *, axis: int) -> list[Array]:
    return list(np.moveaxis(Y_GRAD, axis, 0))


def unstack(ctx: KernelContext, X: Array, *, axis: int, num: int) -> list[Array]:
    if num != X.shape[axis_in(X.ndim, axis)]:
        raise ShapeError(f"cannot unstack axis {axis} of shape {list(X.shape)} into {num} parts")
    return list(np.moveaxis(X, axis, 0))


def unstack_grad(ctx: KernelContext, Y_GRAD: list[Array | None], *, axis: int) -> Array:
    known = next(part for part in Y_GRAD if part is not None)
    return np.stack([np.zeros_like(known) if part is None else part for part in Y_GRAD], axis)


def _stacked(shapes: list[Shape], axis: int) -> Shape:
    """Shape of the stack, -1 where not known; raises ShapeError."""
    first = shapes[0]
    sizes = list(first)
    for shape in shapes[1:]:
        if len(shape) != len(first) or any(a != b and -1 not in (a, b) for a, b in zip(shape, first, strict=True)):
            raise ShapeError(f"cannot stack shapes {[list(shape) for shape in shapes]}")
        sizes = [max(a, b) for a, b in zip(sizes, shape, strict=True)]
    sizes.insert(axis_in(len(first) + 1, axis), len(shapes))
    return tuple(sizes)


def _infer_stack(ctx: InferContext) -> None:
    given = ctx.inputs("X")
    try:
        shape = _stacked([var.shape or () for var in given], ctx.attr("axis"))
    except ShapeError as error:
        raise ctx.error(str(error)) from None
    ctx.set("Y", shape, given[0].dtype, lod_level=given[0].lod_level)


def _infer_parts(source: str, target: str) -> Infer:
    """`infer` of ops that cut ``source`` along `axis` into the arguments of ``target``."""

    def infer(ctx: InferContext) -> None:
        var, shape = ctx.input(source), ctx.shape(source)
        try:
            axis = axis_in(len(shape), ctx.attr("axis"))
        except ShapeError as error:
            raise ctx.error(str(error)) from None
        count = len(ctx.op.outputs.get(target, ()))
        if shape[axis] not in (-1, count):
            raise ctx.error(f"axis {axis} of shape {list(shape)} gives {shape[axis]} parts, not {count}")
        ctx.set(target, shape[:axis] + shape[axis + 1 :], var.dtype, lod_level=0)

    return infer


def _infer_unstack_grad(ctx: InferContext) -> None:
    given = ctx.inputs("Y@GRAD")
    ctx.set("X@GRAD", _stacked([var.shape or () for var in given], ctx.attr("axis")), given[0].dtype)


_A, _B = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
_ROWS = np.stack([_A, _B])

register(
    "stack",
    doc="Y = all X, of equal shapes, along a new axis `axis`.",
    inputs=["X*"],
    outputs=["Y"],
    attrs={"axis": int_attr(0)},
    infer=_infer_stack,
    kernel=stack,
    share_lod="X",
    grad=maker(["Y@GRAD"], ["X@GRAD"]),
    cases=(
        Case({"X": [_A, _B]}, {}, {"Y": _ROWS}, check_grad=("X",)),
        Case({"X": [_A, _B]}, {"axis": -1}, {"Y": _ROWS.T}, check_grad=("X",)),
        Case({"X": [np.zeros(0)] * 2}, {}, {"Y": np.zeros((2, 0))}, note="an empty batch"),
    ),
)
register(
    "stack_grad",
    doc="Gradient of stack.",
    inputs=["Y@GRAD"],
    outputs=["X@GRAD*"],
    attrs={"axis": int_attr(0)},
    infer=_infer_parts("Y@GRAD", "X@GRAD"),
    kernel=stack_grad,
)
register(
    "unstack",
    doc="Y = the `num` parts of X along `axis`, which vanishes.",
    inputs=["X"],
    outputs=["Y*"],
    attrs={"axis": int_attr(0), "num": int_attr()},
    infer=_infer_parts("X", "Y"),
    kernel=unstack,
    grad=maker(["Y@GRAD"], ["X@GRAD"]),
    cases=(
        Case({"X": _ROWS}, {"num": 2}, {"Y": [_A, _B]}, {"Y": 2}, check_grad=("X",)),
        Case({"X": _ROWS.T}, {"num": 2, "axis": 1}, {"Y": [_A, _B]}, {"Y": 2}, check_grad=("X",)),
    ),
)
register(
    "unstack_grad",
    doc="Gradient of unstack.",
    inputs=["Y@GRAD*"],
    outputs=["X@GRAD"],
    attrs={"axis": int_attr(0), "num": int_attr()},
    infer=_infer_unstack_grad,
    kernel=unstack_grad,
)
