"""Losses, dropout and metrics: what the cases of the records cannot say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite.core import names
from fluidlite.errors import OutOfRangeError, ProgramError, ShapeError
from fluidlite.ops import registry
from fluidlite.ops.auc import histograms, roc_auc
from fluidlite.values.lod import LoDTensor
from tests.frontend import fresh_programs
from tests.op_harness import Bench, add_gradient, build

# ---- labels


@pytest.mark.parametrize(
    ("op", "x"),
    [("cross_entropy", "X"), ("cross_entropy2", "X"), ("softmax_with_cross_entropy", "Logits"), ("bpr_loss", "X")],
)
@pytest.mark.parametrize("label", [3, -1, 2**40])
def test_a_label_beyond_the_classes_is_named(op: str, x: str, label: int) -> None:
    bench = build(op, {x: [np.full((2, 3), 1 / 3)], "Label": [np.array([[0], [label]])]}, {})
    with pytest.raises(OutOfRangeError, match=rf"label {label} at position 1 of 'Label_0' is not one of the 3 classes"):
        bench.run()


def test_an_ignored_label_far_outside_the_classes_has_no_gradient() -> None:
    inputs = {"Logits": [np.array([[1.0, 2.0], [3.0, 4.0]])], "Label": [np.array([[-100], [1]])]}
    bench = build("softmax_with_cross_entropy", inputs, {})
    add_gradient(bench, {"Loss_out0": np.ones((2, 1))})
    env = bench.run()
    assert env.read("Loss_out0")[0] == 0
    assert not env.read("Logits_0@GRAD")[0].any()
    assert env.read("Logits_0@GRAD")[1].any()


@settings(deadline=None, max_examples=30)
@given(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4))
def test_the_fused_loss_is_finite_for_any_logits(a: float, b: float) -> None:
    inputs = {"Logits": [np.array([[a, b]])], "Label": [np.array([[0]])]}
    loss = build("softmax_with_cross_entropy", inputs, {}).run().read("Loss_out0")
    np.testing.assert_allclose(loss, [[np.logaddexp(0, b - a)]], rtol=1e-9, atol=1e-12)


def test_a_loss_over_no_rows_is_empty() -> None:
    nothing, labels = np.zeros((0, 3)), np.zeros((0, 1), np.int64)
    for op, x, out in (
        ("cross_entropy", "X", "Y"),
        ("cross_entropy2", "X", "Y"),
        ("softmax_with_cross_entropy", "Logits", "Loss"),
        ("bpr_loss", "X", "Y"),
    ):
        bench = build(op, {x: [nothing], "Label": [labels]}, {})
        add_gradient(bench, {f"{out}_out0": np.zeros((0, 1))})
        env = bench.run()
        assert env.read(f"{out}_out0").shape == (0, 1)
        assert env.read(f"{x}_0@GRAD").shape == (0, 3)


def test_losses_of_residuals_over_no_rows_are_empty() -> None:
    for op, attrs, width in (("smooth_l1_loss", {}, 3), ("huber_loss", {"delta": 1.0}, 1)):
        bench = build(op, {"X": [np.zeros((0, width))], "Y": [np.zeros((0, width))]}, attrs)
        add_gradient(bench, {"Out_out0": np.zeros((0, 1))})
        env = bench.run()
        assert env.read("Out_out0").shape == (0, 1)
        assert env.read("X_0@GRAD").shape == (0, width)


def test_columns_and_ranks_are_checked_at_build() -> None:
    matrix = np.full((2, 3), 0.5)
    with pytest.raises(ShapeError, match=r"Predicted must be a column \[N, 1\], not \[2, 3\]"):
        build("log_loss", {"Predicted": [matrix], "Labels": [matrix]}, {"epsilon": 1e-4})
    with pytest.raises(ShapeError, match=r"Label \[2, 1, 1\] must have the rank of X \[2, 3\]"):
        build("cross_entropy", {"X": [matrix], "Label": [np.zeros((2, 1, 1), np.int64)]}, {})
    with pytest.raises(ProgramError, match="reduction 'max' is none of none, sum, mean, batchmean"):
        build("kldiv_loss", {"X": [matrix], "Target": [matrix]}, {"reduction": "max"})


# ---- shapes that do not fit, seen when a program runs

#: loss -> the inputs of its first case that must fit each other row by row
ROW_BY_ROW = {
    "bpr_loss": ("X", "Label"),
    "cross_entropy": ("X", "Label"),
    "cross_entropy2": ("X", "Label"),
    "fused_sigmoid_cross_entropy_mean": ("X", "Label"),
    "fused_softmax_cross_entropy": ("X", "Label"),
    "hierarchical_sigmoid": ("X", "Label"),
    "hinge_loss": ("Logits", "Labels"),
    "huber_loss": ("X", "Y"),
    "kldiv_loss": ("X", "Target"),
    "linear_chain_crf": ("Emission", "Label"),
    "log_loss": ("Predicted", "Labels"),
    "margin_rank_loss": ("X1", "X2", "Label"),
    "minus": ("X", "Y"),
    "nce": ("Input", "Label"),
    "rank_loss": ("Label", "Left", "Right"),
    "sample_logits": ("Logits", "Labels"),
    "sigmoid_cross_entropy_with_logits": ("X", "Label"),
    "smooth_l1_loss": ("X", "Y"),
    "softmax_with_cross_entropy": ("Logits", "Label"),
    "teacher_student_sigmoid_loss": ("X", "Label"),
}
#: inputs of gradients that must fit the others, besides the labels
UPSTREAM = ("Cost@GRAD", "Loss@GRAD", "Out@GRAD", "Y@GRAD")


def misfits(array: Any) -> list[Any]:
    """One row, a row less, a row more; for columns also two of them."""
    shapes = [array[:1], array[:-1], np.concatenate([array, array[:1]])]
    wide = [np.concatenate([array, array], axis=1)] if array.ndim == 2 and array.shape[1] == 1 else []
    return [wrong for wrong in (*shapes, *wide) if wrong.shape != array.shape]


@pytest.mark.parametrize(("op", "name"), [(op, name) for op, names in ROW_BY_ROW.items() for name in names])
def test_inputs_of_another_shape_are_refused_and_not_broadcast(op: str, name: str) -> None:
    case = registry.get(op).cases[0]
    bench = build(op, {key: [value] for key, value in case.inputs.items()}, case.attrs)
    given = case.inputs[name]
    wrong = misfits(getattr(given, "array", given))
    if op in ("nce", "sample_logits"):  # which take several labels of a row
        wrong = [values for values in wrong if len(values) != len(given)]
    assert wrong
    for values in wrong:
        fed = LoDTensor(values, given.lod) if isinstance(given, LoDTensor) else values
        with pytest.raises(ShapeError, match=rf"(?s){op}.*{name}_0"):
            bench.run({f"{name}_0": fed})


def gradient_of(op: str) -> Bench:
    """The gradient op of a loss alone, fed what its forward op takes and gives."""
    op_def = registry.get(op)
    case, make = op_def.cases[0], op_def.grad
    assert make is not None
    forward = build(op, {key: [value] for key, value in case.inputs.items()}, case.attrs)
    env = forward.run()
    values = {argument: env.read(argument) for argument in (*forward.feeds, *forward.op.output_arguments())}
    values |= {names.grad(name): np.ones_like(values[name]) for name in forward.op.output_arguments()}
    (made,) = make(forward.op)
    attrs = {name: attr.value for name, attr in made.attrs.items()}
    given = {name: [values[argument] for argument in found] for name, found in made.inputs.items()}
    return build(made.type, {name: value for name, value in given.items() if value}, attrs)


WITHOUT_LABELS = {"huber_loss", "linear_chain_crf", "minus", "sample_logits", "smooth_l1_loss"}


@pytest.mark.parametrize("op", sorted(set(ROW_BY_ROW) - WITHOUT_LABELS))
def test_gradients_of_losses_refuse_inputs_of_another_shape(op: str) -> None:
    bench = gradient_of(op)
    bench.run()
    labels = {name for name in ROW_BY_ROW[op] if name in ("Label", "Labels", "Target")}
    checked = [name for name in bench.op.inputs if name in labels or name in UPSTREAM]
    assert checked
    for name in checked:
        for values in misfits(bench.feeds[f"{name}_0"])[:3]:
            with pytest.raises(ShapeError, match=rf"op '{bench.op.type}': {name} '{name}_0' must have"):
                bench.run({f"{name}_0": values})


@pytest.mark.parametrize("op", ["huber_loss", "smooth_l1_loss"])
def test_gradients_of_residuals_refuse_gradients_of_another_shape(op: str) -> None:
    bench = gradient_of(op)
    bench.run()
    for values in misfits(bench.feeds["Out@GRAD_0"]):
        with pytest.raises(ShapeError, match=rf"op '{op}_grad': Out@GRAD 'Out@GRAD_0' must have shape"):
            bench.run({"Out@GRAD_0": values})


def test_a_label_for_all_rows_is_refused_by_the_layer_fused_or_not() -> None:
    with fresh_programs():
        x, label = fluid.data("x", [None, 1]), fluid.data("label", [None, 1])
        x.stop_gradient = False
        loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(x, label))
        fluid.backward.append_backward(loss)
        feed = {"x": np.zeros((4, 1), np.float32), "label": np.ones((1, 1), np.float32)}
        for fusion in (True, False):
            with pytest.raises(ShapeError, match=r"Label 'label' must have shape \[4, 1\] to fit X 'x', not \[1, 1\]"):
                fluid.Executor(fusion=fusion).run(feed=feed, fetch_list=[loss])


def test_weights_and_priors_of_another_shape_are_refused() -> None:
    rows = np.ones((2, 3))
    for name in ("InsideWeight", "OutsideWeight"):
        bench = build("smooth_l1_loss", {"X": [rows], "Y": [rows], name: [rows]}, {})
        with pytest.raises(ShapeError, match=rf"{name} '{name}_0' must have shape \[2, 3\]"):
            bench.run({f"{name}_0": rows[:1]})
    bench = build("label_smooth", {"X": [rows], "PriorDist": [rows[:1]]}, {"epsilon": 0.1})
    with pytest.raises(ShapeError, match=r"PriorDist 'PriorDist_0' must have shape \[1, 3\]"):
        bench.run({"PriorDist_0": rows[:1, :1]})


# ---- dropout


def dropout(**attrs: Any) -> Bench:
    return build("dropout", {"X": [np.ones((40, 50))]}, attrs)


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    out = dropout(dropout_prob=0.25, dropout_implementation="upscale_in_train").run().read("Out_out0")
    assert 0.2 < (out == 0).mean() < 0.3
    assert set(np.unique(out)) == {0, 1 / 0.75}


def test_dropout_differs_from_run_to_run_unless_its_seed_is_fixed() -> None:
    free, fixed = dropout(), dropout(fix_seed=True, seed=7)
    plans = [bench.run() for bench in (free, fixed, fixed)]
    np.testing.assert_array_equal(plans[1].read("Mask_out0"), plans[2].read("Mask_out0"))
    assert (plans[0].read("Mask_out0") != plans[1].read("Mask_out0")).any()
    other = build("dropout", {"X": [np.ones((40, 50))], "Seed": [np.array([7], np.int32)]}, {}).run()
    np.testing.assert_array_equal(other.read("Mask_out0"), plans[1].read("Mask_out0"))


def test_dropout_passes_gradients_where_it_passed_values() -> None:
    bench = dropout(dropout_prob=0.5, dropout_implementation="upscale_in_train")
    add_gradient(bench, {"Out_out0": np.ones((40, 50))})
    env = bench.run()
    np.testing.assert_array_equal(env.read("X_0@GRAD"), env.read("Out_out0"))


def test_a_probability_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"dropout_prob 1\.5 is not in 0\.\.1"):
        dropout(dropout_prob=1.5)
    with pytest.raises(ProgramError, match="dropout_implementation 'scale' is none of"):
        dropout(dropout_implementation="scale")


# ---- metrics


def exact_auc(scores: Any, positive: Any) -> float:
    pairs = scores[positive][:, None] - scores[~positive][None, :]
    return float(((pairs > 0) + 0.5 * (pairs == 0)).mean())


def batch(seed: int, count: int = 400) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    positive = rng.random(count) < 0.4
    return np.clip(rng.normal(0.4 + 0.2 * positive, 0.2), 0, 1), positive


def auc_state(bins: int, steps: int) -> Any:
    return np.zeros((steps + 1) * bins + (1 if steps else 0), np.int64)


def run_auc(batches: list[tuple[Any, Any]], steps: int, thresholds: int = 4095) -> tuple[float, Any, Any]:
    pos = neg = auc_state(thresholds + 1, steps)
    area = 0.0
    for scores, positive in batches:
        predict = np.stack([1 - scores, scores], axis=1)
        inputs = {
            "Predict": [predict],
            "Label": [positive.astype(np.int64)[:, None]],
            "StatPos": [pos],
            "StatNeg": [neg],
        }
        env = build("auc", inputs, {"num_thresholds": thresholds, "slide_steps": steps}).run()
        area = float(env.read("AUC_out0")[0])
        pos, neg = env.read("StatPosOut_out0"), env.read("StatNegOut_out0")
    return area, pos, neg


def together(batches: list[tuple[Any, Any]]) -> float:
    return exact_auc(np.concatenate([s for s, _ in batches]), np.concatenate([p for _, p in batches]))


def test_b080_auc_over_batches_equals_the_exact_one() -> None:
    batches = [batch(seed) for seed in range(3)]
    assert run_auc(batches, 0)[0] == pytest.approx(together(batches), abs=1e-3)


def test_b080_a_batch_of_one_class_has_auc_0() -> None:
    scores, positive = batch(0)
    assert run_auc([(scores, np.ones_like(positive))], 0)[0] == 0
    assert run_auc([(scores, np.zeros_like(positive))], 1)[0] == 0
    assert run_auc([(scores[:0], positive[:0])], 0)[0] == 0


def test_b080_a_window_counts_the_last_batches_only() -> None:
    batches = [batch(seed) for seed in range(5)]
    assert run_auc(batches, 1)[0] == pytest.approx(together(batches[-1:]), abs=1e-3)
    assert run_auc(batches, 3)[0] == pytest.approx(together(batches[-3:]), abs=1e-3)


def test_b081_histograms_of_trainers_add_up_to_the_auc_of_the_union() -> None:
    first, second = [batch(1), batch(2)], [batch(3)]
    states = [run_auc(first, 0)[1:], run_auc(second, 0)[1:]]
    merged = roc_auc(states[0][0] + states[1][0], states[0][1] + states[1][1])
    assert merged == run_auc(first + second, 0)[0]
    assert merged == pytest.approx(together(first + second), abs=1e-3)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=20))
def test_auc_is_exact_where_scores_fall_on_bins(examples: list[tuple[int, bool]]) -> None:
    scores = np.array([score / 8 for score, _ in examples])
    positive = np.array([label for _, label in examples])
    area = roc_auc(*histograms(scores, positive, 9))
    assert area == pytest.approx(exact_auc(scores, positive) if 0 < positive.sum() < len(positive) else 0)


def test_auc_refuses_what_is_no_probability_and_state_of_another_size() -> None:
    scores, positive = batch(0)
    for wrong in (1.5, -0.1, np.nan):
        with pytest.raises(ProgramError, match=r"at row 0 of 'Predict_0' is no probability"):
            run_auc([(np.full_like(scores, wrong), positive)], 0)
    inputs = {
        "Predict": [scores[:, None]],
        "Label": [positive.astype(np.int64)[:, None]],
        "StatPos": [auc_state(8, 0)],
        "StatNeg": [auc_state(8, 0)],
    }
    with pytest.raises(ShapeError, match="'StatPos_0' must have 16 elements, not 8"):
        build("auc", inputs, {"num_thresholds": 15, "slide_steps": 0}).run()


def test_accuracy_of_no_rows_is_0() -> None:
    nothing = np.zeros((0, 2), np.int64)
    inputs = {"Out": [np.zeros((0, 2))], "Indices": [nothing], "Label": [nothing[:, :1]]}
    env = build("accuracy", inputs, {}).run()
    assert env.read("Accuracy_out0").tolist() == [0]
    assert env.read("Total_out0").tolist() == [0]


# ---- sampled classes

#: (sampler, seed): the negative classes that Fluid 1.8.5 drew, 4 rows of 3 of 20 classes (6 of the custom distribution)
FLUID_DREW = {
    (0, 1): [[2, 2, 9], [0, 7, 18], [9, 1, 11], [12, 1, 11]],
    (0, 12345): [[7, 8, 13], [11, 11, 4], [0, 13, 9], [4, 0, 0]],
    (1, 7): [[8, 16, 0], [13, 0, 0], [11, 13, 1], [7, 8, 4]],
    (2, 1): [[2, 5, 1], [1, 1, 4], [3, 1, 1], [1, 4, 2]],
    (2, 7): [[1, 1, 4], [1, 3, 2], [2, 5, 2], [4, 5, 4]],
}
DISTRIBUTION = {
    "CustomDistProbs": [np.array([0.1, 0.2, 0.2, 0.1, 0.3, 0.1], np.float32)],
    "CustomDistAlias": [np.array([1, -1, 4, 2, -1, 4], np.int32)],
    "CustomDistAliasProbs": [np.array([0.6, 1, 0.8, 0.6, 1, 0.6], np.float32)],
}


def nce(sampler: int, seed: int, rows: int = 4, label: int = 0, **more: Any) -> Bench:
    classes = 6 if sampler == 2 else 20
    inputs = {
        "Input": [np.zeros((rows, 2), np.float32)],
        "Label": [np.full((rows, 1), label)],
        "Weight": [np.zeros((classes, 2), np.float32)],
        **(DISTRIBUTION if sampler == 2 else {}),
    }
    attrs = {"num_total_classes": classes, "num_neg_samples": 3, "sampler": sampler, "seed": seed, **more}
    return build("nce", inputs, attrs)


@pytest.mark.parametrize(("sampler", "seed"), FLUID_DREW)
def test_seeded_negative_classes_are_those_of_fluid(sampler: int, seed: int) -> None:
    env = nce(sampler, seed).run()
    assert env.read("SampleLabels_out0")[:, 1:].tolist() == FLUID_DREW[sampler, seed]


def test_costs_of_sampled_classes_are_those_of_fluid() -> None:
    for sampler, seed, cost in ((0, 1, 4.661375), (1, 1, 2.9619267), (2, 7, 2.1241081)):
        np.testing.assert_allclose(nce(sampler, seed).run().read("Cost_out0")[0], [cost], rtol=1e-6)


@pytest.mark.parametrize("sampler", [0, 1, 2])
def test_unseeded_negative_classes_follow_the_distribution(sampler: int) -> None:
    drawn = nce(sampler, 0, rows=4000).run().read("SampleLabels_out0")[:, 1:]
    classes = np.arange(6 if sampler == 2 else 19 + (sampler == 0))
    wanted = {
        0: np.full(20, 1 / 20),
        1: np.log((classes + 2) / (classes + 1)) / np.log(20),
        2: np.array([0.6, 1.4, 1.2, 0.6, 1.6, 0.6]) / 6,  # what the alias table says, not CustomDistProbs
    }[sampler]
    np.testing.assert_allclose(np.bincount(drawn.ravel(), minlength=len(wanted)) / drawn.size, wanted, atol=0.02)


def test_nce_refuses_labels_and_samplers_that_it_does_not_know() -> None:
    with pytest.raises(OutOfRangeError, match=r"id 20 at position 0 of 'Label_0' is outside 'Weight_0'"):
        nce(0, 1, label=20).run()
    with pytest.raises(ProgramError, match="sampler 3 is none of 0, 1, 2"):
        nce(3, 1)
    with pytest.raises(ShapeError, match=r"Weight \[20, 2\] must have 30 rows"):
        nce(0, 1, num_total_classes=30)
