"""The first value of a row: a function of seed, table name, width and id; its distribution; exact values."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from fluidlite.errors import TableError
from fluidlite.values.initial import (
    Constant,
    FromArray,
    Normal,
    RowInit,
    RowStream,
    TruncatedNormal,
    Uniform,
    first_values,
    normal_quantile,
)

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
IDS = np.array([-(2**63), -1, 0, 42, 2**63 - 1])
INITS: list[RowInit] = [Constant(0.1), Uniform(-0.3, 0.5), Normal(1.0, 2.0), TruncatedNormal(-1.0, 0.5)]


def values(init: RowInit, ids: Any, *, seed: int = 0, table: str = "emb", width: int = 4, dtype: Any = F64) -> Any:
    return first_values(init, RowStream(seed, table, width), np.asarray(ids, np.int64), dtype)


def kolmogorov(sample: Any, cdf: Any) -> float:
    """sqrt(n) times the largest distance between the sample's distribution and ``cdf``; above 1.95 once in a thousand."""
    expected = cdf(np.sort(sample.reshape(-1)))
    steps = np.arange(expected.size + 1) / expected.size
    distance = max(np.abs(expected - steps[:-1]).max(), np.abs(expected - steps[1:]).max())
    return float(math.sqrt(expected.size) * distance)


def normal_cdf(x: Any) -> Any:
    return np.array([NormalDist().cdf(float(item)) for item in x])


def test_uniform_values_are_pinned() -> None:
    expected = {
        0: [
            [0.7111895295412262, 0.444385521293417],
            [0.30368349886590174, 0.5369835084969535],
            [0.5637420003320591, 0.8937335671593393],
            [0.8269880684043681, 0.986891058175143],
            [0.26939513313122043, 0.9118834293731682],
        ],
        7: [
            [0.514981277070598, 0.6580416174257065],
            [0.46587208585810436, 0.21125349686488526],
            [0.17035392974548136, 0.2229929797438014],
            [0.48806219529504, 0.4842211744027006],
            [0.19340208488994193, 0.5781704467709509],
        ],
    }
    for seed, rows in expected.items():
        assert values(Uniform(0.0, 1.0), IDS, seed=seed, width=2).tolist() == rows


def test_normal_values_are_pinned() -> None:
    expected = [
        [0.5568631391668287, -0.13985944739013914],
        [-0.5138355115023495, 0.09283709210428692],
        [0.16046346503815553, 1.2466309014998176],
        [0.942329707307054, 2.22296910001919],
        [-0.6146433696759748, 1.3524445647725145],
    ]
    # The tails go through log, whose last bit may differ between machines.
    np.testing.assert_allclose(values(Normal(), IDS, width=2), expected, rtol=1e-14)


@pytest.mark.parametrize("init", INITS, ids=repr)
def test_values_do_not_depend_on_order_or_company(init: RowInit) -> None:
    ids = np.concatenate([IDS, np.arange(5000)])
    together = values(init, ids)
    order = np.random.default_rng(0).permutation(len(ids))
    np.testing.assert_array_equal(values(init, ids[order]), together[order])
    np.testing.assert_array_equal(np.concatenate([values(init, [i]) for i in IDS]), together[: len(IDS)])


@pytest.mark.parametrize("init", INITS, ids=repr)
def test_float32_is_float64_rounded(init: RowInit) -> None:
    single = values(init, IDS, dtype=F32)
    assert single.dtype == F32
    np.testing.assert_array_equal(single, values(init, IDS).astype(np.float32))


def test_seed_name_width_and_id_all_count() -> None:
    base = values(Uniform(), IDS, width=4)
    for other in (values(Uniform(), IDS, seed=1), values(Uniform(), IDS, table="emb2"), values(Uniform(), IDS ^ 4096)):
        assert not np.isin(other, base).any()
    assert not np.isin(values(Uniform(), IDS, width=5)[:, :4], base).any()
    assert np.unique(base).size == base.size


def test_every_column_and_neighbouring_ids_are_independent() -> None:
    sample = values(Uniform(), np.arange(20000), width=8)
    correlation = np.corrcoef(np.concatenate([sample[:-1], sample[1:]], axis=1), rowvar=False)
    assert np.abs(correlation - np.eye(16)).max() < 0.03


@pytest.mark.parametrize("stride", [1, 3, 2**20, 2**40 + 1, 2**52], ids=str)
def test_uniform_distribution_whatever_the_pattern_of_ids(stride: int) -> None:
    sample = values(Uniform(2.0, 4.0), np.arange(-1000, 1000) * stride, width=16)
    assert kolmogorov(sample, lambda x: (x - 2.0) / 2.0) < 1.95
    assert abs(sample.mean() - 3.0) < 0.02
    assert abs(sample.std() - 2.0 / math.sqrt(12.0)) < 0.01


def test_normal_distribution() -> None:
    sample = (values(Normal(3.0, 2.0), np.arange(2500), width=16) - 3.0) / 2.0
    assert kolmogorov(sample, normal_cdf) < 1.95
    assert abs(sample.mean()) < 0.02
    assert abs(sample.std() - 1.0) < 0.02
    assert abs((sample**3).mean()) < 0.05
    assert abs((sample**4).mean() - 3.0) < 0.15


def test_truncated_normal_distribution() -> None:
    sample = (values(TruncatedNormal(3.0, 2.0), np.arange(2500), width=16) - 3.0) / 2.0
    tail = NormalDist().cdf(-2.0)
    assert kolmogorov(sample, lambda x: (normal_cdf(x) - tail) / (1.0 - 2.0 * tail)) < 1.95
    assert np.abs(sample).max() <= 2.0
    assert abs(sample.std() - 0.8796) < 0.01


def test_normal_quantile_has_full_precision() -> None:
    exponents = np.arange(1.0, 16.0, 0.25)
    p = np.concatenate([np.linspace(0.001, 0.999, 999), 10.0**-exponents, 1.0 - 10.0**-exponents, [2.0**-53, 0.075]])
    np.testing.assert_allclose(normal_quantile(p), [NormalDist().inv_cdf(float(x)) for x in p], rtol=1e-14, atol=1e-16)
    tails = np.array([0.5 * math.erfc(-z / math.sqrt(2.0)) for z in normal_quantile(p)])
    np.testing.assert_allclose(tails, p, rtol=1e-12)


def test_from_array_gives_zeros_outside() -> None:
    array = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(values(FromArray(array), [2, 3, -1, 0], width=2), [[4, 5], [0, 0], [0, 0], [0, 1]])


def test_from_array_of_another_width_is_refused() -> None:
    with pytest.raises(TableError, match=r"shape \[3, 2\] for a table of width 4"):
        values(FromArray(np.zeros((3, 2))), [0])


@pytest.mark.parametrize("bad", [(1.0, 0.0), (math.nan, 1.0), (0.0, math.inf)])
def test_bad_uniform_is_refused(bad: tuple[float, float]) -> None:
    with pytest.raises(TableError, match="uniform"):
        Uniform(*bad)


@pytest.mark.parametrize("kind", [Normal, TruncatedNormal])
def test_bad_normal_is_refused(kind: Any) -> None:
    with pytest.raises(TableError, match="standard deviation -1"):
        kind(0.0, -1.0)


def test_no_rows() -> None:
    assert all(values(init, []).shape == (0, 4) for init in INITS)
