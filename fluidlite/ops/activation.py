"""Elementwise activations of one input: relu, sigmoid, tanh.

Each entry is the whole of an activation: its formula and its derivative in terms of what the gradient op receives.
"""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import grads_like_forward, like
from fluidlite.ops.registry import Case, register

_X = np.array([[-1.5, 0.25], [0.0, 2.0]])


def relu(ctx: KernelContext, X: Array) -> Array:
    return np.maximum(X, 0)


def relu_grad(ctx: KernelContext, Out: Array, Out_GRAD: Array) -> Array:
    return Out_GRAD * (Out > 0)


register(
    "relu",
    doc="Out = max(X, 0), elementwise.",
    inputs=["X"],
    outputs=["Out"],
    infer=like("X", "Out"),
    kernel=relu,
    grad=maker(["Out", "Out@GRAD"], ["X@GRAD"]),
    share_lod="X",
    cases=(Case({"X": _X}, {}, {"Out": np.array([[0.0, 0.25], [0.0, 2.0]])}),),
)
register(
    "relu_grad",
    doc="Gradient of relu.",
    inputs=["Out", "Out@GRAD"],
    outputs=["X@GRAD"],
    infer=grads_like_forward,
    kernel=relu_grad,
)
