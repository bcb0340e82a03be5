"""The same elements at other places: roll, flip, unbind, partial_concat, partial_sum, shuffle_batch, and the images'
pixel_shuffle, space_to_depth, shuffle_channel, temporal_shift."""

from __future__ import annotations

from typing import Final

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.grads import without_role
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.pairs import with_gradient
from fluidlite.ops.registry import REQUIRED, Case, float_attr, int_attr, ints_attr, long_attr, longs_attr, register
from fluidlite.ops.shapes import Shape, axis_in


def roll(ctx: KernelContext, X: Array, *, shifts: tuple[int, ...], dims: tuple[int, ...]) -> Array:
    return _rolled(X, shifts, dims)


def roll_grad(
    ctx: KernelContext, X: Array, Out_GRAD: Array, *, shifts: tuple[int, ...], dims: tuple[int, ...]
) -> Array:
    return _rolled(Out_GRAD, tuple(-shift for shift in shifts), dims)


def _rolled(x: Array, shifts: tuple[int, ...], dims: tuple[int, ...]) -> Array:
    """Without axes all elements move along their row-major order."""
    return np.roll(x, shifts, dims) if dims else np.roll(x, sum(shifts))


def _infer_roll(ctx: InferContext) -> None:
    shifts, dims = ctx.attr("shifts"), ctx.attr("dims")
    _check_axes(ctx, dims)
    if len(dims) != len(shifts) and dims:
        raise ctx.error(f"shifts {list(shifts)} and dims {list(dims)} must be of one length")
    like("X", "Out")(ctx)


def _check_axes(ctx: InferContext, axes: tuple[int, ...]) -> None:
    try:
        for axis in axes:
            axis_in(len(ctx.shape("X")), axis)
    except ShapeError as error:
        raise ctx.located(error) from None


def flip(ctx: KernelContext, X: Array, *, dims: tuple[int, ...]) -> Array:
    return np.flip(X, dims)


def _flip_back(op: Operator) -> list[Operator]:
    inputs = {"X": [names.grad(op.outputs["Out"][0])]}
    return [Operator("flip", inputs, {"Out": [names.grad(op.inputs["X"][0])]}, without_role(op), op.origin)]


def _infer_flip(ctx: InferContext) -> None:
    _check_axes(ctx, ctx.attr("dims"))
    like("X", "Out")(ctx)


def unbind(ctx: KernelContext, X: Array, *, axis: int) -> list[Array]:
    return list(np.moveaxis(X, axis_in(X.ndim, axis), 0))


def _stack_again(op: Operator) -> list[Operator]:
    inputs = {"X": [names.grad(argument) for argument in op.outputs["Out"]]}
    return [Operator("stack", inputs, {"Y": [names.grad(op.inputs["X"][0])]}, without_role(op), op.origin)]


def _infer_unbind(ctx: InferContext) -> None:
    shape = ctx.shape("X")
    _check_axes(ctx, (ctx.attr("axis"),))
    axis = ctx.attr("axis") % len(shape)
    if shape[axis] not in (-1, len(ctx.op.outputs["Out"])):
        raise ctx.error(f"axis {axis} of X {list(shape)} gives {shape[axis]} parts, not {len(ctx.op.outputs['Out'])}")
    ctx.set("Out", shape[:axis] + shape[axis + 1 :], ctx.input("X").dtype)


def _part(width: int, start_index: int, length: int) -> slice:
    """The columns that the partial ops take of each input."""
    start = start_index + width if start_index < 0 else start_index
    end = width if length < 0 else start + length
    if not 0 <= start < end <= width:
        raise ShapeError(f"start_index {start_index} and length {length} reach outside {width} columns")
    return slice(start, end)


def partial_concat(ctx: KernelContext, X: list[Array], *, start_index: int, length: int) -> Array:
    part = _part(X[0].shape[1], start_index, length)
    return np.concatenate([x[:, part] for x in X], axis=1)


def partial_concat_grad(
    ctx: KernelContext, X: list[Array], Out_GRAD: Array, *, start_index: int, length: int
) -> list[Array]:
    part = _part(X[0].shape[1], start_index, length)
    return [_only(x, part, grad) for x, grad in zip(X, np.split(Out_GRAD, len(X), axis=1), strict=True)]


def _only(x: Array, part: slice, grad: Array) -> Array:
    """Zeros like ``x``, with ``grad`` in the columns ``part``."""
    out = np.zeros_like(x)
    out[:, part] = grad
    return out


def partial_sum(ctx: KernelContext, X: list[Array], *, start_index: int, length: int) -> Array:
    part = _part(X[0].shape[1], start_index, length)
    return np.asarray(sum(x[:, part] for x in X))


def partial_sum_grad(
    ctx: KernelContext, X: list[Array], Out_GRAD: Array, *, start_index: int, length: int
) -> list[Array]:
    return [_only(x, _part(x.shape[1], start_index, length), Out_GRAD) for x in X]


def _infer_partial(ctx: InferContext) -> None:
    shapes = [var.shape or () for var in ctx.inputs("X")]
    if any(len(shape) != 2 or shape[1] != shapes[0][1] for shape in shapes):
        raise ctx.error(f"X holds shapes {[list(shape) for shape in shapes]}; they must be matrices of equal width")
    try:
        part = _part(shapes[0][1], ctx.attr("start_index"), ctx.attr("length"))
    except ShapeError as error:
        raise ctx.located(error) from None
    width = (part.stop - part.start) * (len(shapes) if ctx.op.type == "partial_concat" else 1)
    rows = next((shape[0] for shape in shapes if shape[0] >= 0), -1)
    ctx.set("Out", (rows, width), ctx.inputs("X")[0].dtype)


def shuffle_batch(ctx: KernelContext, X: Array, Seed: Array | None, *, startup_seed: int) -> dict[str, Array]:
    seed = startup_seed if Seed is None or not Seed.size else int(Seed.reshape(-1)[0])
    source = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed & 0xFFFFFFFF)))
    order = source.permutation(X.size // max(X.shape[-1], 1))
    next_seed = np.array([source.integers(1, 2**31 - 1)], np.int64)
    return {"Out": X.reshape(len(order), -1)[order].reshape(X.shape), "ShuffleIdx": order, "SeedOut": next_seed}


def shuffle_batch_grad(ctx: KernelContext, ShuffleIdx: Array, Out_GRAD: Array) -> Array:
    rows = Out_GRAD.reshape(len(ShuffleIdx), -1)
    grad = np.empty_like(rows)
    grad[ShuffleIdx] = rows
    return grad.reshape(Out_GRAD.shape)


def _infer_shuffle_batch(ctx: InferContext) -> None:
    x = ctx.input("X")
    ctx.set("Out", ctx.shape("X"), x.dtype, lod_level=x.lod_level)
    ctx.set("ShuffleIdx", (-1,), "int64")
    ctx.set("SeedOut", (1,), "int64")


def pixel_shuffle(ctx: KernelContext, X: Array, *, upscale_factor: int) -> Array:
    n, c, h, w = X.shape
    r = upscale_factor
    return X.reshape(n, c // (r * r), r, r, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // (r * r), h * r, w * r)


def pixel_shuffle_grad(ctx: KernelContext, Out_GRAD: Array, *, upscale_factor: int) -> Array:
    n, c, h, w = Out_GRAD.shape
    r = upscale_factor
    parts = Out_GRAD.reshape(n, c, h // r, r, w // r, r).transpose(0, 1, 3, 5, 2, 4)
    return parts.reshape(n, c * r * r, h // r, w // r)


def _infer_pixel_shuffle(ctx: InferContext) -> None:
    shape, r = _images(ctx), ctx.attr("upscale_factor")
    if r < 1 or shape[1] % (r * r):
        raise ctx.error(f"{shape[1]} channels do not divide by upscale_factor {r} squared")
    sides = (size if size < 0 else size * r for size in shape[2:])
    ctx.set("Out", (shape[0], shape[1] // (r * r), *sides), ctx.input("X").dtype)


def _images(ctx: InferContext) -> Shape:
    shape = ctx.shape("X")
    if len(shape) != 4:
        raise ctx.error(f"X must be images of 4 dimensions, not {list(shape)}")
    return shape


def space_to_depth(ctx: KernelContext, X: Array, *, blocksize: int) -> Array:
    n, c, h, w = X.shape
    b = blocksize
    cells = X.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    return cells.reshape(n, c * b * b, h // b, w // b)


def space_to_depth_grad(ctx: KernelContext, X: Array, Out_GRAD: Array, *, blocksize: int) -> Array:
    n, c, h, w = X.shape
    b = blocksize
    return Out_GRAD.reshape(n, c // (b * b), h, b, w, b).transpose(0, 3, 5, 1, 2, 4).reshape(X.shape)


def _infer_space_to_depth(ctx: InferContext) -> None:
    shape, b = _images(ctx), ctx.attr("blocksize")
    if b < 2 or shape[1] % (b * b) or any(size > 0 and size % b for size in shape[2:]):
        raise ctx.error(
            f"X {list(shape)} does not divide into blocks of {b}: blocksize must be at least 2, its square divide "
            "the channels"
        )
    sides = (size if size < 0 else size // b for size in shape[2:])
    ctx.set("Out", (shape[0], shape[1] * b * b, *sides), ctx.input("X").dtype)


def shuffle_channel(ctx: KernelContext, X: Array, *, group: int) -> Array:
    return _channels_shuffled(X, group)


def shuffle_channel_grad(ctx: KernelContext, Out_GRAD: Array, *, group: int) -> Array:
    return _channels_shuffled(Out_GRAD, Out_GRAD.shape[1] // group)


def _channels_shuffled(x: Array, group: int) -> Array:
    n, c, h, w = x.shape
    return x.reshape(n, group, c // group, h, w).swapaxes(1, 2).reshape(x.shape)


def _infer_shuffle_channel(ctx: InferContext) -> None:
    shape = _images(ctx)
    if ctx.attr("group") < 1 or shape[1] % ctx.attr("group"):
        raise ctx.error(f"{shape[1]} channels do not divide into {ctx.attr('group')} groups")
    like("X", "Out")(ctx)


def temporal_shift(ctx: KernelContext, X: Array, *, seg_num: int, shift_ratio: float) -> Array:
    return _shifted(X, seg_num, shift_ratio, 1)


def temporal_shift_grad(ctx: KernelContext, Out_GRAD: Array, *, seg_num: int, shift_ratio: float) -> Array:
    return _shifted(Out_GRAD, seg_num, shift_ratio, -1)


def _shifted(x: Array, frames: int, ratio: float, direction: int) -> Array:
    """The first share of the channels from the frame before, the second from the one after, the rest as it is."""
    if x.shape[0] % frames:
        raise ShapeError(f"{x.shape[0]} images do not divide into clips of {frames} frames")
    clips = x.reshape(-1, frames, *x.shape[1:])
    first, second = int(x.shape[1] * ratio), int(x.shape[1] * 2 * ratio)
    out = clips.copy()
    for part, step in ((slice(0, first), direction), (slice(first, second), -direction)):
        out[:, :, part] = 0
        to, source = (slice(1, None), slice(None, -1)) if step > 0 else (slice(None, -1), slice(1, None))
        out[:, to, part] = clips[:, source, part]
    return out.reshape(x.shape)


def _infer_temporal_shift(ctx: InferContext) -> None:
    shape = _images(ctx)
    frames, ratio = ctx.attr("seg_num"), ctx.attr("shift_ratio")
    if frames < 1 or not 0 < ratio < 0.5 or (shape[0] > 0 and shape[0] % frames):
        raise ProgramError(
            f"op 'temporal_shift': seg_num {frames} must divide the batch of X {list(shape)} and shift_ratio {ratio} lie "
            f"between 0 and 0.5 ({ctx.op.origin})"
        )
    like("X", "Out")(ctx)


_X: Final = varied(2, 3)
_IMAGES: Final = varied(2, 4, 2, 4)
_PARTIAL: Final = {"start_index": int_attr(0, "negative: from the end"), "length": int_attr(-1, "-1: all that follow")}

with_gradient(
    "roll",
    doc="Out = X with the elements moved `shifts[i]` places along axis `dims[i]`; what leaves comes back at the start.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"shifts": longs_attr(), "dims": longs_attr(doc="none: along the row-major order of all elements")},
    infer=_infer_roll,
    kernel=roll,
    gradient=roll_grad,
    reads=["X", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case({"X": _X}, {"shifts": [1], "dims": [1]}, {"Out": np.roll(_X, 1, 1)}, check_grad=("X",)),
        Case({"X": _X}, {"shifts": [1, -2], "dims": [0, 1]}, {"Out": np.roll(_X, (1, -2), (0, 1))}, check_grad=("X",)),
        Case({"X": _X}, {"shifts": [2]}, {"Out": np.roll(_X, 2)}, check_grad=("X",)),
    ),
)
register(
    "flip",
    doc="Out = X with the elements along each of `dims` in reverse order.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"dims": ints_attr(REQUIRED)},
    infer=_infer_flip,
    kernel=flip,
    grad=_flip_back,
    cases=(Case({"X": _X}, {"dims": [0, -1]}, {"Out": _X[::-1, ::-1]}, check_grad=("X",)),),
)
register(
    "unbind",
    doc="Out = the slices of X along `axis`, which goes.",
    inputs=["X"],
    outputs=["Out*"],
    attrs={"axis": int_attr(0)},
    infer=_infer_unbind,
    kernel=unbind,
    grad=_stack_again,
    cases=(
        Case(
            {"X": _X},
            {"axis": 1},
            {"Out": [_X[:, 0], _X[:, 1], _X[:, 2]]},
            n_outputs={"Out": 3},
            check_grad=("X",),
        ),
    ),
)
with_gradient(
    "partial_concat",
    doc="Out = some columns of each of X, side by side.",
    inputs=["X*"],
    outputs=["Out"],
    attrs=_PARTIAL,
    infer=_infer_partial,
    kernel=partial_concat,
    gradient=partial_concat_grad,
    reads=["X", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case(
            {"X": [_X, 2 * _X]},
            {"start_index": 1, "length": 1},
            {"Out": np.stack([_X[:, 1], 2 * _X[:, 1]], 1)},
            check_grad=("X",),
        ),
        Case({"X": [_X, 2 * _X]}, {"start_index": -2}, check_grad=("X",)),
    ),
)
with_gradient(
    "partial_sum",
    doc="Out = the sum of some columns of each of X.",
    inputs=["X*"],
    outputs=["Out"],
    attrs=_PARTIAL,
    infer=_infer_partial,
    kernel=partial_sum,
    gradient=partial_sum_grad,
    reads=["X", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case({"X": [_X, 2 * _X]}, {"start_index": 1, "length": 1}, {"Out": 3 * _X[:, 1:2]}, check_grad=("X",)),
        Case({"X": [_X, _X]}, {"start_index": 1}, check_grad=("X",)),
    ),
)
with_gradient(
    "shuffle_batch",
    doc="Out = the rows of X in random order (the generator is ours), ShuffleIdx = which row of X each is.",
    inputs=["X", "Seed?"],
    outputs=["Out", "ShuffleIdx", "SeedOut"],
    attrs={"startup_seed": int_attr(0, "for a Seed without a value")},
    infer=_infer_shuffle_batch,
    kernel=shuffle_batch,
    gradient=shuffle_batch_grad,
    reads=["ShuffleIdx", "Out@GRAD"],
    writes=["X@GRAD"],
    share_lod="X",
    cases=(
        Case({"X": varied(5, 2), "Seed": np.array([3])}, check_grad=("X",)),
        Case({"X": _X[:1], "Seed": np.array([1])}, {}, {"Out": _X[:1], "ShuffleIdx": np.array([0])}),
    ),
)
with_gradient(
    "pixel_shuffle",
    doc="Out = images with r² times fewer channels and r times the sides: each cell's channels become a square.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"upscale_factor": int_attr(1)},
    infer=_infer_pixel_shuffle,
    kernel=pixel_shuffle,
    gradient=pixel_shuffle_grad,
    reads=["Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case({"X": _IMAGES}, {"upscale_factor": 2}, check_grad=("X",)),
        Case(
            {"X": np.arange(4.0).reshape(1, 4, 1, 1)},
            {"upscale_factor": 2},
            {"Out": np.array([[[[0.0, 1.0], [2.0, 3.0]]]])},
        ),
    ),
)
with_gradient(
    "space_to_depth",
    doc="Out = the cells of images spread to b times the height and width with b² times fewer channels, then read as images "
    "of b times smaller sides and b² times more channels (what Darknet's reorg layer does), with b = `blocksize`.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"blocksize": long_attr(2)},
    infer=_infer_space_to_depth,
    kernel=space_to_depth,
    gradient=space_to_depth_grad,
    reads=["X", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(Case({"X": _IMAGES}, {"blocksize": 2}, check_grad=("X",)),),
)
with_gradient(
    "shuffle_channel",
    doc="Out = images with the channels of `group` groups dealt out in turn (Zhang et al. 2017, ShuffleNet).",
    inputs=["X"],
    outputs=["Out"],
    attrs={"group": int_attr(1)},
    infer=_infer_shuffle_channel,
    kernel=shuffle_channel,
    gradient=shuffle_channel_grad,
    reads=["Out@GRAD"],
    writes=["X@GRAD"],
    cases=(Case({"X": _IMAGES}, {"group": 2}, {"Out": _IMAGES[:, [0, 2, 1, 3]]}, check_grad=("X",)),),
)
with_gradient(
    "temporal_shift",
    doc="Out = frames of clips with a share of the channels of the frame before and one of the frame after (Lin, Gan, "
    "Han 2019).",
    inputs=["X"],
    outputs=["Out"],
    attrs={"seg_num": int_attr(REQUIRED, "frames of a clip"), "shift_ratio": float_attr(0.25)},
    infer=_infer_temporal_shift,
    kernel=temporal_shift,
    gradient=temporal_shift_grad,
    reads=["Out@GRAD"],
    writes=["X@GRAD"],
    cases=(Case({"X": varied(4, 4, 1, 2)}, {"seg_num": 2, "shift_ratio": 0.25}, check_grad=("X",)),),
)
