"""``variable[...]``: ints, slices and Variables as in numpy append `slice`, `strided_slice` and `reverse` ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from fluidlite import unique_name
from fluidlite.errors import ProgramError
from fluidlite.framework import Variable, user_line
from fluidlite.framework.dtypes import dtype_number

#: stands for the end of a dimension, as in Fluid
_END: Final = 10000000
Bound = int | Variable


class _Cut(NamedTuple):
    """What is taken of one dimension."""

    axis: int
    start: Bound
    end: Bound
    step: int
    drops_axis: bool


def item(var: Variable, index: Any) -> Variable:
    """``var[index]``: an int or a Variable ([1], a whole number) drops its dimension, ``::-1`` reverses it.

    Raises ProgramError for other indices, such as ``...`` and None.
    """
    parts = index if isinstance(index, tuple) else (index,)
    if len(parts) > len(var.shape):
        raise ProgramError(
            f"{var.name!r} of shape {list(var.shape)} has no item of {len(parts)} indices ({user_line()})"
        )
    cuts, reversed_axes = [], []
    for axis, part in enumerate(parts):
        if isinstance(part, slice) and part == slice(None, None, -1):
            reversed_axes.append(axis)
        elif not isinstance(part, slice) or part != slice(None):
            cuts.append(_cut(var, axis, part))
    out = _sliced(var, cuts) if cuts else var
    if reversed_axes:
        before, out = out, _new(var, "_slice_reverse")
        var.block.append_op("reverse", {"X": before}, {"Out": out}, {"axis": reversed_axes})
    return out


def _cut(var: Variable, axis: int, part: Any) -> _Cut:
    if isinstance(part, slice):
        start = 0 if part.start is None else part.start
        end = _END if part.stop is None else part.stop
        step = 1 if part.step is None else part.step
        if all(_is_bound(value) for value in (start, end)) and isinstance(step, int) and step:
            return _Cut(axis, start, end, step, drops_axis=False)
    elif isinstance(part, Variable):
        return _Cut(axis, part, _next(part), 1, drops_axis=True)
    elif _is_bound(part):
        return _Cut(axis, part, part + 1 if part != -1 else _END, 1, drops_axis=True)
    raise ProgramError(f"index {part!r} of {var.name!r} is no int, slice or Variable ({user_line()})")


def _is_bound(value: Any) -> bool:
    return isinstance(value, (int, Variable)) and not isinstance(value, bool)


def _sliced(var: Variable, cuts: Sequence[_Cut]) -> Variable:
    strided = any(cut.step != 1 for cut in cuts)
    inputs: dict[str, Any] = {"Input": var}
    attrs: dict[str, Any] = {
        "axes": [cut.axis for cut in cuts],
        "decrease_axis": [cut.axis for cut in cuts if cut.drops_axis],
        "infer_flags": [-1 if isinstance(cut.start, Variable) or isinstance(cut.end, Variable) else 1 for cut in cuts],
    }
    for name, key, bounds in (
        ("starts", "StartsTensorList", [cut.start for cut in cuts]),
        ("ends", "EndsTensorList", [cut.end for cut in cuts]),
    ):
        if any(isinstance(bound, Variable) for bound in bounds):
            inputs[key] = [_as_variable(var, bound) for bound in bounds]
        attrs[name] = [-1 if isinstance(bound, Variable) else bound for bound in bounds]
    if strided:
        attrs["strides"] = [cut.step for cut in cuts]
    out = _new(var, "_strided_slice" if strided else "_slice")
    var.block.append_op("strided_slice" if strided else "slice", inputs, {"Out": out}, attrs)
    return out


def _new(var: Variable, suffix: str) -> Variable:
    return var.block.create_var(unique_name.generate(var.name + suffix), var.dtype)


def _next(index: Variable) -> Variable:
    """The index plus one."""
    one, end = _constant(index, 1), index.block.create_var(dtype="int32")
    index.block.append_op("elementwise_add", {"X": index, "Y": one}, {"Out": end}, {"axis": -1})
    return end


def _as_variable(var: Variable, bound: Bound) -> Variable:
    if isinstance(bound, Variable):
        bound.stop_gradient = True
        return bound
    return _constant(var, bound)


def _constant(var: Variable, value: int) -> Variable:
    out = var.block.create_var(dtype="int32")
    attrs = {"shape": [1], "dtype": dtype_number("int32"), "value": float(value), "force_cpu": True}
    var.block.append_op("fill_constant", None, {"Out": out}, attrs, stop_gradient=True)
    return out


def install() -> None:
    """Give Variables the operator. They are not iterable: what has items only would be iterated without end."""
    setattr(Variable, "__getitem__", item)  # noqa: B010
    setattr(Variable, "__iter__", None)  # noqa: B010
