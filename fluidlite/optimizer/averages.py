"""Around an optimizer: averages of parameters to evaluate with, and slow weights that follow the fast ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import numpy as np

from fluidlite import framework, layers, unique_name
from fluidlite.core.ir import OpRole
from fluidlite.errors import ProgramError
from fluidlite.framework import Block, Operator, Parameter, Program, Variable, name_scope, op_role, program_guard
from fluidlite.optimizer.base import Optimizer, ParamGrad, persistable
from fluidlite.regularizer import WeightDecayRegularizer

_SUMS: Final = ("sum_1", "sum_2", "sum_3")
_COUNTS: Final = ("num_accumulates", "old_num_accumulates", "num_updates")
_STEPS: Final = "@EMA_STEP_COUNTER@"


class Runner(Protocol):
    """The part of an executor that is used."""

    def run(self, program: Program) -> Any:
        """One step."""


class _Swap:
    """Two programs: one puts other values in the place of parameters and keeps theirs, the other puts them back."""

    def __init__(self) -> None:
        self.apply_program = Program()
        self.restore_program = Program()

    def _keep(self, param: Variable, kept: Variable) -> None:
        """Append to both programs what keeps a parameter in ``kept``."""
        with program_guard(self.apply_program, Program()):
            block = self.apply_program.global_block()
            layers.assign(twin(block, param), twin(block, kept, param.shape))
        with program_guard(self.restore_program, Program()):
            block = self.restore_program.global_block()
            layers.assign(twin(block, kept, param.shape), twin(block, param))

    @contextmanager
    def apply(self, executor: Runner, need_restore: bool = True) -> Iterator[None]:
        """The parameters have the averages inside the ``with``, and afterwards too without ``need_restore``."""
        executor.run(self.apply_program)
        try:
            yield
        finally:
            if need_restore:
                self.restore(executor)

    def restore(self, executor: Runner) -> None:
        """Give the parameters back what they had before `apply`."""
        executor.run(self.restore_program)


class ModelAverage(_Swap):
    """The mean of each parameter over the last steps: those of a window that is ``average_window_rate`` of all steps, at
    least ``min_average_window`` and at most ``max_average_window`` long (see the op `average_accumulates`).

    Made after ``minimize``, in the program that trains. ``regularization`` is Fluid's and not used.
    """

    def __init__(
        self,
        average_window_rate: float,
        min_average_window: int = 10000,
        max_average_window: int = 10000,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._attrs = {
            "average_window": average_window_rate,
            "min_average_window": min_average_window,
            "max_average_window": max_average_window,
        }
        self._name = name
        averaged = [param for param in framework.default_main_program().all_parameters() if param.do_model_average]
        kept = [_temporary(param, f"{param.name}.tmp") for param in averaged]
        for param, backup in zip(averaged, kept, strict=True):
            with op_role(OpRole.OPTIMIZE, [param, backup]), name_scope("move_average"):
                state = self._accumulate(param)
            self._keep(param, backup)
            with program_guard(self.apply_program, Program()):
                self._average(param, state)

    def _accumulate(self, param: Parameter) -> dict[str, Variable]:
        """The sums and counts of a parameter, and the op that keeps them."""
        prefix = f"{param.name}_{self._name}" if self._name else param.name
        state = {}
        for key in (*_SUMS, *_COUNTS):
            shape, dtype = (param.shape, param.dtype) if key in _SUMS else ((1,), "int64")
            state[key] = persistable(param.program, unique_name.generate(f"{prefix}_{key}"), shape, dtype, 0.0)
        inputs = {"param": param, **{f"in_{key}": var for key, var in state.items()}}
        outputs = {f"out_{key}": var for key, var in state.items()}
        param.program.global_block().append_op("average_accumulates", inputs, outputs, self._attrs, stop_gradient=True)
        for var in state.values():
            var.stop_gradient = False  # as in Fluid
        return state

    def _average(self, param: Parameter, state: dict[str, Variable]) -> None:
        block = self.apply_program.global_block()
        counts = [twin(block, state[key]) for key in _COUNTS]
        count = layers.sum(counts[:2])
        total = layers.sum([twin(block, state[key]) for key in _SUMS])
        count, total = layers.cast(count, param.dtype), layers.cast(total, param.dtype)
        block.append_op("elementwise_div", {"X": total, "Y": count}, {"Out": twin(block, param)})


class ExponentialMovingAverage(_Swap):
    """``ema = decay * ema + (1 - decay) * parameter`` at each step, corrected for its start from zero when it is used.

    Call `update` after ``minimize``, which appends the step to the program. ``thres_steps``, a variable of the number of
    steps t, limits the decay to (1 + t) / (10 + t).
    """

    def __init__(self, decay: float = 0.999, thres_steps: Variable | None = None, name: str | None = None) -> None:
        super().__init__()
        self._name = name or ""
        self._decay = self._decay_variable(decay, thres_steps)
        params = [param for param in framework.default_main_program().all_parameters() if param.do_model_average]
        kept = [_temporary(param, f"{self._name}{param.name}.ema_tmp") for param in params]
        self._averages: list[tuple[Parameter, Variable, Variable]] = []
        for param, backup in zip(params, kept, strict=True):
            with op_role(OpRole.OPTIMIZE, [param, backup]), name_scope("moving_average"):
                name_ = unique_name.generate(f"{self._name}{param.name}_ema")
                average = layers.create_global_var(param.shape, 0.0, param.dtype, persistable=True, name=name_)
            self._averages.append((param, backup, average))
        with program_guard(self.apply_program):  # the startup program sets the counter, too
            power, steps = self._power_of_decay()
        for param, backup, average in self._averages:
            self._keep(param, backup)
            with program_guard(self.apply_program, Program()):
                block = self.apply_program.global_block()
                # nothing to correct before the first step; asked for each parameter, so that the temporaries of `update`
                # have the names that Fluid gives them
                start = layers.elementwise_mul(power, layers.cast(steps > 0, "float32"))
                layers.assign(twin(block, average) / (1.0 - start), twin(block, param))

    def _decay_variable(self, decay: float, steps: Variable | None) -> Variable:
        with op_role(OpRole.LR_SCHED):
            made = layers.create_global_var([1], decay, "float32", persistable=True, name="scheduled_ema_decay_rate")
            if steps is not None:
                limited = (steps + 1.0) / (steps + 10.0)
                with layers.Switch() as switch:
                    with switch.case(limited < decay):
                        layers.assign(limited, made)
                    with switch.default():
                        layers.assign(np.float32([decay]), made)  # type: ignore[arg-type]
        return made

    def _power_of_decay(self) -> tuple[Variable, Variable]:
        """(``decay ** steps``, the steps)."""
        block = self.apply_program.global_block()
        counter = layers.create_global_var([1], 0, "int64", persistable=True, name=_STEPS)
        steps = layers.cast(counter, "float32")
        return layers.elementwise_pow(twin(block, self._decay), steps), steps

    def update(self) -> None:
        """Append the step of all averages to the default main program."""
        layers.autoincreased_step_counter(counter_name=_STEPS)
        for param, backup, average in self._averages:
            with op_role(OpRole.OPTIMIZE, [param, backup]), name_scope("moving_average"):
                layers.assign(average * self._decay + param * (1 - self._decay), average)


class LookaheadOptimizer:
    """After every ``k`` steps of ``inner_optimizer``: ``slow = alpha * fast + (1 - alpha) * slow``, and fast = slow.

    Source: Zhang et al., NeurIPS 2019.
    """

    def __init__(self, inner_optimizer: Optimizer, alpha: float = 0.5, k: int = 5) -> None:
        if not isinstance(inner_optimizer, Optimizer):
            raise ProgramError(f"LookaheadOptimizer needs an optimizer, not {type(inner_optimizer).__name__}")
        if not 0.0 <= alpha <= 1.0:
            raise ProgramError(f"LookaheadOptimizer: alpha must be from 0 to 1, not {alpha}")
        if not isinstance(k, int) or k < 1:
            raise ProgramError(f"LookaheadOptimizer: k must be a positive whole number, not {k!r}")
        self.inner_optimizer = inner_optimizer
        self.alpha = alpha
        self.k = k

    def minimize(
        self, loss: Variable, startup_program: Program | None = None
    ) -> tuple[list[Operator], list[ParamGrad]]:
        """As `Optimizer.minimize`, with the slow weights."""
        done = self.inner_optimizer.minimize(loss, startup_program)
        with program_guard(loss.program, startup_program):
            slow = [(param, _slow(param)) for param in loss.program.all_parameters()]
            self._follow(slow)
        return done

    def _follow(self, slow: list[tuple[Parameter, Variable]]) -> None:
        k = layers.create_global_var([1], self.k, "int32", persistable=True, name="lookahead_k")
        alpha = layers.create_global_var([1], self.alpha, "float32", persistable=True, name="lookahead_alpha")
        step = layers.create_global_var([1], 0, "int32", persistable=True, name="lookahead_step")
        with op_role(OpRole.OPTIMIZE):
            layers.increment(step, 1.0)
            rest = layers.elementwise_mod(step, k)
            with layers.Switch() as switch, switch.case(layers.equal(rest, layers.zeros_like(rest))):
                for fast, kept in slow:
                    mixed = fast * alpha + kept * (1.0 - alpha)
                    layers.assign(mixed, kept)
                    layers.assign(mixed, fast)


class RecomputeOptimizer:
    """An optimizer whose forward values may be computed again for the backward pass, to save memory.

    `_set_checkpoints` says which ones are kept; here all are, and the results are the same.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ProgramError(f"RecomputeOptimizer needs an optimizer, not {type(optimizer).__name__}")
        self._optimizer = optimizer

    def _set_checkpoints(self, checkpoints: list[Variable]) -> None:
        """Kept for Fluid's sake."""

    def __getattr__(self, name: str) -> Any:
        """``minimize`` and all else are the optimizer's."""
        if name == "_optimizer":
            raise AttributeError(name)
        return getattr(self._optimizer, name)


def _slow(param: Parameter) -> Variable:
    """The slow weights of a parameter: its first value at first."""
    name = f"{param.name}@SLOW"
    startup = framework.default_startup_program().global_block()
    made = startup.create_var(name, param.dtype, param.shape, persistable=True)
    startup.append_op("assign", {"X": param.name}, {"Out": made})
    return param.program.global_block().create_var(name, param.dtype, param.shape, persistable=True)


def _temporary(param: Parameter, key: str) -> Variable:
    """A variable like a parameter, in its program."""
    name = unique_name.generate(key)
    return param.program.global_block().create_var(name, param.dtype, stop_gradient=True)


def twin(block: Block, var: Variable, shape: Sequence[int] | None = None) -> Variable:
    """The same variable in another program, where it lives across runs. ``shape``: where it has none of its own."""
    return block.create_var(var.name, var.dtype, shape or var.shape, var.lod_level, persistable=True)
