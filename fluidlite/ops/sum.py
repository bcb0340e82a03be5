"""The sum of any number of values: arrays, SelectedRows, or both; it joins the pieces of a gradient."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import DtypeError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, Overwrite, register
from fluidlite.ops.scale import scale_op
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows, merge_rows


def sum_(ctx: KernelContext, X: list[Any]) -> Any:
    if any(isinstance(x, list) for x in X):
        return sum_values(X)
    return _sum(X, over=False)


def sum_over(ctx: KernelContext, X: list[Any]) -> Any:
    return _sum(X, over=True)


def _sum(X: list[Any], *, over: bool) -> Any:
    """The sum; ``over``: in the memory of the first one, which is an array with elements."""
    present = [x for x in X if x is not None]
    sparse = [x for x in present if isinstance(x, SelectedRows)]
    if sparse and len(sparse) == len(present):
        return _concatenated(sparse)
    dense = [x for x in present if not isinstance(x, SelectedRows)]
    total = _sum_of_arrays(dense, over=over) if dense else None
    if total is None or not sparse:
        return total
    given = not over and any(total is array for array in dense)
    return _added(total.copy() if given else total, sparse)


def sum_values(values: Sequence[Any]) -> Any:
    """The sum of values of any form: arrays with LoD or without, SelectedRows, or tensor arrays of these, entry by entry.
    None counts as zero; the LoD is that of the first value that has one."""
    present = [value for value in values if value is not None]
    if any(isinstance(value, list) for value in present):
        return [sum_values(entries) for entries in itertools.zip_longest(*present)]
    if len(present) < 2:
        return present[0] if present else None
    lod = next((value.lod for value in present if isinstance(value, LoDTensor)), ())
    total = _sum([value.array if isinstance(value, LoDTensor) else value for value in present], over=False)
    return LoDTensor(total, lod) if lod and isinstance(total, np.ndarray) else total


def _sum_of_arrays(arrays: list[Array], *, over: bool) -> Array:
    """Added in order; arrays without elements are skipped beside others. ``over``: in the first one."""
    filled = [array for array in arrays if array.size] or arrays[:1]
    total = filled[0]
    for array in filled[1:]:
        if array.shape != total.shape:
            raise ShapeError(f"cannot add arrays of shapes {list(total.shape)} and {list(array.shape)}")
        if array.dtype != total.dtype:
            raise DtypeError(f"cannot add arrays of dtypes {total.dtype} and {array.dtype}")
        total = np.add(total, array, out=total if over else None)
        over = isinstance(total, np.ndarray)  # numpy makes a number of arrays without dimensions
    return total


def _concatenated(parts: list[SelectedRows]) -> SelectedRows:
    heights = {part.height for part in parts}
    if len(heights) > 1:
        raise ShapeError(f"cannot add SelectedRows of heights {sorted(heights)}")
    if len(parts) == 1:
        return merge_rows(parts[0])
    rows = np.concatenate([part.rows for part in parts])
    return merge_rows(SelectedRows(rows, np.concatenate([part.value for part in parts]), parts[0].height))


def _added(total: Array, parts: list[SelectedRows]) -> Array:
    """In ``total``. Duplicate rows are summed first, as a trainer does before it sends them: the same bits with servers and
    without."""
    for part in parts:
        if part.height != len(total):
            raise ShapeError(
                f"cannot add SelectedRows of height {part.height} to an array of shape {list(total.shape)}"
            )
        merged = merge_rows(part)
        total[merged.rows] += merged.value[: len(merged.rows)]
    return total


def _infer(ctx: InferContext) -> None:
    given = ctx.inputs("X")
    if not given:
        raise ctx.error("needs at least one X")
    dense = [var for var in given if var.kind is not VarKind.SELECTED_ROWS]
    like = next((var for var in given if var.shape is not None and 0 not in var.shape), given[0])
    for var in given:
        if var.dtype != like.dtype:
            raise DtypeError(f"op 'sum': X holds {like.dtype} and {var.dtype} ({ctx.op.origin})")
        if not _agree(var.shape, like.shape):
            raise ctx.error(f"X holds shapes {list(like.shape or ())} and {list(var.shape or ())}")
    kind = dense[0].kind if dense else VarKind.SELECTED_ROWS
    ctx.set("Out", like.shape, like.dtype, lod_level=given[0].lod_level, kind=kind)


def _agree(a: tuple[int, ...] | None, b: tuple[int, ...] | None) -> bool:
    """Whether two shapes may be equal at run time. A shape with a 0 is an absent value and fits everything."""
    if a is None or b is None or 0 in a or 0 in b:
        return True
    return len(a) == len(b) and all(x == y or -1 in (x, y) for x, y in zip(a, b, strict=True))


def _grad(op: Operator) -> list[Operator]:
    """One `scale` by 1 per input."""
    gradient = names.grad(op.outputs["Out"][0])
    return [scale_op(gradient, names.grad(argument), {"scale": 1.0}, op.origin) for argument in op.inputs["X"]]


_A, _B = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[10.0, 20.0], [30.0, 40.0]])


def _rows(ids: list[int], *values: float) -> SelectedRows:
    return SelectedRows(np.array(ids, np.int64), np.array(values, np.float64).reshape(-1, 1), 6)


register(
    "sum",
    doc=(
        "Out = the sum of all X, added in order; absent ones are skipped. Only SelectedRows: SelectedRows with "
        "duplicate ids summed (then ascending). Arrays and SelectedRows: an array. Tensor arrays: entry by entry."
    ),
    inputs=["X*"],
    outputs=["Out"],
    infer=_infer,
    kernel=sum_,
    overwrites=(Overwrite("X", sum_over),),
    grad=_grad,
    share_lod="X",
    sparse=("X",),
    cases=(
        Case({"X": [_A, _B, _A]}, {}, {"Out": 2 * _A + _B}, check_grad=("X",)),
        Case({"X": [_A]}, {}, {"Out": _A}),
        Case({"X": [np.zeros((0, 2)), _B]}, {}, {"Out": _B}, note="an absent contribution"),
        Case({"X": [_rows([3, 1], 1, 2), _rows([1, 5], 10, 20)]}, {}, {"Out": _rows([1, 3, 5], 12, 1, 20)}),
        Case({"X": [_rows([3, 1], 1, 2), _rows([])]}, {}, {"Out": _rows([3, 1], 1, 2)}),
        Case(
            {"X": [_rows([3, 1, 3], 1, 2, 4), np.ones((6, 1))]},
            {},
            {"Out": np.array([[1.0], [3.0], [1.0], [6.0], [1.0], [1.0]])},
            note="mixed",
        ),
    ),
)
