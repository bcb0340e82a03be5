"""Other shapes for the same elements in the same order: reshape(2), squeeze(2), unsqueeze(2), flatten(2).

The ops with a 2 in their name also give ``XShape``, the shape of X after a 0 and without data, so that their gradient
ops need not keep X.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.pairs import with_gradient
from fluidlite.ops.registry import Case, int_attr, ints_attr, register
from fluidlite.ops.shapes import (
    Shape,
    axis_in,
    declared,
    given,
    infer_restored,
    restored,
    set_like,
    set_xshape,
    xshape,
)


def target_shape(shape: Shape, wanted: Sequence[int]) -> Shape:
    """The shape that `reshape` gives: 0 copies X's dimension, one -1 takes what is left.

    Works on shapes with unknown (-1) dimensions too. Raises ShapeError.
    """
    if sum(size < 0 for size in wanted) > 1:
        raise ShapeError(f"shape {list(wanted)} leaves more than one dimension open")
    if any(size == 0 and i >= len(shape) for i, size in enumerate(wanted)):
        raise ShapeError(f"shape {list(wanted)} copies a dimension that {list(shape)} does not have")
    result = [shape[i] if size == 0 else size for i, size in enumerate(wanted)]
    copied = [i for i, size in enumerate(wanted) if size == 0]
    open_at = next((i for i, size in enumerate(wanted) if size < 0), None)
    # what is copied is left out, so that an empty batch says nothing about the open dimension
    rest = [size for i, size in enumerate(shape) if i not in copied]
    known = math.prod(size for i, size in enumerate(result) if i != open_at and i not in copied)
    if -1 in shape:
        if open_at is not None and -1 not in rest and known and math.prod(rest) % known == 0:
            result[open_at] = math.prod(rest) // known
        return tuple(result)
    if open_at is not None:
        result[open_at] = math.prod(rest) // known if known else 0
    total = math.prod(shape)
    if math.prod(result) != total:
        raise ShapeError(f"cannot reshape {list(shape)} ({total} elements) to {list(wanted)}")
    return tuple(result)


def reshape(
    ctx: KernelContext, X: Array, Shape: Array | None, ShapeTensor: list[Array], *, shape: tuple[int, ...]
) -> Array:
    # one tensor per dimension wins over the single tensor, which wins over the attribute
    wanted = given(None, ShapeTensor, shape) if ShapeTensor else given(Shape, [], shape)
    if 0 not in wanted:
        try:
            return X.reshape(wanted)
        except ValueError:
            pass  # to be refused with its reason
    return X.reshape(target_shape(X.shape, wanted))


def reshape2(
    ctx: KernelContext, X: Array, Shape: Array | None, ShapeTensor: list[Array], *, shape: tuple[int, ...]
) -> dict[str, Array]:
    return {"Out": reshape(ctx, X, Shape, ShapeTensor, shape=shape), "XShape": xshape(X)}


def reshape_grad(ctx: KernelContext, X: Array, Out_GRAD: Array) -> Array:
    return Out_GRAD.reshape(X.shape)


def _infer_reshape(ctx: InferContext) -> None:
    set_xshape(ctx)  # first: Out may be X itself
    # the attribute promises the static shape also where a Shape tensor gives the real one
    wanted = ctx.attr("shape") or declared(ctx, "Shape", "ShapeTensor", "shape")
    if wanted is None:
        ctx.set("Out", None, ctx.input("X").dtype)
    elif ctx.inputs("ShapeTensor") or (ctx.maybe_input("Shape") is not None and -1 in wanted):
        set_like(ctx, "Out", tuple(_promised(ctx.shape("X"), wanted)), "X")
    else:
        try:
            set_like(ctx, "Out", target_shape(ctx.shape("X"), wanted), "X")
        except ShapeError as error:
            raise ctx.error(str(error)) from None


def _promised(shape: Shape, wanted: Sequence[int]) -> Iterator[int]:
    """The sizes that are known although tensors give others."""
    for axis, size in enumerate(wanted):
        yield shape[axis] if size == 0 and axis < len(shape) else max(size, -1) or -1


def _undoable(function: Callable[..., Shape], *names: str) -> Callable[[InferContext], None]:
    """`infer` of an op whose output shape is a function of X's shape and some attributes."""

    def infer(ctx: InferContext) -> None:
        set_xshape(ctx)
        try:
            set_like(ctx, "Out", function(ctx.shape("X"), *(ctx.attr(name) for name in names)), "X")
        except ShapeError as error:
            raise ctx.error(str(error)) from None

    return infer


def squeezed(shape: Shape, axes: Sequence[int]) -> Shape:
    """Without the axes (all of size 1 when none is named). Raises ShapeError for an axis of another size."""
    chosen = {axis_in(len(shape), axis) for axis in axes} or {i for i, size in enumerate(shape) if size == 1}
    for axis in chosen:
        if shape[axis] not in (1, -1):
            raise ShapeError(f"cannot squeeze axis {axis} of shape {list(shape)}: its size is not 1")
    return tuple(size for i, size in enumerate(shape) if i not in chosen)


def unsqueezed(shape: Shape, axes: Sequence[int]) -> Shape:
    """With a 1 put at each axis in turn; negative axes count from the end of the shape that the step makes."""
    result = list(shape)
    for axis in axes:
        result.insert(axis_in(len(result) + 1, axis), 1)
    return tuple(result)


def flattened(shape: Shape, axis: int) -> Shape:
    """Two dimensions: those before ``axis``, and the others."""
    if not 0 <= axis <= len(shape):
        raise ShapeError(f"cannot flatten shape {list(shape)} at axis {axis}")
    before, after = shape[:axis], shape[axis:]
    return tuple(-1 if -1 in part else math.prod(part) for part in (before, after))


def squeeze2(ctx: KernelContext, X: Array, *, axes: tuple[int, ...]) -> dict[str, Array]:
    return {"Out": X.reshape(squeezed(X.shape, axes)), "XShape": xshape(X)}


def unsqueeze2(
    ctx: KernelContext, X: Array, AxesTensor: Array | None, AxesTensorList: list[Array], *, axes: tuple[int, ...]
) -> dict[str, Array]:
    wanted = given(AxesTensor, AxesTensorList, axes)
    return {"Out": X.reshape(unsqueezed(X.shape, wanted)), "XShape": xshape(X)}


def flatten2(ctx: KernelContext, X: Array, *, axis: int) -> dict[str, Array]:
    return {"Out": X.reshape(flattened(X.shape, axis)), "XShape": xshape(X)}


def squeeze(ctx: KernelContext, X: Array, *, axes: tuple[int, ...]) -> Array:
    return X.reshape(squeezed(X.shape, axes))


def unsqueeze(
    ctx: KernelContext, X: Array, AxesTensor: Array | None, AxesTensorList: list[Array], *, axes: tuple[int, ...]
) -> Array:
    return X.reshape(unsqueezed(X.shape, given(AxesTensor, AxesTensorList, axes)))


def flatten(ctx: KernelContext, X: Array, *, axis: int) -> Array:
    return X.reshape(flattened(X.shape, axis))


def _infer_unsqueeze2(ctx: InferContext) -> None:
    axes = declared(ctx, "AxesTensor", "AxesTensorList", "axes")
    if ctx.maybe_input("AxesTensor") is None and not ctx.inputs("AxesTensorList"):
        _undoable(unsqueezed, "axes")(ctx)
        return
    set_xshape(ctx)
    shape = None if axes is None else (-1,) * (len(ctx.shape("X")) + len(axes))
    ctx.set("Out", shape, ctx.input("X").dtype)


_X = np.arange(6.0).reshape(2, 3)
_SHAPE = {"shape": ints_attr(doc="0 copies X's dimension, one -1 takes what is left; Shape tensors win over it")}
_RESHAPE_INPUTS = ["X", "Shape?", "ShapeTensor*?"]


def _cases(extra: dict[str, Any]) -> tuple[Case, ...]:
    return (
        Case({"X": _X}, {"shape": [3, 2]}, {"Out": _X.reshape(3, 2), **extra}, check_grad=("X",)),
        Case({"X": _X}, {"shape": [0, -1, 1]}, {"Out": _X.reshape(2, 3, 1)}, check_grad=("X",)),
        Case({"X": _X, "Shape": np.array([3, 2], np.int32)}, {"shape": [-1, 2]}, {"Out": _X.reshape(3, 2)}),
        Case({"X": _X, "ShapeTensor": [np.array([3]), np.array([2])]}, {"shape": [-1, 2]}, {"Out": _X.reshape(3, 2)}),
        Case({"X": np.zeros((0, 4))}, {"shape": [-1, 2]}, {"Out": np.zeros((0, 2))}, note="an empty batch"),
        Case({"X": np.zeros((0, 2, 4))}, {"shape": [0, -1]}, {"Out": np.zeros((0, 8))}, note="an empty batch, copied"),
    )


register(
    "reshape",
    doc="Out = X in another shape; the elements keep their order.",
    inputs=_RESHAPE_INPUTS,
    outputs=["Out"],
    attrs=_SHAPE,
    infer=_infer_reshape,
    kernel=reshape,
    share_lod="X",
    grad=maker(
        [*(name.rstrip("*?") for name in _RESHAPE_INPUTS), "Out", "Out@GRAD"],
        ["X@GRAD", "Shape@GRAD", "ShapeTensor@GRAD"],
    ),
    cases=_cases({}),
)
register(
    "reshape_grad",
    doc="Gradient of reshape. Shape@GRAD and ShapeTensor@GRAD are never written.",
    inputs=[*_RESHAPE_INPUTS, "Out", "Out@GRAD"],
    outputs=["X@GRAD", "Shape@GRAD", "ShapeTensor@GRAD*"],
    attrs=_SHAPE,
    infer=grads_like_forward,
    kernel=reshape_grad,
    share_lod="X",
)
register(
    "reshape2",
    doc="Out = X in another shape; the elements keep their order.",
    inputs=_RESHAPE_INPUTS,
    outputs=["Out", "XShape~"],
    attrs=_SHAPE,
    infer=_infer_reshape,
    kernel=reshape2,
    grad=maker(["XShape", "Out@GRAD"], ["X@GRAD"]),
    share_lod="X",
    cases=_cases({"XShape": np.zeros((0, 2, 3))}),
)
register(
    "squeeze2",
    doc="Out = X without the axes `axes` of size 1 (without all axes of size 1 when none is named).",
    inputs=["X"],
    outputs=["Out", "XShape~"],
    attrs={"axes": ints_attr()},
    infer=_undoable(squeezed, "axes"),
    kernel=squeeze2,
    grad=maker(["XShape", "Out@GRAD"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case({"X": _X.reshape(2, 1, 3, 1)}, {"axes": [1, -1]}, {"Out": _X}, check_grad=("X",)),
        Case({"X": _X.reshape(2, 3, 1)}, {"axes": [2]}, {"Out": _X}, check_grad=("X",)),
    ),
)
register(
    "unsqueeze2",
    doc="Out = X with a new axis of size 1 at each of `axes` in turn.",
    inputs=["X", "AxesTensor?", "AxesTensorList*?"],
    outputs=["Out", "XShape~"],
    attrs={"axes": ints_attr()},
    infer=_infer_unsqueeze2,
    kernel=unsqueeze2,
    grad=maker(["XShape", "Out@GRAD"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case({"X": _X}, {"axes": [0, -1]}, {"Out": _X.reshape(1, 2, 3, 1)}, check_grad=("X",)),
        Case({"X": _X, "AxesTensor": np.array([1], np.int32)}, {}, {"Out": _X.reshape(2, 1, 3)}, check_grad=("X",)),
    ),
)
register(
    "flatten2",
    doc="Out = X as a matrix: the axes before `axis` are its rows, the others its columns.",
    inputs=["X"],
    outputs=["Out", "XShape~"],
    attrs={"axis": int_attr(1)},
    infer=_undoable(flattened, "axis"),
    kernel=flatten2,
    grad=maker(["XShape", "Out@GRAD"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case({"X": _X.reshape(2, 3, 1)}, {}, {"Out": _X}, check_grad=("X",)),
        Case({"X": _X}, {"axis": 0}, {"Out": _X.reshape(1, 6)}, check_grad=("X",)),
        Case({"X": np.zeros((0, 2, 2))}, {}, {"Out": np.zeros((0, 4))}, note="an empty batch"),
    ),
)
# what Fluid before 1.0 wrote: the same without XShape
for _type, _inputs, _kernel, _infer, _attr, _case in (
    ("squeeze", ["X"], squeeze, _undoable(squeezed, "axes"), {"axes": ints_attr()}, {"axes": [1]}),
    (
        "unsqueeze",
        ["X", "AxesTensor?", "AxesTensorList*?"],
        unsqueeze,
        _infer_unsqueeze2,
        {"axes": ints_attr()},
        {"axes": [1]},
    ),
    ("flatten", ["X"], flatten, _undoable(flattened, "axis"), {"axis": int_attr(1)}, {"axis": 2}),
):
    with_gradient(
        _type,
        doc=f"As {_type}2, without XShape.",
        inputs=_inputs,
        outputs=["Out"],
        attrs=_attr,
        infer=_infer,
        kernel=_kernel,
        gradient=reshape_grad,
        reads=["X", "Out@GRAD"],
        writes=["X@GRAD"],
        cases=(Case({"X": _X.reshape(2, 1, 3)}, _case, check_grad=("X",)),),
    )
for _type, _attrs in (
    ("reshape2", _SHAPE),
    ("squeeze2", {"axes": ints_attr()}),
    ("unsqueeze2", {"axes": ints_attr()}),
    ("flatten2", {"axis": int_attr(1)}),
):
    register(
        f"{_type}_grad",
        doc=f"Gradient of {_type}: Out@GRAD in the shape that XShape carries.",
        inputs=["XShape", "Out@GRAD"],
        outputs=["X@GRAD"],
        attrs=_attrs,
        infer=infer_restored,
        kernel=restored,
        share_lod="Out@GRAD",
    )
