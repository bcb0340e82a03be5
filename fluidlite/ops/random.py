"""Random numbers: uniform_random, gaussian_random (and as large as a batch), truncated_gaussian_random, sampling_id,
seed.

With a seed (the attribute, else the program's) the numbers are Fluid's own, see `fluidlite.values.minstd`. Without
one they are keyed by the name of the output variable: a persistable variable gets the same first value in every
process and run, a temporary other numbers in every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array, numpy_dtype
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.initial import TABLE_ATTRS, infer_batch_size_like, infer_initial, new_table, replaced
from fluidlite.ops.registry import (
    REQUIRED,
    AttrSpec,
    Case,
    Kernel,
    float_attr,
    int_attr,
    ints_attr,
    longs_attr,
    register,
)
from fluidlite.ops.shapes import Shape, given
from fluidlite.values.initial import Normal, RowInit, TruncatedNormal, Uniform, normal_quantile
from fluidlite.values.memory import affordable
from fluidlite.values.minstd import MinStd

_SEED: Final = {
    "seed": int_attr(0, "0: the program's seed; where that is 0 too, the output variable's name"),
    "dtype": int_attr(5, "VarType number"),
}
_UNIFORM: Final[dict[str, AttrSpec]] = {
    "min": float_attr(-1.0),
    "max": float_attr(1.0),
    "diag_num": int_attr(0, "how many elements diag_num steps apart are set to diag_val"),
    "diag_step": int_attr(0, "elements between two of them"),
    "diag_val": float_attr(1.0),
    **_SEED,
}
_NORMAL: Final[dict[str, AttrSpec]] = {"mean": float_attr(0.0), "std": float_attr(1.0), **_SEED}
_LIKE: Final = {"shape": ints_attr(REQUIRED), "input_dim_idx": int_attr(0), "output_dim_idx": int_attr(0)}


@dataclass(frozen=True)
class Distribution:
    """How numbers are drawn with Fluid's generator, and with ours; and how rows of a table start."""

    seeded: Callable[[MinStd, int, dict[str, Any], np.dtype[Any]], Array]
    keyed: Callable[[np.random.Generator, int, dict[str, Any]], Array]
    rows: Callable[[dict[str, Any]], RowInit]

    def draw(self, ctx: KernelContext, shape: Shape, attrs: dict[str, Any]) -> Array:
        """An array of the given shape."""
        dtype = numpy_dtype(attrs["dtype"])
        count = math.prod(affordable(shape, dtype))
        seed = attrs["seed"] or ctx.program.random_seed
        if seed:
            return self.seeded(MinStd(seed), count, attrs, dtype).reshape(shape)
        is_initial = ctx.output_var("Out").persistable
        source = ctx.initial_generator() if is_initial else ctx.generator(0)
        return self.keyed(source, count, attrs).astype(dtype, copy=False).reshape(shape)


def _truncated(source: np.random.Generator, count: int, attrs: dict[str, Any]) -> Array:
    tail = math.erfc(math.sqrt(2.0)) / 2
    return np.asarray(attrs["mean"] + attrs["std"] * normal_quantile(source.uniform(tail, 1 - tail, count)))


UNIFORM: Final = Distribution(
    lambda source, count, attrs, dtype: source.uniform(count, attrs["min"], attrs["max"], dtype),
    # Fluid's generator, above, also takes a min above the max
    lambda source, count, attrs: source.uniform(
        min(attrs["min"], attrs["max"]), max(attrs["min"], attrs["max"]), count
    ),
    lambda attrs: Uniform(attrs["min"], attrs["max"]),
)
NORMAL: Final = Distribution(
    lambda source, count, attrs, dtype: source.normal(count, attrs["mean"], attrs["std"], dtype),
    lambda source, count, attrs: source.normal(attrs["mean"], attrs["std"], count),
    lambda attrs: Normal(attrs["mean"], attrs["std"]),
)
TRUNCATED: Final = Distribution(
    lambda source, count, attrs, dtype: source.truncated_normal(count, attrs["mean"], attrs["std"], dtype),
    _truncated,
    lambda attrs: TruncatedNormal(attrs["mean"], attrs["std"]),
)


def _initial_kernel(distribution: Distribution) -> Kernel:
    """Kernel of an op whose Out has a declared shape, or is a table."""

    def kernel(ctx: KernelContext, **attrs: Any) -> Any:
        shape = given(attrs.get("ShapeTensor"), attrs.get("ShapeTensorList", ()), attrs["shape"])
        if attrs["auto_grown_table"]:
            return new_table(ctx, shape, attrs["dtype"], distribution.rows(attrs), attrs["seed"])
        return _with_diagonal(distribution.draw(ctx, shape, attrs), attrs)

    return kernel


def _like_kernel(distribution: Distribution) -> Kernel:
    """Kernel of an op whose Out has one dimension of Input."""

    def kernel(ctx: KernelContext, Input: Array, **attrs: Any) -> Array:
        size = Input.shape[attrs["input_dim_idx"]]
        shape = replaced(attrs["shape"], attrs["output_dim_idx"], size)
        return _with_diagonal(distribution.draw(ctx, shape, attrs), attrs)

    return kernel


def _with_diagonal(values: Array, attrs: dict[str, Any]) -> Array:
    """`uniform_random` can set evenly spaced elements, such as a diagonal, to one value."""
    count, step = attrs.get("diag_num", 0), attrs.get("diag_step", 0) + 1
    if count:
        if (count - 1) * step >= values.size:
            raise ProgramError(f"diag_num {count} elements {step} apart do not fit into {values.size} values")
        values.reshape(-1)[: count * step : step] = attrs["diag_val"]
    return values


def sampling_id(ctx: KernelContext, X: Array, *, min: float, max: float, seed: int) -> Array:
    """Walks each row until a uniform number is used up by its probabilities."""
    seed = seed or ctx.program.random_seed
    if seed:
        drawn = MinStd(seed).uniform(len(X), min, max, X.dtype)
    else:
        drawn = ctx.generator(0).uniform(min, max, len(X)).astype(X.dtype)
    reached = np.cumsum(X, axis=1) > drawn[:, None]
    return np.asarray(np.where(reached.any(axis=1), reached.argmax(axis=1), X.shape[1] - 1))


def _infer_sampling_id(ctx: InferContext) -> None:
    shape = ctx.shape("X")
    if len(shape) != 2:
        raise ctx.error(f"X must have shape (n, classes), not {list(shape)}")
    ctx.set("Out", shape[:1], "int64", lod_level=ctx.input("X").lod_level)


def seed_(ctx: KernelContext, *, seed: int) -> Array:
    return np.array([seed or ctx.generator(0).integers(1, 2**31 - 1)], np.int32)


def _infer_seed(ctx: InferContext) -> None:
    ctx.set("Out", (1,), "int32")


_SHAPE_INPUTS: Final = ["ShapeTensor?", "ShapeTensorList*?"]
_FLOAT64: Final = 6
_UNIFORM_7: Final = np.array([[-0.9996853, 0.19045424], [-0.5810635, -0.5174421]], np.float32)
_NORMAL_7: Final = np.array([[-0.66629976, -0.7482237], [-0.6952409, 1.113255]], np.float32)

register(
    "uniform_random",
    doc="Out = `shape` of numbers uniform between min and max.",
    inputs=_SHAPE_INPUTS,
    outputs=["Out"],
    attrs={"shape": longs_attr(), **_UNIFORM, **TABLE_ATTRS},
    infer=infer_initial,
    kernel=_initial_kernel(UNIFORM),
    cases=(
        Case({}, {"shape": [2, 2], "seed": 7}, {"Out": _UNIFORM_7}),
        Case({"ShapeTensor": np.array([2, 2])}, {"seed": 7}, {"Out": _UNIFORM_7}),
        Case(
            {},
            {"shape": [2, 2], "min": 2.0, "max": 2.0, "dtype": _FLOAT64, "diag_num": 2, "diag_step": 2},
            {"Out": np.array([[1.0, 2.0], [2.0, 1.0]])},
        ),
    ),
)
register(
    "uniform_random_batch_size_like",
    doc="Out = numbers uniform between min and max, with one dimension as large as one of Input.",
    inputs=["Input"],
    outputs=["Out"],
    attrs={**_LIKE, **_UNIFORM},
    infer=infer_batch_size_like,
    kernel=_like_kernel(UNIFORM),
    cases=(Case({"Input": np.array([[1], [2]])}, {"shape": [-1, 2], "seed": 7}, {"Out": _UNIFORM_7}),),
)
register(
    "gaussian_random",
    doc="Out = `shape` of normal numbers.",
    inputs=_SHAPE_INPUTS,
    outputs=["Out"],
    attrs={"shape": longs_attr(), **_NORMAL, **TABLE_ATTRS},
    infer=infer_initial,
    kernel=_initial_kernel(NORMAL),
    cases=(Case({}, {"shape": [2, 2], "seed": 7}, {"Out": _NORMAL_7}),),
)
register(
    "gaussian_random_batch_size_like",
    doc="Out = normal numbers, with one dimension as large as one of Input.",
    inputs=["Input"],
    outputs=["Out"],
    attrs={**_LIKE, **_NORMAL},
    infer=infer_batch_size_like,
    kernel=_like_kernel(NORMAL),
    cases=(Case({"Input": np.array([[1], [2]])}, {"shape": [-1, 2], "seed": 7}, {"Out": _NORMAL_7}),),
)
register(
    "truncated_gaussian_random",
    doc="Out = `shape` of normal numbers within two standard deviations of the mean.",
    inputs=[],
    outputs=["Out"],
    attrs={"shape": ints_attr(REQUIRED), **_NORMAL, **TABLE_ATTRS},
    infer=infer_initial,
    kernel=_initial_kernel(TRUNCATED),
    cases=(
        Case(
            {},
            {"shape": [3], "seed": 7},
            {"Out": np.array([-1.997223, 0.22984603, -0.76314825], np.float32)},
            rtol=1e-5,
        ),
    ),
)
register(
    "sampling_id",
    doc="Out (n,) int64 = a class for each row of probabilities X (n, classes), drawn at random.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"min": float_attr(0.0), "max": float_attr(1.0), "seed": int_attr(0)},
    infer=_infer_sampling_id,
    kernel=sampling_id,
    share_lod="X",
    cases=(Case({"X": np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])}, {"seed": 3}, {"Out": np.array([2, 1])}),),
)
register(
    "seed",
    doc="Out (1,) int32 = `seed`, or a random number where that is 0.",
    inputs=[],
    outputs=["Out"],
    attrs={"seed": int_attr(0)},
    infer=_infer_seed,
    kernel=seed_,
    cases=(Case({}, {"seed": 17}, {"Out": np.array([17], np.int32)}),),
)
