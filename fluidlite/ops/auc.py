"""`auc`: area under the ROC curve from histograms of predictions, which add up over batches and trainers."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.ids import argument
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, int_attr, register, string_attr


def roc_auc(positive: Array, negative: Array) -> float:
    """Area under the ROC curve of two histograms (bins,), low scores first; trapezoids inside a bin.

    0 when there is only one class, as in Fluid. The histograms of several trainers may simply be added.
    """
    true_positives = np.cumsum(positive[::-1], dtype=np.float64)
    false_positives = np.cumsum(negative[::-1], dtype=np.float64)
    all_pairs = true_positives[-1] * false_positives[-1]
    if all_pairs == 0:
        return 0.0
    before = true_positives - positive[::-1]
    return float((negative[::-1] * (true_positives + before)).sum() / 2 / all_pairs)


def histograms(scores: Array, positive: Array, bins: int) -> tuple[Array, Array]:
    """Counts (bins,) int64 of the scores (n,), all in 0..1, of positive and of negative examples."""
    bin = (scores * scores.dtype.type(bins - 1)).astype(np.int64)
    return np.bincount(bin[positive], minlength=bins), np.bincount(bin[~positive], minlength=bins)


def auc(
    ctx: KernelContext,
    Predict: Array,
    Label: Array,
    StatPos: Array,
    StatNeg: Array,
    *,
    num_thresholds: int,
    slide_steps: int,
) -> dict[str, Array]:
    scores, positive = Predict[..., -1].reshape(-1), Label.reshape(-1) != 0
    if len(scores) != len(positive):
        raise ShapeError(f"op 'auc': {len(scores)} rows of Predict but {len(positive)} labels")
    wrong = np.flatnonzero(~((scores >= 0) & (scores <= 1)))
    if len(wrong):
        raise ProgramError(
            f"op 'auc': {scores[wrong[0]]} at row {wrong[0]} of {argument(ctx, 'Predict')!r} is no probability"
        )
    counts = histograms(scores, positive, num_thresholds + 1)
    stats = [
        _advanced(ctx, stat, name, count, slide_steps)
        for stat, name, count in zip((StatPos, StatNeg), ("StatPos", "StatNeg"), counts, strict=True)
    ]
    window = [_window(stat, len(counts[0]), slide_steps) for stat in stats]
    return {
        "AUC": np.array([roc_auc(*window)]),
        "StatPosOut": stats[0].reshape(StatPos.shape),
        "StatNegOut": stats[1].reshape(StatNeg.shape),
    }


def _window(stat: Array, bins: int, steps: int) -> Array:
    """The histogram that counts: of all batches (``steps`` 0), or of the last ``steps``."""
    return stat[steps * bins : (steps + 1) * bins]


def _advanced(ctx: KernelContext, stat: Array, name: str, count: Array, steps: int) -> Array:
    """The state after a batch.

    Without window: one histogram. With one: a ring of the last ``steps`` batches' histograms, their sum, and the
    number of batches so far. Fluid's layer makes room for that number without a window too.
    """
    bins = len(count)
    size = (steps + 1) * bins + (1 if steps else 0)
    if stat.size not in {size, (steps + 1) * bins + 1}:
        raise ShapeError(f"op 'auc': {argument(ctx, name)!r} must have {size} elements, not {stat.size}")
    new = stat.reshape(-1).copy()
    total = _window(new, bins, steps)
    total += count
    if steps:
        turn = int(new[-1]) % steps
        oldest = new[turn * bins : (turn + 1) * bins]
        total -= oldest
        oldest[:] = count
        new[-1] += 1
    return new


def _infer(ctx: InferContext) -> None:
    if ctx.attr("num_thresholds") < 1 or ctx.attr("slide_steps") < 0:
        raise ctx.error("num_thresholds must be positive and slide_steps not negative")
    ctx.set("AUC", (1,), "float64")
    for name in ("StatPos", "StatNeg"):
        ctx.set(f"{name}Out", ctx.shape(name), ctx.input(name).dtype)


_PREDICT = np.array([[0.25, 0.75], [0.5, 0.5], [0.75, 0.25], [1.0, 0.0]])
_LABEL = np.array([[1], [0], [1], [0]])

register(
    "auc",
    doc="AUC [1] float64 over all batches (`slide_steps` 0) or over the last `slide_steps`. Predict [N, 2] (the last column "
    "is the probability of the positive class) or [N, 1], Label [N, 1]. StatPos and StatNeg int64 count positive and "
    "negative examples in `num_thresholds` + 1 bins: one histogram, or for a window slide_steps histograms, their sum "
    "and a counter. One class only: 0. `curve` is accepted and the ROC computed, as in Fluid.",
    inputs=["Predict", "Label", "StatPos", "StatNeg"],
    outputs=["AUC", "StatPosOut", "StatNegOut"],
    attrs={
        "curve": string_attr("ROC"),
        "num_thresholds": int_attr(8191),
        "slide_steps": int_attr(1),
    },
    infer=_infer,
    kernel=auc,
    inplace={"StatPosOut": "StatPos", "StatNegOut": "StatNeg"},
    cases=(
        Case(
            {"Predict": _PREDICT, "Label": _LABEL, "StatPos": np.zeros(5, np.int64), "StatNeg": np.zeros(5, np.int64)},
            {"num_thresholds": 4, "slide_steps": 0},
            {
                "AUC": np.array([0.75]),
                "StatPosOut": np.array([0, 1, 0, 1, 0]),
                "StatNegOut": np.array([1, 0, 1, 0, 0]),
            },
        ),
        Case(
            {
                "Predict": _PREDICT,
                "Label": _LABEL,
                "StatPos": np.array([5, 0, 1, 2, 6, 2, 3]),
                "StatNeg": np.array([1, 1, 0, 4, 1, 5, 3]),
            },
            {"num_thresholds": 1, "slide_steps": 2},
            {
                "AUC": np.array([0.375]),
                "StatPosOut": np.array([5, 0, 2, 0, 7, 0, 4]),
                "StatNegOut": np.array([1, 1, 2, 0, 3, 1, 4]),
            },
        ),
    ),
)
