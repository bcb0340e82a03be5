"""Transpiled programs train as the untouched one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from fluidlite import clip, framework, initializer, layers, optimizer, regularizer
from fluidlite.param_attr import ParamAttr
from fluidlite.transpiler.placement import HashName
from fluidlite.transpiler.plan import Options
from tests.transpiled_job import LocalRun, Model, Net, TranspiledRun

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda **k: optimizer.SGD(0.1, **k),
    "momentum": lambda **k: optimizer.Momentum(0.1, 0.9, **k),
    "adagrad": lambda **k: optimizer.Adagrad(0.1, **k),
    "adam": lambda **k: optimizer.Adam(0.1, **k),
    "adamax": lambda **k: optimizer.Adamax(0.1, **k),
    "ftrl": lambda **k: optimizer.Ftrl(0.1, **k),
    "rmsprop": lambda **k: optimizer.RMSProp(0.1, **k),
    "lars": lambda **k: optimizer.LarsMomentum(0.1, 0.9, **k),
}
BATCH = 4


def embed(name: str, ids: framework.Variable, kind: str, height: int = 11, **options: Any) -> framework.Variable:
    """An embedding: dense, sparse (fetched by row) or a distributed table."""
    return layers.embedding(
        ids,
        [height, 4],
        is_sparse=kind != "dense",
        is_distributed=kind == "table",
        param_attr=ParamAttr(name=name, initializer=initializer.Uniform(-0.5, 0.5, seed=3)),
        dtype="float64",
        **options,
    )


def wide(kind: str, make: Callable[[], Any]) -> Net:
    """Two lookups of one embedding (one with padding), an fc with bias, a square error."""

    def net() -> framework.Variable:
        user = layers.data("user", [1], dtype="int64")
        item = layers.data("item", [1], dtype="int64")
        label = layers.data("label", [1], dtype="float64")
        vectors = [embed("emb", user, kind), embed("emb", item, kind, padding_idx=2)]
        weight = ParamAttr(name="w", initializer=initializer.Uniform(-0.5, 0.5, seed=5))
        out = layers.fc(layers.concat(vectors, axis=1), 3, param_attr=weight, act="tanh")
        out = layers.fc(out, 1, param_attr=ParamAttr(initializer=initializer.Uniform(-0.5, 0.5, seed=6)))
        loss = layers.mean(layers.square_error_cost(out, label))
        make().minimize(loss)
        return loss

    return net


def feeds(steps: int, batch: int = BATCH) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    return [
        {
            "user": random.integers(0, 11, (batch, 1)),
            "item": random.integers(0, 11, (batch, 1)),
            "label": random.normal(size=(batch, 1)),
        }
        for _ in range(steps)
    ]


@contextmanager
def transpiled(model: Model, **options: Any) -> Iterator[TranspiledRun]:
    run = TranspiledRun(model, **options)
    try:
        yield run
    finally:
        run.close()


def halves(feed: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: value[:2] for name, value in feed.items()}, {name: value[2:] for name, value in feed.items()}]


@pytest.mark.parametrize("kind", ["dense", "sparse", "table"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_trainer_trains_bit_for_bit_as_a_local_run(name: str, kind: str) -> None:
    if name == "lars" and kind != "dense":
        pytest.skip("lars has no sparse form")
    model = Model(wide(kind, OPTIMIZERS[name]))
    local = LocalRun(model)
    expected = [local.step(feed) for feed in feeds(4)]
    for servers in (1, 2, 3, 5):
        with transpiled(model, servers=servers) as run:
            assert [run.step([feed])[0] for feed in feeds(4)] == expected


@pytest.mark.parametrize("kind", ["dense", "sparse", "table"])
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "lars"])
def test_two_trainers_train_as_a_local_run_on_both_batches(name: str, kind: str) -> None:
    model = Model(wide(kind, OPTIMIZERS[name]))
    local = LocalRun(model)
    with transpiled(model, servers=3, trainers=2) as run:
        for feed in feeds(4):
            both = run.step(halves(feed))
            np.testing.assert_allclose(np.mean(both), local.step(feed), rtol=1e-9)
        np.testing.assert_allclose(run.param("w"), local.scope.get("w"), rtol=1e-9)
