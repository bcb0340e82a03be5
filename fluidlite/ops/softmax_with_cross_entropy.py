"""Softmax and cross entropy in one op, stable for logits of any size."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.cross_entropy import picked, scattered
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, bool_attr, int_attr, register
from fluidlite.ops.shapes import check_labels

_ATTRS = {
    "soft_label": bool_attr(default=False, doc="Label holds a distribution over the classes instead of one class"),
    "numeric_stable_mode": bool_attr(default=True, doc="accepted; the stable form is always computed"),
    "ignore_index": int_attr(-100, "rows with this label have loss and gradient 0"),
    "axis": int_attr(-1, "the dimension of the classes"),
}


def softmax_with_cross_entropy(
    ctx: KernelContext, Logits: Array, Label: Array, *, soft_label: bool, ignore_index: int, axis: int
) -> dict[str, Array]:
    check_labels(ctx, "Logits", Logits, "Label", Label, axis=axis, soft=soft_label)
    log_probabilities = _log_softmax(np.moveaxis(Logits, axis, -1))
    if soft_label:
        loss = -(np.moveaxis(Label, axis, -1) * log_probabilities).sum(axis=-1, keepdims=True)
    else:
        _, match, counted = picked(ctx, log_probabilities, np.moveaxis(Label, axis, -1), ignore_index)
        loss = np.where(counted, -match, 0).astype(Logits.dtype).reshape((*log_probabilities.shape[:-1], 1))
    return {"Softmax": np.moveaxis(np.exp(log_probabilities), -1, axis), "Loss": np.moveaxis(loss, -1, axis)}


def softmax_with_cross_entropy_grad(
    ctx: KernelContext,
    Label: Array,
    Loss_GRAD: Array,
    Softmax: Array,
    *,
    soft_label: bool,
    ignore_index: int,
    axis: int,
) -> Array:
    check_labels(ctx, "Softmax", Softmax, "Label", Label, axis=axis, soft=soft_label)
    check_labels(ctx, "Softmax", Softmax, "Loss@GRAD", Loss_GRAD, axis=axis)
    if soft_label:
        soft: Array = Loss_GRAD * (Softmax * Label.sum(axis=axis, keepdims=True) - Label)
        return soft
    softmax = np.moveaxis(Softmax, axis, -1)
    labels, _, counted = picked(ctx, softmax, np.moveaxis(Label, axis, -1), ignore_index)
    upstream = (np.moveaxis(Loss_GRAD, axis, -1).reshape(-1) * counted).astype(Softmax.dtype)
    grad = softmax * upstream.reshape((*softmax.shape[:-1], 1)) - scattered(upstream, labels, softmax.shape)
    return np.moveaxis(grad, -1, axis)


def _log_softmax(logits: Array) -> Array:
    """log(softmax) along the last axis, shifted by the maximum so that nothing overflows."""
    if logits.size == 0:
        return logits
    shifted = logits - logits.max(axis=-1, keepdims=True)
    out: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return out


def _infer(ctx: InferContext) -> None:
    logits, shape, axis = ctx.input("Logits"), ctx.shape("Logits"), ctx.attr("axis")
    if not -len(shape) <= axis < len(shape):
        raise ctx.error(f"axis {axis} of Logits {list(shape)}")
    if len(ctx.shape("Label")) != len(shape):
        raise ctx.error(f"Label {list(ctx.shape('Label'))} must have the rank of Logits {list(shape)}")
    loss = list(shape)
    loss[axis] = 1
    ctx.set("Softmax", shape, logits.dtype, lod_level=logits.lod_level)
    ctx.set("Loss", tuple(loss), logits.dtype, lod_level=logits.lod_level)


def _infer_grad(ctx: InferContext) -> None:
    softmax = ctx.input("Softmax")
    ctx.set("Logits@GRAD", softmax.shape, softmax.dtype, lod_level=softmax.lod_level)


_LOGITS = np.log(np.array([[0.125, 0.25, 0.625], [0.5, 0.25, 0.25]]))

register(
    "softmax_with_cross_entropy",
    doc="Loss = -log softmax(Logits)[label] per row (size 1 along `axis`), or with `soft_label` "
    "-sum(Label * log softmax(Logits)). Softmax is kept for the gradient.",
    inputs=["Logits", "Label"],
    outputs=["Softmax~", "Loss"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=softmax_with_cross_entropy,
    grad=maker(["Label", "Loss@GRAD", "Softmax"], ["Logits@GRAD"]),
    share_lod="Logits",
    cases=(
        Case(
            {"Logits": _LOGITS, "Label": np.array([[0], [1]])},
            {},
            {"Loss": np.log([[8.0], [4.0]])},
            check_grad=("Logits",),
        ),
        Case({"Logits": _LOGITS, "Label": np.array([[0], [1]])}, {"ignore_index": 1}, {"Loss": np.log([[8.0], [1.0]])}),
        Case(
            {"Logits": _LOGITS, "Label": np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.25]])},
            {"soft_label": True},
            {"Loss": np.log(2.0) * np.array([[2.5], [1.5]])},
            check_grad=("Logits",),
            note="labels that do not sum to 1",
        ),
    ),
)
register(
    "softmax_with_cross_entropy_grad",
    doc="Gradient of softmax_with_cross_entropy: Loss@GRAD * (Softmax - one_hot(label)), 0 in ignored rows.",
    inputs=["Label", "Loss@GRAD", "Softmax"],
    outputs=["Logits@GRAD"],
    attrs=_ATTRS,
    infer=_infer_grad,
    kernel=softmax_with_cross_entropy_grad,
    share_lod="Softmax",
)
