"""`sequence_reverse`: the rows of each sequence backwards."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.core.ir import Operator
from fluidlite.core.names import grad
from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import without_role
from fluidlite.ops.infer import like
from fluidlite.ops.registry import Case, register
from fluidlite.ops.segments import sequences
from fluidlite.values.lod import LoDTensor


def sequence_reverse(ctx: KernelContext, X: Any) -> Array:
    bags = sequences(ctx, X, "X")
    mirrored = np.repeat(bags.starts + bags.offsets[1:] - 1, bags.lengths) - np.arange(len(bags.rows))
    out: Array = bags.rows[mirrored]
    return out


def _make_grad(op: Operator) -> list[Operator]:
    return [
        Operator(
            "sequence_reverse",
            {"X": [grad(name) for name in op.outputs["Y"]]},
            {"Y": [grad(name) for name in op.inputs["X"]]},
            without_role(op),
            op.origin,
        )
    ]


register(
    "sequence_reverse",
    doc="Y: the rows of each sequence of X in reverse order. It is its own gradient.",
    inputs=["X"],
    outputs=["Y"],
    infer=like("X", "Y"),
    kernel=sequence_reverse,
    grad=_make_grad,
    share_lod="X",
    takes_lod=True,
    cases=(
        Case(
            {"X": LoDTensor(np.array([[1.0], [2.0], [3.0]]), ((0, 2, 2, 3),))},
            {},
            {"Y": LoDTensor(np.array([[2.0], [1.0], [3.0]]), ((0, 2, 2, 3),))},
            check_grad=("X",),
        ),
    ),
)
