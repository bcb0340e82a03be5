"""Cross entropy of probabilities: `cross_entropy` (hard or soft labels) and `cross_entropy2` (hard labels only)."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import OutOfRangeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, bool_attr, int_attr, register
from fluidlite.ops.shapes import Shape, check_labels, check_shape

#: what Fluid puts in place of log(0) = -inf, and its negative: the loss of a class of probability 0
_HUGE = 1e20


def picked(ctx: KernelContext, x: Array, label: Array, ignore_index: int | None = None) -> tuple[Array, Array, Array]:
    """Entries of ``x`` (..., classes) at the labels, for losses with hard labels.

    Returns (labels (rows,), their entries (rows,), True where the label counts), row by row; an ignored label reads
    class 0. A label outside 0..classes-1 that is not ``ignore_index`` raises OutOfRangeError.
    """
    classes = x.shape[-1]
    labels = label.reshape(-1)
    counted = np.ones(len(labels), bool) if ignore_index is None else labels != ignore_index
    wrong = np.flatnonzero(((labels < 0) | (labels >= classes)) & counted)
    if len(wrong):
        raise OutOfRangeError(
            f"op {ctx.op.type!r}: label {labels[wrong[0]]} at position {wrong[0]} of {ctx.op.input('Label')!r} is not "
            f"one of the {classes} classes"
        )
    labels = np.where(counted, labels, 0).astype(np.int64)
    return labels, x.reshape(-1, classes)[np.arange(len(labels)), labels], counted


def loss_shape(shape: Shape, labels: Shape) -> Shape:
    """The shape of the losses of scores (..., classes): (..., 1), or (...) where hard labels are given so."""
    return labels if len(labels) == len(shape) - 1 else (*shape[:-1], 1)


def check_classes(ctx: KernelContext, source: str, x: Array, name: str, labels: Array) -> None:
    """ShapeError unless hard labels, or the losses' gradient, are (..., 1) or (...) beside scores (..., classes)."""
    check_shape(ctx, name, labels, loss_shape(x.shape, x.shape[:-1] if labels.ndim < x.ndim else x.shape), source)


def scattered(values: Array, labels: Array, shape: tuple[int, ...]) -> Array:
    """Zeros of ``shape`` (..., classes) with ``values`` (rows,) at the labels."""
    out = np.zeros((len(labels), shape[-1]), values.dtype)
    out[np.arange(len(labels)), labels] = values
    return out.reshape(shape)


def negative_log(x: Array) -> Array:
    """-log(x), limited to +-1e20."""
    return np.clip(-np.log(x), -_HUGE, _HUGE)


def cross_entropy(ctx: KernelContext, X: Array, Label: Array, *, soft_label: bool, ignore_index: int) -> Array:
    if soft_label:
        check_labels(ctx, "X", X, "Label", Label, soft=True)
        out: Array = (Label * negative_log(X)).sum(axis=-1, keepdims=True)
        return out
    check_classes(ctx, "X", X, "Label", Label)
    _, match, counted = picked(ctx, X, Label, ignore_index)
    return np.where(counted, negative_log(match), 0).astype(X.dtype).reshape(loss_shape(X.shape, Label.shape))


def cross_entropy_grad(
    ctx: KernelContext, X: Array, Label: Array, Y_GRAD: Array, *, soft_label: bool, ignore_index: int
) -> Array:
    if soft_label:
        check_labels(ctx, "X", X, "Label", Label, soft=True)
        check_labels(ctx, "X", X, "Y@GRAD", Y_GRAD)
        return -Y_GRAD * Label / X
    check_classes(ctx, "X", X, "Label", Label)
    check_classes(ctx, "X", X, "Y@GRAD", Y_GRAD)
    labels, slope, _ = label_slopes(ctx, X, Label, Y_GRAD, ignore_index)
    return scattered(slope, labels, X.shape)


def label_slopes(
    ctx: KernelContext, x: Array, label: Array, upstream: Array, ignore_index: int
) -> tuple[Array, Array, Array]:
    """(labels (rows,), the gradient at each label, the entry of ``x`` (..., classes) there); see `picked`.

    The gradient is 0 where the label does not count.
    """
    labels, match, counted = picked(ctx, x, label, ignore_index)
    return labels, _slope(upstream, match, counted), match


def _slope(upstream: Array, match: Array, counted: Array) -> Array:
    """The gradient at each label, (rows,); infinite where the class has probability 0, as in Fluid."""
    return np.where(counted, -upstream.reshape(-1) / match, 0).astype(match.dtype)


def cross_entropy2(ctx: KernelContext, X: Array, Label: Array, *, ignore_index: int) -> dict[str, Array]:
    check_classes(ctx, "X", X, "Label", Label)
    _, match, counted = picked(ctx, X, Label, ignore_index)
    return {
        "Y": np.where(counted, negative_log(match), 0).astype(X.dtype).reshape(loss_shape(X.shape, Label.shape)),
        "XShape": np.empty((*X.shape, 0), X.dtype),
        "MatchX": match.reshape((*X.shape[:-1], 1)),
    }


def cross_entropy_grad2(
    ctx: KernelContext, Label: Array, MatchX: Array, XShape: Array, Y_GRAD: Array, *, ignore_index: int
) -> Array:
    for name, array in (("Label", Label), ("Y@GRAD", Y_GRAD)):
        check_classes(ctx, "MatchX", MatchX, name, array)
    labels = Label.reshape(-1)
    counted = labels != ignore_index
    slope = _slope(Y_GRAD, MatchX.reshape(-1), counted)
    return scattered(slope, np.where(counted, labels, 0), XShape.shape[:-1])


def _infer(ctx: InferContext) -> None:
    x, shape = ctx.input("X"), ctx.shape("X")
    label = ctx.shape("Label")
    hard = ctx.op.type == "cross_entropy2" or not ctx.attr("soft_label")
    if len(label) != len(shape) and not (hard and len(label) == len(shape) - 1):
        raise ctx.error(f"Label {list(label)} must have the rank of X {list(shape)}")
    ctx.set("Y", loss_shape(shape, label), x.dtype, lod_level=x.lod_level)
    if ctx.op.type == "cross_entropy2":
        ctx.set("XShape", (*shape, 0), x.dtype)
        ctx.set("MatchX", (*shape[:-1], 1), x.dtype)


def _infer_grad2(ctx: InferContext) -> None:
    xshape = ctx.input("XShape")
    ctx.set("X@GRAD", ctx.shape("XShape")[:-1], xshape.dtype)


_X = np.array([[0.25, 0.5, 0.25], [0.125, 0.375, 0.5]])
_LABEL = np.array([[1], [0]])
_LOSS = -np.log([[0.5], [0.125]])

register(
    "cross_entropy",
    doc="Y = -log X[label] per row; with `soft_label`, -sum(Label * log X). log(0) counts as -1e20. Rows whose label "
    "is `ignore_index` are 0. X holds probabilities, its last dimension the classes.",
    inputs=["X", "Label"],
    outputs=["Y"],
    attrs={"soft_label": bool_attr(default=False), "ignore_index": int_attr(-100)},
    infer=_infer,
    kernel=cross_entropy,
    grad=maker(["Label", "X", "Y@GRAD"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case({"X": _X, "Label": _LABEL}, {}, {"Y": _LOSS}, check_grad=("X",)),
        Case({"X": _X, "Label": np.array([[-100], [0]])}, {}, {"Y": np.array([[0.0], [-np.log(0.125)]])}),
        Case({"X": _X, "Label": _LABEL[:, 0]}, {}, {"Y": _LOSS[:, 0]}, check_grad=("X",), note="labels of shape (N,)"),
        Case(
            {"X": _X, "Label": np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])},
            {"soft_label": True},
            {"Y": np.array([[1.5 * np.log(2.0)], [np.log(2.0)]])},
            check_grad=("X",),
        ),
    ),
)
register(
    "cross_entropy_grad",
    doc="Gradient of cross_entropy.",
    inputs=["X", "Label", "Y@GRAD"],
    outputs=["X@GRAD"],
    attrs={"soft_label": bool_attr(default=False), "ignore_index": int_attr(-100)},
    infer=grads_like_forward,
    kernel=cross_entropy_grad,
    share_lod="X",
)
register(
    "cross_entropy2",
    doc="Y = -log X[label] per row (0 where the label is `ignore_index`). MatchX keeps X[label] and XShape the shape of "
    "X for the gradient, which then need not keep X.",
    inputs=["X", "Label"],
    outputs=["Y", "XShape", "MatchX"],
    attrs={"ignore_index": int_attr(-100)},
    infer=_infer,
    kernel=cross_entropy2,
    grad=maker(["Label", "MatchX", "XShape", "Y@GRAD"], ["X@GRAD"], "cross_entropy_grad2"),
    share_lod="X",
    cases=(
        Case({"X": _X, "Label": _LABEL}, {}, {"Y": _LOSS, "MatchX": np.array([[0.5], [0.125]])}, check_grad=("X",)),
        Case({"X": _X, "Label": np.array([[2], [0]])}, {"ignore_index": 2}, {"Y": np.array([[0.0], [np.log(8.0)]])}),
        Case(
            {"X": _X[None], "Label": _LABEL[None, :, 0]},
            {},
            {"Y": _LOSS[None, :, 0], "MatchX": np.array([[[0.5], [0.125]]])},
            check_grad=("X",),
            note="labels of shape (batch, steps) beside X (batch, steps, classes)",
        ),
    ),
)
register(
    "cross_entropy_grad2",
    doc="Gradient of cross_entropy2.",
    inputs=["Label", "MatchX", "XShape", "Y@GRAD"],
    outputs=["X@GRAD"],
    attrs={"ignore_index": int_attr(-100)},
    infer=_infer_grad2,
    kernel=cross_entropy_grad2,
    share_lod="MatchX",
)
