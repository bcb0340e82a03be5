"""What a step means in sync and in async mode, for whole programs.

The gradients of the model are the sizes that trainers are fed, so what servers hold tells which steps were applied.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.layers import learning_rate_scheduler as rates
from tests.job_process import ID, build
from tests.training_jobs import Cluster, Programs, assert_states


def size(value: float) -> dict[str, Any]:
    return {"ids": np.array([[ID]]), "size": np.array([float(value)])}


def versions(cluster: Cluster) -> list[int]:
    return [service._store.version for service in cluster.inside.services.values()]


def totals(cluster: Cluster) -> tuple[float, float]:
    """What the dense weight and the table's row have become."""
    state = cluster.state()
    return float(state["w"][0]), float(state["emb"][ID][0])


def in_order(cluster: Cluster, order: tuple[int, ...], feeds: list[dict[str, Any]]) -> None:
    """A sync step in which trainers commit one after another."""
    threads = [threading.Thread(target=cluster.inside.trainers[index].run, args=(feeds[index],)) for index in order]
    last = list(cluster.inside.services.values())[-1]
    for position, thread in enumerate(threads, 1):
        thread.start()
        while position < len(order) and len(last._ledger._buffer) < position:
            assert thread.is_alive()
    for thread in threads:
        thread.join(20)


# ---- sync


def test_a_sync_round_is_the_mean_of_every_trainers_step() -> None:
    with closing(Cluster(Programs(build), 2, 3)) as cluster:
        cluster.step([size(1), size(2), size(6)])
        assert totals(cluster) == (-3.0, -3.0)
        assert versions(cluster) == [1, 1]
        for trainer in cluster.inside.trainers:
            assert trainer.scope.get("w").tolist() == [-3.0]


def test_a_sync_round_waits_for_the_slowest_trainer() -> None:
    with closing(Cluster(Programs(build), 2, 2)) as cluster:
        first = threading.Thread(target=cluster.inside.trainers[0].run, args=(size(1),))
        first.start()
        for service in cluster.inside.services.values():
            while len(service._ledger._buffer) < 1:
                assert first.is_alive()
        assert totals(cluster) == (0.0, 0.0)
        assert versions(cluster) == [0, 0]
        cluster.inside.trainers[1].run(size(3))
        first.join(20)
        assert totals(cluster) == (-2.0, -2.0)


def random_net() -> fluid.Variable:
    ids = fluid.data("ids", [None, 1], "int64")
    row = fluid.layers.embedding(ids, [9, 3], is_distributed=True, param_attr="emb", dtype="float64")
    loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(row, 2, act="tanh")))
    fluid.optimizer.Adam(0.1).minimize(loss)
    return loss


def test_the_order_in_which_trainers_arrive_changes_no_bit_of_a_sync_step() -> None:
    random = np.random.default_rng(0)
    feeds = [{"ids": random.integers(0, 4, (5, 1))} for _ in range(3)]
    programs, states = Programs(random_net), []
    for order in itertools.permutations(range(3)):
        with closing(Cluster(programs, 2, 3)) as cluster:
            in_order(cluster, order, feeds)
            states.append(cluster.state())
    for state in states[1:]:
        assert_states(state, states[0])


def test_a_trainer_with_fewer_batches_leaves_the_rounds_to_the_others() -> None:
    with closing(Cluster(Programs(build), 2, 2)) as cluster:
        one, other = cluster.inside.trainers
        cluster.step([size(1), size(3)])
        other.executor.close()
        for _ in range(3):
            one.run(size(1))
        assert totals(cluster) == (-5.0, -5.0)
        assert versions(cluster) == [4, 4]


# ---- async


def test_an_async_step_is_applied_on_arrival_and_alone() -> None:
    with closing(Cluster(Programs(build), 2, 2, sync=False)) as cluster:
        one, other = cluster.inside.trainers
        one.run(size(1))
        assert totals(cluster) == (-1.0, -1.0)
        assert one.scope.get("w").tolist() == [-1.0]
        assert other.scope.get("w").tolist() == [0.0], "the other trainer learns of it by its next step"
        other.run(size(4))
        assert totals(cluster) == (-5.0, -5.0)
        assert other.scope.get("w").tolist() == [-5.0]
        assert versions(cluster) == [2, 2]


def test_every_async_step_of_every_trainer_counts_once() -> None:
    trainers, steps = 4, 50
    with closing(Cluster(Programs(build), 3, trainers, sync=False)) as cluster:

        def train(index: int) -> None:
            for _ in range(steps):
                cluster.inside.trainers[index].run(size(index + 1))

        threads = [threading.Thread(target=train, args=(index,)) for index in range(trainers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert totals(cluster) == (-500.0, -500.0)
        assert versions(cluster) == [trainers * steps] * 3


# ---- the schedule's clock

SCHEDULES: dict[str, Callable[[], Any]] = {
    "exponential": lambda: rates.exponential_decay(1.0, 1, 0.5),
    "piecewise": lambda: rates.piecewise_decay([1, 2], [1.0, 0.5, 0.25]),
}


def scheduled(schedule: str) -> Programs:
    def net() -> fluid.Variable:
        x = fluid.data("size", [1], "float64")
        zeros = fluid.ParamAttr("w", fluid.initializer.Constant(0.0))
        weight = fluid.layers.create_parameter([1], "float64", attr=zeros)
        loss = fluid.layers.reduce_sum(weight * x)
        fluid.optimizer.SGD(SCHEDULES[schedule]()).minimize(loss)
        return loss

    return Programs(net)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_C09_B038_the_rate_falls_once_per_round_and_once_per_round_of_async_steps(schedule: str) -> None:
    one = {"size": np.ones(1)}
    with closing(Cluster(scheduled(schedule), 2, 2)) as cluster:
        for _ in range(3):
            cluster.step([one, one])
        assert cluster.state()["w"].tolist() == [-1.75]
    with closing(Cluster(scheduled(schedule), 2, 2, sync=False)) as cluster:
        for _ in range(3):
            for trainer in cluster.inside.trainers:
                trainer.run(one)
        assert cluster.state()["w"].tolist() == [-3.5]


def test_sync_mode_is_an_argument_and_an_option() -> None:
    config = fluid.DistributeTranspilerConfig()
    config.sync_mode = False
    programs = Programs(build)
    with fluid.LocalCluster(programs.main, programs.startup, 1, 2, config=config) as cluster:
        cluster.trainers[0].run(size(1))
        assert cluster.trainers[0].scope.get("w").tolist() == [-1.0]
