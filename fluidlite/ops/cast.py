"""Conversion to another dtype."""

from __future__ import annotations

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array, dtype_name, numpy_dtype
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, int_attr, register


def cast(ctx: KernelContext, X: Array, *, out_dtype: int) -> Array:
    return X.astype(numpy_dtype(out_dtype))


def _infer(ctx: InferContext) -> None:
    x = ctx.input("X")
    ctx.set("Out", x.shape, dtype_name(ctx.attr("out_dtype")), lod_level=x.lod_level)


def _grad(op: Operator) -> list[Operator]:
    """A `cast` back to the dtype of X."""
    return [
        Operator(
            "cast",
            {"X": [names.grad(op.outputs["Out"][0])]},
            {"Out": [names.grad(op.inputs["X"][0])]},
            {"out_dtype": op.attrs["in_dtype"], "in_dtype": op.attrs["out_dtype"]},
            origin=op.origin,
        )
    ]


_X = np.array([1.75, -2.5, 0.0])
_FLOAT32, _FLOAT64, _INT64, _BOOL = 5, 6, 3, 0

register(
    "cast",
    doc="Out = X as `out_dtype` (a VarType number); floats become integers by truncation.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"out_dtype": int_attr(), "in_dtype": int_attr()},
    infer=_infer,
    kernel=cast,
    grad=_grad,
    share_lod="X",
    cases=(
        Case({"X": _X}, {"in_dtype": _FLOAT64, "out_dtype": _INT64}, {"Out": np.array([1, -2, 0])}),
        Case({"X": _X}, {"in_dtype": _FLOAT64, "out_dtype": _BOOL}, {"Out": np.array([True, True, False])}),
        Case({"X": _X}, {"in_dtype": _FLOAT64, "out_dtype": _FLOAT32}, {"Out": _X.astype(np.float32)}),
        Case({"X": _X}, {"in_dtype": _FLOAT64, "out_dtype": _FLOAT64}, {"Out": _X}, check_grad=("X",)),
    ),
)
