"""Checkpoints as scripts use them: ask for one, load it into one process, wait for new ones, evaluate beside training."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.checkpoint.catalogue import Catalogue
from fluidlite.checkpoint.source import open_checkpoint
from fluidlite.checkpoint.storage import open_folder
from fluidlite.checkpoint.writer import CheckpointWriter
from fluidlite.errors import (
    CorruptFileError,
    DataError,
    MissingFileError,
    ProgramError,
    RequestRefusedError,
    ServerFailedError,
    ShapeError,
    TableError,
    UninitializedError,
)
from fluidlite.framework import Program
from tests.checkpoint_host import make_host, save
from tests.evaluation_process import ASKED, STEPS, Process, job
from tests.frontend import fresh_programs
from tests.job_process import resume

IDS = np.array([[3], [2**62], [-5], [3], [8]], np.int64)
FEED = {"ids": IDS, "words": np.array([[1], [5], [0], [1], [6]]), "y": np.ones((5, 1), np.float32)}
#: with ids that nobody trained
UNKNOWN = {**FEED, "ids": np.array([[3], [77], [-5], [2**63 - 1], [8]])}


@pytest.fixture(autouse=True)
def _own_programs() -> Iterator[None]:
    with fresh_programs():
        yield


def build(width: int = 4, optimizer: Any = None) -> SimpleNamespace:
    """A table, a sparse parameter that is fetched by row, dense layers that are cut, a metric with state, a clone for tests."""
    ids, words = fluid.data("ids", [None, 1], "int64"), fluid.data("words", [None, 1], "int64")
    uniform = fluid.initializer.Uniform(-1.0, 1.0, seed=3)
    table = fluid.layers.embedding(
        ids,
        [10**9, width],
        is_sparse=True,
        is_distributed=True,
        param_attr=fluid.ParamAttr(name="emb", initializer=uniform),
    )
    sparse = fluid.layers.embedding(words, [7, 3], is_sparse=True, param_attr=fluid.ParamAttr(name="words_w"))
    hidden = fluid.layers.fc(fluid.layers.concat([table, sparse], axis=1), 6, act="tanh")
    predict = fluid.layers.fc(hidden, 1, act="sigmoid")
    y = fluid.data("y", [None, 1])
    fluid.layers.auc(fluid.layers.concat([1.0 - predict, predict], axis=1), fluid.layers.cast(y, "int64"))
    test = fluid.default_main_program().clone(for_test=True)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(predict, y))
    (optimizer or fluid.optimizer.Adam(fluid.layers.exponential_decay(0.1, 2, 0.5))).minimize(loss)
    fluid.default_startup_program().random_seed = 5
    return SimpleNamespace(predict=predict, loss=loss, test=test)


def cluster(folder: Path | str = "", pservers: int = 2, trainers: int = 1, sync: bool = True, **keeping: Any) -> Any:
    config = fluid.DistributeTranspilerConfig(checkpoint_dir=str(folder), **keeping)
    config.min_block_size = 1
    programs = fluid.default_main_program(), fluid.default_startup_program()
    return fluid.LocalCluster(*programs, pservers, trainers, sync, config)


def ask(job: Any, trainer: int = 0) -> int:
    return fluid.io.save_checkpoint(job.trainers[trainer].executor, job.trainers[trainer].main)


def evaluated(net: SimpleNamespace, folder: Path | str, number: int | None = None, feed: Any = UNKNOWN) -> Any:
    """What another process would compute from a checkpoint."""
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        fluid.io.load_checkpoint(exe, folder, net.test, number)
        before = len(fluid.global_scope().get("emb"))
        predicted = exe.run(net.test, feed, [net.predict])[0]
        assert len(fluid.global_scope().get("emb")) == before, "evaluation makes no rows"
        return predicted


def predicted_by(job: Any, net: SimpleNamespace, feed: Any = UNKNOWN) -> Any:
    """What a trainer computes by asking the servers."""
    return job.trainers[0].run(feed, [net.predict], program=job.get_test_program(net.test))[0]


# --- asking for one ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pservers", [1, 3])
def test_what_a_job_is_asked_to_save_is_what_it_is(pservers: int, tmp_path: Path) -> None:
    net = build()
    with cluster(tmp_path, pservers) as job:
        expected = {}
        for _ in range(3):
            job.run([FEED])
            expected[ask(job)] = predicted_by(job, net)
        assert list(expected) == [1, 2, 3]
        for number, values in expected.items():
            np.testing.assert_array_equal(evaluated(net, tmp_path, number), values)


def test_all_trainers_that_ask_at_one_version_get_one_checkpoint(tmp_path: Path) -> None:
    build()
    with cluster(tmp_path, trainers=2) as job:
        job.run([FEED, FEED])
        assert (ask(job, 0), ask(job, 1)) == (1, 1)
        files = sorted(path.name for path in tmp_path.glob("*/*.dense"))
        assert len(files) == 2, "one of each server"


def test_what_was_assigned_since_is_saved_again(tmp_path: Path) -> None:
    net = build()
    with cluster(tmp_path) as job:
        trainer = job.trainers[0]
        job.run([FEED])
        with fluid.scope_guard(trainer.scope):
            fluid.io.save_persistables(trainer.executor, tmp_path / "files", trainer.main)
            job.run([FEED])
            first = ask(job)
            fluid.io.load_persistables(trainer.executor, tmp_path / "files", trainer.main)
        assert ask(job) == first == 2
        np.testing.assert_array_equal(evaluated(net, tmp_path), predicted_by(job, net))


def test_checkpoints_that_are_asked_for_fit_among_those_of_the_schedule(tmp_path: Path) -> None:
    net = build()
    with cluster(tmp_path, checkpoint_every=2, checkpoint_full_every=3, checkpoint_keep_max=0) as job:
        expected = {}
        for step in range(1, 8):
            job.run([FEED])
            if step in {2, 3, 5}:
                assert ask(job) == step
            expected[step] = predicted_by(job, net)
        assert ask(job) == 7
    for number in (2, 3, 4, 5, 6, 7):
        np.testing.assert_array_equal(evaluated(net, tmp_path, number), expected[number])


def test_in_async_mode_all_servers_give_it_one_number(tmp_path: Path) -> None:
    """Another trainer's step comes to one server before the question, to the other behind it."""
    net = build()
    with cluster(tmp_path, trainers=2, sync=False) as job:
        job.run([FEED, FEED])
        service = next(iter(job.services.values()))
        begin = service.checkpoint

        def step_behind(*args: Any) -> Any:
            written = begin(*args)
            job.trainers[1].run(FEED)
            job.trainers[1].executor.ports.server(None).versions(list(job.services))
            return written

        service.checkpoint = step_behind
        assert ask(job) == 2
        assert open_checkpoint(tmp_path, 2).versions == {0: 2, 1: 3}
        service.checkpoint = begin
        assert ask(job) == 3
        job.trainers[0].run(FEED)
        assert ask(job) == 4
        np.testing.assert_array_equal(evaluated(net, tmp_path), predicted_by(job, net))


def test_steps_that_a_half_async_trainer_has_handed_over_are_in_it(tmp_path: Path) -> None:
    build()
    config = fluid.DistributeTranspilerConfig(checkpoint_dir=str(tmp_path))
    config.half_async = True
    programs = fluid.default_main_program(), fluid.default_startup_program()
    with fluid.LocalCluster(*programs, pservers=2, sync=False, config=config) as job:
        for _ in range(5):
            job.run([FEED])
        number = ask(job)
        port = job.trainers[0].executor.ports.server(None)
        assert port.steps == 5
        assert open_checkpoint(tmp_path).versions == {0: number, 1: number}
        assert set(port._port.versions(list(job.services)).values()) == {number}


def test_servers_without_checkpoints_refuse(tmp_path: Path) -> None:
    build()
    with cluster() as job:
        with pytest.raises(
            RequestRefusedError, match="keeps no checkpoints; give DistributeTranspilerConfig a checkpoint_dir"
        ):
            ask(job)
        job.run([FEED])
    with cluster(log_dir=str(tmp_path)) as job, pytest.raises(RequestRefusedError, match="keeps no checkpoints"):
        ask(job)


def test_a_checkpoint_that_cannot_be_written_is_an_error_and_the_next_one_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build()
    with cluster(tmp_path) as job:
        job.run([FEED])
        with monkeypatch.context() as broken:

            def fail(self: CheckpointWriter, cut: Any) -> Any:
                cut.close()
                raise MissingFileError("the disk is gone")

            broken.setattr(CheckpointWriter, "write", fail)
            with pytest.raises(ServerFailedError, match="checkpoint 1 is not written: the disk is gone"):
                ask(job)
        assert ask(job) == 1
        assert not Catalogue(open_folder(tmp_path)).problems(Catalogue(open_folder(tmp_path)).checkpoint(1))


def test_only_a_trainer_can_ask(tmp_path: Path) -> None:
    build()
    with pytest.raises(ProgramError, match="only servers write checkpoints"):
        fluid.io.save_checkpoint(fluid.Executor())
    with cluster(tmp_path) as job, pytest.raises(ProgramError, match="needs the executor that runs it"):
        fluid.io.save_checkpoint(None, job.trainers[0].main)


def notify(job: Any, folder: str) -> Program:
    program = Program()
    with fluid.program_guard(program):
        attrs = {"epmap": list(job.services), "dir": folder, "lookup_table": "", "trainer_id": 0}
        program.global_block().append_op("checkpoint_notify", {}, {}, attrs)
    return program


def test_the_op_checkpoint_notify_saves(tmp_path: Path) -> None:
    net = build()
    with cluster(tmp_path) as job:
        job.run([FEED])
        job.trainers[0].run(program=notify(job, str(tmp_path)))
        np.testing.assert_array_equal(evaluated(net, tmp_path, 1), predicted_by(job, net))
        with pytest.raises(RequestRefusedError, match=r"keeps its checkpoints in .*, not in 'elsewhere'"):
            job.trainers[0].run(program=notify(job, "elsewhere"))


def test_a_cluster_goes_on_from_its_last_checkpoint_with_other_servers(tmp_path: Path) -> None:
    net = build()
    with cluster(trainers=2) as job:
        expected = [job.run([FEED, UNKNOWN], [net.loss]) for _ in range(4)]
    losses = []
    for pservers in (2, 3):
        with cluster(tmp_path, pservers, trainers=2) as job:
            losses += [job.run([FEED, UNKNOWN], [net.loss]) for _ in range(2)]
    np.testing.assert_array_equal(losses, expected)
    assert list(fluid.io.watch_checkpoints(tmp_path, timeout=0)) == [2, 4], "one at each end"


# --- loading one ------------------------------------------------------------------------------------------------------


def test_a_local_run_goes_on_from_a_checkpoint_of_servers(tmp_path: Path) -> None:
    """Accumulators, schedule counters and learning rates come with it."""
    net = build()
    with cluster(tmp_path, 3) as job:
        for _ in range(3):
            job.run([FEED])
        ask(job)
        expected = [job.run([FEED], [net.loss])[0][0] for _ in range(2)]
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        assert fluid.io.load_checkpoint(exe, tmp_path, number=3) == 3
        actual = [exe.run(feed=FEED, fetch_list=[net.loss])[0] for _ in range(2)]
    np.testing.assert_array_equal(actual, expected)


def test_each_load_replaces_the_one_before(tmp_path: Path) -> None:
    """A later checkpoint, then an earlier one, whose table has fewer rows."""
    net = build()
    with cluster(tmp_path, checkpoint_keep_max=0) as job:
        expected = {}
        for feed in (FEED, UNKNOWN):
            job.run([feed])
            expected[ask(job)] = predicted_by(job, net)
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        for number in (1, 2, 1):
            assert fluid.io.load_checkpoint(exe, tmp_path / f"checkpoint-{number:09}", net.test) == number
            np.testing.assert_array_equal(exe.run(net.test, UNKNOWN, [net.predict])[0], expected[number])


def test_accumulators_that_a_test_program_does_not_declare_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net = build()
    with cluster(tmp_path) as job:
        job.run([FEED])
        ask(job)
    caplog.clear()
    with fluid.scope_guard(fluid.Scope()), caplog.at_level(logging.INFO, logger="fluidlite"):
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        fluid.io.load_checkpoint(exe, tmp_path, net.test)
        assert fluid.global_scope().get("emb").columns == ()
    assert caplog.text == ""


def test_what_trainers_keep_to_themselves_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = fluid.data("x", [None, 2])
    out = fluid.layers.fc(fluid.layers.batch_norm(x), 1)
    test = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(out))
    with cluster(tmp_path) as job:
        job.run([{"x": np.ones((2, 2), np.float32)}])
        ask(job)
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        fluid.io.load_checkpoint(exe, tmp_path, test)
    assert "checkpoint 1 has no 'batch_norm_0.w_1', 'batch_norm_0.w_2', which stay(s) as it is" in caplog.text


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    net = build()
    exe = fluid.Executor()
    with cluster(tmp_path / "job") as job:
        job.run([FEED])
        ask(job)
        with pytest.raises(ProgramError, match="this program was transpiled"):
            fluid.io.load_checkpoint(exe, tmp_path / "job", job.trainers[0].main)
    with fluid.scope_guard(fluid.Scope()):
        with pytest.raises(UninitializedError, match="run the startup program first"):
            fluid.io.load_checkpoint(exe, tmp_path / "job", net.test)
        exe.run(fluid.default_startup_program())
        with pytest.raises(MissingFileError, match="no good checkpoint"):
            fluid.io.load_checkpoint(exe, tmp_path / "nothing", net.test)
        with pytest.raises(MissingFileError, match="no checkpoint 7"):
            fluid.io.load_checkpoint(exe, tmp_path / "job", net.test, number=7)
        save(tmp_path / "other", make_host([1]))
        with pytest.raises(ProgramError, match=r"has no 'fc_0.b_0', .* is it of another model"):
            fluid.io.load_checkpoint(exe, tmp_path / "other", net.test)
        for file in (tmp_path / "job").glob("*/*.rows"):
            file.write_bytes(file.read_bytes()[:-1] + b"x")
        with pytest.raises(CorruptFileError):
            fluid.io.load_checkpoint(exe, tmp_path / "job", net.test, number=1)


@pytest.mark.parametrize(("width", "error"), [(5, TableError), (4, ShapeError)])
def test_a_model_of_another_shape_is_refused(width: int, error: type[Exception], tmp_path: Path) -> None:
    build()
    with cluster(tmp_path) as job:
        job.run([FEED])
        ask(job)
    with fresh_programs():
        ids = fluid.data("ids", [None, 1], "int64")
        rows = fluid.layers.embedding(ids, [9, width], is_distributed=True, param_attr="emb")
        if error is ShapeError:
            fluid.layers.fc(rows, 9)
        with fluid.scope_guard(fluid.Scope()):
            exe = fluid.Executor()
            exe.run(fluid.default_startup_program())
            with pytest.raises(error):
                fluid.io.load_checkpoint(exe, tmp_path)


# --- waiting for them -------------------------------------------------------------------------------------------------


def written(url: str | Path, number: int, servers: int = 1, server: int = 0, writer: Any = None) -> None:
    save(url, make_host([number]), number, writer or CheckpointWriter(url, server, servers))


@pytest.mark.parametrize("url", ["", "memory://watched"])
def test_each_whole_checkpoint_comes_once_in_order(url: str, tmp_path: Path) -> None:
    url = url or str(tmp_path / "not there yet")
    assert list(fluid.io.watch_checkpoints(url, timeout=0)) == []
    for number in (3, 5):
        written(url, number)
    found = fluid.io.watch_checkpoints(url, timeout=0)
    assert next(found) == 3
    written(url, 8)
    assert next(found) == 5
    assert next(found) == 8
    assert list(found) == []
    assert list(fluid.io.watch_checkpoints(url, after=5, timeout=0)) == [8]
    assert list(fluid.io.watch_checkpoints(url, newest=True, timeout=0)) == [8]


def test_a_checkpoint_counts_for_watchers_when_all_servers_wrote_it(tmp_path: Path) -> None:
    written(tmp_path, 1, servers=2, server=0)
    assert list(fluid.io.watch_checkpoints(tmp_path, timeout=0)) == []
    written(tmp_path, 1, servers=2, server=1)
    assert list(fluid.io.watch_checkpoints(tmp_path, timeout=0)) == [1]


def test_those_that_were_removed_meanwhile_are_passed_over(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, keep_max=1)
    save(tmp_path, make_host([1]), 1, writer)
    found = fluid.io.watch_checkpoints(tmp_path, timeout=0)
    assert next(found) == 1
    for number in (2, 3):
        writer = CheckpointWriter(tmp_path, keep_max=1)
        save(tmp_path, make_host([number]), number, writer)
    assert list(found) == [3]


def test_a_watcher_waits_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    stop, seen, came = threading.Event(), [], threading.Event()

    def watch() -> None:
        for number in fluid.io.watch_checkpoints(tmp_path, poll=0.01, stop=stop):
            seen.append(number)
            came.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    written(tmp_path, 4)
    assert came.wait(20)
    stop.set()
    watcher.join(20)
    assert not watcher.is_alive()
    assert seen == [4]


# --- while training goes on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainers", [1, 2])
def test_a_trainer_evaluates_at_every_other_version(trainers: int, tmp_path: Path) -> None:
    """In sync mode what it evaluates is the model of that version, also while other trainers go on."""
    net = build()
    with cluster(tmp_path, trainers=trainers, checkpoint_every=1, checkpoint_keep_max=0) as job:
        test, found = job.get_test_program(net.test), {}
        first = job.trainers[0]

        def evaluate(version: int) -> None:
            found[version] = first.run(UNKNOWN, [net.predict], program=test)[0]

        first.executor.run_every(2, evaluate, first.main)
        for _ in range(5):
            job.run([FEED] * trainers)
    assert list(found) == [2, 4]
    for version, values in found.items():
        np.testing.assert_array_equal(values, evaluated(net, tmp_path, version))


def results(process: Process, count: int) -> dict[int, str]:
    """The next predictions that a process prints, by version."""
    assert process.stdout is not None
    pairs = (process.stdout.readline().split() for _ in range(count))
    return {int(version): predicted for version, predicted in pairs}


@pytest.mark.timeout(120)
def test_another_process_evaluates_each_version_while_training_goes_on(tmp_path: Path) -> None:
    """Two pservers, a trainer, and a process beside them: what it computes of a version is, bit for bit, what the trainer
    computes at that version. Another one predicts by a saved model with the rows of the servers, and leaves no trace."""
    with job(tmp_path) as processes:
        trainer, evaluator = processes.start("TRAINER"), processes.start("EVALUATOR")
        expected = results(trainer, 2)
        assert list(expected) == [2, 4]
        assert results(evaluator, 2) == expected, "the trainer waits in the midst of its steps"
        reader = processes.start("READER")
        assert results(reader, 1) == {0: expected[4]}
        assert reader.wait(60) == 0
        resume(trainer)
        expected = results(trainer, 4)
        assert list(expected) == [6, ASKED, 8, STEPS]
        assert len(set(expected.values())) == 4
        assert results(evaluator, 4) == expected, "one was asked for, and the last one is that of the servers' end"
        assert trainer.wait(60) == evaluator.wait(60) == 0


@pytest.mark.parametrize(
    "durations", [{"timeout": float("nan")}, {"timeout": -1.0}, {"poll": 0.0}, {"poll": float("nan")}]
)
def test_durations_that_are_none(tmp_path: Path, durations: dict[str, float]) -> None:
    with pytest.raises(DataError, match="poll must be above 0"):
        next(fluid.io.watch_checkpoints(tmp_path, **durations))  # type: ignore[arg-type]
