"""Normalisation by groups and instances, by a matrix's largest singular value, and by a factor per channel: group_norm,
instance_norm, spectral_norm, affine_channel; and the norm along an axis: p_norm."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.examples import varied
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.pairs import with_gradient
from fluidlite.ops.registry import REQUIRED, Case, bool_attr, float_attr, int_attr, string_attr
from fluidlite.ops.shapes import Shape, axis_in
from fluidlite.ops.special import sign


def _channel(layout: str, rank: int) -> int:
    """The dimension of the channels."""
    if layout not in ("NCHW", "AnyLayout", "NHWC"):
        raise ProgramError(f"the layout is {layout!r}, not NCHW or NHWC")
    return rank - 1 if layout == "NHWC" else 1


def _per_channel(values: Array, axis: int, rank: int) -> Array:
    """A vector shaped so that it lies along the channels."""
    return values.reshape([-1 if i == axis else 1 for i in range(rank)])


def _over_channels(values: Array, axis: int) -> Array:
    """The sum per channel."""
    return np.asarray(values.sum(axis=tuple(i for i in range(values.ndim) if i != axis)))


def group_norm(
    ctx: KernelContext,
    X: Array,
    Scale: Array | None,
    Bias: Array | None,
    *,
    groups: int,
    epsilon: float,
    data_layout: str,
) -> dict[str, Array]:
    axis = _channel(data_layout, X.ndim)
    cells = np.moveaxis(X, axis, 1)
    lines = cells.reshape(len(X), groups, -1)
    mean = lines.mean(axis=2)
    variance = lines.var(axis=2)
    normal = (lines - mean[..., None]) / np.sqrt(variance[..., None] + epsilon)
    out = np.moveaxis(normal.reshape(cells.shape), 1, axis)
    if Scale is not None:
        out = out * _per_channel(Scale, axis, X.ndim)
    if Bias is not None:
        out = out + _per_channel(Bias, axis, X.ndim)
    return {"Y": np.ascontiguousarray(out), "Mean": mean, "Variance": variance}


def group_norm_grad(
    ctx: KernelContext,
    Y: Array,
    Variance: Array,
    Scale: Array | None,
    Bias: Array | None,
    Y_GRAD: Array,
    *,
    groups: int,
    epsilon: float,
    data_layout: str,
) -> dict[str, Array]:
    axis = _channel(data_layout, Y.ndim)
    normal, upstream = Y, Y_GRAD
    if Bias is not None:
        normal = normal - _per_channel(Bias, axis, Y.ndim)
    if Scale is not None:
        factor = _per_channel(Scale, axis, Y.ndim)
        # a scale of 0 has erased what was normalised
        normal = normal / np.where(factor == 0, 1, factor)
        upstream = upstream * factor
    result = {"X@GRAD": _centred(normal, upstream, Variance, groups, epsilon, axis)}
    if Scale is not None:
        result["Scale@GRAD"] = _over_channels(Y_GRAD * normal, axis)
    if Bias is not None:
        result["Bias@GRAD"] = _over_channels(Y_GRAD, axis)
    return result


def _centred(normal: Array, upstream: Array, variance: Array, groups: int, epsilon: float, axis: int) -> Array:
    """The gradient through the subtraction of mean and the division by the deviation of each group."""
    cells = np.moveaxis(upstream, axis, 1)
    grads = cells.reshape(len(cells), groups, -1)
    lines = np.moveaxis(normal, axis, 1).reshape(grads.shape)
    along = (grads * lines).mean(axis=2, keepdims=True)
    inner = grads - grads.mean(axis=2, keepdims=True) - lines * along
    out = inner / np.sqrt(variance[..., None] + epsilon)
    return np.ascontiguousarray(np.moveaxis(out.reshape(cells.shape), 1, axis))


def _infer_group_norm(ctx: InferContext) -> None:
    shape, groups = ctx.shape("X"), ctx.attr("groups")
    try:
        channels = shape[_channel(ctx.attr("data_layout"), len(shape))]
    except ProgramError as error:
        raise ctx.located(error) from None
    if groups < 1 or channels % groups:
        raise ctx.error(f"the {channels} channels of X {list(shape)} do not divide into {groups} groups")
    _check_channels(ctx, channels, "Scale", "Bias")
    like("X", "Y")(ctx)
    for name in ("Mean", "Variance"):
        ctx.set(name, (shape[0], groups), ctx.input("X").dtype)


def _check_channels(ctx: InferContext, channels: int, *names: str) -> None:
    for name in names:
        for var in ctx.inputs(name):
            if var.shape not in ((channels,), (-1,)) and channels >= 0:
                raise ctx.error(f"{name} {var.name!r} must be [{channels}], not {list(var.shape or ())}")


def instance_norm(ctx: KernelContext, X: Array, Scale: Array, Bias: Array, *, epsilon: float) -> dict[str, Array]:
    lines = X.reshape(*X.shape[:2], -1)
    mean = lines.mean(axis=2, keepdims=True)
    inverse = 1 / np.sqrt(lines.var(axis=2, keepdims=True) + epsilon)
    out = (lines - mean) * inverse * Scale[:, None] + Bias[:, None]
    return {"Y": out.reshape(X.shape), "SavedMean": mean.reshape(-1), "SavedVariance": inverse.reshape(-1)}


def instance_norm_grad(
    ctx: KernelContext, X: Array, Scale: Array, SavedMean: Array, SavedVariance: Array, Y_GRAD: Array
) -> dict[str, Array]:
    lines, grads = X.reshape(*X.shape[:2], -1), Y_GRAD.reshape(*X.shape[:2], -1)
    inverse = SavedVariance.reshape(*X.shape[:2], 1)
    normal = (lines - SavedMean.reshape(inverse.shape)) * inverse
    along = (grads * normal).mean(axis=2, keepdims=True)
    inner = grads - grads.mean(axis=2, keepdims=True) - normal * along
    return {
        "X@GRAD": (Scale[:, None] * inverse * inner).reshape(X.shape),
        "Scale@GRAD": (grads * normal).sum(axis=(0, 2)),
        "Bias@GRAD": grads.sum(axis=(0, 2)),
    }


def _infer_instance_norm(ctx: InferContext) -> None:
    shape = ctx.shape("X")
    if not 2 <= len(shape) <= 5:
        raise ctx.error(f"X must have 2 to 5 dimensions, not {list(shape)}")
    _check_channels(ctx, shape[1], "Scale", "Bias")
    like("X", "Y")(ctx)
    for name in ("SavedMean", "SavedVariance"):
        ctx.set(name, (-1 if shape[0] < 0 else shape[0] * shape[1],), ctx.input("X").dtype)


def affine_channel(ctx: KernelContext, X: Array, Scale: Array, Bias: Array, *, data_layout: str) -> Array:
    axis = _channel(data_layout, X.ndim)
    return np.asarray(X * _per_channel(Scale, axis, X.ndim) + _per_channel(Bias, axis, X.ndim))


def affine_channel_grad(
    ctx: KernelContext, X: Array, Scale: Array, Out_GRAD: Array, *, data_layout: str
) -> dict[str, Array]:
    axis = _channel(data_layout, X.ndim)
    return {
        "X@GRAD": Out_GRAD * _per_channel(Scale, axis, X.ndim),
        "Scale@GRAD": _over_channels(Out_GRAD * X, axis),
        "Bias@GRAD": _over_channels(Out_GRAD, axis),
    }


def _infer_affine_channel(ctx: InferContext) -> None:
    shape = ctx.shape("X")
    try:
        channels = shape[_channel(ctx.attr("data_layout"), len(shape))]
    except ProgramError as error:
        raise ctx.located(error) from None
    _check_channels(ctx, channels, "Scale", "Bias")
    like("X", "Out")(ctx)


def _as_matrix(weight: Array, dim: int) -> Array:
    """Axis ``dim`` as rows, the others as columns."""
    return np.moveaxis(weight, dim, 0).reshape(weight.shape[dim], -1)


def _singular(matrix: Array, u: Array, v: Array, power_iters: int, eps: float) -> tuple[Array, Array, Array]:
    """(u, v, u @ matrix @ v) after some power iterations."""
    for _ in range(power_iters):
        v = _unit(matrix.T @ u, eps)
        u = _unit(matrix @ v, eps)
    return u, v, u @ matrix @ v


def _unit(vector: Array, eps: float) -> Array:
    return np.asarray(vector / (np.sqrt((vector * vector).sum()) + eps))


def spectral_norm(
    ctx: KernelContext, Weight: Array, U: Array, V: Array, *, dim: int, power_iters: int, eps: float
) -> Array:
    sigma = _singular(_as_matrix(Weight, dim), U.reshape(-1), V.reshape(-1), power_iters, eps)[2]
    return np.asarray(Weight / sigma)


def spectral_norm_grad(
    ctx: KernelContext, Weight: Array, U: Array, V: Array, Out_GRAD: Array, *, dim: int, power_iters: int, eps: float
) -> Array:
    matrix, upstream = _as_matrix(Weight, dim), _as_matrix(Out_GRAD, dim)
    u, v, sigma = _singular(matrix, U.reshape(-1), V.reshape(-1), power_iters, eps)
    grad = (upstream - (upstream * matrix).sum() / sigma * np.outer(u, v)) / sigma
    moved = (Weight.shape[dim], *(size for axis, size in enumerate(Weight.shape) if axis != dim))
    return np.ascontiguousarray(np.moveaxis(grad.reshape(moved), 0, dim))


def _infer_spectral_norm(ctx: InferContext) -> None:
    shape, dim = ctx.shape("Weight"), ctx.attr("dim")
    if dim not in (0, 1) or not 2 <= len(shape) <= 5:
        raise ctx.error(f"dim {dim} must be 0 or 1 and Weight {list(shape)} have 2 to 5 dimensions")
    rest = math.prod(size for axis, size in enumerate(shape) if axis != dim)
    given = (*ctx.shape("U"), *ctx.shape("V"))
    if len(given) != 2 or (min(*shape, *given) >= 0 and given != (shape[dim], rest)):
        raise ctx.error(f"U and V must be [{shape[dim]}] and [{rest}] for Weight {list(shape)}")
    like("Weight", "Out")(ctx)


def p_norm(ctx: KernelContext, X: Array, *, porder: float, axis: int, keepdim: bool, asvector: bool) -> Array:
    if asvector:
        whole = _norm(np.abs(X.reshape(-1)), porder, 0).astype(X.dtype, copy=False)
        return whole.reshape((1,) * X.ndim) if keepdim else whole
    along = axis_in(X.ndim, axis)
    out = _norm(np.abs(X), porder, along).astype(X.dtype, copy=False)
    return out if keepdim else out.reshape(_norm_shape(X.shape, along, keepdim))


def _norm(lengths: Array, order: float, axis: int) -> Array:
    """The norm along an axis, which stays with size 1."""
    if order == 0:
        return np.asarray(np.count_nonzero(lengths, axis=axis, keepdims=True))
    if math.isinf(order):
        return np.asarray((np.max if order > 0 else np.min)(lengths, axis=axis, keepdims=True))
    return np.asarray((lengths**order).sum(axis=axis, keepdims=True) ** (1 / order))


def p_norm_grad(
    ctx: KernelContext, X: Array, Out: Array, Out_GRAD: Array, *, porder: float, axis: int, asvector: bool
) -> Array:
    kept = (1,) * X.ndim if asvector else _norm_shape(X.shape, axis_in(X.ndim, axis), keepdim=True)
    out, upstream, lengths = Out.reshape(kept), Out_GRAD.reshape(kept), np.abs(X)
    if porder == 0:
        return np.zeros_like(X)
    if math.isinf(porder):
        return np.asarray(upstream * sign(X) * (lengths == out))
    # where the norm is 0 so is every element, and its gradient is taken as 0
    far = np.where(out == 0, 1, out)
    return np.asarray(upstream * sign(X) * (lengths / far) ** (porder - 1))


def _norm_shape(shape: Shape, axis: int, keepdim: bool) -> Shape:
    if keepdim:
        return (*shape[:axis], 1, *shape[axis + 1 :])
    return shape[:axis] + shape[axis + 1 :] or (1,)


def _infer_p_norm(ctx: InferContext) -> None:
    shape = ctx.shape("X")
    if ctx.attr("asvector"):
        ctx.set("Out", (1,) * len(shape) if ctx.attr("keepdim") else (1,), ctx.input("X").dtype)
        return
    try:
        out = _norm_shape(shape, axis_in(len(shape), ctx.attr("axis")), ctx.attr("keepdim"))
    except ShapeError as error:
        raise ctx.located(error) from None
    ctx.set("Out", out, ctx.input("X").dtype)


_X: Final = varied(2, 4, 2, 2)
_SCALE, _BIAS = varied(4, start=40), varied(4, start=50)
_LAYOUT: Final = {"data_layout": string_attr("AnyLayout", "NCHW (the same as AnyLayout) or NHWC")}
_NORM: Final = np.array([[3.0, 0.0], [-4.0, 2.0]])

with_gradient(
    "group_norm",
    doc="Y = X less its mean and divided by its deviation in each of `groups` groups of channels, times Scale plus Bias "
    "(Wu, He 2018).",
    inputs=["X", "Scale?", "Bias?"],
    outputs=["Y", "Mean~", "Variance~"],
    attrs={
        "epsilon": float_attr(1e-5),
        "groups": int_attr(REQUIRED),
        "data_layout": string_attr("NCHW", "or NHWC"),
    },
    infer=_infer_group_norm,
    kernel=group_norm,
    gradient=group_norm_grad,
    reads=["Bias", "Scale", "Variance", "Y", "Y@GRAD"],
    writes=["Bias@GRAD", "Scale@GRAD", "X@GRAD"],
    cases=(
        Case({"X": _X, "Scale": _SCALE, "Bias": _BIAS}, {"groups": 2}, check_grad=("X", "Scale", "Bias")),
        Case({"X": _X}, {"groups": 4, "epsilon": 0.1}, check_grad=("X",)),
        Case(
            {"X": _X.reshape(2, 2, 2, 4), "Scale": _SCALE, "Bias": _BIAS},
            {"groups": 2, "data_layout": "NHWC"},
            check_grad=("X", "Scale", "Bias"),
        ),
    ),
)
with_gradient(
    "instance_norm",
    doc="Y = X less its mean and divided by its deviation in each image and channel, times Scale plus Bias. "
    "SavedVariance is 1 / the deviation.",
    inputs=["X", "Scale", "Bias"],
    outputs=["Y", "SavedMean~", "SavedVariance~"],
    attrs={"epsilon": float_attr(1e-5)},
    infer=_infer_instance_norm,
    kernel=instance_norm,
    gradient=instance_norm_grad,
    reads=["SavedMean", "SavedVariance", "Scale", "X", "Y@GRAD"],
    writes=["Bias@GRAD", "Scale@GRAD", "X@GRAD"],
    cases=(Case({"X": _X, "Scale": _SCALE, "Bias": _BIAS}, check_grad=("X", "Scale", "Bias")),),
)
with_gradient(
    "affine_channel",
    doc="Out = X * Scale + Bias, each one number per channel.",
    inputs=["X", "Scale", "Bias"],
    outputs=["Out"],
    attrs=_LAYOUT,
    infer=_infer_affine_channel,
    kernel=affine_channel,
    gradient=affine_channel_grad,
    reads=["Scale", "X", "Out@GRAD"],
    writes=["Bias@GRAD", "Scale@GRAD", "X@GRAD"],
    cases=(
        Case({"X": _X, "Scale": _SCALE, "Bias": _BIAS}, {"data_layout": "NCHW"}, check_grad=("X", "Scale", "Bias")),
        Case(
            {"X": _X.reshape(2, 2, 2, 4), "Scale": _SCALE, "Bias": _BIAS},
            {"data_layout": "NHWC"},
            {"Out": _X.reshape(2, 2, 2, 4) * _SCALE + _BIAS},
            check_grad=("X", "Scale", "Bias"),
        ),
    ),
)
with_gradient(
    "spectral_norm",
    doc="Out = Weight divided by its largest singular value, which `power_iters` iterations from U and V estimate "
    "(Miyato et al. 2018). U and V stay as they are.",
    inputs=["Weight", "U", "V"],
    outputs=["Out"],
    attrs={
        "dim": int_attr(0, "axis of the rows; the others are the columns"),
        "power_iters": int_attr(1),
        "eps": float_attr(1e-12),
    },
    infer=_infer_spectral_norm,
    kernel=spectral_norm,
    gradient=spectral_norm_grad,
    reads=["U", "V", "Weight", "Out@GRAD"],
    writes=["Weight@GRAD"],
    cases=(
        Case(
            {"Weight": varied(2, 3), "U": varied(2, start=9), "V": varied(3, start=5)},
            {"power_iters": 30},
            check_grad=("Weight",),
        ),
        Case(
            {"Weight": varied(2, 3, 2), "U": varied(3, start=9), "V": varied(4, start=5)},
            {"dim": 1, "power_iters": 40},
            check_grad=("Weight",),
        ),
        Case({"Weight": varied(2, 3), "U": varied(2, start=9), "V": varied(3, start=5)}, {"power_iters": 1}),
    ),
)
with_gradient(
    "p_norm",
    doc="Out = the `porder`-norm of X along `axis`.",
    inputs=["X"],
    outputs=["Out"],
    attrs={
        "porder": float_attr(2.0, "0 counts the elements that are not 0, infinity takes the largest"),
        "axis": int_attr(-1),
        "epsilon": float_attr(1e-12),
        "keepdim": bool_attr(default=False),
        "asvector": bool_attr(default=False, doc="of all elements (Paddle 2)"),
    },
    infer=_infer_p_norm,
    kernel=p_norm,
    gradient=p_norm_grad,
    reads=["Out", "X", "Out@GRAD"],
    writes=["X@GRAD"],
    cases=(
        Case({"X": _NORM[:, :1]}, {"axis": 0}, {"Out": np.array([5.0])}, check_grad=("X",)),
        Case({"X": varied(2, 3)}, {"axis": 0, "porder": 3.0, "keepdim": True}, check_grad=("X",)),
        Case({"X": varied(2, 3)}, {"axis": 1, "porder": 1.0}, check_grad=("X",)),
        Case({"X": _NORM}, {"axis": 1, "porder": float("inf")}, {"Out": np.array([3.0, 4.0])}, check_grad=("X",)),
        Case({"X": _NORM}, {"axis": 1, "porder": 0.0}, {"Out": np.array([1.0, 2.0])}),
        Case({"X": _NORM}, {"asvector": True}, {"Out": np.array([math.sqrt(29.0)])}, check_grad=("X",)),
    ),
)
