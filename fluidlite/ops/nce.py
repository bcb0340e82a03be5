"""`nce`: noise-contrastive estimation, a cost over many classes from a few sampled ones (Gutmann, Hyvarinen 2010)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import ProgramError
from fluidlite.ops import class_samplers
from fluidlite.ops.binary_loss import stable_sigmoid
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.ids import argument, flat_ids, out_of_range, outside
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import (
    Case,
    bool_attr,
    int_attr,
    ints_attr,
    longs_attr,
    register,
    strings_attr,
)
from fluidlite.ops.shapes import check_rows
from fluidlite.values.selected_rows import SelectedRows, merge_rows, segment_sum

_UNIFORM, _LOG_UNIFORM, _CUSTOM = 0, 1, 2
_ATTRS = {
    "num_total_classes": int_attr(),
    "num_neg_samples": int_attr(10, "sampled classes per row"),
    "sampler": int_attr(_UNIFORM, "0 uniform, 1 log-uniform, 2 the distribution of CustomDistProbs"),
    "seed": int_attr(0, "not 0: the same samples in every run, Fluid's"),
    "is_sparse": bool_attr(default=False, doc="the gradient of Weight is SelectedRows"),
    "remote_prefetch": bool_attr(default=False),
    "trainer_id": int_attr(0),
    "height_sections": longs_attr(),
    "epmap": strings_attr(),
    "table_names": strings_attr(),
    "custom_neg_classes": ints_attr(doc="negative classes of every row, instead of sampled ones"),
}
_DISTRIBUTION = ["CustomDistProbs", "CustomDistAlias", "CustomDistAliasProbs"]


def nce(
    ctx: KernelContext,
    Input: Array,
    Label: Array,
    Weight: Array,
    Bias: Array | None,
    SampleWeight: Array | None,
    CustomDistProbs: Array | None,
    CustomDistAlias: Array | None,
    CustomDistAliasProbs: Array | None,
    *,
    num_total_classes: int,
    num_neg_samples: int,
    sampler: int,
    seed: int,
    custom_neg_classes: tuple[int, ...],
) -> dict[str, Array]:
    check_rows(ctx, "Input", Input, Label=Label, SampleWeight=SampleWeight)
    labels = _labels(ctx, Label, num_total_classes)
    if custom_neg_classes:
        negative = np.tile(np.asarray(custom_neg_classes, np.int64), (len(labels), 1))
    else:
        shape = (len(labels), num_neg_samples)
        negative = _sampled(ctx, shape, num_total_classes, sampler, seed, CustomDistAlias, CustomDistAliasProbs)
    chosen = np.concatenate([labels, negative], axis=1)
    logits = np.einsum("nd,nkd->nk", Input, Weight[chosen])
    if Bias is not None:
        logits = logits + Bias.reshape(-1)[chosen]
    scores = stable_sigmoid(logits).astype(Input.dtype)
    noise = _noise(chosen, labels.shape[1], num_total_classes, sampler, CustomDistProbs).astype(Input.dtype)
    true = np.arange(chosen.shape[1]) < labels.shape[1]
    cost = -np.log(np.where(true, scores, noise) / (scores + noise)).sum(axis=1, keepdims=True)
    if SampleWeight is not None:
        cost = cost * SampleWeight.reshape(-1, 1)
    return {"Cost": cost, "SampleLogits": scores, "SampleLabels": chosen}


def nce_grad(
    ctx: KernelContext,
    Input: Array,
    Label: Array,
    Weight: Array,
    Bias: Array | None,
    SampleWeight: Array | None,
    CustomDistProbs: Array | None,
    SampleLogits: Array,
    SampleLabels: Array,
    Cost_GRAD: Array,
    *,
    num_total_classes: int,
    sampler: int,
    is_sparse: bool,
) -> dict[str, Any]:
    check_rows(ctx, "Input", Input, Label=Label, SampleWeight=SampleWeight, Cost_GRAD=Cost_GRAD)
    scores, chosen, true_count = SampleLogits, SampleLabels, Label.shape[-1] if Label.ndim > 1 else 1
    noise = _noise(chosen, true_count, num_total_classes, sampler, CustomDistProbs).astype(scores.dtype)
    true = np.arange(chosen.shape[1]) < true_count
    slope = np.where(true, (scores - 1) * noise, scores * (1 - scores)) / (scores + noise)
    upstream = Cost_GRAD if SampleWeight is None else Cost_GRAD * SampleWeight.reshape(-1, 1)
    slope = (slope * upstream).astype(scores.dtype)
    grads: dict[str, Any] = {}
    if ctx.wants("Input@GRAD"):
        grads["Input@GRAD"] = np.einsum("nk,nkd->nd", slope, Weight[chosen])
    if ctx.wants("Weight@GRAD"):
        rows = (slope[:, :, None] * Input[:, None, :]).reshape(-1, Input.shape[1])
        sparse = SelectedRows(chosen.reshape(-1), rows, len(Weight))
        grads["Weight@GRAD"] = (
            merge_rows(sparse, always_sort=True) if is_sparse else segment_sum(rows, sparse.rows, len(Weight))
        )
    if Bias is not None:
        grads["Bias@GRAD"] = segment_sum(slope.reshape(-1), chosen.reshape(-1), Bias.size).reshape(Bias.shape)
    return grads


def _labels(ctx: KernelContext, label: Array, classes: int) -> Array:
    """True classes (N, number per row), checked."""
    labels = flat_ids(ctx, label, "Label")
    wrong = outside(labels, classes)
    if len(wrong):
        name = argument(ctx, "Label")
        raise out_of_range(ctx, name, wrong[0], labels[wrong[0]], argument(ctx, "Weight"), classes)
    return labels.reshape(len(label), label.shape[-1] if label.ndim > 1 else 1)


def _sampled(
    ctx: KernelContext,
    shape: tuple[int, int],
    classes: int,
    sampler: int,
    seed: int,
    alias: Array | None,
    alias_probabilities: Array | None,
) -> Array:
    bits = 32 if sampler == _CUSTOM else 64

    def fresh(count: int) -> Array:
        return ctx.generator(0).integers(0, 2**bits, count, np.uint64)

    words = fresh if not seed else class_samplers.words32(seed) if bits == 32 else class_samplers.words64(seed)
    if sampler == _UNIFORM:
        drawn = class_samplers.uniform(words, shape, classes)
    elif sampler == _LOG_UNIFORM:
        drawn = class_samplers.log_uniform(words, shape, classes)
    elif alias is None or alias_probabilities is None:
        raise ProgramError(f"op {ctx.op.type!r}: sampler 2 needs {', '.join(_DISTRIBUTION)}")
    else:
        drawn = class_samplers.custom(words, shape, alias, alias_probabilities)
    return drawn.astype(np.int64)


def _noise(chosen: Array, true_count: int, classes: int, sampler: int, probabilities: Array | None) -> Array:
    """Expected number of draws of each chosen class."""
    count = chosen.shape[1] - true_count
    if sampler == _LOG_UNIFORM:
        probability = class_samplers.log_uniform_probability(chosen, classes)
    elif sampler == _CUSTOM and probabilities is not None:
        probability = probabilities[chosen]
    else:
        probability = np.full(chosen.shape, 1 / classes)
    noise: Array = probability * count
    return noise


def _infer(ctx: InferContext) -> None:
    x, label = ctx.input("Input"), ctx.shape("Label")
    if ctx.attr("sampler") not in {_UNIFORM, _LOG_UNIFORM, _CUSTOM}:
        raise ProgramError(f"op 'nce': sampler {ctx.attr('sampler')} is none of 0, 1, 2 ({ctx.op.origin})")
    if ctx.shape("Weight")[0] not in {ctx.attr("num_total_classes"), -1}:
        raise ctx.error(f"Weight {list(ctx.shape('Weight'))} must have {ctx.attr('num_total_classes')} rows")
    true_count = label[-1] if len(label) == 2 else 1
    negative = len(ctx.attr("custom_neg_classes")) or ctx.attr("num_neg_samples")
    ctx.set("Cost", (ctx.shape("Input")[0], 1), x.dtype)
    drawn = (ctx.shape("Input")[0], true_count + negative if true_count >= 0 else -1)
    ctx.set("SampleLogits", drawn, x.dtype)
    ctx.set("SampleLabels", drawn, "int64")


def _infer_grad(ctx: InferContext) -> None:
    grads_like_forward(ctx)
    for var in ctx.outputs("Weight@GRAD"):
        var.kind = VarKind.SELECTED_ROWS if ctx.attr("is_sparse") else VarKind.LOD_TENSOR


def _make_grad(op: Operator) -> list[Operator]:
    inputs = ["Bias", "Cost@GRAD", *sorted(_DISTRIBUTION), "Input", "Label", "SampleLabels", "SampleLogits"]
    return maker([*inputs, "SampleWeight", "Weight"], ["Bias@GRAD", "Input@GRAD", "Weight@GRAD"])(op)


_TWO = {
    "Input": np.array([[0.5, -1.0], [2.0, 1.0]]),
    "Label": np.array([[1], [0]]),
    "Weight": np.array([[0.5, 0.25], [1.0, 1.0], [-0.5, 2.0]]),
    "Bias": np.array([[0.5], [0.0], [-0.25]]),
}

register(
    "nce",
    doc="Cost [N, 1]: -log(o / (o + b)) over the true classes and -log(b / (o + b)) over the sampled ones, with o = "
    "sigmoid(Input Weight[class] + Bias[class]) and b = num_neg_samples * P(class); times SampleWeight. SampleLogits "
    "(o) and SampleLabels [N, true + sampled] are kept for the gradient.",
    inputs=["Input", "Label", "Weight", "Bias?", "SampleWeight?", *(f"{name}?" for name in _DISTRIBUTION)],
    outputs=["Cost", "SampleLogits~", "SampleLabels~"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=nce,
    grad=_make_grad,
    cases=(
        Case(
            {**_TWO, "Weight": np.zeros((3, 2)), "Bias": np.zeros((3, 1))},
            {"num_total_classes": 3, "num_neg_samples": 1, "custom_neg_classes": [2]},
            {"Cost": np.log([[25 / 6], [25 / 6]]), "SampleLabels": np.array([[1, 2], [0, 2]])},
            check_grad=("Input", "Bias"),
        ),
        Case(
            _TWO,
            {"num_total_classes": 3, "num_neg_samples": 2, "custom_neg_classes": [2, 0], "sampler": 1},
            {"SampleLabels": np.array([[1, 2, 0], [0, 2, 0]])},
            check_grad=("Input", "Weight", "Bias"),
        ),
        Case(
            {**_TWO, "SampleWeight": np.array([0.5, 2.0])},
            {"num_total_classes": 3, "num_neg_samples": 2, "custom_neg_classes": [2, 0], "is_sparse": True},
            {"SampleLabels": np.array([[1, 2, 0], [0, 2, 0]])},
            check_grad=("Input", "Weight", "Bias"),
        ),
    ),
)
register(
    "nce_grad",
    doc="Gradient of nce.",
    inputs=[
        "Bias?",
        "Cost@GRAD",
        *(f"{name}?" for name in _DISTRIBUTION),
        "Input",
        "Label",
        "SampleLabels",
        "SampleLogits",
        "SampleWeight?",
        "Weight",
    ],
    outputs=["Bias@GRAD", "Input@GRAD", "Weight@GRAD"],
    attrs=_ATTRS,
    infer=_infer_grad,
    kernel=nce_grad,
)
