"""Recurrent ops against one sequence at a time, and conditional random fields against all paths."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidlite.errors import FluidliteError, OutOfRangeError, ProgramError, ShapeError
from fluidlite.ops.recurrent import steps_of
from fluidlite.ops.segments import Sequences
from fluidlite.values.lod import LoDTensor, lod_from_lengths
from tests.op_harness import Bench, add_gradient, build, input_gradient, numbers

LENGTHS = st.lists(st.integers(0, 4), min_size=1, max_size=5)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def run(op: str, inputs: dict[str, Any], output: str, **attrs: Any) -> Any:
    bench = build(op, {name: [value] for name, value in inputs.items()}, attrs)
    return bench.run().read(bench.op.outputs[output][0])


def ragged(rows: np.ndarray, lengths: list[int]) -> LoDTensor:
    return LoDTensor(rows, lod_from_lengths([lengths]))


def slices(lengths: list[int]) -> list[slice]:
    ends = np.cumsum(lengths).tolist()
    return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]


@given(LENGTHS, st.booleans())
def test_steps_visit_every_row_after_the_one_before_it(lengths: list[int], is_reverse: bool) -> None:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.arange(int(offsets[-1]))
    steps = steps_of(Sequences(rows, (), offsets), is_reverse=is_reverse)
    assert sorted(steps.rows.tolist()) == rows.tolist()
    for number, part in enumerate(steps.parts):
        wanted = [s for s in steps.order.tolist() if lengths[s] > number]
        at = [offsets[s + 1] - 1 - number if is_reverse else offsets[s] + number for s in wanted]
        assert steps.rows[part].tolist() == at
    before = steps.before(-1 - np.arange(len(lengths))[steps.order], steps.rows)
    neighbour = steps.rows + 1 if is_reverse else steps.rows - 1
    first = np.isin(steps.rows, offsets[1:] - 1 if is_reverse else offsets[:-1])
    assert (before[first] < 0).all()
    assert before[~first].tolist() == neighbour[~first].tolist()
    assert steps.in_rows(steps.rows).tolist() == rows.tolist()


@given(LENGTHS, st.booleans())
def test_lstm_is_the_recurrence(lengths: list[int], is_reverse: bool) -> None:
    random = np.random.default_rng(0)
    x, weight, bias = random.normal(size=(sum(lengths), 8)), random.normal(size=(2, 8)), random.normal(size=(1, 14))
    first = random.normal(size=(2, len(lengths), 2))
    given = {"Input": ragged(x, lengths), "Weight": weight, "Bias": bias, "H0": first[0], "C0": first[1]}
    found = run("lstm", given, "Hidden", is_reverse=is_reverse)
    wanted = np.empty((sum(lengths), 2))
    to_input, to_forget, to_output = bias[0, 8:].reshape(3, 2)
    for number, part in enumerate(slices(lengths)):
        hidden, cell = first[0, number], first[1, number]
        for t in range(part.start, part.stop)[:: -1 if is_reverse else 1]:
            entering, opened, kept, out = (x[t] + hidden @ weight + bias[0, :8]).reshape(4, 2)
            cell = sigmoid(kept + to_forget * cell) * cell + sigmoid(opened + to_input * cell) * np.tanh(entering)
            hidden = wanted[t] = sigmoid(out + to_output * cell) * np.tanh(cell)
    np.testing.assert_allclose(found.array, wanted, rtol=1e-9)


@given(LENGTHS, st.booleans())
def test_gru_is_gru_unit_step_by_step(lengths: list[int], origin_mode: bool) -> None:
    random = np.random.default_rng(0)
    x, first = random.normal(size=(sum(lengths), 6)), random.normal(size=(len(lengths), 2))
    shared = {"Weight": random.normal(size=(2, 6)), "Bias": random.normal(size=(1, 6))}
    found = run("gru", {"Input": ragged(x, lengths), "H0": first, **shared}, "Hidden", origin_mode=origin_mode)
    for number, part in enumerate(slices(lengths)):
        hidden = first[number : number + 1]
        for t in range(part.start, part.stop):
            one = {"Input": x[t : t + 1], "HiddenPrev": hidden, **shared}
            hidden = run("gru_unit", one, "Hidden", origin_mode=origin_mode)
            np.testing.assert_allclose(found.array[t], hidden[0], rtol=1e-9)


@pytest.mark.parametrize("missing", ["C", "H"])
def test_lstm_unit_with_one_gradient(missing: str) -> None:
    bench = build("lstm_unit", {"X": [np.ones((1, 4))], "C_prev": [np.ones((1, 1))]}, {})
    add_gradient(bench, {f"{name}_out0": np.ones((1, 1)) for name in ("C", "H") if name != missing})
    alone = input_gradient(bench, bench.run(), "X")[0]
    both = build("lstm_unit", {"X": [np.ones((1, 4))], "C_prev": [np.ones((1, 1))]}, {})
    zero = {f"{name}_out0": np.full((1, 1), float(name != missing)) for name in ("C", "H")}
    add_gradient(both, zero)
    np.testing.assert_array_equal(alone, input_gradient(both, both.run(), "X")[0])


def paths(lengths: list[int], tags: int) -> list[list[tuple[int, ...]]]:
    return [list(itertools.product(range(tags), repeat=length)) for length in lengths]


def score(path: tuple[int, ...], emission: np.ndarray, transition: np.ndarray) -> float:
    if not path:
        return 0.0
    total = transition[0, path[0]] + transition[1, path[-1]] + sum(emission[t, tag] for t, tag in enumerate(path))
    return float(total + sum(transition[2 + a, b] for a, b in itertools.pairwise(path)))


@given(LENGTHS, st.integers(1, 3), st.booleans())
def test_crf_weighs_all_paths(lengths: list[int], tags: int, padded: bool) -> None:
    random = np.random.default_rng(0)
    time = max([*lengths, 1]) + 1
    batch = random.normal(size=(len(lengths), time, tags))
    labels = random.integers(0, tags, (len(lengths), time))
    transition = random.normal(size=(tags + 2, tags))
    inside = np.arange(time) < np.array(lengths)[:, None]
    forms: dict[str, Any]
    if padded:
        forms = {"Emission": batch, "Label": labels, "Length": np.array(lengths)}
    else:
        forms = {"Emission": ragged(batch[inside], lengths), "Label": ragged(labels[inside][:, None], lengths)}
    cost = run("linear_chain_crf", {**forms, "Transition": transition}, "LogLikelihood")
    del forms["Label"]
    best = run("crf_decoding", {**forms, "Transition": transition}, "ViterbiPath")
    best_rows = best[inside] if padded else best.array[:, 0]
    for number, (part, options) in enumerate(zip(slices(lengths), paths(lengths, tags), strict=True)):
        scores = {path: score(path, batch[number], transition) for path in options}
        chosen = tuple(labels[number, : lengths[number]].tolist())
        expected = np.log(sum(np.exp(value) for value in scores.values())) - scores[chosen]
        assert cost[number, 0] == pytest.approx(expected, abs=1e-9)
        assert tuple(best_rows[part].tolist()) == max(options, key=scores.__getitem__)
    if padded:
        assert not best[~inside].any()


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


SEQUENCES = ragged(zeros(3, 8), [1, 2])
TRIPLE = ragged(zeros(3, 6), [1, 2])
LSTM = {"Input": SEQUENCES, "Weight": zeros(2, 8), "Bias": zeros(1, 14)}
GRU = {"Input": TRIPLE, "Weight": zeros(2, 6)}
UNIT = {"Input": zeros(3, 6), "Weight": zeros(2, 6), "HiddenPrev": zeros(3, 2)}
TAGGED = ragged(np.zeros((3, 1), np.int64), [1, 2])
CRF = {"Emission": ragged(zeros(3, 2), [1, 2]), "Transition": zeros(4, 2), "Label": TAGGED}
REFUSED_AT_BUILD: list[tuple[str, dict[str, Any], dict[str, Any], type[FluidliteError], str]] = [
    ("lstm", {**LSTM, "Bias": zeros(1, 8)}, {}, ShapeError, "must hold 14 numbers with use_peepholes=True"),
    ("lstm", LSTM, {"use_peepholes": False}, ShapeError, "must hold 8 numbers"),
    ("lstm", {**LSTM, "Weight": zeros(3, 12)}, {}, ShapeError, r"columns of Weight \[3, 12\]"),
    ("lstm", {**LSTM, "H0": zeros(2, 2)}, {}, ProgramError, "H0 and C0 are given together"),
    ("lstm", LSTM, {"gate_activation": "gelu"}, ProgramError, "gate_activation 'gelu' is none of identity"),
    ("gru", {**GRU, "Weight": zeros(2, 9)}, {}, ShapeError, r"columns of Weight \[2, 9\]"),
    ("gru", {**GRU, "Bias": zeros(1, 4)}, {}, ShapeError, "must hold 6 numbers"),
    ("gru", GRU, {"activation": "Tanh"}, ProgramError, "activation 'Tanh' is none of"),
    ("gru_unit", {**UNIT, "HiddenPrev": zeros(3, 3)}, {}, ShapeError, "must have 2 columns"),
    ("gru_unit", UNIT, {"activation": 4}, ProgramError, "activation 4 is not 0 to 3"),
    ("lstm_unit", {"X": zeros(3, 6), "C_prev": zeros(3, 2)}, {}, ShapeError, "four times its columns"),
    ("lstm_unit", {"X": zeros(3, 8), "C_prev": zeros(2, 2)}, {}, ShapeError, "rows of C_prev"),
    ("linear_chain_crf", {**CRF, "Transition": zeros(3, 2)}, {}, ShapeError, r"must be \[2 \+ 2, 2\]"),
    ("linear_chain_crf", {**CRF, "Length": np.array([1, 2])}, {}, ShapeError, "must have 3 dimensions"),
    ("crf_decoding", {"Emission": zeros(3, 2), "Transition": zeros(4, 3)}, {}, ShapeError, "Transition"),
]
REFUSED_AT_RUN: list[tuple[str, dict[str, Any], dict[str, Any], type[FluidliteError], str]] = [
    ("lstm", {**LSTM, "Input": zeros(3, 8)}, {}, ShapeError, "'Input_0' has no LoD"),
    ("lstm", {**LSTM, "H0": zeros(3, 2), "C0": zeros(2, 2)}, {}, ShapeError, "'H0_0' .* for each of 2 sequences"),
    ("gru", {**GRU, "H0": zeros(1, 2)}, {}, ShapeError, "'H0_0' .* for each of 2 sequences"),
    (
        "linear_chain_crf",
        {**CRF, "Label": ragged(np.array([[0], [1], [2]]), [1, 2])},
        {},
        OutOfRangeError,
        "class 2 at",
    ),
    (
        "linear_chain_crf",
        {**CRF, "Label": ragged(np.zeros((3, 1), np.int64), [2, 1])},
        {},
        ShapeError,
        r"different lengths, \[1, 2\] and \[2, 1\]",
    ),
    (
        "crf_decoding",
        {"Emission": zeros(2, 3, 2), "Transition": zeros(4, 2), "Length": np.array([4, 1])},
        {},
        ShapeError,
        r"lengths \[4, 1\] do not fit 'Emission_0' \[2, 3, 2\]",
    ),
]


@pytest.mark.parametrize(("op", "inputs", "attrs", "error", "text"), REFUSED_AT_BUILD)
def test_refused_while_building(
    op: str, inputs: dict[str, Any], attrs: dict[str, Any], error: type[FluidliteError], text: str
) -> None:
    with pytest.raises(error, match=text) as caught:
        build(op, {name: [value] for name, value in inputs.items()}, attrs)
    assert "(case)" in str(caught.value)


@pytest.mark.parametrize(("op", "inputs", "attrs", "error", "text"), REFUSED_AT_RUN)
def test_refused_while_running(
    op: str, inputs: dict[str, Any], attrs: dict[str, Any], error: type[FluidliteError], text: str
) -> None:
    bench = build(op, {name: [value] for name, value in inputs.items()}, attrs)
    with pytest.raises(error, match=text):
        bench.run()


def test_the_gradient_of_an_lstm_of_eight_cells_is_the_numeric_one() -> None:
    random, size, lod = np.random.RandomState(1), 8, ((0, 2, 3),)
    inputs = {
        "Input": random.uniform(-1, 1, (3, 4 * size)),
        "Weight": random.uniform(-1, 1, (size, 4 * size)),
        "Bias": random.uniform(-1, 1, (1, 7 * size)),
    }
    weights = random.uniform(-1, 1, (3, size))

    def built(values: dict[str, Any]) -> Bench:
        return build(
            "lstm", {"Input": [LoDTensor(values["Input"], lod)]} | {k: [values[k]] for k in ("Weight", "Bias")}, {}
        )

    def loss(values: dict[str, Any]) -> float:
        bench = built(values)
        return float((numbers(bench.run().read(bench.op.outputs["Hidden"][0])) * weights).sum())

    bench = built(inputs)
    add_gradient(bench, {bench.op.outputs["Hidden"][0]: LoDTensor(weights, lod)})
    env = bench.run()
    for name, value in inputs.items():
        direction = random.uniform(-1, 1, value.shape)
        (gradient,) = input_gradient(bench, env, name)
        sides = [loss({**inputs, name: value + sign * 1e-6 * direction}) for sign in (1, -1)]
        np.testing.assert_allclose((numbers(gradient) * direction).sum(), (sides[0] - sides[1]) / 2e-6, rtol=1e-6)
