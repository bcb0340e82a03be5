"""Modes in whole jobs: trainers and servers in one process, gradients that are the sizes fed."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite import clip
from fluidlite.errors import RequestRefusedError
from tests.job_process import ID, build
from tests.training_jobs import Cluster, Local, Programs, assert_states, held_state


def job(servers: int = 2, trainers: int = 2, make: Any = build, **config: Any) -> fluid.LocalCluster:
    programs = Programs(make)
    options = fluid.DistributeTranspilerConfig(min_block_size=1, **config)
    return fluid.LocalCluster(programs.main, programs.startup, servers, trainers, True, options)


def size(value: float) -> dict[str, Any]:
    return {"ids": np.array([[ID]]), "size": np.array([float(value)])}


def totals(cluster: fluid.LocalCluster) -> list[float]:
    """What the dense weight and, if there is one, the table's row have become."""
    distribution = cluster.trainers[0].main.distribution
    assert distribution is not None
    state = held_state(distribution.plan, cluster.scopes)
    return [float(state["w"][0]), *(float(state["emb"][ID][0]) for _ in range("emb" in state))]


def test_a_round_of_one_waits_for_nobody() -> None:
    with job(grads_to_wait=1) as cluster:
        one, other = cluster.trainers
        one.run(size(1))
        one.run(size(2))
        assert totals(cluster) == [-3.0, -3.0]
        other.run(size(4))
        assert totals(cluster) == [-7.0, -7.0]


def test_a_step_that_is_too_old_is_computed_again_from_what_is_there_now() -> None:
    with job(grads_to_wait=1, sync_version_tolerance=0) as cluster:
        one, other = cluster.trainers
        (first,) = other.run(size(1), ["w"])
        for _ in range(3):
            one.run(size(2))
        (now,) = other.run(size(4), ["w"])
        assert (float(first[0]), float(now[0])) == (-1.0, -11.0), "the run that counted saw all the others"
        assert totals(cluster) == [-11.0, -11.0]
        assert {service._store.version for service in cluster.services.values()} == {5}


@pytest.mark.parametrize(("reduce", "row"), [("mean", -4.0), ("sum", -8.0)])
def test_rows_are_averaged_or_summed(reduce: str, row: float) -> None:
    with job(sparse_grad_reduce=reduce) as cluster:
        cluster.run([size(2), size(6)])
        assert totals(cluster) == [-4.0, row]


def test_ssp_holds_the_fast_trainer_until_the_slow_one_goes_on() -> None:
    with job(sync_mode=False, staleness=1) as cluster:
        fast, slow = cluster.trainers
        fast.run(size(1))
        held = threading.Thread(target=fast.run, args=(size(10),))
        held.start()
        while totals(cluster)[1:] != [-11.0]:
            assert held.is_alive()
        assert held.is_alive(), "its step counts, its answer waits"
        slow.run(size(100))
        held.join(20)
        assert not held.is_alive()
        assert totals(cluster) == [-111.0, -111.0]


def test_ssp_does_not_wait_for_one_that_left() -> None:
    with job(sync_mode=False, staleness=0) as cluster:
        one, other = cluster.trainers
        cluster.run([size(1), size(1)])
        other.executor.close()
        for _ in range(3):
            one.run(size(1))
        assert totals(cluster) == [-5.0, -5.0]


def table_only() -> fluid.Variable:
    ids = fluid.data("ids", [None, 1], "int64")
    size = fluid.data("size", [1], "float64")
    attr = fluid.ParamAttr("emb", fluid.initializer.Constant(0.0))
    row = fluid.layers.embedding(ids, [10, 1], is_distributed=True, param_attr=attr, dtype="float64")
    loss = fluid.layers.reduce_sum(row * size)
    fluid.optimizer.SGD(1.0).minimize(loss)
    return loss


def test_ssp_reads_no_row_before_the_answer_that_it_waits_for() -> None:
    with job(servers=1, make=table_only, sync_mode=False, staleness=0) as cluster:
        fast, slow = cluster.trainers
        read: list[float] = []

        def two_steps() -> None:
            read.extend(fast.run(size(1), ["embedding_0.tmp_0"])[0].item() for _ in range(2))

        first = threading.Thread(target=two_steps)
        first.start()
        (service,) = cluster.services.values()
        while service._store.version < 1:
            assert first.is_alive()
        slow.run(size(100))
        slow.run(size(100))
        first.join(20)
        assert not first.is_alive()
        assert read[1] <= -101.0, "its second step has seen the first one of the other"


def test_nan_policy_error_refuses_the_step_and_the_job_goes_on() -> None:
    with job(servers=1, trainers=1, nan_policy="error") as cluster:
        (trainer,) = cluster.trainers
        with pytest.raises(RequestRefusedError, match=r"@GRAD'? of trainer 0 .*not finite.*refused"):
            trainer.run(size(float("nan")))
        assert totals(cluster)[0] == 0.0
        trainer.run(size(1))
        assert totals(cluster) == [-1.0, -1.0]


@pytest.mark.parametrize("policy", ["skip", "zero"])
def test_nan_policies_keep_the_model_finite(policy: str) -> None:
    with job(nan_policy=policy) as cluster:
        cluster.run([size(float("nan")), size(2)])
        halves = -2.0 if policy == "skip" else -1.0
        assert totals(cluster) == [halves, halves]


def dense_only() -> fluid.Variable:
    size = fluid.data("size", [1], "float64")
    weight = fluid.layers.create_parameter([1], "float64", attr=fluid.ParamAttr("w", fluid.initializer.Constant(0.0)))
    loss = fluid.layers.reduce_sum(weight * size)
    fluid.optimizer.SGD(1.0).minimize(loss)
    return loss


def test_delay_compensation_in_a_job() -> None:
    with job(servers=1, make=dense_only, sync_mode=False, enable_dc_asgd=True) as cluster:
        one, other = cluster.trainers
        feed = {"size": np.array([2.0])}
        one.run(feed)
        assert totals(cluster) == [-2.0]
        other.run(feed)
        assert totals(cluster) == [-2.0 - (2.0 + 2.0 * 2.0 * -2.0)], "computed from 0, applied to -2"
        other.run(feed)
        assert totals(cluster) == [4.0 - 2.0]


CLIPS = {
    "value": clip.GradientClipByValue(0.05),
    "norm": clip.GradientClipByNorm(0.1),
    "global": clip.GradientClipByGlobalNorm(0.1),
}


@pytest.mark.parametrize("kind", sorted(CLIPS))
@pytest.mark.parametrize("servers", [1, 3])
def test_clips_of_a_table_see_the_sum_of_duplicates_in_a_job_too(kind: str, servers: int) -> None:
    def net() -> fluid.Variable:
        ids = fluid.data("ids", [None, 1], "int64")
        row = fluid.layers.embedding(ids, [9, 3], is_distributed=True, param_attr="emb", dtype="float64")
        loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(row, 2, act="tanh")))
        fluid.optimizer.Adagrad(0.5, grad_clip=CLIPS[kind]).minimize(loss)
        return loss

    random = np.random.default_rng(1)
    programs = Programs(net)
    local = Local(programs)
    with closing(Cluster(programs, servers)) as cluster:
        for _ in range(4):
            feed = {"ids": random.integers(-3, 4, (12, 1))}
            local.step(feed)
            cluster.step([feed])
        assert_states(cluster.state(), local.state(), 1e-12)
