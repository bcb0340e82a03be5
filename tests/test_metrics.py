"""Metrics kept in Python."""

from __future__ import annotations

import numpy as np
import pytest

from fluidlite import metrics
from fluidlite.errors import FluidliteError, ProgramError, ShapeError

PREDS = np.array([[0.1], [0.7], [0.8], [0.9], [0.2]], np.float32)
LABELS = np.array([[0], [1], [1], [0], [1]], np.int32)


def test_accuracy_is_weighted() -> None:
    accuracy = metrics.Accuracy()
    accuracy.update(0.5, 4)
    accuracy.update(np.array([1.0], np.float32), 12)
    assert accuracy.eval().tolist() == [0.875]
    accuracy.reset()
    accuracy.update(0.5, 4)
    assert accuracy.eval() == 0.5
    accuracy.reset()
    with pytest.raises(ValueError, match="Accuracy has no data"):
        accuracy.eval()
    with pytest.raises(ProgramError, match="weight"):
        accuracy.update(0.5, -1)


def test_precision_and_recall() -> None:
    both = metrics.CompositeMetric()
    both.add_metric(metrics.Precision("p"))
    both.add_metric(metrics.Recall())
    assert both.eval() == [0.0, 0.0]
    both.update(PREDS, LABELS)
    assert both.eval() == [2 / 3, 2 / 3]
    both.reset()
    assert both.eval() == [0.0, 0.0]
    with pytest.raises(ProgramError, match="str"):
        both.add_metric("auc")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="5 predictions for 2 labels"):
        both.update(PREDS, LABELS[:2])


def test_names_and_config() -> None:
    metric = metrics.Precision("mine")
    metric.update(PREDS, LABELS)
    assert str(metric) == "mine"
    assert metric.get_config() == {"tp": 2, "fp": 1}


def _auc_by_pairs(scores: np.ndarray, labels: np.ndarray) -> float:
    positive, negative = scores[labels == 1], scores[labels == 0]
    wins = (positive[:, None] > negative).sum() + 0.5 * (positive[:, None] == negative).sum()
    return float(wins / (len(positive) * len(negative)))


def test_b080_auc_equals_the_share_of_ordered_pairs() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.random(500), rng.integers(0, 2, 500)
    auc = metrics.Auc()
    for part in range(0, 500, 100):
        column = scores[part : part + 100]
        auc.update(np.stack([1 - column, column], 1), labels[part : part + 100, None])
    assert auc.eval() == pytest.approx(_auc_by_pairs(scores, labels), abs=1e-3)


def test_auc_of_one_class_is_zero() -> None:
    auc = metrics.Auc("auc", num_thresholds=9)
    assert auc.eval() == 0.0
    auc.update(np.array([[0.2, 0.8]]), np.array([[1]]))
    assert auc.eval() == 0.0
    auc.update(np.zeros((0, 2)), np.zeros((0, 1)))
    assert auc.eval() == 0.0


def test_b081_histograms_of_two_trainers_add_up() -> None:
    rng = np.random.default_rng(1)
    scores, labels = rng.random(200), rng.integers(0, 2, 200)
    rows = np.stack([1 - scores, scores], 1)
    union, left, right = metrics.Auc(), metrics.Auc(), metrics.Auc()
    union.update(rows, labels)
    left.update(rows[:80], labels[:80])
    right.update(rows[80:], labels[80:])
    left.stat_pos += right.stat_pos
    left.stat_neg += right.stat_neg
    assert left.eval() == union.eval()


def test_auc_refuses_what_are_no_probabilities() -> None:
    auc = metrics.Auc()
    with pytest.raises(ProgramError, match="probabilities"):
        auc.update(np.array([[0.0, 1.5]]), np.array([[1]]))
    with pytest.raises(ShapeError, match="needed are"):
        auc.update(np.array([0.5]), np.array([[1]]))
    with pytest.raises(ProgramError, match="'PR'"):
        metrics.Auc(curve="PR")


def test_chunks_and_edit_distance() -> None:
    chunks = metrics.ChunkEvaluator()
    assert chunks.eval() == (0.0, 0.0, 0.0)
    chunks.update(np.array([10]), np.array([8]), np.array([4]))
    assert chunks.eval() == pytest.approx((0.4, 0.5, 4 / 9))
    distance = metrics.EditDistance()
    with pytest.raises(FluidliteError, match="no data"):
        distance.eval()
    distance.update(np.array([[0.0], [1.0], [2.0]]), np.array([3]))
    assert distance.eval() == pytest.approx((1.0, 2 / 3))
