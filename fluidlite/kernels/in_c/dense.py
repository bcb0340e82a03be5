"""Kernels of fully connected layers in C; arrays that the extension does not take go to numpy."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels import _c
from fluidlite.kernels.in_c.arrays import is_taken
from fluidlite.kernels.in_numpy import dense as in_numpy


def relu(x: Array) -> Array:
    """As in numpy."""
    if not is_taken(x):
        return in_numpy.relu(x)
    out = np.empty_like(x)
    _c.relu(x, out)
    return out


def relu_grad(out: Array, d_out: Array) -> Array:
    """As in numpy."""
    if out.shape != d_out.shape or not is_taken(out, d_out):
        return in_numpy.relu_grad(out, d_out)
    d_x = np.empty_like(d_out)
    _c.relu_grad(out, d_out, d_x)
    return d_x


def relu_over(x: Array) -> Array:
    """As in numpy."""
    if not is_taken(x) or x.ndim == 0 or not x.size:
        return in_numpy.relu_over(x)
    # a bias of 0 changes nothing but the sign of zeros, which relu drops
    _c.bias_act(x.reshape(-1, x.shape[-1]), np.zeros(x.shape[-1:], x.dtype), 1)
    return x


def relu_grad_over(out: Array, d_out: Array) -> Array:
    """As in numpy."""
    if out.shape != d_out.shape or not is_taken(out, d_out):
        return in_numpy.relu_grad_over(out, d_out)
    _c.relu_grad_over(out, d_out)
    return d_out


def bias_act(x: Array, bias: Array, act: str) -> Array:
    """As in numpy."""
    in_numpy.check_bias_act(x, bias, act)
    if not is_taken(x, bias):
        return in_numpy.bias_act(x, bias, act)
    _c.bias_act(x, bias, bool(act))
    return x


def act_grad(out: Array, d_out: Array, act: str) -> Array:
    """As in numpy."""
    in_numpy.check_act_grad(out, d_out, act)
    return relu_grad(out, d_out) if act else d_out
