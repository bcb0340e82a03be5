"""``paddle.dataset.uci_housing``: 13 features of houses in Boston, scaled, and their price; 404 samples to train on, 102 to test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fluidlite.compat.dataset import common
from fluidlite.compat.dataset.common import Reader
from fluidlite.dtypes import Array
from fluidlite.errors import CorruptFileError

__all__ = ["feature_names", "fetch", "load_data", "predict_reader", "test", "train"]

URL = "http://paddlemodels.bj.bcebos.com/uci_housing/housing.data"
MD5 = "d4accdce7a25600298819f8e28e8d593"
feature_names = ["CRIM", "ZN", "INDUS", "CHAS", "NOX", "RM", "AGE", "DIS", "RAD", "TAX", "PTRATIO", "B", "LSTAT"]


def load_data(filename: str, feature_num: int = 14, ratio: float = 0.8) -> tuple[Array, Array]:
    """(samples to train on, samples to test) [n, feature_num] float64: all columns but the last scaled to mean 0, range 1.

    Raises CorruptFileError for a file that does not hold whole rows of numbers.
    """
    try:
        numbers = np.array(Path(filename).read_text(encoding="utf-8").split(), np.float64)
        data = numbers.reshape(-1, feature_num)
    except ValueError as error:
        raise CorruptFileError(f"{filename} does not hold rows of {feature_num} numbers: {error}") from error
    features = data[:, :-1]
    mean = data.sum(axis=0)[:-1] / len(data)
    data[:, :-1] = (features - mean) / (features.max(axis=0) - features.min(axis=0))
    first = int(len(data) * ratio)
    return data[:first], data[first:]


def _part(index: int) -> Array:
    return load_data(common.download(URL, "uci_housing", MD5))[index]


def _reader(data: Array) -> Reader:
    def reader() -> Iterator[Any]:
        for row in data:
            yield row[:-1], row[-1:]

    return reader


def train() -> Reader:
    """A reader of (features [13] float64, price [1] float64)."""
    return _reader(_part(0))


def test() -> Reader:
    """A reader of the samples to test with; see `train`."""
    return _reader(_part(1))


def predict_reader() -> tuple[Array]:
    """The features of the first sample to test with."""
    return (_part(1)[0][:-1],)


def fetch() -> None:
    """Check that the file is there."""
    common.download(URL, "uci_housing", MD5)
