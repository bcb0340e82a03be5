"""Losses of a binary outcome: `sigmoid_cross_entropy_with_logits` and `log_loss`."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward, like
from fluidlite.ops.registry import Case, bool_attr, float_attr, int_attr, register
from fluidlite.ops.shapes import check_same

_ATTRS = {
    "normalize": bool_attr(default=False, doc="divide by the number of elements that are not ignored"),
    "ignore_index": int_attr(-100, "elements whose label, truncated to an integer, is this have loss and gradient 0"),
}


def stable_sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow."""
    decay = np.exp(-np.abs(x))
    out: Array = np.where(x >= 0, 1, decay) / (1 + decay)
    return out


def softplus_of_negative_abs(x: Array) -> Array:
    """log(1 + exp(-|x|)): with max(x, 0) added, log(1 + exp(x)) without overflow."""
    return np.log1p(np.exp(-np.abs(x)))


def sigmoid_cross_entropy_with_logits(
    ctx: KernelContext, X: Array, Label: Array, *, normalize: bool, ignore_index: int
) -> Array:
    check_same(ctx, "X", X, Label=Label)
    loss = np.maximum(X, 0) - X * Label + softplus_of_negative_abs(X)
    return _counted(loss, Label, normalize, ignore_index)


def sigmoid_cross_entropy_with_logits_grad(
    ctx: KernelContext, X: Array, Label: Array, Out_GRAD: Array, *, normalize: bool, ignore_index: int
) -> Array:
    check_same(ctx, "X", X, Label=Label, Out_GRAD=Out_GRAD)
    return _counted((stable_sigmoid(X) - Label) * Out_GRAD, Label, normalize, ignore_index)


def _counted(values: Array, label: Array, normalize: bool, ignore_index: int) -> Array:
    counted = np.trunc(label) != ignore_index
    kept = np.where(counted, values, 0).astype(values.dtype)
    return kept / values.dtype.type(max(np.count_nonzero(counted), 1)) if normalize else kept


def log_loss(ctx: KernelContext, Predicted: Array, Labels: Array, *, epsilon: float) -> Array:
    check_same(ctx, "Predicted", Predicted, Labels=Labels)
    out: Array = -Labels * np.log(Predicted + epsilon) - (1 - Labels) * np.log(1 - Predicted + epsilon)
    return out


def log_loss_grad(ctx: KernelContext, Predicted: Array, Labels: Array, Loss_GRAD: Array, *, epsilon: float) -> Array:
    check_same(ctx, "Predicted", Predicted, Labels=Labels, Loss_GRAD=Loss_GRAD)
    return Loss_GRAD * ((1 - Labels) / (1 - Predicted + epsilon) - Labels / (Predicted + epsilon))


def _infer_log_loss(ctx: InferContext) -> None:
    predicted, labels = ctx.shape("Predicted"), ctx.shape("Labels")
    for name, shape in (("Predicted", predicted), ("Labels", labels)):
        if len(shape) != 2 or shape[1] != 1:
            raise ctx.error(f"{name} must be a column [N, 1], not {list(shape)}")
    ctx.set("Loss", predicted, ctx.input("Predicted").dtype, lod_level=ctx.input("Predicted").lod_level)


_LOGITS = np.array([[0.0, np.log(3.0)], [-np.log(3.0), 1000.0]])
_LABELS = np.array([[1.0, 1.0], [0.0, 0.0]])

register(
    "sigmoid_cross_entropy_with_logits",
    doc="Out = max(X, 0) - X * Label + log(1 + exp(-|X|)), elementwise: the logistic loss of logits X, Label in 0..1.",
    inputs=["X", "Label"],
    outputs=["Out"],
    attrs=_ATTRS,
    infer=like("X", "Out"),
    kernel=sigmoid_cross_entropy_with_logits,
    grad=maker(["Label", "Out@GRAD", "X"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case(
            {"X": _LOGITS, "Label": _LABELS},
            {},
            {"Out": np.array([[np.log(2.0), np.log(4 / 3)], [np.log(4 / 3), 1000.0]])},
        ),
        Case(
            {"X": _LOGITS[:1], "Label": np.array([[1.0, -1.0]])},
            {"ignore_index": -1, "normalize": True},
            {"Out": np.array([[np.log(2.0), 0.0]])},
        ),
        Case(
            {"X": np.array([[0.5, -1.0]]), "Label": np.array([[0.25, 1.0]])},
            {},
            {"Out": np.array([[0.375 + np.log1p(np.exp(-0.5)), 1 + np.log1p(np.exp(-1.0))]])},
            check_grad=("X",),
        ),
    ),
)
register(
    "sigmoid_cross_entropy_with_logits_grad",
    doc="Gradient of sigmoid_cross_entropy_with_logits: (sigmoid(X) - Label) * Out@GRAD.",
    inputs=["X", "Label", "Out@GRAD"],
    outputs=["X@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=sigmoid_cross_entropy_with_logits_grad,
    share_lod="X",
)
register(
    "log_loss",
    doc="Loss = -Labels * log(Predicted + epsilon) - (1 - Labels) * log(1 - Predicted + epsilon); columns [N, 1], "
    "Predicted a probability.",
    inputs=["Predicted", "Labels"],
    outputs=["Loss"],
    attrs={"epsilon": float_attr(doc="keeps the logarithms finite")},
    infer=_infer_log_loss,
    kernel=log_loss,
    grad=maker(["Labels", "Loss@GRAD", "Predicted"], ["Predicted@GRAD"]),
    share_lod="Predicted",
    cases=(
        Case(
            {"Predicted": np.array([[0.25], [0.5]]), "Labels": np.array([[1.0], [0.0]])},
            {"epsilon": 0.0},
            {"Loss": np.log([[4.0], [2.0]])},
            check_grad=("Predicted",),
        ),
        Case(
            {"Predicted": np.array([[0.0]]), "Labels": np.array([[1.0]])},
            {"epsilon": 0.125},
            {"Loss": np.log([[8.0]])},
        ),
    ),
)
register(
    "log_loss_grad",
    doc="Gradient of log_loss.",
    inputs=["Predicted", "Labels", "Loss@GRAD"],
    outputs=["Predicted@GRAD"],
    attrs={"epsilon": float_attr()},
    infer=grads_like_forward,
    kernel=log_loss_grad,
    share_lod="Predicted",
)
