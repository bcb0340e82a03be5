"""Elements taken from one of several inputs: where, multiplex."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import DtypeError, OutOfRangeError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, register


def where(ctx: KernelContext, Condition: Array, X: Array, Y: Array) -> Array:
    if not Condition.shape == X.shape == Y.shape:
        raise ShapeError(f"Condition {list(Condition.shape)}, X {list(X.shape)} and Y {list(Y.shape)} must be equal")
    if X.dtype != Y.dtype:
        raise DtypeError(f"X is {X.dtype} and Y is {Y.dtype}; cast one of them")
    return np.where(Condition, X, Y)


def where_grad(ctx: KernelContext, Condition: Array, Out_GRAD: Array) -> dict[str, Array]:
    zero = np.zeros_like(Out_GRAD)
    return {"X@GRAD": np.where(Condition, Out_GRAD, zero), "Y@GRAD": np.where(Condition, zero, Out_GRAD)}


def _infer_where(ctx: InferContext) -> None:
    x = ctx.input("X")
    shapes = [ctx.shape(name) for name in ("Condition", "X", "Y")]
    for shape in shapes:
        if len(shape) != len(shapes[1]) or any(
            a != b and -1 not in (a, b) for a, b in zip(shape, shapes[1], strict=True)
        ):
            raise ctx.error(f"Condition, X and Y have shapes {[list(shape) for shape in shapes]}; they must be equal")
    ctx.set("Out", x.shape, x.dtype, lod_level=x.lod_level)


def _chosen(ids: Array, rows: int, inputs: int) -> tuple[Array, Array]:
    """(input, row) of each row of the output."""
    flat = ids.reshape(-1)
    if len(flat) > rows:
        raise ShapeError(f"{len(flat)} ids for inputs of {rows} rows")
    bad = np.flatnonzero((flat < 0) | (flat >= inputs))
    if len(bad):
        raise OutOfRangeError(f"id {flat[bad[0]]} at position {bad[0]} is outside the {inputs} inputs X")
    return flat, np.arange(len(flat))


def multiplex(ctx: KernelContext, Ids: Array, X: list[Array]) -> Array:
    return np.stack(X)[_chosen(Ids, len(X[0]), len(X))]


def multiplex_grad(ctx: KernelContext, Ids: Array, Out_GRAD: Array) -> list[Array]:
    chosen = Ids.reshape(-1, *(1 for _ in Out_GRAD.shape[1:]))
    return [Out_GRAD * (chosen == i) for i in range(ctx.n_outputs("X@GRAD"))]


def _infer_multiplex(ctx: InferContext) -> None:
    given = ctx.inputs("X")
    if len({len(var.shape or ()) for var in given}) > 1 or len({(var.shape or ())[1:] for var in given}) > 1:
        raise ctx.error(f"X holds shapes {[list(var.shape or ()) for var in given]}; their rows must be equal")
    rows = ctx.shape("Ids")[0]
    ctx.set("Out", (rows, *(given[0].shape or ())[1:]), given[0].dtype, lod_level=given[0].lod_level)


_MASK = np.array([[True, False], [False, True]])
_A, _B = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0, 6.0], [7.0, 8.0]])

register(
    "where",
    doc="Out = X where Condition holds, else Y; all of one shape.",
    inputs=["Condition", "X", "Y"],
    outputs=["Out"],
    infer=_infer_where,
    kernel=where,
    grad=maker(["Condition", "X", "Y", "Out@GRAD"], ["X@GRAD", "Y@GRAD"]),
    share_lod="X",
    cases=(
        Case(
            {"Condition": _MASK, "X": _A, "Y": _B},
            {},
            {"Out": np.array([[1.0, 6.0], [7.0, 4.0]])},
            check_grad=("X", "Y"),
        ),
    ),
)
register(
    "where_grad",
    doc="Gradient of where.",
    inputs=["Condition", "X", "Y", "Out@GRAD"],
    outputs=["X@GRAD", "Y@GRAD"],
    infer=grads_like_forward,
    kernel=where_grad,
)
register(
    "multiplex",
    doc="Out = row i of the input that Ids (n, 1) names for i.",
    inputs=["Ids", "X*"],
    outputs=["Out"],
    infer=_infer_multiplex,
    kernel=multiplex,
    grad=maker(["Ids", "Out@GRAD"], ["X@GRAD"]),
    cases=(
        Case(
            {"Ids": np.array([[1], [0]], np.int32), "X": [_A, _B]},
            {},
            {"Out": np.array([[5.0, 6.0], [3.0, 4.0]])},
            check_grad=("X",),
        ),
    ),
)
register(
    "multiplex_grad",
    doc="Gradient of multiplex.",
    inputs=["Ids", "Out@GRAD"],
    outputs=["X@GRAD*"],
    infer=grads_like_forward,
    kernel=multiplex_grad,
)
