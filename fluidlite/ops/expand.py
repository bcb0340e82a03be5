"""Repetition along every axis: expand, expand_as."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, ints_attr, register
from fluidlite.ops.shapes import Shape, declared, given, set_like
from fluidlite.values.lod import LoDTensor


def expand(
    ctx: KernelContext,
    X: Array,
    ExpandTimes: Array | None,
    expand_times_tensor: list[Array],
    *,
    expand_times: tuple[int, ...],
) -> Array:
    times = given(ExpandTimes, expand_times_tensor, expand_times)
    _expanded(X.shape, times)
    return np.tile(X, times)


def expand_grad(
    ctx: KernelContext,
    X: Array,
    ExpandTimes: Array | None,
    expand_times_tensor: list[Array],
    Out_GRAD: Array,
    *,
    expand_times: tuple[int, ...],
) -> Array:
    return _folded(Out_GRAD, X.shape, given(ExpandTimes, expand_times_tensor, expand_times))


def expand_as(ctx: KernelContext, X: Array, target_tensor: Array) -> Array:
    return np.tile(X, _times(X.shape, target_tensor.shape))


def expand_as_grad(ctx: KernelContext, X: Array, target_tensor: Array, Out_GRAD: Array) -> Array:
    return _folded(Out_GRAD, X.shape, _times(X.shape, target_tensor.shape))


def _folded(out_grad: Array, shape: Shape, times: Sequence[int]) -> Array:
    """The gradients of all copies of each element, summed."""
    pairs = [size for pair in zip(times, shape, strict=True) for size in pair]
    return np.asarray(out_grad.reshape(pairs).sum(axis=tuple(range(0, len(pairs), 2)), dtype=out_grad.dtype))


def _expanded(shape: Shape, times: Sequence[int]) -> Shape:
    """Shape of the result, -1 where not known; raises ShapeError."""
    if len(times) != len(shape):
        raise ShapeError(f"{len(times)} expand times for shape {list(shape)}")
    if any(count < 1 and count != -1 for count in times):
        raise ShapeError(f"expand times must be positive, not {list(times)}")
    return tuple(-1 if -1 in pair else pair[0] * pair[1] for pair in zip(shape, times, strict=True))


def _times(shape: Shape, target: Shape) -> list[int]:
    """How often each axis repeats to reach the target's shape; an empty axis reaches only an empty one."""
    if len(shape) != len(target) or any(b % a if a else b for a, b in zip(shape, target, strict=True)):
        raise ShapeError(f"cannot repeat shape {list(shape)} to reach {list(target)}")
    return [b // a if a else 1 for a, b in zip(shape, target, strict=True)]


def _infer_expand(ctx: InferContext) -> None:
    shape = ctx.shape("X")
    times = declared(ctx, "ExpandTimes", "expand_times_tensor", "expand_times")
    try:
        set_like(ctx, "Out", _expanded(shape, (-1,) * len(shape) if times is None else times), "X")
    except ShapeError as error:
        raise ctx.error(str(error)) from None


def _infer_expand_as(ctx: InferContext) -> None:
    shape, target = ctx.shape("X"), ctx.shape("target_tensor")
    if -1 not in shape + target:
        try:
            _times(shape, target)
        except ShapeError as error:
            raise ctx.error(str(error)) from None
    set_like(ctx, "Out", target, "X")


_X = np.array([[1.0, 2.0], [3.0, 4.0]])
_WIDE = np.array([[1.0, 2.0, 1.0, 2.0], [3.0, 4.0, 3.0, 4.0]])
_INPUTS = ["X", "ExpandTimes?", "expand_times_tensor*?"]
_NAMES = ["X", "ExpandTimes", "expand_times_tensor"]
_ATTRS = {"expand_times": ints_attr(doc="repetitions per axis; tensors win over it")}

register(
    "expand",
    doc="Out = X repeated `expand_times[i]` times along axis i.",
    inputs=_INPUTS,
    outputs=["Out"],
    attrs=_ATTRS,
    infer=_infer_expand,
    kernel=expand,
    share_lod="X",
    grad=maker([*_NAMES, "Out@GRAD"], ["X@GRAD"]),
    cases=(
        Case({"X": _X}, {"expand_times": [1, 2]}, {"Out": _WIDE}, check_grad=("X",)),
        Case({"X": _X}, {"expand_times": [2, 1]}, {"Out": np.concatenate([_X, _X])}, check_grad=("X",)),
        Case({"X": _X, "ExpandTimes": np.array([1, 2])}, {}, {"Out": _WIDE}, check_grad=("X",)),
        Case(
            {"X": _X, "expand_times_tensor": [np.array([1]), np.array([2])]},
            {"expand_times": [-1, -1]},
            {"Out": _WIDE},
            check_grad=("X",),
        ),
        Case({"X": np.zeros((0, 2))}, {"expand_times": [1, 2]}, {"Out": np.zeros((0, 4))}, note="an empty batch"),
        Case(
            {"X": LoDTensor(_X, ((0, 1, 2),))},
            {"expand_times": [1, 2]},
            {"Out": LoDTensor(_WIDE, ((0, 1, 2),))},
            note="sequences stay where the rows do",
        ),
    ),
)
register(
    "expand_grad",
    doc="Gradient of expand: the gradients of all copies, summed.",
    inputs=[*_INPUTS, "Out@GRAD"],
    outputs=["X@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=expand_grad,
)
register(
    "expand_as",
    doc="Out = X repeated to the shape of target_tensor.",
    inputs=["X", "target_tensor"],
    outputs=["Out"],
    infer=_infer_expand_as,
    kernel=expand_as,
    grad=maker(["X", "target_tensor", "Out@GRAD"], ["X@GRAD"]),
    cases=(Case({"X": _X, "target_tensor": np.zeros((2, 4))}, {}, {"Out": _WIDE}, check_grad=("X",)),),
)
register(
    "expand_as_grad",
    doc="Gradient of expand_as.",
    inputs=["X", "target_tensor", "Out@GRAD"],
    outputs=["X@GRAD"],
    infer=grads_like_forward,
    kernel=expand_as_grad,
)
