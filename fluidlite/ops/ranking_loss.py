"""Losses that order scores: `hinge_loss`, `rank_loss`, `margin_rank_loss`, `bpr_loss`."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.binary_loss import softplus_of_negative_abs, stable_sigmoid
from fluidlite.ops.context import KernelContext
from fluidlite.ops.cross_entropy import picked, scattered
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward, like
from fluidlite.ops.registry import Case, float_attr, register
from fluidlite.ops.shapes import check_labels, check_same


def hinge_loss(ctx: KernelContext, Logits: Array, Labels: Array) -> Array:
    check_same(ctx, "Logits", Logits, Labels=Labels)
    out: Array = np.maximum(1 - Logits * (2 * Labels - 1), 0)
    return out


def hinge_loss_grad(ctx: KernelContext, Logits: Array, Labels: Array, Loss_GRAD: Array) -> Array:
    check_same(ctx, "Logits", Logits, Labels=Labels, Loss_GRAD=Loss_GRAD)
    sign = 2 * Labels - 1
    return np.where(Logits * sign < 1, -sign * Loss_GRAD, 0).astype(Logits.dtype)


def rank_loss(ctx: KernelContext, Label: Array, Left: Array, Right: Array) -> Array:
    check_same(ctx, "Left", Left, Right=Right, Label=Label)
    lead = Left - Right
    out: Array = np.maximum(lead, 0) + softplus_of_negative_abs(lead) - Label * lead
    return out


def rank_loss_grad(ctx: KernelContext, Label: Array, Left: Array, Right: Array, Out_GRAD: Array) -> dict[str, Array]:
    check_same(ctx, "Left", Left, Right=Right, Label=Label, Out_GRAD=Out_GRAD)
    grad = Out_GRAD * (stable_sigmoid(Left - Right) - Label)
    return {"Left@GRAD": grad, "Right@GRAD": -grad}


def margin_rank_loss(ctx: KernelContext, X1: Array, X2: Array, Label: Array, *, margin: float) -> dict[str, Array]:
    check_same(ctx, "X1", X1, X2=X2, Label=Label)
    loss = np.maximum(-Label * (X1 - X2) + margin, 0)
    return {"Activated": (loss > 0).astype(X1.dtype), "Out": loss}


def margin_rank_loss_grad(ctx: KernelContext, Activated: Array, Label: Array, Out_GRAD: Array) -> dict[str, Array]:
    check_same(ctx, "Activated", Activated, Label=Label, Out_GRAD=Out_GRAD)
    grad = Out_GRAD * Activated * Label
    return {"X1@GRAD": -grad, "X2@GRAD": grad}


def bpr_loss(ctx: KernelContext, X: Array, Label: Array) -> Array:
    """Rows of one class have nobody to be ranked above and cost 0."""
    check_labels(ctx, "X", X, "Label", Label)
    labels, chosen, _ = picked(ctx, X, Label)
    lead = X.reshape(-1, X.shape[-1]) - chosen[:, None]
    terms = np.maximum(lead, 0) + softplus_of_negative_abs(lead)
    terms[np.arange(len(terms)), labels] = 0
    out: Array = (terms.sum(axis=1) / X.dtype.type(_others(X))).reshape((*X.shape[:-1], 1))
    return out


def bpr_loss_grad(ctx: KernelContext, X: Array, Label: Array, Y_GRAD: Array) -> Array:
    check_labels(ctx, "X", X, "Label", Label)
    check_labels(ctx, "X", X, "Y@GRAD", Y_GRAD)
    labels, chosen, _ = picked(ctx, X, Label)
    slope = stable_sigmoid(X.reshape(-1, X.shape[-1]) - chosen[:, None]) * Y_GRAD.reshape(-1, 1)
    slope[np.arange(len(slope)), labels] = 0
    slope = slope / X.dtype.type(_others(X))
    out: Array = (slope - scattered(slope.sum(axis=1), labels, slope.shape)).reshape(X.shape)
    return out


def _others(x: Array) -> int:
    return max(int(x.shape[-1]) - 1, 1)


def _infer_pair(ctx: InferContext) -> None:
    x1 = ctx.input("X1")
    for output in ("Activated", "Out"):
        ctx.set(output, x1.shape, x1.dtype, lod_level=x1.lod_level)


def _infer_pair_grad(ctx: InferContext) -> None:
    kept = ctx.input("Activated")
    for output in ("X1@GRAD", "X2@GRAD"):
        ctx.set(output, kept.shape, kept.dtype, lod_level=kept.lod_level)


def _infer_bpr(ctx: InferContext) -> None:
    x, shape = ctx.input("X"), ctx.shape("X")
    if len(ctx.shape("Label")) != len(shape):
        raise ctx.error(f"Label {list(ctx.shape('Label'))} must have the rank of X {list(shape)}")
    ctx.set("Y", (*shape[:-1], 1), x.dtype, lod_level=x.lod_level)


_UP, _DOWN = np.array([[0.5], [-1.0], [2.0]]), np.array([[0.25], [1.0], [-2.0]])

register(
    "hinge_loss",
    doc="Loss = max(0, 1 - Logits * (2 * Labels - 1)), Labels 0 or 1.",
    inputs=["Logits", "Labels"],
    outputs=["Loss"],
    infer=like("Logits", "Loss"),
    kernel=hinge_loss,
    grad=maker(["Labels", "Logits", "Loss@GRAD"], ["Logits@GRAD"]),
    share_lod="Logits",
    cases=(
        Case(
            {"Logits": _UP, "Labels": np.array([[1.0], [1.0], [0.0]])},
            {},
            {"Loss": np.array([[0.5], [2.0], [3.0]])},
            check_grad=("Logits",),
        ),
    ),
)
register(
    "hinge_loss_grad",
    doc="Gradient of hinge_loss.",
    inputs=["Logits", "Labels", "Loss@GRAD"],
    outputs=["Logits@GRAD"],
    infer=grads_like_forward,
    kernel=hinge_loss_grad,
    share_lod="Logits",
)
register(
    "rank_loss",
    doc="With o = Left - Right: Out = log(1 + exp(o)) - Label * o, Label the probability that Left ranks first "
    "(RankNet, Burges et al. 2005, equation 3).",
    inputs=["Label", "Left", "Right"],
    outputs=["Out"],
    infer=like("Left", "Out"),
    kernel=rank_loss,
    grad=maker(["Label", "Left", "Out@GRAD", "Right"], ["Left@GRAD", "Right@GRAD"]),
    share_lod="Left",
    cases=(
        Case(
            {"Label": np.array([[1.0], [0.5]]), "Left": np.log([[3.0], [5.0]]), "Right": np.log([[1.0], [5.0]])},
            {},
            {"Out": np.log([[4 / 3], [2.0]])},
            check_grad=("Left", "Right"),
        ),
    ),
)
register(
    "rank_loss_grad",
    doc="Gradient of rank_loss.",
    inputs=["Label", "Left", "Right", "Out@GRAD"],
    outputs=["Left@GRAD", "Right@GRAD"],
    infer=grads_like_forward,
    kernel=rank_loss_grad,
    share_lod="Left",
)
register(
    "margin_rank_loss",
    doc="Out = max(0, -Label * (X1 - X2) + margin), Label 1 where X1 ranks first, else -1.",
    inputs=["X1", "X2", "Label"],
    outputs=["Activated~", "Out"],
    attrs={"margin": float_attr(0.0)},
    infer=_infer_pair,
    kernel=margin_rank_loss,
    grad=maker(["Activated", "Label", "Out@GRAD"], ["X1@GRAD", "X2@GRAD"]),
    share_lod="X1",
    cases=(
        Case(
            {"X1": _UP, "X2": _DOWN, "Label": np.array([[1.0], [1.0], [-1.0]])},
            {"margin": 0.5},
            {"Out": np.array([[0.25], [2.5], [4.5]])},
            check_grad=("X1", "X2"),
        ),
    ),
)
register(
    "margin_rank_loss_grad",
    doc="Gradient of margin_rank_loss.",
    inputs=["Activated", "Label", "Out@GRAD"],
    outputs=["X1@GRAD", "X2@GRAD"],
    attrs={"margin": float_attr(0.0)},
    infer=_infer_pair_grad,
    kernel=margin_rank_loss_grad,
    share_lod="Activated",
)
register(
    "bpr_loss",
    doc="Per row the mean over the other classes j of log(1 + exp(X[j] - X[label])) (Bayesian personalised ranking, "
    "Rendle et al. 2009; the form of Hidasi et al. 2016). Y is [..., 1].",
    inputs=["X", "Label"],
    outputs=["Y"],
    infer=_infer_bpr,
    kernel=bpr_loss,
    grad=maker(["Label", "X", "Y@GRAD"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case(
            {"X": np.log([[1.0, 3.0, 7.0], [5.0, 5.0, 5.0]]), "Label": np.array([[0], [2]])},
            {},
            {"Y": np.log([[np.sqrt(32.0)], [2.0]])},
            check_grad=("X",),
        ),
        Case(
            {"X": np.array([[1000.0, -1000.0, 0.0]]), "Label": np.array([[1]])},
            {},
            {"Y": np.array([[1500.0]])},
            note="no saturation",
        ),
    ),
)
register(
    "bpr_loss_grad",
    doc="Gradient of bpr_loss.",
    inputs=["X", "Label", "Y@GRAD"],
    outputs=["X@GRAD"],
    infer=grads_like_forward,
    kernel=bpr_loss_grad,
    share_lod="X",
)
