"""Operators on variables: ``x + y``, ``2 * x``, ``x < y``, ... append ops to the current block of x's program.

The one place that adds methods to `framework.Variable`. ``+ - * /`` with a Python number become a `scale` op; every
other number becomes a constant of the variable's dtype. Between variables the right one is cast to the left one's
dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from fluidlite import unique_name
from fluidlite.dtypes import is_float
from fluidlite.errors import DtypeError, ProgramError
from fluidlite.framework import Variable, user_line
from fluidlite.framework.dtypes import dtype_number

Method: TypeAlias = Callable[[Variable, Any], Variable]
#: scale and bias of the `scale` op that stands for an operator with a number
ScaleOf: TypeAlias = Callable[[float], tuple[float, float]]

#: operator -> op type
_BINARY = {
    "add": "elementwise_add",
    "sub": "elementwise_sub",
    "mul": "elementwise_mul",
    "truediv": "elementwise_div",
    "pow": "elementwise_pow",
    "floordiv": "elementwise_floordiv",
    "mod": "elementwise_mod",
    "lt": "less_than",
    "le": "less_equal",
    "gt": "greater_than",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}
_REFLECTED = ("add", "sub", "mul", "truediv", "pow", "floordiv", "mod")
_SCALES: dict[str, ScaleOf] = {
    "add": lambda number: (1.0, number),
    "radd": lambda number: (1.0, number),
    "sub": lambda number: (1.0, -number),
    "rsub": lambda number: (-1.0, number),
    "mul": lambda number: (number, 0.0),
    "rmul": lambda number: (number, 0.0),
    "truediv": lambda number: (1.0 / number, 0.0),
}


def install_operators() -> None:
    """Give `framework.Variable` its operators."""
    for name, op_type in _BINARY.items():
        setattr(Variable, f"__{name}__", _operator(name, op_type))
    for name in _REFLECTED:
        setattr(Variable, f"__r{name}__", _operator(f"r{name}", _BINARY[name], reflected=True))
    # `==` builds an op, so equality cannot serve as identity: variables hash, as before, by identity
    setattr(Variable, "__hash__", object.__hash__)  # noqa: B010
    setattr(Variable, "__neg__", _negate)  # noqa: B010
    setattr(Variable, "astype", as_type)  # noqa: B010
    # numpy leaves `array * variable` to the variable instead of looping over the array
    setattr(Variable, "__array_ufunc__", None)  # noqa: B010


def _operator(name: str, op_type: str, reflected: bool = False) -> Method:
    """The method of one operator."""
    scale_of = _SCALES.get(name)

    def method(self: Variable, other: Any) -> Variable:
        if isinstance(other, (int, float)):
            _check_number(self, name, other)
            if scale_of is not None and not (name == "truediv" and not is_float(self.dtype)):
                return scaled(self, *scale_of(float(other)))
        operand = _operand(self, name, other, like_self=reflected)
        left, right = (operand, self) if reflected else (self, operand)
        return _append(self, op_type, {"X": left, "Y": right}, self.dtype, {"axis": _axis(left, right)})

    method.__name__ = f"__{name}__"
    method.__doc__ = f"Append `{op_type}` (see `fluidlite.layers.math_op`)."
    return method


def _negate(self: Variable) -> Variable:
    """Append a `scale` by -1."""
    return scaled(self, -1.0, 0.0)


def _check_number(var: Variable, name: str, number: float) -> None:
    if not is_float(var.dtype) and not float(number).is_integer():
        raise DtypeError(
            f"{var.name!r} is {var.dtype}: {name.strip('r')} with {number} would cut the number; cast the variable first ({user_line()})"
        )
    if name == "truediv" and number == 0:
        raise ProgramError(f"{var.name!r} is divided by 0 ({user_line()})")


def _operand(var: Variable, name: str, other: Any, like_self: bool) -> Variable:
    """The other operand as a variable of ``var``'s dtype."""
    if isinstance(other, Variable):
        if other.dtype == var.dtype:
            return other
        return as_type(other, var.dtype)
    if not isinstance(other, (int, float, np.number)):
        raise ProgramError(
            f"{name.strip('r')} of variable {var.name!r} and {type(other).__name__} {other!r}: "
            f"use a number, or layers.assign to make a variable of an array ({user_line()})"
        )
    return _constant(var, float(other), like_self)


def as_type(var: Variable, dtype: object) -> Variable:
    """``var`` cast to a dtype: a temporary ``tmp_<k>``."""
    attrs = {"in_dtype": dtype_number(var.dtype), "out_dtype": dtype_number(dtype)}
    return _append(var, "cast", {"X": var}, dtype, attrs)


def _constant(var: Variable, number: float, like_self: bool) -> Variable:
    """A constant of ``var``'s dtype: [1], or of ``var``'s shape where the left operand must be the larger one."""
    attrs: dict[str, Any] = {"dtype": dtype_number(var.dtype), "value": number}
    shape = var.shape if like_self else (1,)
    unknown = [axis for axis, dim in enumerate(shape) if dim < 0]
    if unknown:
        batch = {"shape": shape, "input_dim_idx": unknown[0], "output_dim_idx": unknown[0]}
        op_type, inputs, attrs = "fill_constant_batch_size_like", {"Input": var}, {**attrs, **batch}
    else:
        op_type, inputs, attrs = "fill_constant", {}, {**attrs, "shape": shape}
    result = _append(var, op_type, inputs, var.dtype, attrs)
    result.stop_gradient = True
    return result


def _axis(left: Variable, right: Variable) -> int:
    """Fluid's rule: align at the batch dimension when the right operand has one. (Where the left operand has fewer
    dimensions Fluid fails when the program runs; they are aligned at the end.)"""
    has_batch = bool(right.shape) and right.shape[0] == -1
    return 0 if has_batch and len(left.shape) >= len(right.shape) else -1


def scaled(var: Variable, scale: float, bias: float) -> Variable:
    """scale * var + bias, as the operators make it: a temporary ``tmp_<k>``."""
    return _append(var, "scale", {"X": var}, var.dtype, {"scale": scale, "bias": bias})


def _append(var: Variable, op_type: str, inputs: dict[str, Variable], dtype: object, attrs: dict[str, Any]) -> Variable:
    block = var.program.current_block()
    result = block.create_var(unique_name.generate("tmp"), dtype)
    block.append_op(op_type, inputs, {"Out": result}, attrs)
    return result
