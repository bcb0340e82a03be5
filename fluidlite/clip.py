"""Clips of gradients: by value, by norm, by the norm of all gradients together; and clips of errors inside backward.

A SelectedRows gradient is clipped after its duplicate rows are summed, so the result is that of the dense gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

from fluidlite import framework
from fluidlite.core.ir import OpRole
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError
from fluidlite.framework import Block, Operator, Parameter, Program, Variable, VarOrName, name_scope, op_role
from fluidlite.layer_helper import LayerHelper

ParamGrad: TypeAlias = "tuple[Parameter, Variable]"
NeedClip: TypeAlias = "Callable[[Parameter], bool] | None"

#: Fluid's scope names; transpilers know clips of `set_gradient_clip` by the first of the two legacy ones. The second
#: is spelled as Fluid spells it.
_SCOPE = "gradient_clip"
_LEGACY_SCOPE = "gradient_clip_@CLIP"
_LEGACY_SCOPE_OF_RESULTS = "graident_clip_@CLIP"

__all__ = [
    "ErrorClipByValue",
    "GradientClipBase",
    "GradientClipByGlobalNorm",
    "GradientClipByNorm",
    "GradientClipByValue",
    "append_gradient_clip_ops",
    "error_clip_callback",
    "set_gradient_clip",
]


class ErrorClipByValue:
    """Limits the gradient of one variable, on its way back, to [min, max]: ``variable.error_clip = ErrorClipByValue(1.0)``.

    ``min`` defaults to ``-max``.
    """

    def __init__(self, max: float, min: float | None = None) -> None:
        self.max, self.min = _interval(max, min)

    def append_clip_op(self, block: Block, gradient: str) -> None:
        """Append the clip of a gradient, in place. As in Fluid it carries no role."""
        with op_role(OpRole.FORWARD):
            block.append_op("clip", {"X": gradient}, {"Out": gradient}, {"min": self.min, "max": self.max})


def error_clip_callback(block: Block, context: Mapping[str, str]) -> None:
    """A callback of `append_backward`: clips what the last op wrote, where the forward variable asks for it.

    ``context`` maps names of gradients to forward variables.
    """
    for gradient in block.ops[-1].output_arg_names:
        if gradient not in context:
            continue
        clip = block.find_var(context[gradient]).error_clip
        if clip is None:
            continue
        if not isinstance(clip, ErrorClipByValue):
            raise ProgramError(f"error_clip of {context[gradient]!r} must be an ErrorClipByValue, not {clip!r}")
        clip.append_clip_op(block, gradient)


class GradientClipBase:
    """Base of the clips that optimizers take as ``grad_clip``; called with (parameter, gradient) pairs.

    ``need_clip(parameter) -> bool`` leaves parameters out.
    """

    def __init__(self, need_clip: NeedClip = None) -> None:
        if need_clip is not None and not callable(need_clip):
            raise ProgramError(f"need_clip must be a function of a parameter, not {need_clip!r}")
        self.need_clip = need_clip

    def __call__(self, params_grads: Sequence[ParamGrad]) -> list[ParamGrad]:
        """Append the clip of every gradient; returns the pairs with the gradients to use from here on."""
        if not params_grads:
            return []
        block = params_grads[0][1].block
        first = len(block.desc.ops)
        with name_scope(_SCOPE):
            result = self._clip_all(params_grads)
        _point_role_vars_to_results(block.ops[first:], result)
        return result

    def _clip_all(self, params_grads: Sequence[ParamGrad]) -> list[ParamGrad]:
        raise NotImplementedError

    def _wants(self, param: Parameter) -> bool:
        return self.need_clip is None or self.need_clip(param)


class _OneByOne(GradientClipBase):
    """A clip that looks at one gradient at a time."""

    def clip(self, grad: Variable) -> Variable:
        """Append the clip of one gradient."""
        raise NotImplementedError

    def _clip_all(self, params_grads: Sequence[ParamGrad]) -> list[ParamGrad]:
        return [(param, self._clipped(param, grad)) for param, grad in params_grads]

    def _clipped(self, param: Parameter, grad: Variable) -> Variable:
        if not self._wants(param):
            return grad
        with _role_of(param, grad):
            return self.clip(grad)


class GradientClipByValue(_OneByOne):
    """Limits every element of a gradient to [min, max]; ``min`` defaults to ``-max``."""

    def __init__(self, max: float, min: float | None = None, need_clip: NeedClip = None) -> None:
        super().__init__(need_clip)
        self.max, self.min = _interval(max, min)

    def clip(self, grad: Variable) -> Variable:
        return LayerHelper("clip").one("clip", {"X": grad}, {"min": self.min, "max": self.max}, dtype=grad.dtype)


class GradientClipByNorm(_OneByOne):
    """Scales a gradient down to Euclidean norm ``clip_norm`` where it is longer: ``g * clip_norm / |g|``."""

    def __init__(self, clip_norm: float, need_clip: NeedClip = None) -> None:
        super().__init__(need_clip)
        self.clip_norm = _positive_norm(clip_norm)

    def clip(self, grad: Variable) -> Variable:
        return LayerHelper("clip_by_norm").one(
            "clip_by_norm", {"X": grad}, {"max_norm": self.clip_norm}, dtype=grad.dtype
        )


class GradientClipByGlobalNorm(GradientClipBase):
    """Scales all gradients by ``clip_norm / max(norm, clip_norm)``, norm that of all of them together.

    ``group_name`` matters to `set_gradient_clip` only: gradients of one group share a norm.
    Source: Pascanu et al., arXiv:1211.5063.
    """

    def __init__(self, clip_norm: float, group_name: str = "default_group", need_clip: NeedClip = None) -> None:
        super().__init__(need_clip)
        self.clip_norm = _positive_norm(clip_norm)
        self.group_name = group_name

    def _clip_all(self, params_grads: Sequence[ParamGrad]) -> list[ParamGrad]:
        chosen = [(param, grad) for param, grad in params_grads if self._wants(param)]
        if not chosen:
            return list(params_grads)
        squares = []
        for param, grad in chosen:
            with _role_of(param, grad):
                squares.append(sum_of_squares(grad))
        with _role_of(*chosen[-1]):
            norm = norm_from(squares)
            factor = shrinking_factor(self.limit(norm), norm)
        scaled = {}
        for param, grad in chosen:
            with _role_of(param, grad):
                scaled[param.name] = scaled_by(grad, factor)
        return [(param, scaled.get(param.name, grad)) for param, grad in params_grads]

    def limit(self, like: Variable) -> Variable:
        """Append the constant ``clip_norm``, [1], of the dtype of ``like``."""
        from fluidlite.layers.tensor import fill_constant

        return fill_constant([1], like.dtype, self.clip_norm)


def sum_of_squares(grad: Variable) -> Variable:
    """Append the sum of squares of a gradient, [1]; rows of SelectedRows are merged first."""
    if grad.type is VarKind.SELECTED_ROWS:
        for op_type in ("merge_selected_rows", "get_tensor_from_selected_rows"):
            grad = LayerHelper(op_type).one(op_type, {"X": grad}, dtype=grad.dtype)
    square = LayerHelper("square").one("square", {"X": grad}, dtype=grad.dtype)
    return LayerHelper("reduce_sum").one("reduce_sum", {"X": square}, {"reduce_all": True}, dtype=grad.dtype)


def norm_from(squares: Sequence[Variable]) -> Variable:
    """Append the root of the sum of several [1] variables."""
    dtype = squares[0].dtype
    total = LayerHelper("sum").one("sum", {"X": list(squares)}, dtype=dtype)
    return LayerHelper("sqrt").one("sqrt", {"X": total}, dtype=dtype)


def shrinking_factor(limit: Variable, norm: Variable) -> Variable:
    """Append ``limit / max(limit, norm)``, [1]."""
    larger = LayerHelper("elementwise_max").one("elementwise_max", {"X": limit, "Y": norm}, dtype=norm.dtype)
    return LayerHelper("elementwise_div").one("elementwise_div", {"X": limit, "Y": larger}, dtype=norm.dtype)


def scaled_by(grad: Variable, factor: Variable) -> Variable:
    """Append ``grad * factor``, factor [1]; SelectedRows stay SelectedRows."""
    return LayerHelper("elementwise_mul").one("elementwise_mul", {"X": grad, "Y": factor}, dtype=grad.dtype)


def set_gradient_clip(
    clip: GradientClipBase, param_list: Sequence[VarOrName] | None = None, program: Program | None = None
) -> None:
    """Set the clip of parameters (default: all of the program so far) for the next ``minimize``.

    The older way; an optimizer's own ``grad_clip`` wins over it.
    """
    if not isinstance(clip, GradientClipBase):
        raise ProgramError(f"set_gradient_clip needs a GradientClipBy... object, not {clip!r}")
    program = program if program is not None else framework.default_main_program()
    known = {param.name: param for param in program.all_parameters()}
    chosen = list(known) if param_list is None else [framework.name_of(item) for item in param_list]
    for name in chosen:
        if name not in known:
            raise ProgramError(f"set_gradient_clip: {name!r} is no parameter of the program")
        known[name].desc.gradient_clip = clip


def append_gradient_clip_ops(params_grads: Sequence[ParamGrad]) -> list[ParamGrad]:
    """Append the clips that parameters carry from `set_gradient_clip`; returns the pairs with the new gradients."""
    clips = [param.desc.gradient_clip for param, _ in params_grads]
    if not any(clips):
        return list(params_grads)
    block = params_grads[0][1].block
    first = len(block.desc.ops)
    groups = _groups_of(params_grads)
    last = len(block.desc.ops)
    result = []
    for (param, grad), clip in zip(params_grads, clips, strict=True):
        with name_scope(_LEGACY_SCOPE_OF_RESULTS), _role_of(param, grad):
            result.append((param, _legacy_clipped(grad, clip, groups)))
    _point_role_vars_to_results(block.ops[first:last], result)
    return result


class _Group:
    """The gradients that share one norm."""

    def __init__(self, clip: GradientClipByGlobalNorm, like: Variable) -> None:
        self.clip_norm = clip.clip_norm
        self.limit = clip.limit(like)
        self.squares: list[Variable] = []
        self._factor: Variable | None = None

    def factor(self) -> Variable:
        """What to scale with; its ops are appended when it is first asked for."""
        if self._factor is None:
            self._factor = shrinking_factor(self.limit, norm_from(self.squares))
        return self._factor


def _groups_of(params_grads: Sequence[ParamGrad]) -> dict[str, _Group]:
    """Append the squares of all gradients that are clipped by global norm, by group."""
    groups: dict[str, _Group] = {}
    for param, grad in params_grads:
        clip = param.desc.gradient_clip
        with name_scope(_LEGACY_SCOPE), _role_of(param, grad):
            if not isinstance(clip, GradientClipByGlobalNorm):
                continue
            group = groups.get(clip.group_name)
            if group is None:
                group = groups[clip.group_name] = _Group(clip, grad)
            if group.clip_norm != clip.clip_norm:
                raise ProgramError(
                    f"gradient clip group {clip.group_name!r} has clip_norm {group.clip_norm}, but parameter "
                    f"{param.name!r} asks for {clip.clip_norm}; give it a group of its own"
                )
            group.squares.append(sum_of_squares(grad))
    return groups


def _legacy_clipped(grad: Variable, clip: GradientClipBase | None, groups: Mapping[str, _Group]) -> Variable:
    if isinstance(clip, GradientClipByGlobalNorm):
        return scaled_by(grad, groups[clip.group_name].factor())
    return clip.clip(grad) if isinstance(clip, _OneByOne) else grad


def _role_of(param: Parameter, grad: Variable) -> AbstractContextManager[None]:
    return op_role(OpRole.OPTIMIZE, [param, grad])


def _point_role_vars_to_results(ops: Sequence[Operator], result: Sequence[ParamGrad]) -> None:
    """Ops were appended with the gradient they start from; what counts for moving them is the gradient they lead to."""
    final = {param.name: grad.name for param, grad in result}
    for op in ops:
        param = op.desc.role_var[0]
        op.set_attr("op_role_var", (param, final[param]))


def _interval(upper: float, lower: float | None) -> tuple[float, float]:
    """(max, min)"""
    upper = float(upper)
    lower = -upper if lower is None else float(lower)
    if lower > upper:
        raise ProgramError(f"a clip to [{lower}, {upper}] is empty")
    return upper, lower


def _positive_norm(value: float) -> float:
    if not float(value) > 0:
        raise ProgramError(f"clip_norm must be positive, not {value!r}")
    return float(value)
