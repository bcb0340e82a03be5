"""Layers that make variables from numbers, sizes and shapes: full, arange, linspace, eye, diag, randint, randperm, ..."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.framework import Variable, user_line
from fluidlite.framework.dtypes import dtype_name, dtype_number
from fluidlite.layer_helper import LayerHelper, Variables, require_variable, variables
from fluidlite.layers import tensor
from fluidlite.layers.shape import slice as slice_
from fluidlite.layers.shape import stack
from fluidlite.layers.tensor import Shape, assign, fill_constant, shape_arguments


def _check_device(layer: str, device: str | None) -> None:
    if device not in (None, "cpu", "gpu"):
        raise ProgramError(f"{layer}: device must be None, 'cpu' or 'gpu', not {device!r} ({user_line()})")


def full(
    shape: Shape,
    fill_value: float | Variable,
    out: Variable | None = None,
    dtype: object = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Variable:
    """A variable of one value, float32 unless ``dtype`` says otherwise. ``device`` is Fluid's and not used."""
    _check_device("full", device)
    kind = dtype_name("float32" if dtype is None else dtype)
    helper = LayerHelper("full", name)
    result = out if out is not None else helper.create_variable_for_type_inference(kind)
    result.stop_gradient = stop_gradient
    return fill_constant(shape, kind, fill_value, out=result)


def full_like(
    input: Variable,
    fill_value: float,
    out: Variable | None = None,
    dtype: object = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Variable:
    """One value in the shape of ``input``, and in its dtype unless ``dtype`` is given."""
    _check_device("full_like", device)
    kind = require_variable("full_like", "input", input).dtype if dtype is None else dtype_name(dtype)
    helper = LayerHelper("full_like", name)
    result = out if out is not None else helper.create_variable_for_type_inference(kind)
    attrs = {"value": float(fill_value), "dtype": dtype_number(kind)}
    helper.append_op("fill_any_like", {"X": input}, {"Out": result}, attrs)
    result.stop_gradient = stop_gradient
    return result


def arange(
    start: float | Variable,
    end: float | Variable,
    step: float | Variable = 1,
    dtype: object = None,
    name: str | None = None,
) -> Variable:
    """start, start + step, ... below ``end``; float32 unless ``dtype`` says otherwise."""
    return tensor.range(start, end, step, "float32" if dtype is None else dtype)


def linspace(start: float | Variable, stop: float | Variable, num: int | Variable, dtype: object) -> Variable:
    """``num`` numbers evenly spaced from ``start`` to ``stop``, both included; each a number or a [1] variable."""
    first = start if isinstance(start, Variable) else fill_constant([1], dtype, start)
    last = stop if isinstance(stop, Variable) else fill_constant([1], dtype, stop)
    count = num if isinstance(num, Variable) else fill_constant([1], "int32", num)
    inputs = {"Start": first, "Stop": last, "Num": count}
    return LayerHelper("linspace").one("linspace", inputs, dtype=first.dtype)


def eye(
    num_rows: int, num_columns: int | None = None, batch_shape: Sequence[int] | None = None, dtype: object = "float32"
) -> Variable:
    """The identity matrix [num_rows, num_columns], repeated to ``batch_shape`` + that when given."""
    if num_rows < 0 or (num_columns is not None and num_columns < 0):
        raise ProgramError(f"eye: {num_rows} rows and {num_columns} columns must not be negative ({user_line()})")
    columns = num_rows if num_columns is None else num_columns
    attrs = {"num_rows": num_rows, "num_columns": columns, "dtype": dtype_number(dtype)}
    out = LayerHelper("eye").one("eye", None, attrs, dtype=dtype, stop_gradient=True)
    for count in reversed(batch_shape or ()):
        out = stack([out] * count, axis=0)
    return out


def diag(diagonal: Variable | Array) -> Variable:
    """The matrix with a vector, a variable or an array, on its diagonal."""
    vector = diagonal if isinstance(diagonal, Variable) else assign(diagonal)
    return LayerHelper("diag").one("diag", {"Diagonal": vector}, dtype=vector.dtype, stop_gradient=True)


def diag_embed(input: Variable | Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Variable:
    """Each vector along the last dimension on the diagonal ``offset`` of a plane of dimensions ``dim1`` and ``dim2``."""
    vectors = input if isinstance(input, Variable) else assign(input)
    attrs = {"offset": offset, "dim1": dim1, "dim2": dim2}
    return LayerHelper("diag_embed").one(
        "diag_embed", {"Input": vectors}, attrs, dtype=vectors.dtype, stop_gradient=True
    )


def meshgrid(input: Variables, name: str | None = None) -> list[Variable]:
    """Each of several vectors along a dimension of its own, repeated along those of the others."""
    given = variables(input, "meshgrid", "input")
    helper = LayerHelper("meshgrid", name)
    out = helper.temporaries(len(given), given[0].dtype)
    helper.append_op("meshgrid", {"X": given}, {"Out": out})
    return out


def tril(input: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """``input`` with 0 above the diagonal ``diagonal`` cells right of the main one."""
    return _triangle("tril", input, diagonal, name, lower=True)


def triu(input: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """``input`` with 0 below the diagonal ``diagonal`` cells right of the main one."""
    return _triangle("triu", input, diagonal, name, lower=False)


def _triangle(layer: str, input: Variable, diagonal: int, name: str | None, *, lower: bool) -> Variable:
    require_variable(layer, "input", input)
    helper = LayerHelper(layer, name)
    out = helper.create_variable(name=helper.name, dtype=input.dtype)
    helper.append_op("tril_triu", {"X": input}, {"Out": out}, {"diagonal": diagonal, "lower": lower})
    return out


def randint(
    low: int,
    high: int | None = None,
    shape: Shape | None = None,
    out: Variable | None = None,
    dtype: object = None,
    device: str | None = None,
    stop_gradient: bool = False,
    seed: int = 0,
    name: str | None = None,
) -> Variable:
    """Whole numbers from ``low`` up to but not ``high`` (or from 0 up to ``low``), int64 unless ``dtype`` says otherwise."""
    _check_device("randint", device)
    kind = dtype_name("int64" if dtype is None else dtype)
    start, end = (0, low) if high is None else (low, high)
    helper = LayerHelper("randint", name)
    inputs, dims = shape_arguments([1] if shape is None else shape, list_input="ShapeTensorList", helper=helper)
    result = out if out is not None else helper.create_variable_for_type_inference(kind)
    attrs = {"shape": dims, "low": start, "high": end, "dtype": dtype_number(kind), "seed": seed}
    helper.append_op("randint", inputs, {"Out": result}, attrs)
    result.stop_gradient = stop_gradient
    return result


def randn(
    shape: Shape,
    out: Variable | None = None,
    dtype: object = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Variable:
    """Standard normal values, float32 unless ``dtype`` says otherwise, new ones at every run."""
    _check_device("randn", device)
    kind = dtype_name("float32" if dtype is None else dtype)
    helper = LayerHelper("randn", name)
    inputs, dims = shape_arguments(shape, list_input="ShapeTensorList", helper=helper, dtype="int64")
    result = out if out is not None else helper.create_variable_for_type_inference(kind)
    attrs = {"shape": dims, "mean": 0.0, "std": 1.0, "dtype": dtype_number(kind)}
    helper.append_op("gaussian_random", inputs, {"Out": result}, attrs)
    result.stop_gradient = stop_gradient
    return result


def randperm(
    n: int,
    out: Variable | None = None,
    dtype: object = "int64",
    device: str | None = None,
    stop_gradient: bool = True,
    seed: int = 0,
) -> Variable:
    """The numbers from 0 to n - 1 in random order."""
    _check_device("randperm", device)
    helper = LayerHelper("randperm")
    result = out if out is not None else helper.create_variable_for_type_inference(dtype)
    helper.append_op("randperm", None, {"Out": result}, {"n": n, "dtype": dtype_number(dtype), "seed": seed})
    result.stop_gradient = stop_gradient
    return result


def rank(input: Variable) -> Variable:
    """The number of dimensions of ``input``, a constant of shape [], int32."""
    require_variable("rank", "input", input)
    return assign(np.array(len(input.shape), np.int32))


def size(input: Variable) -> Variable:
    """The number of elements of ``input`` at run time, [1] int64."""
    require_variable("size", "input", input)
    return LayerHelper("size").one("size", {"Input": input}, dtype="int64")


def has_inf(x: Variable) -> Variable:
    """Whether any element is infinite, [1] bool."""
    require_variable("has_inf", "x", x)
    return LayerHelper("isinf").one("isinf", {"X": x}, dtype="bool")


def has_nan(x: Variable) -> Variable:
    """Whether any element is not a number, [1] bool."""
    require_variable("has_nan", "x", x)
    return LayerHelper("isnan").one("isnan", {"X": x}, dtype="bool")


def where(condition: Variable) -> Variable:
    """Where ``condition`` holds, in row-major order: [n, its number of dimensions] int64."""
    require_variable("where", "condition", condition)
    return LayerHelper("where_index").one("where_index", {"Condition": condition}, dtype="int64")


def nonzero(input: Variable, as_tuple: bool = False) -> Variable | tuple[Variable, ...]:
    """Where ``input`` is not 0, [n, its number of dimensions] int64; or with ``as_tuple`` one [n, 1] per dimension."""
    rank = len(require_variable("nonzero", "input", input).shape)
    found = where(input)
    if not as_tuple:
        return found
    if rank == 1:
        return (found,)
    return tuple(slice_(found, axes=[1], starts=[i], ends=[i + 1]) for i in range(rank))


def unique(x: Variable, dtype: object = "int32") -> tuple[Variable, Variable]:
    """(the distinct elements of a vector in the order of their first use, for each element which of them it is)."""
    require_variable("unique", "x", x)
    helper = LayerHelper("unique")
    out = helper.create_variable_for_type_inference(x.dtype)
    index = helper.create_variable_for_type_inference(dtype)
    helper.append_op("unique", {"X": x}, {"Out": out, "Index": index}, {"dtype": dtype_number(dtype)})
    return out, index


def unique_with_counts(x: Variable, dtype: object = "int32") -> tuple[Variable, Variable, Variable]:
    """As `unique`, and how often each of the distinct elements occurs."""
    require_variable("unique_with_counts", "x", x)
    helper = LayerHelper("unique_with_counts")
    out = helper.create_variable_for_type_inference(x.dtype)
    index, count = helper.temporaries(2, dtype)
    outputs = {"Out": out, "Index": index, "Count": count}
    helper.append_op(helper.layer_type, {"X": x}, outputs, {"dtype": dtype_number(dtype)})
    return out, index, count
