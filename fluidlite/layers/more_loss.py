"""More losses: warpctc, center_loss, dice_loss, npair_loss, sampled_softmax_with_cross_entropy, sigmoid_focal_loss; and
ctc_greedy_decoder, which reads labels off what warpctc has trained."""

from __future__ import annotations

from typing import Any

from fluidlite.errors import ProgramError
from fluidlite.framework import Variable, user_line
from fluidlite.layer_helper import FLOATS, INTS, LayerHelper, Variables, require_dtype, require_variable
from fluidlite.layers.compare import equal
from fluidlite.layers.loss import softmax_with_cross_entropy
from fluidlite.layers.math import matmul, reduce_mean, reduce_sum, topk
from fluidlite.layers.math_op import as_type
from fluidlite.layers.nn import one_hot
from fluidlite.layers.ops import square
from fluidlite.layers.shape import expand, reshape, squeeze, transpose
from fluidlite.param_attr import AttrLike


def warpctc(
    input: Variable,
    label: Variable,
    blank: int = 0,
    norm_by_times: bool = False,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> Variable:
    """-log of the probability that the steps' softmax spells the labels, with repetitions and blanks between; [N, 1].

    ``input``: scores [steps, classes] of sequences, or [steps, N, classes] padded, with the lengths of both. ``label``:
    int32 [labels, 1] of sequences, or [N, labels] padded. Graves et al., 2006.
    """
    require_dtype("warpctc", require_variable("warpctc", "input", input), FLOATS)
    require_dtype("warpctc", require_variable("warpctc", "label", label), ("int32",))
    if (input_length is None) != (label_length is None):
        raise ProgramError(f"warpctc: give input_length and label_length, or neither ({user_line()})")
    helper = LayerHelper("warpctc")
    loss, gradient = helper.temporaries(2, input.dtype)
    inputs = {"Logits": input, "Label": label, "LogitsLength": input_length, "LabelLength": label_length}
    attrs = {"blank": blank, "norm_by_times": norm_by_times}
    helper.append_op("warpctc", inputs, {"WarpCTCGrad": gradient, "Loss": loss}, attrs)
    return loss


def ctc_greedy_decoder(
    input: Variable,
    blank: int,
    input_length: Variable | None = None,
    padding_value: int = 0,
    name: str | None = None,
) -> Variable | tuple[Variable, Variable]:
    """The likeliest class of each step, without repetitions and blanks.

    ``input``: scores [steps, classes] of sequences, giving sequences of labels; or [N, steps, classes] padded with
    ``input_length`` [N, 1], giving (labels [N, steps] filled up with ``padding_value``, their numbers [N, 1]).
    """
    helper = LayerHelper("ctc_greedy_decoder", name)
    _, likeliest = topk(require_variable("ctc_greedy_decoder", "input", input), k=1)
    out = helper.create_variable_for_type_inference("int64")
    attrs: dict[str, Any] = {"merge_repeated": True, "blank": blank}
    if input_length is None:
        helper.append_op("ctc_align", {"Input": likeliest}, {"Output": out}, attrs)
        return out
    length = helper.create_variable_for_type_inference("int64")
    inputs = {"Input": squeeze(likeliest, [2]), "InputLength": input_length}
    attrs["padding_value"] = padding_value
    helper.append_op("ctc_align", inputs, {"Output": out, "OutputLength": length}, attrs)
    return out, length


def center_loss(
    input: Variable,
    label: Variable,
    num_classes: int,
    alpha: float | Variable,
    param_attr: AttrLike,
    update_center: bool = True,
) -> Variable:
    """Half the squared distance of each row of ``input`` [N, D] from the center of its class; [N, 1].

    The centers are a parameter [num_classes, D] that each run moves by ``alpha`` (a number, or a [1] variable) towards the
    rows of their classes. Wen et al., 2016.
    """
    require_dtype("center_loss", require_variable("center_loss", "input", input), FLOATS)
    require_dtype("center_loss", require_variable("center_loss", "label", label), INTS)
    helper = LayerHelper("center_loss")
    centers = helper.create_parameter(param_attr, [num_classes, input.shape[1]], input.dtype)
    centers.stop_gradient = True
    rate = alpha
    if not isinstance(rate, Variable):
        rate = helper.create_variable(
            name="centerloss_alpha", shape=[1], dtype="float32", persistable=True, stop_gradient=True
        )
        # before all other ops, as Fluid puts it
        helper.block.prepend_op("fill_constant", None, {"Out": rate}, {"shape": [1], "dtype": 5, "value": float(alpha)})  # type: ignore[arg-type]
    difference, loss = helper.temporaries(2, input.dtype)
    inputs = {"X": input, "Label": label, "Centers": centers, "CenterUpdateRate": rate}
    outputs = {"SampleCenterDiff": difference, "Loss": loss, "CentersOut": centers}
    helper.append_op("center_loss", inputs, outputs, {"cluster_num": num_classes, "need_update": update_center})
    return loss


def dice_loss(input: Variable, label: Variable, epsilon: float = 0.00001, name: str | None = None) -> Variable:
    """1 - 2 |input ∩ label| / (|input| + |label|), the mean over the batch; labels [..., 1] of classes. [1]."""
    require_variable("dice_loss", "input", input)
    hits = one_hot(label, depth=input.shape[-1])
    dims = [*range(1, len(input.shape))]
    both = reduce_sum(input * hits, dim=dims)
    total = reduce_sum(input, dim=dims) + reduce_sum(hits, dim=dims)
    score = 1 - both * 2 / (total + epsilon)
    return reduce_mean(score, name=name)


def npair_loss(anchor: Variable, positive: Variable, labels: Variable, l2_reg: float = 0.002) -> Variable:
    """Softmax cross entropy of the products of anchors and positives [N, D], plus their squares; [1]. Sohn, 2016.

    Rows of equal ``labels`` [N] belong together.
    """
    rows = require_variable("npair_loss", "labels", labels).shape[0]
    # not in place, as in Fluid: the caller's labels keep their shape, and can still be fed
    classes = expand(reshape(labels, shape=[rows, 1]), expand_times=[1, rows])
    same = as_type(equal(classes, transpose(classes, perm=[1, 0])), "float32")
    shares = same / reduce_sum(same, dim=1, keep_dim=True)
    length = reduce_mean(reduce_sum(square(anchor), 1)) + reduce_mean(reduce_sum(square(positive), 1))
    penalty = length * 0.25 * l2_reg
    products = matmul(anchor, positive, transpose_x=False, transpose_y=True)
    costs = softmax_with_cross_entropy(logits=products, label=shares, soft_label=True)
    assert isinstance(costs, Variable)
    return penalty + reduce_mean(reduce_sum(shares * costs, 0))


def sampled_softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    num_samples: int,
    num_true: int = 1,
    remove_accidental_hits: bool = True,
    use_customized_samples: bool = False,
    customized_samples: Variable | None = None,
    customized_probabilities: Variable | None = None,
    seed: int = 0,
) -> Variable:
    """Softmax cross entropy over the true classes [N, num_true] and ``num_samples`` sampled ones of logits [N, classes].

    Samples come from a log-uniform distribution (frequent classes first), or are given with their probabilities
    [N, num_true + num_samples]. Jean et al., 2014. [N, 1].
    """
    layer = "sampled_softmax_with_cross_entropy"
    require_dtype(layer, require_variable(layer, "logits", logits), FLOATS)
    require_dtype(layer, require_variable(layer, "label", label), ("int64",))
    helper = LayerHelper("sample_logits")
    options = {
        "use_customized_samples": use_customized_samples,
        "uniq": True,
        "remove_accidental_hits": remove_accidental_hits,
        "num_samples": num_samples,
        "seed": seed,
    }
    customized = (customized_samples, customized_probabilities)
    taken, places, soft = _sampled(helper, logits, label, customized, options)
    helper.append_op("one_hot", {"X": places}, {"Out": soft}, {"depth": num_samples + 1})
    loss, probability = helper.temporaries(2, logits.dtype)
    attrs = {"soft_label": True, "ignore_index": False, "numeric_stable_mode": False}
    outputs = {"Softmax": probability, "Loss": loss}
    helper.append_op("softmax_with_cross_entropy", {"Logits": taken, "Label": soft}, outputs, attrs)
    return loss / num_true


def _sampled(
    helper: LayerHelper,
    logits: Variable,
    label: Variable,
    customized: tuple[Variable | None, Variable | None],
    attrs: dict[str, Any],
) -> tuple[Variable, Variable, Variable]:
    """(logits of the true and the sampled classes, where the true ones are among them, a variable for these as one-hot
    rows), made in Fluid's order, which their names show."""
    new = helper.create_variable_for_type_inference
    samples, probabilities = customized
    inputs: dict[str, Variables] = {"Logits": logits, "Labels": label}
    if samples is not None and probabilities is not None:
        inputs |= {"CustomizedSamples": samples, "CustomizedProbabilities": probabilities}
    outputs = {
        "Samples": new("int64") if samples is None else samples,
        "Probabilities": new(logits.dtype) if probabilities is None else probabilities,
        "SampledLogits": new(logits.dtype),
        "SampledLabels": new("int64"),
    }
    soft = new("float32")
    outputs |= {"LogitsDim": new(logits.dtype), "LabelsDim": new(label.dtype)}
    helper.append_op("sample_logits", inputs, outputs, attrs)
    return outputs["SampledLogits"], outputs["SampledLabels"], soft


def sigmoid_focal_loss(
    x: Variable, label: Variable, fg_num: Variable, gamma: float = 2.0, alpha: float = 0.25
) -> Variable:
    """The focal loss of each class of logits [N, classes] over ``fg_num`` ([1] int32); Lin et al., 2017.

    Labels [N, 1] int32: classes from 1 on, 0 background, -1 ignored.
    """
    layer = "sigmoid_focal_loss"
    require_dtype(layer, require_variable(layer, "x", x), FLOATS)
    inputs = {"X": x, "Label": require_variable(layer, "label", label), "FgNum": fg_num}
    return LayerHelper(layer).one(layer, inputs, {"gamma": gamma, "alpha": alpha}, dtype=x.dtype)
