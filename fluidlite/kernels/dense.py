"""Kernels of fully connected layers, in C or in numpy: what the rest of the package imports."""

from __future__ import annotations

from fluidlite.kernels import choice
from fluidlite.kernels.in_numpy.dense import ACTS, column_sums, product

if choice.IN_C:
    from fluidlite.kernels.in_c.dense import act_grad, bias_act, relu, relu_grad, relu_grad_over, relu_over
else:
    from fluidlite.kernels.in_numpy.dense import act_grad, bias_act, relu, relu_grad, relu_grad_over, relu_over

__all__ = [
    "ACTS",
    "act_grad",
    "bias_act",
    "column_sums",
    "product",
    "relu",
    "relu_grad",
    "relu_grad_over",
    "relu_over",
]
