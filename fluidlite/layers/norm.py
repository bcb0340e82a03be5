"""Normalisation layers: batch_norm, layer_norm, data_norm, lrn, group_norm, instance_norm, spectral_norm, affine_channel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fluidlite.errors import ProgramError, ShapeError
from fluidlite.framework import Parameter, Variable, user_line
from fluidlite.initializer import Constant, Normal
from fluidlite.layer_helper import FLOATS, LayerHelper, require_dtype, require_variable
from fluidlite.param_attr import AttrLike, ParamAttr


def batch_norm(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-05,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
) -> Variable:
    """scale * (x - mean) / √(variance + epsilon) + bias per channel of ``input`` [N, C, ...] (or [N, ..., C]: NHWC).

    Training takes mean and (biased) variance from the batch and keeps running ones, ``running * momentum + batch *
    (1 - momentum)``; testing, or ``use_global_stats``, takes the running ones. Ioffe and Szegedy, 2015.
    """
    require_dtype("batch_norm", require_variable("batch_norm", "input", input), FLOATS)
    helper = LayerHelper("batch_norm", name, act=act)
    channels = _channels(input, data_layout)
    parameters = _batch_norm_parameters(helper, input.dtype, channels, param_attr, bias_attr)
    names = {"Mean": moving_mean_name, "Variance": moving_variance_name}
    statistics = _batch_norm_statistics(helper, input.dtype, channels, names, do_model_average_for_mean_and_var)
    saved = helper.temporaries(2, input.dtype, stop_gradient=True)
    out = input if in_place else helper.create_variable_for_type_inference(input.dtype)
    helper.append_op(
        "batch_norm",
        {"X": input, **parameters, **statistics},
        {
            "Y": out,
            "MeanOut": statistics["Mean"],
            "VarianceOut": statistics["Variance"],
            "SavedMean": saved[0],
            "SavedVariance": saved[1],
        },
        {
            "momentum": momentum,
            "epsilon": epsilon,
            "is_test": is_test,
            "data_layout": data_layout,
            "use_global_stats": use_global_stats,
        },
    )
    return helper.append_activation(out)


def _channels(input: Variable, data_layout: str) -> int:
    if data_layout not in ("NCHW", "NHWC"):
        raise ProgramError(f"data_layout must be NCHW or NHWC, not {data_layout!r} ({user_line()})")
    if len(input.shape) < 2:
        raise ShapeError(f"batch_norm: {input.name!r} {list(input.shape)} has no channel dimension ({user_line()})")
    return input.shape[1] if data_layout == "NCHW" else input.shape[-1]


def _batch_norm_parameters(
    helper: LayerHelper, dtype: str, channels: int, param_attr: AttrLike, bias_attr: AttrLike
) -> dict[str, Parameter]:
    scale = helper.create_parameter(param_attr, [channels], dtype, default_initializer=Constant(1.0))
    bias = helper.create_parameter(bias_attr, [channels], dtype, is_bias=True)
    return {"Scale": scale, "Bias": bias}


def _batch_norm_statistics(
    helper: LayerHelper, dtype: str, channels: int, names: Mapping[str, str | None], do_model_average: bool
) -> dict[str, Parameter]:
    """The running mean and variance: parameters that are saved and averaged but not trained."""
    result = {}
    for key, initial in (("Mean", 0.0), ("Variance", 1.0)):
        attr = ParamAttr(names[key], Constant(initial), trainable=False, do_model_average=do_model_average)
        result[key] = helper.create_parameter(attr, [channels], dtype)
        result[key].stop_gradient = True
    return result


def layer_norm(
    input: Variable,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-05,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """gain * (x - mean) / √(variance + epsilon) + bias over the dimensions from ``begin_norm_axis`` on.

    Gain (``scale``) and bias (``shift``) have one element per normalised element. Ba et al., 2016.
    """
    require_dtype("layer_norm", require_variable("layer_norm", "input", input), FLOATS)
    helper = LayerHelper("layer_norm", name, act=act)
    shape = [math.prod(input.shape[begin_norm_axis:])]
    inputs: dict[str, Variable] = {"X": input}
    if scale:
        inputs["Scale"] = helper.create_parameter(param_attr, shape, input.dtype, default_initializer=Constant(1.0))
    if shift:
        inputs["Bias"] = helper.create_parameter(bias_attr, shape, input.dtype, is_bias=True)
    mean, variance = helper.temporaries(2, input.dtype, stop_gradient=True)
    out = helper.create_variable_for_type_inference(input.dtype)
    attrs = {"epsilon": epsilon, "begin_norm_axis": begin_norm_axis}
    helper.append_op("layer_norm", inputs, {"Y": out, "Mean": mean, "Variance": variance}, attrs)
    return helper.append_activation(out)


def data_norm(
    input: Variable,
    act: str | None = None,
    epsilon: float = 1e-05,
    param_attr: Mapping[str, Any] | None = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    slot_dim: int = -1,
    sync_stats: bool = False,
    summary_decay_rate: float = 0.9999999,
    enable_scale_and_shift: bool = False,
) -> Variable:
    """(x - mean) * scale per column of ``input`` [N, C], from sums over all data seen.

    The sums are parameters whose gradients are the batch's own sums: mean = batch_sum / batch_size, scale = √(batch_size
    / batch_square_sum). ``param_attr`` maps ``batch_size``, ``batch_sum`` and ``batch_square`` to their first values,
    and ``scale_w`` and ``bias`` when ``enable_scale_and_shift`` adds a trained gain and bias.
    """
    require_dtype("data_norm", require_variable("data_norm", "input", input), FLOATS)
    helper = LayerHelper("data_norm", name, act=act)
    prefix = name if name is not None else "dn"
    first = {
        "batch_size": 1e4,
        "batch_sum": 0.0,
        "batch_square": 1e4,
        "scale_w": 1.0,
        "bias": 0.0,
        **(param_attr or {}),
    }
    wanted = {"BatchSize": "batch_size", "BatchSum": "batch_sum", "BatchSquareSum": "batch_square"}
    if enable_scale_and_shift:
        wanted |= {"scale_w": "scale_w", "bias": "bias"}
    shape = [_channels(input, data_layout)]
    inputs: dict[str, Variable] = {"X": input}
    for argument, key in wanted.items():
        suffix = "batch_square_sum" if key == "batch_square" else key
        attr = ParamAttr(f"{prefix}.{suffix}", Constant(float(first[key])))
        inputs[argument] = helper.create_parameter(attr, shape, input.dtype)
    means = helper.create_variable(dtype=input.dtype, stop_gradient=True)
    scales = helper.create_variable(dtype=input.dtype, stop_gradient=True)
    out = input if in_place else helper.create_variable(dtype=input.dtype)
    attrs = {
        "epsilon": epsilon,
        "data_layout": data_layout,
        "slot_dim": slot_dim,
        "sync_stats": sync_stats,
        "summary_decay_rate": summary_decay_rate,
        "enable_scale_and_shift": enable_scale_and_shift,
    }
    helper.append_op("data_norm", inputs, {"Y": out, "Means": means, "Scales": scales}, attrs)
    return helper.append_activation(out)


def lrn(
    input: Variable,
    n: int = 5,
    k: float = 1.0,
    alpha: float = 1e-4,
    beta: float = 0.75,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """x / (k + alpha * Σ x² over n neighbouring channels) ** beta. Krizhevsky et al., 2012."""
    require_dtype("lrn", require_variable("lrn", "input", input), FLOATS)
    if len(input.shape) != 4:
        raise ShapeError(f"lrn: {input.name!r} {list(input.shape)} must have 4 dimensions ({user_line()})")
    helper = LayerHelper("lrn", name)
    mid = helper.create_variable_for_type_inference(input.dtype, stop_gradient=True)
    out = helper.create_variable_for_type_inference(input.dtype)
    attrs = {"n": n, "k": k, "alpha": alpha, "beta": beta, "data_format": data_format}
    helper.append_op("lrn", {"X": input}, {"Out": out, "MidOut": mid}, attrs)
    return out


def group_norm(
    input: Variable,
    groups: int,
    epsilon: float = 1e-05,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    act: str | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """scale * (x - mean) / √(variance + epsilon) + bias with mean and variance of each of ``groups`` groups of channels.

    Scale and bias, one number per channel, are there when ``param_attr`` and ``bias_attr`` are given. Wu and He, 2018.
    """
    require_dtype("group_norm", require_variable("group_norm", "input", input), FLOATS)
    helper = LayerHelper("group_norm", name, act=act)
    shape = [input.shape[-1 if data_layout == "NHWC" else 1]]
    inputs: dict[str, Variable] = {"X": input}
    if param_attr:
        inputs["Scale"] = helper.create_parameter(param_attr, shape, input.dtype, default_initializer=Constant(1.0))
    if bias_attr:
        inputs["Bias"] = helper.create_parameter(bias_attr, shape, input.dtype, is_bias=True)
    mean, variance = (helper.create_variable(dtype=input.dtype, stop_gradient=True) for _ in range(2))
    out = helper.create_variable(dtype=input.dtype)
    attrs = {"epsilon": epsilon, "groups": groups, "data_layout": data_layout}
    helper.append_op("group_norm", inputs, {"Y": out, "Mean": mean, "Variance": variance}, attrs)
    return helper.append_activation(out)


def instance_norm(
    input: Variable,
    epsilon: float = 1e-05,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    name: str | None = None,
) -> Variable:
    """scale * (x - mean) / √(variance + epsilon) + bias with mean and variance of each image and channel.

    Ulyanov et al., 2016.
    """
    require_dtype("instance_norm", require_variable("instance_norm", "input", input), FLOATS)
    helper = LayerHelper("instance_norm", name)
    shape = [input.shape[1]]
    scale = helper.create_parameter(param_attr, shape, input.dtype, default_initializer=Constant(1.0))
    bias = helper.create_parameter(bias_attr, shape, input.dtype, is_bias=True)
    saved = helper.temporaries(2, input.dtype, stop_gradient=True)
    out = helper.create_variable_for_type_inference(input.dtype)
    outputs = {"Y": out, "SavedMean": saved[0], "SavedVariance": saved[1]}
    helper.append_op("instance_norm", {"X": input, "Scale": scale, "Bias": bias}, outputs, {"epsilon": epsilon})
    return out


def affine_channel(
    x: Variable,
    scale: Variable | None = None,
    bias: Variable | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    act: str | None = None,
) -> Variable:
    """act(x * scale + bias) with one number of each per channel."""
    helper = LayerHelper("affine_channel", name, act=act)
    inputs = {
        "X": require_variable("affine_channel", "x", x),
        "Scale": require_variable("affine_channel", "scale", scale),
        "Bias": require_variable("affine_channel", "bias", bias),
    }
    out = helper.one("affine_channel", inputs, {"data_layout": data_layout}, dtype=x.dtype)
    return helper.append_activation(out)


def spectral_norm(
    weight: Variable, dim: int = 0, power_iters: int = 1, eps: float = 1e-12, name: str | None = None
) -> Variable:
    """``weight`` divided by its largest singular value, as a matrix whose rows are dimension ``dim``.

    ``power_iters`` iterations from two vectors, which stay as they were drawn, estimate it. Miyato et al., 2018.
    """
    require_dtype("spectral_norm", require_variable("spectral_norm", "weight", weight), FLOATS)
    helper = LayerHelper("spectral_norm", name)
    if dim not in (0, 1) or len(weight.shape) < 2 or min(weight.shape) < 1:
        raise ShapeError(
            f"spectral_norm: dim {dim} must be 0 or 1, and the sizes of {weight.name!r} {list(weight.shape)} known "
            f"({user_line()})"
        )
    rows = weight.shape[dim]
    columns = math.prod(weight.shape) // rows
    u, v = (
        helper.create_parameter(ParamAttr(), [size], weight.dtype, default_initializer=Normal(0.0, 1.0))
        for size in (rows, columns)
    )
    u.stop_gradient = v.stop_gradient = True
    out = helper.create_variable(dtype=weight.dtype)
    attrs = {"dim": dim, "power_iters": power_iters, "eps": eps}
    helper.append_op("spectral_norm", {"Weight": weight, "U": u, "V": v}, {"Out": out}, attrs)
    return out
