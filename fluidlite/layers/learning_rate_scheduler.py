"""Learning-rate schedules: ops that compute the rate of each step from a counter of steps.

Each function appends its ops to the default main program and returns the rate, [1] float32, for an optimizer's
``learning_rate``. The first run is step 0 (`noam_decay`: 1); all schedules of a program share the counter
``@LR_DECAY_COUNTER@``, which the startup program sets and the main program's first op increments. The ops carry the
role LRSched, so a transpiler can move them to where the optimizer ops run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

from fluidlite import framework, unique_name
from fluidlite.core import names
from fluidlite.core.ir import OpRole
from fluidlite.errors import ProgramError
from fluidlite.framework import Variable, op_role
from fluidlite.layers import ops
from fluidlite.layers.control_flow import Switch, autoincreased_step_counter
from fluidlite.layers.math import elementwise_min
from fluidlite.layers.tensor import assign, cast, create_global_var, fill_constant

P = ParamSpec("P")

__all__ = [
    "cosine_decay",
    "exponential_decay",
    "inverse_time_decay",
    "linear_lr_warmup",
    "natural_exp_decay",
    "noam_decay",
    "piecewise_decay",
    "polynomial_decay",
]


def _schedule(function: Callable[P, Variable]) -> Callable[P, Variable]:
    """Every op that ``function`` appends gets the role of a schedule."""

    @wraps(function)
    def scheduled(*args: P.args, **kwargs: P.kwargs) -> Variable:
        with op_role(OpRole.LR_SCHED):
            return function(*args, **kwargs)

    return scheduled


def _step(first: int = 0) -> Any:
    """The number of the step as float32 [1], ``first`` in the first run. (Any: operators on Variables append ops.)"""
    return cast(autoincreased_step_counter(names.LR_COUNTER, begin=first), "float32")


def _floor_if(staircase: bool, value: Any) -> Any:
    return ops.floor(value) if staircase else value


@_schedule
def noam_decay(d_model: int, warmup_steps: int, learning_rate: float = 1.0) -> Variable:
    """``learning_rate * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)``, step from 1.

    Source: Vaswani et al., arXiv:1706.03762, section 5.3.
    """
    _check_positive(d_model=d_model, warmup_steps=warmup_steps)
    step = _step(first=1)
    falling = step**-0.5
    rising = step * warmup_steps**-1.5
    smaller: Any = elementwise_min(falling, rising)
    rate: Variable = smaller * (learning_rate * d_model**-0.5)
    return rate


@_schedule
def exponential_decay(learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False) -> Variable:
    """``learning_rate * decay_rate^(step / decay_steps)``; ``staircase`` rounds the exponent down."""
    _check_positive(decay_steps=decay_steps)
    rate: Variable = decay_rate ** _floor_if(staircase, _step() / decay_steps) * learning_rate
    return rate


@_schedule
def natural_exp_decay(learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False) -> Variable:
    """``learning_rate * exp(-decay_rate * step / decay_steps)``; ``staircase`` rounds ``step / decay_steps`` down."""
    _check_positive(decay_steps=decay_steps)
    shrinking: Any = ops.exp(_floor_if(staircase, _step() / decay_steps) * -decay_rate)
    rate: Variable = shrinking * learning_rate
    return rate


@_schedule
def inverse_time_decay(learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False) -> Variable:
    """``learning_rate / (1 + decay_rate * step / decay_steps)``; ``staircase`` rounds ``step / decay_steps`` down."""
    _check_positive(decay_steps=decay_steps)
    rate: Variable = learning_rate / (_floor_if(staircase, _step() / decay_steps) * decay_rate + 1.0)
    return rate


@_schedule
def polynomial_decay(
    learning_rate: float,
    decay_steps: int,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> Variable:
    """``(learning_rate - end) * (1 - step / decay_steps)^power + end``, ``end`` from ``decay_steps`` on.

    ``cycle``: ``decay_steps`` grows instead, to the next multiple that the step has not passed.
    """
    _check_positive(decay_steps=decay_steps)
    step = _step()
    if cycle:
        cycles: Any = ops.ceil(step / decay_steps)
        zero, one = fill_constant([1], "float32", 0.0), fill_constant([1], "float32", 1.0)
        with Switch() as switch, switch.case(step == zero):
            assign(one, cycles)
        passed = step / (cycles * decay_steps)
    else:
        bounded: Any = elementwise_min(step, fill_constant([1], "float32", float(decay_steps)))
        passed = bounded / decay_steps
    rate: Variable = (1.0 - passed) ** power * (learning_rate - end_learning_rate) + end_learning_rate
    return rate


@_schedule
def piecewise_decay(boundaries: Sequence[int], values: Sequence[float]) -> Variable:
    """``values[i]`` while the step is below ``boundaries[i]``, afterwards the last of ``values`` (one more)."""
    if len(values) != len(boundaries) + 1:
        raise ProgramError(
            f"piecewise_decay needs one value more than boundaries, not {len(values)} values and {len(boundaries)} boundaries"
        )
    if list(boundaries) != sorted(set(boundaries)):
        raise ProgramError(f"the boundaries of piecewise_decay must increase, not {list(boundaries)}")
    step = _step()
    rate = _global_rate("learning_rate")
    with Switch() as switch:
        for boundary, value in zip(boundaries, values, strict=False):
            limit = fill_constant([1], "float32", float(boundary), force_cpu=True)
            constant = fill_constant([1], "float32", float(value))
            with switch.case(step < limit):
                assign(constant, rate)
        last = fill_constant([1], "float32", float(values[-1]))
        with switch.default():
            assign(last, rate)
    return rate


@_schedule
def cosine_decay(learning_rate: float, step_each_epoch: int, epochs: int) -> Variable:
    """``learning_rate / 2 * (cos(epoch * pi / epochs) + 1)``, ``epoch = floor(step / step_each_epoch)``.

    Source: Loshchilov and Hutter, arXiv:1608.03983, without restarts.
    """
    _check_positive(step_each_epoch=step_each_epoch, epochs=epochs)
    epoch: Any = ops.floor(_step() / step_each_epoch)
    wave: Any = ops.cos(epoch * math.pi / epochs)
    rate: Variable = (wave + 1.0) * (learning_rate * 0.5)
    return rate


@_schedule
def linear_lr_warmup(learning_rate: float | Variable, warmup_steps: int, start_lr: float, end_lr: float) -> Variable:
    """From ``start_lr`` to ``end_lr`` in ``warmup_steps`` steps, then ``learning_rate``, a number or a schedule."""
    _check_positive(warmup_steps=warmup_steps)
    rate = _global_rate("learning_rate_warmup")
    step = _step()
    with Switch() as switch:
        with switch.case(step < warmup_steps):
            assign(step / warmup_steps * (end_lr - start_lr) + start_lr, rate)
        with switch.default():
            if not isinstance(learning_rate, Variable):
                learning_rate = fill_constant([1], "float32", float(learning_rate))
            assign(learning_rate, rate)
    return rate


def _global_rate(name: str) -> Variable:
    """A persistable [1] variable that a Switch assigns; a second schedule of its kind gets a name of its own."""
    if framework.default_main_program().global_block().has_var(name):
        name = unique_name.generate(name)
    return create_global_var([1], 0.0, "float32", persistable=True, name=name)


def _check_positive(**arguments: float) -> None:
    for name, value in arguments.items():
        if not value > 0:
            raise ProgramError(f"a learning-rate schedule needs {name} > 0, not {value!r}")
