"""Executor.prefetch: the rows of a later batch travel while another one computes; stale by what came in between, never wrong."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.cluster import LocalCluster
from fluidlite.errors import FeedError, ServerFailedError
from fluidlite.runtime.ahead import LookAhead
from tests.frontend import fresh_programs

RATE = 0.5
ONE, OTHER = ({"ids": np.array([[number], [number + 1]])} for number in (3, 30))


def looked_up(ids: Any, name: str = "emb") -> Any:
    start = fluid.initializer.Constant(0.0)
    return fluid.layers.embedding(
        ids, [100, 2], is_sparse=True, is_distributed=True, param_attr=fluid.ParamAttr(name=name, initializer=start)
    )


def train(rows: Any) -> None:
    """Every step lowers each row that it looks up by RATE per element: the rows count their steps."""
    fluid.optimizer.SGD(RATE).minimize(fluid.layers.reduce_sum(rows))


@pytest.fixture
def job() -> Iterator[dict[str, Any]]:
    """Makes a job of one trainer; what to fetch is in it by name."""
    with fresh_programs() as (main, startup):
        made: dict[str, Any] = {}

        def start(rows: Any, sync: bool = False, pservers: int = 2) -> LocalCluster:
            train(rows)
            made["cluster"] = LocalCluster(main, startup, pservers, sync=sync)
            return made["cluster"]

        made["start"] = start
        yield made
        if "cluster" in made:
            made["cluster"].close()


def run(cluster: LocalCluster, feed: dict[str, Any], fetch: Any) -> list[float]:
    """One step; how many steps its rows had seen."""
    (trainer,) = cluster.trainers
    ((value,),) = cluster.run([feed], [fetch])
    assert trainer.main is not None
    return (-value.reshape(-1, 2)[:, 0] / RATE).tolist()


def prefetch(cluster: LocalCluster, feed: dict[str, Any]) -> bool:
    (trainer,) = cluster.trainers
    return trainer.executor.prefetch(trainer.main, feed)


def pulls(cluster: LocalCluster) -> list[int]:
    """Counts the requests for rows from now on, by how many each asked for together."""
    seen: list[int] = []
    for service in cluster.services.values():
        pull = service.pull

        def counted(identity: Any, requests: Any, pull: Any = pull) -> Any:
            seen.append(len(requests))
            return pull(identity, requests)

        service.pull = counted  # type: ignore[method-assign]
    return seen


def test_rows_are_those_of_the_call(job: dict[str, Any]) -> None:
    rows = looked_up(fluid.data("ids", [None, 1], "int64"))
    cluster = job["start"](rows)
    assert run(cluster, ONE, rows) == [0.0, 0.0]
    assert prefetch(cluster, ONE)
    assert run(cluster, ONE, rows) == [1.0, 1.0]
    assert prefetch(cluster, OTHER)
    assert prefetch(cluster, ONE)
    seen = pulls(cluster)
    assert run(cluster, OTHER, rows) == [0.0, 0.0]
    assert run(cluster, ONE, rows) == [2.0, 2.0]
    assert seen == []
    assert run(cluster, ONE, rows) == [3.0, 3.0], "asked now: of this call nothing is missing"
    assert len(seen) == 2


def test_a_step_in_between_is_missing(job: dict[str, Any]) -> None:
    rows = looked_up(fluid.data("ids", [None, 1], "int64"))
    cluster = job["start"](rows)
    assert prefetch(cluster, ONE)
    overlapping = {"ids": np.array([[4], [6]])}
    assert run(cluster, overlapping, rows) == [0.0, 0.0]
    assert run(cluster, ONE, rows) == [0.0, 0.0], "row 4 has seen one step by now"
    assert run(cluster, ONE, rows) == [1.0, 2.0]


def test_every_step_counts_whatever_was_asked_ahead(job: dict[str, Any]) -> None:
    rows = looked_up(fluid.data("ids", [None, 1], "int64"))
    cluster = job["start"](rows)
    feeds = [{"ids": np.random.default_rng(seed).integers(0, 9, (4, 1))} for seed in range(12)]
    for feed, following in pairwise(feeds):
        assert prefetch(cluster, following)
        run(cluster, feed, rows)
    run(cluster, feeds[-1], rows)
    touched = np.concatenate([np.bincount(feed["ids"].reshape(-1), minlength=9)[None] for feed in feeds])
    assert run(cluster, {"ids": np.arange(9).reshape(-1, 1)}, rows) == touched.sum(0).tolist()


def test_another_feed_than_announced_is_asked_as_usual(job: dict[str, Any]) -> None:
    rows = looked_up(fluid.data("ids", [None, 1], "int64"))
    cluster = job["start"](rows)
    prefetch(cluster, ONE)
    seen = pulls(cluster)
    assert run(cluster, OTHER, rows) == [0.0, 0.0]
    assert len(seen) == 2
    assert run(cluster, {"ids": ONE["ids"].copy()}, rows) == [0.0, 0.0], "found by its ids"
    assert len(seen) == 2


def test_in_sync_mode_it_changes_nothing(job: dict[str, Any]) -> None:
    rows = looked_up(fluid.data("ids", [None, 1], "int64"))
    cluster = job["start"](rows, sync=True)
    seen = pulls(cluster)
    assert not prefetch(cluster, ONE)
    assert seen == []
    run(cluster, ONE, rows)
    assert not prefetch(cluster, ONE)
    run(cluster, ONE, rows)
    assert run(cluster, ONE, rows) == [2.0, 2.0]


def test_ids_that_ops_compute_from_the_feed_are_asked(job: dict[str, Any]) -> None:
    ids = fluid.layers.scale(fluid.data("ids", [None, 1], "int64"), 2.0, 1.0)
    rows = looked_up(ids)
    cluster = job["start"](rows, pservers=1)
    assert prefetch(cluster, ONE)
    seen = pulls(cluster)
    run(cluster, ONE, rows)
    assert seen == []


def run_alone(cluster: LocalCluster, feed: dict[str, Any], fetch: Any) -> list[float]:
    """`run`, but the trainer stays in the job after an error."""
    (trainer,) = cluster.trainers
    (value,) = trainer.run(feed, [fetch])
    return (-value.reshape(-1, 2)[:, 0] / RATE).tolist()


def fail_once(cluster: LocalCluster, verb: str) -> None:
    """The next update, or request for rows, fails inside each server."""
    for service in cluster.services.values():
        store = service._store
        works = getattr(store, verb)

        def fail(*given: Any, store: Any = store, works: Any = works) -> Any:
            setattr(store, verb, works)
            raise ZeroDivisionError("division of rows")

        setattr(store, verb, fail)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_run_whose_step_failed_is_named_by_the_next_one(job: dict[str, Any], ahead: bool) -> None:
    rows = looked_up(fluid.data("ids", [None, 1], "int64"))
    cluster = job["start"](rows)
    assert run_alone(cluster, ONE, rows) == [0.0, 0.0]
    assert not ahead or prefetch(cluster, ONE)
    fail_once(cluster, "apply")
    assert run_alone(cluster, ONE, rows) == [1.0, 1.0]
    assert not ahead or prefetch(cluster, ONE)
    with pytest.raises(ServerFailedError, match=r"step 1: commit at .*division of rows"):
        run_alone(cluster, ONE, rows)
    assert run_alone(cluster, ONE, rows) == [1.0, 1.0], "neither the failed step nor the one after it"
    assert run_alone(cluster, ONE, rows) == [2.0, 2.0]


def test_a_run_whose_step_failed_is_named_also_where_the_rows_ahead_fail(job: dict[str, Any]) -> None:
    rows = looked_up(fluid.data("ids", [None, 1], "int64"))
    cluster = job["start"](rows)
    assert run_alone(cluster, ONE, rows) == [0.0, 0.0]
    fail_once(cluster, "apply")
    assert run_alone(cluster, ONE, rows) == [1.0, 1.0]
    fail_once(cluster, "pull")
    assert prefetch(cluster, ONE)
    with pytest.raises(ServerFailedError, match="step 1: commit at "):
        run_alone(cluster, ONE, rows)
    assert run_alone(cluster, ONE, rows) == [1.0, 1.0]


def test_rows_ahead_that_failed_fail_one_run(job: dict[str, Any]) -> None:
    a, b = (looked_up(fluid.data(name, [None, 1], "int64"), name + "_rows") for name in ("a", "b"))
    cluster = job["start"](fluid.layers.elementwise_add(a, b))
    feed = dict.fromkeys(("a", "b"), ONE["ids"])
    assert run_alone(cluster, feed, a) == [0.0, 0.0]
    fail_once(cluster, "pull")
    assert prefetch(cluster, feed)
    with pytest.raises(ServerFailedError, match="division of rows"):
        run_alone(cluster, feed, a)
    assert [run_alone(cluster, feed, a) for _ in range(2)] == [[1.0, 1.0], [2.0, 2.0]]


def test_only_the_first_level_of_lookups_is_asked(job: dict[str, Any]) -> None:
    first = looked_up(fluid.data("ids", [None, 1], "int64"), "first")
    ids = fluid.layers.cast(fluid.layers.slice(first, [1], [0], [1]), "int64")
    second = looked_up(ids, "second")
    cluster = job["start"](fluid.layers.elementwise_add(first, fluid.layers.reshape(second, [-1, 2])), pservers=1)
    assert prefetch(cluster, ONE)
    seen = pulls(cluster)
    run(cluster, ONE, first)
    assert seen == [1]


def test_all_lookups_of_the_feed_are_asked_together(job: dict[str, Any]) -> None:
    a, b = (looked_up(fluid.data(name, [None, 1], "int64"), name + "_rows") for name in ("a", "b"))
    cluster = job["start"](fluid.layers.elementwise_add(a, b), pservers=1)
    feed = dict.fromkeys(("a", "b"), ONE["ids"])
    seen = pulls(cluster)
    assert prefetch(cluster, feed)
    assert seen == [2]
    run(cluster, feed, a)
    assert seen == [2]


def test_ids_that_depend_on_a_parameter_are_not_asked(job: dict[str, Any]) -> None:
    shift = fluid.layers.create_parameter([1], "int64", "shift", default_initializer=fluid.initializer.Constant(0))
    shift.stop_gradient = shift.trainable = False
    ids = fluid.layers.elementwise_add(fluid.data("ids", [None, 1], "int64"), shift)
    rows = looked_up(ids)
    cluster = job["start"](rows, pservers=1)
    assert not prefetch(cluster, ONE)
    assert run(cluster, ONE, rows) == [0.0, 0.0]


def test_a_wrong_feed_is_an_error_at_once(job: dict[str, Any]) -> None:
    cluster = job["start"](looked_up(fluid.data("ids", [None, 1], "int64")))
    with pytest.raises(FeedError, match="ids"):
        prefetch(cluster, {"ids": np.zeros((2, 1), np.float32)})


def test_programs_that_ask_nobody_ask_nothing() -> None:
    with fresh_programs() as (main, _), fluid.Executor() as exe:
        fluid.layers.relu(fluid.data("x", [None, 2]))
        assert not exe.prefetch(main, {"x": np.ones((1, 2), np.float32)})


def test_what_is_run_ahead_is_compiled_once_per_state_of_the_program(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    make = LookAhead.__init__
    monkeypatch.setattr(LookAhead, "__init__", lambda self, *given: (made.append(self), make(self, *given))[1])
    rows = looked_up(fluid.data("ids", [None, 1], "int64"))
    cluster = job["start"](rows)
    for _ in range(3):
        assert prefetch(cluster, ONE)
        run(cluster, ONE, rows)
    assert len(made) <= 2, "before the first run the fetches are not known"
