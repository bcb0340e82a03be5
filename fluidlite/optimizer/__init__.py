"""Optimizers: `minimize` appends gradients, clips, regularization and one optimizer op per parameter.

A class here says which op it uses and with which attributes; everything else (accumulators and their first values,
what it can train) is read off the op's record. A parameter may be dense, have SelectedRows gradients, or be a
distributed table: it is always the same op that trains it.
"""

from __future__ import annotations

from typing import Any

from fluidlite.layers import left_out
from fluidlite.optimizer.averages import (
    ExponentialMovingAverage,
    LookaheadOptimizer,
    ModelAverage,
    RecomputeOptimizer,
)
from fluidlite.optimizer.base import Optimizer
from fluidlite.optimizer.rules import (
    AdadeltaOptimizer,
    AdagradOptimizer,
    AdamaxOptimizer,
    AdamOptimizer,
    AdamWOptimizer,
    DecayedAdagradOptimizer,
    DpsgdOptimizer,
    FtrlOptimizer,
    LambOptimizer,
    LarsMomentumOptimizer,
    MomentumOptimizer,
    RMSPropOptimizer,
    SGDOptimizer,
)

SGD = SGDOptimizer
Momentum = MomentumOptimizer
LarsMomentum = LarsMomentumOptimizer
Adagrad = AdagradOptimizer
Adam = AdamOptimizer
AdamW = AdamWOptimizer
Adamax = AdamaxOptimizer
Dpsgd = DpsgdOptimizer
DecayedAdagrad = DecayedAdagradOptimizer
Adadelta = AdadeltaOptimizer
RMSProp = RMSPropOptimizer
Ftrl = FtrlOptimizer
Lamb = LambOptimizer

__all__ = [
    "SGD",
    "Adadelta",
    "AdadeltaOptimizer",
    "Adagrad",
    "AdagradOptimizer",
    "Adam",
    "AdamOptimizer",
    "AdamW",
    "AdamWOptimizer",
    "Adamax",
    "AdamaxOptimizer",
    "DecayedAdagrad",
    "DecayedAdagradOptimizer",
    "Dpsgd",
    "DpsgdOptimizer",
    "ExponentialMovingAverage",
    "Ftrl",
    "FtrlOptimizer",
    "Lamb",
    "LambOptimizer",
    "LarsMomentum",
    "LarsMomentumOptimizer",
    "LookaheadOptimizer",
    "ModelAverage",
    "Momentum",
    "MomentumOptimizer",
    "Optimizer",
    "RMSProp",
    "RMSPropOptimizer",
    "RecomputeOptimizer",
    "SGDOptimizer",
]

_LEFT_OUT = {"PipelineOptimizer": "it spreads a program over devices; trainers here run the whole of it"}


def __getattr__(name: str) -> Any:
    raise left_out.refuse("optimizer", name, _LEFT_OUT)
