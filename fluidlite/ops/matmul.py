"""Matrix products: `mul` (operands flattened to matrices; what `fc` is made of) and `matmul` (batched)."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import DtypeError, ShapeError
from fluidlite.kernels.dense import product
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward, grads_without_lod
from fluidlite.ops.registry import Case, bool_attr, float_attr, floats_attr, int_attr, ints_attr, register

Shape = tuple[int, ...]
_MUL_ATTRS: Final = {
    "x_num_col_dims": int_attr(1, "leading dimensions of X that become the rows"),
    "y_num_col_dims": int_attr(1, "leading dimensions of Y that become the rows"),
    "scale_x": float_attr(1.0),
    "scale_y": floats_attr((1.0,)),
    "scale_out": float_attr(1.0),
    "force_fp32_output": bool_attr(default=False),
}
_MATMUL_ATTRS: Final = {
    "transpose_X": bool_attr(default=False, doc="swap X's last two dimensions"),
    "transpose_Y": bool_attr(default=False, doc="swap Y's last two dimensions"),
    "alpha": float_attr(1.0, "factor of the product"),
    "fused_reshape_Out": ints_attr(),
    "fused_transpose_Out": ints_attr(),
    "Scale_x": float_attr(1.0),
    "Scale_y": float_attr(1.0),
    "Scale_out": float_attr(1.0),
    "force_fp32_output": bool_attr(default=False),
    "head_number": int_attr(1),
}


def as_matrix(x: Array, rows: int) -> Array:
    """The array as a matrix whose rows are its first ``rows`` dimensions."""
    if x.ndim == 2 and rows == 1:
        return x
    return x.reshape(math.prod(x.shape[:rows]), math.prod(x.shape[rows:]))


def mul(ctx: KernelContext, X: Array, Y: Array, *, x_num_col_dims: int, y_num_col_dims: int) -> Array:
    _check_dtypes(X, Y)
    x, y = as_matrix(X, x_num_col_dims), as_matrix(Y, y_num_col_dims)
    if x.shape[1] != y.shape[0]:
        raise ShapeError(
            f"cannot multiply X {list(X.shape)} as {list(x.shape)} with Y {list(Y.shape)} as {list(y.shape)}"
        )
    return shaped(product(x, y), X.shape[:x_num_col_dims] + Y.shape[y_num_col_dims:])


def mul_grad(
    ctx: KernelContext, X: Array, Y: Array, Out_GRAD: Array, *, x_num_col_dims: int, y_num_col_dims: int
) -> dict[str, Array]:
    x, y = as_matrix(X, x_num_col_dims), as_matrix(Y, y_num_col_dims)
    out_grad = shaped(Out_GRAD, (len(x), y.shape[1]))
    result = {}
    if ctx.wants("X@GRAD"):
        result["X@GRAD"] = shaped(product(out_grad, y.T), X.shape)
    if ctx.wants("Y@GRAD"):
        result["Y@GRAD"] = shaped(product(x.T, out_grad), Y.shape)
    return result


def shaped(x: Array, shape: Shape) -> Array:
    """The array in a shape: itself, not a view, where it has that shape already."""
    return x if x.shape == shape else x.reshape(shape)


def _infer_mul(ctx: InferContext) -> None:
    x, y = ctx.shape("X"), ctx.shape("Y")
    x_rows, y_rows = ctx.attr("x_num_col_dims"), ctx.attr("y_num_col_dims")
    if not 0 < x_rows < len(x) or not 0 < y_rows < len(y):
        raise ctx.error(
            f"cannot flatten X {list(x)} after {x_rows} and Y {list(y)} after {y_rows} dimensions to matrices"
        )
    inner_x, inner_y = x[x_rows:], y[:y_rows]
    if -1 not in inner_x + inner_y and math.prod(inner_x) != math.prod(inner_y):
        raise ctx.error(f"X {list(x)} has {math.prod(inner_x)} columns but Y {list(y)} has {math.prod(inner_y)} rows")
    _infer_dtype(ctx)
    ctx.set("Out", x[:x_rows] + y[y_rows:], lod_level=ctx.input("X").lod_level)


def _check_dtypes(x: Array, y: Array) -> None:
    if x.dtype != y.dtype:
        raise DtypeError(f"cannot multiply {x.dtype} with {y.dtype}; cast one of them")


def _infer_dtype(ctx: InferContext) -> None:
    x, y = ctx.input("X"), ctx.input("Y")
    if x.dtype != y.dtype:
        raise DtypeError(
            f"op {ctx.op.type!r}: X={x.name!r} is {x.dtype} and Y={y.name!r} is {y.dtype} ({ctx.op.origin})"
        )
    for var in ctx.outputs("Out"):
        var.dtype = x.dtype


def _matrices(x: Array, transposed: bool, vector_is_row: bool) -> Array:
    """A stack of matrices: a vector as a row or a column, the last two dimensions swapped if asked for."""
    if x.ndim == 1:
        x = x[None, :] if vector_is_row else x[:, None]
    return np.swapaxes(x, -1, -2) if transposed else x


def _product_shape(x: Shape, y: Shape, transpose_x: bool, transpose_y: bool) -> Shape:
    """Shape of the product, -1 where not known; raises ShapeError."""
    rows, inner_x = _matrix_shape(x, transpose_x, vector_is_row=True)
    inner_y, columns = _matrix_shape(y, transpose_y, vector_is_row=False)
    if inner_x != inner_y and -1 not in (inner_x, inner_y):
        raise ShapeError(f"cannot multiply {list(x)} with {list(y)}: {inner_x} columns against {inner_y} rows")
    batch = _batch_shape(x[:-2], y[:-2])
    keep_rows = len(x) > 1 or rows != 1
    keep_columns = len(y) > 1 or columns != 1
    return batch + (rows,) * keep_rows + (columns,) * keep_columns or (1,)


def _matrix_shape(shape: Shape, transposed: bool, *, vector_is_row: bool) -> Shape:
    if not shape:
        raise ShapeError("cannot multiply a value without dimensions")
    if len(shape) == 1:
        shape = (1, *shape) if vector_is_row else (*shape, 1)
    return shape[-2:][::-1] if transposed else shape[-2:]


def _batch_shape(x: Shape, y: Shape) -> Shape:
    """Equal leading dimensions, or none on one side."""
    if not x or not y:
        return x or y
    if len(x) != len(y) or any(a != b and -1 not in (a, b) for a, b in zip(x, y, strict=True)):
        raise ShapeError(f"batches of shapes {list(x)} and {list(y)} do not fit each other")
    return tuple(max(a, b) for a, b in zip(x, y, strict=True))


def matmul(ctx: KernelContext, X: Array, Y: Array, *, transpose_X: bool, transpose_Y: bool, alpha: float) -> Array:
    _check_dtypes(X, Y)
    shape = _product_shape(X.shape, Y.shape, transpose_X, transpose_Y)
    out = np.matmul(_matrices(X, transpose_X, vector_is_row=True), _matrices(Y, transpose_Y, vector_is_row=False))
    return np.asarray((out if alpha == 1 else out * out.dtype.type(alpha)).reshape(shape))


def matmul_grad(
    ctx: KernelContext,
    X: Array,
    Y: Array,
    Out_GRAD: Array,
    *,
    transpose_X: bool,
    transpose_Y: bool,
    alpha: float,
) -> dict[str, Array]:
    x = _matrices(X, transpose_X, vector_is_row=True)
    y = _matrices(Y, transpose_Y, vector_is_row=False)
    batch = _batch_shape(x.shape[:-2], y.shape[:-2])
    out_grad = Out_GRAD.reshape(*batch, x.shape[-2], y.shape[-1])
    if alpha != 1:
        out_grad = out_grad * out_grad.dtype.type(alpha)
    result = {}
    if ctx.wants("X@GRAD"):
        result["X@GRAD"] = _operand_gradient(np.matmul(out_grad, np.swapaxes(y, -1, -2)), x, transpose_X, X.shape)
    if ctx.wants("Y@GRAD"):
        result["Y@GRAD"] = _operand_gradient(np.matmul(np.swapaxes(x, -1, -2), out_grad), y, transpose_Y, Y.shape)
    return result


def _operand_gradient(gradient: Array, matrices: Array, transposed: bool, shape: Shape) -> Array:
    """Summed over a batch that the operand did not have, turned back, in the operand's own shape."""
    if gradient.ndim > matrices.ndim:
        gradient = gradient.sum(axis=tuple(range(gradient.ndim - matrices.ndim)))
    return (np.swapaxes(gradient, -1, -2) if transposed else gradient).reshape(shape)


def _infer_matmul(ctx: InferContext) -> None:
    try:
        shape = _product_shape(ctx.shape("X"), ctx.shape("Y"), ctx.attr("transpose_X"), ctx.attr("transpose_Y"))
    except ShapeError as error:
        raise ctx.error(str(error)) from None
    _infer_dtype(ctx)
    ctx.set("Out", shape, lod_level=ctx.input("X").lod_level)


_X = np.array([[1.0, 2.0, -1.0], [0.5, -0.25, 3.0]])
_Y = np.array([[2.0, 1.0], [0.0, -1.0], [4.0, 0.5]])
_XY = np.array([[-2.0, -1.5], [13.0, 2.25]])
_BATCH = np.stack([_X, 2 * _X, -_X])


def _matmul_case(x: Array, y: Array, out: Any, **attrs: Any) -> Case:
    return Case({"X": x, "Y": y}, attrs, {"Out": np.asarray(out)}, check_grad=("X", "Y"))


register(
    "mul",
    doc=(
        "Out = X, flattened to a matrix after x_num_col_dims dimensions, times Y, flattened after y_num_col_dims. "
        "Shape: X.shape[:x_num_col_dims] + Y.shape[y_num_col_dims:]."
    ),
    inputs=["X", "Y"],
    outputs=["Out"],
    attrs=_MUL_ATTRS,
    infer=_infer_mul,
    kernel=mul,
    grad=maker(["X", "Y", "Out@GRAD"], ["X@GRAD", "Y@GRAD"]),
    share_lod="X",
    cases=(
        _matmul_case(_X, _Y, _XY),
        _matmul_case(_X.reshape(2, 1, 3), _Y, _XY.reshape(2, 1, 2), x_num_col_dims=2),
        _matmul_case(_X.reshape(2, 1, 3), _Y.reshape(1, 3, 2), _XY, y_num_col_dims=2),
        Case({"X": np.zeros((0, 3)), "Y": _Y}, {}, {"Out": np.zeros((0, 2))}, note="an empty batch"),
    ),
)
register(
    "mul_grad",
    doc="Gradient of mul.",
    inputs=["X", "Y", "Out@GRAD"],
    outputs=["X@GRAD", "Y@GRAD"],
    attrs=_MUL_ATTRS,
    infer=grads_without_lod,
    kernel=mul_grad,
    share_lod="X",
)
register(
    "matmul",
    doc=(
        "Out = alpha * X @ Y over the last two dimensions. A vector is a row as X and a column as Y, and its "
        "dimension of size 1 is dropped from Out. Leading dimensions are equal, or absent on one side."
    ),
    inputs=["X", "Y"],
    outputs=["Out"],
    attrs=_MATMUL_ATTRS,
    infer=_infer_matmul,
    kernel=matmul,
    grad=maker(["X", "Y", "Out@GRAD"], ["X@GRAD", "Y@GRAD"]),
    share_lod="X",
    cases=(
        _matmul_case(_X, _Y, _XY),
        _matmul_case(_X.T, _Y.T, 0.5 * _XY, transpose_X=True, transpose_Y=True, alpha=0.5),
        _matmul_case(_BATCH, _Y, np.stack([_XY, 2 * _XY, -_XY])),
        _matmul_case(_X, np.stack([_Y, -_Y]), np.stack([_XY, -_XY])),
        _matmul_case(_X[0], _Y, _XY[0]),
        _matmul_case(_X[0], _Y[:, 0], [-2.0]),
        _matmul_case(_X[1], _Y[0], [[1.0, 0.5], [-0.5, -0.25], [6.0, 3.0]], transpose_X=True, transpose_Y=True),
        Case({"X": np.zeros((0, 3)), "Y": _Y}, {}, {"Out": np.zeros((0, 2))}, note="an empty batch"),
    ),
)
register(
    "matmul_grad",
    doc="Gradient of matmul.",
    inputs=["X", "Y", "Out@GRAD"],
    outputs=["X@GRAD", "Y@GRAD"],
    attrs=_MATMUL_ATTRS,
    infer=grads_like_forward,
    kernel=matmul_grad,
    share_lod="X",
)
