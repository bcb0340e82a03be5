"""Joining and cutting along an axis: concat, split, split_byref."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import DtypeError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker, without_role
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, int_attr, ints_attr, register
from fluidlite.ops.shapes import axis_in, scalar
from fluidlite.values.lod import Lod, LoDTensor
from fluidlite.values.selected_rows import SelectedRows


def concat(ctx: KernelContext, X: list[Any], AxisTensor: Array | None, *, axis: int) -> Any:
    parts = [x for x in X if x is not None]
    if parts and isinstance(parts[0], SelectedRows):
        return _concat_rows(parts)
    lods = [part.lod if isinstance(part, LoDTensor) else () for part in parts]
    parts = [part.array if isinstance(part, LoDTensor) else part for part in parts]
    _check_dtypes(parts)
    axis = axis_in(parts[0].ndim, axis if AxisTensor is None else scalar(AxisTensor))
    try:
        joined = np.concatenate(parts, axis)
        return LoDTensor(joined, _appended(lods)) if axis == 0 and len(parts) > 1 and all(lods) else joined
    except ValueError:
        concat_shape([part.shape for part in parts], axis)
        raise


def _appended(lods: Sequence[Lod]) -> Lod:
    """The sequences of all parts one after the other; none where the parts differ in levels."""
    if len({len(lod) for lod in lods}) > 1:
        return ()
    return tuple(reduce(_behind, levels) for levels in zip(*lods, strict=True))


def _behind(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    return (*first, *(first[-1] + offset for offset in second[1:]))


def _concat_rows(parts: Sequence[SelectedRows]) -> SelectedRows:
    """Ids and rows one after the other; duplicates stay."""
    filled = [part for part in parts if len(part.rows)] or parts[:1]
    if len(filled) == 1:
        return SelectedRows(filled[0].rows, filled[0].value, parts[0].height)
    return SelectedRows(
        np.concatenate([part.rows for part in filled]),
        np.concatenate([part.value for part in filled]),
        parts[0].height,
    )


def _check_dtypes(parts: Sequence[Array]) -> None:
    if not parts:
        raise ShapeError("nothing to concatenate")
    if len({part.dtype for part in parts}) > 1:
        raise DtypeError(f"cannot concatenate dtypes {', '.join(str(part.dtype) for part in parts)}")


def concat_shape(shapes: Sequence[tuple[int, ...]], axis: int) -> tuple[int, ...]:
    """Shape of the concatenation, -1 where not known; raises ShapeError."""
    result = list(shapes[0])
    for shape in shapes[1:]:
        if len(shape) != len(result):
            raise ShapeError(f"cannot concatenate shapes {[list(s) for s in shapes]}: their ranks differ")
        for i, size in enumerate(shape):
            if i == axis:
                result[i] = -1 if -1 in (result[i], size) else result[i] + size
            elif size != result[i] and -1 not in (size, result[i]):
                raise ShapeError(f"cannot concatenate shapes {[list(s) for s in shapes]} along axis {axis}")
            else:
                result[i] = max(result[i], size)
    return tuple(result)


def concat_grad(
    ctx: KernelContext, X: list[Array], AxisTensor: Array | None, Out_GRAD: Array, *, axis: int
) -> list[Array]:
    axis = axis_in(Out_GRAD.ndim, axis if AxisTensor is None else scalar(AxisTensor))
    return _cut(Out_GRAD, [x.shape[axis] for x in X], axis)


def _cut(x: Array, sizes: Sequence[int], axis: int) -> list[Array]:
    before = (slice(None),) * axis
    return [x[(*before, slice(start, end))] for start, end in pairwise(accumulate(sizes, initial=0))]


def _infer_concat(ctx: InferContext) -> None:
    parts = ctx.inputs("X")
    if all(part.kind is VarKind.SELECTED_ROWS for part in parts):
        ctx.set("Out", parts[0].shape, parts[0].dtype, kind=VarKind.SELECTED_ROWS)
        return
    if len({part.dtype for part in parts}) > 1:
        raise DtypeError(f"op 'concat': X holds dtypes {sorted({p.dtype for p in parts})} ({ctx.op.origin})")
    shapes = [part.shape or () for part in parts]
    if ctx.maybe_input("AxisTensor") is not None:
        ctx.set("Out", (-1,) * len(shapes[0]), parts[0].dtype)
        return
    try:
        shape = concat_shape(shapes, axis_in(len(shapes[0]), ctx.attr("axis")))
    except ShapeError as error:
        raise ctx.error(str(error)) from None
    ctx.set("Out", shape, parts[0].dtype, lod_level=parts[0].lod_level)


def _infer_concat_grad(ctx: InferContext) -> None:
    for x, argument in zip(ctx.inputs("X"), ctx.op.outputs.get("X@GRAD", ()), strict=True):
        out = ctx.program.find_var(argument, ctx.block)
        if out is not None:
            out.shape, out.dtype, out.lod_level = x.shape, x.dtype, x.lod_level


def split_sizes(size: int, sections: Sequence[int], num: int) -> list[int]:
    """The sizes of the parts of a dimension; one of ``sections`` may be -1. Raises ShapeError."""
    if not sections:
        if num < 1 or (size >= 0 and size % num):
            raise ShapeError(f"cannot split a dimension of {size} into {num} equal parts")
        return [size // num if size >= 0 else -1] * num
    unknown = [i for i, section in enumerate(sections) if section < 0]
    known = sum(section for section in sections if section >= 0)
    if size < 0:
        return list(sections)
    rest = size - known
    if len(unknown) > 1 or rest < 0 or (rest and not unknown):
        raise ShapeError(f"sections {list(sections)} do not add up to a dimension of {size}")
    return [rest if section < 0 else section for section in sections]


def split(
    ctx: KernelContext,
    X: Array,
    AxisTensor: Array | None,
    SectionsTensorList: list[Array],
    *,
    axis: int,
    num: int,
    sections: tuple[int, ...],
) -> list[Array]:
    axis = axis_in(X.ndim, axis if AxisTensor is None else scalar(AxisTensor))
    if SectionsTensorList:
        sections = tuple(scalar(tensor) for tensor in SectionsTensorList)
    return _cut(X, split_sizes(X.shape[axis], sections, num), axis)


def _infer_split(ctx: InferContext) -> None:
    x, shape = ctx.input("X"), ctx.shape("X")
    try:
        axis = axis_in(len(shape), ctx.attr("axis"))
        sizes = _declared_sizes(ctx, shape[axis])
    except ShapeError as error:
        raise ctx.error(str(error)) from None
    if len(sizes) != len(ctx.op.outputs["Out"]):
        raise ctx.error(f"{len(sizes)} parts for {len(ctx.op.outputs['Out'])} outputs")
    for argument, size in zip(ctx.op.outputs["Out"], sizes, strict=True):
        var = ctx.program.find_var(argument, ctx.block)
        if var is None:
            continue
        cut = (*shape[:axis], size, *shape[axis + 1 :])
        var.shape = (-1,) * len(shape) if ctx.maybe_input("AxisTensor") is not None else cut
        var.dtype, var.lod_level = x.dtype, x.lod_level if axis else 0


def _declared_sizes(ctx: InferContext, size: int) -> list[int]:
    if ctx.inputs("SectionsTensorList"):
        return [-1] * len(ctx.inputs("SectionsTensorList"))
    if ctx.maybe_input("AxisTensor") is not None:
        return [-1] * len(ctx.op.outputs["Out"])
    return split_sizes(size, ctx.attr("sections"), ctx.attr("num"))


def _split_grad(op: Operator) -> list[Operator]:
    """A `concat` of the parts' gradients."""
    inputs = {"X": [names.grad(argument) for argument in op.outputs["Out"]]}
    if op.inputs.get("AxisTensor"):
        inputs["AxisTensor"] = list(op.inputs["AxisTensor"])
    return [Operator("concat", inputs, {"Out": [names.grad(op.inputs["X"][0])]}, without_role(op), origin=op.origin)]


_A, _B = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0], [6.0]])
_WIDE = np.array([[1.0, 2.0, 5.0], [3.0, 4.0, 6.0]])
_FIRST = SelectedRows(np.array([7, 3]), np.array([[1.0], [2.0]]), 9)
_SECOND = SelectedRows(np.array([3]), np.array([[4.0]]), 9)
_BOTH = SelectedRows(np.array([7, 3, 3]), np.array([[1.0], [2.0], [4.0]]), 9)
_AXIS = {"axis": int_attr(0)}

register(
    "concat",
    doc="Out = all X one after the other along `axis`. SelectedRows: ids and rows appended, duplicates kept.",
    inputs=["X*", "AxisTensor?"],
    outputs=["Out"],
    attrs={
        **_AXIS,
        "num": int_attr(0, "unused: the gradient of a split carries it"),
        "sections": ints_attr(doc="unused: the gradient of a split carries it"),
    },
    infer=_infer_concat,
    kernel=concat,
    grad=maker(["X", "AxisTensor", "Out@GRAD"], ["X@GRAD"]),
    share_lod="X",
    takes_lod=True,
    sparse=("X",),
    cases=(
        Case({"X": [_A, _B]}, {"axis": 1}, {"Out": _WIDE}, check_grad=("X",)),
        Case({"X": [_A, _A[:0], _A]}, {}, {"Out": np.concatenate([_A, _A])}, check_grad=("X",), note="an empty part"),
        Case({"X": [_A, _B], "AxisTensor": np.array([1])}, {}, {"Out": _WIDE}, check_grad=("X",)),
        Case({"X": [_FIRST, _SECOND]}, {}, {"Out": _BOTH}),
        Case(
            {"X": [LoDTensor(_A, ((0, 0, 2),)), LoDTensor(_A, ((0, 1, 2),))]},
            {},
            {"Out": LoDTensor(np.concatenate([_A, _A]), ((0, 0, 2, 3, 4),))},
            note="sequences behind sequences",
        ),
        Case(
            {"X": [LoDTensor(_A, ((0, 0, 2),)), _B]},
            {"axis": 1},
            {"Out": LoDTensor(_WIDE, ((0, 0, 2),))},
            note="sequences side by side",
        ),
    ),
)
register(
    "concat_grad",
    doc="Gradient of concat: Out@GRAD cut into the parts.",
    inputs=["X*", "AxisTensor?", "Out@GRAD"],
    outputs=["X@GRAD*"],
    attrs=_AXIS,
    infer=_infer_concat_grad,
    kernel=concat_grad,
)
register(
    "split",
    doc="Out = X cut along `axis` into `num` equal parts, or into `sections` (one may be -1: the rest).",
    inputs=["X", "AxisTensor?", "SectionsTensorList*?"],
    outputs=["Out*"],
    attrs={**_AXIS, "num": int_attr(0), "sections": ints_attr()},
    infer=_infer_split,
    kernel=split,
    grad=_split_grad,
    share_lod="X",
    cases=(
        Case({"X": _WIDE}, {"axis": -1, "sections": [2, -1]}, {"Out": [_A, _B]}, {"Out": 2}, check_grad=("X",)),
        Case({"X": _A}, {"num": 2}, {"Out": [_A[:1], _A[1:]]}, {"Out": 2}, check_grad=("X",)),
        Case(
            {"X": _WIDE, "AxisTensor": np.array([1])},
            {"sections": [2, 1]},
            {"Out": [_A, _B]},
            {"Out": 2},
            check_grad=("X",),
        ),
        Case(
            {"X": _WIDE, "SectionsTensorList": [np.array([2]), np.array([1])]},
            {"axis": 1, "sections": [-1, -1]},
            {"Out": [_A, _B]},
            {"Out": 2},
            check_grad=("X",),
        ),
        Case({"X": np.zeros((0, 4))}, {"num": 2, "axis": 1}, {"Out": [np.zeros((0, 2))] * 2}, {"Out": 2}),
    ),
)


def split_byref(ctx: KernelContext, X: Array, *, sections: tuple[int, ...], num: int) -> list[Array]:
    return _cut(X, split_sizes(len(X), sections, num or ctx.n_outputs("Out")), 0)


def _infer_split_byref(ctx: InferContext) -> None:
    x, shape = ctx.input("X"), ctx.shape("X")
    outputs = ctx.op.outputs["Out"]
    try:
        sizes = split_sizes(shape[0], ctx.attr("sections"), ctx.attr("num") or len(outputs))
    except ShapeError as error:
        raise ctx.error(str(error)) from None
    for argument, size in zip(outputs, sizes, strict=True):
        out = ctx.program.find_var(argument, ctx.block)
        if out is not None:
            out.shape, out.dtype = (size, *shape[1:]), x.dtype


register(
    "split_byref",
    doc="Out = X cut along its first axis into `sections` (or `num` equal parts), without a copy.",
    inputs=["X"],
    outputs=["Out*"],
    attrs={"sections": ints_attr(), "num": int_attr(0)},
    infer=_infer_split_byref,
    kernel=split_byref,
    grad=_split_grad,
    cases=(
        Case(
            {"X": _WIDE.T},
            {"sections": [2, 1]},
            {"Out": [_A.T, _B.T]},
            {"Out": 2},
            check_grad=("X",),
        ),
    ),
)
