"""What trainers tell their event handlers: of ``paddle.event`` and of ``fluid.Trainer``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "BeginIteration",
    "BeginPass",
    "EndForwardBackward",
    "EndIteration",
    "EndPass",
    "TestResult",
    "WithMetric",
]


class WithMetric:
    """An event that carries metrics by name."""

    def __init__(self, evaluator: Mapping[str, float] | None = None) -> None:
        self.metrics: dict[str, float] = dict(evaluator or {})


class TestResult(WithMetric):
    """What a test of the model found."""

    def __init__(self, evaluator: Mapping[str, float] | None, cost: float) -> None:
        super().__init__(evaluator)
        self.cost = cost


class BeginPass:
    """A pass over the data begins."""

    def __init__(self, pass_id: int) -> None:
        self.pass_id = pass_id


class EndPass(WithMetric):
    """A pass over the data ended."""

    def __init__(self, pass_id: int, evaluator: Mapping[str, float] | None = None, gm: object = None) -> None:
        super().__init__(evaluator)
        self.pass_id = pass_id
        self.gm = gm


class BeginIteration:
    """A batch begins."""

    def __init__(self, pass_id: int, batch_id: int) -> None:
        self.pass_id = pass_id
        self.batch_id = batch_id


class EndForwardBackward:
    """The gradients of a batch are there."""

    def __init__(self, pass_id: int, batch_id: int, gm: object = None) -> None:
        self.pass_id = pass_id
        self.batch_id = batch_id
        self.gm = gm


class EndIteration(WithMetric):
    """A batch ended."""

    def __init__(
        self,
        pass_id: int,
        batch_id: int,
        cost: float,
        evaluator: Mapping[str, float] | None = None,
        gm: object = None,
    ) -> None:
        super().__init__(evaluator)
        self.pass_id = pass_id
        self.batch_id = batch_id
        self.cost = cost
        self.gm = gm


class BeginEpochEvent:
    """`fluid.Trainer` begins an epoch."""

    def __init__(self, epoch_id: int) -> None:
        self.epoch = epoch_id


class EndEpochEvent:
    """`fluid.Trainer` ended an epoch."""

    def __init__(self, epoch_id: int) -> None:
        self.epoch = epoch_id


class BeginStepEvent:
    """`fluid.Trainer` begins a step. A handler sets ``fetch_metrics`` False where it does not need them."""

    def __init__(self, epoch_id: int, step_id: int) -> None:
        self.epoch = epoch_id
        self.step = step_id
        self.fetch_metrics = True


class EndStepEvent:
    """`fluid.Trainer` ended a step; ``metrics`` are the values of what ``train_func`` returned."""

    def __init__(self, epoch_id: int, step_id: int, metrics: Sequence[Any]) -> None:
        self.epoch = epoch_id
        self.step = step_id
        self.metrics = metrics
