"""Running sums along an axis."""

from __future__ import annotations

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array
from fluidlite.ops import registry
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import without_role
from fluidlite.ops.registry import Case, bool_attr, int_attr, register
from fluidlite.ops.shapes import like_along


def cumsum(ctx: KernelContext, X: Array, *, axis: int, exclusive: bool, reverse: bool) -> Array:
    source = np.flip(X, axis) if reverse else X
    total = np.cumsum(source, axis=axis, dtype=X.dtype)
    if exclusive:
        total = total - source
    return np.flip(total, axis) if reverse else total


def _grad(op: Operator) -> list[Operator]:
    """The same sum from the other end."""
    reverse = registry.attrs_for_one("cumsum", "reverse", not op.attr("reverse"))
    return [
        Operator(
            "cumsum",
            {"X": [names.grad(op.outputs["Out"][0])]},
            {"Out": [names.grad(op.inputs["X"][0])]},
            {**without_role(op), "reverse": reverse},
            origin=op.origin,
        )
    ]


_X = np.array([[1.0, 2.0, 4.0], [0.5, -1.0, 3.0]])

register(
    "cumsum",
    doc="Out = the running sum of X along `axis`, without the element itself when `exclusive`, from the end when `reverse`.",
    inputs=["X"],
    outputs=["Out"],
    attrs={
        "axis": int_attr(-1),
        "exclusive": bool_attr(default=False),
        "reverse": bool_attr(default=False),
    },
    infer=like_along("X", "Out"),
    kernel=cumsum,
    grad=_grad,
    share_lod="X",
    cases=(
        Case({"X": _X}, {}, {"Out": np.array([[1.0, 3.0, 7.0], [0.5, -0.5, 2.5]])}, check_grad=("X",)),
        Case({"X": _X}, {"axis": 0}, {"Out": np.array([[1.0, 2.0, 4.0], [1.5, 1.0, 7.0]])}, check_grad=("X",)),
        Case(
            {"X": _X},
            {"exclusive": True, "reverse": True},
            {"Out": np.array([[6.0, 4.0, 0.0], [2.0, 3.0, 0.0]])},
            check_grad=("X",),
        ),
    ),
)
