"""Jobs that go on from a checkpoint on another number of servers: train 2k = train k, save, load, train k, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite import LocalCluster
from fluidlite.checkpoint.compare import Difference, differences
from fluidlite.checkpoint.source import open_checkpoint
from fluidlite.checkpoint.writer import CheckpointWriter
from fluidlite.framework import Program
from fluidlite.pserver.cut import load, take_cut
from fluidlite.pserver.host import Host
from tests.frontend import fresh_programs

TRAINERS = 2


def sgd() -> Any:
    return fluid.optimizer.SGD(fluid.layers.exponential_decay(0.1, decay_steps=3, decay_rate=0.9))


def adagrad() -> Any:
    return fluid.optimizer.Adagrad(0.1)


def adam() -> Any:
    return fluid.optimizer.Adam(fluid.layers.noam_decay(8, 4), lazy_mode=True)


def ftrl() -> Any:
    return fluid.optimizer.Ftrl(0.1, l1=0.01)


OPTIMIZERS = [sgd, adagrad, adam, ftrl]


def model(optimizer: Callable[[], Any]) -> tuple[Program, Program, str]:
    """Two tables, one of them used twice, and dense layers that are sliced."""
    with fresh_programs() as (main, startup):
        ids, others = (fluid.data(name, [None, 1], "int64") for name in ("ids", "others"))
        label = fluid.data("label", [None, 1], "float32")
        rows = [
            fluid.layers.embedding(given, [100, 6], is_sparse=True, is_distributed=True, param_attr=name)
            for given, name in ((ids, "users"), (others, "items"), (ids, "items"))
        ]
        hidden = fluid.layers.fc(fluid.layers.concat(rows, axis=-1), 12, act="relu", num_flatten_dims=1)
        loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), label))
        optimizer().minimize(loss)
        return main, startup, loss.name


def feeds(step: int) -> list[dict[str, Any]]:
    """One batch per trainer; ids of all signs, some new in every step."""
    random = np.random.default_rng(step)
    return [
        {
            "ids": random.integers(-20, 20, (16, 1)) * 2**40 + 1,
            "others": random.integers(-20, 20, (16, 1)),
            "label": random.normal(size=(16, 1)).astype(np.float32),
        }
        for _ in range(TRAINERS)
    ]


def cluster(program: tuple[Program, Program, str], servers: int) -> LocalCluster:
    config = fluid.DistributeTranspilerConfig()
    config.min_block_size = 4
    return LocalCluster(*program[:2], pservers=servers, trainers=TRAINERS, config=config)


def hosts(job: LocalCluster) -> list[Host]:
    return [service._store for service in job.services.values()]  # type: ignore[misc]


def train(job: LocalCluster, loss: str, steps: Sequence[int]) -> list[list[float]]:
    return [[float(value[0]) for (value,) in job.run(feeds(step), [loss])] for step in steps]


def save(job: LocalCluster, folder: Path, writers: list[CheckpointWriter], number: int) -> None:
    for writer, host in zip(writers, hosts(job), strict=True):
        writer.write(take_cut(host, number, writer.last, track=True))


def restore(job: LocalCluster, folder: Path) -> None:
    """The servers first, then what trainers hold of them."""
    for server, host in enumerate(hosts(job)):
        load(host, folder, server, len(job.services))
    for trainer in job.trainers:
        trainer.run(program=trainer.startup)


def writers_of(job: LocalCluster, folder: Path) -> list[CheckpointWriter]:
    return [CheckpointWriter(folder, server, len(job.services)) for server in range(len(job.services))]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (5, 1), (2, 2)])
@settings(max_examples=2, deadline=None)
@given(k=st.integers(1, 5))
def test_K19_training_goes_on_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, optimizer: Callable[[], Any], before: int, after: int, k: int
) -> None:
    folder = tmp_path_factory.mktemp("job")
    program = model(optimizer)
    loss = program[2]
    with cluster(program, before) as job:
        writers = writers_of(job, folder / "k")
        train(job, loss, range(k - 1))
        save(job, folder, writers, k - 1)
        train(job, loss, [k - 1])
        save(job, folder, writers, k)  # what changed in one step
        expected = train(job, loss, range(k, 2 * k))
        save(job, folder, writers_of(job, folder / "one"), 2 * k)
    with cluster(program, after) as job:
        restore(job, folder / "k")
        assert [host.version for host in hosts(job)] == [k] * after
        assert train(job, loss, range(k, 2 * k)) == expected
        save(job, folder, writers_of(job, folder / "two"), 2 * k)
    assert unequal(folder / "one", folder / "two") == []


def unequal(first: Path, second: Path) -> list[Difference]:
    found = list(differences(open_checkpoint(first), open_checkpoint(second)))
    assert {difference.name for difference in found} >= {"users", "items", "fc_0.w_0", "fc_1.b_0"}
    return [difference for difference in found if not difference.is_empty]


def test_K06_a_model_with_more_starts_from_the_tables_of_another(tmp_path: Path) -> None:
    """Warm start: tables with their accumulators, under another name, into a job of another optimizer's dense part."""
    with cluster(model(adagrad), 2) as job:
        train(job, model(adagrad)[2], range(3))
        save(job, tmp_path, writers_of(job, tmp_path), 3)
    with cluster(model(adagrad), 3) as job:
        for server, host in enumerate(hosts(job)):
            load(host, tmp_path, server, 3, tables=["users"], rename={"users": "items"})
        save(job, tmp_path, writers_of(job, tmp_path / "new"), 0)
    old, new = open_checkpoint(tmp_path), open_checkpoint(tmp_path / "new")
    assert new.row_count("items") == old.row_count("users") > 0
    assert new.row_count("users") == 0
    assert [column.name for column in new.tables["items"].columns] == ["items_moment_0"]


def test_a_program_says_what_its_slices_are_slices_of() -> None:
    with cluster(model(adam), 2) as job:
        pieces = [host.pieces for host in hosts(job)]
        assert pieces[1]["fc_0.w_0.block1"] == ("fc_0.w_0", 9)
        assert pieces[1]["fc_0.w_0_moment1_0.block1"] == ("fc_0.w_0_moment1_0", 9)
        assert pieces[0]["fc_0.w_0_beta1_pow_acc_0.block0"] == ("fc_0.w_0_beta1_pow_acc_0", None)
        assert "users" not in pieces[0]
