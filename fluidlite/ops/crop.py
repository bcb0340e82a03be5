"""Parts of arrays, and borders around them: crop, crop_tensor, random_crop, pad2d, pad_constant_like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.pairs import with_gradient
from fluidlite.ops.registry import REQUIRED, Case, float_attr, int_attr, ints_attr, register, string_attr
from fluidlite.ops.shapes import declared, given
from fluidlite.ops.windows import channel_axis


def _part(shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    """Where a part of ``sizes`` at ``offsets`` lies; a size of -1 reaches to the end."""
    if len(offsets) != len(shape) or len(sizes) != len(shape):
        raise ShapeError(f"offsets {list(offsets)} and sizes {list(sizes)} must be {len(shape)} numbers each")
    ends = [size if want < 0 else offset + want for size, offset, want in zip(shape, offsets, sizes, strict=True)]
    if any(not 0 <= offset <= end <= size for size, offset, end in zip(shape, offsets, ends, strict=True)):
        raise ShapeError(f"a part of {list(sizes)} at {list(offsets)} reaches outside {list(shape)}")
    return tuple(slice(offset, end) for offset, end in zip(offsets, ends, strict=True))


def crop(
    ctx: KernelContext,
    X: Array,
    Y: Array | None,
    Offsets: Array | None,
    *,
    offsets: tuple[int, ...],
    shape: tuple[int, ...],
) -> Array:
    sizes = shape if Y is None else Y.shape
    return X[_part(X.shape, given(Offsets, [], offsets) or (0,) * X.ndim, sizes)]


def crop_grad(
    ctx: KernelContext, X: Array, Offsets: Array | None, Out_GRAD: Array, *, offsets: tuple[int, ...]
) -> Array:
    return _put_back(X, given(Offsets, [], offsets), Out_GRAD)


def _put_back(x: Array, offsets: Sequence[int], grad: Array) -> Array:
    out = np.zeros_like(x)
    out[_part(x.shape, offsets or (0,) * x.ndim, grad.shape)] = grad
    return out


def _infer_crop(ctx: InferContext) -> None:
    shape = ctx.shape("X")
    wanted = tuple(ctx.attr("shape")) if ctx.maybe_input("Y") is None else ctx.shape("Y")
    if len(wanted) != len(shape):
        raise ctx.error(f"the shape {list(wanted)} must have as many numbers as X {list(shape)}")
    ctx.set("Out", wanted, ctx.input("X").dtype)


def crop_tensor(
    ctx: KernelContext,
    X: Array,
    Shape: Array | None,
    Offsets: Array | None,
    ShapeTensor: list[Array],
    OffsetsTensor: list[Array],
    *,
    offsets: tuple[int, ...],
    shape: tuple[int, ...],
) -> Array:
    start = given(Offsets, OffsetsTensor, offsets) or (0,) * X.ndim
    sizes = given(None, ShapeTensor, shape) if ShapeTensor else given(Shape, [], shape)
    return X[_part(X.shape, start, sizes)]


def crop_tensor_grad(
    ctx: KernelContext,
    X: Array,
    Offsets: Array | None,
    OffsetsTensor: list[Array],
    Out_GRAD: Array,
    *,
    offsets: tuple[int, ...],
) -> Array:
    return _put_back(X, given(Offsets, OffsetsTensor, offsets), Out_GRAD)


def _infer_crop_tensor(ctx: InferContext) -> None:
    shape, wanted = ctx.shape("X"), declared(ctx, "Shape", "ShapeTensor", "shape")
    if wanted is not None and len(wanted) != len(shape):
        raise ctx.error(f"the shape {list(wanted)} must have as many numbers as X {list(shape)}")
    starts = ctx.attr("offsets") or (0,) * len(shape)
    moved = ctx.inputs("Offsets") or ctx.inputs("OffsetsTensor")
    given_by_tensor = ctx.inputs("Shape") or ctx.inputs("ShapeTensor")
    if wanted is not None and not moved and not given_by_tensor and len(starts) == len(shape):
        wanted = tuple(
            size - start if want < 0 <= size else want for size, start, want in zip(shape, starts, wanted, strict=True)
        )
    ctx.set("Out", wanted, ctx.input("X").dtype)


def random_crop(
    ctx: KernelContext, X: Array, Seed: Array | None, *, shape: tuple[int, ...], startup_seed: int
) -> dict[str, Array]:
    seed = startup_seed if Seed is None or not Seed.size else int(Seed.reshape(-1)[0])
    source = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed & 0xFFFFFFFF)))
    batch = X.shape[: X.ndim - len(shape)]
    items = X.reshape(-1, *X.shape[X.ndim - len(shape) :])
    out = np.empty((len(items), *shape), X.dtype)
    for item, target in zip(items, out, strict=True):
        room = [size - want + 1 for size, want in zip(item.shape, shape, strict=True)]
        target[...] = item[_part(item.shape, [int(start) for start in source.integers(0, room)], shape)]
    return {"Out": out.reshape(*batch, *shape), "SeedOut": source.integers(1, 2**31 - 1, 1)}


def _infer_random_crop(ctx: InferContext) -> None:
    x, wanted = ctx.shape("X"), tuple(ctx.attr("shape"))
    if len(wanted) >= len(x) or any(0 <= size < want for size, want in zip(x[-len(wanted) :], wanted, strict=True)):
        raise ctx.error(f"parts of {list(wanted)} do not fit into the items of X {list(x)}")
    ctx.set("Out", (*x[: len(x) - len(wanted)], *wanted), ctx.input("X").dtype)
    ctx.set("SeedOut", (1,), "int64")


def _borders(paddings: Sequence[int], data_format: str) -> list[tuple[int, int]]:
    if len(paddings) != 4 or min(paddings) < 0:
        raise ShapeError(f"paddings {list(paddings)} must be top, bottom, left and right, each 0 or more")
    top, bottom, left, right = paddings
    borders = [(0, 0), (top, bottom), (left, right)]
    borders.insert(channel_axis(data_format), (0, 0))
    return borders


def pad2d(
    ctx: KernelContext,
    X: Array,
    Paddings: Array | None,
    *,
    paddings: tuple[int, ...],
    pad_value: float,
    mode: str,
    data_format: str,
) -> Array:
    borders = _borders(given(Paddings, [], paddings), data_format)
    if mode == "constant":
        return np.pad(X, borders, constant_values=np.asarray(pad_value).astype(X.dtype))
    return X[np.ix_(*_sources(X.shape, borders, mode))]


def _sources(shape: Sequence[int], borders: Sequence[tuple[int, int]], mode: str) -> list[Array]:
    """For each dimension which old cell each new one copies."""
    found = []
    for size, (before, after) in zip(shape, borders, strict=True):
        places = np.arange(-before, size + after)
        if mode == "reflect":
            if max(before, after) >= size:
                raise ShapeError(f"a border of {max(before, after)} cells cannot reflect {size} cells")
            places = np.abs(places)
            places = np.where(places >= size, 2 * (size - 1) - places, places)
        found.append(np.clip(places, 0, size - 1))
    return found


def pad2d_grad(
    ctx: KernelContext,
    X: Array,
    Paddings: Array | None,
    Out_GRAD: Array,
    *,
    paddings: tuple[int, ...],
    mode: str,
    data_format: str,
) -> Array:
    borders = _borders(given(Paddings, [], paddings), data_format)
    if mode == "constant":
        return Out_GRAD[tuple(slice(b, b + size) for size, (b, _) in zip(X.shape, borders, strict=True))]
    grad = np.zeros_like(X)
    np.add.at(grad, np.ix_(*_sources(X.shape, borders, mode)), Out_GRAD)
    return grad


def _infer_pad2d(ctx: InferContext) -> None:
    shape = ctx.shape("X")
    if ctx.attr("mode") not in ("constant", "reflect", "edge"):
        raise ProgramError(f"op 'pad2d': mode is {ctx.attr('mode')!r}, not constant, reflect or edge ({ctx.op.origin})")
    if len(shape) != 4:
        raise ctx.error(f"X must be images of 4 dimensions, not {list(shape)}")
    try:
        borders = _borders((0,) * 4 if ctx.inputs("Paddings") else ctx.attr("paddings"), ctx.attr("data_format"))
        channels = channel_axis(ctx.attr("data_format"))
    except ProgramError as error:
        raise ctx.located(error) from None
    out = [size if size < 0 else size + sum(pair) for size, pair in zip(shape, borders, strict=True)]
    if ctx.inputs("Paddings"):
        out = [size if axis in (0, channels) else -1 for axis, size in enumerate(shape)]
    ctx.set("Out", tuple(out), ctx.input("X").dtype)


def pad_constant_like(ctx: KernelContext, X: Array, Y: Array, *, pad_value: float) -> Array:
    part = _part(X.shape, (0,) * X.ndim, Y.shape)
    out = np.full_like(X, pad_value, dtype=Y.dtype)
    out[part] = Y
    return out


def pad_constant_like_grad(ctx: KernelContext, Y: Array, Out_GRAD: Array) -> Array:
    return Out_GRAD[tuple(slice(0, size) for size in Y.shape)]


def _infer_pad_constant_like(ctx: InferContext) -> None:
    x, y = ctx.shape("X"), ctx.shape("Y")
    if len(x) != len(y) or any(0 <= a < b for a, b in zip(x, y, strict=True)):
        raise ctx.error(f"Y {list(y)} must be no larger than X {list(x)}")
    like("X", "Out", dtype=ctx.input("Y").dtype)(ctx)


_X: Final = varied(3, 4)
_IMAGES: Final = varied(1, 2, 3, 3)

with_gradient(
    "crop",
    doc="Out = the part of X of a shape (attribute, or that of Y) that begins at `offsets`.",
    inputs=["X", "Y?", "Offsets?"],
    outputs=["Out"],
    attrs={"offsets": ints_attr(), "shape": ints_attr()},
    infer=_infer_crop,
    kernel=crop,
    gradient=crop_grad,
    reads=["Offsets", "X", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case({"X": _X}, {"offsets": [1, 0], "shape": [2, 3]}, {"Out": _X[1:, :3]}, check_grad=("X",)),
        Case(
            {"X": _X, "Y": np.zeros((1, 2)), "Offsets": np.array([2, 1], np.int32)},
            {},
            {"Out": _X[2:, 1:3]},
            check_grad=("X",),
        ),
    ),
)
with_gradient(
    "crop_tensor",
    doc="Out = the part of X of a shape that begins at `offsets`; a size of -1 reaches to the end.",
    inputs=["X", "Shape?", "Offsets?", "ShapeTensor*?", "OffsetsTensor*?"],
    outputs=["Out"],
    attrs={"offsets": ints_attr(), "shape": ints_attr()},
    infer=_infer_crop_tensor,
    kernel=crop_tensor,
    gradient=crop_tensor_grad,
    reads=["Offsets", "OffsetsTensor", "X", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case({"X": _X}, {"offsets": [1, 0], "shape": [2, 3]}, {"Out": _X[1:, :3]}, check_grad=("X",)),
        Case({"X": _X}, {"offsets": [0, 1], "shape": [2, -1]}, {"Out": _X[:2, 1:]}, check_grad=("X",)),
        Case(
            {
                "X": _X,
                "Shape": np.array([2, 2], np.int32),
                "OffsetsTensor": [np.array([1], np.int32), np.array([2], np.int32)],
            },
            {"shape": [-1, -1], "offsets": [-1, -1]},
            {"Out": _X[1:, 2:]},
            check_grad=("X",),
        ),
    ),
)
register(
    "random_crop",
    doc="Out = of each item a part of `shape` at a random place (the generator is ours).",
    inputs=["X", "Seed?"],
    outputs=["Out", "SeedOut~"],
    attrs={"shape": ints_attr(REQUIRED), "startup_seed": int_attr(0, "for a Seed without a value")},
    infer=_infer_random_crop,
    kernel=random_crop,
    cases=(
        Case({"X": _X, "Seed": np.array([3])}, {"shape": [4]}, {"Out": _X}),
        Case({"X": np.ones((2, 3, 3)), "Seed": np.array([3])}, {"shape": [2, 2]}, {"Out": np.ones((2, 2, 2))}),
    ),
)
with_gradient(
    "pad2d",
    doc="Out = images with cells put around them: top, bottom, left, right. `mode`: a constant, the image's own cells "
    "mirrored (reflect), or its outermost ones (edge).",
    inputs=["X", "Paddings?"],
    outputs=["Out"],
    attrs={
        "paddings": ints_attr(REQUIRED),
        "pad_value": float_attr(0.0),
        "mode": string_attr("constant"),
        "data_format": string_attr("NCHW", "or NHWC"),
    },
    infer=_infer_pad2d,
    kernel=pad2d,
    gradient=pad2d_grad,
    reads=["Paddings", "X", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=tuple(
        Case(
            {"X": _IMAGES},
            {"paddings": [1, 1, 0, 2], "pad_value": 0.5, "mode": mode, "data_format": layout},
            check_grad=("X",),
        )
        for mode, layout in (("constant", "NCHW"), ("edge", "NCHW"), ("reflect", "NHWC"))
    ),
)
with_gradient(
    "pad_constant_like",
    doc="Out = Y with `pad_value` after it along each axis, in the shape of X.",
    inputs=["X", "Y"],
    outputs=["Out"],
    attrs={"pad_value": float_attr(0.0)},
    infer=_infer_pad_constant_like,
    kernel=pad_constant_like,
    gradient=pad_constant_like_grad,
    reads=["Y", "Out@GRAD"],
    writes=["Y@GRAD"],
    cases=(
        Case(
            {"X": np.zeros((2, 3)), "Y": np.array([[1.0, 2.0]])},
            {"pad_value": 0.5},
            {"Out": np.array([[1.0, 2.0, 0.5], [0.5, 0.5, 0.5]])},
            check_grad=("Y",),
        ),
    ),
)
