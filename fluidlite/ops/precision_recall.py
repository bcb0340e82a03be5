"""`precision_recall`: precision, recall and F1 of a classification, over all classes."""

from __future__ import annotations

from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.classes import class_numbers
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, int_attr, register

#: columns of the states: of each class the weight of samples that are
_TRUE_POSITIVE, _FALSE_POSITIVE, _TRUE_NEGATIVE, _FALSE_NEGATIVE = range(4)


def precision_recall(
    ctx: KernelContext,
    MaxProbs: Array,
    Indices: Array,
    Labels: Array,
    Weights: Array | None,
    StatesInfo: Array | None,
    *,
    class_number: int,
) -> dict[str, Array]:
    predicted = class_numbers(ctx, "Indices", Indices, class_number)
    labelled = class_numbers(ctx, "Labels", Labels, class_number)
    if len(predicted) != len(labelled):
        raise ShapeError(f"op 'precision_recall': {len(predicted)} predictions but {len(labelled)} labels")
    weights = np.ones(len(labelled)) if Weights is None else Weights.reshape(-1).astype(np.float64)
    states = _states(predicted, labelled, weights, class_number)
    total = states if StatesInfo is None else states + StatesInfo
    return {
        "BatchMetrics": _metrics(states),
        "AccumMetrics": _metrics(total),
        "AccumStatesInfo": total.astype(MaxProbs.dtype),
    }


def _states(predicted: Array, labelled: Array, weights: Array, classes: int) -> Array:
    """(classes, 4) float64."""
    right = predicted == labelled
    states = np.zeros((classes, 4))
    states[:, _TRUE_POSITIVE] = np.bincount(labelled[right], weights[right], classes)
    states[:, _FALSE_POSITIVE] = np.bincount(predicted[~right], weights[~right], classes)
    states[:, _FALSE_NEGATIVE] = np.bincount(labelled[~right], weights[~right], classes)
    states[:, _TRUE_NEGATIVE] = weights.sum() - states.sum(axis=1)
    return states


def _metrics(states: Array) -> Array:
    """Precision, recall and F1: of the classes' means, then of all samples together."""
    together = states.sum(axis=0, keepdims=True)
    rates = [(_rate(s, _FALSE_POSITIVE).mean(), _rate(s, _FALSE_NEGATIVE).mean()) for s in (states, together)]
    return np.array([number for precision, recall in rates for number in (precision, recall, _f1(precision, recall))])


def _rate(states: Array, misses: int) -> Array:
    """True positives among themselves and the ``misses``, 1 where there is neither."""
    hits, total = states[:, _TRUE_POSITIVE], states[:, _TRUE_POSITIVE] + states[:, misses]
    rates: Array = np.divide(hits, total, out=np.ones(len(states)), where=total > 0)
    return rates


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


def _infer(ctx: InferContext) -> None:
    for name in ("BatchMetrics", "AccumMetrics"):
        ctx.set(name, (6,), "float64")
    ctx.set("AccumStatesInfo", (ctx.attr("class_number"), 4), ctx.input("MaxProbs").dtype)


_SAMPLES: Final = {
    "MaxProbs": np.array([[0.9], [0.6], [0.7]]),
    "Indices": np.array([[1], [0], [2]], np.int32),
    "Labels": np.array([[1], [2], [2]], np.int32),
}
_STATES: Final = np.array([[0.0, 1.0, 2.0, 0.0], [1.0, 0.0, 2.0, 0.0], [1.0, 0.0, 1.0, 1.0]])
_METRICS: Final = np.array([2 / 3, 5 / 6, 20 / 27, 2 / 3, 2 / 3, 2 / 3])

register(
    "precision_recall",
    doc="BatchMetrics [6]: precision, recall and F1 as means over the classes, then over all samples together, of the "
    "predicted classes Indices [N, 1] against Labels [N, 1], each sample of weight Weights [N, 1] (1). AccumStatesInfo "
    "[class_number, 4] adds to StatesInfo the weight of true positives, false positives, true negatives and false "
    "negatives of each class; AccumMetrics are its metrics. MaxProbs gives the dtype.",
    inputs=["MaxProbs", "Indices", "Labels", "Weights?", "StatesInfo?"],
    outputs=["BatchMetrics", "AccumMetrics", "AccumStatesInfo"],
    attrs={"class_number": int_attr()},
    infer=_infer,
    kernel=precision_recall,
    cases=(
        Case(
            _SAMPLES,
            {"class_number": 3},
            {"BatchMetrics": _METRICS, "AccumMetrics": _METRICS, "AccumStatesInfo": _STATES},
        ),
        Case(
            {**_SAMPLES, "Weights": np.full((3, 1), 2.0), "StatesInfo": _STATES},
            {"class_number": 3},
            {"BatchMetrics": _METRICS, "AccumMetrics": _METRICS, "AccumStatesInfo": 3 * _STATES},
        ),
    ),
)
