"""half_async: steps are merged behind the trainer's back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite.core import edit
from fluidlite.core.ir import Attr, AttrType
from fluidlite.dtypes import Array
from fluidlite.errors import FluidliteError, PeerLostError, RequestRefusedError, ServerFailedError
from fluidlite.protocol.messages import DenseRequest, Gradient, PullRequest, Reply, RowRequest, TableRequest
from fluidlite.rpc.merging import MergingPort
from fluidlite.values.selected_rows import SelectedRows
from tests.fake_cluster import TRANSPORTS, FakeCluster
from tests.test_geo import Schedule, _counting_net, assert_held, counts, expected, held, schedules
from tests.training_jobs import GrpcCluster, Programs

A, B = "a:1", "b:1"


class Behind:
    """Implements `rpc.merging.Port`: remembers what comes; a commit waits until it may go on."""

    def __init__(self, open: bool = True) -> None:
        self.gate = threading.Semaphore(10**6 if open else 0)
        self.arrived = threading.Semaphore(0)
        self.staged: list[Gradient] = []
        #: (gradients, endpoints, steps) of every commit
        self.pushes: list[tuple[list[Gradient], list[str], int]] = []
        self.calls: list[str] = []
        self.errors: list[Exception] = []
        self.completed = False

    def pull(self, requests: Sequence[PullRequest]) -> list[Any]:
        self.calls += [type(request).__name__ for request in requests]
        return [np.array([float(len(self.pushes))]) for _ in requests]

    def pull_ahead(self, requests: Sequence[PullRequest]) -> bool:
        return False

    def stage(self, gradient: Gradient) -> None:
        self.staged.append(gradient)

    def commit(self, endpoints: Sequence[str], *, steps: int) -> Reply:
        staged, self.staged = self.staged, []
        self.arrived.release()
        assert self.gate.acquire(timeout=30)
        if self.errors:
            raise self.errors.pop(0)
        self.pushes.append((staged, list(endpoints), steps))
        number = len(self.pushes)
        return Reply(lambda: dict.fromkeys(endpoints, number))

    def barrier(self, endpoints: Sequence[str]) -> None:
        self.calls.append("barrier")

    def assign(self, endpoint: str, name: str, value: Array | SelectedRows) -> None:
        self.calls.append("assign")

    def complete(self) -> None:
        self.completed = True


def dense(value: float, name: str = "w", endpoint: str = A) -> Gradient:
    return Gradient(endpoint, name, np.full(2, value))


def rows(*pairs: tuple[int, float], name: str = "emb", endpoint: str = A) -> Gradient:
    ids = np.array([id for id, _ in pairs], np.int64)
    return Gradient(endpoint, name, np.array([[value] for _, value in pairs]).reshape(-1, 1), ids, 10)


def step(port: MergingPort, *gradients: Gradient) -> Reply:
    for gradient in gradients:
        port.stage(gradient)
    return port.commit([A])


def blocked(behind: Behind, most: int = 3, **options: Any) -> MergingPort:
    """A port whose first step, without gradients, is on its way and stays there."""
    port = MergingPort(behind, most, **options)
    step(port)
    assert behind.arrived.acquire(timeout=30)
    return port


# --- what is merged -------------------------------------------------------------------------------------------------


def test_steps_that_wait_are_one_push_with_the_mean_of_their_gradients() -> None:
    behind = Behind(open=False)
    port = blocked(behind)
    step(port, dense(1.0), rows((3, 1.0), (4, 2.0)))
    step(port, dense(2.0), rows((3, 5.0), (3, 3.0)))
    reply = step(port, dense(6.0, "v", B))
    behind.gate.release(2)
    assert reply.versions == {A: 2, B: 2}
    (none, _, one), (gradients, endpoints, three) = behind.pushes
    assert (none, one, three, endpoints) == ([], 1, 3, [A, B])
    w, emb, v = gradients
    np.testing.assert_array_equal(w.value, [1.5, 1.5])
    np.testing.assert_array_equal(v.value, [6.0, 6.0])
    assert (emb.rows.tolist(), emb.value.tolist()) == ([3, 4], [[4.5], [1.0]])  # type: ignore[union-attr]
    port.complete()


def test_or_with_their_sum() -> None:
    behind = Behind(open=False)
    port = blocked(behind, added=[(A, "w"), (A, "emb")])
    step(port, dense(1.0), rows((3, 1.0), (4, 2.0)))
    step(port, dense(2.0), rows((3, 5.0)))
    behind.gate.release(2)
    port.flush()
    w, emb = behind.pushes[1][0]
    np.testing.assert_array_equal(w.value, [3.0, 3.0])
    assert (emb.rows.tolist(), emb.value.tolist()) == ([3, 4], [[6.0], [2.0]])  # type: ignore[union-attr]
    port.complete()


def test_what_was_handed_over_may_change() -> None:
    behind = Behind(open=False)
    port = blocked(behind)
    gradient, pushed = dense(1.0), rows((3, 1.0))
    step(port, gradient, pushed)
    assert pushed.rows is not None
    gradient.value[:], pushed.value[:], pushed.rows[:] = 9.0, 9.0, 9
    behind.gate.release(2)
    port.flush()
    w, emb = behind.pushes[1][0]
    assert (w.value.tolist(), emb.rows.tolist(), emb.value.tolist()) == ([1.0, 1.0], [3], [[1.0]])  # type: ignore[union-attr]
    port.complete()


def test_gradients_that_cannot_be_added_are_not_merged() -> None:
    behind = Behind(open=False)
    port = blocked(behind)
    with ThreadPoolExecutor() as pool:
        step(port, dense(1.0))
        other = pool.submit(step, port, rows((1, 1.0), name="w"))
        behind.gate.release(3)
        other.result(30)
    port.flush()
    assert [steps for _, _, steps in behind.pushes] == [1, 1, 1]
    port.complete()


def test_a_full_queue_makes_the_trainer_wait() -> None:
    behind = Behind(open=False)
    port = blocked(behind, most=2)
    step(port, dense(1.0))
    step(port, dense(2.0))
    with ThreadPoolExecutor() as pool:
        third = pool.submit(step, port, dense(3.0))
        assert not third.done()
        behind.gate.release(3)
        third.result(30)
    port.complete()
    assert [steps for _, _, steps in behind.pushes] == [1, 2, 1]
    assert (port.pushes, port.steps) == (3, 4)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-9, 9), st.lists(st.integers(0, 5), max_size=4)), max_size=30),
    st.integers(1, 5),
    st.sets(st.integers(0, 29)),
)
def test_sums_are_conserved_and_pushes_keep_the_order(
    steps: list[tuple[int, list[int]]], most: int, flushes: set[int]
) -> None:
    behind = Behind()
    port = MergingPort(behind, most, added=[(A, "w"), (A, "emb")])
    for number, (value, ids) in enumerate(steps):
        step(port, dense(value), rows(*((id, value) for id in ids)), Gradient(A, "n", np.array([float(number)])))
        if number in flushes:
            port.flush()
            assert port.steps == number + 1
    port.complete()
    pushed = [{gradient.name: gradient for gradient in gradients} for gradients, _, _ in behind.pushes]
    assert sum(push["w"].value[0] for push in pushed) == sum(value for value, _ in steps)
    totals: Counter[int] = Counter()
    for push in pushed:
        for id, (value,) in zip(push["emb"].rows.tolist(), push["emb"].value, strict=True):  # type: ignore[union-attr]
            totals[id] += value
    wanted: Counter[int] = Counter()
    for value, ids in steps:
        for id in ids:
            wanted[id] += value
    assert totals == wanted
    counted = [count for _, _, count in behind.pushes]
    assert sum(counted) == len(steps)
    assert max(counted, default=0) <= most
    first = 0
    for push, count in zip(pushed, counted, strict=True):  # the mean of consecutive numbers
        assert push["n"].value[0] == first + (count - 1) / 2
        first += count
    assert behind.completed


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_the_next_call_raises_what_went_wrong_naming_the_steps_and_the_trainer_can_go_on() -> None:
    behind = Behind(open=False)
    port = blocked(behind)
    step(port, dense(1.0))
    step(port, dense(2.0))
    behind.gate.release()
    assert behind.arrived.acquire(timeout=30)
    behind.errors = [RequestRefusedError("w is no gradient")]
    behind.gate.release()
    with pytest.raises(RequestRefusedError, match=r"steps 1 to 2, merged in one push: w is no gradient"):
        port.flush()
    port.flush()
    behind.gate.release()
    assert step(port, dense(3.0)).versions == {A: 2}
    port.complete()
    assert [[g.value[0] for g in gradients] for gradients, _, _ in behind.pushes] == [[], [3.0]]


@pytest.mark.parametrize("call", ["commit", "pull", "barrier", "assign", "complete"])
def test_every_call_raises_it(call: str) -> None:
    behind = Behind()
    behind.errors = [ZeroDivisionError("oops")]
    port = MergingPort(behind, 3)
    reply = step(port, dense(1.0))
    calls = {
        "commit": lambda: port.commit([A]),
        "pull": lambda: port.pull([RowRequest(A, "emb", np.array([1]), 1, "float64")]),
        "barrier": lambda: port.barrier([A]),
        "assign": lambda: port.assign(A, "w", np.zeros(2)),
        "complete": port.complete,
    }
    with port._changed:
        assert port._changed.wait_for(lambda: port._failures, 30)
    with pytest.raises(FluidliteError, match="step 0: ZeroDivisionError: oops"):
        calls[call]()
    with pytest.raises(FluidliteError, match="step 0: "):
        _ = reply.versions
    port.complete()
    assert behind.completed


def test_who_waits_for_the_versions_is_told_and_nobody_else() -> None:
    behind = Behind()
    behind.errors = [ServerFailedError("oops")]
    port = MergingPort(behind, 3)
    with pytest.raises(ServerFailedError, match="step 0: oops"):
        _ = step(port, dense(1.0)).versions
    port.flush()
    port.complete()


def test_a_trainer_that_leaves_drops_what_waits() -> None:
    behind = Behind(open=False)
    port = blocked(behind)
    reply = step(port, dense(1.0))
    behind.gate.release()
    port.stop()
    assert len(behind.pushes) == 1
    with pytest.raises(PeerLostError, match="step 1: dropped"):
        _ = reply.versions
    with pytest.raises(FluidliteError, match="closed"):
        port.commit([A])


def test_the_most_must_be_a_step_at_least() -> None:
    with pytest.raises(FluidliteError, match="max_merge_var_num must be at least 1, not 0"):
        MergingPort(Behind(), 0)


# --- what is read ---------------------------------------------------------------------------------------------------


def test_dense_variables_come_with_the_pushes() -> None:
    behind = Behind()
    port = MergingPort(behind, 3)
    request = DenseRequest(A, "w")
    assert port.pull([request])[0] == 0
    assert step(port, dense(1.0)).versions
    port.flush()
    assert port.pull([request])[0] == 1
    assert behind.calls == ["DenseRequest"] * 2, "asked for at first, and after the push"
    port.complete()


def test_tables_current_values_and_barriers_come_after_what_waits() -> None:
    behind = Behind()
    port = MergingPort(behind, 3)
    for request in (TableRequest(A, "emb"), DenseRequest(A, "w", current=True)):
        step(port, dense(1.0))
        before = port.steps
        assert port.pull([request])[0] == len(behind.pushes)
        assert port.steps >= before
        assert port._gathering is None
        assert port._sending is None
    step(port, dense(1.0))
    port.barrier([A])
    assert len(behind.pushes) == 3
    port.complete()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_push_is_applied_once(transport: str) -> None:
    with FakeCluster(transport, servers=2, sync=False) as cluster:
        inner = cluster.port()
        port = MergingPort(inner, 4, added=[(endpoint, "w") for endpoint in cluster.endpoints])
        for value in range(40):
            for endpoint in cluster.endpoints:
                port.stage(Gradient(endpoint, "w", np.full(3, float(value))))
            port.commit(cluster.endpoints)
        port.complete()
        assert [store.values["w"].tolist() for store in cluster.stores] == [[-780.0] * 3] * 2
        assert [len(store.applied) for store in cluster.stores] == [port.pushes] * 2
        assert port.steps == 40


# --- whole jobs -----------------------------------------------------------------------------------------------------


def half_async(most: int = 3) -> fluid.DistributeTranspilerConfig:
    return fluid.DistributeTranspilerConfig(min_block_size=1, sync_mode=False, half_async=True, max_merge_var_num=most)


def marked(job: fluid.LocalCluster) -> fluid.LocalCluster:
    """A job that sends sums, so that integers can be counted."""
    for trainer in job.trainers:
        desc = trainer.main.desc
        for op in desc.root.ops:
            if op.type == "send":
                edit.set_attr(desc, op, "merge_add", Attr(AttrType.BOOLEAN, value=True))
    return job


@pytest.mark.parametrize("kind", ["table", "sparse"])
@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))
def test_every_step_ends_up_on_the_servers_once(
    kind: str, data: st.DataObject, trainers: int, servers: int, most: int
) -> None:
    schedule = data.draw(schedules(kind, trainers))
    programs = Programs(lambda: _counting_net(kind))
    with marked(fluid.LocalCluster(programs.main, programs.startup, servers, trainers, False, half_async(most))) as job:
        for trainer, ids, size in schedule:
            job.trainers[trainer].run(counts(ids, size))
    assert_held(held(job), expected(schedule))


def test_jobs_learn_with_means_too() -> None:
    from tests.test_geo import _target_net

    programs = Programs(_target_net)
    random = np.random.default_rng(1)
    table = random.normal(size=(20, 1))
    with fluid.LocalCluster(programs.main, programs.startup, 2, 2, False, half_async(5)) as job:
        losses = []
        for _ in range(200):
            ids = [random.integers(0, 20, (16, 1)) for _ in range(2)]
            fed = [{"ids": i, "y": table[i[:, 0]] + 3.0} for i in ids]
            losses.append(np.mean([result[0] for result in job.run(fed, programs.loss)]))
    assert np.mean(losses[-10:]) < 0.05 * np.mean(losses[:10])


def test_over_grpc_closing_sends_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.training_jobs.config_of", lambda block, **_: half_async(8))
    job = GrpcCluster(Programs(_counting_net), 2, 2, sync=False)
    for main in job.mains:
        for op in main.desc.root.ops:
            if op.type == "send":
                edit.set_attr(main.desc, op, "merge_add", Attr(AttrType.BOOLEAN, value=True))
    schedule: Schedule = []
    for number in range(20):
        steps = [(t, [number, -t, 40 + number % 2], 1 + t) for t in range(2)]
        job.step([counts(ids, size) for _, ids, size in steps])
        schedule += steps
    job.close()
    assert_held(job.state(), expected(schedule))
