"""Layers that move elements without computing: reshape, transpose, split, slice, gather, ..."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluidlite.errors import ProgramError, ShapeError
from fluidlite.framework import Variable, user_line
from fluidlite.layer_helper import INTS, LayerHelper, Variables, require_dtype, require_variable, variables
from fluidlite.layers.tensor import Shape, integers, shape_arguments


def _with_xshape(
    op_type: str, helper: LayerHelper, inputs: dict[str, Variables], attrs: dict[str, Any], out: Variable | None = None
) -> Variable:
    """An op whose second output keeps the shape of X for the gradient."""
    x = inputs["X"]
    assert isinstance(x, Variable)
    result = out if out is not None else helper.create_variable_for_type_inference(x.dtype)
    x_shape = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(op_type, inputs, {"Out": result, "XShape": x_shape}, attrs)
    return result


def reshape(
    x: Variable,
    shape: Shape,
    actual_shape: Variable | None = None,
    act: str | None = None,
    inplace: bool = False,
    name: str | None = None,
) -> Variable:
    """The elements of ``x`` in another shape.

    In ``shape`` 0 keeps the dimension of ``x`` at that place and one -1 is computed. Dimensions may be [1] integer
    variables, the whole shape an integer vector; ``actual_shape`` overrides it at run time. LoD stays only where
    dimension 0 stays. ``inplace`` writes to ``x`` itself.
    """
    require_variable("reshape", "x", x)
    helper = LayerHelper("reshape2", name, act=act)
    if not isinstance(shape, Variable):
        _check_reshape(x, shape)
    inputs, dims = shape_arguments(shape, whole_input="Shape", helper=helper)
    inputs["X"] = x
    if actual_shape is not None:
        inputs["Shape"] = require_variable("reshape", "actual_shape", actual_shape)
        actual_shape.stop_gradient = True
    out = _with_xshape("reshape2", helper, inputs, {"shape": dims}, out=x if inplace else None)
    return helper.append_activation(out)


def _check_reshape(x: Variable, shape: Sequence[int | Variable]) -> None:
    dims = [dim for dim in integers(shape) if not isinstance(dim, Variable)]
    if dims.count(-1) > 1 or any(dim < -1 for dim in dims):
        raise ShapeError(
            f"reshape: {list(shape)} for {x.name!r} {list(x.shape)}: at most one dimension may be -1 ({user_line()})"
        )


def transpose(x: Variable, perm: Sequence[int], name: str | None = None) -> Variable:
    """Dimension i of the result is dimension ``perm[i]`` of ``x``."""
    require_variable("transpose", "x", x)
    if sorted(perm) != list(range(len(x.shape))):
        raise ShapeError(
            f"transpose: perm {list(perm)} is no order of the {len(x.shape)} dimensions of {x.name!r} ({user_line()})"
        )
    return _with_xshape("transpose2", LayerHelper("transpose", name), {"X": x}, {"axis": list(perm)})


def squeeze(input: Variable, axes: Sequence[int], name: str | None = None) -> Variable:
    """``input`` without dimensions ``axes``, which are 1; an empty list drops every 1."""
    require_variable("squeeze", "input", input)
    return _with_xshape("squeeze2", LayerHelper("squeeze", name), {"X": input}, {"axes": list(axes)})


def unsqueeze(input: Variable, axes: int | Shape, name: str | None = None) -> Variable:
    """``input`` with dimensions of 1 put in, one after the other, at ``axes`` of the result."""
    require_variable("unsqueeze", "input", input)
    helper = LayerHelper("unsqueeze2", name)
    axes = [axes] if isinstance(axes, int) else axes
    inputs, values = shape_arguments(axes, whole_input="AxesTensor", list_input="AxesTensorList", helper=helper)
    inputs["X"] = input
    has_variables = len(inputs) > 1
    return _with_xshape("unsqueeze2", helper, inputs, {"axes": None if has_variables else values})


def flatten(x: Variable, axis: int = 1, name: str | None = None) -> Variable:
    """A matrix: dimensions before ``axis`` make the rows, the others the columns."""
    require_variable("flatten", "x", x)
    if not 0 <= axis <= len(x.shape):
        raise ShapeError(f"flatten: axis {axis} of {x.name!r} {list(x.shape)} ({user_line()})")
    return _with_xshape("flatten2", LayerHelper("flatten", name), {"X": x}, {"axis": axis})


def split(
    input: Variable, num_or_sections: int | Sequence[int | Variable], dim: int | Variable = -1, name: str | None = None
) -> list[Variable]:
    """Cut along ``dim`` into equal parts (a number) or sections of the given sizes, one of which may be -1."""
    require_variable("split", "input", input)
    helper = LayerHelper("split", name)
    inputs: dict[str, Variables] = {"X": input}
    attrs: dict[str, Any] = {}
    if isinstance(dim, Variable):
        inputs["AxisTensor"] = dim
    else:
        attrs["axis"] = dim + len(input.shape) if dim < 0 else dim
    if isinstance(num_or_sections, int):
        count = attrs["num"] = num_or_sections
        _check_split(input, attrs.get("axis"), count)
    else:
        given, attrs["sections"] = shape_arguments(num_or_sections, list_input="SectionsTensorList", helper=helper)
        inputs.update(given)
        count = len(num_or_sections)
    parts = helper.temporaries(count, input.dtype)
    helper.append_op("split", inputs, {"Out": parts}, attrs)
    return parts


def _check_split(input: Variable, axis: int | None, count: int) -> None:
    if axis is None:
        return
    if not 0 <= axis < len(input.shape):
        raise ShapeError(f"split: {input.name!r} {list(input.shape)} has no dimension {axis} ({user_line()})")
    size = input.shape[axis]
    if count < 1 or (size > 0 and size % count):
        raise ShapeError(
            f"split: dimension {axis} of {input.name!r} is {size}, not to be cut into {count} equal parts ({user_line()})"
        )


def stack(x: Variables, axis: int = 0) -> Variable:
    """Join variables of one shape along a new dimension ``axis``."""
    inputs = variables(x, "stack", "x")
    return LayerHelper("stack").one("stack", {"X": inputs}, {"axis": axis}, dtype=inputs[0].dtype, out="Y")


def unstack(x: Variable, axis: int = 0, num: int | None = None) -> list[Variable]:
    """The slices of ``x`` along dimension ``axis``, which goes; ``num`` is its size, if that is not known."""
    require_variable("unstack", "x", x)
    if not -len(x.shape) <= axis < len(x.shape):
        raise ShapeError(f"unstack: {x.name!r} {list(x.shape)} has no dimension {axis} ({user_line()})")
    size = x.shape[axis] if num is None else num
    if size <= 0:
        raise ShapeError(f"unstack: the size of dimension {axis} of {x.name!r} is unknown; give num ({user_line()})")
    helper = LayerHelper("unstack")
    parts = helper.temporaries(size, x.dtype)
    helper.append_op("unstack", {"X": x}, {"Y": parts}, {"axis": axis, "num": size})
    return parts


def expand(x: Variable, expand_times: Shape, name: str | None = None) -> Variable:
    """``x`` repeated ``expand_times[i]`` times along dimension i."""
    require_variable("expand", "x", x)
    helper = LayerHelper("expand", name)
    inputs, times = shape_arguments(
        expand_times, whole_input="ExpandTimes", list_input="expand_times_tensor", helper=helper
    )
    inputs["X"] = x
    return helper.one("expand", inputs, {"expand_times": times}, dtype=x.dtype)


def expand_as(x: Variable, target_tensor: Variable, name: str | None = None) -> Variable:
    """``x`` repeated to the shape of ``target_tensor``."""
    require_variable("expand_as", "x", x)
    require_variable("expand_as", "target_tensor", target_tensor)
    inputs = {"X": x, "target_tensor": target_tensor}
    return LayerHelper("expand_as", name).one("expand_as", inputs, dtype=x.dtype)


def slice(input: Variable, axes: Sequence[int], starts: Shape, ends: Shape) -> Variable:
    """The elements from ``starts[i]`` up to ``ends[i]`` of dimension ``axes[i]``.

    Negative positions count from the end, positions outside are cut to the dimension.
    """
    require_variable("slice", "input", input)
    _check_lengths("slice", axes, starts, ends)
    helper = LayerHelper("slice")
    inputs, attrs = _positions(helper, starts=starts, ends=ends)
    inputs["Input"] = input
    attrs["infer_flags"] = _known(axes, starts, ends)
    return helper.one("slice", inputs, {"axes": list(axes), **attrs}, dtype=input.dtype)


def strided_slice(input: Variable, axes: Sequence[int], starts: Shape, ends: Shape, strides: Shape) -> Variable:
    """Like `slice`, taking every ``strides[i]``-th element (a negative one goes backwards)."""
    require_variable("strided_slice", "input", input)
    _check_lengths("strided_slice", axes, starts, ends, strides)
    helper = LayerHelper("strided_slice")
    inputs, attrs = _positions(helper, starts=starts, ends=ends, strides=strides)
    inputs["Input"] = input
    attrs["infer_flags"] = _known(axes, starts, ends, strides)
    return helper.one("strided_slice", inputs, {"axes": list(axes), **attrs}, dtype=input.dtype)


def _positions(helper: LayerHelper, **given: Shape) -> tuple[dict[str, Variables], dict[str, Any]]:
    inputs: dict[str, Variables] = {}
    attrs: dict[str, Any] = {}
    for name, values in given.items():
        key = f"{name.capitalize()}Tensor"
        found, attrs[name] = shape_arguments(values, whole_input=key, list_input=f"{key}List", helper=helper)
        inputs.update(found)
    return inputs, attrs


def _known(axes: Sequence[int], *given: Shape) -> list[int]:
    """Per axis 1, or -1 where a position is a variable's."""
    if any(isinstance(values, Variable) for values in given):
        return [-1] * len(axes)
    columns = zip(*(list(values) for values in given if not isinstance(values, Variable)), strict=True)
    return [-1 if any(isinstance(value, Variable) for value in column) else 1 for column in columns]


def _check_lengths(layer: str, axes: Sequence[int], *given: Shape) -> None:
    for values in given:
        if not isinstance(values, Variable) and len(values) != len(axes):
            raise ProgramError(f"{layer}: {len(axes)} axes but {len(values)} positions ({user_line()})")


def gather(input: Variable, index: Variable, overwrite: bool = True) -> Variable:
    """Rows ``index`` (int32 or int64, [N] or [N, 1]) of ``input``.

    ``overwrite=False`` adds the gradients of a row taken twice instead of keeping the last one's.
    """
    require_variable("gather", "input", input)
    require_dtype("gather", require_variable("gather", "index", index), INTS)
    inputs = {"X": input, "Index": index}
    return LayerHelper("gather").one("gather", inputs, {"overwrite": overwrite}, dtype=input.dtype)


def gather_nd(input: Variable, index: Variable, name: str | None = None) -> Variable:
    """Elements or slices of ``input`` at the positions in the last dimension of ``index``."""
    require_variable("gather_nd", "input", input)
    require_dtype("gather_nd", require_variable("gather_nd", "index", index), INTS)
    return LayerHelper("gather_nd", name).one("gather_nd", {"X": input, "Index": index}, dtype=input.dtype)


def scatter(
    input: Variable, index: Variable, updates: Variable, name: str | None = None, overwrite: bool = True
) -> Variable:
    """``input`` with rows ``index`` replaced by ``updates`` (the last one wins), or by their sums (``overwrite=False``)."""
    require_variable("scatter", "input", input)
    require_dtype("scatter", require_variable("scatter", "index", index), INTS)
    inputs = {"X": input, "Ids": index, "Updates": require_variable("scatter", "updates", updates)}
    return LayerHelper("scatter", name).one("scatter", inputs, {"overwrite": overwrite}, dtype=input.dtype)


def pad(x: Variable, paddings: Sequence[int], pad_value: float = 0.0, name: str | None = None) -> Variable:
    """``x`` with ``paddings[2i]`` elements before and ``paddings[2i + 1]`` after dimension i."""
    require_variable("pad", "x", x)
    attrs = {"paddings": list(paddings), "pad_value": float(pad_value)}
    return LayerHelper("pad", name).one("pad", {"X": x}, attrs, dtype=x.dtype)


def shape(input: Variable) -> Variable:
    """The shape of ``input`` at run time, an int32 vector."""
    require_variable("shape", "input", input)
    return LayerHelper("shape").one("shape", {"Input": input}, dtype="int32")


def multiplex(inputs: Sequence[Variable], index: Variable) -> Variable:
    """Row i of the result is row i of the input number ``index[i]`` ([N, 1], int32 or int64)."""
    given = variables(inputs, "multiplex", "inputs")
    require_dtype("multiplex", require_variable("multiplex", "index", index), INTS)
    return LayerHelper("multiplex").one("multiplex", {"X": given, "Ids": index}, dtype=given[0].dtype)
