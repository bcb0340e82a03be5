"""`crf_decoding`: the most likely tag sequences under a conditional random field (Viterbi 1967)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.linear_chain_crf import END, START, TAGS, check_transition
from fluidlite.ops.padded import check_same_lengths, ragged
from fluidlite.ops.recurrent import Steps, size, steps_of
from fluidlite.ops.registry import Case, register
from fluidlite.ops.segments import array_of
from fluidlite.values.lod import LoDTensor


def crf_decoding(ctx: KernelContext, Emission: Any, Transition: Any, Label: Any, Length: Any) -> Array | LoDTensor:
    emission = ragged(ctx, "Emission", Emission, Length)
    steps = steps_of(emission.bags)
    path = steps.in_rows(_best_path(steps, emission.bags.rows[steps.rows], array_of(Transition)))
    if Label is not None:
        labels = ragged(ctx, "Label", Label, Length)
        check_same_lengths(ctx, emission, labels, ("Emission", "Label"))
        path = (path == labels.bags.rows.reshape(-1)).astype(np.int64)
    return emission.back(path if Length is not None else path[:, None])


def _best_path(steps: Steps, emission: Array, transition: Array) -> Array:
    """The best tag of each row (T,), in step order. Of equally good ones the smallest."""
    scores, origins = np.array(emission), np.zeros(emission.shape, np.int64)
    if steps.parts:
        scores[steps.parts[0]] += transition[START]
    for earlier, part in pairwise(steps.parts):
        ways = scores[earlier][: size(part), :, None] + transition[TAGS:]
        origins[part] = ways.argmax(axis=1)
        scores[part] += ways.max(axis=1)
    path: Array = (scores + transition[END]).argmax(axis=1)
    for earlier, part in reversed(list(pairwise(steps.parts))):
        path[earlier][: size(part)] = np.take_along_axis(origins[part], path[part][:, None], axis=1)[:, 0]
    return path


def _infer(ctx: InferContext) -> None:
    check_transition(ctx)
    x, shape = ctx.input("Emission"), ctx.shape("Emission")
    ctx.set("ViterbiPath", shape[:-1] if ctx.inputs("Length") else (shape[0], 1), "int64", lod_level=x.lod_level)


_ROWS = np.array([[1.0, 0.0], [0.0, 0.5], [1.0, 0.0], [0.0, 2.0]])
_TRANSITION = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
_LOD = ((0, 3, 3, 4),)

register(
    "crf_decoding",
    doc="ViterbiPath [T, 1] int64: the tags of the most likely path of each sequence of Emission [T, tags] under Transition "
    "as `linear_chain_crf` trains it; with Label 1 where the tag is the labelled one, else 0. With Length, Emission is "
    "[batch, time, tags], Label and ViterbiPath [batch, time], 0 beyond the sequences.",
    inputs=["Emission", "Transition", "Label?", "Length?"],
    outputs=["ViterbiPath"],
    infer=_infer,
    kernel=crf_decoding,
    takes_lod=True,
    cases=(
        Case(
            {"Emission": LoDTensor(_ROWS, _LOD), "Transition": _TRANSITION},
            {},
            {"ViterbiPath": LoDTensor(np.array([[0], [0], [0], [1]]), _LOD)},
            note="to stay with a tag is worth more than the emission of the second row",
        ),
        Case(
            {
                "Emission": LoDTensor(_ROWS, _LOD),
                "Transition": 0 * _TRANSITION,
                "Label": LoDTensor(np.array([[0], [0], [0], [1]]), _LOD),
            },
            {},
            {"ViterbiPath": LoDTensor(np.array([[1], [0], [1], [1]]), _LOD)},
        ),
        Case(
            {"Emission": _ROWS.reshape(2, 2, 2), "Transition": 0 * _TRANSITION, "Length": np.array([2, 1])},
            {},
            {"ViterbiPath": np.array([[0, 1], [0, 0]])},
        ),
    ),
)
