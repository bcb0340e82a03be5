"""A loss together with what stands before or after it, in one op that computes what the single ops compute.

`fused_softmax_cross_entropy` is `softmax` and then `cross_entropy` (not `softmax_with_cross_entropy`, which takes the
logarithm another way and never limits it); `fused_sigmoid_cross_entropy_mean` is `sigmoid_cross_entropy_with_logits` and
then `mean`. The executor puts them in place of those.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import UninitializedError
from fluidlite.ops.binary_loss import sigmoid_cross_entropy_with_logits, sigmoid_cross_entropy_with_logits_grad
from fluidlite.ops.context import KernelContext
from fluidlite.ops.cross_entropy import check_classes, cross_entropy, label_slopes, loss_shape
from fluidlite.ops.grads import maker
from fluidlite.ops.ids import argument
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.reduce import mean, mean_grad
from fluidlite.ops.registry import Case, bool_attr, float_attr, int_attr, register
from fluidlite.ops.shapes import check_shape
from fluidlite.ops.softmax import stable_softmax

_IGNORE: Final = {"ignore_index": int_attr(-100, "rows with this label have loss and gradient 0")}
_SIGMOID: Final = {
    "normalize": bool_attr(default=False, doc="divide by the number of elements that are not ignored"),
    "ignore_index": int_attr(-100, "elements whose label, truncated to an integer, is this have loss and gradient 0"),
}


def fused_softmax_cross_entropy(ctx: KernelContext, X: Array, Label: Array, *, ignore_index: int) -> dict[str, Array]:
    out = stable_softmax(X, -1)
    return {"Softmax": out, "Y": cross_entropy(ctx, out, Label, soft_label=False, ignore_index=ignore_index)}


def fused_softmax_cross_entropy_grad(
    ctx: KernelContext, Softmax: Array, Label: Array, Y_GRAD: Array, *, ignore_index: int
) -> Array:
    check_classes(ctx, "Softmax", Softmax, "Label", Label)
    check_classes(ctx, "Softmax", Softmax, "Y@GRAD", Y_GRAD)
    classes = Softmax.shape[-1]
    labels, slope, match = label_slopes(ctx, Softmax, Label, Y_GRAD, ignore_index)
    # Of the gradient of a row of Softmax only the entry at the label is not 0: its product with the row has one term,
    # and adding 0 makes 0.0 of -0.0 as a sum of several terms does.
    sums = slope * match + slope.dtype.type(0)
    out: Array = Softmax.reshape(-1, classes) * (0 - sums)[:, None]
    out[np.arange(len(labels)), labels] = match * (slope - sums)
    return out.reshape(Softmax.shape)


def fused_sigmoid_cross_entropy_mean(
    ctx: KernelContext, X: Array, Label: Array, *, normalize: bool, ignore_index: int
) -> Array:
    losses = sigmoid_cross_entropy_with_logits(ctx, X, Label, normalize=normalize, ignore_index=ignore_index)
    return mean(ctx, losses)


def fused_sigmoid_cross_entropy_mean_grad(
    ctx: KernelContext,
    X: Array,
    Label: Array,
    Out_GRAD: Array | None,
    *,
    normalize: bool,
    ignore_index: int,
    loss_gradient: float,
) -> Array:
    if not ctx.op.inputs.get("Out@GRAD"):
        Out_GRAD = np.full(1, loss_gradient, X.dtype)
    elif Out_GRAD is None:
        raise UninitializedError(
            f"input Out@GRAD={argument(ctx, 'Out@GRAD')!r} of op {ctx.op.type!r} was never written"
        )
    check_shape(ctx, "Out@GRAD", Out_GRAD, (1,), "X")
    upstream = mean_grad(ctx, X, Out_GRAD)
    return sigmoid_cross_entropy_with_logits_grad(
        ctx, X, Label, upstream, normalize=normalize, ignore_index=ignore_index
    )


def _infer_softmax(ctx: InferContext) -> None:
    x, shape = ctx.input("X"), ctx.shape("X")
    if len(ctx.shape("Label")) not in (len(shape), len(shape) - 1):
        raise ctx.error(f"Label {list(ctx.shape('Label'))} must have the rank of X {list(shape)}")
    ctx.set("Softmax", shape, x.dtype, lod_level=x.lod_level)
    ctx.set("Y", loss_shape(shape, ctx.shape("Label")), x.dtype, lod_level=x.lod_level)


def _infer_softmax_grad(ctx: InferContext) -> None:
    source = ctx.input("Softmax")
    ctx.set("X@GRAD", source.shape, source.dtype, lod_level=source.lod_level)


def _infer_sigmoid(ctx: InferContext) -> None:
    ctx.set("Out", (1,), ctx.input("X").dtype, lod_level=0)


_LOGITS = np.log(np.array([[0.125, 0.25, 0.625], [0.5, 0.25, 0.25]]))
_SOFTMAX = np.exp(_LOGITS)
_CLASSES = np.array([[0], [1]])
_X = np.array([[0.5, -1.0]])
_LABEL = np.array([[0.25, 1.0]])
_LOSSES = (0.375 + np.log1p(np.exp(-0.5)), 1 + np.log1p(np.exp(-1.0)))

register(
    "fused_softmax_cross_entropy",
    doc="Softmax = softmax of X along the last axis, as `softmax` computes it; Y = -log Softmax[label] per row, as "
    "`cross_entropy` does.",
    inputs=["X", "Label"],
    outputs=["Softmax", "Y"],
    attrs=_IGNORE,
    infer=_infer_softmax,
    kernel=fused_softmax_cross_entropy,
    grad=maker(["Softmax", "Label", "Y@GRAD"], ["X@GRAD"]),
    share_lod="X",
    cases=(
        Case(
            {"X": _LOGITS, "Label": _CLASSES},
            {},
            {"Softmax": _SOFTMAX, "Y": np.log([[8.0], [4.0]])},
            check_grad=("X",),
        ),
        Case({"X": _LOGITS, "Label": _CLASSES}, {"ignore_index": 1}, {"Y": np.log([[8.0], [1.0]])}, check_grad=("X",)),
        Case({"X": np.array([[0.0, 1000.0]]), "Label": np.array([[0]])}, {}, {"Y": np.array([[64.0]])}, note="a limit"),
        Case({"X": np.zeros((0, 3)), "Label": _CLASSES[:0]}, {}, {"Y": np.zeros((0, 1))}, note="an empty batch"),
    ),
)
register(
    "fused_softmax_cross_entropy_grad",
    doc="Gradient of fused_softmax_cross_entropy, of Y alone: Softmax must have no gradient of its own.",
    inputs=["Softmax", "Label", "Y@GRAD"],
    outputs=["X@GRAD"],
    attrs=_IGNORE,
    infer=_infer_softmax_grad,
    kernel=fused_softmax_cross_entropy_grad,
    share_lod="Softmax",
)
register(
    "fused_sigmoid_cross_entropy_mean",
    doc="Out (1,) = the mean of max(X, 0) - X * Label + log(1 + exp(-|X|)) over all elements; NaN of none.",
    inputs=["X", "Label"],
    outputs=["Out"],
    attrs=_SIGMOID,
    infer=_infer_sigmoid,
    kernel=fused_sigmoid_cross_entropy_mean,
    grad=maker(["Label", "Out@GRAD", "X"], ["X@GRAD"]),
    cases=(
        Case({"X": _X, "Label": _LABEL}, {}, {"Out": np.array([sum(_LOSSES) / 2])}, check_grad=("X",)),
        Case(
            {"X": _X, "Label": _LABEL},
            {"ignore_index": 1, "normalize": True},
            {"Out": np.array([_LOSSES[0] / 2])},
            check_grad=("X",),
        ),
        Case(
            {"X": np.zeros((0, 1)), "Label": np.zeros((0, 1))}, {}, {"Out": np.array([np.nan])}, note="an empty batch"
        ),
    ),
)
register(
    "fused_sigmoid_cross_entropy_mean_grad",
    doc="Gradient of fused_sigmoid_cross_entropy_mean: (sigmoid(X) - Label) * Out@GRAD / the number of elements. Without "
    "Out@GRAD it is `loss_gradient`.",
    inputs=["X", "Label", "Out@GRAD?"],
    outputs=["X@GRAD"],
    attrs={**_SIGMOID, "loss_gradient": float_attr(1.0, "Out@GRAD where it is not given")},
    infer=grads_like_forward,
    kernel=fused_sigmoid_cross_entropy_mean_grad,
    share_lod="X",
)
