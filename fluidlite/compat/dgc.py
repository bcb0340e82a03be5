"""``fluid.optimizer.DGCMomentumOptimizer``: momentum whose gradients devices exchange in part."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from fluidlite.clip import GradientClipBase
from fluidlite.framework import Variable, VarOrName
from fluidlite.optimizer import MomentumOptimizer
from fluidlite.regularizer import WeightDecayRegularizer


class DGCMomentumOptimizer(MomentumOptimizer):
    """Momentum. Fluid sends only the largest part of a gradient from GPU to GPU, from step ``rampup_begin_step`` on; here
    nothing is left out, of which a warning tells."""

    def __init__(
        self,
        learning_rate: float | Variable,
        momentum: float,
        rampup_begin_step: int,
        rampup_step: int = 1,
        sparsity: Sequence[float] = (0.999,),
        parameter_list: Sequence[VarOrName] | None = None,
        use_nesterov: bool = False,
        num_trainers: int | None = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        warnings.warn(
            "DGCMomentumOptimizer is MomentumOptimizer here: gradients are used whole", UserWarning, stacklevel=2
        )
        super().__init__(learning_rate, momentum, parameter_list, use_nesterov, regularization, grad_clip, name)
