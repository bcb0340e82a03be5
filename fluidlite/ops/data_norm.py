"""`data_norm`: normalisation by statistics of all data seen so far, which servers keep as if they were parameters."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.layer_norm import check_epsilon
from fluidlite.ops.registry import Case, bool_attr, float_attr, int_attr, register, string_attr

_ATTRS = {
    "epsilon": float_attr(1e-4, "added to the squares of every instance"),
    "slot_dim": int_attr(-1, "columns of a slot, the first its show count: where it is 0 the slot counts as absent"),
    "summary_decay_rate": float_attr(0.9999999),
    "enable_scale_and_shift": bool_attr(default=False),
    "data_layout": string_attr("NCHW"),
    "sync_stats": bool_attr(default=False),
}
#: shows below this are 0
_NO_SHOW = 1e-7


def data_norm(
    ctx: KernelContext,
    X: Array,
    BatchSize: Array,
    BatchSum: Array,
    BatchSquareSum: Array,
    scale_w: Array | None,
    bias: Array | None,
    *,
    slot_dim: int,
    enable_scale_and_shift: bool,
) -> dict[str, Array]:
    means, scales = BatchSum / BatchSize, np.sqrt(BatchSize / BatchSquareSum)
    out = (X - means) * scales
    if enable_scale_and_shift and scale_w is not None and bias is not None:
        out = out * scale_w + bias
    return {"Y": np.where(_present(X, slot_dim), out, 0).astype(X.dtype), "Means": means, "Scales": scales}


def data_norm_grad(
    ctx: KernelContext,
    X: Array,
    Means: Array,
    Scales: Array,
    scale_w: Array | None,
    Y_GRAD: Array,
    *,
    epsilon: float,
    slot_dim: int,
    enable_scale_and_shift: bool,
) -> dict[str, Array]:
    """What the statistics get are sums over the batch, not derivatives: their optimizer adds them up."""
    present = _present(X, slot_dim)
    counted = np.where(present, 1, 0).astype(X.dtype)
    count = counted.sum(axis=0)
    centred = (X - Means) * counted
    out = {
        "X@GRAD": Y_GRAD * Scales,
        "BatchSize@GRAD": count,
        "BatchSum@GRAD": (X * counted).sum(axis=0),
        "BatchSquareSum@GRAD": (centred * centred).sum(axis=0) + count * epsilon,
    }
    if enable_scale_and_shift and scale_w is not None:
        out["X@GRAD"] = out["X@GRAD"] * scale_w
        out["scale_w@GRAD"] = (centred * Scales * Y_GRAD).sum(axis=0)
        out["bias@GRAD"] = (Y_GRAD * counted).sum(axis=0)
    return out


def _present(x: Array, slot_dim: int) -> Array:
    """Which elements (N, C) belong to a slot that was shown."""
    if slot_dim < 1:
        return np.ones(x.shape, bool)
    shown: Array = np.abs(x[:, ::slot_dim]) >= _NO_SHOW
    return np.repeat(shown, slot_dim, axis=1)


def _infer(ctx: InferContext) -> None:
    check_epsilon(ctx)
    x, shape, slot = ctx.input("X"), ctx.shape("X"), ctx.attr("slot_dim")
    if len(shape) != 2 or (slot > 0 and shape[1] % slot):
        raise ctx.error(f"X {list(shape)} must be a matrix of whole slots of {slot} columns")
    ctx.set("Y", shape, x.dtype, lod_level=x.lod_level)
    for output in ("Means", "Scales"):
        ctx.set(output, ctx.shape("BatchSize"), x.dtype)


_STATE = {
    "BatchSize": np.array([4.0, 4.0]),
    "BatchSum": np.array([2.0, 4.0]),
    "BatchSquareSum": np.array([1.0, 16.0]),
}

register(
    "data_norm",
    doc="Y = (X - Means) * Scales, Means = BatchSum / BatchSize, Scales = sqrt(BatchSize / BatchSquareSum), per column. The "
    "gradients of the three statistics are the batch's own: its size, its sum, and its squares around Means. With "
    "`enable_scale_and_shift` Y = Y * scale_w + bias.",
    inputs=["scale_w?", "bias?", "X", "BatchSize", "BatchSum", "BatchSquareSum"],
    outputs=["Y", "Means~", "Scales~"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=data_norm,
    grad=maker(
        ["Means", "Scales", "X", "Y@GRAD", "bias", "scale_w"],
        [
            "BatchSize",
            "BatchSize@GRAD",
            "BatchSquareSum",
            "BatchSquareSum@GRAD",
            "BatchSum",
            "BatchSum@GRAD",
            "X@GRAD",
            "bias@GRAD",
            "scale_w@GRAD",
        ],
    ),
    share_lod="X",
    cases=(
        Case(
            {"X": np.array([[1.0, 3.0], [0.5, 0.0]]), **_STATE},
            {},
            {"Y": np.array([[1.0, 1.0], [0.0, -0.5]])},
            check_grad=("X",),
        ),
        Case(
            {"X": np.array([[1.0, 3.0]]), **_STATE, "scale_w": np.array([2.0, 4.0]), "bias": np.array([0.5, 0.0])},
            {"enable_scale_and_shift": True},
            {"Y": np.array([[2.5, 4.0]])},
            check_grad=("X", "scale_w", "bias"),
        ),
        Case(
            {"X": np.array([[0.0, 3.0], [1.0, 3.0]]), **_STATE},
            {"slot_dim": 2},
            {"Y": np.array([[0.0, 0.0], [1.0, 1.0]])},
        ),
    ),
)
register(
    "data_norm_grad",
    doc="Gradient of data_norm. The statistics are named as outputs, as in Fluid, and left alone.",
    inputs=["Means", "Scales", "X", "Y@GRAD", "bias?", "scale_w?"],
    outputs=[
        "BatchSize",
        "BatchSize@GRAD",
        "BatchSquareSum",
        "BatchSquareSum@GRAD",
        "BatchSum",
        "BatchSum@GRAD",
        "X@GRAD",
        "bias@GRAD",
        "scale_w@GRAD",
    ],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=data_norm_grad,
)
