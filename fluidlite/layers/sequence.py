"""Layers on sequences of different lengths: rows [T, ...] whose LoD says where each sequence ends."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.errors import ProgramError, ShapeError
from fluidlite.framework import Variable, user_line
from fluidlite.framework.dtypes import dtype_number
from fluidlite.layer_helper import (
    FLOATS,
    INTS,
    LayerHelper,
    Variables,
    require_dtype,
    require_variable,
    variables,
)
from fluidlite.param_attr import AttrLike

_POOL_TYPES = ("AVERAGE", "SUM", "SQRT", "MAX", "FIRST", "LAST")


def _require_sequences(layer: str, var: Variable) -> None:
    if var.lod_level < 1:
        raise ShapeError(
            f"{layer}: {var.name!r} has no sequences (lod_level 0); declare it with lod_level=1 and feed it a LoDTensor "
            f"({user_line()})"
        )


def sequence_pool(input: Variable, pool_type: str, is_test: bool = False, pad_value: float = 0.0) -> Variable:
    """One row per sequence: its average, sum, sqrt (sum / √length), max, first or last row.

    An empty sequence gives ``pad_value``. The last level of LoD goes.
    """
    require_dtype("sequence_pool", require_variable("sequence_pool", "input", input), FLOATS)
    _require_sequences("sequence_pool", input)
    kind = str(pool_type).upper()
    if kind not in _POOL_TYPES:
        names = ", ".join(name.lower() for name in _POOL_TYPES)
        raise ProgramError(f"sequence_pool: pool_type must be one of {names}, not {pool_type!r} ({user_line()})")
    helper = LayerHelper("sequence_pool")
    out = helper.create_variable_for_type_inference(input.dtype)
    index = helper.create_variable_for_type_inference(input.dtype)
    attrs = {"pooltype": kind, "is_test": is_test, "pad_value": float(pad_value)}
    helper.append_op("sequence_pool", {"X": input}, {"Out": out, "MaxIndex": index}, attrs)
    if kind == "MAX":
        index.stop_gradient = True
    return out


def sequence_first_step(input: Variable) -> Variable:
    """The first row of each sequence."""
    return sequence_pool(input, "first")


def sequence_last_step(input: Variable) -> Variable:
    """The last row of each sequence."""
    return sequence_pool(input, "last")


def sequence_softmax(input: Variable, use_cudnn: bool = False, name: str | None = None) -> Variable:
    """Softmax over the elements of each sequence; ``input`` is [T, 1]."""
    require_dtype("sequence_softmax", require_variable("sequence_softmax", "input", input), FLOATS)
    attrs = {"use_cudnn": use_cudnn or None}
    return LayerHelper("sequence_softmax", name).one("sequence_softmax", {"X": input}, attrs, dtype=input.dtype)


def sequence_conv(
    input: Variable,
    num_filters: int,
    filter_size: int = 3,
    filter_stride: int = 1,
    padding: bool = True,
    padding_start: int | None = None,
    bias_attr: AttrLike = None,
    param_attr: AttrLike = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """act(context @ filter + bias) per row, where the context is ``filter_size`` rows around it; [T, num_filters].

    The context starts ``padding_start`` rows away (default ``-(filter_size // 2)``); rows beyond the sequence are 0.
    """
    require_dtype("sequence_conv", require_variable("sequence_conv", "input", input), FLOATS)
    if not padding or filter_stride != 1:
        raise ProgramError(f"sequence_conv works with padding and a stride of 1 only ({user_line()})")
    helper = LayerHelper("sequence_conv", name, act=act, bias_attr=bias_attr)
    filters = helper.create_parameter(param_attr, [filter_size * input.shape[1], num_filters], input.dtype)
    attrs = {
        "contextStride": filter_stride,
        "contextStart": -(filter_size // 2) if padding_start is None else padding_start,
        "contextLength": filter_size,
    }
    out = helper.one("sequence_conv", {"X": input, "Filter": filters}, attrs, dtype=input.dtype)
    return helper.append_activation(helper.append_bias_op(out))


def sequence_concat(input: Sequence[Variable], name: str | None = None) -> Variable:
    """Sequence i of the result is the sequences i of all inputs, one after the other."""
    inputs = variables(input, "sequence_concat", "input")
    return LayerHelper("sequence_concat", name).one("sequence_concat", {"X": inputs}, dtype=inputs[0].dtype)


def sequence_slice(input: Variable, offset: Variable, length: Variable, name: str | None = None) -> Variable:
    """Of sequence i the ``length[i]`` rows from ``offset[i]`` on; both are integers [N, 1]."""
    inputs = {"X": require_variable("sequence_slice", "input", input), "Offset": offset, "Length": length}
    for key in ("Offset", "Length"):
        require_dtype("sequence_slice", require_variable("sequence_slice", key.lower(), inputs[key]), INTS)
        inputs[key].stop_gradient = True
    return LayerHelper("sequence_slice", name).one("sequence_slice", inputs, dtype=input.dtype)


def sequence_expand(x: Variable, y: Variable, ref_level: int = -1, name: str | None = None) -> Variable:
    """Sequence i of ``x`` (its row i, when it has no LoD) repeated as often as sequence i of ``y`` is long.

    ``ref_level`` is the level of ``y``'s LoD, -1 the last.
    """
    require_variable("sequence_expand", "x", x)
    inputs = {"X": x, "Y": require_variable("sequence_expand", "y", y)}
    attrs = {"ref_level": ref_level}
    return LayerHelper("sequence_expand", name).one("sequence_expand", inputs, attrs, dtype=x.dtype)


def sequence_expand_as(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Row i of ``x`` repeated for every row of sequence i of ``y``; the result has ``y``'s LoD."""
    require_variable("sequence_expand_as", "x", x)
    inputs = {"X": x, "Y": require_variable("sequence_expand_as", "y", y)}
    return LayerHelper("sequence_expand_as", name).one("sequence_expand_as", inputs, dtype=x.dtype)


def sequence_pad(
    x: Variable, pad_value: Variable, maxlen: int | None = None, name: str | None = None
) -> tuple[Variable, Variable]:
    """(sequences as [N, maxlen, ...] filled up with ``pad_value``, their int64 lengths [N]).

    ``pad_value`` is one element or one row; ``maxlen`` None means the longest sequence of the batch.
    """
    require_variable("sequence_pad", "x", x)
    _require_sequences("sequence_pad", x)
    helper = LayerHelper("sequence_pad", name)
    out = helper.create_variable_for_type_inference(x.dtype)
    length = helper.create_variable_for_type_inference("int64", stop_gradient=True)
    require_variable("sequence_pad", "pad_value", pad_value).stop_gradient = True
    attrs = {"padded_length": -1 if maxlen is None else maxlen}
    helper.append_op("sequence_pad", {"X": x, "PadValue": pad_value}, {"Out": out, "Length": length}, attrs)
    return out, length


def sequence_unpad(x: Variable, length: Variable, name: str | None = None) -> Variable:
    """The first ``length[i]`` rows of each ``x[i]`` as sequences: the opposite of `sequence_pad`."""
    require_dtype("sequence_unpad", require_variable("sequence_unpad", "length", length), ("int64",))
    length.stop_gradient = True
    inputs = {"X": require_variable("sequence_unpad", "x", x), "Length": length}
    return LayerHelper("sequence_unpad", name).one("sequence_unpad", inputs, dtype=x.dtype)


def sequence_reshape(input: Variable, new_dim: int) -> Variable:
    """Rows of ``new_dim`` elements: sequence lengths change by the factor that widths do."""
    require_variable("sequence_reshape", "input", input)
    helper = LayerHelper("sequence_reshape")
    return helper.one("sequence_reshape", {"X": input}, {"new_dim": new_dim}, dtype=input.dtype)


def sequence_mask(
    x: Variable, maxlen: int | Variable | None = None, dtype: object = "int64", name: str | None = None
) -> Variable:
    """1 for the first ``x[i]`` of ``maxlen`` columns, else 0; ``maxlen`` None means the largest length."""
    require_variable("sequence_mask", "x", x)
    inputs: dict[str, Variables] = {"X": x}
    attrs = {"out_dtype": dtype_number(dtype)}
    if isinstance(maxlen, Variable):
        inputs["MaxLenTensor"] = maxlen
    else:
        attrs["maxlen"] = -1 if maxlen is None else maxlen
    helper = LayerHelper("sequence_mask", name)
    return helper.one("sequence_mask", inputs, attrs, dtype=dtype, out="Y", stop_gradient=True)


def sequence_enumerate(input: Variable, win_size: int, pad_value: int = 0, name: str | None = None) -> Variable:
    """The ``win_size`` ids from each position on, ``pad_value`` beyond the sequence; ids [T, 1] give [T, win_size]."""
    require_dtype("sequence_enumerate", require_variable("sequence_enumerate", "input", input), INTS)
    attrs = {"win_size": win_size, "pad_value": pad_value}
    helper = LayerHelper("sequence_enumerate", name)
    return helper.one("sequence_enumerate", {"X": input}, attrs, dtype=input.dtype, stop_gradient=True)


def sequence_reverse(x: Variable, name: str | None = None) -> Variable:
    """The rows of each sequence in reverse order."""
    require_variable("sequence_reverse", "x", x)
    return LayerHelper("sequence_reverse", name).one("sequence_reverse", {"X": x}, dtype=x.dtype, out="Y")


def sequence_scatter(input: Variable, index: Variable, updates: Variable, name: str | None = None) -> Variable:
    """``input`` with ``updates`` added to row i at the columns that sequence i of ``index`` names."""
    require_variable("sequence_scatter", "input", input)
    require_dtype("sequence_scatter", require_variable("sequence_scatter", "index", index), INTS)
    inputs = {"X": input, "Ids": index, "Updates": require_variable("sequence_scatter", "updates", updates)}
    return LayerHelper("sequence_scatter", name).one("sequence_scatter", inputs, dtype=input.dtype)


def lod_reset(x: Variable, y: Variable | None = None, target_lod: Sequence[int] | None = None) -> Variable:
    """``x`` with other LoD: ``y``'s (its values, when it has none), or the offsets ``target_lod``."""
    return _reset("lod_reset", x, y, target_lod, append=None)


def lod_append(x: Variable, level: Variable | Sequence[int]) -> Variable:
    """``x`` with one more level of LoD below those it has."""
    y = level if isinstance(level, Variable) else None
    return _reset("lod_append", x, y, None if isinstance(level, Variable) else list(level), append=True)


def _reset(
    layer: str, x: Variable, y: Variable | None, target_lod: Sequence[int] | None, append: bool | None
) -> Variable:
    require_variable(layer, "x", x)
    if y is None and target_lod is None:
        raise ProgramError(f"{layer}: give a variable or offsets for the new LoD of {x.name!r} ({user_line()})")
    inputs = {"X": x, "Y": y}
    attrs = {"target_lod": None if y is not None else target_lod, "append": append}
    return LayerHelper(layer).one("lod_reset", inputs, attrs, dtype=x.dtype)


def row_conv(
    input: Variable, future_context_size: int, param_attr: AttrLike = None, act: str | None = None
) -> Variable:
    """Per column a weighted sum of a row and the ``future_context_size`` rows after it in its sequence.

    Amodei et al., "Deep Speech 2", 2015.
    """
    require_dtype("row_conv", require_variable("row_conv", "input", input), FLOATS)
    helper = LayerHelper("row_conv", act=act)
    filters = helper.create_parameter(param_attr, [future_context_size + 1, input.shape[-1]], input.dtype)
    return helper.append_activation(helper.one("row_conv", {"X": input, "Filter": filters}, dtype=input.dtype))
