"""The formulas of optimizers that work element by element: parameter and accumulators change in place.

Each takes parameter, gradient and accumulators, arrays of one shape and dtype, then numbers. The operations and their
order are part of the definition: the kernels in C round after each of them as these do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from fluidlite.dtypes import Array


def sgd(p: Array, g: Array, rate: float) -> None:
    p -= rate * g


def momentum(p: Array, g: Array, velocity: Array, rate: float, mu: float) -> None:
    velocity *= mu
    velocity += g
    p -= rate * velocity


def nesterov(p: Array, g: Array, velocity: Array, rate: float, mu: float) -> None:
    velocity *= mu
    velocity += g
    ahead = mu * velocity
    ahead += g
    ahead *= rate
    p -= ahead


def adagrad(p: Array, g: Array, moment: Array, rate: float, epsilon: float) -> None:
    moment += g * g
    _descend(p, rate, g, moment, epsilon)


def decayed_adagrad(p: Array, g: Array, moment: Array, rate: float, decay: float, epsilon: float) -> None:
    moment *= decay
    moment += (1.0 - decay) * g * g
    _descend(p, rate, g, moment, epsilon)


def _descend(p: Array, rate: float, g: Array, moment: Array, epsilon: float) -> None:
    """p -= rate * g / (sqrt(moment) + epsilon), with two temporaries."""
    move, size = rate * g, np.sqrt(moment)
    size += epsilon
    move /= size
    p -= move


def rmsprop(
    p: Array,
    g: Array,
    mean_square: Array,
    moment: Array,
    rate: float,
    decay: float,
    epsilon: float,
    momentum: float,
) -> None:
    mean_square *= decay
    mean_square += (1.0 - decay) * g * g
    moment *= momentum
    moment += rate * g / np.sqrt(mean_square + epsilon)
    p -= moment


def centered_rmsprop(
    p: Array,
    g: Array,
    mean_square: Array,
    moment: Array,
    mean: Array,
    rate: float,
    decay: float,
    epsilon: float,
    momentum: float,
) -> None:
    mean_square *= decay
    mean_square += (1.0 - decay) * g * g
    mean *= decay
    mean += (1.0 - decay) * g
    moment *= momentum
    moment += rate * g / np.sqrt(mean_square - mean * mean + epsilon)
    p -= moment


def adadelta(p: Array, g: Array, squared_grad: Array, squared_update: Array, rho: float, epsilon: float) -> None:
    squared_grad *= rho
    squared_grad += (1.0 - rho) * g * g
    # Of the old squared_update: Fluid in place takes the new one, so its first step is sqrt(2) times too long.
    move = -np.sqrt((squared_update + epsilon) / (squared_grad + epsilon)) * g
    squared_update *= rho
    squared_update += (1.0 - rho) * move * move
    p += move


def adam(
    p: Array, g: Array, moment1: Array, moment2: Array, rate: float, beta1: float, beta2: float, epsilon: float
) -> None:
    """``rate`` includes the correction of the moments' bias."""
    moment1 *= beta1
    part = (1.0 - beta1) * g
    moment1 += part
    moment2 *= beta2
    np.multiply(1.0 - beta2, g, out=part)
    part *= g
    moment2 += part
    size = np.sqrt(moment2, out=part)
    size += epsilon
    move = rate * moment1
    move /= size
    p -= move


def adamax(
    p: Array, g: Array, moment: Array, inf_norm: Array, rate: float, beta1: float, beta2: float, epsilon: float
) -> None:
    """``rate`` includes the correction of the moment's bias."""
    moment *= beta1
    moment += (1.0 - beta1) * g
    inf_norm *= beta2
    inf_norm += epsilon
    np.maximum(inf_norm, np.abs(g), out=inf_norm)
    p -= rate * moment / inf_norm


def ftrl(
    p: Array,
    g: Array,
    squared: Array,
    linear: Array,
    rate: float,
    l1: float,
    l2: float,
    root: Callable[[Array], Array] = np.sqrt,
) -> None:
    """A rate of 0, for which ``linear`` is not defined, changes nothing. Another ``root`` is another lr_power."""
    if rate == 0.0:
        return
    before = root(squared)
    squared += g * g
    after = root(squared)
    linear += g - (after - before) / rate * p
    shrunk = (l1 * np.sign(linear) - linear) / (after / rate + 2.0 * l2)
    p[...] = np.where(np.abs(linear) > l1, shrunk, 0.0)


FORMULAS: Final[Mapping[str, Callable[..., None]]] = {
    formula.__name__: formula
    for formula in (
        sgd,
        momentum,
        nesterov,
        adagrad,
        decayed_adagrad,
        rmsprop,
        centered_rmsprop,
        adadelta,
        adam,
        adamax,
        ftrl,
    )
}
