"""Between sequences and padded batches: `sequence_pad`, `sequence_unpad`, `sequence_mask`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fluidlite.dtypes import Array, dtype_name, numpy_dtype
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.ids import argument
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, int_attr, register
from fluidlite.ops.segments import Sequences, array_of, level, offsets_of, ranges, sequences
from fluidlite.values.lod import LoDTensor


def sequence_pad(ctx: KernelContext, X: Any, PadValue: Any, *, padded_length: int) -> dict[str, Array]:
    bags, pad = sequences(ctx, X, "X"), array_of(PadValue)
    longest = int(bags.lengths.max(initial=0))
    if padded_length != -1 and padded_length < longest:
        raise ShapeError(
            f"op {ctx.op.type!r}: padded_length {padded_length} is below the longest sequence of "
            f"{argument(ctx, 'X')!r}, {longest}"
        )
    step = bags.rows.shape[1:]
    if pad.size not in (1, math.prod(step)):
        raise ShapeError(
            f"op {ctx.op.type!r}: PadValue {argument(ctx, 'PadValue')!r} {list(pad.shape)} must be one number, or a row "
            f"{list(step)} of X"
        )
    size = (bags.count, longest if padded_length == -1 else padded_length)
    out = np.empty((*size, *step), bags.rows.dtype)
    out[...] = pad.reshape(-1)[0] if pad.size == 1 else pad.reshape(step)
    out.reshape(-1, *step)[_padded_rows(bags, size[1])] = bags.rows
    return {"Out": out, "Length": bags.lengths}


def sequence_pad_grad(ctx: KernelContext, X: Any, Out_GRAD: Any) -> Array:
    bags, upstream = sequences(ctx, X, "X"), array_of(Out_GRAD)
    grad: Array = upstream.reshape(-1, *bags.rows.shape[1:])[_padded_rows(bags, upstream.shape[1])]
    return grad


def _padded_rows(bags: Sequences, length: int) -> Array:
    """Where each row of the sequences stands when every sequence has room for ``length`` rows."""
    return ranges(np.arange(bags.count) * length, bags.lengths)


def sequence_unpad(ctx: KernelContext, X: Any, Length: Any) -> LoDTensor:
    x, lengths = array_of(X), array_of(Length).reshape(-1)
    if len(lengths) != len(x) or (lengths < 0).any() or (lengths > x.shape[1]).any():
        raise ShapeError(
            f"op {ctx.op.type!r}: lengths {argument(ctx, 'Length')!r} {lengths.tolist()[:10]} do not fit X {list(x.shape)}"
        )
    rows = x.reshape(-1, *(x.shape[2:] or (1,)))[ranges(np.arange(len(x)) * x.shape[1], lengths)]
    return LoDTensor(rows, (level(offsets_of(lengths)),))


def sequence_unpad_grad(ctx: KernelContext, X: Any, Out_GRAD: Any) -> Array:
    x, bags = array_of(X), sequences(ctx, Out_GRAD, "Out@GRAD")
    grad = np.zeros((x.shape[0] * x.shape[1], *bags.rows.shape[1:]), bags.rows.dtype)
    grad[_padded_rows(bags, x.shape[1])] = bags.rows
    return grad.reshape(x.shape)


def sequence_mask(ctx: KernelContext, X: Array, MaxLenTensor: Array | None, *, maxlen: int, out_dtype: int) -> Array:
    if MaxLenTensor is not None:
        maxlen = int(MaxLenTensor.reshape(-1)[0])
    width = int(X.max(initial=0)) if maxlen < 0 else maxlen
    return (np.arange(width) < X[..., None]).astype(numpy_dtype(out_dtype))


def _infer_pad(ctx: InferContext) -> None:
    x, padded = ctx.input("X"), ctx.attr("padded_length")
    # 1 for a length that only the batch tells: programs declare it so, as Fluid's do
    ctx.set("Out", (-1, 1 if padded == -1 else padded, *ctx.shape("X")[1:]), x.dtype, lod_level=0)
    ctx.set("Length", (-1,), "int64", lod_level=0)


def _infer_unpad(ctx: InferContext) -> None:
    shape = ctx.shape("X")
    if len(shape) < 2:
        raise ctx.error(f"X {list(shape)} must have the dimensions batch and time")
    ctx.set("Out", (-1, *(shape[2:] or (1,))), ctx.input("X").dtype, lod_level=1)


def _infer_mask(ctx: InferContext) -> None:
    width = -1 if ctx.inputs("MaxLenTensor") else ctx.attr("maxlen")
    ctx.set("Y", (*ctx.shape("X"), max(width, -1)), dtype_name(ctx.attr("out_dtype")), lod_level=0)


_X = LoDTensor(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), ((0, 2, 2, 3),))
_PADDED = np.array([[[1.0, 2.0], [3.0, 4.0]], [[9.0, 8.0], [9.0, 8.0]], [[5.0, 6.0], [9.0, 8.0]]])

register(
    "sequence_pad",
    doc="Out [batch, time, ...]: the sequences of X filled up with PadValue (one number, or one row) to the longest of them "
    "or to `padded_length`. Length [batch] int64: how long they are.",
    inputs=["X", "PadValue"],
    outputs=["Out", "Length"],
    attrs={"padded_length": int_attr(-1)},
    infer=_infer_pad,
    kernel=sequence_pad,
    grad=maker(["Out@GRAD", "X"], ["X@GRAD"]),
    takes_lod=True,
    cases=(
        Case(
            {"X": _X, "PadValue": np.array([9.0, 8.0])},
            {"padded_length": 2},
            {"Out": _PADDED, "Length": np.array([2, 0, 1])},
            check_grad=("X",),
        ),
        Case(
            {"X": _X, "PadValue": np.array([0.0])},
            {"padded_length": 3},
            {"Out": np.concatenate([_PADDED * (_PADDED < 7), np.zeros((3, 1, 2))], axis=1)},
        ),
    ),
)
register(
    "sequence_pad_grad",
    doc="Gradient of sequence_pad.",
    inputs=["Out@GRAD", "X"],
    outputs=["X@GRAD"],
    attrs={"padded_length": int_attr(-1)},
    infer=grads_like_forward,
    kernel=sequence_pad_grad,
    share_lod="X",
    takes_lod=True,
)
register(
    "sequence_unpad",
    doc="Out: the first Length[i] rows of X[i] as sequence i; X [batch, time, ...]. Where X is a matrix, Out is [n, 1].",
    inputs=["X", "Length"],
    outputs=["Out"],
    infer=_infer_unpad,
    kernel=sequence_unpad,
    grad=maker(["Out@GRAD", "X"], ["X@GRAD"]),
    takes_lod=True,
    cases=(Case({"X": _PADDED, "Length": np.array([2, 0, 1])}, {}, {"Out": _X}, check_grad=("X",)),),
)
register(
    "sequence_unpad_grad",
    doc="Gradient of sequence_unpad; zero beyond the sequences.",
    inputs=["Out@GRAD", "X"],
    outputs=["X@GRAD"],
    infer=grads_like_forward,
    kernel=sequence_unpad_grad,
    takes_lod=True,
)
register(
    "sequence_mask",
    doc="Y[..., j] = 1 where j < X[...], else 0, for j below `maxlen` (or MaxLenTensor; negative: the largest of X).",
    inputs=["X", "MaxLenTensor?"],
    outputs=["Y"],
    attrs={"maxlen": int_attr(-1), "out_dtype": int_attr()},
    infer=_infer_mask,
    kernel=sequence_mask,
    cases=(
        Case({"X": np.array([1, 0, 2])}, {"out_dtype": 3}, {"Y": np.array([[1, 0], [0, 0], [1, 1]])}),
        Case({"X": np.array([[1]])}, {"out_dtype": 3, "maxlen": 3}, {"Y": np.array([[[1, 0, 0]]])}),
    ),
)
