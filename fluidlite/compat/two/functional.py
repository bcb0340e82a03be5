"""``paddle.nn.functional``."""

from __future__ import annotations

from fluidlite import layers
from fluidlite.errors import ProgramError
from fluidlite.framework import Variable

__all__ = ["l1_loss", "log_loss", "mse_loss", "relu", "sigmoid", "softmax", "tanh"]


def relu(x: Variable, name: str | None = None) -> Variable:
    """``max(x, 0)``."""
    return layers.relu(x)


def sigmoid(x: Variable, name: str | None = None) -> Variable:
    """``1 / (1 + exp(-x))``."""
    return layers.sigmoid(x)


def tanh(x: Variable, name: str | None = None) -> Variable:
    """The hyperbolic tangent."""
    return layers.tanh(x)


def softmax(x: Variable, axis: int = -1, dtype: object = None, name: str | None = None) -> Variable:
    """Exponentials along ``axis``, divided by their sum; of ``dtype`` when it is given."""
    return layers.softmax(x if dtype is None else layers.cast(x, dtype), axis=axis)


def l1_loss(input: Variable, label: Variable, reduction: str = "mean", name: str | None = None) -> Variable:
    """``|input - label|``: its mean, its sum, or with "none" itself. Raises ProgramError for another ``reduction``."""
    return _reduced("l1_loss", layers.abs(input - label), reduction)


def mse_loss(input: Variable, label: Variable, reduction: str = "mean", name: str | None = None) -> Variable:
    """``(input - label)^2``: its mean, its sum, or with "none" itself. Raises ProgramError for another ``reduction``."""
    return _reduced("mse_loss", layers.square_error_cost(input, label), reduction)


def log_loss(input: Variable, label: Variable, epsilon: float = 1e-4, name: str | None = None) -> Variable:
    """``-label log(input + epsilon) - (1 - label) log(1 - input + epsilon)``."""
    return layers.log_loss(input, label, epsilon, name)


def _reduced(function: str, loss: Variable, reduction: str) -> Variable:
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise ProgramError(f"{function}: reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
    return layers.mean(loss) if reduction == "mean" else layers.reduce_sum(loss)
