"""Losses of a residual that grow linearly far from zero: `huber_loss` and `smooth_l1_loss`."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, float_attr, register
from fluidlite.ops.shapes import check_same, check_shape


def huber_loss(ctx: KernelContext, X: Array, Y: Array, *, delta: float) -> dict[str, Array]:
    check_same(ctx, "X", X, Y=Y)
    residual = Y - X
    size = np.abs(residual)
    loss = np.where(size <= delta, 0.5 * residual * residual, delta * (size - 0.5 * delta))
    return {"Residual": residual, "Out": loss.astype(X.dtype)}


def huber_loss_grad(ctx: KernelContext, Residual: Array, Out_GRAD: Array, *, delta: float) -> dict[str, Array]:
    check_same(ctx, "Residual", Residual, Out_GRAD=Out_GRAD)
    slope = np.clip(Residual, -delta, delta) * Out_GRAD
    return {"X@GRAD": -slope, "Y@GRAD": slope}


def smooth_l1_loss(
    ctx: KernelContext, X: Array, Y: Array, InsideWeight: Array | None, OutsideWeight: Array | None, *, sigma: float
) -> dict[str, Array]:
    check_same(ctx, "X", X, Y=Y, InsideWeight=InsideWeight, OutsideWeight=OutsideWeight)
    diff = X - Y if InsideWeight is None else (X - Y) * InsideWeight
    size, sharpness = np.abs(diff), sigma * sigma
    loss = np.where(size < 1 / sharpness, 0.5 * sharpness * diff * diff, size - 0.5 / sharpness).astype(X.dtype)
    if OutsideWeight is not None:
        loss = loss * OutsideWeight
    return {"Diff": diff, "Out": loss.sum(axis=tuple(range(1, X.ndim))).reshape(-1, 1)}


def smooth_l1_loss_grad(
    ctx: KernelContext,
    Diff: Array,
    InsideWeight: Array | None,
    OutsideWeight: Array | None,
    Out_GRAD: Array,
    *,
    sigma: float,
) -> dict[str, Array]:
    check_same(ctx, "Diff", Diff, InsideWeight=InsideWeight, OutsideWeight=OutsideWeight)
    check_shape(ctx, "Out@GRAD", Out_GRAD, (len(Diff), 1), "Diff")
    slope = np.clip(Diff * (sigma * sigma), -1, 1)
    for weight in (InsideWeight, OutsideWeight):
        if weight is not None:
            slope = slope * weight
    grad = slope * Out_GRAD.reshape((-1,) + (1,) * (Diff.ndim - 1))
    return {"X@GRAD": grad, "Y@GRAD": -grad}


def _infer_huber(ctx: InferContext) -> None:
    x = ctx.input("X")
    if len(ctx.shape("X")) != len(ctx.shape("Y")):
        raise ctx.error(f"X {list(ctx.shape('X'))} and Y {list(ctx.shape('Y'))} must have the same rank")
    ctx.set("Residual", ctx.shape("Y"), x.dtype)
    ctx.set("Out", x.shape, x.dtype, lod_level=x.lod_level)


def _infer_smooth_l1(ctx: InferContext) -> None:
    x, shape = ctx.input("X"), ctx.shape("X")
    if len(shape) < 2 or len(ctx.shape("Y")) != len(shape):
        raise ctx.error(f"X {list(shape)} and Y {list(ctx.shape('Y'))} must have the same rank, at least 2")
    ctx.set("Diff", shape, x.dtype)
    ctx.set("Out", (shape[0], 1), x.dtype)


def _infer_grad(ctx: InferContext) -> None:
    kept = ctx.input("Residual" if ctx.op.type == "huber_loss_grad" else "Diff")
    for output in ("X@GRAD", "Y@GRAD"):
        ctx.set(output, kept.shape, kept.dtype)


_X, _Y = np.array([[0.0], [0.0], [1.0]]), np.array([[0.5], [-3.0], [1.0]])
_A, _B = np.array([[0.0, 0.0], [1.0, 2.0]]), np.array([[0.5, -3.0], [1.25, 2.0]])

register(
    "huber_loss",
    doc="With the residual r = Y - X: Out = r^2 / 2 where |r| <= delta, else delta * (|r| - delta / 2) (Huber 1964).",
    inputs=["X", "Y"],
    outputs=["Residual~", "Out"],
    attrs={"delta": float_attr(doc="where the loss becomes linear")},
    infer=_infer_huber,
    kernel=huber_loss,
    grad=maker(["Out@GRAD", "Residual"], ["X@GRAD", "Y@GRAD"]),
    share_lod="X",
    cases=(
        Case({"X": _X, "Y": _Y}, {"delta": 1.0}, {"Out": np.array([[0.125], [2.5], [0.0]])}, check_grad=("X", "Y")),
    ),
)
register(
    "huber_loss_grad",
    doc="Gradient of huber_loss.",
    inputs=["Residual", "Out@GRAD"],
    outputs=["X@GRAD", "Y@GRAD"],
    attrs={"delta": float_attr()},
    infer=_infer_grad,
    kernel=huber_loss_grad,
)
register(
    "smooth_l1_loss",
    doc="Per row the sum over features of sigma^2 d^2 / 2 where |d| < 1 / sigma^2, else |d| - 0.5 / sigma^2, with "
    "d = (X - Y) * InsideWeight, each term times OutsideWeight (Girshick 2015, equation 3). Out is [N, 1].",
    inputs=["X", "Y", "InsideWeight?", "OutsideWeight?"],
    outputs=["Diff~", "Out"],
    attrs={"sigma": float_attr(1.0)},
    infer=_infer_smooth_l1,
    kernel=smooth_l1_loss,
    grad=maker(["Diff", "InsideWeight", "Out@GRAD", "OutsideWeight"], ["X@GRAD", "Y@GRAD"]),
    cases=(
        Case({"X": _A, "Y": _B}, {}, {"Out": np.array([[2.625], [0.03125]])}, check_grad=("X", "Y")),
        Case(
            {
                "X": _A,
                "Y": _B,
                "InsideWeight": np.full((2, 2), 2.0),
                "OutsideWeight": np.array([[1.0, 0.5], [2.0, 1.0]]),
            },
            {"sigma": 2.0},
            {"Out": np.array([[0.875 + 0.5 * 5.875], [2 * 0.375]])},
            check_grad=("X", "Y"),
        ),
    ),
)
register(
    "smooth_l1_loss_grad",
    doc="Gradient of smooth_l1_loss.",
    inputs=["Diff", "InsideWeight?", "OutsideWeight?", "Out@GRAD"],
    outputs=["X@GRAD", "Y@GRAD"],
    attrs={"sigma": float_attr(1.0)},
    infer=_infer_grad,
    kernel=smooth_l1_loss_grad,
)
