"""`accuracy` of the classes that `top_k` found."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, register


def accuracy(ctx: KernelContext, Indices: Array, Label: Array) -> dict[str, Array]:
    labels = Label.reshape(-1, 1)
    if len(labels) != len(Indices):
        raise ShapeError(f"op 'accuracy': {len(Indices)} rows of Indices but {len(labels)} labels")
    correct = np.count_nonzero((Indices == labels).any(axis=1))
    return {
        "Accuracy": np.array([correct / max(len(labels), 1)], np.float32),
        "Correct": np.array([correct], np.int32),
        "Total": np.array([len(labels)], np.int32),
    }


def _infer(ctx: InferContext) -> None:
    ctx.set("Accuracy", (1,), "float32")
    for output in ("Correct", "Total"):
        ctx.set(output, (1,), "int32")


register(
    "accuracy",
    doc="Accuracy [1] float32: the share of rows whose Label [N, 1] is among their Indices [N, k]; 0 for no rows. Correct and "
    "Total [1] int32 count rows. Out holds the scores and is not needed.",
    inputs=["Out", "Indices", "Label"],
    outputs=["Accuracy", "Correct", "Total"],
    infer=_infer,
    kernel=accuracy,
    cases=(
        Case(
            {
                "Out": np.array([[0.5, 0.25], [0.75, 0.25]]),
                "Indices": np.array([[0, 2], [1, 0]]),
                "Label": np.array([[2], [2]]),
            },
            {},
            {
                "Accuracy": np.array([0.5], np.float32),
                "Correct": np.array([1], np.int32),
                "Total": np.array([2], np.int32),
            },
        ),
    ),
)
