"""`batch_norm`: every channel normalised over the batch (Ioffe, Szegedy 2015)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import arguments, maker
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.layer_norm import check_epsilon
from fluidlite.ops.registry import Case, bool_attr, float_attr, register, string_attr

_ATTRS = {
    "is_test": bool_attr(default=False),
    "momentum": float_attr(0.9, "the share of the running statistics that stays"),
    "epsilon": float_attr(1e-5, "added to the variance; 0 to 0.001"),
    "data_layout": string_attr("NCHW", "where the channels are: NCHW second, NHWC last dimension"),
    "fuse_with_relu": bool_attr(default=False),
    "use_global_stats": bool_attr(default=False, doc="normalise with the running statistics also while training"),
    "trainable_statistics": bool_attr(default=False, doc="use the batch's statistics also with is_test"),
}


class _Batch(NamedTuple):
    """X as (values per channel, channels) and how to get back."""

    rows: Array
    shape: tuple[int, ...]
    axis: int

    def back(self, rows: Array) -> Array:
        """Rows in the layout of X."""
        return np.moveaxis(rows.reshape(self.shape), -1, self.axis)


def _batch(x: Array, data_layout: str) -> _Batch:
    axis = 1 if data_layout == "NCHW" else x.ndim - 1
    last = np.moveaxis(x, axis, -1)
    return _Batch(last.reshape(x.size // max(last.shape[-1], 1), last.shape[-1]), last.shape, axis)


def batch_norm(
    ctx: KernelContext,
    X: Array,
    Scale: Array,
    Bias: Array,
    Mean: Array,
    Variance: Array,
    MomentumTensor: Array | None,
    *,
    is_test: bool,
    momentum: float,
    epsilon: float,
    data_layout: str,
    use_global_stats: bool,
    trainable_statistics: bool,
) -> dict[str, Array]:
    batch = _batch(X, data_layout)
    zeros = np.zeros_like(Mean)
    out = {"MeanOut": Mean, "VarianceOut": Variance, "SavedMean": zeros, "SavedVariance": zeros}
    if use_global_stats or (is_test and not trainable_statistics):
        mean, inverse = Mean, 1 / np.sqrt(Variance + epsilon)
    elif len(batch.rows) <= 1:
        return {**out, "Y": X}  # one value per channel has no variance; Fluid passes it through
    else:
        mean, variance = batch.rows.mean(axis=0), batch.rows.var(axis=0)
        inverse = 1 / np.sqrt(variance + epsilon)
        kept = momentum if MomentumTensor is None else float(MomentumTensor.reshape(-1)[0])
        out["MeanOut"] = Mean * kept + mean * (1 - kept)
        out["VarianceOut"] = Variance * kept + variance * (1 - kept)
        out["SavedMean"], out["SavedVariance"] = mean, inverse
    out["Y"] = batch.back((batch.rows - mean) * inverse * Scale + Bias)
    return out


def batch_norm_grad(
    ctx: KernelContext,
    X: Array,
    Scale: Array,
    SavedMean: Array,
    SavedVariance: Array,
    Mean: Array | None,
    Variance: Array | None,
    Y_GRAD: Array,
    *,
    epsilon: float,
    data_layout: str,
) -> dict[str, Array]:
    batch, upstream = _batch(X, data_layout), _batch(Y_GRAD, data_layout).rows
    if Mean is not None and Variance is not None:
        inverse = 1 / np.sqrt(Variance + epsilon)
        normalised = (batch.rows - Mean) * inverse
        grad = upstream * Scale * inverse
    elif len(batch.rows) <= 1:
        return {"X@GRAD": Y_GRAD, "Scale@GRAD": np.zeros_like(Scale), "Bias@GRAD": np.zeros_like(Scale)}
    else:
        normalised = (batch.rows - SavedMean) * SavedVariance
        centred = upstream - upstream.mean(axis=0) - normalised * (upstream * normalised).mean(axis=0)
        grad = centred * Scale * SavedVariance
    return {
        "X@GRAD": batch.back(grad),
        "Scale@GRAD": (upstream * normalised).sum(axis=0),
        "Bias@GRAD": upstream.sum(axis=0),
    }


def _make_grad(op: Operator) -> list[Operator]:
    inputs = ["Bias", "ReserveSpace", "SavedMean", "SavedVariance", "Scale", "X", "Y@GRAD"]
    made = maker(inputs, ["Bias@GRAD", "Scale@GRAD", "X@GRAD"])(op)
    if op.attr("use_global_stats") or (op.attr("is_test") and not op.attr("trainable_statistics")):
        made[0].inputs["Mean"] = arguments(op, "MeanOut")
        made[0].inputs["Variance"] = arguments(op, "VarianceOut")
    return made


def _infer(ctx: InferContext) -> None:
    x, shape, layout = ctx.input("X"), ctx.shape("X"), ctx.attr("data_layout")
    if not 2 <= len(shape) <= 5 or layout not in {"NCHW", "NHWC"}:
        raise ctx.error(f"X {list(shape)} must have 2 to 5 dimensions and data_layout {layout!r} be NCHW or NHWC")
    check_epsilon(ctx)
    if ctx.attr("fuse_with_relu"):
        raise ProgramError(f"op 'batch_norm': fuse_with_relu is not supported; append a relu ({ctx.op.origin})")
    channels = shape[1] if layout == "NCHW" else shape[-1]
    for name in ("Scale", "Bias", "Mean", "Variance"):
        if channels >= 0 and ctx.shape(name) not in {(channels,), (-1,)}:
            raise ctx.error(f"{name} {list(ctx.shape(name))} must be [{channels}], one value per channel")
    ctx.set("Y", shape, x.dtype, lod_level=x.lod_level)
    for name in ("MeanOut", "VarianceOut", "SavedMean", "SavedVariance"):
        ctx.set(name, (channels,), x.dtype)


_X = np.array([[1.0, 0.0], [3.0, 4.0]])
_FOUR = {
    "Scale": np.array([2.0, 1.0]),
    "Bias": np.array([0.0, 0.5]),
    "Mean": np.array([0.0, 1.0]),
    "Variance": np.array([1.0, 4.0]),
}

register(
    "batch_norm",
    doc="Y = (X - mean) / sqrt(variance + epsilon) * Scale + Bias per channel, with the batch's mean and (biased) variance, "
    "which also move MeanOut and VarianceOut by 1 - momentum; with `is_test` or `use_global_stats` with Mean and "
    "Variance. SavedVariance is 1 / sqrt(variance + epsilon).",
    inputs=["X", "Scale", "Bias", "Mean", "Variance", "MomentumTensor?"],
    outputs=["Y", "MeanOut", "VarianceOut", "SavedMean~", "SavedVariance~", "ReserveSpace?"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=batch_norm,
    grad=_make_grad,
    share_lod="X",
    inplace={"MeanOut": "Mean", "VarianceOut": "Variance"},
    cases=(
        Case(
            {"X": _X, **_FOUR},
            {"epsilon": 0.0, "momentum": 0.5},
            {
                "Y": np.array([[-2.0, -0.5], [2.0, 1.5]]),
                "MeanOut": np.array([1.0, 1.5]),
                "VarianceOut": np.array([1.0, 4.0]),
            },
        ),
        Case(
            {"X": np.array([[1.0, 0.0], [3.0, 4.0], [2.0, -1.0]]), **_FOUR},
            {"epsilon": 0.0, "momentum": 0.5},
            {"MeanOut": np.array([1.0, 1.0])},
            check_grad=("X", "Scale", "Bias"),
        ),
        Case(
            {"X": _X, **_FOUR},
            {"epsilon": 0.0, "use_global_stats": True},
            {"Y": np.array([[2.0, 0.0], [6.0, 2.0]])},
            check_grad=("X", "Scale", "Bias"),
        ),
        Case({"X": _X, **_FOUR}, {"epsilon": 0.0, "is_test": True}, {"Y": np.array([[2.0, 0.0], [6.0, 2.0]])}),
        Case(
            {**_FOUR, "X": np.zeros((0, 2))},
            {},
            {"Y": np.zeros((0, 2)), "MeanOut": _FOUR["Mean"], "VarianceOut": _FOUR["Variance"]},
            check_grad=("X", "Scale", "Bias"),
            note="an empty batch",
        ),
    ),
)
register(
    "batch_norm_grad",
    doc="Gradient of batch_norm. Mean and Variance are given where the running statistics were used.",
    inputs=[
        "X",
        "Scale",
        "Bias",
        "SavedMean",
        "SavedVariance",
        "ReserveSpace?",
        "Mean?",
        "Variance?",
        "Y@GRAD",
    ],
    outputs=["Bias@GRAD", "Scale@GRAD", "X@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=batch_norm_grad,
)
