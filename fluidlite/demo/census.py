"""The census income data (data/ATTRIBUTION.md) as arrays: hashed 64-bit ids of categorical features, and numbers."""

from __future__ import annotations

import csv
import functools
import hashlib
import lzma
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Final, NamedTuple

import numpy as np

from fluidlite.dtypes import Array

#: AUC of a logistic regression on binned one-hot columns on the same split
REFERENCE_AUC: Final = 0.911

_CATEGORIES: Final = (
    "workclass", "education", "marital_status", "occupation", "relationship", "race", "sex", "native_country",
)  # fmt: skip
_NUMBERS: Final = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")
_GAIN_EDGES: Final = (1, 3000, 5000, 7000, 10000, 20000)
_LOSS_EDGES: Final = (1, 1400, 1600, 1800, 1950, 2100, 2300)

Row = dict[str, str]
_BUCKETS: Final[dict[str, Callable[[Row], object]]] = {
    "age": lambda row: int(row["age"]) // 4,
    "hours": lambda row: int(row["hours_per_week"]) // 5,
    "education_num": lambda row: row["education_num"],
    "gain": lambda row: int(np.searchsorted(_GAIN_EDGES, int(row["capital_gain"]), "right")),
    "loss": lambda row: int(np.searchsorted(_LOSS_EDGES, int(row["capital_loss"]), "right")),
}
_CROSSES: Final = (
    ("education", "occupation"),
    ("marital_status", "age"),
    ("relationship", "hours"),
    ("occupation", "workclass"),
    ("marital_status", "education"),
    ("occupation", "hours"),
    ("native_country", "education"),
)
#: features with an embedding of their own: categories and buckets
DEEP_SLOTS: Final = len(_CATEGORIES) + len(_BUCKETS)
#: the wide part sees these and the crosses
WIDE_SLOTS: Final = DEEP_SLOTS + len(_CROSSES)
NUMBERS: Final = len(_NUMBERS)


class Examples(NamedTuple):
    """``ids`` (n, WIDE_SLOTS) int64, the first DEEP_SLOTS of them single features; ``numbers`` (n, NUMBERS) float32,
    about standardised; ``label`` (n, 1) float32, 1 for an income above 50K."""

    ids: Array
    numbers: Array
    label: Array


@functools.lru_cache(maxsize=1 << 16)
def feature_id(name: str, value: object) -> int:
    """A signed 64-bit id of ``name=value``, the same in every process (Python's ``hash`` is not)."""
    digest = hashlib.blake2b(f"{name}={value}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def load(split: str) -> Examples:
    """``split``: ``"train"`` (32,561 examples) or ``"test"`` (16,281)."""
    rows = list(_read(split))
    return Examples(
        np.array([_ids(row) for row in rows], np.int64),
        np.array([_numbers(row) for row in rows], np.float32),
        np.array([[row["income"] == ">50K"] for row in rows], np.float32),
    )


def _read(split: str) -> Iterator[Row]:
    path = resources.files(__package__).joinpath("data", f"{split}.csv.xz")
    with path.open("rb") as packed:
        lines = lzma.decompress(packed.read()).decode("utf-8").splitlines()
    return csv.DictReader(lines)


def _ids(row: Row) -> list[int]:
    values: dict[str, object] = {name: row[name] for name in _CATEGORIES}
    values.update({name: bucket(row) for name, bucket in _BUCKETS.items()})
    single = [feature_id(name, value) for name, value in values.items()]
    crossed = [feature_id(f"{a}*{b}", (values[a], values[b])) for a, b in _CROSSES]
    return single + crossed


def _numbers(row: Row) -> list[float]:
    age, education, gain, loss, hours = (float(row[name]) for name in _NUMBERS)
    return [(age - 38) / 14, (education - 10) / 2.5, np.log1p(gain) / 3, np.log1p(loss) / 3, (hours - 40) / 12]
