"""Special functions for arrays, in numpy alone: sigmoid, sign, softplus, erf. They keep the dtype and never overflow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from fluidlite.dtypes import Array


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x); 0 and 1 at the infinities."""
    return np.asarray(1 / (1 + np.exp(-x)))


def sigmoid_over(x: Array) -> Array:
    """As `sigmoid`, in ``x``."""
    np.exp(np.negative(x, out=x), out=x)
    x += 1
    return np.divide(1, x, out=x)


def sigmoid_grad(out: Array, d_out: Array) -> Array:
    """The gradient of sigmoid, from its value and the gradient of that."""
    return np.asarray(d_out * out * (1 - out))


def sigmoid_grad_over(out: Array, d_out: Array) -> Array:
    """As `sigmoid_grad`, in ``d_out``."""
    d_out *= out
    d_out *= 1 - out
    return d_out


def sign(x: Array) -> Array:
    """-1, 0 or 1 in the dtype of ``x``; 0 for NaN."""
    return np.asarray((x > 0).astype(x.dtype) - (x < 0).astype(x.dtype))


def softplus(x: Array) -> Array:
    """log(1 + e^x) without overflow: max(x, 0) + log(1 + e^-abs(x))."""
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def gated(x: Array, gate: Array) -> Array:
    """x * gate where a closed gate gives 0 whatever x is (also when x is infinite)."""
    return np.where(gate == 0, gate, x * gate)


def erf(x: Array) -> Array:
    """The error function, relative error about 1e-16, computed in float64.

    W. J. Cody, "Rational Chebyshev approximations for the error function", Mathematics of Computation 23 (1969).
    """
    y = np.abs(x.astype(np.float64))
    square = y * y
    small = y * _ratio(_SMALL, np.minimum(square, 1.0))
    middle = _ratio(_MIDDLE, np.clip(y, 0.25, 4.0))
    inverse = 1.0 / np.maximum(square, 1.0)
    large = (1.0 / math.sqrt(math.pi) - inverse * _ratio(_LARGE, inverse)) / np.maximum(y, 1.0)
    tail = np.exp(-square) * np.where(y <= 4.0, middle, large)
    return np.copysign(np.where(y <= 0.46875, small, 1.0 - tail), x).astype(x.dtype)


_Rational = tuple[Sequence[float], Sequence[float]]
#: numerator and denominator of each range of Cody's approximation, highest power first
_SMALL: Final[_Rational] = (
    (
        1.85777706184603153e-1,
        3.16112374387056560e0,
        1.13864154151050156e2,
        3.77485237685302021e2,
        3.20937758913846947e3,
    ),
    (
        1.0,
        2.36012909523441209e1,
        2.44024637934444173e2,
        1.28261652607737228e3,
        2.84423683343917062e3,
    ),
)
_MIDDLE: Final[_Rational] = (
    (
        2.15311535474403846e-8,
        5.64188496988670089e-1,
        8.88314979438837594e0,
        6.61191906371416295e1,
        2.98635138197400131e2,
        8.81952221241769090e2,
        1.71204761263407058e3,
        2.05107837782607147e3,
        1.23033935479799725e3,
    ),
    (
        1.0,
        1.57449261107098347e1,
        1.17693950891312499e2,
        5.37181101862009858e2,
        1.62138957456669019e3,
        3.29079923573345963e3,
        4.36261909014324716e3,
        3.43936767414372164e3,
        1.23033935480374942e3,
    ),
)
_LARGE: Final[_Rational] = (
    (
        1.63153871373020978e-2,
        3.05326634961232344e-1,
        3.60344899949804439e-1,
        1.25781726111229246e-1,
        1.60837851487422766e-2,
        6.58749161529837803e-4,
    ),
    (
        1.0,
        2.56852019228982242e0,
        1.87295284992346047e0,
        5.27905102951428412e-1,
        6.05183413124413191e-2,
        2.33520497626869185e-3,
    ),
)


def _ratio(coefficients: _Rational, x: Array) -> Array:
    """A rational function by Horner's rule."""
    top, bottom = (np.full_like(x, part[0]) for part in coefficients)
    for a, b in zip(coefficients[0][1:], coefficients[1][1:], strict=True):
        top = top * x + a
        bottom = bottom * x + b
    return top / bottom
