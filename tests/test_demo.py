"""The demo learns, and learns the same however it is run: alone, in one process, and as jobs of processes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.demo import census, wide_deep
from fluidlite.demo.run import SCRIPT
from fluidlite.launch import Job, Worker, make_env, run_job

EPOCHS = 1
BATCH = 256
_AUC = re.compile(r"test AUC ([\d.]+)")


@cache
def alone() -> float:
    """The AUC of the script run by itself."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--epochs", str(EPOCHS)], capture_output=True, text=True, timeout=100, check=True
    )
    return auc_in(done.stdout)


def auc_in(output: str) -> float:
    (found,) = _AUC.findall(output)
    return float(found)


def as_job(folder: Path, pservers: int, trainers: int, *options: str) -> float:
    """The AUC of the script launched as a job."""
    lines: list[str] = []

    def keep(worker: Worker, line: str) -> None:
        lines.append(line)

    command = [sys.executable, str(SCRIPT), "--epochs", str(EPOCHS), *options]
    run_job(Job(command, pservers, trainers, folder, make_env(pservers, trainers, seed=0)), keep)
    return auc_in("\n".join(lines))


def in_one_process(pservers: int, trainers: int) -> float:
    """The AUC of the same model trained by a LocalCluster."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        probability, loss = wide_deep.model()
        fluid.optimizer.Adagrad(0.05).minimize(loss)
    examples = census.load("train")
    with fluid.LocalCluster(main, startup, pservers, trainers) as cluster:

        def train(part: int) -> None:
            for feed in wide_deep.batches(examples, BATCH // trainers, EPOCHS, part, trainers):
                cluster.trainers[part].step(feed)

        with ThreadPoolExecutor(trainers) as pool:
            list(pool.map(train, range(trainers)))
        first = cluster.trainers[0]
        with fluid.scope_guard(first.scope):
            return wide_deep.test_auc(first.executor, first.main.clone(for_test=True), probability)


WAYS: dict[str, Callable[[Path], float]] = {
    "LocalCluster": lambda folder: in_one_process(2, 2),
    "1 x 1": lambda folder: as_job(folder, 1, 1),
    "2 x 2 sync": lambda folder: as_job(folder, 2, 2),
    "2 x 2 async": lambda folder: as_job(folder, 2, 2, "--async"),
}


def test_the_demo_is_better_than_logistic_regression() -> None:
    assert alone() >= max(0.905, census.REFERENCE_AUC)


@pytest.mark.parametrize("way", WAYS)
def test_the_demo_learns_the_same_in_every_way(way: str, tmp_path: Path) -> None:
    auc = WAYS[way](tmp_path)
    assert auc >= 0.905
    assert auc == pytest.approx(alone(), abs=0.005)


def test_trainers_share_every_batch() -> None:
    examples = census.load("test")
    whole = list(wide_deep.batches(examples, 64, 1, 0, 1))
    halves = zip(*(wide_deep.batches(examples, 32, 1, part, 2) for part in range(2)), strict=True)
    for feed, parts in zip(whole, halves, strict=True):
        np.testing.assert_array_equal(feed["ids"], np.concatenate([part["ids"] for part in parts]))
