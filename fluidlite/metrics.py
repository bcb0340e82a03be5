"""Metrics kept in Python over many batches: ``update`` with what a run fetched, ``eval`` for the value so far.

`fluidlite.layers.auc` and `fluidlite.layers.accuracy` compute inside the program instead.
"""

from __future__ import annotations

import copy
from typing import Any, TypeAlias

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import DataError, NotSupported, ProgramError, ShapeError

#: a number, or an array of one
Number: TypeAlias = "float | int | np.generic | Array"


class MetricBase:
    """State, ``update``, ``eval`` and ``reset``. Attributes without a leading underscore are the state."""

    def __init__(self, name: str | None = None) -> None:
        self._name = name if name is not None else type(self).__name__

    def __str__(self) -> str:
        return self._name

    def get_config(self) -> dict[str, Any]:
        """A copy of the state."""
        return {key: copy.deepcopy(value) for key, value in vars(self).items() if not key.startswith("_")}

    def reset(self) -> None:
        """Back to the state of a new metric: numbers become 0, arrays zeros, lists empty."""
        for key, value in self.get_config().items():
            setattr(self, key, _cleared(value))

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch."""
        raise NotImplementedError

    def eval(self) -> Any:
        """The value over all batches since the last reset."""
        raise NotImplementedError


def _cleared(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.zeros_like(value)
    if isinstance(value, (int, float, list, tuple)):
        return type(value)()
    return value


class CompositeMetric(MetricBase):
    """Several metrics of the same predictions and labels, updated together; ``eval`` gives a list."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._metrics: list[MetricBase] = []

    def add_metric(self, metric: MetricBase) -> None:
        """One more metric."""
        if not isinstance(metric, MetricBase):
            raise ProgramError(f"add_metric needs a metric, not {type(metric).__name__}")
        self._metrics.append(metric)

    def reset(self) -> None:
        for metric in self._metrics:
            metric.reset()

    def update(self, preds: Array, labels: Array) -> None:
        """Pass predictions and labels to every metric."""
        for metric in self._metrics:
            metric.update(preds, labels)

    def eval(self) -> list[Any]:
        return [metric.eval() for metric in self._metrics]


class Precision(MetricBase):
    """Share of positive predictions that are right; predictions [N, 1] are rounded to 0 or 1. 0.0 without any."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.tp = 0
        self.fp = 0

    def update(self, preds: Array, labels: Array) -> None:
        positive, truth = _binary(preds, labels)
        self.tp += int((positive & truth).sum())
        self.fp += int((positive & ~truth).sum())

    def eval(self) -> float:
        found = self.tp + self.fp
        return self.tp / found if found else 0.0


class Recall(MetricBase):
    """Share of positive labels that are predicted; predictions [N, 1] are rounded to 0 or 1. 0.0 without any."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.tp = 0
        self.fn = 0

    def update(self, preds: Array, labels: Array) -> None:
        positive, truth = _binary(preds, labels)
        self.tp += int((positive & truth).sum())
        self.fn += int((~positive & truth).sum())

    def eval(self) -> float:
        wanted = self.tp + self.fn
        return self.tp / wanted if wanted else 0.0


def _binary(preds: Array, labels: Array) -> tuple[Array, Array]:
    scores, truth = np.asarray(preds).reshape(-1), np.asarray(labels).reshape(-1)
    if scores.shape != truth.shape:
        raise ShapeError(f"{scores.size} predictions for {truth.size} labels")
    return np.rint(scores).astype(np.int64) == 1, truth == 1


class Accuracy(MetricBase):
    """Mean of batch accuracies, weighted by batch sizes."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.value: Any = 0.0
        self.weight = 0.0

    def update(self, value: Number, weight: Number) -> None:
        """Add a batch of ``weight`` rows whose accuracy is ``value``."""
        rows = float(np.asarray(weight).reshape(()))
        if rows < 0:
            raise ProgramError(f"Accuracy: the weight is {rows}")
        batch: Any = value
        self.value = self.value + batch * rows
        self.weight += rows

    def eval(self) -> Any:
        """A number; an array of one where ``update`` got such, as a run fetches it."""
        if self.weight == 0:
            raise DataError(f"{self} has no data: call update before eval")
        return self.value / self.weight


class ChunkEvaluator(MetricBase):
    """(precision, recall, F1) from the counts that `fluidlite.layers.chunk_eval` gives."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.num_infer_chunks = 0
        self.num_label_chunks = 0
        self.num_correct_chunks = 0

    def update(self, num_infer_chunks: Number, num_label_chunks: Number, num_correct_chunks: Number) -> None:
        """Add the chunks that were found, labelled, and right in a batch."""
        self.num_infer_chunks += int(np.asarray(num_infer_chunks).reshape(()))
        self.num_label_chunks += int(np.asarray(num_label_chunks).reshape(()))
        self.num_correct_chunks += int(np.asarray(num_correct_chunks).reshape(()))

    def eval(self) -> tuple[float, float, float]:
        precision = self.num_correct_chunks / self.num_infer_chunks if self.num_infer_chunks else 0.0
        recall = self.num_correct_chunks / self.num_label_chunks if self.num_label_chunks else 0.0
        both = precision + recall
        return precision, recall, 2 * precision * recall / both if both else 0.0


class EditDistance(MetricBase):
    """(mean distance, share of sequences with any) from what `edit_distance` gives."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.total_distance = 0.0
        self.seq_num = 0
        self.instance_error = 0

    def update(self, distances: Array, seq_num: Number) -> None:
        """Add the distances of a batch of ``seq_num`` sequences."""
        values = np.asarray(distances)
        self.total_distance += float(values.sum())
        self.seq_num += int(np.asarray(seq_num).reshape(()))
        self.instance_error += int((values > 0).sum())

    def eval(self) -> tuple[float, float]:
        if self.seq_num == 0:
            raise DataError(f"{self} has no data: call update before eval")
        return self.total_distance / self.seq_num, self.instance_error / self.seq_num


class Auc(MetricBase):
    """Area under the ROC curve of scores counted in ``num_thresholds + 1`` bins, by the trapezoidal rule.

    0.0 while one of the classes is missing. Adding up ``stat_pos`` and ``stat_neg`` of
    several metrics gives the AUC of their union.
    """

    def __init__(self, name: str | None = None, curve: str = "ROC", num_thresholds: int = 4095) -> None:
        super().__init__(name)
        if curve != "ROC":
            raise ProgramError(f"Auc: curve must be ROC, not {curve!r}")
        self._num_thresholds = num_thresholds
        self.stat_pos = np.zeros(num_thresholds + 1, np.int64)
        self.stat_neg = np.zeros(num_thresholds + 1, np.int64)

    def update(self, preds: Array, labels: Array) -> None:
        """Add predictions [N, 2], of which column 1 is the probability of class 1, and labels [N, 1] of 0 and 1."""
        scores = np.asarray(preds)
        truth = np.asarray(labels).reshape(-1).astype(bool)
        if scores.ndim != 2 or len(scores) != len(truth):
            raise ShapeError(
                f"Auc: predictions {list(scores.shape)} for {truth.size} labels; needed are [N, 2] and [N, 1]"
            )
        bins = (scores[:, -1] * self._num_thresholds).astype(np.int64)
        if bins.size and not (bins.min() >= 0 and bins.max() <= self._num_thresholds):
            raise ProgramError("Auc: predictions must be probabilities in [0, 1]")
        self.stat_pos += np.bincount(bins[truth], minlength=self._num_thresholds + 1)
        self.stat_neg += np.bincount(bins[~truth], minlength=self._num_thresholds + 1)

    def eval(self) -> float:
        positive = np.concatenate(([0], np.cumsum(self.stat_pos[::-1])))
        negative = np.concatenate(([0], np.cumsum(self.stat_neg[::-1])))
        if positive[-1] == 0 or negative[-1] == 0:
            return 0.0
        area = ((negative[1:] - negative[:-1]) * (positive[1:] + positive[:-1]) / 2.0).sum()
        return float(area / positive[-1] / negative[-1])


def __getattr__(name: str) -> Any:
    if name == "DetectionMAP":
        raise NotSupported("fluid.metrics.DetectionMAP is not supported: object detection is left out")
    raise AttributeError(f"module 'fluidlite.metrics' has no attribute {name!r}")
