"""One op that runs an optimizer on many small dense parameters: `fused_sgd`, `fused_momentum`, `fused_adam`.

The executor puts it in place of single ops whose learning rate and attributes are the same. It runs the rule of the
single op on each parameter; what is no dense parameter with a dense gradient goes through the single op's kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array
from fluidlite.errors import UninitializedError
from fluidlite.kernels.updates import Rule, update_arrays
from fluidlite.ops import registry
from fluidlite.ops.adam import adam_rule
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.momentum import momentum_rule
from fluidlite.ops.registry import Case, Kernel, kwarg, register
from fluidlite.ops.sgd import sgd_rule
from fluidlite.ops.updates import number

#: single op -> the one for many parameters
FUSED: Final = {type: f"fused_{type}" for type in ("sgd", "momentum", "adam")}
#: what all parameters share
_SHARED: Final = "LearningRate"
#: input name -> its values, one per parameter
Lists = Mapping[str, list[Any]]


def fused_sgd(ctx: KernelContext, Param: list[Any], Grad: list[Any], LearningRate: Array) -> dict[str, list[Any]]:
    rule = sgd_rule(LearningRate)
    return _update(ctx, {"Param": Param, "Grad": Grad}, {_SHARED: LearningRate}, lambda _: rule)


def fused_momentum(
    ctx: KernelContext,
    Param: list[Any],
    Grad: list[Any],
    Velocity: list[Any],
    LearningRate: Array,
    *,
    mu: float,
    use_nesterov: bool,
) -> dict[str, list[Any]]:
    rule = momentum_rule(number(LearningRate), mu, use_nesterov)
    lists = {"Param": Param, "Grad": Grad, "Velocity": Velocity}
    shared = {_SHARED: LearningRate, "mu": mu, "use_nesterov": use_nesterov}
    return _update(ctx, lists, shared, lambda _: rule)


def fused_adam(
    ctx: KernelContext,
    Param: list[Any],
    Grad: list[Any],
    LearningRate: Array,
    Moment1: list[Any],
    Moment2: list[Any],
    Beta1Pow: list[Array],
    Beta2Pow: list[Array],
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
    lazy_mode: bool,
) -> dict[str, list[Any]]:
    def rule(index: int) -> Rule:
        return adam_rule(LearningRate, Beta1Pow[index], Beta2Pow[index], beta1, beta2, epsilon)

    def powers() -> dict[str, list[Any]]:
        return {
            "Beta1PowOut": [power * beta1 for power in Beta1Pow],
            "Beta2PowOut": [power * beta2 for power in Beta2Pow],
        }

    lists = {"Param": Param, "Grad": Grad, "Moment1": Moment1, "Moment2": Moment2}
    shared = {_SHARED: LearningRate, "Beta1Tensor": None, "Beta2Tensor": None}
    attrs = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "lazy_mode": lazy_mode}
    return _update(ctx, lists, {**shared, **attrs}, rule, {"Beta1Pow": Beta1Pow, "Beta2Pow": Beta2Pow}, powers)


def _update(
    ctx: KernelContext,
    lists: Lists,
    shared: Mapping[str, Any],
    rule: Callable[[int], Rule],
    numbers: Lists | None = None,
    advanced: Callable[[], dict[str, list[Any]]] = dict,
) -> dict[str, list[Any]]:
    """Run ``rule(index)`` on each parameter.

    ``lists``: Param, Grad and the accumulators that the rule changes; ``numbers``: those of one number, and ``advanced``
    gives their new values by output; ``shared``: the single op's other arguments.
    """
    single = _SINGLE[ctx.op.type]
    pairs = {output: source for output, source in single.inplace.items() if ctx.op.outputs.get(output)}
    changed = [values for source, values in lists.items() if source != "Grad"]
    each = list(zip(lists["Grad"], zip(*changed, strict=True), strict=True))
    in_place = all(ctx.op.outputs[output] == ctx.op.inputs[source] for output, source in pairs.items())
    if in_place and all(_are_plain(grad, values) for grad, values in each):
        for index, (grad, values) in enumerate(each):
            update_arrays(rule(index), None, grad, values)
        return {output: lists[source] for output, source in pairs.items() if source in lists} | advanced()
    every = {**lists, **(numbers or {})}
    found = [_alone(ctx, single, index, every, shared) for index in range(len(each))]
    return {output: [result[output] for result in found] for output in pairs}


def _are_plain(grad: Any, values: Sequence[Any]) -> bool:
    """Whether parameter and accumulators are arrays that can change in place, and the gradient an array like them."""
    if type(grad) is not np.ndarray:
        return False
    shape, dtype = grad.shape, grad.dtype
    for value in values:
        if type(value) is not np.ndarray or value.shape != shape or value.dtype != dtype or not value.flags.writeable:
            return False
    return True


def _alone(
    ctx: KernelContext, single: registry.OpDef, index: int, lists: Lists, shared: Mapping[str, Any]
) -> Mapping[str, Any]:
    """What the single op's kernel makes of one parameter."""

    def of_one(arguments: Mapping[str, list[str]]) -> dict[str, list[str]]:
        return {name: given if name == _SHARED else given[index : index + 1] for name, given in arguments.items()}

    op = Operator(single.type, of_one(ctx.op.inputs), of_one(ctx.op.outputs), ctx.op.attrs, ctx.op.origin)
    for name, given in lists.items():
        if given[index] is None:
            raise UninitializedError(
                f"input {name}={op.input(name)!r} of op {ctx.op.type!r} was never written; run the startup program "
                "(after minimize), or feed it"
            )
    kernel = single.kernel
    assert kernel is not None
    own = {kwarg(name): given[index] for name, given in lists.items()}
    result: Mapping[str, Any] = kernel(KernelContext(ctx.program, ctx.block, op), **own, **shared)
    return result


def _infer(ctx: InferContext) -> None:
    for output, source in ctx.op_def.inplace.items():
        for var, out in zip(ctx.inputs(source), ctx.outputs(output), strict=False):
            out.shape, out.dtype, out.lod_level, out.kind = var.shape, var.dtype, var.lod_level, var.kind


def _register(type: str, kernel: Kernel) -> registry.OpDef:
    """Declare the op for many parameters by the record of the single one, whose record is returned."""
    single = registry.get(type)
    example = single.cases[0]
    register(
        FUSED[type],
        doc=f"`{type}` on many dense parameters with one learning rate: each output is what `{type}` makes of the inputs "
        "at its place.",
        inputs=[arg.name if arg.name == _SHARED else f"{arg.name}*" for arg in single.inputs if not arg.optional],
        outputs=[f"{arg.name}*" for arg in single.outputs],
        attrs=single.attrs,
        infer=_infer,
        kernel=kernel,
        sparse=single.sparse,
        inplace=single.inplace,
        cases=(
            Case(
                {name: value if name == _SHARED else [value, value] for name, value in example.inputs.items()},
                example.attrs,
                {name: [value, value] for name, value in example.outputs.items()},
            ),
        ),
    )
    return single


_SINGLE: Final = {
    FUSED[type]: _register(type, kernel)
    for type, kernel in (("sgd", fused_sgd), ("momentum", fused_momentum), ("adam", fused_adam))
}
