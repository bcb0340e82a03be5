"""Metrics computed inside the program: accuracy, auc, and the scores of tagging and segmentation."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.errors import ProgramError
from fluidlite.framework import Variable, user_line
from fluidlite.initializer import Constant
from fluidlite.layer_helper import FLOATS, INTS, LayerHelper, require_dtype, require_variable
from fluidlite.layers.math import topk


def accuracy(
    input: Variable, label: Variable, k: int = 1, correct: Variable | None = None, total: Variable | None = None
) -> Variable:
    """The share of rows of ``input`` [N, classes] whose label [N, 1] is among the k largest; [1] float32.

    The counts of right rows and of all rows are written to ``correct`` and ``total`` when these are given.
    """
    require_dtype("accuracy", require_variable("accuracy", "input", input), FLOATS)
    require_dtype("accuracy", require_variable("accuracy", "label", label), INTS)
    helper = LayerHelper("accuracy")
    values, indices = topk(input, k)
    result = helper.create_variable_for_type_inference("float32")
    correct = correct if correct is not None else helper.create_variable_for_type_inference("int32")
    total = total if total is not None else helper.create_variable_for_type_inference("int32")
    inputs = {"Out": values, "Indices": indices, "Label": label}
    helper.append_op("accuracy", inputs, {"Accuracy": result, "Correct": correct, "Total": total})
    return result


def auc(
    input: Variable,
    label: Variable,
    curve: str = "ROC",
    num_thresholds: int = 2**12 - 1,
    topk: int = 1,
    slide_steps: int = 1,
) -> tuple[Variable, Variable, list[Variable]]:
    """(AUC over everything seen, AUC of the last ``slide_steps`` batches, the variables that hold the histograms).

    ``input`` [N, 2] holds the probability of class 1 in its last column, ``label`` [N, 1] is 0 or 1. Scores are
    counted in ``num_thresholds + 1`` bins; histograms add up over batches, and over trainers. One class only gives 0.
    """
    require_dtype("auc", require_variable("auc", "input", input), ("float32", "float64"))
    require_dtype("auc", require_variable("auc", "label", label), INTS)
    if curve not in ("ROC", "PR"):
        raise ProgramError(f"auc: curve must be ROC or PR, not {curve!r} ({user_line()})")
    if topk != 1:
        raise ProgramError(f"auc: topk must be 1, not {topk} ({user_line()})")
    helper = LayerHelper("auc")
    total, batch = helper.temporaries(2, "float64")
    bins = num_thresholds + 1
    window = _histograms(helper, [(1 + slide_steps) * bins + 1])
    everything = _histograms(helper, [1, bins])
    for result, (positive, negative), steps in ((batch, window, slide_steps), (total, everything, 0)):
        helper.append_op(
            "auc",
            {"Predict": input, "Label": label, "StatPos": positive, "StatNeg": negative},
            {"AUC": result, "StatPosOut": positive, "StatNegOut": negative},
            {"curve": curve, "num_thresholds": num_thresholds, "slide_steps": steps},
        )
    return total, batch, [*window, *everything]


def _histograms(helper: LayerHelper, shape: Sequence[int]) -> tuple[Variable, Variable]:
    """Persistable int64 counts, of positive and negative labels, that start at 0."""
    positive, negative = (helper.create_global_variable(persistable=True, dtype="int64", shape=shape) for _ in "+-")
    for var in (positive, negative):
        helper.set_variable_initializer(var, Constant(0))
    return positive, negative


def chunk_eval(
    input: Variable,
    label: Variable,
    chunk_scheme: str,
    num_chunk_types: int,
    excluded_chunk_types: Sequence[int] | None = None,
    seq_length: Variable | None = None,
) -> tuple[Variable, ...]:
    """(precision, recall, F1, chunks found, chunks labelled, chunks right) of tag sequences in scheme IOB, IOE, IOBES
    or plain."""
    if chunk_scheme not in ("IOB", "IOE", "IOBES", "plain"):
        raise ProgramError(f"chunk_eval: unknown chunk_scheme {chunk_scheme!r} ({user_line()})")
    helper = LayerHelper("chunk_eval")
    scores = helper.temporaries(3, "float32")
    counts = helper.temporaries(3, "int64")
    names = ("Precision", "Recall", "F1-Score", "NumInferChunks", "NumLabelChunks", "NumCorrectChunks")
    attrs = {
        "num_chunk_types": num_chunk_types,
        "chunk_scheme": chunk_scheme,
        "excluded_chunk_types": list(excluded_chunk_types or ()),
    }
    inputs = {"Inference": input, "Label": label, "SeqLength": seq_length}
    helper.append_op("chunk_eval", inputs, dict(zip(names, [*scores, *counts], strict=True)), attrs)
    return (*scores, *counts)


def mean_iou(input: Variable, label: Variable, num_classes: int) -> tuple[Variable, Variable, Variable]:
    """(mean intersection over union, wrong elements per class, right elements per class) of integer predictions."""
    helper = LayerHelper("mean_iou")
    require_dtype("mean_iou", require_variable("mean_iou", "input", input), INTS)
    require_dtype("mean_iou", require_variable("mean_iou", "label", label), INTS)
    result = helper.create_variable_for_type_inference("float32")
    wrong, right = helper.temporaries(2, "int32")
    outputs = {"OutMeanIou": result, "OutWrong": wrong, "OutCorrect": right}
    helper.append_op("mean_iou", {"Predictions": input, "Labels": label}, outputs, {"num_classes": num_classes})
    return result, wrong, right


def edit_distance(
    input: Variable,
    label: Variable,
    normalized: bool = True,
    ignored_tokens: Sequence[int] | None = None,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> tuple[Variable, Variable]:
    """(Levenshtein distance of each pair of token sequences [N, 1], the number of pairs [1]).

    ``normalized`` divides by the length of the label; ``ignored_tokens`` are removed first. With lengths the tokens are
    padded to [N, longest], without they are sequences.
    """
    helper = LayerHelper("edit_distance")
    for var in (input, label):
        require_dtype("edit_distance", require_variable("edit_distance", "input and label", var), INTS)
    if ignored_tokens:
        attrs = {"tokens": list(ignored_tokens)}
        input, label = (helper.one("sequence_erase", {"X": var}, attrs, dtype="int64") for var in (input, label))
    distance, count = helper.temporaries(2, "int64")
    inputs = {"Hyps": input, "Refs": label, "HypsLength": input_length, "RefsLength": label_length}
    outputs = {"Out": distance, "SequenceNum": count}
    helper.append_op("edit_distance", inputs, outputs, {"normalized": normalized})
    return distance, count
