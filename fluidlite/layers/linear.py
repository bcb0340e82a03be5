"""Layers of linear algebra: products, norms and distances, diagonals, and sums of exponentials."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.errors import ProgramError, ShapeError
from fluidlite.framework import Variable, user_line
from fluidlite.framework.dtypes import dtype_name, dtype_number
from fluidlite.layer_helper import FLOATS, LayerHelper, require_dtype, require_same_dtype, require_variable
from fluidlite.layers import ops
from fluidlite.layers.math import elementwise_add, elementwise_mul, reduce_sum
from fluidlite.param_attr import AttrLike


def _product(op_type: str, x: Variable, y: Variable, name: str | None = None, out: Variable | None = None) -> Variable:
    """An op of X and Y of one dtype, written to ``out`` when that is given."""
    require_same_dtype(op_type, require_variable(op_type, "x", x), require_variable(op_type, "y", y))
    helper = LayerHelper(op_type, name)
    result = out if out is not None else helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(op_type, {"X": x, "Y": y}, {"Out": result})
    return result


def bmm(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """The matrix products of two batches: [batch, n, k] and [batch, k, m] give [batch, n, m]."""
    return _product("bmm", x, y, name)


def dot(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """The inner product of two vectors [n], or of each row of two matrices [batch, n]; the last dimension becomes 1."""
    return _product("dot", x, y, name)


def kron(x: Variable, y: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """The Kronecker product: every element of ``x`` times the whole of ``y``."""
    return _product("kron", x, y, name, out)


def cross(input: Variable, other: Variable, dim: int | None = None) -> Variable:
    """The cross products along dimension ``dim`` of size 3; by default the first of that size."""
    require_same_dtype("cross", require_variable("cross", "input", input), require_variable("cross", "other", other))
    inputs = {"X": input, "Y": other}
    return LayerHelper("cross").one("cross", inputs, {"dim": dim}, dtype=input.dtype)


def dist(x: Variable, y: Variable, p: float = 2) -> Variable:
    """The ``p``-norm of x - y, [1]."""
    require_same_dtype("dist", require_variable("dist", "x", x), require_variable("dist", "y", y))
    return LayerHelper("dist").one("dist", {"X": x, "Y": y}, {"p": float(p)}, dtype=x.dtype)


def addmm(
    input: Variable, x: Variable, y: Variable, alpha: float = 1.0, beta: float = 1.0, name: str | None = None
) -> Variable:
    """beta * input + alpha * x @ y for matrices."""
    for var in (x, y):
        require_same_dtype("addmm", require_variable("addmm", "input", input), require_variable("addmm", "x", var))
    attrs = {"Alpha": alpha, "Beta": beta}
    return LayerHelper("addmm", name).one("addmm", {"Input": input, "X": x, "Y": y}, attrs, dtype=input.dtype)


def addcmul(
    input: Variable,
    tensor1: Variable,
    tensor2: Variable,
    value: float = 1.0,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """input + value * tensor1 * tensor2, elementwise; written to ``out`` when that is given."""
    require_dtype("addcmul", require_variable("addcmul", "input", input), (*FLOATS, "int32", "int64"))
    total = elementwise_add(input, elementwise_mul(tensor1, tensor2) * value, name=name)
    if out is None:
        return total
    LayerHelper("assign").append_op("assign", {"X": total}, {"Out": out})
    return out


def t(input: Variable, name: str | None = None) -> Variable:
    """The transpose of a matrix; a vector stays as it is."""
    require_variable("t", "input", input)
    if len(input.shape) > 2:
        raise ShapeError(f"t: {input.name!r} {list(input.shape)} has more than 2 dimensions ({user_line()})")
    helper = LayerHelper("t", name)
    if len(input.shape) < 2:
        return input
    out, shape = helper.temporaries(2, input.dtype)
    helper.append_op("transpose2", {"X": input}, {"Out": out, "XShape": shape}, {"axis": [1, 0]})
    return out


def trace(
    input: Variable,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """The sum of the diagonal of each plane of dimensions ``dim1`` and ``dim2``, ``offset`` cells right of the main one."""
    require_variable("trace", "input", input)
    helper = LayerHelper("trace", name)
    result = out if out is not None else helper.create_variable_for_type_inference(input.dtype)
    attrs = {"offset": offset, "dim1": dim1, "dim2": dim2}
    helper.append_op("trace", {"Input": input}, {"Out": result}, attrs)
    return result


def bilinear_tensor_product(
    x: Variable,
    y: Variable,
    size: int,
    act: str | None = None,
    name: str | None = None,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
) -> Variable:
    """act(x @ W_i @ y + b_i) for i below ``size``: [N, I] and [N, J] give [N, size]."""
    layer = "bilinear_tensor_product"
    require_same_dtype(layer, require_variable(layer, "x", x), require_variable(layer, "y", y))
    helper = LayerHelper(layer, name, act=act, param_attr=param_attr, bias_attr=bias_attr)
    weight = helper.create_parameter(param_attr, [size, x.shape[1], y.shape[1]], x.dtype)
    out = helper.create_variable_for_type_inference(x.dtype)
    inputs = {"X": x, "Y": y, "Weight": weight}
    if helper.bias_attr is not None:
        inputs["Bias"] = helper.create_parameter(helper.bias_attr, [1, size], x.dtype, is_bias=True)
    helper.append_op(layer, inputs, {"Out": out})
    return helper.append_activation(out)


def logsumexp(
    x: Variable,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """log(Σ exp(x)) over dimensions ``dim`` (None: all); written to ``out`` when that is given."""
    require_dtype("logsumexp", require_variable("logsumexp", "x", x), FLOATS)
    total = reduce_sum(ops.exp(x, name), dim=dim, keep_dim=keepdim, name=name)
    if out is None:
        return ops.log(total, name)
    LayerHelper("logsumexp", name).append_op("log", {"X": total}, {"Out": out})
    return out


def log_softmax(input: Variable, axis: int | None = None, dtype: object = None, name: str | None = None) -> Variable:
    """log(softmax(input)) along ``axis`` (default: the last), of ``input`` cast to ``dtype`` first."""
    require_dtype("log_softmax", require_variable("log_softmax", "input", input), FLOATS)
    helper = LayerHelper("log_softmax", name)
    given = input
    if dtype is not None:
        attrs = {"in_dtype": dtype_number(input.dtype), "out_dtype": dtype_number(dtype)}
        given = helper.one("cast", {"X": input}, attrs, dtype=dtype)
    kind = given.dtype if dtype is None else dtype_name(dtype)
    probabilities = helper.one("softmax", {"X": given}, {"axis": -1 if axis is None else axis}, dtype=kind)
    return helper.one("log", {"X": probabilities}, dtype=kind)


def clamp(
    input: Variable,
    min: float | Variable | None = None,
    max: float | Variable | None = None,
    output: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """``input`` limited to ``min`` and ``max``, numbers or [1] variables, at least one of which is given."""
    require_variable("clamp", "input", input)
    if min is None and max is None:
        raise ProgramError(f"clamp of {input.name!r}: give min, max or both ({user_line()})")
    helper = LayerHelper("clamp", name)
    inputs, attrs = {"X": input}, {"min": _LOWEST, "max": _HIGHEST}
    for key, limit in (("min", min), ("max", max)):
        if isinstance(limit, Variable):
            inputs[f"{key.capitalize()}"] = limit
        elif limit is not None:
            attrs[key] = float(limit)
    result = output if output is not None else helper.create_variable_for_type_inference(input.dtype)
    helper.append_op("clip", inputs, {"Out": result}, attrs)
    return result


#: the ends of float32, for a limit that is not given
_LOWEST = -3.4028234663852886e38
_HIGHEST = 3.4028234663852886e38


def allclose(
    input: Variable,
    other: Variable,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
    name: str | None = None,
) -> Variable:
    """Whether all |input - other| are at most atol + rtol * |other|, [1] bool."""
    require_same_dtype("allclose", require_variable("allclose", "input", input), other)
    attrs = {"rtol": rtol, "atol": atol, "equal_nan": equal_nan}
    return LayerHelper("allclose", name).one("allclose", {"Input": input, "Other": other}, attrs, dtype="bool")


def elementwise_equal(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Whether elements are equal, bool."""
    require_same_dtype("elementwise_equal", require_variable("elementwise_equal", "x", x), y)
    return LayerHelper("elementwise_equal", name).one("equal", {"X": x, "Y": y}, dtype="bool", stop_gradient=True)
