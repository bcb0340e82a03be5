"""Matrices and vectors made of others or of nothing: diag, diag_embed, eye, linspace, tril_triu, meshgrid, size, fill,
fill_zeros_like2, randint, randperm."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from fluidlite.core.ir import AttrType
from fluidlite.dtypes import Array, dtype_name, dtype_number, numpy_dtype
from fluidlite.errors import ShapeError
from fluidlite.ops.algebra import diagonal_of
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.pairs import with_gradient
from fluidlite.ops.registry import (
    REQUIRED,
    AttrSpec,
    Case,
    bool_attr,
    int_attr,
    ints_attr,
    long_attr,
    longs_attr,
    register,
)
from fluidlite.ops.shapes import axis_in, declared, given


def diag(ctx: KernelContext, Diagonal: Array) -> Array:
    return np.diag(Diagonal.reshape(-1))


def _infer_diag(ctx: InferContext) -> None:
    shape = ctx.shape("Diagonal")
    if len(shape) != 1:
        raise ctx.error(f"Diagonal must be a vector, not {list(shape)}")
    ctx.set("Out", (shape[0], shape[0]), ctx.input("Diagonal").dtype)


def diag_embed(ctx: KernelContext, Input: Array, *, offset: int, dim1: int, dim2: int) -> Array:
    size = Input.shape[-1] + abs(offset)
    planes = np.zeros((*Input.shape[:-1], size, size), Input.dtype)
    rows, columns = diagonal_of(size, size, offset)
    planes[..., rows, columns] = Input
    return np.moveaxis(planes, (-2, -1), (dim1, dim2))


def _infer_diag_embed(ctx: InferContext) -> None:
    shape = ctx.shape("Input")
    try:
        axes = [axis_in(len(shape) + 1, ctx.attr(name)) for name in ("dim1", "dim2")]
    except ShapeError as error:
        raise ctx.located(error) from None
    if axes[0] == axes[1]:
        raise ctx.error("dim1 and dim2 are the same axis")
    size = -1 if shape[-1] < 0 else shape[-1] + abs(ctx.attr("offset"))
    rest = iter(shape[:-1])
    out = tuple(size if axis in axes else next(rest) for axis in range(len(shape) + 1))
    ctx.set("Out", out, ctx.input("Input").dtype)


def eye(ctx: KernelContext, *, num_rows: int, num_columns: int, dtype: int) -> Array:
    return np.eye(num_rows, num_rows if num_columns < 0 else num_columns, dtype=numpy_dtype(dtype))


def _infer_eye(ctx: InferContext) -> None:
    rows, columns = ctx.attr("num_rows"), ctx.attr("num_columns")
    if rows < 0:
        raise ctx.error(f"num_rows is {rows}")
    ctx.set("Out", (rows, rows if columns < 0 else columns), dtype_name(ctx.attr("dtype")))


def linspace(ctx: KernelContext, Start: Array, Stop: Array, Num: Array) -> Array:
    start, stop, count = Start.reshape(-1)[0], Stop.reshape(-1)[0], int(Num.reshape(-1)[0])
    if count < 1:
        raise ShapeError(f"op 'linspace': Num {ctx.op.inputs['Num'][0]!r} is {count}; it must be at least 1")
    step = (stop - start) / max(count - 1, 1)
    return np.asarray(start + step * np.arange(count).astype(Start.dtype), Start.dtype)


def _infer_linspace(ctx: InferContext) -> None:
    ctx.set("Out", (-1,), ctx.input("Start").dtype)


def tril_triu(ctx: KernelContext, X: Array, *, diagonal: int, lower: bool) -> Array:
    return _triangle(X, diagonal, lower)


def tril_triu_grad(ctx: KernelContext, Out_GRAD: Array, *, diagonal: int, lower: bool) -> Array:
    return _triangle(Out_GRAD, diagonal, lower)


def _triangle(x: Array, diagonal: int, lower: bool) -> Array:
    return np.tril(x, diagonal) if lower else np.triu(x, diagonal)


def _infer_tril_triu(ctx: InferContext) -> None:
    if len(ctx.shape("X")) < 2:
        raise ctx.error(f"X must have two dimensions or more, not {list(ctx.shape('X'))}")
    like("X", "Out")(ctx)


def meshgrid(ctx: KernelContext, X: list[Array]) -> list[Array]:
    return [np.ascontiguousarray(grid) for grid in np.meshgrid(*(x.reshape(-1) for x in X), indexing="ij")]


def meshgrid_grad(ctx: KernelContext, X: list[Array], Out_GRAD: list[Array]) -> list[Array]:
    return [
        np.zeros_like(x)
        if grad is None
        else grad.sum(axis=tuple(j for j in range(grad.ndim) if j != i)).reshape(x.shape)
        for i, (x, grad) in enumerate(zip(X, Out_GRAD, strict=True))
    ]


def _infer_meshgrid(ctx: InferContext) -> None:
    given = ctx.inputs("X")
    shape = tuple(-1 if min(var.shape or (1,)) < 0 else math.prod(var.shape or (1,)) for var in given)
    for var, out in zip(given, ctx.outputs("Out"), strict=True):
        out.shape, out.dtype = shape, var.dtype


def size(ctx: KernelContext, Input: Array) -> Array:
    return np.array([Input.size], np.int64)


def _infer_size(ctx: InferContext) -> None:
    ctx.set("Out", (1,), "int64", lod_level=0)


def fill(ctx: KernelContext, *, value: tuple[float, ...], shape: tuple[int, ...], dtype: int) -> Array:
    if len(value) != math.prod(shape):
        raise ShapeError(f"op 'fill': {len(value)} values do not fill shape {list(shape)}")
    return np.array(value, numpy_dtype(dtype)).reshape(shape)


def _infer_fill(ctx: InferContext) -> None:
    ctx.set("Out", tuple(ctx.attr("shape")), dtype_name(ctx.attr("dtype")))


def fill_zeros_like2(ctx: KernelContext, X: Array, *, dtype: int) -> Array:
    return np.zeros(X.shape, numpy_dtype(dtype))


def _infer_zeros(ctx: InferContext) -> None:
    like("X", "Out", dtype=dtype_name(ctx.attr("dtype")))(ctx)


def randint(
    ctx: KernelContext,
    ShapeTensor: Array | None,
    ShapeTensorList: list[Array],
    *,
    shape: tuple[int, ...],
    low: int,
    high: int,
    dtype: int,
    seed: int,
) -> Array:
    wanted = given(None, ShapeTensorList, shape) if ShapeTensorList else given(ShapeTensor, [], shape)
    return ctx.generator(seed).integers(low, high, wanted).astype(numpy_dtype(dtype))


def _infer_randint(ctx: InferContext) -> None:
    if ctx.attr("low") >= ctx.attr("high"):
        raise ctx.error(f"low {ctx.attr('low')} must be below high {ctx.attr('high')}")
    ctx.set("Out", declared(ctx, "ShapeTensor", "ShapeTensorList", "shape"), dtype_name(ctx.attr("dtype")))


def randperm(ctx: KernelContext, *, n: int, dtype: int, seed: int) -> Array:
    return ctx.generator(seed).permutation(n).astype(numpy_dtype(dtype))


def _infer_randperm(ctx: InferContext) -> None:
    if ctx.attr("n") < 1:
        raise ctx.error(f"n is {ctx.attr('n')}; it must be at least 1")
    ctx.set("Out", (ctx.attr("n"),), dtype_name(ctx.attr("dtype")))


_X: Final = varied(3, 4)
_INT32: Final = dtype_number("int32")

register(
    "diag",
    doc="Out = the matrix with Diagonal on its diagonal and 0 elsewhere.",
    inputs=["Diagonal"],
    outputs=["Out"],
    infer=_infer_diag,
    kernel=diag,
    cases=(Case({"Diagonal": np.array([1.0, 2.0])}, {}, {"Out": np.array([[1.0, 0.0], [0.0, 2.0]])}),),
)
register(
    "diag_embed",
    doc="Out = each vector along Input's last axis on the diagonal `offset` of a plane of axes `dim1` and `dim2`.",
    inputs=["Input"],
    outputs=["Out"],
    attrs={"offset": int_attr(0), "dim1": int_attr(-2), "dim2": int_attr(-1)},
    infer=_infer_diag_embed,
    kernel=diag_embed,
    cases=(
        Case({"Input": np.array([1.0, 2.0])}, {}, {"Out": np.array([[1.0, 0.0], [0.0, 2.0]])}),
        Case({"Input": _X}, {"offset": -1, "dim1": 0, "dim2": 2}),
    ),
)
register(
    "eye",
    doc="Out = the matrix with 1 on its diagonal and 0 elsewhere.",
    outputs=["Out"],
    attrs={
        "num_rows": long_attr(REQUIRED),
        "num_columns": long_attr(-1, "-1: as many as rows"),
        "dtype": int_attr(5),
    },
    infer=_infer_eye,
    kernel=eye,
    cases=(
        Case({}, {"num_rows": 2}, {"Out": np.eye(2, dtype=np.float32)}),
        Case({}, {"num_rows": 2, "num_columns": 3, "dtype": _INT32}, {"Out": np.eye(2, 3, dtype=np.int32)}),
    ),
)
register(
    "linspace",
    doc="Out = Num numbers evenly spaced from Start to Stop, both included.",
    inputs=["Start", "Stop", "Num"],
    outputs=["Out"],
    infer=_infer_linspace,
    kernel=linspace,
    cases=(
        Case(
            {"Start": np.array([1.0]), "Stop": np.array([2.0]), "Num": np.array([5], np.int32)},
            {},
            {"Out": np.array([1.0, 1.25, 1.5, 1.75, 2.0])},
        ),
        Case(
            {"Start": np.array([1.0]), "Stop": np.array([2.0]), "Num": np.array([1], np.int32)}, {}, {"Out": np.ones(1)}
        ),
    ),
)
with_gradient(
    "tril_triu",
    doc="Out = X with 0 above (`lower`) or below the diagonal `diagonal` cells right of the main one.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"diagonal": int_attr(0), "lower": bool_attr()},
    infer=_infer_tril_triu,
    kernel=tril_triu,
    gradient=tril_triu_grad,
    reads=["Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case({"X": _X}, {"lower": True}, {"Out": np.tril(_X)}, check_grad=("X",)),
        Case({"X": _X}, {"lower": False, "diagonal": 1}, {"Out": np.triu(_X, 1)}, check_grad=("X",)),
    ),
)
with_gradient(
    "meshgrid",
    doc="Out[i] = X[i] along axis i, repeated along the axes of the others.",
    inputs=["X*"],
    outputs=["Out*"],
    infer=_infer_meshgrid,
    kernel=meshgrid,
    gradient=meshgrid_grad,
    reads=["X", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case(
            {"X": [np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0])]},
            {},
            {"Out": [np.array([[1.0] * 3, [2.0] * 3]), np.array([[3.0, 4.0, 5.0]] * 2)]},
            n_outputs={"Out": 2},
            check_grad=("X",),
        ),
    ),
)
register(
    "size",
    doc="Out (1,) = the number of elements of Input.",
    inputs=["Input"],
    outputs=["Out"],
    infer=_infer_size,
    kernel=size,
    cases=(Case({"Input": _X}, {}, {"Out": np.array([12])}),),
)
register(
    "fill",
    doc="Out = the numbers `value` in a given shape.",
    outputs=["Out"],
    attrs={
        "value": AttrSpec(AttrType.FLOATS),
        "shape": ints_attr(REQUIRED),
        "dtype": int_attr(5),
        "force_cpu": bool_attr(default=False),
    },
    infer=_infer_fill,
    kernel=fill,
    cases=(
        Case(
            {},
            {"value": [1.0, 2.0, 3.0, 4.0], "shape": [2, 2]},
            {"Out": np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)},
        ),
    ),
)
register(
    "fill_zeros_like2",
    doc="Out = zeros in the shape of X.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"dtype": int_attr(5, "VarType number of Out")},
    infer=_infer_zeros,
    kernel=fill_zeros_like2,
    cases=(Case({"X": _X}, {"dtype": _INT32}, {"Out": np.zeros((3, 4), np.int32)}),),
)
register(
    "randint",
    doc="Out = whole numbers from `low` up to but not `high`, all equally likely. The generator is ours.",
    inputs=["ShapeTensor?", "ShapeTensorList*?"],
    outputs=["Out"],
    attrs={
        "shape": longs_attr(),
        "low": int_attr(REQUIRED),
        "high": int_attr(REQUIRED),
        "dtype": int_attr(3),
        "seed": int_attr(0, "0: the program's seed; where that is 0 too, other numbers in every run"),
    },
    infer=_infer_randint,
    kernel=randint,
    cases=(Case({}, {"shape": [2, 3], "low": 4, "high": 5}, {"Out": np.full((2, 3), 4)}),),
)
register(
    "randperm",
    doc="Out = the numbers from 0 to `n` - 1 in random order. The generator is ours.",
    outputs=["Out"],
    attrs={"n": int_attr(REQUIRED), "dtype": int_attr(3), "seed": int_attr(0)},
    infer=_infer_randperm,
    kernel=randperm,
    cases=(Case({}, {"n": 1}, {"Out": np.zeros(1, np.int64)}),),
)
