"""Losses: bce_loss, nll_loss, modified_huber_loss, center_loss, sigmoid_focal_loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import OutOfRangeError, ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.ids import argument
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.pairs import with_gradient
from fluidlite.ops.registry import Case, bool_attr, float_attr, int_attr, long_attr, string_attr
from fluidlite.ops.special import sigmoid, softplus


def bce_loss(ctx: KernelContext, X: Array, Label: Array) -> Array:
    with np.errstate(divide="ignore"):
        hit, miss = np.maximum(np.log(X), -100), np.maximum(np.log(1 - X), -100)
    return np.asarray(-(Label * hit + (1 - Label) * miss), X.dtype)


def bce_loss_grad(ctx: KernelContext, X: Array, Label: Array, Out_GRAD: Array) -> Array:
    return np.asarray(Out_GRAD * (X - Label) / np.maximum((1 - X) * X, np.asarray(1e-12, X.dtype)))


def _infer_pair(ctx: InferContext) -> None:
    _same_shapes(ctx, "X", "Label")
    like("X", "Out")(ctx)


def _same_shapes(ctx: InferContext, first: str, second: str) -> None:
    a, b = ctx.shape(first), ctx.shape(second)
    if len(a) != len(b) or any(x != y and min(x, y) >= 0 for x, y in zip(a, b, strict=True)):
        raise ctx.error(f"{first} {list(a)} and {second} {list(b)} must have one shape")


def _labels(ctx: KernelContext, labels: Array, classes: int, ignored: int | None = None) -> Array:
    """Labels as classes, each checked; where one is ignored class 0 stands for it."""
    flat = labels.reshape(-1)
    kept = np.ones(flat.shape, bool) if ignored is None else flat != ignored
    bad = np.flatnonzero(kept & ((flat < 0) | (flat >= classes)))
    if len(bad):
        raise OutOfRangeError(
            f"op {ctx.op.type!r}: Label {argument(ctx, 'Label')!r} holds {flat[bad[0]]} at position {bad[0]}, not in [0, {classes})"
        )
    return np.where(kept, flat, 0)


def _weights(X: Array, Label: Array, weight: Array | None, classes: Array, ignore_index: int) -> Array:
    """The weight of each label, 0 for an ignored one."""
    own = np.ones(classes.shape, X.dtype) if weight is None else weight[classes]
    return np.asarray(own * (Label.reshape(-1) != ignore_index))


def nll_loss(
    ctx: KernelContext, X: Array, Label: Array, Weight: Array | None, *, ignore_index: int, reduction: str
) -> dict[str, Array]:
    scores = np.moveaxis(X, 1, -1).reshape(-1, X.shape[1])
    classes = _labels(ctx, Label, X.shape[1], ignore_index)
    weights = _weights(X, Label, Weight, classes, ignore_index)
    losses = -scores[np.arange(len(classes)), classes] * weights
    total = np.asarray(weights.sum(dtype=X.dtype)).reshape(1)
    if reduction == "none":
        return {"Out": losses.reshape(Label.shape), "Total_weight": np.zeros(1, X.dtype)}
    out = np.asarray(losses.sum(dtype=X.dtype)).reshape(1)
    return {"Out": out / total if reduction == "mean" else out, "Total_weight": total}


def nll_loss_grad(
    ctx: KernelContext,
    X: Array,
    Label: Array,
    Weight: Array | None,
    Total_weight: Array,
    Out_GRAD: Array,
    *,
    ignore_index: int,
    reduction: str,
) -> Array:
    classes = _labels(ctx, Label, X.shape[1], ignore_index)
    weights = _weights(X, Label, Weight, classes, ignore_index)
    upstream = Out_GRAD.reshape(-1) / Total_weight if reduction == "mean" else Out_GRAD.reshape(-1)
    moved = np.zeros((X.shape[0], *X.shape[2:], X.shape[1]), X.dtype)
    moved.reshape(-1, X.shape[1])[np.arange(len(classes)), classes] = -upstream * weights
    return np.ascontiguousarray(np.moveaxis(moved, -1, 1))


def _infer_nll_loss(ctx: InferContext) -> None:
    x, label, reduction = ctx.shape("X"), ctx.shape("Label"), ctx.attr("reduction")
    if len(x) not in (2, 4) or len(label) != len(x) - 1:
        raise ctx.error(f"X {list(x)} and Label {list(label)} must be [n, classes] and [n], or have 2 more dimensions")
    if reduction not in ("none", "mean", "sum"):
        raise ProgramError(f"op 'nll_loss': reduction is {reduction!r}, not none, mean or sum ({ctx.op.origin})")
    dtype = ctx.input("X").dtype
    ctx.set("Out", label if reduction == "none" else (1,), dtype)
    ctx.set("Total_weight", (1,), dtype)


def modified_huber_loss(ctx: KernelContext, X: Array, Y: Array) -> dict[str, Array]:
    margin = X * (2 * Y - 1)
    loss = np.where(margin < -1, -4 * margin, np.where(margin < 1, (1 - margin) ** 2, 0))
    return {"IntermediateVal": margin, "Out": loss.astype(X.dtype, copy=False)}


def modified_huber_loss_grad(ctx: KernelContext, Y: Array, IntermediateVal: Array, Out_GRAD: Array) -> Array:
    margin = IntermediateVal
    slope = np.where(margin < -1, -4, np.where(margin < 1, -2 * (1 - margin), 0))
    return np.asarray(slope * (2 * Y - 1) * Out_GRAD, Out_GRAD.dtype)


def _infer_modified_huber(ctx: InferContext) -> None:
    _same_shapes(ctx, "X", "Y")
    like("X", "IntermediateVal", "Out")(ctx)


def center_loss(
    ctx: KernelContext,
    X: Array,
    Label: Array,
    Centers: Array,
    CenterUpdateRate: Array,
    *,
    cluster_num: int,
    need_update: bool,
) -> dict[str, Array]:
    classes = _labels(ctx, Label, len(Centers))
    difference = X - Centers[classes]
    centers = Centers
    if need_update:
        moves = np.zeros_like(Centers)
        np.add.at(moves, classes, difference)
        counts = 1 + np.bincount(classes, minlength=len(Centers))
        centers = Centers + CenterUpdateRate.reshape(-1)[0] * moves / counts[:, None].astype(X.dtype)
    loss = (difference * difference).sum(axis=1, keepdims=True) / 2
    return {"CentersOut": centers, "SampleCenterDiff": difference, "Loss": loss}


def center_loss_grad(ctx: KernelContext, X: Array, SampleCenterDiff: Array, Loss_GRAD: Array) -> Array:
    return (Loss_GRAD * SampleCenterDiff).reshape(X.shape)


def _infer_center_loss(ctx: InferContext) -> None:
    x, centers = ctx.shape("X"), ctx.input("Centers")
    dtype = ctx.input("X").dtype
    ctx.set("CentersOut", centers.shape, dtype)
    ctx.set("SampleCenterDiff", x, dtype)
    ctx.set("Loss", (x[0], 1), dtype)


def sigmoid_focal_loss(
    ctx: KernelContext, X: Array, Label: Array, FgNum: Array, *, gamma: float, alpha: float
) -> Array:
    positive, negative, count = _focal_terms(X, Label, FgNum)
    p = sigmoid(X)
    hit = -alpha * (1 - p) ** gamma * -softplus(-X)
    miss = -(1 - alpha) * p**gamma * -softplus(X)
    return np.asarray((positive * hit + negative * miss) / count)


def _focal_terms(X: Array, Label: Array, FgNum: Array) -> tuple[Array, Array, Any]:
    """(cells of the sample's class, cells of others, number of foreground samples); label -1 is ignored, 0 background."""
    classes = np.arange(1, X.shape[1] + 1)
    positive = Label.reshape(-1, 1) == classes
    negative = (Label.reshape(-1, 1) != -1) & ~positive
    return positive, negative, np.asarray(max(int(FgNum.reshape(-1)[0]), 1), X.dtype)


def sigmoid_focal_loss_grad(
    ctx: KernelContext, X: Array, Label: Array, FgNum: Array, Out_GRAD: Array, *, gamma: float, alpha: float
) -> Array:
    positive, negative, count = _focal_terms(X, Label, FgNum)
    p = sigmoid(X)
    hit = alpha * (1 - p) ** gamma * (gamma * p * -softplus(-X) - (1 - p))
    miss = -(1 - alpha) * p**gamma * (gamma * (1 - p) * -softplus(X) - p)
    return np.asarray(Out_GRAD * (positive * hit + negative * miss) / count)


def _infer_focal(ctx: InferContext) -> None:
    like("X", "Out")(ctx)


def _listed(values: Sequence[float], shape: tuple[int, ...] = (-1, 1)) -> Array:
    return np.array(values).reshape(shape)


_P: Final = np.array([[0.2, 0.9], [0.6, 0.35]])
_HITS: Final = np.array([[0.0, 1.0], [1.0, 0.0]])
_X: Final = varied(3, 4)

with_gradient(
    "bce_loss",
    doc="Out = -(Label * log(X) + (1 - Label) * log(1 - X)) of probabilities; no logarithm counts below -100.",
    inputs=["X", "Label"],
    outputs=["Out"],
    infer=_infer_pair,
    kernel=bce_loss,
    gradient=bce_loss_grad,
    reads=["Label", "X", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case({"X": _P, "Label": _HITS}, {}, {"Out": -np.log(np.where(_HITS == 1, _P, 1 - _P))}, check_grad=("X",)),
        Case({"X": np.array([1.0, 0.0]), "Label": np.array([0.0, 0.0])}, {}, {"Out": np.array([100.0, 0.0])}),
    ),
)
with_gradient(
    "nll_loss",
    doc="Out = -X[label], log probabilities [n, classes] or [n, classes, h, w], times the Weight of the label's class; "
    "`reduction` mean divides their sum by that of the weights. Labels `ignore_index` cost nothing.",
    inputs=["X", "Label", "Weight?"],
    outputs=["Out", "Total_weight"],
    attrs={"ignore_index": long_attr(-100), "reduction": string_attr("mean", "mean, sum or none")},
    infer=_infer_nll_loss,
    kernel=nll_loss,
    gradient=nll_loss_grad,
    reads=["Label", "Total_weight", "Weight", "X", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case({"X": _X, "Label": np.array([1, 3, 1]), "Weight": np.array([1.0, 0.5, 2.0, 3.0])}, check_grad=("X",)),
        Case({"X": _X, "Label": np.array([1, 3, 1])}, {"reduction": "none", "ignore_index": 3}, check_grad=("X",)),
        Case(
            {"X": varied(2, 3, 1, 2), "Label": np.array([[[1, 2]], [[0, 1]]])}, {"reduction": "sum"}, check_grad=("X",)
        ),
    ),
)
with_gradient(
    "modified_huber_loss",
    doc="Out = max(0, 1 - m)² for a margin m = X * (2 Y - 1) of at least -1, else -4 m; Y is 0 or 1 (Zhang 2004).",
    inputs=["X", "Y"],
    outputs=["IntermediateVal~", "Out"],
    infer=_infer_modified_huber,
    kernel=modified_huber_loss,
    gradient=modified_huber_loss_grad,
    reads=["IntermediateVal", "Y", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case(
            {"X": _listed([2.0, 0.5, 1.5, -2.0]), "Y": _listed([0.0, 1.0, 1.0, 0.0])},
            {},
            {"Out": _listed([8.0, 0.25, 0.0, 0.0])},
            check_grad=("X",),
        ),
    ),
)
with_gradient(
    "center_loss",
    doc="Loss = half the squared distance of each row of X from the center of its class (Wen et al. 2016). CentersOut: "
    "moved towards their rows by CenterUpdateRate.",
    inputs=["X", "Label", "Centers", "CenterUpdateRate"],
    outputs=["CentersOut", "SampleCenterDiff", "Loss"],
    attrs={"cluster_num": int_attr(), "need_update": bool_attr()},
    infer=_infer_center_loss,
    kernel=center_loss,
    gradient=center_loss_grad,
    reads=["SampleCenterDiff", "X", "Loss@GRAD"],
    writes=["X@GRAD"],
    inplace={"CentersOut": "Centers"},
    cases=(
        Case(
            {
                "X": _X,
                "Label": _listed([0, 1, 0]),
                "Centers": varied(2, 4, start=40),
                "CenterUpdateRate": np.array([0.1]),
            },
            {"cluster_num": 2, "need_update": True},
        ),
    ),
)
with_gradient(
    "sigmoid_focal_loss",
    doc="Out = the focal loss of each class (Lin et al. 2017), divided by the number of foreground samples. Label 0 is "
    "background, -1 ignored.",
    inputs=["X", "Label", "FgNum"],
    outputs=["Out"],
    attrs={"gamma": float_attr(2.0), "alpha": float_attr(0.25)},
    infer=_infer_focal,
    kernel=sigmoid_focal_loss,
    gradient=sigmoid_focal_loss_grad,
    reads=["FgNum", "Label", "X", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case(
            {"X": _X, "Label": np.array([[1], [0], [-1]], np.int32), "FgNum": np.array([1], np.int32)},
            check_grad=("X",),
        ),
    ),
)
