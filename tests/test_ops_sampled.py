"""Scores of tags and classes, samples of classes, and filters: against plain definitions, and what they refuse."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidlite.errors import FluidliteError, OutOfRangeError, ProgramError, ShapeError
from fluidlite.ops.chunk_eval import SCHEMES
from fluidlite.values.lod import LoDTensor, lod_from_lengths
from tests.op_harness import Bench, add_gradient, build, input_gradient


def bench_of(op: str, inputs: dict[str, Any], attrs: dict[str, Any]) -> Bench:
    given = {name: value if isinstance(value, list) else [value] for name, value in inputs.items()}
    return build(op, given, attrs)


def run(op: str, inputs: dict[str, Any], output: str, **attrs: Any) -> Any:
    bench = bench_of(op, inputs, attrs)
    return bench.run().read(bench.op.outputs[output][0])


def ragged(sequences: list[list[int]]) -> LoDTensor:
    flat = np.array([token for tokens in sequences for token in tokens], np.int64).reshape(-1, 1)
    return LoDTensor(flat, lod_from_lengths([[len(tokens) for tokens in sequences]]))


def chunks(tags: list[int], scheme: str, types: int) -> list[tuple[int, int, int]]:
    """Chunks found by going from row to row."""
    marks, opening, closing = SCHEMES[scheme]
    found: list[tuple[int, int, int]] = []
    for row, tag in enumerate(tags):
        type, mark = divmod(tag, marks)
        if type == types:
            continue
        goes_on = bool(found) and found[-1][1] == row - 1 and found[-1][2] == type
        if goes_on and mark not in opening and tags[row - 1] % marks not in closing:
            found[-1] = (found[-1][0], row, type)
        else:
            found.append((row, row, type))
    return found


@given(st.sampled_from(sorted(SCHEMES)), st.integers(1, 2), st.data())
def test_chunk_eval_counts_chunks(scheme: str, types: int, data: st.DataObject) -> None:
    tags = st.lists(st.integers(0, types * SCHEMES[scheme].marks), max_size=6)
    labelled = data.draw(st.lists(tags, min_size=1, max_size=3))
    found = [data.draw(st.permutations(sequence)) for sequence in labelled]
    attrs = {"chunk_scheme": scheme, "num_chunk_types": types}
    bench = bench_of("chunk_eval", {"Inference": ragged(found), "Label": ragged(labelled)}, attrs)
    env = bench.run()
    mine, theirs = ([set(chunks(tags, scheme, types)) for tags in sequences] for sequences in (found, labelled))
    counts = {
        "NumInferChunks": sum(map(len, mine)),
        "NumLabelChunks": sum(map(len, theirs)),
        "NumCorrectChunks": sum(len(a & b) for a, b in zip(mine, theirs, strict=True)),
    }
    assert {name: env.read(bench.op.outputs[name][0]).item() for name in counts} == counts


@functools.cache
def distance(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    if not a or not b:
        return len(a) + len(b)
    replaced = distance(a[1:], b[1:]) + (a[0] != b[0])
    return min(replaced, distance(a[1:], b) + 1, distance(a, b[1:]) + 1)


@given(st.lists(st.tuples(*[st.lists(st.integers(0, 2), max_size=5)] * 2), min_size=1, max_size=4))
def test_edit_distance_is_levenshtein(pairs: list[tuple[list[int], list[int]]]) -> None:
    found = run("edit_distance", {"Hyps": ragged([a for a, _ in pairs]), "Refs": ragged([b for _, b in pairs])}, "Out")
    assert found[:, 0].tolist() == [distance(tuple(a), tuple(b)) for a, b in pairs]


def test_mean_iou_of_nothing() -> None:
    nothing = np.zeros(0, np.int32)
    assert run("mean_iou", {"Predictions": nothing, "Labels": nothing}, "OutMeanIou", num_classes=2).tolist() == [0.0]


def test_samples_differ_and_repeat() -> None:
    """Without a seed every run draws other classes, none of them twice; all rows share them."""
    given = {"Logits": np.zeros((2, 50)), "Labels": np.array([[1], [2]])}
    bench = bench_of("sample_logits", given, {"num_samples": 40})
    first, second = (bench.run().read("Samples_out0") for _ in range(2))
    assert len(set(first[0, 1:].tolist())) == 40
    assert (first[0, 1:] == first[1, 1:]).all()
    assert (first != second).any()
    repeated = run("sample_logits", given, "Samples", num_samples=40, uniq=False)
    assert len(set(repeated[0, 1:].tolist())) < 40


def test_samples_of_all_classes() -> None:
    given = {"Logits": np.zeros((1, 6)), "Labels": np.array([[5]])}
    assert sorted(run("sample_logits", given, "Samples", num_samples=6)[0].tolist()) == [0, 1, 2, 3, 4, 5, 5]


def test_the_gradient_of_a_hit_class_counts_every_sample() -> None:
    given = {
        "Logits": np.zeros((1, 4)),
        "Labels": np.array([[1]]),
        "CustomizedSamples": np.array([[1, 3, 3]]),
        "CustomizedProbabilities": np.full((1, 3), 0.5),
    }
    bench = bench_of("sample_logits", given, {"num_samples": 2, "use_customized_samples": True})
    add_gradient(bench, {"SampledLogits_out0": np.array([[1.0, 2.0, 4.0]])})
    assert input_gradient(bench, bench.run(), "Logits")[0].tolist() == [[0.0, 1.0, 0.0, 6.0]]


IDS = np.zeros((2, 1), np.int32)
CUSTOM = {"Logits": np.zeros((1, 4)), "Labels": np.array([[1]])}
TAGS = ragged([[0], [1]])
REFUSED_AT_BUILD: list[tuple[str, dict[str, Any], dict[str, Any], type[FluidliteError], str]] = [
    (
        "chunk_eval",
        {"Inference": TAGS, "Label": TAGS},
        {"num_chunk_types": 1, "chunk_scheme": "BIO"},
        ProgramError,
        "BIO",
    ),
    ("mean_iou", {"Predictions": IDS, "Labels": IDS}, {"num_classes": 0}, ShapeError, "num_classes is 0"),
    ("edit_distance", {"Hyps": TAGS, "Refs": TAGS, "HypsLength": IDS}, {}, ProgramError, "both lengths"),
    ("row_conv", {"X": np.zeros((3, 2)), "Filter": np.zeros((2, 3))}, {}, ShapeError, "columns of X"),
    (
        "filter_by_instag",
        {"Ins": np.zeros(2), "Ins_tag": TAGS, "Filter_tag": IDS},
        {"is_lod": False},
        ShapeError,
        "matrix",
    ),
    ("sample_logits", CUSTOM, {"num_samples": 5}, ShapeError, "5 different ones of the 4 classes"),
    ("sample_logits", CUSTOM, {"num_samples": 1, "use_customized_samples": True}, ProgramError, "CustomizedSamples"),
]
REFUSED_AT_RUN: list[tuple[str, dict[str, Any], dict[str, Any], type[FluidliteError], str]] = [
    (
        "chunk_eval",
        {"Inference": TAGS, "Label": ragged([[0], [3]])},
        {"num_chunk_types": 1},
        OutOfRangeError,
        "class 3 at",
    ),
    (
        "chunk_eval",
        {"Inference": TAGS, "Label": ragged([[0, 1]])},
        {"num_chunk_types": 1},
        ShapeError,
        "different lengths",
    ),
    ("edit_distance", {"Hyps": TAGS, "Refs": ragged([[1, 2]])}, {}, ShapeError, "has 2 sequences, 'Refs_0' 1"),
    ("edit_distance", {"Hyps": TAGS, "Refs": ragged([[1], []])}, {"normalized": True}, ShapeError, "sequence 1 of"),
    ("mean_iou", {"Predictions": IDS, "Labels": IDS + 2}, {"num_classes": 2}, OutOfRangeError, "class 2 at position 0"),
    ("mean_iou", {"Predictions": IDS, "Labels": IDS[:1]}, {"num_classes": 2}, ShapeError, "2 predictions but 1"),
    (
        "precision_recall",
        {"MaxProbs": np.zeros((2, 1)), "Indices": IDS - 1, "Labels": IDS},
        {"class_number": 2},
        OutOfRangeError,
        "class -1 at position 0 of 'Indices_0'",
    ),
    (
        "precision_recall",
        {"MaxProbs": np.zeros((2, 1)), "Indices": IDS, "Labels": IDS[:1]},
        {"class_number": 2},
        ShapeError,
        "2 predictions but 1",
    ),
    (
        "filter_by_instag",
        {"Ins": np.zeros((3, 1)), "Ins_tag": TAGS, "Filter_tag": IDS},
        {"is_lod": False},
        ShapeError,
        "has 3 instances, 'Ins_tag_0' tags for 2",
    ),
    ("sample_logits", {**CUSTOM, "Labels": np.array([[4]])}, {"num_samples": 1}, OutOfRangeError, "id 4 at position 0"),
    ("row_conv", {"X": np.zeros((3, 2)), "Filter": np.zeros((2, 2))}, {}, ShapeError, "'X_0' has no LoD"),
]


@pytest.mark.parametrize(("op", "inputs", "attrs", "error", "text"), REFUSED_AT_BUILD)
def test_refused_while_building(
    op: str, inputs: dict[str, Any], attrs: dict[str, Any], error: type[FluidliteError], text: str
) -> None:
    with pytest.raises(error, match=text) as caught:
        bench_of(op, inputs, attrs)
    assert "(case)" in str(caught.value)


@pytest.mark.parametrize(("op", "inputs", "attrs", "error", "text"), REFUSED_AT_RUN)
def test_refused_while_running(
    op: str, inputs: dict[str, Any], attrs: dict[str, Any], error: type[FluidliteError], text: str
) -> None:
    bench = bench_of(op, inputs, attrs)
    with pytest.raises(error, match=text):
        bench.run()
