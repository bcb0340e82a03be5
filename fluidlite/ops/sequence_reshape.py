"""`sequence_reshape`: other row widths, with as many values per sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, int_attr, register
from fluidlite.ops.segments import array_of, level, sequences
from fluidlite.values.lod import LoDTensor


def sequence_reshape(ctx: KernelContext, X: Any, *, new_dim: int) -> LoDTensor:
    bags = sequences(ctx, X, "X")
    values = bags.offsets * bags.rows.shape[1]
    wrong = np.flatnonzero(np.diff(values) % new_dim)
    if len(wrong):
        raise ShapeError(
            f"op {ctx.op.type!r}: sequence {wrong[0]} has {np.diff(values)[wrong[0]]} values, no multiple of {new_dim}"
        )
    return LoDTensor(bags.rows.reshape(-1, new_dim), (*bags.lod[:-1], level(values // new_dim)))


def sequence_reshape_grad(ctx: KernelContext, X: Any, Out_GRAD: Any) -> Array:
    return array_of(Out_GRAD).reshape(array_of(X).shape)


def _infer(ctx: InferContext) -> None:
    x, shape = ctx.input("X"), ctx.shape("X")
    if len(shape) != 2 or ctx.attr("new_dim") < 1:
        raise ctx.error(f"X {list(shape)} must be a matrix and new_dim {ctx.attr('new_dim')} positive")
    ctx.set("Out", (-1, ctx.attr("new_dim")), x.dtype, lod_level=x.lod_level)


_X = LoDTensor(np.arange(12.0).reshape(3, 4), ((0, 1, 1, 3),))

register(
    "sequence_reshape",
    doc="Out: the values of X in rows of `new_dim`; the lengths of the sequences change in proportion.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"new_dim": int_attr()},
    infer=_infer,
    kernel=sequence_reshape,
    grad=maker(["Out@GRAD", "X"], ["X@GRAD"]),
    takes_lod=True,
    cases=(
        Case(
            {"X": _X},
            {"new_dim": 2},
            {"Out": LoDTensor(np.arange(12.0).reshape(6, 2), ((0, 2, 2, 6),))},
            check_grad=("X",),
        ),
    ),
)
register(
    "sequence_reshape_grad",
    doc="Gradient of sequence_reshape.",
    inputs=["Out@GRAD", "X"],
    outputs=["X@GRAD"],
    attrs={"new_dim": int_attr()},
    infer=grads_like_forward,
    kernel=sequence_reshape_grad,
    share_lod="X",
    takes_lod=True,
)
