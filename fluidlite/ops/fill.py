"""Constants: fill_constant, fill_constant_batch_size_like, fill_zeros_like, fill_any_like, assign_value."""

from __future__ import annotations

import functools
import math
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array, dtype_name, numpy_dtype
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.initial import TABLE_ATTRS, infer_batch_size_like, infer_initial, new_table, replaced
from fluidlite.ops.registry import (
    REQUIRED,
    AttrSpec,
    Case,
    bool_attr,
    float_attr,
    floats_attr,
    int_attr,
    ints_attr,
    longs_attr,
    register,
    string_attr,
)
from fluidlite.ops.shapes import given
from fluidlite.values.initial import Constant, FromArray
from fluidlite.values.lod import LoDTensor
from fluidlite.values.memory import affordable
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import TableColumn

#: elements of constants that are kept from step to step
_SMALL: Final = 64
_VALUE_ATTRS: Final[dict[str, AttrSpec]] = {
    "dtype": int_attr(5, "VarType number"),
    "value": float_attr(0.0, "the constant, as a C float"),
    "str_value": string_attr("", "the constant as text, where a C float is not exact enough; wins over `value`"),
    "force_cpu": bool_attr(default=False),
}


def constant(value: float, str_value: str, dtype: np.dtype[Any]) -> Any:
    """The constant as a scalar of ``dtype``; floats become integers by truncation."""
    if not str_value:
        return np.asarray(value).astype(dtype)[()]
    try:
        if dtype.kind in "iu":
            return np.asarray(int(str_value), dtype)[()]
    except ValueError:
        pass  # "2.0" or "1e3": read as a float below
    try:
        return np.asarray(float(str_value)).astype(dtype)[()]
    except ValueError as error:
        raise ProgramError(f"str_value {str_value!r} is no number") from error


def fill_constant(
    ctx: KernelContext,
    ValueTensor: Array | None,
    ShapeTensor: Array | None,
    ShapeTensorList: list[Array],
    *,
    shape: tuple[int, ...],
    dtype: int,
    value: float,
    str_value: str,
    auto_grown_table: bool,
    table_name: str,
) -> Any:
    if table_name:
        number = float(constant(value, str_value, numpy_dtype(dtype)))
        return TableColumn(ctx.op.outputs["Out"][0], shape[1], number, numpy_dtype(dtype))
    if auto_grown_table:
        return new_table(ctx, shape, dtype, Constant(float(constant(value, str_value, numpy_dtype(dtype)))))
    if ValueTensor is not None:
        number = ValueTensor.reshape(-1)[0].astype(numpy_dtype(dtype))
        return np.full(
            affordable(given(ShapeTensor, ShapeTensorList, shape), numpy_dtype(dtype)), number, numpy_dtype(dtype)
        )
    if ShapeTensor is not None or ShapeTensorList:
        shape = given(ShapeTensor, ShapeTensorList, shape)
    elif math.prod(shape) <= _SMALL:
        return _template(shape, dtype, value, math.copysign(1.0, value), str_value).copy()
    return np.full(
        affordable(shape, numpy_dtype(dtype)), constant(value, str_value, numpy_dtype(dtype)), numpy_dtype(dtype)
    )


@functools.lru_cache(maxsize=64)
def _template(shape: tuple[int, ...], dtype: int, value: float, sign: float, str_value: str) -> Array:
    """What a step fills anew each time, such as the gradient of the loss; ``sign`` tells 0.0 from -0.0."""
    return np.full(shape, constant(value, str_value, numpy_dtype(dtype)), numpy_dtype(dtype))


def fill_constant_batch_size_like(
    ctx: KernelContext,
    Input: Any,
    *,
    shape: tuple[int, ...],
    input_dim_idx: int,
    output_dim_idx: int,
    dtype: int,
    value: float,
    str_value: str,
) -> Array:
    # of a LoDTensor dimension 0 is the number of sequences
    if isinstance(Input, LoDTensor) and Input.lod and input_dim_idx == 0:
        size = len(Input.lod[-1]) - 1
    else:
        size = np.shape(Input)[input_dim_idx]
    sizes = replaced(shape, output_dim_idx, size)
    return np.full(
        affordable(sizes, numpy_dtype(dtype)), constant(value, str_value, numpy_dtype(dtype)), numpy_dtype(dtype)
    )


def fill_zeros_like(ctx: KernelContext, X: Any) -> Any:
    if isinstance(X, SelectedRows):
        return SelectedRows(X.rows, np.zeros_like(X.value), X.height)
    return np.zeros_like(X)


def fill_any_like(ctx: KernelContext, X: Array, *, value: float, dtype: int) -> Array:
    wanted = X.dtype if dtype < 0 else numpy_dtype(dtype)
    return np.full(X.shape, np.asarray(value).astype(wanted), wanted)


def _infer_any_like(ctx: InferContext) -> None:
    x, dtype = ctx.input("X"), ctx.attr("dtype")
    ctx.set("Out", x.shape, x.dtype if dtype < 0 else dtype_name(dtype), lod_level=x.lod_level)


#: attribute of assign_value that holds the values of a dtype
_VALUES: Final = {"bool": "bool_values", "int32": "int32_values", "int64": "int64_values"}


def assign_value(
    ctx: KernelContext,
    *,
    shape: tuple[int, ...],
    dtype: int,
    auto_grown_table: bool,
    **values: Any,
) -> Any:
    wanted = numpy_dtype(dtype)
    flat = values[_VALUES.get(wanted.name, "fp32_values")]
    _check_count(flat, shape)
    array = np.array(flat, wanted).reshape(shape)
    return new_table(ctx, shape, dtype, FromArray(array)) if auto_grown_table else array


def _check_count(flat: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    if len(flat) != math.prod(shape):
        raise ShapeError(f"{len(flat)} values for shape {list(shape)}, which needs {math.prod(shape)}")


def _infer_assign_value(ctx: InferContext) -> None:
    dtype = dtype_name(ctx.attr("dtype"))
    try:
        _check_count(ctx.attr(_VALUES.get(dtype, "fp32_values")), ctx.attr("shape"))
    except ShapeError as error:
        raise ctx.error(str(error)) from None
    infer_initial(ctx)


_FLOAT32, _FLOAT64, _INT64, _BOOL = 5, 6, 3, 0

register(
    "fill_constant",
    doc="Out = `shape` full of one number. ValueTensor, ShapeTensor and ShapeTensorList win over the attributes.",
    inputs=["ValueTensor?", "ShapeTensor?", "ShapeTensorList*?"],
    outputs=["Out"],
    attrs={
        **_VALUE_ATTRS,
        "shape": longs_attr(),
        **TABLE_ATTRS,
        "table_name": string_attr("", "Out is an accumulator in the rows of this table"),
    },
    infer=infer_initial,
    kernel=fill_constant,
    cases=(
        Case({}, {"shape": [2, 1], "value": 0.5, "dtype": _FLOAT64}, {"Out": np.full((2, 1), 0.5)}),
        Case({}, {"shape": [2], "value": 2.9, "dtype": _INT64}, {"Out": np.array([2, 2])}),
        Case(
            {},
            {"shape": [1], "str_value": "9007199254740993", "dtype": _INT64},
            {"Out": np.array([9007199254740993])},
        ),
        Case({}, {"shape": [1], "str_value": "1e3", "dtype": _INT64}, {"Out": np.array([1000])}),
        Case({}, {"shape": [1], "str_value": "-inf", "dtype": _FLOAT64}, {"Out": np.array([-np.inf])}),
        Case(
            {"ShapeTensor": np.array([1, 2])},
            {"value": 4.0, "dtype": _FLOAT32},
            {"Out": np.full((1, 2), 4.0, np.float32)},
        ),
        Case(
            {"ShapeTensorList": [np.array([2]), np.array([1])], "ValueTensor": np.array([7])},
            {"shape": [-1, -1], "dtype": _INT64},
            {"Out": np.array([[7], [7]])},
        ),
    ),
)
register(
    "fill_constant_batch_size_like",
    doc="Out = `shape` full of one number, with dimension output_dim_idx as large as dimension input_dim_idx of Input.",
    inputs=["Input"],
    outputs=["Out"],
    attrs={**_VALUE_ATTRS, "shape": ints_attr(REQUIRED), "input_dim_idx": int_attr(0), "output_dim_idx": int_attr(0)},
    infer=infer_batch_size_like,
    kernel=fill_constant_batch_size_like,
    takes_lod=True,
    cases=(
        Case(
            {"Input": np.array([[1], [2], [3]])},
            {"shape": [-1, 2], "value": 1.5, "dtype": _FLOAT64},
            {"Out": np.full((3, 2), 1.5)},
        ),
        Case(
            {"Input": LoDTensor(np.array([[1], [2], [3]]), ((0, 1, 3),))},
            {"shape": [-1, 2], "value": 1.5, "dtype": _FLOAT64},
            {"Out": np.full((2, 2), 1.5)},
            note="two sequences",
        ),
    ),
)
register(
    "fill_zeros_like",
    doc="Out = zeros like X.",
    inputs=["X"],
    outputs=["Out"],
    infer=like("X", "Out"),
    kernel=fill_zeros_like,
    share_lod="X",
    sparse=("X",),
    cases=(Case({"X": np.array([[1.0, 2.0]])}, {}, {"Out": np.zeros((1, 2))}),),
)
register(
    "fill_any_like",
    doc="Out = an array of X's shape full of `value`, of dtype `dtype` (-1: X's own).",
    inputs=["X"],
    outputs=["Out"],
    attrs={"value": float_attr(0.0), "dtype": int_attr(-1)},
    infer=_infer_any_like,
    kernel=fill_any_like,
    share_lod="X",
    cases=(
        Case({"X": np.array([[1.0, 2.0]])}, {"value": 0.5}, {"Out": np.full((1, 2), 0.5)}),
        Case({"X": np.array([[1.0, 2.0]])}, {"value": 3.0, "dtype": _INT64}, {"Out": np.array([[3, 3]])}),
    ),
)
register(
    "assign_value",
    doc="Out = the values of the attribute that belongs to `dtype` (floats: fp32_values), in shape `shape`.",
    inputs=[],
    outputs=["Out"],
    attrs={
        "shape": ints_attr(REQUIRED),
        "dtype": int_attr(doc="VarType number"),
        "bool_values": ints_attr(),
        "fp32_values": floats_attr(),
        "int32_values": ints_attr(),
        "int64_values": longs_attr(),
        **TABLE_ATTRS,
    },
    infer=_infer_assign_value,
    kernel=assign_value,
    cases=(
        Case(
            {},
            {"shape": [2, 1], "dtype": _FLOAT32, "fp32_values": [0.5, 1.5]},
            {"Out": np.array([[0.5], [1.5]], np.float32)},
        ),
        Case({}, {"shape": [2], "dtype": _INT64, "int64_values": [2**60, -1]}, {"Out": np.array([2**60, -1])}),
        Case({}, {"shape": [2], "dtype": _BOOL, "bool_values": [1, 0]}, {"Out": np.array([True, False])}),
    ),
)
