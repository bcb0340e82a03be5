"""The learning rates of a step where they are not those of the schedule alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from fluidlite.core.ir import Block, OpRole, Program
from fluidlite.dtypes import Array
from fluidlite.errors import RequestRefusedError
from fluidlite.ops.modes import Settings
from fluidlite.pserver.policy import Step
from fluidlite.runtime.scope import Scope

_OWN_FACTOR = OpRole.LR_SCHED | OpRole.OPTIMIZE

#: rates may meet float32 parameters
_MOST: Final = float(np.finfo(np.float32).max)


class Rates:
    """Overrides the learning rates of update blocks, step by step.

    A rate that a step carries (``lr_from_trainer``) takes the place of the global one: parameters keep their own factors.
    Of several in a round that of the step which saw the newest version counts, of equals the first trainer's. Staleness
    (``lr_staleness_modulation``) divides whichever rate holds by max(1, version - version seen), also a carried one.
    """

    def __init__(self, program: Program, settings: Settings) -> None:
        self._settings = settings
        self._factors = dict(_own_factors(program))

    def check(self, carried: float | None) -> None:
        """RequestRefusedError for a rate that a step may not carry."""
        if carried is None:
            return
        if not self._settings.lr_from_trainer:
            raise RequestRefusedError(
                "the step carries a learning rate; this server follows its own schedule (lr_from_trainer is off)"
            )
        if not 0 <= carried <= _MOST:
            raise RequestRefusedError(
                f"the step carries the learning rate {carried}; it must be finite, in float32 too, and not below 0"
            )

    def of(self, steps: Mapping[int, Step], version: int) -> Rate:
        """The rate of steps that a server at ``version`` applies together."""
        carried = None
        if self._settings.lr_from_trainer:
            with_rate = [step for step in steps.values() if step.learning_rate is not None]
            carried = max(with_rate, key=lambda step: step.seen).learning_rate if with_rate else None
        staleness = 1
        if self._settings.lr_staleness_modulation:
            staleness = max(1, version - min((step.seen for step in steps.values()), default=version))
        return Rate(carried, staleness, self._factors)


class Rate:
    """What one step of the server makes of learning rates: ``carried`` takes their place, ``staleness`` divides them."""

    def __init__(self, carried: float | None, staleness: int, factors: Mapping[str, float]) -> None:
        self._carried = carried
        self._staleness = staleness
        self._factors = factors

    def feeds(self, scope: Scope, names: frozenset[str]) -> dict[str, Array]:
        """The values to use for learning rates in place of those in the scope, which stay as they are."""
        if self._carried is None and self._staleness == 1:
            return {}
        return {name: self._value(name, scope.get(name)) for name in names}

    def _value(self, name: str, own: Any) -> Array:
        rate = np.asarray(own)
        if self._carried is not None:
            rate = np.full(rate.shape, self._carried * self._factors.get(name, 1.0), rate.dtype)
        return np.asarray(rate / np.asarray(self._staleness, rate.dtype))


def rates_of(block: Block) -> frozenset[str]:
    """The variables that the ops of an update block read as learning rates."""
    return frozenset(name for op in block.ops for name in op.inputs.get("LearningRate", ()))


def _own_factors(program: Program) -> list[tuple[str, float]]:
    """(learning rate, its factor) of the parameters that multiply the global rate by a factor of their own."""
    scaled = [op for _, op in program.all_ops() if op.type == "scale" and op.role == _OWN_FACTOR]
    return [(op.output("Out") or "", op.attr("scale", 1.0)) for op in scaled]
