"""Activations: layers of one input that are one op without parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from fluidlite.framework import Variable
from fluidlite.layer_helper import FLOATS, LayerHelper, either, require_dtype, require_variable

Activation: TypeAlias = Callable[..., Variable]


def _plain(op_type: str, formula: str) -> Activation:
    """The layer of an activation that has no attributes."""

    def layer(x: Variable, name: str | None = None) -> Variable:
        return activate(op_type, x, name)

    layer.__name__ = layer.__qualname__ = op_type
    layer.__doc__ = f"{formula}, elementwise; float dtypes. The result has the shape, dtype and LoD of ``x``."
    return layer


def activate(op_type: str, x: Variable, name: str | None = None, attrs: Mapping[str, Any] | None = None) -> Variable:
    """One op from X to Out of the same dtype, under a layer of the op's name; ``x`` must be float."""
    require_dtype(op_type, require_variable(op_type, "x", x), FLOATS)
    return LayerHelper(op_type, name).one(op_type, {"X": x}, attrs, dtype=x.dtype)


relu = _plain("relu", "max(x, 0)")
sigmoid = _plain("sigmoid", "1 / (1 + exp(-x))")
logsigmoid = _plain("logsigmoid", "log(1 / (1 + exp(-x)))")
tanh = _plain("tanh", "(exp(x) - exp(-x)) / (exp(x) + exp(-x))")
exp = _plain("exp", "exp(x)")
log = _plain("log", "Natural logarithm of x")
sqrt = _plain("sqrt", "Square root of x")
rsqrt = _plain("rsqrt", "1 / sqrt(x)")
square = _plain("square", "x * x")
abs = _plain("abs", "|x|")
floor = _plain("floor", "The largest whole number not above x")
ceil = _plain("ceil", "The smallest whole number not below x")
round = _plain("round", "The nearest whole number")
reciprocal = _plain("reciprocal", "1 / x")
cos = _plain("cos", "Cosine of x")
sin = _plain("sin", "Sine of x")
softplus = _plain("softplus", "log(1 + exp(x))")
softsign = _plain("softsign", "x / (1 + |x|)")
sign = _plain("sign", "-1, 0 or 1 by the sign of x")


acos = _plain("acos", "The angle in [0, pi] whose cosine is x")
asin = _plain("asin", "The angle in [-pi / 2, pi / 2] whose sine is x")
atan = _plain("atan", "The angle in (-pi / 2, pi / 2) whose tangent is x")
tanh_shrink = _plain("tanh_shrink", "x - tanh(x)")


def erf(x: Variable) -> Variable:
    """The error function of x."""
    return activate("erf", x)


def log1p(x: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """log(1 + x), written to ``out`` when that is given."""
    require_dtype("log1p", require_variable("log1p", "x", x), FLOATS)
    helper = LayerHelper("log1p", name)
    result = out if out is not None else helper.create_variable_for_type_inference(x.dtype)
    helper.append_op("log1p", {"X": x}, {"Out": result})
    return result


def softshrink(x: Variable, alpha: float | None = None) -> Variable:
    """x - alpha above alpha, x + alpha below -alpha, else 0. ``alpha`` is 0.5 unless given."""
    return activate("softshrink", x, None, {"lambda": alpha})


def hard_shrink(x: Variable, threshold: float | None = None) -> Variable:
    """x, and 0 within ``threshold`` (0.5 unless given) of 0."""
    return activate("hard_shrink", x, None, {"threshold": threshold})


def thresholded_relu(x: Variable, threshold: float | None = None) -> Variable:
    """x above ``threshold`` (1 unless given), else 0."""
    return activate("thresholded_relu", x, None, {"threshold": threshold})


def selu(x: Variable, scale: float | None = None, alpha: float | None = None, name: str | None = None) -> Variable:
    """scale * x above 0, else scale * alpha * (exp(x) - 1); the defaults are those of Klambauer et al., 2017."""
    return activate("selu", x, name, {"scale": scale, "alpha": alpha})


def mish(x: Variable, threshold: float = 20, name: str | None = None) -> Variable:
    """x * tanh(log(1 + exp(x))); beyond ±threshold the inner function is x or exp(x). Misra, 2019."""
    return activate("mish", x, name, {"threshold": float(threshold)})


def relu6(x: Variable, threshold: float = 6.0, name: str | None = None) -> Variable:
    """min(max(x, 0), threshold)."""
    return activate("relu6", x, name, {"threshold": threshold})


def leaky_relu(x: Variable, alpha: float = 0.02, name: str | None = None) -> Variable:
    """max(x, alpha * x)."""
    return activate("leaky_relu", x, name, {"alpha": alpha})


def elu(x: Variable, alpha: float = 1.0, name: str | None = None) -> Variable:
    """x above 0, else alpha * (exp(x) - 1)."""
    return activate("elu", x, name, {"alpha": alpha})


def gelu(x: Variable, approximate: bool = False) -> Variable:
    """x times the normal distribution function of x; ``approximate`` takes its tanh form."""
    return activate("gelu", x, None, {"approximate": approximate})


def swish(x: Variable, beta: float = 1.0, name: str | None = None) -> Variable:
    """x * sigmoid(beta * x). (Fluid 1.8 drops ``beta`` on the way to the op; here it counts.)"""
    return activate("swish", x, name, {"beta": beta})


def hard_sigmoid(x: Variable, slope: float = 0.2, offset: float = 0.5, name: str | None = None) -> Variable:
    """min(max(slope * x + offset, 0), 1)."""
    return activate("hard_sigmoid", x, name, {"slope": slope, "offset": offset})


def hard_swish(
    x: Variable, threshold: float = 6.0, scale: float = 6.0, offset: float = 3.0, name: str | None = None
) -> Variable:
    """x * min(max(x + offset, 0), threshold) / scale."""
    return activate("hard_swish", x, name, {"threshold": threshold, "scale": scale, "offset": offset})


def stanh(x: Variable, scale_a: float = 0.67, scale_b: float = 1.7159, name: str | None = None) -> Variable:
    """scale_b * tanh(scale_a * x)."""
    return activate("stanh", x, name, {"scale_a": scale_a, "scale_b": scale_b})


def brelu(x: Variable, t_min: float = 0.0, t_max: float = 24.0, name: str | None = None) -> Variable:
    """min(max(x, t_min), t_max)."""
    return activate("brelu", x, name, {"t_min": t_min, "t_max": t_max})


def soft_relu(x: Variable, threshold: float = 40.0, name: str | None = None) -> Variable:
    """log(1 + exp(x)) with x limited to ±threshold."""
    return activate("soft_relu", x, name, {"threshold": threshold})


def pow(x: Variable, factor: float | Variable = 1.0, name: str | None = None) -> Variable:
    """x to the power ``factor``, a number or a [1] variable."""
    require_dtype("pow", require_variable("pow", "x", x), FLOATS)
    factor_var, number = either(factor)
    inputs = {"X": x, "FactorTensor": factor_var}
    return LayerHelper("pow", name).one("pow", inputs, {"factor": number}, dtype=x.dtype)


def cumsum(
    x: Variable, axis: int | None = None, exclusive: bool | None = None, reverse: bool | None = None
) -> Variable:
    """Running sums along ``axis`` (default: the last).

    ``exclusive`` leaves each element out of its own sum, ``reverse`` sums from the end.
    """
    require_variable("cumsum", "x", x)
    attrs = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
    return LayerHelper("cumsum").one("cumsum", {"X": x}, attrs, dtype=x.dtype)
