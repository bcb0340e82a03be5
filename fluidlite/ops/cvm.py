"""`cvm`: show and click counts, the first two columns of an embedding, as features (continuous value model)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.ids import argument
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, bool_attr, register
from fluidlite.ops.segments import array_of, sequences
from fluidlite.values.lod import LoDTensor

_ATTRS = {"use_cvm": bool_attr(default=True, doc="False: leave the two columns out")}


def cvm(ctx: KernelContext, X: Any, *, use_cvm: bool) -> Array:
    x = array_of(X)
    if not use_cvm:
        return x[:, 2:].copy()
    out = x.copy()
    out[:, 0] = np.log(x[:, 0] + 1)
    out[:, 1] = np.log(x[:, 1] + 1) - out[:, 0]
    return out


def cvm_grad(ctx: KernelContext, X: Any, CVM: Any, Y_GRAD: Any, *, use_cvm: bool) -> Array:
    """The two columns carry the counts of the instance to the table, not a derivative."""
    x, counts, upstream = array_of(X), array_of(CVM), array_of(Y_GRAD)
    owners = sequences(ctx, X, "X").owners if isinstance(X, LoDTensor) and X.lod else np.arange(len(x))
    if counts.ndim != 2 or counts.shape[1] != 2 or (len(owners) and owners[-1] >= len(counts)):
        raise ShapeError(
            f"op {ctx.op.type!r}: {argument(ctx, 'CVM')!r} {list(counts.shape)} must hold two counts for each instance"
        )
    grad = np.empty(x.shape, upstream.dtype)
    grad[:, :2] = counts[owners]
    grad[:, 2:] = upstream[:, 2:] if use_cvm else upstream
    return grad


def _infer(ctx: InferContext) -> None:
    x, shape = ctx.input("X"), ctx.shape("X")
    if len(shape) != 2 or 0 <= shape[1] < 3:
        raise ctx.error(f"X {list(shape)} must have two columns of counts and at least one more")
    width = shape[1] if ctx.attr("use_cvm") or shape[1] < 0 else shape[1] - 2
    ctx.set("Y", (shape[0], width), x.dtype, lod_level=x.lod_level)


_X = np.array([[1.0, 0.0, 5.0], [3.0, 1.0, 0.5]])

register(
    "cvm",
    doc="With `use_cvm` Y = X with its first two columns, show and click, turned into log(show + 1) and log(click + 1) - "
    "log(show + 1); without it X without them. CVM [instances, 2]: the counts that the gradient puts there.",
    inputs=["X", "CVM"],
    outputs=["Y"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=cvm,
    grad=maker(["CVM", "X", "Y@GRAD"], ["X@GRAD"]),
    share_lod="X",
    takes_lod=True,
    cases=(
        Case(
            {"X": _X, "CVM": np.ones((2, 2))},
            {},
            {"Y": np.array([[np.log(2.0), -np.log(2.0), 5.0], [np.log(4.0), -np.log(2.0), 0.5]])},
        ),
        Case({"X": _X, "CVM": np.ones((2, 2))}, {"use_cvm": False}, {"Y": _X[:, 2:]}),
    ),
)
register(
    "cvm_grad",
    doc="Gradient of cvm; the first two columns of X@GRAD are CVM.",
    inputs=["CVM", "X", "Y@GRAD"],
    outputs=["X@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=cvm_grad,
    share_lod="X",
    takes_lod=True,
)
