"""Executor.run_every: a function is called when the model reaches a version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import ProgramError
from tests.frontend import fresh_programs

FEED = {"x": np.ones((2, 3), np.float32)}


@pytest.fixture(autouse=True)
def _own_programs() -> Iterator[None]:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 3]), 1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        yield


def local() -> fluid.Executor:
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    return exe


def test_without_servers_versions_are_runs_of_the_program() -> None:
    test, seen = fluid.default_main_program().clone(for_test=True), []
    exe = local()
    exe.run(feed=FEED)
    exe.run_every(3, lambda version: seen.append((version, exe.run(test, FEED, ["fc_0.w_0"])[0])))
    weights = []
    for _ in range(7):
        weights.append(exe.run(feed=FEED, fetch_list=["fc_0.w_0"])[0])
        exe.run(test, FEED)
    assert [version for version, _ in seen] == [3, 6]
    np.testing.assert_array_equal(seen[0][1], weights[2])
    np.testing.assert_array_equal(seen[1][1], weights[5])


def test_several_functions_each_at_its_own_versions() -> None:
    exe, seen = local(), []
    exe.run_every(2, lambda version: seen.append(("two", version)))
    exe.run_every(3, lambda version: seen.append(("three", version)))
    for _ in range(6):
        exe.run(feed=FEED)
    assert seen == [("two", 2), ("three", 3), ("two", 4), ("two", 6), ("three", 6)]


def test_what_the_function_raises_the_run_raises_and_the_step_counts() -> None:
    exe = local()

    def stop(version: int) -> None:
        raise StopIteration(f"good enough at {version}")

    exe.run_every(2, stop)
    exe.run(feed=FEED)
    with pytest.raises(StopIteration, match="good enough at 2"):
        exe.run(feed=FEED)
    exe.run(feed=FEED)


def test_less_than_one_is_refused() -> None:
    with pytest.raises(ProgramError, match="versions must be at least 1, not 0"):
        fluid.Executor().run_every(0, print)


def test_where_trainers_do_not_wait_it_goes_past_the_multiple() -> None:
    programs = fluid.default_main_program(), fluid.default_startup_program()
    with fluid.LocalCluster(*programs, trainers=2, sync=False) as job:
        first, second = job.trainers
        seen: list[int] = []
        first.executor.run_every(10, seen.append, first.main)
        for _ in range(8):
            first.run(FEED)
            for _ in range(3):
                second.run(FEED)
    assert 2 <= len(seen) <= 4
    assert all(version % 10 < 8 for version in seen)
    assert sorted({version // 10 for version in seen}) == [version // 10 for version in seen]


def test_a_dataset_that_trains_calls_it_too(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("3 1.0 2.0 3.0\n" * 10)
    dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
    dataset.set_use_var([fluid.default_main_program().global_block().var("x")])
    dataset.set_batch_size(2)
    dataset.set_filelist([str(tmp_path / "data")])
    exe, seen = local(), []
    exe.run_every(2, seen.append)
    exe.train_from_dataset(fluid.default_main_program(), dataset)
    assert seen == [2, 4]
