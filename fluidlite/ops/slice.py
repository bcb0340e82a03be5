"""Parts of an array along some axes: slice, strided_slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import REQUIRED, Case, ints_attr, register
from fluidlite.ops.shapes import Shape, axis_in, given, set_like
from fluidlite.values.lod import LoDTensor

_ATTRS: Final = {
    "axes": ints_attr(REQUIRED, "the axes to cut"),
    "starts": ints_attr(doc="first index per axis; negative ones count from the end"),
    "ends": ints_attr(doc="index after the last one per axis; beyond the end means the end"),
    "infer_flags": ints_attr(doc="-1 for an axis whose bounds come from a tensor"),
    "decrease_axis": ints_attr(doc="axes of size 1 to drop from Out"),
}
_STRIDED_ATTRS: Final = {**_ATTRS, "strides": ints_attr(doc="step per axis; negative ones go backwards")}
Index = tuple[slice, ...]


def index_of(
    shape: Shape, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int], strides: Sequence[int]
) -> Index:
    """The numpy index of a slice. ShapeError for bounds that can never hold an element."""
    if not len(axes) == len(starts) == len(ends) == len(strides):
        raise ShapeError(f"axes {list(axes)}, starts {list(starts)}, ends {list(ends)} and strides differ in length")
    index = [slice(None)] * len(shape)
    for axis, start, end, stride in zip(axes, starts, ends, strides, strict=True):
        place = axis_in(len(shape), axis)
        index[place] = _bounds(shape[place], start, end, stride)
    return tuple(index)


def _bounds(size: int, start: int, end: int, stride: int) -> slice:
    if stride == 0:
        raise ShapeError("a stride of 0")
    first = start + size if start < 0 else start
    # going backwards, an end of -1 is the place before the first element, which could not be named otherwise
    last = end + size if end < 0 and not (end == -1 and stride < 0) else end
    low, high = (0, size) if stride > 0 else (-1, size - 1)
    first, last = (min(max(bound, low), high) for bound in (first, last))
    if size and not range(first, last, stride):
        raise ShapeError(f"the range from {start} to {end} by {stride} of a dimension of {size} is empty")
    return slice(first, last if last >= 0 else None, stride) if size else slice(0, 0)


def dropped(shape: Shape, axes: Sequence[int]) -> Shape:
    """Without the axes, which must have size 1; (1,) when none is left."""
    chosen = {axis_in(len(shape), axis) for axis in axes}
    for axis in chosen:
        if shape[axis] not in (1, -1):
            raise ShapeError(f"cannot drop axis {axis} of shape {list(shape)}: its size is not 1")
    rest = tuple(size for i, size in enumerate(shape) if i not in chosen)
    return rest or (1,) if chosen else shape


def _index(shape: Shape, bounds: Mapping[str, Any]) -> Index:
    """The index that an op's attributes and tensors describe; `slice` steps by 1."""
    starts = given(bounds["StartsTensor"], bounds["StartsTensorList"], bounds["starts"])
    ends = given(bounds["EndsTensor"], bounds["EndsTensorList"], bounds["ends"])
    if "strides" not in bounds:
        return index_of(shape, bounds["axes"], starts, ends, (1,) * len(bounds["axes"]))
    strides = given(bounds["StridesTensor"], bounds["StridesTensorList"], bounds["strides"])
    return index_of(shape, bounds["axes"], starts, ends, strides)


def slice_(ctx: KernelContext, Input: Array, **bounds: Any) -> Array:
    """Kernel of slice and strided_slice; ``bounds`` are their attributes and the tensors that may replace them."""
    out = Input[_index(Input.shape, bounds)]
    if ctx.output_var("Out").persistable:
        # it outlives the run: a view would keep all of Input in memory, and change with it
        out = out.copy()
    return out.reshape(dropped(out.shape, bounds["decrease_axis"])) if bounds["decrease_axis"] else out


def slice_grad(ctx: KernelContext, Input: Array, Out_GRAD: Array, **bounds: Any) -> Array:
    """Zeros like Input, with Out@GRAD where the slice came from."""
    index = _index(Input.shape, bounds)
    gradient = np.zeros_like(Input)
    gradient[index] = Out_GRAD.reshape(gradient[index].shape)
    return gradient


def _infer(ctx: InferContext) -> None:
    shape, axes = ctx.shape("Input"), ctx.attr("axes")
    try:
        open_axes = {axis_in(len(shape), axes[i]) for i in _open(ctx)}
        shape = tuple(-1 if axis in open_axes else size for axis, size in enumerate(shape))
        strides = ctx.attr("strides") if "strides" in ctx.op_def.attrs else (1,) * len(axes)
        sizes = _sizes(shape, axes, ctx.attr("starts"), ctx.attr("ends"), strides)
        set_like(ctx, "Out", dropped(sizes, ctx.attr("decrease_axis")), "Input")
    except ShapeError as error:
        raise ctx.error(str(error)) from None


def _open(ctx: InferContext) -> list[int]:
    """The positions in `axes` whose bounds are known only when the program runs."""
    tensors = [arg.name for arg in ctx.op_def.inputs if arg.name != "Input" and ctx.inputs(arg.name)]
    places = range(len(ctx.attr("axes")))
    if not tensors:
        return []
    flags = ctx.attr("infer_flags")
    if len(flags) != len(places) or not all(name.endswith("List") for name in tensors):
        return list(places)
    return [i for i in places if flags[i] == -1]


def _sizes(shape: Shape, axes: Shape, starts: Shape, ends: Shape, strides: Shape) -> Shape:
    """Sizes after the slice; an unknown dimension stays unknown."""
    known = [i for i, axis in enumerate(axes) if shape[axis_in(len(shape), axis)] >= 0]
    index = index_of(shape, *(tuple(values[i] for i in known) for values in (axes, starts, ends, strides)))
    return tuple(len(range(*part.indices(size))) if size >= 0 else -1 for part, size in zip(index, shape, strict=True))


_X = np.arange(12.0).reshape(3, 4)
_TWO = np.array([2], np.int32)
_BOUNDS: Final = ["StartsTensor?", "EndsTensor?", "StartsTensorList*?", "EndsTensorList*?"]
_STRIDED_BOUNDS: Final = [
    "StartsTensor?",
    "EndsTensor?",
    "StridesTensor?",
    "StartsTensorList*?",
    "EndsTensorList*?",
    "StridesTensorList*?",
]


def _plain(names: Sequence[str]) -> list[str]:
    return [name.rstrip("*?") for name in names]


register(
    "slice",
    doc="Out = Input from `starts` up to `ends` along each of `axes`. Tensors win over the attributes.",
    inputs=["Input", *_BOUNDS],
    outputs=["Out"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=slice_,
    share_lod="Input",
    grad=maker(["Input", *_plain(_BOUNDS), "Out@GRAD"], ["Input@GRAD"]),
    cases=(
        Case(
            {"Input": _X},
            {"axes": [0, 1], "starts": [-2, 0], "ends": [100, -1]},
            {"Out": _X[1:, :3]},
            check_grad=("Input",),
        ),
        Case(
            {"Input": LoDTensor(_X, ((0, 1, 3),))},
            {"axes": [1], "starts": [1], "ends": [3]},
            {"Out": LoDTensor(_X[:, 1:3], ((0, 1, 3),))},
            note="sequences stay where the rows do",
        ),
        Case(
            {"Input": _X},
            {"axes": [1], "starts": [1], "ends": [2], "decrease_axis": [1]},
            {"Out": _X[:, 1]},
            check_grad=("Input",),
        ),
        Case(
            {"Input": _X[0], "StartsTensor": np.array([1]), "EndsTensorList": [np.array([2])]},
            {"axes": [0], "starts": [-1], "ends": [-1], "infer_flags": [-1], "decrease_axis": [0]},
            {"Out": _X[0, 1:2]},
            check_grad=("Input",),
        ),
        Case(
            {"Input": np.zeros((0, 4))},
            {"axes": [0], "starts": [0], "ends": [5]},
            {"Out": np.zeros((0, 4))},
            note="an empty batch",
        ),
    ),
)
register(
    "slice_grad",
    doc="Gradient of slice.",
    inputs=["Input", *_BOUNDS, "Out@GRAD"],
    outputs=["Input@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=slice_grad,
)
register(
    "strided_slice",
    doc="Out = Input from `starts` up to `ends` by `strides` along each of `axes`. Tensors win over the attributes.",
    inputs=["Input", *_STRIDED_BOUNDS],
    outputs=["Out"],
    attrs=_STRIDED_ATTRS,
    infer=_infer,
    kernel=slice_,
    share_lod="Input",
    grad=maker(["Input", *_plain(_STRIDED_BOUNDS), "Out@GRAD"], ["Input@GRAD"]),
    cases=(
        Case(
            {"Input": _X},
            {"axes": [0, 1], "starts": [0, 3], "ends": [2, 0], "strides": [1, -2]},
            {"Out": _X[:2, 3:0:-2]},
            check_grad=("Input",),
        ),
        Case(
            {"Input": _X},
            {"axes": [0, 1], "starts": [-1, 0], "ends": [-5, 4], "strides": [-1, 2]},
            {"Out": _X[::-1, ::2]},
            check_grad=("Input",),
        ),
        Case(
            {"Input": _X, "StridesTensor": _TWO},
            {"axes": [1], "starts": [1], "ends": [4], "strides": [-1]},
            {"Out": _X[:, 1::2]},
            check_grad=("Input",),
        ),
        Case(
            {"Input": _X},
            {"axes": [1], "starts": [2], "ends": [-1], "strides": [-1]},
            {"Out": _X[:, 2::-1]},
            note="backwards, an end of -1 is before the beginning",
        ),
    ),
)
register(
    "strided_slice_grad",
    doc="Gradient of strided_slice.",
    inputs=["Input", *_STRIDED_BOUNDS, "Out@GRAD"],
    outputs=["Input@GRAD"],
    attrs=_STRIDED_ATTRS,
    infer=grads_like_forward,
    kernel=slice_grad,
)
