"""Losses over many classes that compute only some of them: nce and hsigmoid."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.framework import Variable, user_line
from fluidlite.initializer import NumpyArrayInitializer
from fluidlite.layer_helper import FLOATS, LayerHelper, Variables, require_dtype, require_variable
from fluidlite.layers.math_op import scaled
from fluidlite.param_attr import AttrLike, ParamAttr

_SAMPLERS: Final = {"uniform": 0, "log_uniform": 1, "custom_dist": 2}


def nce(
    input: Variable,
    label: Variable,
    num_total_classes: int,
    sample_weight: Variable | None = None,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    num_neg_samples: int | None = None,
    name: str | None = None,
    sampler: str = "uniform",
    custom_dist: Sequence[float] | None = None,
    seed: int = 0,
    is_sparse: bool = False,
) -> Variable:
    """Noise-contrastive estimation of the classes ``label`` [N, true classes] from features ``input`` [N, D]; [N, 1].

    Against each row ``num_neg_samples`` (10) classes are drawn by ``sampler``: uniform, log_uniform, or custom_dist
    with the probabilities ``custom_dist``. The cost is divided by ``num_neg_samples + 1``. ``is_sparse`` gives the
    weight's gradient as SelectedRows. Gutmann and Hyvärinen, 2010.
    """
    require_dtype("nce", require_variable("nce", "input", input), FLOATS)
    require_dtype("nce", require_variable("nce", "label", label), ("int64",))
    if sampler not in _SAMPLERS:
        raise ProgramError(f"nce: sampler must be one of {', '.join(_SAMPLERS)}, not {sampler!r} ({user_line()})")
    helper = LayerHelper("nce", name)
    weight = helper.create_parameter(param_attr, [num_total_classes, input.shape[1]], input.dtype)
    inputs: dict[str, Variables | None] = {"Input": input, "Label": label, "Weight": weight}
    if bias_attr is not False:
        inputs["Bias"] = helper.create_parameter(bias_attr, [num_total_classes, 1], input.dtype, is_bias=True)
    inputs["SampleWeight"] = sample_weight
    if sampler == "custom_dist":
        inputs.update(_custom_distribution(helper, custom_dist, num_total_classes))
    samples = 10 if num_neg_samples is None else int(num_neg_samples)
    attrs = {
        "num_total_classes": num_total_classes,
        "num_neg_samples": samples,
        "sampler": _SAMPLERS[sampler],
        "seed": seed,
        "is_sparse": is_sparse,
        "remote_prefetch": is_sparse,
    }
    cost, logits = helper.temporaries(2, input.dtype)
    labels = helper.create_variable_for_type_inference("int64")
    helper.append_op("nce", inputs, {"Cost": cost, "SampleLogits": logits, "SampleLabels": labels}, attrs)
    return scaled(cost, 1.0 / (samples + 1), 0.0)


def _custom_distribution(
    helper: LayerHelper, probabilities: Sequence[float] | None, classes: int
) -> dict[str, Variables | None]:
    """The probabilities and their alias table as constants that live in parameters."""
    if probabilities is None or len(probabilities) != classes:
        given = "none" if probabilities is None else str(len(probabilities))
        raise ProgramError(f"nce: custom_dist needs {classes} probabilities, {given} given ({user_line()})")
    alias, alias_probs = alias_table(probabilities)
    tables = {
        "CustomDistProbs": np.array(probabilities, np.float32),
        "CustomDistAlias": alias,
        "CustomDistAliasProbs": alias_probs,
    }
    result: dict[str, Variables | None] = {}
    for key, table in tables.items():
        constant = NumpyArrayInitializer(table)
        var = helper.create_parameter(ParamAttr(), table.shape, table.dtype, default_initializer=constant)
        var.stop_gradient = True
        result[key] = var
    return result


def alias_table(probabilities: Sequence[float]) -> tuple[Array, Array]:
    """(alias, probability of keeping the class) for drawing from a distribution with one comparison.

    Class k is drawn uniformly, then kept with its probability or replaced by ``alias[k]``; -1 marks classes that are
    always kept. Walker, "An Efficient Method for Generating Discrete Random Variables", 1977.
    """
    alias = np.full(len(probabilities), -1, np.int32)
    keep = np.ones(len(probabilities), np.float32)
    scaled = [probability * len(probabilities) for probability in probabilities]
    large = [k for k, value in enumerate(scaled) if value > 1]
    small = [k for k, value in enumerate(scaled) if value < 1]
    while large and small:
        giver, taker = large.pop(0), small.pop(0)
        keep[taker] = scaled[taker]
        alias[taker] = giver
        scaled[giver] += scaled[taker] - 1
        (large if scaled[giver] > 1 else small).append(giver)
    return alias, keep


def hsigmoid(
    input: Variable,
    label: Variable,
    num_classes: int,
    param_attr: AttrLike = None,
    bias_attr: AttrLike = None,
    name: str | None = None,
    path_table: Variable | None = None,
    path_code: Variable | None = None,
    is_custom: bool = False,
    is_sparse: bool = False,
) -> Variable:
    """Log loss of the decisions on the way to the class ``label`` [N, 1] in a binary tree, from features [N, D]; [N, 1].

    The tree is the complete one over ``num_classes``, or with ``is_custom`` the user's: ``path_table`` [N, depth] holds
    the inner nodes of each row's path (-1 after its end), ``path_code`` the decisions. ``is_sparse`` (custom trees
    only) gives the weight's gradient as SelectedRows. Morin and Bengio, 2005.
    """
    layer = "hierarchical_sigmoid"
    require_dtype(layer, require_variable(layer, "input", input), FLOATS)
    require_dtype(layer, require_variable(layer, "label", label), ("int64",))
    _check_tree(num_classes, path_table, path_code, is_custom)
    if is_sparse and not is_custom:
        warnings.warn(f"hsigmoid: is_sparse has no effect without a custom tree ({user_line()})", stacklevel=2)
        is_sparse = False
    if input.shape[1] <= 0:
        raise ShapeError(f"hsigmoid: the width of {input.name!r} {list(input.shape)} must be known ({user_line()})")
    helper = LayerHelper(layer, name)
    nodes = num_classes if is_custom else num_classes - 1
    weight = helper.create_parameter(param_attr, [nodes, input.shape[1]], input.dtype)
    inputs: dict[str, Variables | None] = {"X": input, "W": weight, "Label": label}
    if bias_attr is not False:
        inputs["Bias"] = helper.create_parameter(bias_attr, [nodes, 1], input.dtype, is_bias=True)
    inputs.update(PathTable=path_table, PathCode=path_code)
    out, pre_out = helper.temporaries(2, input.dtype)
    attrs: dict[str, Any] = {"num_classes": num_classes, "is_sparse": is_sparse, "remote_prefetch": is_sparse}
    helper.append_op(layer, inputs, {"Out": out, "PreOut": pre_out, "W_Out": weight}, attrs)
    return out


def _check_tree(
    num_classes: int | None, path_table: Variable | None, path_code: Variable | None, is_custom: bool
) -> None:
    if is_custom and (path_table is None or path_code is None):
        raise ProgramError(f"hsigmoid: a custom tree needs path_table and path_code ({user_line()})")
    if num_classes is None or num_classes < 2:
        raise ProgramError(f"hsigmoid: num_classes must be at least 2, not {num_classes} ({user_line()})")
