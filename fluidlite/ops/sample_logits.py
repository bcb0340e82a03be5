"""`sample_logits`: the logits of the true classes and of some sampled ones, for a softmax over few of many classes
(Jean et al. 2015)."""

from __future__ import annotations

from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops import class_samplers
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.ids import argument, flat_ids, out_of_range, outside
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, bool_attr, int_attr, register
from fluidlite.ops.shapes import check_rows, check_same

_ATTRS: Final = {
    "use_customized_samples": bool_attr(default=False, doc="CustomizedSamples are the samples"),
    "uniq": bool_attr(default=True, doc="sample without replacement"),
    "remove_accidental_hits": bool_attr(default=True, doc="a sample that is a true class of its row does not count"),
    "num_samples": int_attr(doc="sampled classes, the same for all rows"),
    "seed": int_attr(0, "not 0: the same samples in every run, Fluid's"),
}
#: taken from the logits of accidental hits
_HIT: Final = 1e20


def sample_logits(
    ctx: KernelContext,
    Logits: Array,
    Labels: Array,
    CustomizedSamples: Array | None,
    CustomizedProbabilities: Array | None,
    *,
    uniq: bool,
    remove_accidental_hits: bool,
    num_samples: int,
    seed: int,
) -> dict[str, Array]:
    check_rows(ctx, "Logits", Logits, Labels=Labels, CustomizedSamples=CustomizedSamples)
    if CustomizedSamples is not None:
        check_same(ctx, "CustomizedSamples", CustomizedSamples, CustomizedProbabilities=CustomizedProbabilities)
    classes, true_count = Logits.shape[1], Labels.shape[1]
    if CustomizedSamples is not None and CustomizedProbabilities is not None:
        samples, probabilities = CustomizedSamples, CustomizedProbabilities
    else:
        sampled, tries = _sampled(ctx, num_samples, classes, seed, uniq)
        samples = np.concatenate([Labels, np.broadcast_to(sampled, (len(Labels), num_samples))], axis=1)
        probabilities = _expected(samples, classes, num_samples, tries).astype(Logits.dtype)
    _check_samples(ctx, samples, Labels, classes)
    logits = np.take_along_axis(Logits, samples, axis=1) - np.log(probabilities)
    if remove_accidental_hits:
        hits = (samples[:, true_count:, None] == samples[:, None, :true_count]).any(axis=2)
        logits[:, true_count:] -= (hits * _HIT).astype(Logits.dtype)
    return {
        "Samples": samples,
        "Probabilities": probabilities,
        "LogitsDim": np.empty((*Logits.shape, 0), Logits.dtype),
        "LabelsDim": np.empty((*Labels.shape, 0), Labels.dtype),
        "SampledLogits": logits,
        "SampledLabels": np.tile(np.arange(true_count), (len(Labels), 1)),
    }


def sample_logits_grad(ctx: KernelContext, LogitsDim: Array, Samples: Array, SampledLogits_GRAD: Array) -> Array:
    grad = np.zeros(LogitsDim.shape[:-1], SampledLogits_GRAD.dtype)
    np.add.at(grad, (np.arange(len(Samples))[:, None], Samples), SampledLogits_GRAD)
    return grad


def _sampled(ctx: KernelContext, count: int, classes: int, seed: int, uniq: bool) -> tuple[Array, int]:
    """(classes (count,) from a log-uniform distribution, how many draws that took)."""

    def fresh(number: int) -> Array:
        return ctx.generator(0).integers(0, 2**64, number, np.uint64)

    words, draws = class_samplers.words64(seed) if seed else fresh, count
    while True:
        drawn = class_samplers.log_uniform(words, (1, draws), classes + 1)[0]
        if not uniq:
            return drawn, count
        firsts = np.sort(np.unique(drawn, return_index=True)[1])
        if len(firsts) >= count:
            tries = int(firsts[count - 1]) + 1 if count else 0
            return drawn[firsts[:count]], tries
        draws *= 2  # more of the same stream


def _expected(samples: Array, classes: int, count: int, tries: int) -> Array:
    """How often each class is expected among ``count`` samples that took ``tries`` draws."""
    probability = class_samplers.log_uniform_probability(samples, classes + 1)
    return probability * count if tries == count else -np.expm1(tries * np.log1p(-probability))


def _check_samples(ctx: KernelContext, samples: Array, labels: Array, classes: int) -> None:
    for name, values in (("Labels", labels), ("CustomizedSamples", samples)):
        ids = flat_ids(ctx, values, name)
        wrong = outside(ids, classes)
        if len(wrong):
            raise out_of_range(ctx, argument(ctx, name), wrong[0], ids[wrong[0]], argument(ctx, "Logits"), classes)


def _infer(ctx: InferContext) -> None:
    x, labels, shape = ctx.input("Logits"), ctx.shape("Labels"), ctx.shape("Logits")
    if len(shape) != 2 or len(labels) != 2:
        raise ctx.error(f"Logits {list(shape)} and Labels {list(labels)} must be matrices")
    custom = [bool(ctx.inputs(f"Customized{name}")) for name in ("Samples", "Probabilities")]
    if set(custom) != {ctx.attr("use_customized_samples")}:
        raise ProgramError(
            "op 'sample_logits': CustomizedSamples and CustomizedProbabilities are given with use_customized_samples, "
            f"and only then ({ctx.op.origin})"
        )
    count = ctx.attr("num_samples")
    if count < 0 or (ctx.attr("uniq") and not custom[0] and -1 < shape[1] < count):
        raise ctx.error(f"cannot sample {count} different ones of the {shape[1]} classes of Logits={x.name!r}")
    width = labels[1] + count if labels[1] >= 0 else -1
    ctx.set("Samples", (shape[0], width), "int64")
    for name in ("Probabilities", "SampledLogits"):
        ctx.set(name, (shape[0], width), x.dtype)
    ctx.set("LogitsDim", (*shape, 0), x.dtype)
    ctx.set("LabelsDim", (*labels, 0), ctx.input("Labels").dtype)
    ctx.set("SampledLabels", labels, "int64")


def _infer_grad(ctx: InferContext) -> None:
    shape = ctx.input("LogitsDim").shape
    ctx.set("Logits@GRAD", None if shape is None else shape[:-1], ctx.input("LogitsDim").dtype)


_LOGITS: Final = np.array([[0.5, -1.0, 2.0, 0.0], [1.5, 0.25, -0.5, 1.0]])
_CUSTOM: Final = {
    "Logits": _LOGITS,
    "Labels": np.array([[1], [3]]),
    "CustomizedSamples": np.array([[1, 1, 2], [3, 0, 0]]),
    "CustomizedProbabilities": np.full((2, 3), 0.5),
}
_TAKEN: Final = np.array([[-1.0, -1.0, 2.0], [1.0, 1.5, 1.5]]) + np.log(2)

register(
    "sample_logits",
    doc="Samples [N, true + num_samples]: the classes Labels [N, true] of each row of Logits [N, classes] and sampled ones. "
    "SampledLogits: their logits less log Probabilities, how often each is expected; less 1e20 for a sample that hits a "
    "true class. SampledLabels [N, true]: 0, 1, ..., where the true classes now are.",
    inputs=["Logits", "Labels", "CustomizedSamples?", "CustomizedProbabilities?"],
    outputs=["Samples~", "Probabilities~", "LogitsDim~", "LabelsDim~", "SampledLogits~", "SampledLabels"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=sample_logits,
    grad=maker(["LabelsDim", "LogitsDim", "SampledLogits@GRAD", "Samples"], ["Logits@GRAD"]),
    cases=(
        Case(
            _CUSTOM,
            {"num_samples": 2, "use_customized_samples": True, "remove_accidental_hits": False},
            {"SampledLogits": _TAKEN, "SampledLabels": np.array([[0], [0]])},
            check_grad=("Logits",),
        ),
        Case(
            _CUSTOM,
            {"num_samples": 2, "use_customized_samples": True},
            {"SampledLogits": _TAKEN - np.array([[0.0, 1e20, 0.0], [0.0, 0.0, 0.0]])},
        ),
        Case(
            {"Logits": np.zeros((1, 10)), "Labels": np.array([[1]])},
            {"num_samples": 4, "seed": 3},
            {
                "Samples": np.array([[1, 2, 0, 3, 1]]),
                "Probabilities": 4 * np.log([[3 / 2, 4 / 3, 2, 5 / 4, 3 / 2]]) / np.log(11),
            },
            note="as Fluid draws",
        ),
    ),
)
register(
    "sample_logits_grad",
    doc="Gradient of sample_logits, summed over the samples of each class.",
    inputs=["LabelsDim", "LogitsDim", "SampledLogits@GRAD", "Samples"],
    outputs=["Logits@GRAD"],
    attrs=_ATTRS,
    infer=_infer_grad,
    kernel=sample_logits_grad,
)
