"""Geo training: trainers train by themselves and exchange with servers every few steps."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite import launch as launcher
from fluidlite.core import names
from fluidlite.errors import FluidliteError, OutOfRangeError, RequestRefusedError, TranspileError, UnreachableError
from fluidlite.layers import learning_rate_scheduler as rates
from fluidlite.rpc.port import TrainerPort
from fluidlite.values.local_rows import LocalRows
from tests import geo_process
from tests.test_transpiler_runs import OPTIMIZERS, feeds, wide
from tests.training_jobs import GrpcCluster, Local, Programs, assert_states, by_id, held_state, matrix

Make = Callable[[], Any]


def geo(every: int, **options: Any) -> fluid.DistributeTranspilerConfig:
    return fluid.DistributeTranspilerConfig(
        min_block_size=1, sync_mode=False, geo_sgd_mode=True, geo_sgd_need_push_nums=every, **options
    )


def cluster(programs: Programs, servers: int, trainers: int, every: int, **options: Any) -> fluid.LocalCluster:
    return fluid.LocalCluster(programs.main, programs.startup, servers, trainers, False, geo(every, **options))


def held(job: fluid.LocalCluster) -> dict[str, Any]:
    """What the servers hold."""
    distribution = job.trainers[0].main.distribution
    assert distribution is not None
    return held_state(distribution.plan, job.scopes)


# --- one trainer ----------------------------------------------------------------------------------------------------

SCHEDULES: dict[str, Make] = {
    **OPTIMIZERS,
    "decayed sgd": lambda: fluid.optimizer.SGD(rates.exponential_decay(0.1, 2, 0.5, staircase=True)),
    "lazy adam": lambda: fluid.optimizer.Adam(0.1, lazy_mode=True),
}


@pytest.mark.parametrize("kind", ["dense", "sparse", "table"])
@pytest.mark.parametrize("optimizer", SCHEDULES)
def test_one_trainer_trains_as_without_servers(kind: str, optimizer: str) -> None:
    if kind == "table" and optimizer == "lars":
        pytest.skip("lars needs the norm of a whole parameter")
    programs = Programs(wide(kind, SCHEDULES[optimizer]))
    for servers, every in ((1, 1), (3, 2), (2, 100)):
        local = Local(programs)
        with cluster(programs, servers, 1, every) as job:
            for feed in feeds(5):
                assert job.run([feed], programs.loss)[0] == local.run(feed, [programs.loss])
        assert_states(held(job), local.state(), 1e-12)


def test_servers_are_two_roundings_from_the_only_trainer_after_every_exchange() -> None:
    """Of the gain, and of the sum."""
    programs = Programs(lambda: _float32_net(fluid.optimizer.Adagrad(0.3)))
    random = np.random.default_rng(3)
    with cluster(programs, 2, 1, every=3) as job:
        scope = job.trainers[0].scope
        job.run([{"ids": np.arange(40)[:, None], "x": np.zeros((40, 3), "float32")}])
        before = held(job)
        for _ in range(12):
            ids = random.integers(0, 40, (8, 1))
            job.run([{"ids": ids, "x": random.normal(size=(8, 3)).astype("float32")}])
            if scope.get(names.GEO_STEPS)[0] == 0:
                after = held(job)
                for name in after:
                    value = scope.get(name)
                    own = matrix(by_id(value) if isinstance(after[name], dict) else value)
                    gain = own - matrix(before[name])
                    allowed = (np.spacing(np.abs(gain)) + np.spacing(np.abs(matrix(after[name])))) / 2
                    assert (np.abs(own - matrix(after[name])) <= allowed).all()
                before = after


def _float32_net(optimizer: Any) -> fluid.Variable:
    ids, x = fluid.data("ids", [None, 1], "int64"), fluid.data("x", [None, 3], "float32")
    rows = fluid.layers.embedding(ids, [40, 3], is_distributed=True, param_attr="emb")
    loss = fluid.layers.reduce_sum(fluid.layers.square(fluid.layers.fc(rows * x, 2, param_attr="w") - 1.0))
    optimizer.minimize(loss)
    return loss


# --- several trainers -----------------------------------------------------------------------------------------------


def test_two_trainers_learn_and_agree() -> None:
    programs = Programs(_target_net)
    random = np.random.default_rng(1)
    table = random.normal(size=(20, 1))
    with cluster(programs, 2, 2, every=4) as job:
        losses = []
        for _ in range(160):
            ids = [random.integers(0, 20, (16, 1)) for _ in range(2)]
            fed = [{"ids": i, "y": table[i[:, 0]] + 3.0} for i in ids]
            losses.append(np.mean([result[0] for result in job.run(fed, programs.loss)]))
    assert np.mean(losses[-10:]) < 0.02 * np.mean(losses[:10])
    state = held(job)
    learned = np.array([state["emb"][id] for id in range(20)]) + state["b"]
    np.testing.assert_allclose(learned, table + 3.0, atol=0.2)
    for trainer in job.trainers:
        own = by_id(trainer.scope.get("emb"))
        np.testing.assert_allclose(matrix(own) + trainer.scope.get("b"), learned, atol=0.2)


def _target_net() -> fluid.Variable:
    """Learns a number per id, and one for all."""
    ids, y = fluid.data("ids", [None, 1], "int64"), fluid.data("y", [None, 1], "float64")
    rows = fluid.layers.embedding(ids, [20, 1], is_distributed=True, param_attr="emb", dtype="float64")
    bias = fluid.layers.create_parameter([1], "float64", attr="b")
    loss = fluid.layers.reduce_mean(fluid.layers.square(rows + bias - y))
    fluid.optimizer.SGD(0.2).minimize(loss)
    return loss


def test_a_trainer_gets_what_others_did_to_rows_that_it_uses_again() -> None:
    with cluster(Programs(_counting_net), 1, 2, every=1) as job:
        first, second = job.trainers
        first.run(counts([7]))
        second.run(counts([8, 7]))
        assert by_id(second.scope.get("emb"))[7][0] == -1.5  # half of the first one's 1, and its own
        first.run(counts([8]))
        assert by_id(first.scope.get("emb"))[8][0] == -1.5
        assert by_id(first.scope.get("emb"))[7][0] == -1.0, "a row that is not used is not fetched again"


# --- nothing is lost, nothing counts twice --------------------------------------------------------------------------


def _counting_net(kind: str = "table") -> fluid.Variable:
    """Each step takes the fed numbers off the rows of its ids, and their sum off a weight: all integers."""
    ids, size = fluid.data("ids", [None, 1], "int64"), fluid.data("size", [None, 1], "float64")
    zeros = fluid.initializer.Constant(0.0)
    rows = fluid.layers.embedding(
        ids, [50, 1], is_sparse=True, is_distributed=kind == "table", param_attr=fluid.ParamAttr("emb", zeros), dtype="float64"
    )  # fmt: skip
    weight = fluid.layers.create_parameter([1], "float64", attr=fluid.ParamAttr("w", zeros))
    loss = fluid.layers.reduce_sum((rows + weight) * size)
    fluid.optimizer.SGD(1.0).minimize(loss)
    return loss


def counts(ids: Sequence[int], size: int = 1) -> dict[str, Any]:
    fed = np.array(ids, np.int64).reshape(-1, 1)
    return {"ids": fed, "size": np.full(fed.shape, float(size))}


Schedule = list[tuple[int, list[int], int]]
IDS = {
    "table": st.sampled_from([0, 1, 2, 3, 49, 50, -1, -(2**63), 2**63 - 1, 2**53 + 1]),
    "sparse": st.sampled_from([0, 1, 2, 24, 25, 26, 49]),
}


def schedules(kind: str, trainers: int) -> st.SearchStrategy[Schedule]:
    """Whose step is next, its ids, and what it takes off each."""
    step = st.tuples(st.integers(0, trainers - 1), st.lists(IDS[kind], max_size=5), st.integers(-9, 9))
    return st.lists(step, max_size=25)


def expected(schedule: Schedule) -> Counter[int | str]:
    """What must be held in the end, less zeros."""
    totals: Counter[int | str] = Counter()
    for _, ids, size in schedule:
        for id in ids:
            totals[id] -= size
            totals["w"] -= size
    return totals


def assert_held(state: Mapping[str, Any], totals: Mapping[int | str, int]) -> None:
    emb = state["emb"] if isinstance(state["emb"], dict) else dict(enumerate(state["emb"]))
    assert {id: row[0] for id, row in emb.items() if row[0]} == {k: v for k, v in totals.items() if k != "w" and v}
    assert state["w"][0] == totals.get("w", 0)


@pytest.mark.parametrize("kind", ["table", "sparse"])
@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from([1, 2, 4]), st.integers(1, 3), st.integers(1, 4))
def test_every_step_ends_up_on_the_servers_once(
    kind: str, data: st.DataObject, trainers: int, servers: int, every: int
) -> None:
    schedule = data.draw(schedules(kind, trainers))
    with cluster(Programs(lambda: _counting_net(kind)), servers, trainers, every) as job:
        for trainer, ids, size in schedule:
            job.trainers[trainer].run(counts(ids, size))
    assert_held(held(job), expected(schedule))


def test_trainers_at_the_same_time_lose_nothing() -> None:
    random = np.random.default_rng(5)
    schedule: Schedule = []
    with cluster(Programs(_counting_net), 2, 4, every=3) as job:
        for _ in range(25):
            steps = [(t, random.integers(-3, 6, 4).tolist(), int(random.integers(1, 5))) for t in range(4)]
            job.run([counts(ids, size) for _, ids, size in steps])
            schedule += steps
    assert_held(held(job), expected(schedule))


class Failing:
    """Makes one call of a trainer's port fail, before or after it did its work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str, when: str, skip: int = 0) -> None:
        real = getattr(TrainerPort, method)
        self.left = 1

        def call(port: TrainerPort, *args: Any, **options: Any) -> Any:
            nonlocal skip
            skip -= 1
            if self.left and skip < 0 and when == "before":
                self.left = 0
                raise UnreachableError("cut")
            answer = real(port, *args, **options)
            if self.left and skip < 0:
                self.left = 0
                if method == "commit":
                    assert answer.versions
                raise UnreachableError("cut")
            return answer

        monkeypatch.setattr(TrainerPort, method, call)


@pytest.mark.parametrize(("method", "when"), [("pull", "before"), ("pull", "after"), ("commit", "before")])
@pytest.mark.parametrize("skip", range(3))
def test_an_exchange_that_fails_half_way_is_made_up_for(
    monkeypatch: pytest.MonkeyPatch, method: str, when: str, skip: int
) -> None:
    schedule: Schedule = [(0, [1, 2, -1], 3), (0, [2, 4], 1), (0, [1], 2), (0, [9], 5), (0, [9, 1], 1)]
    with cluster(Programs(_counting_net), 2, 1, every=1) as job:
        failing = Failing(monkeypatch, method, when, skip)
        done: Schedule = []
        for step in schedule:
            try:
                job.trainers[0].run(counts(step[1], step[2]))
            except UnreachableError:
                if by_id(job.trainers[0].scope.get("emb")).get(step[1][0], [0])[0] == expected(done)[step[1][0]]:
                    continue  # it failed before the step took place
            done.append(step)
        assert not failing.left
    assert_held(held(job), expected(done))


def test_closing_sends_what_is_left_and_a_lost_trainer_does_not() -> None:
    with cluster(Programs(_counting_net), 2, 1, every=100) as job:
        job.trainers[0].run(counts([3, 3, 4]))
        assert held(job)["w"][0] == 0
    assert_held(held(job), {3: -2, 4: -1, "w": -3})
    job = cluster(Programs(_counting_net), 2, 1, every=100)
    executor = job.trainers[0].executor
    executor.__enter__()
    job.trainers[0].run(counts([3, 3, 4]))
    executor.__exit__(FluidliteError)
    job.close()
    assert held(job)["w"][0] == 0


def test_closing_without_a_step_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(Programs(_counting_net), 2, 2, every=3) as job:
        monkeypatch.setattr(TrainerPort, "commit", None)
    assert_held(held(job), {})


# --- rows -----------------------------------------------------------------------------------------------------------


def test_new_rows_start_as_on_the_servers_and_padding_has_none() -> None:
    def net() -> fluid.Variable:
        ids = fluid.data("ids", [None, 1], "int64")
        init = fluid.initializer.Uniform(-1.0, 1.0, seed=4)
        attr = fluid.ParamAttr("emb", init)
        rows = fluid.layers.embedding(ids, [9, 3], is_distributed=True, padding_idx=5, param_attr=attr, dtype="float64")
        loss = fluid.layers.reduce_sum(rows)
        fluid.optimizer.SGD(0.0).minimize(loss)
        return rows

    programs = Programs(net)
    fed = {"ids": np.array([[2**63 - 1], [5], [-1], [0], [-1]])}
    local = Local(programs)
    with cluster(programs, 3, 2, every=2) as job:
        for trainer in job.trainers:
            (rows,) = trainer.run(fed, programs.loss)
            np.testing.assert_array_equal(rows, local.run(fed, [programs.loss])[0])
        assert job.trainers[0].run({"ids": np.zeros((0, 1), np.int64)}, programs.loss)[0].shape == (0, 3)
        assert sorted(held(job)["emb"]) == [-1, 0, 2**63 - 1]


def test_only_missing_rows_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    real = TrainerPort.pull

    def pull(port: TrainerPort, requests: Sequence[Any]) -> list[Any]:
        asked.extend(request.ids.tolist() for request in requests if hasattr(request, "ids"))
        return real(port, requests)

    with cluster(Programs(_counting_net), 1, 1, every=100) as job:
        monkeypatch.setattr(TrainerPort, "pull", pull)
        for ids in ([4, 4, 9], [9, 4], [9, 1, 4, 1]):
            job.trainers[0].run(counts(ids))
        assert asked == [[4, 9], [1]]


def test_an_id_outside_a_matrix_is_named() -> None:
    with (
        cluster(Programs(lambda: _counting_net("sparse")), 2, 1, every=1) as job,
        pytest.raises(OutOfRangeError, match=r"id 50 at position 1 of 'ids' is outside 'emb', which has rows 0 to 49"),
    ):
        job.trainers[0].run(counts([3, 50]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 6), max_size=6), st.integers(-5, 5), st.booleans()), max_size=20))
def test_local_rows_keep_apart_what_is_sent_and_what_is_not(steps: list[tuple[list[int], int, bool]]) -> None:
    """Against one server as a plain dictionary; half of each gain is sent."""
    from fluidlite.values.initial import Constant
    from fluidlite.values.selected_rows import SelectedRows
    from fluidlite.values.sparse_table import SparseTable

    table = SparseTable("t", 1, "float64", Constant(0.0))
    rows, server, total = LocalRows(table), dict.fromkeys(range(7), 10.0), dict.fromkeys(range(7), 10.0)

    def values(ids: Any) -> Any:
        return SelectedRows(ids, np.array([[server[int(id)]] for id in ids]).reshape(-1, 1), 0)

    def exchange(share: float, last: bool = False) -> None:
        deltas = rows.exchange(values(rows.begin(last)), share)
        for id, (delta,) in zip(deltas.rows.tolist(), deltas.value, strict=True):
            server[id] += delta
        rows.sent()

    for given_ids, gain, exchanges in steps:
        ids = np.array(given_ids, np.int64)
        missing = rows.touch(ids)
        assert sorted(missing.tolist()) == sorted(set(missing.tolist()))
        rows.insert(values(missing))
        for id in set(given_ids):
            table.load(SelectedRows(np.array([id]), table.lookup(np.array([id])) + gain, 0))
            total[id] += gain
        if exchanges:
            server[0] += 1.0
            total[0] += 1.0
            exchange(0.5)
    exchange(1.0, last=True)
    assert server == total
    assert len(rows) == len(table)


# --- with the rest --------------------------------------------------------------------------------------------------


def test_loaded_values_are_trained_on_and_not_sent_back(tmp_path: Path) -> None:
    programs = Programs(_counting_net)
    with cluster(programs, 1, 1, every=2) as job:
        for _ in range(2):
            job.trainers[0].run(counts([3, 8]))
        trainer = job.trainers[0]
        with fluid.scope_guard(trainer.scope):
            fluid.io.save_persistables(trainer.executor, tmp_path, trainer.main)
    with cluster(programs, 3, 1, every=2) as job:
        trainer = job.trainers[0]
        trainer.run(counts([3, 4]))
        with fluid.scope_guard(trainer.scope):
            fluid.io.load_persistables(trainer.executor, tmp_path, trainer.main)
        trainer.run(counts([3]))
        assert by_id(trainer.scope.get("emb"))[3][0] == -3.0
    assert_held(held(job), {3: -3, 8: -2, "w": -5})


def test_a_test_program_sees_the_servers_rows() -> None:
    programs = Programs(_counting_net)
    test = programs.main.clone(for_test=True)
    with cluster(programs, 2, 1, every=100) as job:
        job.trainers[0].run(counts([3]))
        (loss,) = job.trainers[0].run(counts([3, 77]), programs.loss, program=job.get_test_program(test))
        assert loss == -2.0  # the weight is this trainer's, twice; the rows are the servers', still zero
        assert 77 not in held(job)["emb"]


def test_what_does_not_go_with_it_is_refused() -> None:
    programs = Programs(_counting_net)
    for options, reason in (
        ({"rows_wire_dtype": "float16"}, "rows_wire_dtype rounds what travels"),
        ({"gradients_wire_dtype": "bfloat16"}, "gradients_wire_dtype rounds what travels"),
        ({"dense_on_trainer": True}, "geo_sgd_mode does so by itself"),
    ):
        with pytest.raises(TranspileError, match=reason):
            cluster(programs, 1, 1, 1, **options)

    def taken() -> fluid.Variable:
        loss = _counting_net()
        fluid.default_main_program().global_block().create_var("emb.geo_rows", "float32", [1])
        return loss

    with pytest.raises(TranspileError, match=r"variable 'emb.geo_rows', a name that geo_sgd_mode needs"):
        cluster(Programs(taken), 1, 1, 1)


def test_a_delta_that_is_refused_stays_with_the_trainer() -> None:
    with cluster(Programs(_counting_net), 1, 1, every=1, nan_policy="error") as job:
        trainer = job.trainers[0]
        trainer.run(counts([3]))
        good = trainer.scope.get("w").copy()
        trainer.scope.get("w")[0] = np.nan
        with pytest.raises(RequestRefusedError, match="not finite"):
            trainer.run(counts([3]))
        trainer.scope.set("w", good - 1.0)
        trainer.run(counts([3]))
    assert_held(held(job), {3: -3, "w": -3})


# --- over the network -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "servers"), [("table", 2), ("sparse", 1)])
def test_over_grpc(monkeypatch: pytest.MonkeyPatch, kind: str, servers: int) -> None:
    monkeypatch.setattr("tests.training_jobs.config_of", lambda block, **_: geo(3))
    job = GrpcCluster(Programs(lambda: _counting_net(kind)), servers, 2, sync=False)
    schedule: Schedule = []
    for step in range(10):
        steps = [(t, [step, 20 + t, 40 + step % 2], 1 + t) for t in range(2)]
        job.step([counts(ids, size) for _, ids, size in steps])
        schedule += steps
    job.close()
    assert_held(job.state(), expected(schedule))


@pytest.fixture
def shown(tmp_path: Path) -> list[str]:
    command = [sys.executable, "-m", "tests.geo_process"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])}
    job = launcher.Job(command, 2, 2, tmp_path / "logs", env)
    launcher.run_job(job, lambda worker, line: None)
    return [line for path in sorted((tmp_path / "logs").iterdir()) for line in path.read_text().splitlines()]


def test_processes(shown: list[str]) -> None:
    held: dict[str, float] = {}
    for line in shown:
        if line.startswith("held "):
            held |= json.loads(line.removeprefix("held "))
    totals: Counter[str] = Counter()
    for trainer in range(2):
        for own, *others in geo_process.IDS[1:]:
            for id in (own + trainer, *others):
                totals[str(id)] -= 1
                totals["w"] -= 1
    assert held == totals
