"""Arithmetic layers: elementwise, scale, clip, products, sums and means, the largest elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from fluidlite.framework import Variable
from fluidlite.layer_helper import LayerHelper, either, require_same_dtype, require_variable

#: dimensions to reduce: one, several, or None for all
Dims: TypeAlias = "int | Sequence[int] | None"


def _elementwise(op_type: str, formula: str) -> Callable[..., Variable]:
    """The layer of an elementwise op of two variables."""

    def layer(x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None) -> Variable:
        require_variable(op_type, "x", x)
        require_same_dtype(op_type, x, require_variable(op_type, "y", y))
        helper = LayerHelper(op_type, name, act=act)
        return helper.append_activation(helper.one(op_type, {"X": x, "Y": y}, {"axis": axis}, dtype=x.dtype))

    layer.__name__ = layer.__qualname__ = op_type
    layer.__doc__ = f"""{formula}, elementwise, for two variables of one dtype.

    ``y``'s dimensions are aligned with ``x``'s from dimension ``axis`` on (-1: at the end) and repeated along the
    others; a dimension of 1 is repeated too. ``act`` names an activation to append.
    """
    return layer


elementwise_add = _elementwise("elementwise_add", "x + y")
elementwise_sub = _elementwise("elementwise_sub", "x - y")
elementwise_mul = _elementwise("elementwise_mul", "x * y")
elementwise_div = _elementwise("elementwise_div", "x / y")
elementwise_max = _elementwise("elementwise_max", "The larger of x and y")
elementwise_min = _elementwise("elementwise_min", "The smaller of x and y")
elementwise_pow = _elementwise("elementwise_pow", "x to the power y")
elementwise_mod = _elementwise("elementwise_mod", "The remainder of x / y")
elementwise_floordiv = _elementwise("elementwise_floordiv", "x / y without the remainder (integers)")


def _reduction(op_type: str, what: str) -> Callable[..., Variable]:
    """The layer of an op that reduces dimensions."""

    def layer(input: Variable, dim: Dims = None, keep_dim: bool = False, name: str | None = None) -> Variable:
        require_variable(op_type, "input", input)
        dims = [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
        attrs = {"dim": dims or [0], "keep_dim": keep_dim, "reduce_all": not dims}
        return LayerHelper(op_type, name).one(op_type, {"X": input}, attrs, dtype=input.dtype)

    layer.__name__ = layer.__qualname__ = op_type
    layer.__doc__ = f"""{what} over the dimensions ``dim`` (negative ones count from the end; None: all).

    The dimensions go, or stay as 1 with ``keep_dim``; all of them together give shape [1].
    """
    return layer


reduce_sum = _reduction("reduce_sum", "The sum")
reduce_mean = _reduction("reduce_mean", "The mean")
reduce_max = _reduction("reduce_max", "The largest element")
reduce_min = _reduction("reduce_min", "The smallest element")
reduce_prod = _reduction("reduce_prod", "The product")
reduce_all = _reduction("reduce_all", "Whether every element is true")
reduce_any = _reduction("reduce_any", "Whether any element is true")


def mean(x: Variable, name: str | None = None) -> Variable:
    """The mean of all elements; shape [1]."""
    require_variable("mean", "x", x)
    return LayerHelper("mean", name).one("mean", {"X": x}, dtype=x.dtype)


def scale(
    x: Variable,
    scale: float | Variable = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """scale * x + bias, or scale * (x + bias) with ``bias_after_scale=False``; ``scale`` a number or a [1] variable."""
    require_variable("scale", "x", x)
    helper = LayerHelper("scale", name, act=act)
    scale_var, number = either(scale)
    inputs = {"X": x, "ScaleTensor": scale_var}
    attrs = {"scale": number, "bias": bias, "bias_after_scale": bias_after_scale}
    return helper.append_activation(helper.one("scale", inputs, attrs, dtype=x.dtype))


def clip(x: Variable, min: float, max: float, name: str | None = None) -> Variable:
    """``x`` limited to [min, max]; the gradient is 0 outside."""
    require_variable("clip", "x", x)
    return LayerHelper("clip", name).one("clip", {"X": x}, {"min": min, "max": max}, dtype=x.dtype)


def clip_by_norm(x: Variable, max_norm: float, name: str | None = None) -> Variable:
    """``x`` scaled down to the L2 norm ``max_norm`` where its norm is larger."""
    require_variable("clip_by_norm", "x", x)
    return LayerHelper("clip_by_norm", name).one("clip_by_norm", {"X": x}, {"max_norm": max_norm}, dtype=x.dtype)


def mul(
    x: Variable, y: Variable, x_num_col_dims: int = 1, y_num_col_dims: int = 1, name: str | None = None
) -> Variable:
    """Matrix product: ``x`` and ``y`` are flattened to matrices at the given dimensions, the result is not."""
    require_variable("mul", "x", x)
    require_same_dtype("mul", x, require_variable("mul", "y", y))
    attrs = {"x_num_col_dims": x_num_col_dims, "y_num_col_dims": y_num_col_dims}
    return LayerHelper("mul", name).one("mul", {"X": x, "Y": y}, attrs, dtype=x.dtype)


def matmul(
    x: Variable,
    y: Variable,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    name: str | None = None,
) -> Variable:
    """alpha * x @ y over the last two dimensions, the others as a batch; vectors count as a row or a column."""
    require_variable("matmul", "x", x)
    require_same_dtype("matmul", x, require_variable("matmul", "y", y))
    attrs = {"transpose_X": transpose_x, "transpose_Y": transpose_y, "alpha": float(alpha)}
    return LayerHelper("matmul", name).one("matmul", {"X": x, "Y": y}, attrs, dtype=x.dtype)


def topk(input: Variable, k: int | Variable, name: str | None = None) -> tuple[Variable, Variable]:
    """(the k largest elements of the last dimension, descending; their int64 indices). No gradient."""
    require_variable("topk", "input", input)
    helper = LayerHelper("top_k", name)
    values = helper.create_variable_for_type_inference(input.dtype)
    indices = helper.create_variable_for_type_inference("int64")
    k_var, number = either(k)
    helper.append_op("top_k", {"X": input, "K": k_var}, {"Out": values, "Indices": indices}, {"k": number})
    values.stop_gradient = True
    indices.stop_gradient = True
    return values, indices


def cos_sim(X: Variable, Y: Variable) -> Variable:
    """Cosine of the angle between rows of ``X`` [N, D] and ``Y`` [N, D] or [1, D]; [N, 1]."""
    require_variable("cos_sim", "X", X)
    require_same_dtype("cos_sim", X, require_variable("cos_sim", "Y", Y))
    helper = LayerHelper("cos_sim")
    out, x_norm, y_norm = helper.temporaries(3, X.dtype)
    helper.append_op("cos_sim", {"X": X, "Y": Y}, {"Out": out, "XNorm": x_norm, "YNorm": y_norm})
    return out


def l2_normalize(x: Variable, axis: int | None, epsilon: float = 1e-12, name: str | None = None) -> Variable:
    """x / √(Σx² + epsilon) along ``axis`` (None: 1; a vector: 0)."""
    require_variable("l2_normalize", "x", x)
    helper = LayerHelper("l2_normalize", name)
    if len(x.shape) == 1:
        axis = 0
    out, norm = helper.temporaries(2, x.dtype)
    attrs = {"axis": 1 if axis is None else axis, "epsilon": epsilon}
    helper.append_op("norm", {"X": x}, {"Out": out, "Norm": norm}, attrs)
    return out


def merge_selected_rows(x: Variable, name: str | None = None) -> Variable:
    """SelectedRows with the values of equal rows summed, rows in ascending order."""
    require_variable("merge_selected_rows", "x", x)
    return LayerHelper("merge_selected_rows", name).one("merge_selected_rows", {"X": x}, dtype=x.dtype)


def get_tensor_from_selected_rows(x: Variable, name: str | None = None) -> Variable:
    """The values of SelectedRows, one row each, as a dense variable."""
    require_variable("get_tensor_from_selected_rows", "x", x)
    helper = LayerHelper("get_tensor_from_selected_rows", name)
    return helper.one(helper.layer_type, {"X": x}, dtype=x.dtype)
