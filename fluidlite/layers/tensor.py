"""Layers that make variables: parameters, constants, random values, casts, joins and index results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import DtypeError, ProgramError, ShapeError
from fluidlite.framework import Parameter, Variable, user_line
from fluidlite.framework.dtypes import dtype_name, dtype_number
from fluidlite.initializer import Constant, Initializer, value_attrs
from fluidlite.layer_helper import (
    FLOATS,
    LayerHelper,
    Variables,
    require_dtype,
    require_same_dtype,
    require_variable,
    variables,
)
from fluidlite.param_attr import AttrLike, ParamAttr

#: a shape: numbers, [1] integer variables for dimensions known only at run time, or one integer variable for all
Shape: TypeAlias = "Sequence[int | Variable] | Variable"


def create_tensor(dtype: object, name: str | None = None, persistable: bool = False) -> Variable:
    """An empty variable of block's current program, to be written by an op (``assign(x, output=...)``)."""
    helper = LayerHelper("create_tensor", name)
    return helper.create_variable(name=helper.name, dtype=dtype, persistable=persistable)


def create_parameter(
    shape: Sequence[int],
    dtype: object,
    name: str | None = None,
    attr: AttrLike = None,
    is_bias: bool = False,
    default_initializer: Initializer | None = None,
) -> Parameter:
    """A parameter of its own, for layers that users write. Xavier-uniform (a bias: 0) unless an initializer is given."""
    helper = LayerHelper("create_parameter", name)
    chosen = ParamAttr.of(attr)
    if chosen is None:
        raise ProgramError(f"create_parameter: attr=False makes no parameter ({user_line()})")
    if attr is None and name is not None:
        chosen.name = name
    return helper.create_parameter(chosen, shape, dtype, is_bias, default_initializer)


def create_global_var(
    shape: Sequence[int],
    value: float,
    dtype: object,
    persistable: bool = False,
    force_cpu: bool = False,
    name: str | None = None,
) -> Variable:
    """A variable of block 0, set to ``value`` by the startup program and not trained."""
    helper = LayerHelper("global_var")
    var = helper.create_global_variable(persistable, name=name, dtype=dtype, shape=shape, stop_gradient=True)
    helper.set_variable_initializer(var, Constant(value, force_cpu))
    return var


def cast(x: Variable, dtype: object) -> Variable:
    """``x`` as another dtype; floats are cut towards zero on the way to integers. The gradient is cast back."""
    require_variable("cast", "x", x)
    attrs = {"in_dtype": dtype_number(x.dtype), "out_dtype": dtype_number(dtype)}
    return LayerHelper("cast").one("cast", {"X": x}, attrs, dtype=dtype)


def concat(input: Variables, axis: int | Variable = 0, name: str | None = None) -> Variable:
    """Join variables along ``axis``; the other dimensions agree. LoD follows the first."""
    inputs = variables(input, "concat", "input")
    for var in inputs[1:]:
        require_same_dtype("concat", inputs[0], var)
    given: dict[str, Variables] = {"X": inputs}
    attrs: dict[str, Any] = {}
    if isinstance(axis, Variable):
        given["AxisTensor"] = axis
    else:
        attrs["axis"] = axis
    return LayerHelper("concat", name).one("concat", given, attrs, dtype=inputs[0].dtype)


def sums(input: Variables, out: Variable | None = None) -> Variable:
    """The sum of variables of one shape; SelectedRows are summed too. Written to ``out`` when that is given."""
    inputs = variables(input, "sums", "input")
    for var in inputs[1:]:
        require_same_dtype("sums", inputs[0], var)
    helper = LayerHelper("sum")
    result = out if out is not None else helper.create_variable_for_type_inference(inputs[0].dtype)
    helper.append_op("sum", {"X": inputs}, {"Out": result})
    return result


def sum(x: Variables) -> Variable:
    """The sum of variables of one shape, elementwise."""
    return sums(x)


def assign(input: Variable | Array, output: Variable | None = None) -> Variable:
    """A copy of a variable, or a constant with the values of an array (bool, int32, int64, float32; at most 1 MB)."""
    helper = LayerHelper("assign")
    if isinstance(input, Variable):
        result = output if output is not None else helper.create_variable_for_type_inference(input.dtype)
        helper.append_op("assign", {"X": input}, {"Out": result})
        return result
    if not isinstance(input, np.ndarray):
        raise ProgramError(
            f"assign: 'input' must be a Variable or a numpy array, not {type(input).__name__} {input!r} ({user_line()})"
        )
    if input.size > 1024 * 1024:
        raise ShapeError(f"assign: {input.size} values are too many for a program; feed them ({user_line()})")
    if input.dtype == np.float64:
        raise DtypeError(f"assign: a program holds float32 values, not float64; convert the array ({user_line()})")
    result = output if output is not None else helper.create_variable_for_type_inference(input.dtype)
    attrs = {"shape": input.shape, "dtype": dtype_number(input.dtype), **value_attrs(input)}
    helper.append_op("assign_value", None, {"Out": result}, attrs)
    return result


def fill_constant(
    shape: Shape, dtype: object, value: float | Variable, force_cpu: bool = False, out: Variable | None = None
) -> Variable:
    """A variable of one value (a number, or a [1] variable) in every element. No gradient flows through it."""
    helper = LayerHelper("fill_constant")
    inputs, dims = shape_arguments(shape, list_input="ShapeTensorList")
    attrs: dict[str, Any] = {"shape": dims, "dtype": dtype_number(dtype), "force_cpu": force_cpu}
    if isinstance(value, Variable):
        inputs["ValueTensor"] = value
    else:
        attrs.update(value=float(value), str_value=_exact(value, dtype))
    result = out if out is not None else helper.create_variable_for_type_inference(dtype)
    helper.append_op("fill_constant", inputs, {"Out": result}, attrs)
    result.stop_gradient = True
    return result


def _exact(value: float, dtype: object) -> str:
    """A number as text: attributes of ops are float32, which cannot hold every integer."""
    return str(int(value) if "int" in dtype_name(dtype) else float(value))


def shape_arguments(
    shape: Shape,
    whole_input: str = "ShapeTensor",
    list_input: str = "ShapeTensor",
    helper: LayerHelper | None = None,
    dtype: str = "int32",
) -> tuple[dict[str, Variables], list[int] | None]:
    """A shape (or other list of integers) as the inputs and the attribute of an op.

    A variable goes to ``whole_input``. In a list with variables every number becomes a constant of ``list_input``,
    a temporary of ``helper`` when that is given, and the attribute holds -1 where the number is a variable's.
    """
    if isinstance(shape, Variable):
        shape.stop_gradient = True
        return {whole_input: shape}, None
    dims = integers(shape)
    attr = [-1 if isinstance(dim, Variable) else dim for dim in dims]
    if not any(isinstance(dim, Variable) for dim in dims):
        return {}, attr
    tensors = []
    for dim in dims:
        out = helper.create_variable_for_type_inference(dtype) if helper and not isinstance(dim, Variable) else None
        tensors.append(dim if isinstance(dim, Variable) else fill_constant([1], dtype, dim, force_cpu=True, out=out))
    return {list_input: tensors}, attr


def integers(values: Sequence[int | Variable]) -> list[int | Variable]:
    """A shape, or another list of integers, some of which may be variables; anything else is refused."""
    try:
        return [value if isinstance(value, Variable) else int(value) for value in values]
    except (TypeError, ValueError):
        raise ProgramError(
            f"{values!r} must be integers, some of which may be variables, or one integer variable ({user_line()})"
        ) from None


def fill_constant_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    dtype: object,
    value: float,
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    force_cpu: bool = False,
) -> Variable:
    """A constant whose dimension ``output_dim_idx`` is ``input``'s dimension ``input_dim_idx`` at run time."""
    require_variable("fill_constant_batch_size_like", "input", input)
    attrs = {
        "shape": shape,
        "dtype": dtype_number(dtype),
        "value": float(value),
        "str_value": _exact(value, dtype),
        "input_dim_idx": input_dim_idx,
        "output_dim_idx": output_dim_idx,
        "force_cpu": force_cpu,
    }
    helper = LayerHelper("fill_constant_batch_size_like")
    return helper.one(helper.layer_type, {"Input": input}, attrs, dtype=dtype, stop_gradient=True)


def ones(shape: Shape, dtype: object, force_cpu: bool = False) -> Variable:
    """All ones."""
    return fill_constant(shape, dtype, 1.0, force_cpu)


def zeros(shape: Shape, dtype: object, force_cpu: bool = False) -> Variable:
    """All zeros."""
    return fill_constant(shape, dtype, 0.0, force_cpu)


def zeros_like(x: Variable, out: Variable | None = None) -> Variable:
    """Zeros of the shape and dtype of ``x``; no gradient."""
    helper = LayerHelper("zeros_like")
    require_variable("zeros_like", "x", x)
    result = out if out is not None else helper.create_variable_for_type_inference(x.dtype)
    helper.append_op("fill_zeros_like", {"X": x}, {"Out": result})
    result.stop_gradient = True
    return result


def ones_like(x: Variable, out: Variable | None = None) -> Variable:
    """Ones of the shape and dtype of ``x``."""
    helper = LayerHelper("ones_like")
    require_variable("ones_like", "x", x)
    result = out if out is not None else helper.create_variable_for_type_inference(x.dtype)
    helper.append_op("fill_any_like", {"X": x}, {"Out": result}, {"value": 1.0})
    return result


def range(start: float | Variable, end: float | Variable, step: float | Variable, dtype: object) -> Variable:
    """start, start + step, ... below ``end``; each a number or a [1] variable. The length is known at run time."""
    given = {"Start": start, "End": end, "Step": step}
    inputs = {key: _as_constant(value, dtype) for key, value in given.items()}
    return LayerHelper("range").one("range", inputs, dtype=dtype, stop_gradient=True)


def _as_constant(value: float | Variable, dtype: object) -> Variable:
    if not isinstance(value, Variable):
        return fill_constant([1], dtype, value)
    return value if value.dtype == dtype_name(dtype) else cast(value, dtype)


def argmax(x: Variable, axis: int = 0) -> Variable:
    """The int64 index of the largest element along ``axis``; that dimension goes."""
    return _index_of("arg_max", x, axis)


def argmin(x: Variable, axis: int = 0) -> Variable:
    """The int64 index of the smallest element along ``axis``; that dimension goes."""
    return _index_of("arg_min", x, axis)


def _index_of(op_type: str, x: Variable, axis: int) -> Variable:
    require_variable(op_type, "x", x)
    return LayerHelper(op_type).one(op_type, {"X": x}, {"axis": axis}, dtype="int64", stop_gradient=True)


def argsort(
    input: Variable, axis: int = -1, descending: bool = False, name: str | None = None
) -> tuple[Variable, Variable]:
    """(sorted values, their int64 indices) along ``axis``."""
    helper = LayerHelper("argsort", name)
    require_variable("argsort", "input", input)
    values = helper.create_variable_for_type_inference(input.dtype, stop_gradient=True)
    indices = helper.create_variable_for_type_inference("int64", stop_gradient=True)
    attrs = {"axis": axis, "descending": descending}
    helper.append_op("argsort", {"X": input}, {"Out": values, "Indices": indices}, attrs)
    return values, indices


def reverse(x: Variable, axis: int | Sequence[int]) -> Variable:
    """``x`` with the order of elements turned round along the axes."""
    require_variable("reverse", "x", x)
    axes = [axis] if isinstance(axis, int) else list(axis)
    return LayerHelper("reverse").one("reverse", {"X": x}, {"axis": axes}, dtype=x.dtype)


def uniform_random(
    shape: Shape, dtype: object = "float32", min: float = -1.0, max: float = 1.0, seed: int = 0
) -> Variable:
    """Uniform values on [min, max), new ones at every run. Seed 0: the program's ``random_seed`` decides.

    (Fluid 1.8 drops ``dtype`` on the way to the op; here it counts.)
    """
    attrs = {"min": min, "max": max, "seed": seed}
    return _random("uniform_random", shape, dtype, attrs)


def gaussian_random(
    shape: Shape, mean: float = 0.0, std: float = 1.0, seed: int = 0, dtype: object = "float32"
) -> Variable:
    """Normal values, new ones at every run. Seed 0: the program's ``random_seed`` decides."""
    return _random("gaussian_random", shape, dtype, {"mean": mean, "std": std, "seed": seed})


def _random(op_type: str, shape: Shape, dtype: object, attrs: dict[str, Any]) -> Variable:
    helper = LayerHelper(op_type)
    inputs, dims = shape_arguments(shape, list_input="ShapeTensorList", helper=helper, dtype="int64")
    return helper.one(op_type, inputs, {**attrs, "shape": dims, "dtype": dtype_number(dtype)}, dtype=dtype)


def uniform_random_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    dtype: object = "float32",
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
) -> Variable:
    """`uniform_random` with one dimension taken from ``input`` at run time."""
    attrs = {"input_dim_idx": input_dim_idx, "output_dim_idx": output_dim_idx, "min": min, "max": max, "seed": seed}
    return _random_like("uniform_random_batch_size_like", input, shape, dtype, attrs)


def gaussian_random_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: object = "float32",
) -> Variable:
    """`gaussian_random` with one dimension taken from ``input`` at run time."""
    attrs = {"input_dim_idx": input_dim_idx, "output_dim_idx": output_dim_idx, "mean": mean, "std": std, "seed": seed}
    return _random_like("gaussian_random_batch_size_like", input, shape, dtype, attrs)


def _random_like(op_type: str, input: Variable, shape: Sequence[int], dtype: object, attrs: dict[str, Any]) -> Variable:
    require_variable(op_type, "input", input)
    attrs = {**attrs, "shape": shape, "dtype": dtype_number(dtype)}
    return LayerHelper(op_type).one(op_type, {"Input": input}, attrs, dtype=dtype)


def sampling_id(x: Variable, min: float = 0.0, max: float = 1.0, seed: int = 0, dtype: object = "float32") -> Variable:
    """One column index per row of probabilities ``x`` [N, classes], drawn by them; [N]."""
    require_dtype("sampling_id", require_variable("sampling_id", "x", x), FLOATS)
    return LayerHelper("sampling_id").one("sampling_id", {"X": x}, {"min": min, "max": max, "seed": seed}, dtype=dtype)
