"""Comparisons and logic: layers with bool results."""

from __future__ import annotations

from collections.abc import Callable

from fluidlite.framework import Variable
from fluidlite.layer_helper import LayerHelper, require_dtype, require_same_dtype, require_variable


def less_than(x: Variable, y: Variable, force_cpu: bool | None = None, cond: Variable | None = None) -> Variable:
    """x < y, elementwise; written to ``cond`` when that is given. ``force_cpu`` is kept for saved programs only."""
    return _compare("less_than", x, y, cond, force_cpu)


def _comparison(op_type: str, sign: str) -> Callable[..., Variable]:
    def layer(x: Variable, y: Variable, cond: Variable | None = None) -> Variable:
        return _compare(op_type, x, y, cond)

    layer.__name__ = layer.__qualname__ = op_type
    layer.__doc__ = f"x {sign} y, elementwise; written to ``cond`` when that is given."
    return layer


less_equal = _comparison("less_equal", "<=")
greater_than = _comparison("greater_than", ">")
greater_equal = _comparison("greater_equal", ">=")
equal = _comparison("equal", "==")
not_equal = _comparison("not_equal", "!=")


def _compare(op_type: str, x: Variable, y: Variable, cond: Variable | None, force_cpu: bool | None = None) -> Variable:
    require_variable(op_type, "x", x)
    require_same_dtype(op_type, x, require_variable(op_type, "y", y))
    helper = LayerHelper(op_type)
    if cond is None:
        cond = helper.create_variable_for_type_inference("bool", stop_gradient=True)
    helper.append_op(op_type, {"X": x, "Y": y}, {"Out": cond}, {"force_cpu": force_cpu})
    return cond


def _logic(op_type: str, sign: str) -> Callable[..., Variable]:
    def layer(x: Variable, y: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
        require_dtype(op_type, require_variable(op_type, "x", x), ("bool",))
        require_dtype(op_type, require_variable(op_type, "y", y), ("bool",))
        helper = LayerHelper(op_type, name)
        result = out if out is not None else helper.create_variable_for_type_inference("bool")
        helper.append_op(op_type, {"X": x, "Y": y}, {"Out": result})
        return result

    layer.__name__ = layer.__qualname__ = op_type
    layer.__doc__ = f"x {sign} y, elementwise, of bool variables; written to ``out`` when that is given."
    return layer


logical_and = _logic("logical_and", "and")
logical_or = _logic("logical_or", "or")
logical_xor = _logic("logical_xor", "xor")


def logical_not(x: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """not x, elementwise, of a bool variable; written to ``out`` when that is given."""
    require_dtype("logical_not", require_variable("logical_not", "x", x), ("bool",))
    helper = LayerHelper("logical_not", name)
    result = out if out is not None else helper.create_variable_for_type_inference("bool")
    helper.append_op("logical_not", {"X": x}, {"Out": result})
    return result


def is_empty(x: Variable, cond: Variable | None = None) -> Variable:
    """Whether ``x`` has no elements; [1] bool, written to ``cond`` when that is given."""
    require_variable("is_empty", "x", x)
    helper = LayerHelper("is_empty")
    if cond is None:
        cond = helper.create_variable_for_type_inference("bool", stop_gradient=True)
    helper.append_op("is_empty", {"X": x}, {"Out": cond})
    return cond


def isfinite(x: Variable) -> Variable:
    """Whether every element is neither NaN nor infinite; [1] bool."""
    require_variable("isfinite", "x", x)
    return LayerHelper("isfinite").one("isfinite", {"X": x}, dtype="bool")
