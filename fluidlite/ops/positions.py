"""`add_position_encoding` (Vaswani et al. 2017) and `positive_negative_pair`, a metric of rankings."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.pairs import with_gradient
from fluidlite.ops.registry import Case, float_attr, int_attr, register
from fluidlite.ops.segments import array_of
from fluidlite.values.lod import LoDTensor


def add_position_encoding(ctx: KernelContext, X: Any, *, alpha: float, beta: float) -> Any:
    values = array_of(X)
    if not isinstance(X, LoDTensor) or not X.lod:
        steps = np.arange(values.shape[1])
        return np.asarray(values * alpha + beta * _encoding(steps, values.shape[-1]), values.dtype)
    steps = np.concatenate([np.arange(b - a) for a, b in zip(X.lod[0], X.lod[0][1:], strict=False)])
    return LoDTensor(np.asarray(values * alpha + beta * _encoding(steps, values.shape[-1]), values.dtype), X.lod)


def _encoding(steps: Array, width: int) -> Array:
    """Sines in the first half of the columns, cosines in the second, (steps, width)."""
    half = width // 2
    rates = 10000.0 ** (np.arange(half) / (half - 1)) if half > 1 else np.array([10000.0])
    angles = steps[:, None] / rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def add_position_encoding_grad(ctx: KernelContext, Out_GRAD: Any, *, alpha: float) -> Any:
    grad = array_of(Out_GRAD) * alpha
    return LoDTensor(grad, Out_GRAD.lod) if isinstance(Out_GRAD, LoDTensor) else grad


def _infer_encoding(ctx: InferContext) -> None:
    if ctx.shape("X")[-1] % 2:
        raise ctx.error(f"the width of X {list(ctx.shape('X'))} must be even")
    like("X", "Out")(ctx)


def positive_negative_pair(
    ctx: KernelContext,
    Score: Array,
    Label: Array,
    QueryID: Array,
    AccumulatePositivePair: Array | None,
    AccumulateNegativePair: Array | None,
    AccumulateNeutralPair: Array | None,
    Weight: Array | None,
    *,
    column: int,
) -> dict[str, Array]:
    scores, labels, queries = Score[:, column], Label.reshape(-1), QueryID.reshape(-1)
    if not len(scores) == len(labels) == len(queries):
        raise ShapeError(f"{len(scores)} scores, {len(labels)} labels and {len(queries)} queries")
    weights = np.ones_like(scores) if Weight is None else Weight.reshape(-1)
    first, second = np.triu_indices(len(scores), 1)
    kept = (queries[first] == queries[second]) & (labels[first] != labels[second])
    first, second = first[kept], second[kept]
    shares = (weights[first] + weights[second]) / 2
    agree = (scores[first] - scores[second]) * (labels[first] - labels[second]) > 0
    found = {
        "PositivePair": (shares[agree].sum(), AccumulatePositivePair),
        # as in Fluid, pairs of equal score count as negative too
        "NegativePair": (shares[~agree].sum(), AccumulateNegativePair),
        "NeutralPair": (shares[scores[first] == scores[second]].sum(), AccumulateNeutralPair),
    }
    return {
        name: np.asarray(total + (0 if before is None else before.reshape(-1)[0]), Score.dtype).reshape(1)
        for name, (total, before) in found.items()
    }


def _infer_pairs(ctx: InferContext) -> None:
    for name in ("PositivePair", "NegativePair", "NeutralPair"):
        ctx.set(name, (1,), ctx.input("Score").dtype)


_SCORES: Final = np.array([[0.4], [0.7], [0.7], [0.1], [0.9]])

with_gradient(
    "add_position_encoding",
    doc="Out = alpha * X + beta * sines and cosines of the step, of wavelengths from 2 pi to 20000 pi. X is [n, steps, "
    "width], or [steps, width] with LoD.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"alpha": float_attr(1.0), "beta": float_attr(1.0)},
    infer=_infer_encoding,
    kernel=add_position_encoding,
    gradient=add_position_encoding_grad,
    reads=["Out@GRAD"],
    writes=["X@GRAD"],
    takes_lod=True,
    cases=(
        Case({"X": varied(2, 3, 4)}, {"alpha": 0.5, "beta": 2.0}, check_grad=("X",)),
        Case({"X": LoDTensor(varied(4, 6), ((0, 1, 4),))}, check_grad=("X",)),
    ),
)
register(
    "positive_negative_pair",
    doc="Of the pairs of rows of one query with different labels: how many the scores order as the labels do, how many not, "
    "and how many have equal scores. Weights of a pair: the mean of its rows'.",
    inputs=[
        "Score",
        "Label",
        "QueryID",
        "AccumulatePositivePair?",
        "AccumulateNegativePair?",
        "AccumulateNeutralPair?",
        "Weight?",
    ],
    outputs=["PositivePair", "NegativePair", "NeutralPair?"],
    attrs={"column": int_attr(0, "the column of Score that counts")},
    infer=_infer_pairs,
    kernel=positive_negative_pair,
    cases=(
        Case(
            {
                "Score": _SCORES,
                "Label": np.array([[0.0], [1.0], [0.0], [1.0], [0.0]]),
                "QueryID": np.array([[1], [1], [1], [2], [2]]),
            },
            {},
            {"PositivePair": np.array([1.0]), "NegativePair": np.array([2.0]), "NeutralPair": np.array([1.0])},
        ),
        Case(
            {
                "Score": _SCORES,
                "Label": np.array([[0.0], [1.0], [0.0], [1.0], [0.0]]),
                "QueryID": np.array([[1], [1], [1], [2], [2]]),
                "Weight": np.array([[1.0], [2.0], [1.0], [3.0], [1.0]]),
                "AccumulatePositivePair": np.array([10.0]),
                "AccumulateNegativePair": np.array([20.0]),
                "AccumulateNeutralPair": np.array([30.0]),
            },
        ),
    ),
)
