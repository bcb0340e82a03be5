"""Ops on sequences of ids: `sequence_enumerate` (n-grams) and `sequence_erase`."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import REQUIRED, Case, int_attr, ints_attr, register
from fluidlite.ops.segments import level, sequences
from fluidlite.values.lod import LoDTensor


def sequence_enumerate(ctx: KernelContext, X: Any, *, win_size: int, pad_value: int) -> Array:
    bags = sequences(ctx, X, "X")
    rows = np.arange(len(bags.rows))[:, None] + np.arange(win_size)
    inside = rows < bags.offsets[1:][bags.owners][:, None]
    out = np.full(inside.shape, pad_value, bags.rows.dtype)
    out[inside] = bags.rows.reshape(-1)[rows[inside]]
    return out


def sequence_erase(ctx: KernelContext, X: Any, *, tokens: tuple[int, ...]) -> LoDTensor:
    bags = sequences(ctx, X, "X")
    kept = ~np.isin(bags.rows.reshape(-1), np.asarray(tokens, bags.rows.dtype))
    before = np.concatenate([[0], np.cumsum(kept)])
    return LoDTensor(bags.rows[kept], (*bags.lod[:-1], level(before[bags.offsets])))


def _infer_enumerate(ctx: InferContext) -> None:
    x = ctx.input("X")
    if ctx.attr("win_size") < 1:
        raise ctx.error(f"win_size {ctx.attr('win_size')} must be positive")
    ctx.set("Out", (ctx.shape("X")[0], ctx.attr("win_size")), x.dtype, lod_level=x.lod_level)


def _infer_erase(ctx: InferContext) -> None:
    x = ctx.input("X")
    ctx.set("Out", (-1, *ctx.shape("X")[1:]), x.dtype, lod_level=x.lod_level)


_X = LoDTensor(np.array([[4], [7], [4], [9]]), ((0, 3, 3, 4),))

register(
    "sequence_enumerate",
    doc="Row t of Out: the ids of rows t, t + 1, ... of the same sequence, `win_size` of them, `pad_value` beyond its end.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"win_size": int_attr(), "pad_value": int_attr(0)},
    infer=_infer_enumerate,
    kernel=sequence_enumerate,
    share_lod="X",
    takes_lod=True,
    cases=(
        Case(
            {"X": _X},
            {"win_size": 2, "pad_value": -1},
            {"Out": LoDTensor(np.array([[4, 7], [7, 4], [4, -1], [9, -1]]), ((0, 3, 3, 4),))},
        ),
    ),
)
register(
    "sequence_erase",
    doc="Out: X without the rows whose id is one of `tokens`; sequences become shorter.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"tokens": ints_attr(REQUIRED)},
    infer=_infer_erase,
    kernel=sequence_erase,
    takes_lod=True,
    cases=(Case({"X": _X}, {"tokens": [4, 5]}, {"Out": LoDTensor(np.array([[7], [9]]), ((0, 1, 1, 2),))}),),
)
