"""Loss layers. Unless a docstring says otherwise the result is one cost per row, to be averaged with `mean`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from fluidlite.errors import ProgramError
from fluidlite.framework import Variable, user_line
from fluidlite.layer_helper import (
    FLOATS,
    INTS,
    LayerHelper,
    Variables,
    require_dtype,
    require_same_dtype,
    require_variable,
)
from fluidlite.layers.math import reduce_mean


def cross_entropy(input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = -100) -> Variable:
    """-log(input[label]) per row of probabilities ``input`` [N, ..., classes]; [N, ..., 1].

    Integer labels [N, ..., 1], or [N, ...] for losses of that shape; rows labelled ``ignore_index`` cost 0. With
    ``soft_label`` labels are probabilities of ``input``'s shape and the cost is -Σ label * log(input).
    """
    require_dtype("cross_entropy", require_variable("cross_entropy", "input", input), FLOATS)
    require_variable("cross_entropy", "label", label)
    inputs = {"X": input, "Label": label}
    if soft_label:
        require_same_dtype("cross_entropy", input, label)
        attrs = {"soft_label": True, "ignore_index": ignore_index}
        return LayerHelper("cross_entropy").one("cross_entropy", inputs, attrs, dtype=input.dtype, out="Y")
    require_dtype("cross_entropy", label, INTS)
    helper = LayerHelper("cross_entropy2")
    out, x_shape, match_x = helper.temporaries(3, input.dtype)
    outputs = {"Y": out, "XShape": x_shape, "MatchX": match_x}
    helper.append_op("cross_entropy2", inputs, outputs, {"ignore_index": ignore_index})
    return out


def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Variable | tuple[Variable, Variable]:
    """`cross_entropy` of the softmax of ``logits`` along ``axis``, computed together; with the softmax on request."""
    layer = "softmax_with_cross_entropy"
    require_dtype(layer, require_variable(layer, "logits", logits), FLOATS)
    require_variable(layer, "label", label)
    if soft_label:
        require_same_dtype(layer, logits, label)
    else:
        require_dtype(layer, label, INTS)
    helper = LayerHelper(layer)
    probabilities, loss = helper.temporaries(2, logits.dtype)
    attrs = {
        "soft_label": soft_label,
        "ignore_index": ignore_index,
        "numeric_stable_mode": numeric_stable_mode,
        "axis": axis,
    }
    outputs = {"Softmax": probabilities, "Loss": loss}
    helper.append_op(layer, {"Logits": logits, "Label": label}, outputs, attrs)
    return (loss, probabilities) if return_softmax else loss


def sigmoid_cross_entropy_with_logits(
    x: Variable, label: Variable, ignore_index: int = -100, name: str | None = None, normalize: bool = False
) -> Variable:
    """max(x, 0) - x * label + log(1 + exp(-|x|)), elementwise; labels in [0, 1] of ``x``'s shape and dtype.

    Elements labelled ``ignore_index`` cost 0; ``normalize`` divides by the number of the others.
    """
    layer = "sigmoid_cross_entropy_with_logits"
    attrs = {"ignore_index": ignore_index, "normalize": normalize}
    return _pairwise(layer, {"X": x, "Label": label}, attrs, name=name)


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """(input - label)², elementwise.

    Shapes that do not agree are broadcast as in `elementwise_sub`: [N, 1] against [N] gives [N, N], which is hardly
    ever meant, so it warns.
    """
    require_dtype("square_error_cost", require_variable("square_error_cost", "input", input), FLOATS)
    require_same_dtype("square_error_cost", input, require_variable("square_error_cost", "label", label))
    _warn_of_broadcast("square_error_cost", input, label)
    helper = LayerHelper("square_error_cost")
    difference = helper.one("elementwise_sub", {"X": input, "Y": label}, dtype=input.dtype)
    return helper.one("square", {"X": difference}, dtype=input.dtype)


def _warn_of_broadcast(layer: str, input: Variable, label: Variable) -> None:
    same_rank = len(input.shape) == len(label.shape)
    if same_rank and all(a == b or min(a, b) < 0 for a, b in zip(input.shape, label.shape, strict=True)):
        return
    warnings.warn(
        f"{layer}: {input.name!r} {list(input.shape)} and {label.name!r} {list(label.shape)} are broadcast against "
        f"each other; reshape one if every row should meet its own label ({user_line()})",
        stacklevel=3,
    )


def mse_loss(input: Variable, label: Variable) -> Variable:
    """The mean of `square_error_cost`; [1]."""
    return reduce_mean(square_error_cost(input, label))


def log_loss(input: Variable, label: Variable, epsilon: float = 1e-4, name: str | None = None) -> Variable:
    """-label * log(input + epsilon) - (1 - label) * log(1 - input + epsilon) of probabilities [N, 1]."""
    inputs = {"Predicted": input, "Labels": label}
    return _pairwise("log_loss", inputs, {"epsilon": epsilon}, name=name, out="Loss")


def huber_loss(input: Variable, label: Variable, delta: float) -> Variable:
    """r² / 2 where |r| = |label - input| is at most ``delta``, else delta * (|r| - delta / 2)."""
    require_dtype("huber_loss", require_variable("huber_loss", "input", input), FLOATS)
    require_same_dtype("huber_loss", input, require_variable("huber_loss", "label", label))
    helper = LayerHelper("huber_loss")
    residual, out = helper.temporaries(2, input.dtype)
    outputs = {"Residual": residual, "Out": out}
    helper.append_op("huber_loss", {"X": input, "Y": label}, outputs, {"delta": delta})
    return out


def smooth_l1(
    x: Variable,
    y: Variable,
    inside_weight: Variable | None = None,
    outside_weight: Variable | None = None,
    sigma: float | None = None,
) -> Variable:
    """Per row the sum of d² sigma² / 2 where |d| < 1 / sigma², else |d| - 1 / (2 sigma²), with d = x - y; [N, 1].

    ``inside_weight`` multiplies d, ``outside_weight`` the terms of the sum. Girshick, "Fast R-CNN", 2015.
    """
    require_dtype("smooth_l1", require_variable("smooth_l1", "x", x), FLOATS)
    require_same_dtype("smooth_l1", x, require_variable("smooth_l1", "y", y))
    helper = LayerHelper("smooth_l1_loss")
    difference, out = helper.temporaries(2, x.dtype)
    inputs = {"X": x, "Y": y, "InsideWeight": inside_weight, "OutsideWeight": outside_weight}
    helper.append_op("smooth_l1_loss", inputs, {"Diff": difference, "Out": out}, {"sigma": sigma or 1.0})
    return out


def rank_loss(label: Variable, left: Variable, right: Variable, name: str | None = None) -> Variable:
    """log(1 + exp(left - right)) - label * (left - right); label 1 where left should rank first. Burges, RankNet, 2005."""
    return _pairwise("rank_loss", {"Label": label, "Left": left, "Right": right}, {}, name=name)


def margin_rank_loss(
    label: Variable, left: Variable, right: Variable, margin: float = 0.1, name: str | None = None
) -> Variable:
    """max(0, -label * (left - right) + margin); label 1 or -1."""
    require_dtype("margin_rank_loss", require_variable("margin_rank_loss", "left", left), FLOATS)
    require_same_dtype("margin_rank_loss", left, require_variable("margin_rank_loss", "right", right))
    require_same_dtype("margin_rank_loss", left, require_variable("margin_rank_loss", "label", label))
    helper = LayerHelper("margin_rank_loss", name)
    out, activated = helper.temporaries(2, left.dtype)
    inputs = {"Label": label, "X1": left, "X2": right}
    helper.append_op("margin_rank_loss", inputs, {"Out": out, "Activated": activated}, {"margin": margin})
    return out


def bpr_loss(input: Variable, label: Variable, name: str | None = None) -> Variable:
    """Mean over the other items j of log(1 + exp(x_j - x_label)) per row of scores [N, items]; [N, 1].

    Hidasi et al., "Session-based Recommendations with Recurrent Neural Networks", 2016.
    """
    require_dtype("bpr_loss", require_variable("bpr_loss", "input", input), FLOATS)
    require_dtype("bpr_loss", require_variable("bpr_loss", "label", label), ("int64",))
    helper = LayerHelper("bpr_loss", name)
    return helper.one("bpr_loss", {"X": input, "Label": label}, dtype=input.dtype, out="Y")


def teacher_student_sigmoid_loss(
    input: Variable, label: Variable, soft_max_up_bound: float = 15.0, soft_max_lower_bound: float = -15.0
) -> Variable:
    """Log loss of a click plus log loss of a teacher's score, both packed into ``label`` [N, 1].

    Label -2: no click, no score; -1: click, no score; in [0, 1): no click, score; from 1 on: click and score + 1. The
    bounds limit ``input`` in the gradient.
    """
    layer = "teacher_student_sigmoid_loss"
    require_dtype(layer, require_variable(layer, "input", input), FLOATS)
    require_same_dtype(layer, input, require_variable(layer, "label", label))
    helper = LayerHelper(layer)
    out = helper.create_variable(dtype=input.dtype)
    attrs = {"soft_max_up_bound": soft_max_up_bound, "soft_max_lower_bound": soft_max_lower_bound}
    helper.append_op(layer, {"X": input, "Label": label}, {"Y": out}, attrs)
    return out


def kldiv_loss(x: Variable, target: Variable, reduction: str = "mean", name: str | None = None) -> Variable:
    """target * (log(target) - x), 0 where target <= 0; reduced by 'mean', 'sum' or 'batchmean', or not ('none')."""
    if reduction not in ("none", "batchmean", "mean", "sum"):
        raise ProgramError(
            f"kldiv_loss: reduction must be none, batchmean, mean or sum, not {reduction!r} ({user_line()})"
        )
    inputs = {"X": x, "Target": target}
    return _pairwise("kldiv_loss", inputs, {"reduction": reduction}, name=name, out="Loss")


def label_smooth(
    label: Variable,
    prior_dist: Variable | None = None,
    epsilon: float = 0.1,
    dtype: object = "float32",
    name: str | None = None,
) -> Variable:
    """(1 - epsilon) * label + epsilon * prior for labels as probabilities [N, classes]; the prior is uniform or [1, classes].

    Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016.
    """
    if not 0 <= epsilon <= 1:
        raise ProgramError(f"label_smooth: epsilon is {epsilon}, not in [0, 1] ({user_line()})")
    require_dtype("label_smooth", require_variable("label_smooth", "label", label), FLOATS)
    inputs = {"X": label, "PriorDist": prior_dist}
    return LayerHelper("label_smooth", name).one("label_smooth", inputs, {"epsilon": epsilon}, dtype=dtype)


def _pairwise(
    op_type: str, inputs: Mapping[str, Variables], attrs: Mapping[str, Any], *, name: str | None, out: str = "Out"
) -> Variable:
    """A loss op whose inputs have one float dtype and whose only output has it too."""
    values = [require_variable(op_type, key.lower(), value) for key, value in inputs.items()]
    require_dtype(op_type, values[0], FLOATS)
    for other in values[1:]:
        require_same_dtype(op_type, values[0], other)
    return LayerHelper(op_type, name).one(op_type, inputs, attrs, dtype=values[-1].dtype, out=out)
