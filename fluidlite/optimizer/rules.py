"""The update rules. A class says which op it uses and with which attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from fluidlite.clip import GradientClipBase
from fluidlite.core.ir import OpRole
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError
from fluidlite.framework import Block, Parameter, Variable, name_scope, op_role
from fluidlite.ops.registry import Accumulator
from fluidlite.optimizer import rows
from fluidlite.optimizer.base import Optimizer, ParameterList, ParamGrad
from fluidlite.optimizer.rows import LazyForms
from fluidlite.regularizer import L2Decay, Mode, WeightDecayRegularizer


class SGDOptimizer(Optimizer):
    """``p -= lr * g``."""

    op_type = "sgd"
    lazy = LazyForms(frozenset({"gradient", "proximal", "multiplicative"}))


class MomentumOptimizer(Optimizer):
    """``v = momentum * v + g``; ``p -= lr * v``, with ``use_nesterov`` ``p -= lr * (g + momentum * v)``.

    A SelectedRows gradient moves every row of a dense parameter, but only its rows of a table.
    Source: Sutskever et al., ICML 2013.
    """

    op_type = "momentum"
    lazy = LazyForms(
        frozenset({"gradient", "proximal"}),
        "a factor before the update is not told apart from the velocity's step behind it",
        op="lazy_momentum",
        attrs=("mu", "use_nesterov"),
        moves=True,
    )

    def __init__(
        self,
        learning_rate: float | Variable,
        momentum: float,
        parameter_list: ParameterList = None,
        use_nesterov: bool = False,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            learning_rate, parameter_list, regularization, grad_clip, name, mu=momentum, use_nesterov=use_nesterov
        )


class LarsMomentumOptimizer(Optimizer):
    """Momentum with a learning rate per parameter, ``lr * lars_coeff * |p| / (|g| + lars_weight_decay * |p|)``.

    Needs norms of the whole parameter: dense parameters only. Source: You et al., arXiv:1708.03888.
    """

    op_type = "lars_momentum"

    def __init__(
        self,
        learning_rate: float | Variable,
        momentum: float,
        lars_coeff: float = 0.001,
        lars_weight_decay: float = 0.0005,
        parameter_list: ParameterList = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            learning_rate,
            parameter_list,
            regularization,
            grad_clip,
            name,
            mu=momentum,
            lars_coeff=lars_coeff,
            lars_weight_decay=lars_weight_decay,
        )


class AdagradOptimizer(Optimizer):
    """``m += g^2``; ``p -= lr * g / (sqrt(m) + epsilon)``; m starts at ``initial_accumulator_value``.

    A SelectedRows gradient moves its rows only. Source: Duchi et al., JMLR 12 (2011), with epsilon.
    """

    op_type = "adagrad"
    lazy = LazyForms(
        frozenset({"proximal", "multiplicative"}),
        "decay in the gradient enters the accumulator, by which every later step is divided: no closed form",
    )

    def __init__(
        self,
        learning_rate: float | Variable,
        epsilon: float = 1e-6,
        parameter_list: ParameterList = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name, epsilon=epsilon)
        self.initial_accumulator_value = initial_accumulator_value

    def first_value(self, _acc: Accumulator, _param: Parameter, /) -> float:
        return self.initial_accumulator_value


class AdamOptimizer(Optimizer):
    """``m1``, ``m2``: decaying averages of g and g^2; ``p -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m1 / (sqrt(m2) + epsilon)``.

    A SelectedRows gradient moves every row of a dense parameter as a dense gradient with zeros would; with ``lazy_mode``,
    and always on a table, its rows only. The step t counts every step. Source: Kingma and Ba, arXiv:1412.6980.
    """

    op_type = "adam"
    whole_device = "cpu"
    lazy = LazyForms(
        why_not="decay in the gradient enters both moments, whose ratio every later step takes: no closed form; use AdamW, "
        "which decays beside the moments"
    )

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameter_list: ParameterList = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
        lazy_mode: bool = False,
    ) -> None:
        super().__init__(
            learning_rate,
            parameter_list,
            regularization,
            grad_clip,
            name,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            lazy_mode=lazy_mode,
        )


class AdamWOptimizer(AdamOptimizer):
    """Adam with weight decay beside the moments: ``p *= 1 - lr * weight_decay`` before Adam's step.

    ``decay_mode``: which rows of tables and ``is_sparse`` parameters decay, see `fluidlite.regularizer`. A parameter's own
    regularizer takes the place of the decay. Source: Loshchilov and Hutter, arXiv:1711.05101.
    """

    lazy = LazyForms(
        frozenset({"proximal", "multiplicative"}),
        "decay in the gradient enters both moments, whose ratio every later step takes: no closed form",
    )

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.01,
        parameter_list: ParameterList = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
        lazy_mode: bool = False,
        decay_mode: Mode | None = None,
    ) -> None:
        decay = L2Decay(weight_decay, decay_mode, form="multiplicative")
        super().__init__(learning_rate, beta1, beta2, epsilon, parameter_list, decay, grad_clip, name, lazy_mode)


class AdamaxOptimizer(Optimizer):
    """Adam with the largest recent |g| in place of its root mean square: ``u = max(|g|, beta2 * u + epsilon)``.

    Source: Kingma and Ba, arXiv:1412.6980, section 7.1.
    """

    op_type = "adamax"

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        parameter_list: ParameterList = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            learning_rate, parameter_list, regularization, grad_clip, name, beta1=beta1, beta2=beta2, epsilon=epsilon
        )
        self.beta1 = beta1

    def _finish_update(self, block: Block, pairs: Sequence[ParamGrad]) -> None:
        """The op itself does not advance beta1's power."""
        for param, grad in pairs:
            power = self.accumulators_of(param)["Beta1Pow"]
            with op_role(OpRole.OPTIMIZE, [param, grad]), name_scope("adamx"):
                block.append_op("scale", {"X": power}, {"Out": power}, {"scale": self.beta1})


class DpsgdOptimizer(Optimizer):
    """Differentially private SGD: ``p -= lr * (g / max(1, |g| / clip) + sigma * noise / batch_size)``.

    Needs the norm of the whole gradient: dense parameters only. Source: Abadi et al., arXiv:1607.00133.
    """

    op_type = "dpsgd"

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        clip: float = 0.9,
        batch_size: float = 0.999,
        sigma: float = 1e-8,
        parameter_list: ParameterList = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, clip=clip, batch_size=batch_size, sigma=sigma)


class DecayedAdagradOptimizer(Optimizer):
    """``m = decay * m + (1 - decay) * g^2``; ``p -= lr * g / (sqrt(m) + epsilon)``."""

    op_type = "decayed_adagrad"

    def __init__(
        self,
        learning_rate: float | Variable,
        decay: float = 0.95,
        epsilon: float = 1e-6,
        parameter_list: ParameterList = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name, decay=decay, epsilon=epsilon)


class AdadeltaOptimizer(Optimizer):
    """``p += u``, ``u = -sqrt((d + epsilon) / (s + epsilon)) * g``; s, d: decaying averages (``rho``) of g^2 and u^2.

    The learning rate has no part in it, as in Fluid. Source: Zeiler, arXiv:1212.5701, algorithm 1.
    """

    op_type = "adadelta"

    def __init__(
        self,
        learning_rate: float | Variable,
        epsilon: float = 1e-6,
        rho: float = 0.95,
        parameter_list: ParameterList = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, parameter_list, regularization, grad_clip, name, epsilon=epsilon, rho=rho)


class RMSPropOptimizer(Optimizer):
    """``s = rho * s + (1 - rho) * g^2``; ``v = momentum * v + lr * g / sqrt(s + epsilon)``; ``p -= v``.

    ``centered`` subtracts the squared average of g from s. A SelectedRows gradient moves every row of a dense
    parameter, but only its rows of a table. Source: Hinton's lecture 6; centered: Graves, arXiv:1308.0850.
    """

    op_type = "rmsprop"

    def __init__(
        self,
        learning_rate: float | Variable,
        rho: float = 0.95,
        epsilon: float = 1e-6,
        momentum: float = 0.0,
        centered: bool = False,
        parameter_list: ParameterList = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            learning_rate,
            parameter_list,
            regularization,
            grad_clip,
            name,
            decay=rho,
            epsilon=epsilon,
            momentum=momentum,
            centered=centered,
        )


class FtrlOptimizer(Optimizer):
    """Follow the regularized leader, with L1 (``l1``) and L2 (``l2``) penalties that give exact zeros.

    A row of a table that is skipped stays as it is; with ``mode="lazy"`` it follows the learning rate, as a dense row
    without gradient does, when it is next used. Source: McMahan et al., KDD 2013, algorithm 1; ``lr_power`` -0.5 is its
    square root.
    """

    op_type = "ftrl"
    lazy = LazyForms(
        why_not="the value is the minimiser of the accumulators, and another decay of it is lost with the next update; "
        "Ftrl(l1=, l2=, mode='lazy') is exact",
        op="lazy_ftrl",
        attrs=("l1", "l2", "lr_power"),
    )

    def __init__(
        self,
        learning_rate: float | Variable,
        l1: float = 0.0,
        l2: float = 0.0,
        lr_power: float = -0.5,
        parameter_list: ParameterList = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        name: str | None = None,
        mode: Literal["touched", "lazy"] = "touched",
    ) -> None:
        super().__init__(
            learning_rate, parameter_list, regularization, grad_clip, name, l1=l1, l2=l2, lr_power=lr_power
        )
        if mode not in ("touched", "lazy"):
            raise ProgramError(f"Ftrl: mode must be 'touched' or 'lazy', not {mode!r}")
        self.mode = mode

    def _is_lazy(self, _param: Parameter, grad: Variable) -> bool:
        return self.mode == "lazy" and grad.type is VarKind.SELECTED_ROWS

    def _append_decay(self, block: Block, update: Mapping[str, Any], *, before: bool) -> None:
        super()._append_decay(block, update, before=before)
        if not before and self._is_lazy(update["Param"], update["Grad"]):
            rows.append_clock(block, self.lazy, update, {})


class LambOptimizer(Optimizer):
    """Adam's direction (without bias correction) plus ``lamb_weight_decay * p``, scaled to the parameter's norm.

    ``exclude_from_weight_decay_fn(param) -> bool`` turns the decay off. Needs norms of the whole parameter: refused on
    tables. Source: You et al., arXiv:1904.00962.
    """

    op_type = "lamb"
    whole_device = "cpu"

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        parameter_list: ParameterList = None,
        regularization: WeightDecayRegularizer | None = None,
        grad_clip: GradientClipBase | None = None,
        exclude_from_weight_decay_fn: Callable[[Parameter], bool] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            learning_rate, parameter_list, regularization, grad_clip, name, beta1=beta1, beta2=beta2, epsilon=epsilon
        )
        self.weight_decay = lamb_weight_decay
        self.excludes = exclude_from_weight_decay_fn

    def attrs(self, param: Parameter, /) -> dict[str, Any]:
        excluded = self.excludes is not None and self.excludes(param)
        return {**self._attrs, "weight_decay": 0.0 if excluded else self.weight_decay}
