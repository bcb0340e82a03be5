"""`sequence_conv`: convolution over the rows of each sequence."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, bool_attr, int_attr, register
from fluidlite.ops.segments import Sequences, array_of, sequences
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import segment_sum

_ATTRS = {
    "paddingTrainable": bool_attr(default=False, doc="what lies outside a sequence is PaddingData, not zeros"),
    "contextLength": int_attr(doc="rows of the window"),
    "contextStart": int_attr(0, "first row of the window, relative to the row in the middle"),
    "contextStride": int_attr(1, "1 is the only one"),
}


class _Window(NamedTuple):
    """Where each of the (T, length) cells of all windows reads from."""

    source: Array  # row of X, or any where the cell is outside the sequence
    inside: Array
    padding: Array  # row of PaddingData where the cell is outside


def _window(bags: Sequences, start: int, length: int) -> _Window:
    rows = np.arange(len(bags.rows))[:, None] + np.arange(start, start + length)
    first, end = bags.starts[bags.owners][:, None], bags.offsets[1:][bags.owners][:, None]
    above = max(0, -start)
    padding = np.where(rows < first, above + rows - first, above + rows - end)
    inside = (rows >= first) & (rows < end)
    return _Window(np.where(inside, rows, 0), inside, np.where(inside, 0, padding))


def _columns(bags: Sequences, window: _Window, padding: Array | None) -> Array:
    """The windows as rows of a matrix (T, length * width)."""
    if not len(bags.rows):
        return np.zeros((0, window.inside.shape[1] * bags.rows.shape[1]), bags.rows.dtype)
    outside = 0 if padding is None or not len(padding) else padding[window.padding]
    cells = np.where(window.inside[:, :, None], bags.rows[window.source], outside).astype(bags.rows.dtype)
    return cells.reshape(len(cells), -1)


def sequence_conv(
    ctx: KernelContext, X: Any, PaddingData: Any, Filter: Any, *, contextLength: int, contextStart: int
) -> Array:
    bags, filter = sequences(ctx, X, "X"), array_of(Filter)
    if bags.rows.ndim != 2 or len(filter) != contextLength * bags.rows.shape[1]:
        raise ShapeError(
            f"op {ctx.op.type!r}: windows of {contextLength} rows of X {list(bags.rows.shape)} do not fit Filter "
            f"{list(filter.shape)}"
        )
    padding = None if PaddingData is None else array_of(PaddingData)
    out: Array = _columns(bags, _window(bags, contextStart, contextLength), padding) @ filter
    return out


def sequence_conv_grad(
    ctx: KernelContext,
    X: Any,
    PaddingData: Any,
    Filter: Any,
    Out_GRAD: Any,
    *,
    contextLength: int,
    contextStart: int,
) -> dict[str, Array | LoDTensor]:
    bags, filter, upstream = sequences(ctx, X, "X"), array_of(Filter), array_of(Out_GRAD)
    padding = None if PaddingData is None else array_of(PaddingData)
    window = _window(bags, contextStart, contextLength)
    grads: dict[str, Array | LoDTensor] = {"Filter@GRAD": _columns(bags, window, padding).T @ upstream}
    if ctx.wants("X@GRAD") or ctx.wants("PaddingData@GRAD"):
        cells = (upstream @ filter.T).reshape(len(upstream), contextLength, bags.rows.shape[1])
        inside = window.inside
        # not shared by the record: Filter@GRAD can have as many rows by chance
        grads["X@GRAD"] = LoDTensor(segment_sum(cells[inside], window.source[inside], len(bags.rows)), bags.lod)
        if padding is not None:
            grads["PaddingData@GRAD"] = segment_sum(cells[~inside], window.padding[~inside], len(padding))
    return grads


def _infer(ctx: InferContext) -> None:
    x, filter = ctx.input("X"), ctx.shape("Filter")
    if ctx.attr("contextStride") != 1 or ctx.attr("contextLength") < 1:
        raise ProgramError(f"op {ctx.op.type!r}: contextStride must be 1 and contextLength positive ({ctx.op.origin})")
    if len(ctx.shape("X")) != 2 or len(filter) != 2:
        raise ctx.error(f"X {list(ctx.shape('X'))} and Filter {list(filter)} must be matrices")
    if ctx.attr("paddingTrainable") and not ctx.inputs("PaddingData"):
        raise ProgramError(f"op {ctx.op.type!r}: paddingTrainable needs PaddingData ({ctx.op.origin})")
    ctx.set("Out", (-1, filter[1]), x.dtype, lod_level=x.lod_level)


def _make_grad(op: Operator) -> list[Operator]:
    padding = ["PaddingData"] if op.attr("paddingTrainable", default=False) else []
    outputs = ["Filter@GRAD", "X@GRAD", *(f"{name}@GRAD" for name in padding)]
    return maker(["Filter", "Out@GRAD", "X", *padding], outputs)(op)


_X = LoDTensor(np.array([[1.0], [2.0], [3.0]]), ((0, 2, 2, 3),))
_FILTER = np.array([[1.0], [10.0], [100.0]])

register(
    "sequence_conv",
    doc="Row t of Out: the rows t + contextStart ... of the same sequence, `contextLength` of them side by side, times Filter "
    "[contextLength * width, M]. Outside the sequence they are zeros, or rows of PaddingData: first those above it.",
    inputs=["X", "PaddingData?", "Filter"],
    outputs=["Out"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=sequence_conv,
    grad=_make_grad,
    share_lod="X",
    takes_lod=True,
    cases=(
        Case(
            {"X": _X, "Filter": _FILTER},
            {"contextLength": 3, "contextStart": -1},
            {"Out": LoDTensor(np.array([[210.0], [21.0], [30.0]]), ((0, 2, 2, 3),))},
            check_grad=("X", "Filter"),
        ),
        Case(
            {"X": _X, "Filter": _FILTER, "PaddingData": np.array([[5.0], [7.0]])},
            {"contextLength": 3, "contextStart": -1, "paddingTrainable": True},
            {"Out": LoDTensor(np.array([[215.0], [721.0], [735.0]]), ((0, 2, 2, 3),))},
            check_grad=("X", "Filter", "PaddingData"),
        ),
    ),
)
register(
    "sequence_conv_grad",
    doc="Gradient of sequence_conv.",
    inputs=["X", "PaddingData?", "Filter", "Out@GRAD"],
    outputs=["Filter@GRAD", "PaddingData@GRAD?", "X@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=sequence_conv_grad,
    takes_lod=True,
)
