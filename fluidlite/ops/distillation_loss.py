"""Losses against soft targets: `teacher_student_sigmoid_loss`, `kldiv_loss`, and `label_smooth` that makes them."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.binary_loss import softplus_of_negative_abs, stable_sigmoid
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward, like
from fluidlite.ops.registry import Case, float_attr, register, string_attr
from fluidlite.ops.shapes import check_same, check_shape

_BOUNDS = {
    "soft_max_up_bound": float_attr(15.0, "the gradient is 0 where X reaches it"),
    "soft_max_lower_bound": float_attr(-15.0, "the gradient is 0 where X reaches it"),
}
_REDUCTIONS = ("none", "sum", "mean", "batchmean")


def _click_and_teacher(label: Array) -> tuple[Array, Array, Array]:
    """What a label encodes: (clicked 0 or 1, teacher's score, True where a teacher spoke).

    -2: no click, no teacher; -1: click, no teacher; z in 0..1: no click, teacher z; 1 + z: click, teacher z.
    """
    taught = label >= 0
    clicked = np.where(taught, label >= 1, label >= -1).astype(label.dtype)
    return clicked, np.where(taught, label - clicked, 0).astype(label.dtype), taught


def teacher_student_sigmoid_loss(ctx: KernelContext, X: Array, Label: Array) -> Array:
    check_same(ctx, "X", X, Label=Label)
    clicked, teacher, taught = _click_and_teacher(Label)
    soft = np.maximum(X, 0) + softplus_of_negative_abs(X)
    out: Array = (soft - X * clicked + np.where(taught, soft - X * teacher, 0)).astype(X.dtype)
    return out


def teacher_student_sigmoid_loss_grad(
    ctx: KernelContext, X: Array, Label: Array, Y_GRAD: Array, *, soft_max_up_bound: float, soft_max_lower_bound: float
) -> Array:
    check_same(ctx, "X", X, Label=Label, Y_GRAD=Y_GRAD)
    clicked, teacher, taught = _click_and_teacher(Label)
    predicted = stable_sigmoid(X)
    slope = predicted - clicked + np.where(taught, predicted - teacher, 0)
    inside = (soft_max_lower_bound < X) & (soft_max_up_bound > X)
    return np.where(inside, slope * Y_GRAD, 0).astype(X.dtype)


def kldiv_loss(ctx: KernelContext, X: Array, Target: Array, *, reduction: str) -> Array:
    check_same(ctx, "X", X, Target=Target)
    positive = Target > 0
    terms = np.where(positive, Target * (np.log(np.where(positive, Target, 1)) - X), 0).astype(X.dtype)
    if reduction == "none":
        return terms
    out: Array = (terms.sum() / X.dtype.type(_divisor(X, reduction))).reshape(1)
    return out


def kldiv_loss_grad(ctx: KernelContext, X: Array, Target: Array, Loss_GRAD: Array, *, reduction: str) -> Array:
    check_same(ctx, "X", X, Target=Target)
    check_shape(ctx, "Loss@GRAD", Loss_GRAD, X.shape if reduction == "none" else (1,), "X")
    slope = np.where(Target > 0, -Target, 0).astype(X.dtype)
    out: Array = slope * Loss_GRAD / X.dtype.type(_divisor(X, reduction))
    return out


def _divisor(x: Array, reduction: str) -> int:
    return max({"mean": x.size, "batchmean": len(x)}.get(reduction, 1), 1)


def label_smooth(ctx: KernelContext, X: Array, PriorDist: Array | None, *, epsilon: float) -> Array:
    if PriorDist is not None and PriorDist.size != X.shape[-1]:
        check_shape(ctx, "PriorDist", PriorDist, (1, X.shape[-1]), "X")
    prior = 1 / X.shape[-1] if PriorDist is None else PriorDist.reshape(-1)
    return ((1 - epsilon) * X + epsilon * prior).astype(X.dtype)


def label_smooth_grad(ctx: KernelContext, Out_GRAD: Array, *, epsilon: float) -> Array:
    return (1 - epsilon) * Out_GRAD


def _infer_kldiv(ctx: InferContext) -> None:
    x, reduction = ctx.input("X"), ctx.attr("reduction")
    if reduction not in _REDUCTIONS:
        raise ProgramError(f"op 'kldiv_loss': reduction {reduction!r} is none of {', '.join(_REDUCTIONS)}")
    ctx.set("Loss", ctx.shape("X") if reduction == "none" else (1,), x.dtype)


def _infer_smooth_grad(ctx: InferContext) -> None:
    upstream = ctx.input("Out@GRAD")
    ctx.set("X@GRAD", upstream.shape, upstream.dtype)


_TARGET = np.array([[0.5, 0.25], [0.0, 1.0]])
_LOG_X = np.log([[0.25, 0.5], [0.5, 0.25]])
_TERMS = np.log(2.0) * np.array([[0.5, -0.25], [0.0, 2.0]])

register(
    "teacher_student_sigmoid_loss",
    doc="Logistic loss of logits X against a click and, where there is one, a teacher's score, both packed in Label: "
    "-2 no click; -1 click; z no click, teacher z; 1 + z click, teacher z (z in 0..1).",
    inputs=["X", "Label"],
    outputs=["Y"],
    attrs=_BOUNDS,
    infer=like("X", "Y"),
    kernel=teacher_student_sigmoid_loss,
    grad=maker(["Label", "X", "Y@GRAD"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case(
            {"X": np.log([[3.0]] * 4), "Label": np.array([[-2.0], [-1.0], [0.5], [1.5]])},
            {},
            {"Y": np.log([[4.0], [4 / 3], [16 / np.sqrt(3.0)], [16 / np.sqrt(27.0)]])},
            check_grad=("X",),
        ),
    ),
)
register(
    "teacher_student_sigmoid_loss_grad",
    doc="Gradient of teacher_student_sigmoid_loss, 0 outside the bounds.",
    inputs=["X", "Label", "Y@GRAD"],
    outputs=["X@GRAD"],
    attrs=_BOUNDS,
    infer=grads_like_forward,
    kernel=teacher_student_sigmoid_loss_grad,
    share_lod="X",
)
register(
    "kldiv_loss",
    doc="Kullback-Leibler divergence Target * (log(Target) - X) of log probabilities X, 0 where Target <= 0. `reduction`: "
    "none (elementwise), sum, mean over the elements, batchmean over the rows; the reduced Loss is [1].",
    inputs=["X", "Target"],
    outputs=["Loss"],
    attrs={"reduction": string_attr("mean")},
    infer=_infer_kldiv,
    kernel=kldiv_loss,
    grad=maker(["Loss@GRAD", "Target", "X"], ["X@GRAD"]),
    cases=(
        Case({"X": _LOG_X, "Target": _TARGET}, {"reduction": "none"}, {"Loss": _TERMS}, check_grad=("X",)),
        Case({"X": _LOG_X, "Target": _TARGET}, {}, {"Loss": np.array([_TERMS.mean()])}, check_grad=("X",)),
        Case({"X": _LOG_X, "Target": _TARGET}, {"reduction": "batchmean"}, {"Loss": np.array([_TERMS.sum() / 2])}),
    ),
)
register(
    "kldiv_loss_grad",
    doc="Gradient of kldiv_loss.",
    inputs=["X", "Target", "Loss@GRAD"],
    outputs=["X@GRAD"],
    attrs={"reduction": string_attr("mean")},
    infer=grads_like_forward,
    kernel=kldiv_loss_grad,
)
register(
    "label_smooth",
    doc="Out = (1 - epsilon) * X + epsilon * PriorDist, the uniform distribution when there is none (Szegedy et al. "
    "2016, section 7). X holds distributions in its last dimension.",
    inputs=["X", "PriorDist?"],
    outputs=["Out"],
    attrs={"epsilon": float_attr(0.0)},
    infer=like("X", "Out"),
    kernel=label_smooth,
    grad=maker(["Out@GRAD"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case({"X": np.array([[0.0, 1.0]])}, {"epsilon": 0.25}, {"Out": np.array([[0.125, 0.875]])}, check_grad=("X",)),
        Case(
            {"X": np.array([[0.0, 1.0]]), "PriorDist": np.array([[1.0, 0.0]])},
            {"epsilon": 0.25},
            {"Out": np.array([[0.25, 0.75]])},
        ),
    ),
)
register(
    "label_smooth_grad",
    doc="Gradient of label_smooth.",
    inputs=["Out@GRAD"],
    outputs=["X@GRAD"],
    attrs={"epsilon": float_attr(0.0)},
    infer=_infer_smooth_grad,
    kernel=label_smooth_grad,
)
