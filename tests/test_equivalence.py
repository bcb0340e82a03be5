"""The property that holds the project together: distributed training computes what local training computes.

Over random programs, in float64: n servers and m trainers in sync mode train as one process does on the concatenated
batch, to 1e-9; one trainer trains with any number of servers, in either mode, as without, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.random_programs import CLIPS, OPTIMIZERS, Embedding, Lookup, Model, joined, models
from tests.training_jobs import Cluster, GrpcCluster, Local, Programs, assert_states

STEPS = 3
RTOL = 1e-9
#: without shrinking, which takes minutes here: a failing model is small enough to read
quick = settings(
    max_examples=6,
    derandomize=True,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
thorough = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
blocks = st.sampled_from([1, 4, 10**6])
everything = st.sampled_from(sorted(OPTIMIZERS)).flatmap(models)


def check_sync(
    make: Callable[..., Any],
    model: Model,
    servers: int,
    trainers: int,
    batch: int,
    block: int,
    make_local: Callable[[Programs], Local] = Local,
) -> None:
    """Trainers in sync mode train as a local run on their batches together."""
    programs = Programs(model.build)
    local = make_local(programs)
    with closing(make(programs, servers, trainers, block=block)) as cluster:
        for feeds in model.feeds(STEPS, trainers, batch):
            np.testing.assert_allclose(np.mean(cluster.step(feeds)), local.step(joined(feeds)), rtol=RTOL)
        assert_states(cluster.state(), local.state(), RTOL)


def check_one_trainer(make: Callable[..., Any], model: Model, batch: int, block: int, **jobs: Any) -> None:
    """One trainer trains as a local run, bit for bit; ``jobs``: number of servers by mode."""
    programs = Programs(model.build)
    local = Local(programs)
    feeds = [feed for (feed,) in model.feeds(STEPS, 1, batch)]
    losses = [local.step(feed) for feed in feeds]
    state = local.state()
    for mode, counts in jobs.items():
        for servers in counts:
            with closing(make(programs, servers, sync=mode == "sync", block=block)) as cluster:
                assert [cluster.step([feed])[0] for feed in feeds] == losses
                assert_states(cluster.state(), state)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_C14_servers_and_trainers_train_as_one_process_on_the_whole_batch(optimizer: str) -> None:
    @quick
    @given(models(optimizer), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), blocks)
    def check(model: Model, servers: int, trainers: int, batch: int, block: int) -> None:
        check_sync(Cluster, model, servers, trainers, batch, block)

    check()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_C12_C14_one_trainer_trains_bit_for_bit_as_one_process(optimizer: str) -> None:
    @quick
    @given(models(optimizer, tuple(CLIPS)), st.integers(1, 3), blocks, st.sampled_from([1, 2, 3, 5]))
    def check(model: Model, batch: int, block: int, servers: int) -> None:
        check_one_trainer(Cluster, model, batch, block, sync=(1, 2, 3, 5), **{"async": (servers,)})

    check()


def test_duplicates_beside_decay_of_the_whole_parameter() -> None:
    """Found by the test of many programs: duplicates have to be summed before they are added to anything."""
    model = Model((Embedding("sparse", 1, 1, decay="L2"),), (Lookup(0, "column"),), (), optimizer="adagrad", data=178)
    check_one_trainer(Cluster, model, 3, 1, sync=(1, 2))


@settings(quick, max_examples=3)
@given(everything, st.integers(1, 3), st.integers(1, 3), blocks)
def test_over_grpc_too(model: Model, servers: int, trainers: int, block: int) -> None:
    check_sync(GrpcCluster, model, servers, trainers, 2, block)
    check_one_trainer(GrpcCluster, model, 2, block, **{"async": (servers,)})


@pytest.mark.full
@pytest.mark.timeout(3600)
@thorough
@given(everything, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), blocks)
def test_many_jobs_train_as_one_process_on_the_whole_batch(
    model: Model, servers: int, trainers: int, batch: int, block: int
) -> None:
    check_sync(Cluster, model, servers, trainers, batch, block)


@pytest.mark.full
@pytest.mark.timeout(3600)
@thorough
@given(st.sampled_from(sorted(OPTIMIZERS)).flatmap(lambda name: models(name, tuple(CLIPS))), st.integers(1, 3), blocks)
def test_many_programs_train_bit_for_bit_as_one_process(model: Model, batch: int, block: int) -> None:
    check_one_trainer(Cluster, model, batch, block, sync=(1, 2, 3, 5), **{"async": (1, 2, 3, 5)})
