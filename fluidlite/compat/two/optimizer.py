"""``paddle.optimizer``: those of Fluid with the arguments of Paddle 2.x."""

from __future__ import annotations

from typing import Any

from fluidlite import optimizer
from fluidlite.regularizer import L2Decay, WeightDecayRegularizer

__all__ = ["SGD", "Adagrad", "Adam", "Momentum"]


def _regularizer(weight_decay: float | WeightDecayRegularizer | None) -> WeightDecayRegularizer | None:
    """A number is that of `L2Decay`."""
    return L2Decay(float(weight_decay)) if isinstance(weight_decay, (int, float)) else weight_decay


class SGD(optimizer.SGDOptimizer):
    """See `fluidlite.optimizer.SGDOptimizer`."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        parameters: Any = None,
        weight_decay: float | WeightDecayRegularizer | None = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameters, _regularizer(weight_decay), grad_clip, name)


class Momentum(optimizer.MomentumOptimizer):
    """See `fluidlite.optimizer.MomentumOptimizer`."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        momentum: float = 0.9,
        parameters: Any = None,
        use_nesterov: bool = False,
        weight_decay: float | WeightDecayRegularizer | None = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, momentum, parameters, use_nesterov, _regularizer(weight_decay), grad_clip, name)


class Adagrad(optimizer.AdagradOptimizer):
    """See `fluidlite.optimizer.AdagradOptimizer`."""

    def __init__(
        self,
        learning_rate: Any,
        epsilon: float = 1e-6,
        parameters: Any = None,
        weight_decay: float | WeightDecayRegularizer | None = None,
        grad_clip: Any = None,
        name: str | None = None,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        super().__init__(
            learning_rate,
            epsilon,
            parameters,
            _regularizer(weight_decay),
            grad_clip,
            name,
            initial_accumulator_value,
        )


class Adam(optimizer.AdamOptimizer):
    """See `fluidlite.optimizer.AdamOptimizer`."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameters: Any = None,
        weight_decay: float | WeightDecayRegularizer | None = None,
        grad_clip: Any = None,
        lazy_mode: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            learning_rate,
            beta1,
            beta2,
            epsilon,
            parameters,
            _regularizer(weight_decay),
            grad_clip,
            name,
            lazy_mode,
        )
