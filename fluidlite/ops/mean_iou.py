"""`mean_iou`: the overlap of predicted and labelled classes, for segmentation."""

from __future__ import annotations

from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.classes import class_numbers
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, int_attr, register


def mean_iou(
    ctx: KernelContext,
    Predictions: Array,
    Labels: Array,
    InWrongs: list[Array],
    InCorrects: list[Array],
    InMeanIou: list[Array],
    *,
    num_classes: int,
) -> dict[str, Array]:
    predicted = class_numbers(ctx, "Predictions", Predictions, num_classes)
    labelled = class_numbers(ctx, "Labels", Labels, num_classes)
    if len(predicted) != len(labelled):
        raise ShapeError(f"op 'mean_iou': {len(predicted)} predictions but {len(labelled)} labels")
    same = predicted == labelled
    correct = np.bincount(labelled[same], minlength=num_classes)
    wrong = np.bincount(predicted[~same], minlength=num_classes) + np.bincount(labelled[~same], minlength=num_classes)
    correct, wrong = sum(InCorrects, correct), sum(InWrongs, wrong)
    seen = correct + wrong > 0
    ratios = correct[seen] / (correct + wrong)[seen]
    mean = ratios.mean() if len(ratios) else 0.0
    return {
        "OutMeanIou": np.array([mean + sum(float(earlier[0]) for earlier in InMeanIou)], np.float32),
        "OutWrong": wrong.astype(np.int32),
        "OutCorrect": correct.astype(np.int32),
    }


def _infer(ctx: InferContext) -> None:
    classes = ctx.attr("num_classes")
    if classes < 1:
        raise ctx.error(f"num_classes is {classes}")
    ctx.set("OutMeanIou", (1,), "float32")
    for name in ("OutWrong", "OutCorrect"):
        ctx.set(name, (classes,), "int32")


_TWO: Final = {"Predictions": np.array([[0, 1], [1, 2]]), "Labels": np.array([[0, 1], [2, 2]])}

register(
    "mean_iou",
    doc="OutCorrect [num_classes]: elements of each class that are predicted and labelled so; OutWrong: those that are only "
    "one of both. OutMeanIou: the mean over the classes seen of correct / (correct + wrong). InCorrects, InWrongs and "
    "InMeanIou are added, from earlier batches.",
    inputs=["Predictions", "Labels", "InWrongs*?", "InCorrects*?", "InMeanIou*?"],
    outputs=["OutMeanIou", "OutWrong", "OutCorrect"],
    attrs={"num_classes": int_attr()},
    infer=_infer,
    kernel=mean_iou,
    cases=(
        Case(
            _TWO,
            {"num_classes": 4},
            {
                "OutMeanIou": np.array([2 / 3], np.float32),
                "OutWrong": np.array([0, 1, 1, 0], np.int32),
                "OutCorrect": np.array([1, 1, 1, 0], np.int32),
            },
        ),
        Case(
            {
                **_TWO,
                "InWrongs": [np.array([1, 0, 2], np.int32)] * 2,
                "InCorrects": [np.array([1, 1, 2], np.int32)],
                "InMeanIou": [np.array([0.25], np.float32)],
            },
            {"num_classes": 3},
            {
                "OutMeanIou": np.array([0.25 + (1 / 2 + 2 / 3 + 3 / 8) / 3], np.float32),
                "OutWrong": np.array([2, 1, 5], np.int32),
                "OutCorrect": np.array([2, 2, 3], np.int32),
            },
        ),
    ),
)
