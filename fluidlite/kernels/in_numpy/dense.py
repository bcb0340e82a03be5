"""Kernels of fully connected layers in numpy: bias and activation, and their gradients."""

from __future__ import annotations

from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import DtypeError, ProgramError, ShapeError

#: activations that have a kernel of their own; "" is none
ACTS: Final = ("", "relu")


def relu(x: Array) -> Array:
    """max(x, 0) in a new array; NaN stays, and -0.0 becomes 0.0."""
    # numpy's maximum is twice as slow against a single number as against a row
    return np.maximum(x, np.zeros(x.shape[-1:], x.dtype))


def relu_grad(out: Array, d_out: Array) -> Array:
    """``d_out`` where relu's result ``out`` is above 0, ``d_out`` times 0 elsewhere, in a new array."""
    return d_out * (out > 0)


def relu_over(x: Array) -> Array:
    """As `relu`, in ``x``."""
    return np.maximum(x, np.zeros(x.shape[-1:], x.dtype), out=x)


def relu_grad_over(out: Array, d_out: Array) -> Array:
    """As `relu_grad`, in ``d_out``, which has the shape and dtype of ``out``."""
    return np.multiply(d_out, out > 0, out=d_out)


def bias_act(x: Array, bias: Array, act: str) -> Array:
    """``act(x + bias)``, computed in ``x`` (n, d) and returned; ``bias`` has d elements.

    ``act`` is one of `ACTS`, else ProgramError. Raises ShapeError or DtypeError when ``bias`` does not fit.
    """
    check_bias_act(x, bias, act)
    x += bias.reshape(-1)
    return relu_over(x) if act else x


def act_grad(out: Array, d_out: Array, act: str) -> Array:
    """The gradient before the activation of `bias_act`, whose result is ``out`` (n, d); ``d_out`` itself without one.

    Raises ShapeError or DtypeError when ``out`` and ``d_out`` differ in shape or dtype.
    """
    check_act_grad(out, d_out, act)
    return relu_grad(out, d_out) if act else d_out


def product(x: Array, y: Array) -> Array:
    """The product of two matrices, by BLAS.

    That of a column and a row, as behind the last layer of a binary classifier, has no sums: elementwise it takes a
    quarter of the time and is the same but for the sign of zeros, which BLAS adds to 0.0.
    """
    return x * y if x.shape[1] == 1 else x @ y


def column_sums(matrix: Array) -> Array:
    """(n, d) floats -> (d,), the gradient of a bias.

    As a product with ones: twice as fast as a sum over the first axis, and nearer to the exact sum.
    """
    return np.ones(len(matrix), matrix.dtype) @ matrix


def check_bias_act(x: Array, bias: Array, act: str) -> None:
    """Refuse what does not fit each other."""
    if act not in ACTS:
        raise ProgramError(f"no kernel for activation {act!r}; there is {ACTS}")
    if x.ndim != 2 or bias.size != x.shape[1]:
        raise ShapeError(f"a bias of shape {list(bias.shape)} does not fit {list(x.shape)}")
    if x.dtype != bias.dtype:
        raise DtypeError(f"a bias of dtype {bias.dtype} does not fit {x.dtype}")


def check_act_grad(out: Array, d_out: Array, act: str) -> None:
    """Refuse what does not fit each other."""
    if act not in ACTS:
        raise ProgramError(f"no kernel for activation {act!r}; there is {ACTS}")
    if out.shape != d_out.shape:
        raise ShapeError(f"a gradient of shape {list(d_out.shape)} does not fit {list(out.shape)}")
    if out.dtype != d_out.dtype:
        raise DtypeError(f"a gradient of dtype {d_out.dtype} does not fit {out.dtype}")
