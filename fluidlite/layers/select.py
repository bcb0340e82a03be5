"""Layers that take, place and move elements: index_sample, scatter_nd, crop, pad2d, roll, ..."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite import unique_name
from fluidlite.errors import ProgramError
from fluidlite.framework import Variable, user_line
from fluidlite.layer_helper import INTS, LayerHelper, Variables, require_dtype, require_same_dtype, require_variable
from fluidlite.layers.shape import reshape
from fluidlite.layers.tensor import Shape, shape_arguments, zeros


def index_sample(x: Variable, index: Variable) -> Variable:
    """Of row i of ``x`` [N, D] the columns in row i of ``index`` [N, K]; [N, K]."""
    require_dtype("index_sample", require_variable("index_sample", "index", index), INTS)
    inputs = {"X": require_variable("index_sample", "x", x), "Index": index}
    return LayerHelper("index_sample").one("index_sample", inputs, dtype=x.dtype)


def index_select(input: Variable, index: Variable, dim: int = 0) -> Variable:
    """The slices of ``input`` along dimension ``dim`` that the vector ``index`` names."""
    require_dtype("index_select", require_variable("index_select", "index", index), INTS)
    inputs = {"X": require_variable("index_select", "input", input), "Index": index}
    return LayerHelper("index_select").one("index_select", inputs, {"dim": dim}, dtype=input.dtype)


def scatter_nd_add(ref: Variable, index: Variable, updates: Variable, name: str | None = None) -> Variable:
    """``ref`` plus each of ``updates`` at the place in the last dimension of ``index``; repeated places add up."""
    require_same_dtype("scatter_nd_add", require_variable("scatter_nd_add", "ref", ref), updates)
    require_dtype("scatter_nd_add", require_variable("scatter_nd_add", "index", index), INTS)
    inputs = {"X": ref, "Index": index, "Updates": updates}
    return LayerHelper("scatter_nd_add", name).one("scatter_nd_add", inputs, dtype=ref.dtype)


def scatter_nd(index: Variable, updates: Variable, shape: Sequence[int], name: str | None = None) -> Variable:
    """Zeros of ``shape`` plus each of ``updates`` at its place; see `scatter_nd_add`."""
    require_variable("scatter_nd", "updates", updates)
    return scatter_nd_add(zeros(shape, updates.dtype), index, updates, name)


def shard_index(input: Variable, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1) -> Variable:
    """Ids [..., 1] of shard ``shard_id`` counted from its start, ``ignore_value`` for those of other shards."""
    require_dtype("shard_index", require_variable("shard_index", "input", input), INTS)
    attrs = {"index_num": index_num, "nshards": nshards, "shard_id": shard_id, "ignore_value": ignore_value}
    if not 0 <= shard_id < nshards:
        raise ProgramError(f"shard_index: shard_id {shard_id} is not in [0, {nshards}) ({user_line()})")
    return LayerHelper("shard_index").one("shard_index", {"X": input}, attrs, dtype=input.dtype)


def flip(input: Variable, dims: int | Sequence[int], name: str | None = None) -> Variable:
    """``input`` with the elements along dimensions ``dims`` in reverse order."""
    require_variable("flip", "input", input)
    axes = [dims] if isinstance(dims, int) else list(dims)
    return LayerHelper("flip", name).one("flip", {"X": input}, {"dims": axes}, dtype=input.dtype)


def roll(input: Variable, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Variable:
    """``input`` with its elements moved ``shifts[i]`` places along dimension ``dims[i]``, or along their order without."""
    require_variable("roll", "input", input)
    helper, shape = LayerHelper("roll"), input.shape
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [0] if dims is None else [dims] if isinstance(dims, int) else list(dims)
    if len(moves) != len(axes):
        raise ProgramError(f"roll: {len(moves)} shifts for {len(axes)} dims ({user_line()})")
    given = input if dims is not None else reshape(input, shape=[-1, 1])
    out = helper.one("roll", {"X": given}, {"dims": axes, "shifts": moves}, dtype=input.dtype)
    return reshape(out, shape=shape, inplace=True)


def crop(x: Variable, shape: Shape | None = None, offsets: Shape | None = None, name: str | None = None) -> Variable:
    """The part of ``x`` of a shape, numbers or a variable that has it, that begins at ``offsets`` (default: 0)."""
    require_variable("crop", "x", x)
    if shape is None:
        raise ProgramError(f"crop of {x.name!r}: shape is missing ({user_line()})")
    inputs: dict[str, Variables] = {"X": x}
    attrs: dict[str, Any] = {}
    starts = [0] * len(x.shape) if offsets is None else offsets
    for value, key, name_of in ((shape, "Y", "shape"), (starts, "Offsets", "offsets")):
        if isinstance(value, Variable):
            inputs[key] = value
        else:
            attrs[name_of] = [int(item) for item in value if not isinstance(item, Variable)]
    return LayerHelper("crop", name).one("crop", inputs, attrs, dtype=x.dtype)


def crop_tensor(
    x: Variable, shape: Shape | None = None, offsets: Shape | None = None, name: str | None = None
) -> Variable:
    """The part of ``x`` of ``shape`` that begins at ``offsets``; -1 in the shape reaches to the end.

    Each of both is a list of numbers and [1] variables, or one integer variable; without ``offsets`` it begins at 0.
    """
    require_variable("crop_tensor", "x", x)
    helper = LayerHelper("crop_tensor", name)
    if shape is None:
        raise ProgramError(f"crop_tensor of {x.name!r}: shape is missing ({user_line()})")
    out = helper.create_variable_for_type_inference(x.dtype)
    starts = [0] * len(x.shape) if offsets is None else offsets
    inputs: dict[str, Variables] = {"X": x}
    attrs: dict[str, Any] = {}
    for value, key in ((starts, "offsets"), (shape, "shape")):
        whole = key.capitalize()
        found, attrs[key] = shape_arguments(value, whole_input=whole, list_input=f"{whole}Tensor", helper=helper)
        inputs.update(found)
    helper.append_op("crop_tensor", inputs, {"Out": out}, attrs)
    return out


def random_crop(x: Variable, shape: Sequence[int], seed: int | Variable | None = None) -> Variable:
    """Of each item of ``x`` a part of ``shape`` at a random place.

    ``seed``: a number, or an int64 variable that each run leaves ready for the next; without one numpy's global
    generator, which scripts seed by ``np.random.seed``, gives it.
    """
    require_variable("random_crop", "x", x)
    helper = LayerHelper("random_crop")
    out = helper.create_variable_for_type_inference(x.dtype)
    attrs: dict[str, Any] = {"shape": list(shape)}
    if isinstance(seed, Variable):
        source = seed
    else:
        attrs["startup_seed"] = fresh_seed() if seed is None else seed
        name = unique_name.generate("random_crop_seed")
        source = helper.create_variable(name=name, dtype="int64", persistable=True)
    helper.append_op("random_crop", {"X": x, "Seed": source}, {"Out": out, "SeedOut": source}, attrs)
    return out


def fresh_seed() -> int:
    """A seed from numpy's global generator."""
    return int(np.random.randint(-65536, 65536))  # noqa: NPY002 (scripts seed this one)


def pad2d(
    input: Variable,
    paddings: Sequence[int] | Variable = (0, 0, 0, 0),
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Images with cells put around them: ``paddings`` = top, bottom, left, right (numbers, or an int32 variable).

    ``mode``: a constant, the image's own cells mirrored ('reflect'), or its outermost ones ('edge').
    """
    require_variable("pad2d", "input", input)
    inputs: dict[str, Variables] = {"X": input}
    attrs: dict[str, Any] = {"mode": mode, "pad_value": float(pad_value), "data_format": data_format}
    if isinstance(paddings, Variable):
        inputs["Paddings"] = paddings
        attrs["paddings"] = []
    else:
        attrs["paddings"] = list(paddings)
    return LayerHelper("pad2d", name).one("pad2d", inputs, attrs, dtype=input.dtype)


def pad_constant_like(x: Variable, y: Variable, pad_value: float = 0.0, name: str | None = None) -> Variable:
    """``y`` with ``pad_value`` after it along each dimension, in the shape of ``x``."""
    inputs = {"X": require_variable("pad_constant_like", "x", x), "Y": y}
    attrs = {"pad_value": float(pad_value)}
    return LayerHelper("pad_constant_like", name).one("pad_constant_like", inputs, attrs, dtype=y.dtype)
