"""Probability distributions over variables: Uniform, Normal, Categorical, MultivariateNormalDiag."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.framework import Variable, user_line
from fluidlite.layers import compare, ops, tensor
from fluidlite.layers import math as arithmetic
from fluidlite.layers.creation import diag

#: a parameter of a distribution
Value = float | Sequence[float] | Array | Variable


def _as_variables(*given: Value) -> list[Variable]:
    """Parameters as variables; numbers and arrays become float32 constants of the shape that they have together."""
    if all(isinstance(value, Variable) for value in given):
        return [value for value in given if isinstance(value, Variable)]
    if any(isinstance(value, Variable) for value in given):
        raise ProgramError(f"parameters of a distribution must all be variables, or none ({user_line()})")
    arrays = np.broadcast_arrays(*(np.asarray(value, np.float32) for value in given))
    made = []
    for array in arrays:
        out = tensor.create_tensor("float32")
        made.append(tensor.assign(np.array(np.atleast_1d(array)), out))
    return made


class Distribution:
    """What the distributions share: names only, each class says what it can compute."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class Uniform(Distribution):
    """Equally likely values between ``low`` and ``high``: numbers, arrays or variables that broadcast."""

    def __init__(self, low: Value, high: Value) -> None:
        self.low, self.high = _as_variables(low, high)

    def sample(self, shape: Sequence[int], seed: int = 0) -> Variable:
        """Values of ``shape`` for each of the parameters: ``shape`` + theirs."""
        sizes = [*shape, *_known(self.low + self.high)]
        return tensor.uniform_random(sizes, min=0.0, max=1.0, seed=seed) * (self.high - self.low) + self.low

    def log_prob(self, value: Variable) -> Variable:
        """The logarithm of the density at ``value``; -inf outside."""
        above = tensor.cast(compare.less_than(self.low, value), value.dtype)
        below = tensor.cast(compare.less_than(value, self.high), value.dtype)
        return ops.log(above * below) - ops.log(self.high - self.low)

    def entropy(self) -> Variable:
        """log(high - low)."""
        return ops.log(self.high - self.low)


class Normal(Distribution):
    """The normal distribution of mean ``loc`` and deviation ``scale``: numbers, arrays or variables that broadcast."""

    def __init__(self, loc: Value, scale: Value) -> None:
        self.loc, self.scale = _as_variables(loc, scale)

    def sample(self, shape: Sequence[int], seed: int = 0) -> Variable:
        """Values of ``shape`` for each of the parameters: ``shape`` + theirs."""
        sizes = [*shape, *_known(self.loc + self.scale)]
        return tensor.gaussian_random(sizes, mean=0.0, std=1.0, seed=seed) * self.scale + self.loc

    def entropy(self) -> Variable:
        """1/2 + log(2 pi) / 2 + log(scale)."""
        return ops.log(self.scale) + (0.5 + 0.5 * math.log(2 * math.pi))

    def log_prob(self, value: Variable) -> Variable:
        """The logarithm of the density at ``value``."""
        distance = value - self.loc
        exponent = distance * distance * -1.0 / (self.scale * self.scale * 2.0)
        return exponent - ops.log(self.scale) - math.log(math.sqrt(2.0 * math.pi))

    def kl_divergence(self, other: Normal) -> Variable:
        """The Kullback-Leibler divergence from another normal distribution."""
        if not isinstance(other, Normal):
            raise ProgramError(f"kl_divergence of Normal needs a Normal, not {type(other).__name__} ({user_line()})")
        ratio = self.scale / other.scale
        variance = ratio * ratio
        shift = (self.loc - other.loc) / other.scale
        return (variance + shift * shift - 1.0 - ops.log(variance)) * 0.5


class Categorical(Distribution):
    """Classes with probabilities softmax(``logits``) along the last dimension."""

    def __init__(self, logits: Variable) -> None:
        if not isinstance(logits, Variable):
            raise ProgramError(f"Categorical: logits must be a variable, not {type(logits).__name__} ({user_line()})")
        self.logits = logits

    def _parts(self) -> tuple[Variable, Variable, Variable]:
        """(logits less their largest, the exponentials, their sum)."""
        shifted = self.logits - arithmetic.reduce_max(self.logits, dim=-1, keep_dim=True)
        exponentials = ops.exp(shifted)
        return shifted, exponentials, arithmetic.reduce_sum(exponentials, dim=-1, keep_dim=True)

    def kl_divergence(self, other: Categorical) -> Variable:
        """The Kullback-Leibler divergence from another distribution over the same classes; the last dimension is 1."""
        if not isinstance(other, Categorical):
            raise ProgramError(f"kl_divergence of Categorical needs a Categorical, not {type(other).__name__}")
        logits, exponentials, total = self._parts()
        others, _, others_total = other._parts()
        gap = logits - ops.log(total) - others + ops.log(others_total)
        return arithmetic.reduce_sum(exponentials / total * gap, dim=-1, keep_dim=True)

    def entropy(self) -> Variable:
        """-Σ p log(p); the last dimension is 1."""
        logits, exponentials, total = self._parts()
        terms = exponentials / total * (logits - ops.log(total))
        return arithmetic.reduce_sum(terms, dim=-1, keep_dim=True) * -1.0


class MultivariateNormalDiag(Distribution):
    """The normal distribution of mean ``loc`` [D] and a diagonal covariance matrix ``scale`` [D, D], both variables."""

    def __init__(self, loc: Variable, scale: Variable) -> None:
        self.loc, self.scale = loc, scale

    def _determinant(self) -> Variable:
        """The product of the diagonal: every other element becomes 1."""
        size = list(self.scale.shape)
        off = tensor.ones(size, self.loc.dtype)
        on = diag(tensor.ones(size[:1], self.loc.dtype))
        return arithmetic.reduce_prod(self.scale + off - on)

    def _inverse(self) -> Variable:
        """Each element of the diagonal to the power -1, the others, which are 0, to the power 1."""
        size = list(self.scale.shape)
        powers = tensor.ones(size, self.loc.dtype) - diag(tensor.ones(size[:1], self.loc.dtype)) * 2
        return arithmetic.elementwise_pow(self.scale, powers)

    def entropy(self) -> Variable:
        """(D (1 + log(2 pi)) + log det scale) / 2."""
        constant = self.scale.shape[0] * (1.0 + math.log(2 * math.pi))
        return (ops.log(self._determinant()) + constant) * 0.5

    def kl_divergence(self, other: MultivariateNormalDiag) -> Variable:
        """The Kullback-Leibler divergence from another of these."""
        if not isinstance(other, MultivariateNormalDiag):
            raise ProgramError(f"kl_divergence needs a MultivariateNormalDiag, not {type(other).__name__}")
        traces = arithmetic.reduce_sum(other._inverse() * self.scale)
        gap = other.loc - self.loc
        distance = arithmetic.matmul(arithmetic.matmul(gap, other._inverse()), gap)
        logs = ops.log(other._determinant()) - ops.log(self._determinant())
        return (traces + distance - float(self.scale.shape[0]) + logs) * 0.5


def _known(var: Variable) -> tuple[int, ...]:
    if any(size < 0 for size in var.shape):
        raise ProgramError(f"the shape {list(var.shape)} of a distribution's parameters must be known ({user_line()})")
    return var.shape
