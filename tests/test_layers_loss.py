"""Loss, sequence, normalisation, sampling and metric layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fluidlite.input as fluid_input
from fluidlite import layers
from fluidlite.errors import DtypeError, ProgramError, ShapeError
from fluidlite.layers.sampled import alias_table
from fluidlite.values.lod import LoDTensor
from tests.frontend import fresh_programs, op_lines, run


def _inputs() -> dict[str, Any]:
    return {
        "p": fluid_input.data("p", [None, 4]),
        "q": fluid_input.data("q", [None, 4]),
        "one": fluid_input.data("one", [None, 1]),
        "label": fluid_input.data("label", [None, 1], "int64"),
    }


LINES: list[tuple[Callable[..., Any], list[str]]] = [
    (
        lambda p, q, one, label: layers.cross_entropy(p, label),
        [
            "cross_entropy2(Label=[label], X=[p]) -> (MatchX=[cross_entropy2_0.tmp_2], "
            "XShape=[cross_entropy2_0.tmp_1], Y=[cross_entropy2_0.tmp_0])"
        ],
    ),
    (
        lambda p, q, one, label: layers.cross_entropy(p, q, soft_label=True),
        ["cross_entropy(Label=[q], X=[p]) -> (Y=[cross_entropy_0.tmp_0]) {soft_label=True}"],
    ),
    (
        lambda p, q, one, label: layers.softmax_with_cross_entropy(p, label, return_softmax=True)[0],
        [
            "softmax_with_cross_entropy(Label=[label], Logits=[p]) -> "
            "(Loss=[softmax_with_cross_entropy_0.tmp_1], Softmax=[softmax_with_cross_entropy_0.tmp_0])"
        ],
    ),
    (
        lambda p, q, one, label: layers.sigmoid_cross_entropy_with_logits(p, q, 1, "s", normalize=True),
        ["sigmoid_cross_entropy_with_logits(Label=[q], X=[p]) -> (Out=[s.tmp_0]) {ignore_index=1, normalize=True}"],
    ),
    (
        lambda p, q, one, label: layers.mse_loss(p, q),
        [
            "elementwise_sub(X=[p], Y=[q]) -> (Out=[square_error_cost_0.tmp_0])",
            "square(X=[square_error_cost_0.tmp_0]) -> (Out=[square_error_cost_0.tmp_1])",
            "reduce_mean(X=[square_error_cost_0.tmp_1]) -> (Out=[reduce_mean_0.tmp_0]) {reduce_all=True}",
        ],
    ),
    (
        lambda p, q, one, label: layers.log_loss(one, one),
        ["log_loss(Labels=[one], Predicted=[one]) -> (Loss=[log_loss_0.tmp_0]) {epsilon=0.0001}"],
    ),
    (
        lambda p, q, one, label: layers.huber_loss(one, one, 1.0),
        ["huber_loss(X=[one], Y=[one]) -> (Out=[huber_loss_0.tmp_1], Residual=[huber_loss_0.tmp_0]) {delta=1.0}"],
    ),
    (
        lambda p, q, one, label: layers.margin_rank_loss(one, one, one, 0.5),
        [
            "margin_rank_loss(Label=[one], X1=[one], X2=[one]) -> "
            "(Activated=[margin_rank_loss_0.tmp_1], Out=[margin_rank_loss_0.tmp_0]) {margin=0.5}"
        ],
    ),
    (
        lambda p, q, one, label: layers.teacher_student_sigmoid_loss(one, one),
        ["teacher_student_sigmoid_loss(Label=[one], X=[one]) -> (Y=[_generated_var_0])"],
    ),
    (
        lambda p, q, one, label: layers.kldiv_loss(p, q, "none"),
        ["kldiv_loss(Target=[q], X=[p]) -> (Loss=[kldiv_loss_0.tmp_0]) {reduction=none}"],
    ),
]


@pytest.mark.parametrize(("build", "lines"), LINES)
def test_ops_of_a_loss(build: Callable[..., Any], lines: list[str]) -> None:
    with fresh_programs() as (main, _):
        build(**_inputs())
        assert op_lines(main) == lines


P = np.array([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]], np.float32)
Q = np.array([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]], np.float32)
ONE = np.array([[0.3], [0.9]], np.float32)
LABEL = np.array([[3], [1]])


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda p, q, one, label: layers.cross_entropy(p, label), -np.log([[0.4], [0.1]])),
        (lambda p, q, one, label: layers.cross_entropy(p, q, soft_label=True), -(Q * np.log(P)).sum(1, keepdims=True)),
        (
            lambda p, q, one, label: layers.softmax_with_cross_entropy(p, label),
            np.log(np.exp(P).sum(1, keepdims=True)) - np.take_along_axis(P, LABEL, 1),
        ),
        (
            lambda p, q, one, label: layers.sigmoid_cross_entropy_with_logits(p, q),
            np.maximum(P, 0) - P * Q + np.log1p(np.exp(-np.abs(P))),
        ),
        (lambda p, q, one, label: layers.square_error_cost(p, q), (P - Q) ** 2),
        (
            lambda p, q, one, label: layers.log_loss(one, one),
            -ONE * np.log(ONE + 1e-4) - (1 - ONE) * np.log(1 - ONE + 1e-4),
        ),
        (lambda p, q, one, label: layers.rank_loss(one, one, one), np.full((2, 1), np.log(2))),
        (lambda p, q, one, label: layers.smooth_l1(p, q), (0.5 * (P - Q) ** 2).sum(1, keepdims=True)),
        (lambda p, q, one, label: layers.label_smooth(q, epsilon=0.4), 0.6 * Q + 0.1),
    ],
)
def test_values_of_a_loss(build: Callable[..., Any], expected: Any) -> None:
    with fresh_programs():
        (value,) = run([build(**_inputs())], {"p": P, "q": Q, "one": ONE, "label": LABEL})
    np.testing.assert_allclose(value.array, expected, rtol=2e-6)


def test_b083_square_error_cost_warns_of_a_broadcast() -> None:
    with fresh_programs():
        x, y = fluid_input.data("x", [3, 1]), fluid_input.data("y", [3])
        with pytest.warns(UserWarning, match=r"'x' \[3, 1\] and 'y' \[3\] are broadcast.*test_layers_loss\.py"):
            assert layers.square_error_cost(x, y).shape == (3, 3)
        with pytest.warns(UserWarning, match="broadcast"):
            layers.square_error_cost(fluid_input.data("u", [None, 1]), fluid_input.data("v", [None]))


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda p, q, one, label: layers.cross_entropy(p, one), DtypeError, ["cross_entropy", "'one'", "int64"]),
        (lambda p, q, one, label: layers.cross_entropy(p, label, soft_label=True), DtypeError, ["'label' is int64"]),
        (lambda p, q, one, label: layers.softmax_with_cross_entropy(p, q), DtypeError, ["'q' is float32"]),
        (lambda p, q, one, label: layers.log_loss(one, label), DtypeError, ["log_loss", "'label' is int64"]),
        (lambda p, q, one, label: layers.kldiv_loss(p, q, "some"), ProgramError, ["'some'"]),
        (lambda p, q, one, label: layers.label_smooth(p, epsilon=2.0), ProgramError, ["epsilon is 2.0"]),
        (lambda p, q, one, label: layers.accuracy(label, label), DtypeError, ["accuracy", "'label'"]),
        (lambda p, q, one, label: layers.auc(p, one), DtypeError, ["auc", "'one'"]),
        (lambda p, q, one, label: layers.auc(p, label, curve="X"), ProgramError, ["'X'"]),
        (lambda p, q, one, label: layers.auc(p, label, topk=2), ProgramError, ["topk"]),
        (lambda p, q, one, label: layers.nce(p, label, 9, sampler="no"), ProgramError, ["'no'"]),
        (lambda p, q, one, label: layers.nce(p, label, 3, sampler="custom_dist"), ProgramError, ["3 probabilities"]),
        (lambda p, q, one, label: layers.hsigmoid(p, label, 1), ProgramError, ["at least 2"]),
        (lambda p, q, one, label: layers.hsigmoid(p, label, 4, is_custom=True), ProgramError, ["path_table"]),
        (lambda p, q, one, label: layers.batch_norm(p, data_layout="X"), ProgramError, ["'X'"]),
        (lambda p, q, one, label: layers.batch_norm(label), DtypeError, ["batch_norm", "'label'"]),
        (lambda p, q, one, label: layers.batch_norm(p, bias_attr=False), ProgramError, ["attr=False"]),
        (lambda p, q, one, label: layers.sequence_pool(p, "sum"), ShapeError, ["'p'", "lod_level=1"]),
        (lambda p, q, one, label: layers.sequence_pad(p, one), ShapeError, ["'p'", "lod_level=1"]),
        (lambda p, q, one, label: layers.lod_reset(p), ProgramError, ["'p'"]),
        (lambda p, q, one, label: layers.sequence_conv(p, 3, filter_stride=2), ProgramError, ["stride"]),
        (lambda p, q, one, label: layers.sequence_enumerate(p, 2), DtypeError, ["'p'"]),
        (lambda p, q, one, label: layers.lrn(p), ShapeError, ["'p'", "4 dimensions"]),
        (lambda p, q, one, label: layers.conv2d(p, 2, 3), ShapeError, ["'p'", "4 dimensions"]),
    ],
)
def test_bad_arguments_are_named(build: Callable[..., object], error: type[Exception], words: list[str]) -> None:
    with fresh_programs():
        inputs = _inputs()
        with pytest.raises(error) as caught:
            build(**inputs)
    for word in words:
        assert word in str(caught.value)


# sequences


def test_sequence_pool_kinds() -> None:
    with fresh_programs() as (main, _):
        x = fluid_input.data("x", [None, 2], lod_level=1)
        kinds = ["average", "SUM", "sqrt", "max", "first", "last"]
        outs = [layers.sequence_pool(x, kind) for kind in kinds]
        assert {out.lod_level for out in outs} == {0}
        assert [op.attr("pooltype") for op in main.desc.root.ops] == [kind.upper() for kind in kinds]
        feed = LoDTensor(np.array([[1, 2], [3, 4], [5, 6]], np.float32), ((0, 2, 3),))
        values = run(outs, {"x": feed})
    root = np.float32(np.sqrt(2))
    expected = [[2, 3], [4, 6], [4 / root, 6 / root], [3, 4], [1, 2], [3, 4]]
    for value, row in zip(values, expected, strict=True):
        np.testing.assert_allclose(value.array, [row, [5, 6]], rtol=1e-6)


def test_b066_sequence_pool_names_the_variable_without_sequences() -> None:
    with fresh_programs():
        x = layers.data("x", [4])
        with pytest.raises(ShapeError, match="sequence_pool: 'x' has no sequences"):
            layers.sequence_pool(x, "sum")
        y = layers.data("y", [4], lod_level=1)
        with pytest.raises(ProgramError, match="'middle'"):
            layers.sequence_pool(y, "middle")


def test_sequence_layers_keep_and_drop_lod() -> None:
    with fresh_programs():
        x = fluid_input.data("x", [None, 4], lod_level=1)
        ids = fluid_input.data("ids", [None, 1], "int64", lod_level=1)
        pad_value = layers.assign(np.zeros(1, np.float32))
        padded, length = layers.sequence_pad(x, pad_value)
        assert (padded.lod_level, length.dtype, length.stop_gradient) == (0, "int64", True)
        assert pad_value.stop_gradient
        assert layers.sequence_unpad(padded, length).lod_level == 1
        assert layers.sequence_reverse(x).lod_level == 1
        assert layers.sequence_concat([x, x], name="sc").name == "sc.tmp_0"
        assert layers.sequence_enumerate(ids, 3).shape == (-1, 3)
        assert layers.sequence_conv(x, 5, filter_size=4, act="relu").shape == (-1, 5)
        assert layers.sequence_reshape(x, 2).shape == (-1, 2)
        assert layers.sequence_mask(length, maxlen=7, dtype="float32").shape == (-1, 7)
        assert layers.lod_reset(layers.fc(x, 2), target_lod=[0, 2]).lod_level == 1


def test_sequence_conv_starts_before_the_middle() -> None:
    with fresh_programs() as (main, _):
        x = fluid_input.data("x", [None, 4], lod_level=1)
        layers.sequence_conv(x, 3, filter_size=5, bias_attr=False)
        layers.sequence_conv(x, 3, filter_size=5, padding_start=0, bias_attr=False)
        assert [op.attr("contextStart") for op in main.desc.root.ops] == [-2, 0]
        assert main.all_parameters()[0].shape == (20, 3)


# sampling, metrics


def test_alias_table_draws_the_distribution() -> None:
    probabilities = np.array([0.1, 0.2, 0.3, 0.4])
    alias, keep = alias_table(list(probabilities))
    np.testing.assert_array_equal(alias, [2, 3, 3, -1])
    drawn = keep / 4
    for taker, giver in enumerate(alias):
        if giver >= 0:
            drawn[giver] += (1 - keep[taker]) / 4
    np.testing.assert_allclose(drawn, probabilities, rtol=1e-6)


def test_accuracy_and_auc_variables() -> None:
    with fresh_programs() as (main, startup):
        p, label = fluid_input.data("p", [None, 2]), fluid_input.data("label", [None, 1], "int64")
        accuracy = layers.accuracy(p, label)
        total, batch, states = layers.auc(p, label, num_thresholds=15)
        assert (total.name, batch.name, total.dtype) == ("auc_0.tmp_0", "auc_0.tmp_1", "float64")
        assert [var.name for var in states] == [f"_generated_var_{k}" for k in range(4)]
        assert all(var.persistable for var in states)
        assert op_lines(main) == [
            "top_k(X=[p]) -> (Indices=[top_k_0.tmp_1], Out=[top_k_0.tmp_0])",
            "accuracy(Indices=[top_k_0.tmp_1], Label=[label], Out=[top_k_0.tmp_0]) -> "
            "(Accuracy=[accuracy_0.tmp_0], Correct=[accuracy_0.tmp_1], Total=[accuracy_0.tmp_2])",
            "auc(Label=[label], Predict=[p], StatNeg=[_generated_var_1], StatPos=[_generated_var_0]) -> "
            "(AUC=[auc_0.tmp_1], StatNegOut=[_generated_var_1], StatPosOut=[_generated_var_0]) {num_thresholds=15}",
            "auc(Label=[label], Predict=[p], StatNeg=[_generated_var_3], StatPos=[_generated_var_2]) -> "
            "(AUC=[auc_0.tmp_0], StatNegOut=[_generated_var_3], StatPosOut=[_generated_var_2]) "
            "{num_thresholds=15, slide_steps=0}",
        ]
        assert [op.attr("shape") for op in startup.desc.root.ops] == [(1, 16), (1, 16), (33,), (33,)]
        scores = np.array([[0.2, 0.8], [0.6, 0.4], [0.3, 0.7], [0.9, 0.1]], np.float32)
        values = run([accuracy, total], {"p": scores, "label": np.array([[1], [0], [0], [1]])})
    assert values[0].array == pytest.approx(0.5)
    assert values[1].array == pytest.approx(0.5)
