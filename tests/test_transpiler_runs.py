"""Transpiled programs train as the untouched one does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from fluidlite import clip, framework, initializer, layers, optimizer, regularizer
from fluidlite.cluster import LocalCluster
from fluidlite.input import embedding as embedding_v2
from fluidlite.layers import learning_rate_scheduler as rates
from fluidlite.param_attr import ParamAttr
from fluidlite.transpiler import DistributeTranspilerConfig, HashName
from fluidlite.transpiler.plan import Plan
from fluidlite.values.lod import LoDTensor
from tests.training_jobs import Local, Programs, State, held_state

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
#: lars needs the norm of the whole parameter
BY_ROW = [name for name in OPTIMIZERS if name != "lars"]
KINDS = ["dense", "sparse", "table"]
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


def wide(kind: str, make: Callable[[], Any]) -> Callable[[], framework.Variable]:
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


class Job:
    """A model on servers and trainers of a LocalCluster; small blocks unless ``config`` says otherwise."""

    def __init__(self, model: Programs, servers: int = 2, trainers: int = 1, sync: bool = True, **config: Any) -> None:
        options = DistributeTranspilerConfig(**{"min_block_size": 1, **config})
        self.cluster = LocalCluster(model.main, model.startup, servers, trainers, sync, options)
        self.main = self.cluster.trainers[0].main
        self.plan: Plan = self.main.distribution.plan
        self._loss = model.loss

    def step(self, feeds: list[dict[str, Any]]) -> list[Any]:
        return [losses[0] for losses in self.cluster.run(feeds, [self._loss])]

    def state(self) -> State:
        return held_state(self.plan, self.cluster.scopes)


@contextmanager
def transpiled(model: Programs, **options: Any) -> Iterator[Job]:
    job = Job(model, **options)
    with job.cluster:
        yield job


def halves(feed: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: value[:2] for name, value in feed.items()}, {name: value[2:] for name, value in feed.items()}]


@pytest.mark.parametrize(("name", "kind"), [*itertools.product(BY_ROW, KINDS), ("lars", "dense")])
def test_one_trainer_trains_bit_for_bit_as_a_local_run(name: str, kind: str) -> None:
    model = Programs(wide(kind, OPTIMIZERS[name]))
    local = Local(model)
    expected = [local.step(feed) for feed in feeds(4)]
    for servers in (1, 2, 3, 5):
        with transpiled(model, servers=servers) as run:
            assert [run.step([feed])[0] for feed in feeds(4)] == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BY_ROW)
def test_two_trainers_train_as_a_local_run_on_both_batches(name: str, kind: str) -> None:
    model = Programs(wide(kind, OPTIMIZERS[name]))
    local = Local(model)
    with transpiled(model, servers=3, trainers=2) as run:
        for feed in feeds(4):
            both = run.step(halves(feed))
            np.testing.assert_allclose(np.mean(both), local.step(feed), rtol=1e-9)
        np.testing.assert_allclose(run.state()["w"], local.scope.get("w"), rtol=1e-9)


def check_against_local(model: Programs, steps: list[dict[str, Any]], **options: Any) -> None:
    """One trainer computes the losses of a local run, bit for bit."""
    local = Local(model)
    expected = [local.step(feed) for feed in steps]
    with transpiled(model, **options) as run:
        assert [run.step([feed])[0] for feed in steps] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_async_with_one_trainer_trains_as_a_local_run(kind: str) -> None:
    check_against_local(Programs(wide(kind, OPTIMIZERS["adam"])), feeds(4), sync=False)


@pytest.mark.parametrize("block", [1, 8, 10**6])
def test_the_way_of_slicing_changes_nothing(block: int) -> None:
    model = Programs(wide("sparse", OPTIMIZERS["adam"]))
    check_against_local(model, feeds(3), servers=3, min_block_size=block)
    check_against_local(model, feeds(3), servers=3, min_block_size=block, split_method=HashName)
    check_against_local(model, feeds(3), servers=3, slice_var_up=False, min_block_size=block)


CLIPS: dict[str, Callable[[], Any]] = {
    "value": lambda: clip.GradientClipByValue(0.02),
    "norm": lambda: clip.GradientClipByNorm(0.05),
    "global norm": lambda: clip.GradientClipByGlobalNorm(0.05),
}


def clipped(kind: str, name: str) -> Programs:
    return Programs(wide(kind, lambda: optimizer.Momentum(0.1, 0.9, grad_clip=CLIPS[name]())))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CLIPS)
def test_clips_with_one_trainer(name: str, kind: str) -> None:
    check_against_local(clipped(kind, name), feeds(4), servers=3)


@pytest.mark.parametrize("kind", KINDS)
def test_B043_the_global_norm_is_that_of_all_parameters(kind: str) -> None:
    model = clipped(kind, "global norm")
    local = Local(model)
    with transpiled(model, servers=2, trainers=2) as run:
        for feed in feeds(4):
            np.testing.assert_allclose(run.step([feed, feed]), [local.step(feed)] * 2, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "kind"), [("value", "table"), ("value", "dense"), ("norm", "dense"), ("norm", "sparse")]
)
def test_clips_of_averaged_gradients(name: str, kind: str) -> None:
    model = clipped(kind, name)
    local = Local(model)
    with transpiled(model, servers=3, trainers=2) as run:
        for feed in feeds(4):
            np.testing.assert_allclose(np.mean(run.step(halves(feed))), local.step(feed), rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decay", [regularizer.L1Decay(0.01), regularizer.L2Decay(0.01)], ids=["L1", "L2"])
def test_regularisation(kind: str, decay: Any) -> None:
    model = Programs(wide(kind, lambda: optimizer.SGD(0.1, regularization=decay)))
    check_against_local(model, feeds(4), servers=3)
    local = Local(model)
    with transpiled(model, servers=2, trainers=2) as run:
        for feed in feeds(4):
            np.testing.assert_allclose(np.mean(run.step(halves(feed))), local.step(feed), rtol=1e-9)


SCHEDULES: dict[str, Callable[[], Any]] = {
    "exponential": lambda: rates.exponential_decay(0.1, 2, 0.5),
    "piecewise": lambda: rates.piecewise_decay([1, 3], [0.1, 0.05, 0.01]),
    "polynomial cycle": lambda: rates.polynomial_decay(0.1, 3, 0.01, power=2.0, cycle=True),
    "warmup": lambda: rates.linear_lr_warmup(0.1, 3, 0.0, 0.1),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_run_on_the_servers(name: str) -> None:
    model = Programs(wide("table", lambda: optimizer.SGD(SCHEDULES[name]())))
    check_against_local(model, feeds(5), servers=3)


def test_B005_a_table_with_a_rate_of_its_own() -> None:
    def net() -> framework.Variable:
        ids = layers.data("user", [1], dtype="int64")
        attr = ParamAttr(name="emb", learning_rate=0.5, initializer=initializer.Uniform(-0.5, 0.5, seed=3))
        vec = layers.embedding(ids, [9, 2], is_sparse=True, is_distributed=True, param_attr=attr)
        loss = layers.mean(layers.square(vec))
        optimizer.SGD(rates.exponential_decay(0.5, 1, 0.5)).minimize(loss)
        return loss

    steps = [{"user": feed["user"] % 9} for feed in feeds(4)]
    check_against_local(Programs(net), steps, servers=2)


def test_B003_B011_two_tables_over_lod_and_dense_ids() -> None:
    def net() -> framework.Variable:
        bag = layers.data("bag", [1], dtype="int64", lod_level=1)
        item = layers.data("item", [1], dtype="int64")
        one = layers.sequence_pool(embed("one", bag, "table"), "sum")
        two = [embed("two", item, "table"), embed("one", item, "table", padding_idx=3)]
        loss = layers.mean(layers.square(layers.concat([one, *two], axis=1)))
        optimizer.Adagrad(0.1).minimize(loss)
        return loss

    bags = [
        LoDTensor(np.array([[1], [3], [1], [2**40]]), ((0, 1, 1, 4),)),
        LoDTensor(np.zeros((0, 1), np.int64), ((0, 0, 0, 0),)),
    ]
    steps = [{"bag": bag, "item": np.array([[3], [-5], [1]])} for bag in bags]
    check_against_local(Programs(net), steps, servers=3)


@pytest.mark.parametrize("shape", [[-1], [-1, 1], [-1, 3]])
def test_B008_C19_lookup_table_v2_is_lowered_too(shape: list[int]) -> None:
    def net() -> framework.Variable:
        ids = layers.data("ids", shape, dtype="int64", append_batch_size=False)
        attr = ParamAttr(name="emb", initializer=initializer.Uniform(-0.5, 0.5, seed=3))
        vec = embedding_v2(ids, [50, 4], is_sparse=True, is_distributed=True, param_attr=attr)
        assert list(vec.shape) == [*shape, 4]
        loss = layers.mean(layers.square(vec))
        optimizer.SGD(0.1).minimize(loss)
        return loss

    model = Programs(net)
    size = [4, *shape[1:]]
    steps = [{"ids": np.random.default_rng(seed).integers(0, 50, size)} for seed in range(3)]
    check_against_local(model, steps, servers=3)
    with transpiled(model) as run:
        assert not any("emb" in op.output_arguments() for op in run.main.desc.root.ops)


def test_B058_a_sparse_embedding_that_is_also_multiplied_is_dense() -> None:
    def net() -> framework.Variable:
        ids = layers.data("user", [1], dtype="int64")
        vec = embed("emb", ids, "sparse")
        emb = framework.default_main_program().global_block().var("emb")
        loss = layers.mean(layers.square(layers.matmul(vec, emb, transpose_y=True)))
        optimizer.Adam(0.1).minimize(loss)
        return loss

    model = Programs(net)
    steps = [{"user": feed["user"]} for feed in feeds(4)]
    check_against_local(model, steps, servers=3)
    with transpiled(model) as run:
        assert [param.fetched_by_row for param in run.plan.dense] == [False]
        assert any(note.subject == "emb" and "matmul" in note.reason for note in run.plan.notes)


def test_a_sparse_gradient_of_a_parameter_that_the_trainer_keeps() -> None:
    def net() -> framework.Variable:
        ids = layers.data("user", [1], dtype="int64")
        vec = embed("emb", ids, "sparse")
        layers.reduce_sum(framework.default_main_program().global_block().var("emb"))
        loss = layers.mean(layers.square(vec))
        optimizer.Momentum(0.1, 0.9).minimize(loss)
        return loss

    model = Programs(net)
    steps = [{"user": feed["user"]} for feed in feeds(4)]
    check_against_local(model, steps, servers=3)
    with transpiled(model) as run:
        (param,) = run.plan.dense
        assert param.sparse_gradient
        assert not param.fetched_by_row


def test_B028_H06_more_servers_than_parameters() -> None:
    def net() -> framework.Variable:
        x = layers.data("label", [1], dtype="float64")
        loss = layers.mean(layers.fc(x, 1, param_attr=ParamAttr(name="w")))
        optimizer.SGD(0.1).minimize(loss)
        return loss

    model = Programs(net)
    steps = [{"label": feed["label"]} for feed in feeds(3)]
    check_against_local(model, steps, servers=4)
    with transpiled(model, servers=4, trainers=2) as run:
        run.step([steps[0], steps[0]])
        assert [scope.get("w") is not None for scope in run.cluster.scopes.values()].count(True) == 1


def test_B023_two_trainers_with_the_same_batch_are_one() -> None:
    model = Programs(wide("table", OPTIMIZERS["sgd"]))
    feed = feeds(1)[0]
    local = Local(model)
    local.step(feed)
    table = local.scope.get("emb").export()
    with transpiled(model, trainers=2) as run:
        run.step([feed, feed])
        rows = run.state()["emb"]
    assert rows.keys() == set(table.rows.tolist())
    for id, row in zip(table.rows.tolist(), table.value, strict=True):
        np.testing.assert_allclose(rows[id], row, rtol=1e-12)


class Together:
    """A dispatcher that puts both slices of the embedding on one server."""

    @staticmethod
    def prefer(names: Sequence[str], servers: int) -> list[int]:
        return [0 if name.startswith("emb") else 1 for name in names]


def test_B041_slices_on_one_server_have_beta_powers_of_their_own() -> None:
    model = Programs(wide("sparse", OPTIMIZERS["adam"]))
    options = {"min_block_size": 16, "split_method": Together}
    check_against_local(model, feeds(4), servers=2, **options)
    with transpiled(model, servers=2, **options) as run:
        emb = next(param for param in run.plan.dense if param.name == "emb")
        assert len(emb.endpoints) == 2
        assert len(set(emb.endpoints)) == 1


def test_a_table_needs_no_is_sparse() -> None:
    def net() -> framework.Variable:
        ids = layers.data("user", [1], dtype="int64")
        vec = layers.embedding(ids, [9, 2], is_distributed=True, param_attr=ParamAttr(name="emb"))
        loss = layers.mean(layers.square(vec))
        optimizer.Adagrad(0.1).minimize(loss)
        return loss

    check_against_local(Programs(net), [{"user": feed["user"]} for feed in feeds(3)], servers=2)


def test_a_table_that_nothing_trains_is_still_served() -> None:
    def net() -> framework.Variable:
        ids = layers.data("user", [1], dtype="int64")
        attr = ParamAttr(name="emb", initializer=initializer.Uniform(-0.5, 0.5, seed=3), trainable=False)
        vec = layers.embedding(ids, [9, 2], is_sparse=True, is_distributed=True, param_attr=attr)
        vec.stop_gradient = True
        loss = layers.mean(layers.square(layers.fc(vec, 2, param_attr=ParamAttr(name="w"))))
        optimizer.SGD(0.1).minimize(loss)
        return loss

    model = Programs(net)
    check_against_local(model, [{"user": feed["user"]} for feed in feeds(3)], servers=2)
    with transpiled(model) as run:
        assert run.plan.trained_tables == ()


def test_forward_ops_behind_minimize_see_the_new_parameters() -> None:
    def net() -> framework.Variable:
        x = layers.data("label", [1], dtype="float64")
        loss = layers.mean(layers.fc(x, 4, param_attr=ParamAttr(name="w"), bias_attr=False))
        optimizer.SGD(0.1).minimize(loss)
        return layers.reduce_sum(framework.default_main_program().global_block().var("w"))

    check_against_local(Programs(net), [{"label": feed["label"]} for feed in feeds(3)], servers=2)


def test_a_weight_that_its_op_also_names_as_an_output() -> None:
    def net() -> framework.Variable:
        x = layers.data("x", [4], dtype="float64")
        label = layers.data("user", [1], dtype="int64")
        attr = ParamAttr(name="w", initializer=initializer.Uniform(-0.5, 0.5, seed=3))
        loss = layers.mean(layers.hsigmoid(x, label, 11, param_attr=attr))
        optimizer.Adagrad(0.1).minimize(loss)
        return loss

    steps = [{"x": np.tile(feed["label"], 4), "user": feed["user"]} for feed in feeds(3)]
    check_against_local(Programs(net), steps, servers=3)


def test_a_sparse_gradient_that_comes_from_no_lookup() -> None:
    def net() -> framework.Variable:
        x = layers.data("x", [4], dtype="float64")
        label = layers.data("user", [1], dtype="int64")
        attr = ParamAttr(name="w", initializer=initializer.Uniform(-0.5, 0.5, seed=3))
        loss = layers.mean(layers.nce(x, label, 11, param_attr=attr, num_neg_samples=3, seed=4, is_sparse=True))
        optimizer.Adagrad(0.1).minimize(loss)
        return loss

    steps = [{"x": np.tile(feed["label"], 4), "user": feed["user"]} for feed in feeds(3)]
    check_against_local(Programs(net), steps, servers=3)
