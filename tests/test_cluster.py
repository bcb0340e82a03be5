"""LocalCluster: a job in one process."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import FeedError, FetchError, FluidliteError, PeerLostError, ProgramError, UninitializedError
from tests.frontend import fresh_programs

Programs = tuple[fluid.Program, fluid.Program, str]


@pytest.fixture
def programs() -> Iterator[Programs]:
    with fresh_programs():
        ids = fluid.data("ids", [None, 1], "int64")
        rows = fluid.layers.embedding(ids, [100, 4], is_sparse=True, is_distributed=True, param_attr="emb")
        loss = fluid.layers.mean(fluid.layers.fc(rows, 2))
        fluid.optimizer.Adagrad(0.1).minimize(loss)
        yield fluid.default_main_program(), fluid.default_startup_program(), loss.name


def feed(*ids: int) -> dict[str, np.ndarray]:
    return {"ids": np.array(ids, np.int64).reshape(-1, 1)}


def test_every_trainer_runs_a_step_and_the_given_programs_stay_as_they_were(programs: Programs) -> None:
    main, startup, loss = programs
    before = str(main), str(startup)
    with fluid.LocalCluster(main, startup, pservers=2, trainers=3) as cluster:
        results = cluster.run([feed(1, 2), feed(3), feed()], loss)
        assert [len(result) for result in results] == [1, 1, 1]
        assert [service.live for service in cluster.services.values()] == [(0, 1, 2)] * 2
    assert (str(main), str(startup)) == before


def test_a_trainer_that_fails_leaves_and_the_others_go_on(programs: Programs) -> None:
    main, startup, loss = programs
    with fluid.LocalCluster(main, startup, pservers=2, trainers=2) as cluster:
        with pytest.raises(UninitializedError, match=r"'ids'.*not in the feed"):
            cluster.run([feed(1), {}], loss)
        assert len(cluster.trainers[0].run(feed(5), loss)) == 1
        with pytest.raises(PeerLostError):
            cluster.trainers[1].run(feed(5), loss)


def test_wrong_feeds_and_fetches_are_refused_before_anyone_starts(programs: Programs) -> None:
    main, startup, loss = programs
    with fluid.LocalCluster(main, startup, pservers=2, trainers=2) as cluster:
        with pytest.raises(FeedError, match="idz"):
            cluster.run([feed(1), {"idz": np.zeros((1, 1), np.int64)}], loss)
        with pytest.raises(FetchError, match="oops"):
            cluster.run([feed(1), feed(2)], [loss, "oops"])
        assert len(cluster.run([feed(1), feed(2)], loss)) == 2


def test_a_test_program_reads_the_servers_and_makes_no_rows(programs: Programs) -> None:
    main, startup, loss = programs
    test = main.clone(for_test=True)
    with fluid.LocalCluster(main, startup, pservers=2) as cluster:
        before = cluster.trainers[0].run(feed(3), loss)
        with pytest.raises(UninitializedError, match="get_test_program"):
            cluster.trainers[0].run(feed(3), loss, program=test)
        lowered = cluster.get_test_program(test)
        after = cluster.trainers[0].run(feed(3, 99), loss, program=lowered)
        assert before[0].shape == after[0].shape == (1,)
        assert sum(len(scope.get("emb")) for scope in cluster.scopes.values()) == 1


def test_an_error_is_raised_when_all_trainers_have_ended(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    main, startup, _ = programs
    with fluid.LocalCluster(main, startup, trainers=2) as cluster:
        failed, ended = threading.Event(), []

        def fail(*_: object) -> list[object]:
            failed.set()
            raise FluidliteError("first")

        def end(*_: object) -> list[object]:
            assert failed.wait(20)
            ended.append(True)
            return []

        monkeypatch.setattr(cluster.trainers[0], "step", fail)
        monkeypatch.setattr(cluster.trainers[1], "step", end)
        with pytest.raises(FluidliteError, match="first"):
            cluster.run([feed(1), feed(2)])
        assert ended


def test_wrong_use_is_refused(programs: Programs) -> None:
    main, startup, loss = programs
    with fluid.LocalCluster(main, startup, trainers=2) as cluster:
        with pytest.raises(FluidliteError, match="2 trainers need a feed each, not 1"):
            cluster.run([feed(1)], loss)
        transpiler = fluid.DistributeTranspiler()
        transpiler.transpile(0, main.clone(), "127.0.0.1:0", startup_program=startup.clone())
        server = transpiler.get_pserver_program("127.0.0.1:0")
        with pytest.raises(ProgramError, match="do not run a pserver program by its trainers"):
            cluster.trainers[0].run(program=server)


def test_an_executor_is_one_trainer(programs: Programs) -> None:
    main, startup, _ = programs
    with fluid.LocalCluster(main, startup, trainers=2) as cluster:
        first, second = cluster.trainers
        with pytest.raises(ProgramError, match="this executor is trainer 0"):
            first.executor.run(second.main, feed(1), scope=first.scope)
