"""`sequence_pool`: one row per sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, bool_attr, float_attr, register, string_attr
from fluidlite.ops.segments import Sequences, array_of, per_row, reduce_segments, sequences
from fluidlite.values.lod import LoDTensor

_TYPES = ("AVERAGE", "SUM", "SQRT", "MAX", "LAST", "FIRST")
_ATTRS = {
    "is_test": bool_attr(default=False, doc="MaxIndex is not needed"),
    "pooltype": string_attr("AVERAGE", ", ".join(_TYPES)),
    "pad_value": float_attr(0.0, "the result of an empty sequence"),
}


def sequence_pool(
    ctx: KernelContext, X: Any, *, pooltype: str, pad_value: float, is_test: bool
) -> dict[str, Array | LoDTensor]:
    bags = sequences(ctx, X, "X")
    pooled = _pooled(bags, pooltype, pad_value)
    outer = bags.lod[:-1]
    out: dict[str, Array | LoDTensor] = {"Out": LoDTensor(pooled, outer) if outer else pooled}
    if pooltype == "MAX" and not is_test:
        out["MaxIndex"] = _first_rows_with(bags, pooled)
    return out


def _pooled(bags: Sequences, pooltype: str, pad_value: float) -> Array:
    if pooltype == "MAX":
        return reduce_segments(np.maximum, bags.rows, bags.offsets, pad_value)
    filled = bags.lengths > 0
    if pooltype in {"FIRST", "LAST"}:
        out = np.full((bags.count, *bags.rows.shape[1:]), pad_value, bags.rows.dtype)
        out[filled] = bags.rows[_end_rows(bags, pooltype)]
        return out
    out = reduce_segments(np.add, bags.rows, bags.offsets, pad_value)
    if pooltype != "SUM":
        out[filled] /= per_row(_divisors(bags, pooltype)[filled], out)
    return out


def _end_rows(bags: Sequences, pooltype: str) -> Array:
    """The first or last row of each sequence that has any."""
    filled = bags.lengths > 0
    return bags.starts[filled] if pooltype == "FIRST" else bags.offsets[1:][filled] - 1


def _divisors(bags: Sequences, pooltype: str) -> Array:
    """What AVERAGE and SQRT divide the sum of each sequence by, in the dtype of the rows."""
    return (np.sqrt(bags.lengths) if pooltype == "SQRT" else bags.lengths).astype(bags.rows.dtype)


def _first_rows_with(bags: Sequences, top: Array) -> Array:
    """Row of X that each maximum comes from, the first of equals, -1 for empty sequences: int32 like Out."""
    is_top = (bags.rows == top[bags.owners]) | np.isnan(bags.rows)  # where there is a NaN it is the maximum
    row = per_row(np.arange(len(bags.rows)), bags.rows)
    first = reduce_segments(np.minimum, np.where(is_top, row, len(bags.rows)), bags.offsets, -1)
    return first.astype(np.int32)


def sequence_pool_grad(ctx: KernelContext, X: Any, MaxIndex: Any, Out_GRAD: Any, *, pooltype: str) -> Array:
    bags, upstream = sequences(ctx, X, "X"), array_of(Out_GRAD)
    if pooltype in {"MAX", "FIRST", "LAST"}:
        out = np.zeros(bags.rows.shape, upstream.dtype)
        filled = bags.lengths > 0
        if pooltype == "MAX":
            np.put_along_axis(out, array_of(MaxIndex)[filled].astype(np.int64), upstream[filled], axis=0)
        else:
            out[_end_rows(bags, pooltype)] = upstream[filled]
        return out
    if pooltype == "SUM":
        return upstream[bags.owners]
    share = upstream / per_row(np.maximum(_divisors(bags, pooltype), 1), upstream)
    return share[bags.owners]


def _infer(ctx: InferContext) -> None:
    x, shape, pooltype = ctx.input("X"), ctx.shape("X"), ctx.attr("pooltype")
    if pooltype not in _TYPES:
        raise ProgramError(
            f"op {ctx.op.type!r}: pooltype {pooltype!r} is none of {', '.join(_TYPES)} ({ctx.op.origin})"
        )
    ctx.set("Out", (-1, *shape[1:]), x.dtype, lod_level=max(x.lod_level - 1, 0))
    if pooltype == "MAX":
        ctx.set("MaxIndex", (-1, *shape[1:]))  # its dtype stays as declared: programs say float32, as Fluid's do


def _make_grad(op: Operator) -> list[Operator]:
    max_index = ["MaxIndex"] if op.attr("pooltype", "AVERAGE") == "MAX" else []
    return maker(["Out@GRAD", "X", *max_index], ["X@GRAD"])(op)


_X = LoDTensor(np.array([[1.0, 4.0], [3.0, 2.0], [5.0, 6.0]]), ((0, 2, 2, 3),))
_PAD = [9.0, 9.0]


def _case(pooltype: str, first: list[float]) -> Case:
    expected = np.array([first, _PAD, [5.0, 6.0]])
    return Case({"X": _X}, {"pooltype": pooltype, "pad_value": 9.0}, {"Out": expected}, check_grad=("X",))


register(
    "sequence_pool",
    doc="Out[i]: the rows of sequence i (of the last LoD level) reduced to one: their sum, average, sum / sqrt(length), "
    "maximum, first or last; `pad_value` for an empty sequence. Out keeps the outer LoD levels. MaxIndex: where each "
    "maximum comes from.",
    inputs=["X"],
    outputs=["Out", "MaxIndex~"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=sequence_pool,
    grad=_make_grad,
    takes_lod=True,
    cases=(
        _case("AVERAGE", [2.0, 3.0]),
        _case("SUM", [4.0, 6.0]),
        _case("SQRT", [4.0 / np.sqrt(2.0), 6.0 / np.sqrt(2.0)]),
        _case("FIRST", [1.0, 4.0]),
        _case("LAST", [3.0, 2.0]),
        Case(
            {"X": _X},
            {"pooltype": "MAX", "pad_value": 9.0, "is_test": True},
            {"Out": np.array([[3.0, 4.0], _PAD, [5.0, 6.0]])},
            note="MaxIndex is left out",
        ),
        Case(
            {"X": LoDTensor(_X.array, ((0, 2, 3), (0, 2, 2, 3)))},
            {"pooltype": "SUM"},
            {"Out": LoDTensor(np.array([[4.0, 6.0], [0.0, 0.0], [5.0, 6.0]]), ((0, 2, 3),))},
            note="the outer level stays",
        ),
        Case(
            {"X": LoDTensor(np.zeros((0, 2)), ((0, 0, 0),))}, {}, {"Out": np.zeros((2, 2))}, note="only empty sequences"
        ),
    ),
)
register(
    "sequence_pool_grad",
    doc="Gradient of sequence_pool.",
    inputs=["Out@GRAD", "X", "MaxIndex?"],
    outputs=["X@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=sequence_pool_grad,
    share_lod="X",
    takes_lod=True,
)
