"""`lstm_unit`: one step of a long short-term memory whose gates are already projected."""

from __future__ import annotations

from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, float_attr, register
from fluidlite.ops.special import sigmoid

_ATTRS: Final = {"forget_bias": float_attr(0.0, "added to the projection of the forget gate")}


def _gates(x: Array, forget_bias: float) -> tuple[Array, Array, Array, Array]:
    """(input gate, forget gate, output gate, candidate), activated."""
    opened, kept, out, entering = np.split(x, 4, axis=1)
    return sigmoid(opened), sigmoid(kept + forget_bias), sigmoid(out), np.tanh(entering)


def lstm_unit(ctx: KernelContext, X: Array, C_prev: Array, *, forget_bias: float) -> dict[str, Array]:
    opened, kept, out, entering = _gates(X, forget_bias)
    cell = kept * C_prev + opened * entering
    return {"C": cell, "H": out * np.tanh(cell)}


def lstm_unit_grad(
    ctx: KernelContext,
    X: Array,
    C_prev: Array,
    C: Array,
    C_GRAD: Array | None,
    H_GRAD: Array | None,
    *,
    forget_bias: float,
) -> dict[str, Array]:
    opened, kept, out, entering = _gates(X, forget_bias)
    shown, d_hidden = np.tanh(C), np.zeros_like(C) if H_GRAD is None else H_GRAD
    d_cell = d_hidden * out * (1 - shown * shown)
    if C_GRAD is not None:
        d_cell = d_cell + C_GRAD
    d_gates = [
        d_cell * entering * opened * (1 - opened),
        d_cell * C_prev * kept * (1 - kept),
        d_hidden * shown * out * (1 - out),
        d_cell * opened * (1 - entering * entering),
    ]
    return {"X@GRAD": np.concatenate(d_gates, axis=1), "C_prev@GRAD": d_cell * kept}


def _infer(ctx: InferContext) -> None:
    x, cell = ctx.shape("X"), ctx.shape("C_prev")
    if len(x) != 2 or len(cell) != 2 or x[1] != 4 * cell[1] or (x[0] != cell[0] and -1 not in (x[0], cell[0])):
        raise ctx.error(f"X {list(x)} must have the rows of C_prev {list(cell)} and four times its columns")
    for name in ("C", "H"):
        ctx.set(name, (x[0], cell[1]), ctx.input("X").dtype)


register(
    "lstm_unit",
    doc="Cell C and hidden state H [N, width] after one step from the cell C_prev; X [N, 4 * width] holds the projections "
    "of input, forget and output gate and of the candidate.",
    inputs=["X", "C_prev"],
    outputs=["C", "H"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=lstm_unit,
    grad=maker(["C", "C@GRAD", "C_prev", "H@GRAD", "X"], ["C_prev@GRAD", "X@GRAD"]),
    cases=(
        Case(
            {"X": np.log([[1.0, 1.0, 1.0, 3.0]]), "C_prev": np.array([[-0.8]])},
            {},
            {"C": np.array([[0.0]]), "H": np.array([[0.0]])},
            check_grad=("X", "C_prev"),
        ),
        Case(
            {"X": varied(3, 8), "C_prev": varied(3, 2, start=100)},
            {"forget_bias": 0.5},
            check_grad=("X", "C_prev"),
        ),
    ),
)
register(
    "lstm_unit_grad",
    doc="Gradient of lstm_unit.",
    inputs=["C", "C@GRAD", "C_prev", "H@GRAD", "X"],
    outputs=["C_prev@GRAD", "X@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=lstm_unit_grad,
)
