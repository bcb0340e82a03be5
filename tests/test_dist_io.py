"""Saving and loading through servers: the files of a job are those of a local run."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import MissingFileError, ProgramError, ShapeError
from fluidlite.ports import TrainerPorts
from fluidlite.protocol.messages import Push
from fluidlite.rpc.inproc import inproc_port
from fluidlite.transpiler.plan import Held, Piece, Storage
from fluidlite.values import files
from fluidlite.values.selected_rows import SelectedRows
from tests.frontend import fresh_programs

IDS = np.array([[3], [2**62], [-5], [3], [8]], np.int64)
FEED = {"ids": IDS, "words": np.array([[1], [5], [0], [1], [6]]), "y": np.ones((5, 1), np.float32)}


@pytest.fixture(autouse=True)
def _own_programs() -> Iterator[None]:
    with fresh_programs():
        yield


def build() -> SimpleNamespace:
    """A table, a row-fetched sparse parameter, and dense layers that are cut; adam with a decaying rate."""
    ids, words = fluid.data("ids", [None, 1], "int64"), fluid.data("words", [None, 1], "int64")
    table_attr = fluid.ParamAttr(name="emb", initializer=fluid.initializer.Uniform(-1.0, 1.0, seed=3))
    table = fluid.layers.embedding(ids, [10**9, 4], is_sparse=True, is_distributed=True, param_attr=table_attr)
    sparse = fluid.layers.embedding(words, [7, 3], is_sparse=True, param_attr=fluid.ParamAttr(name="words_w"))
    hidden = fluid.layers.fc(fluid.layers.concat([table, sparse], axis=1), 6, act="tanh")
    predict = fluid.layers.fc(hidden, 1)
    test_program = fluid.default_main_program().clone(for_test=True)
    y = fluid.data("y", [None, 1])
    loss = fluid.layers.mean(fluid.layers.square_error_cost(predict, y))
    fluid.optimizer.Adam(fluid.layers.exponential_decay(0.1, 2, 0.5)).minimize(loss)
    fluid.default_startup_program().random_seed = 5
    return SimpleNamespace(predict=predict, loss=loss, test_program=test_program)


def run_locally(net: SimpleNamespace, steps: int, folder: Path, *, load: Path | None = None) -> list[Any]:
    """Train in one process, save, and return the losses."""
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        if load is not None:
            fluid.io.load_persistables(exe, load)
        losses = [exe.run(feed=FEED, fetch_list=[net.loss])[0] for _ in range(steps)]
        fluid.io.save_persistables(exe, folder)
    return losses


def cluster(pservers: int = 2, trainers: int = 1) -> fluid.LocalCluster:
    config = fluid.DistributeTranspilerConfig()
    config.min_block_size = 1
    return fluid.LocalCluster(
        fluid.default_main_program(), fluid.default_startup_program(), pservers, trainers, config=config
    )


def contents(folder: Path) -> dict[str, Any]:
    """Variable name -> array, or of a table its rows sorted by id."""
    found = {}
    for path in sorted(folder.iterdir()):
        value = files.load(path, path.name)
        if isinstance(value, SelectedRows):
            order = np.argsort(value.rows)
            value = (value.rows[order].tolist(), value.value[order].tolist(), value.height)
        found[path.name] = value
    return found


def assert_same_files(actual: Path, expected: Path) -> None:
    mine, theirs = contents(actual), contents(expected)
    assert list(mine) == list(theirs)
    for name, value in theirs.items():
        np.testing.assert_equal(mine[name], value, err_msg=name)


@pytest.mark.parametrize("pservers", [1, 3])
def test_K14_B091_a_job_saves_the_files_of_a_local_run(pservers: int, tmp_path: Path) -> None:
    net = build()
    run_locally(net, 3, tmp_path / "local")
    with cluster(pservers) as job:
        trainer = job.trainers[0]
        for _ in range(3):
            job.run([FEED])
        with fluid.scope_guard(trainer.scope):
            fluid.io.save_persistables(trainer.executor, tmp_path / "job", trainer.main)
    assert_same_files(tmp_path / "job", tmp_path / "local")


def test_a_job_goes_on_from_the_files_of_another(tmp_path: Path) -> None:
    net = build()
    run_locally(net, 3, tmp_path / "before")
    expected = run_locally(net, 2, tmp_path / "local", load=tmp_path / "before")
    with cluster(2) as job:
        trainer = job.trainers[0]
        with fluid.scope_guard(trainer.scope):
            fluid.io.load_persistables(trainer.executor, tmp_path / "before", trainer.main)
            losses = [job.run([FEED], [net.loss])[0][0] for _ in range(2)]
            fluid.io.save_persistables(trainer.executor, tmp_path / "job", trainer.main)
    np.testing.assert_array_equal(losses, expected)
    assert_same_files(tmp_path / "job", tmp_path / "local")


def test_saving_makes_no_later_step_ask_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    with cluster(1) as job:
        trainer, (service,) = job.trainers[0], job.services.values()
        asked: list[Sequence[str]] = []
        commit = service.commit

        def noted(push: Push) -> Any:
            asked.append(push.wanted)
            return commit(push)

        monkeypatch.setattr(service, "commit", noted)
        job.run([FEED])
        with fluid.scope_guard(trainer.scope):
            fluid.io.save_persistables(trainer.executor, tmp_path, trainer.main)
        job.run([FEED])
    assert len(asked) == 2
    assert sorted(asked[0]) == sorted(asked[1]) == ["fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0"]


def test_rows_made_after_the_save_are_forgotten_by_the_load(tmp_path: Path) -> None:
    build()
    later = {**FEED, "ids": IDS + 100}
    main, scope = fluid.default_main_program(), fluid.Scope()
    with cluster(2) as job, fluid.scope_guard(scope):
        local, trainer = fluid.Executor(), job.trainers[0]
        local.run(fluid.default_startup_program())
        for folder, exe, program, own in (
            (tmp_path / "local", local, main, scope),
            (tmp_path / "job", trainer.executor, trainer.main, trainer.scope),
        ):
            with fluid.scope_guard(own):
                exe.run(program, FEED)
                fluid.io.save_persistables(exe, folder / "before", program)
                exe.run(program, later)
                fluid.io.load_persistables(exe, folder / "before", program)
                fluid.io.save_persistables(exe, folder / "loaded", program)
                exe.run(program, later)
                fluid.io.save_persistables(exe, folder / "after", program)
    assert_same_files(tmp_path / "job" / "loaded", tmp_path / "job" / "before")
    assert_same_files(tmp_path / "job" / "after", tmp_path / "local" / "after")


def test_one_combined_file(tmp_path: Path) -> None:
    build()
    with cluster(2) as job:
        trainer = job.trainers[0]
        job.run([FEED])
        with fluid.scope_guard(trainer.scope):
            fluid.io.save_persistables(trainer.executor, tmp_path, trainer.main, filename="all")
            before = (tmp_path / "all").read_bytes()
            job.run([FEED])
            fluid.io.load_persistables(trainer.executor, tmp_path, trainer.main, filename="all")
            fluid.io.save_persistables(trainer.executor, tmp_path, trainer.main, filename="all")
    assert (tmp_path / "all").read_bytes() == before


@pytest.mark.parametrize("which", ["trainer's", "test clone"])
def test_B026_an_inference_model_needs_no_servers(which: str, tmp_path: Path) -> None:
    net = build()
    with cluster(2) as job:
        trainer = job.trainers[0]
        job.run([FEED])
        program = trainer.main if which == "trainer's" else net.test_program
        with fluid.scope_guard(trainer.scope), fluid.program_guard(trainer.main):
            fluid.io.save_inference_model(tmp_path, ["ids", "words"], [net.predict], trainer.executor, program)
    run_locally(net, 1, tmp_path / "local")
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        fluid.io.load_persistables(exe, tmp_path / "local")
        inputs = {name: FEED[name] for name in ("ids", "words")}
        expected = exe.run(net.test_program, inputs, [net.predict])[0]
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        loaded, feeds, fetches = fluid.io.load_inference_model(tmp_path, exe)
        assert {op.type for op in loaded.global_block().ops} & {"prefetch", "split_ids", "send", "recv"} == set()
        assert feeds == ["ids", "words"]
        actual = exe.run(loaded, inputs, fetches)[0]
        np.testing.assert_array_equal(actual, expected)


@pytest.fixture
def saved_model(tmp_path: Path) -> Path:
    """A model that was saved after one step of a job."""
    net = build()
    with cluster(2) as job:
        job.run([FEED])
        trainer = job.trainers[0]
        with fluid.scope_guard(trainer.scope):
            fluid.io.save_inference_model(tmp_path, ["ids", "words"], [net.predict], trainer.executor, trainer.main)
    return tmp_path


@pytest.mark.parametrize("pservers", [1, 3])
def test_an_inference_model_asks_the_servers_for_the_rows_that_they_have(pservers: int, saved_model: Path) -> None:
    """The rows go on with training, the dense part is that of the file; ids without a row read zeros and make none."""
    folder = saved_model
    (folder / "emb").unlink()
    inputs = {"ids": np.array([[3], [-5], [777], [2**62], [8]]), "words": FEED["words"]}
    with cluster(pservers) as job, fluid.scope_guard(fluid.Scope()):
        trainer = job.trainers[0]
        loaded, feeds, fetches = fluid.io.load_inference_model(
            folder, trainer.executor, pserver_endpoints=list(job.services)
        )
        assert feeds == ["ids", "words"]
        for steps in (1, 2):
            for _ in range(steps):
                job.run([FEED])
            actual = trainer.executor.run(loaded, inputs, fetches)[0]
            np.testing.assert_array_equal(actual, by_hand(job, inputs, fluid.global_scope()))
        rows = sum(len(scope.get("emb")) for scope in job.scopes.values())
        assert rows == len(np.unique(IDS))


def by_hand(job: fluid.LocalCluster, inputs: dict[str, Any], dense: fluid.Scope) -> Any:
    """The prediction from the tables of the servers and a scope's dense parameters."""
    tables = [scope.get("emb").export() for scope in job.scopes.values()]
    rows = {id: row for table in tables for id, row in zip(table.rows.tolist(), table.value, strict=True)}
    known = [rows.get(id, np.zeros(4, np.float32)) for id in inputs["ids"].reshape(-1).tolist()]
    x = np.concatenate([np.array(known), dense.get("words_w")[inputs["words"].reshape(-1)]], axis=1)
    hidden = np.tanh(x @ dense.get("fc_0.w_0") + dense.get("fc_0.b_0"))
    return hidden @ dense.get("fc_1.w_0") + dense.get("fc_1.b_0")


def test_a_model_predicts_the_same_with_and_without_servers(saved_model: Path) -> None:
    folder = saved_model
    inputs = {"ids": np.array([[3], [-5], [777], [2**62], [8]]), "words": FEED["words"]}
    with cluster(2) as job:
        job.run([FEED])
        predicted = []
        for endpoints in (None, list(job.services)):
            with fluid.scope_guard(fluid.Scope()):
                exe = job.trainers[0].executor
                loaded, _, fetches = fluid.io.load_inference_model(folder, exe, pserver_endpoints=endpoints)
                predicted.append(exe.run(loaded, inputs, fetches)[0])
    np.testing.assert_array_equal(predicted[0], predicted[1])


def test_endpoints_say_nothing_to_a_model_without_tables(tmp_path: Path) -> None:
    out = fluid.layers.fc(fluid.data("x", [None, 2]), 1)
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        fluid.io.save_inference_model(tmp_path, ["x"], [out], exe)
        loaded, _, fetches = fluid.io.load_inference_model(tmp_path, exe, pserver_endpoints=["nowhere:1"])
        assert exe.run(loaded, {"x": np.ones((3, 2), np.float32)}, fetches)[0].shape == (3, 1)


def test_an_executor_that_only_reads_is_no_trainer(saved_model: Path) -> None:
    folder = saved_model
    inputs = {"ids": IDS, "words": FEED["words"]}
    with cluster(1) as job, fluid.scope_guard(fluid.Scope()):
        ports = TrainerPorts(lambda trainer, trainers: inproc_port(job.services, trainer=trainer), host=None)  # type: ignore[arg-type]
        with fluid.Executor(ports=ports) as exe:
            loaded, _, fetches = fluid.io.load_inference_model(folder, exe, pserver_endpoints=list(job.services))
            exe.run(loaded, inputs, fetches)
            with pytest.raises(ProgramError, match="this executor only reads; run programs of trainer 0"):
                exe.run(job.trainers[0].main, FEED)
        job.run([FEED])
        assert job.services["pserver0:0"].live == (0,)


def test_K01_B116_a_save_amid_pushes_is_one_moment_of_each_server(tmp_path: Path) -> None:
    """Every step adds the same to two rows of each server and to a dense weight: a save of unequal ones is torn."""
    ids, size = fluid.data("ids", [None, 1], "int64"), fluid.data("size", [1])
    zeros = fluid.initializer.Constant(0.0)
    row = fluid.layers.embedding(ids, [10, 1], is_distributed=True, param_attr=fluid.ParamAttr("emb", zeros))
    other = fluid.layers.embedding(ids, [10, 1], is_distributed=True, param_attr=fluid.ParamAttr("other", zeros))
    weight = fluid.layers.create_parameter([1], "float32", attr=fluid.ParamAttr("w", zeros))
    fluid.optimizer.SGD(1.0).minimize(fluid.layers.reduce_sum((row + other + weight) * size))
    feed = {"ids": np.array([[0]]), "size": np.array([1.0], np.float32)}
    programs = fluid.default_main_program(), fluid.default_startup_program()
    with fluid.LocalCluster(*programs, pservers=1, trainers=2, sync=False) as job:
        saver, pusher = job.trainers
        job.run([feed, feed])
        over = threading.Event()

        def push() -> None:
            while not over.is_set():
                pusher.run(feed)

        pushing = threading.Thread(target=push)
        pushing.start()
        try:
            seen = set()
            with fluid.scope_guard(saver.scope):
                while len(seen) < 20:
                    fluid.io.save_persistables(saver.executor, tmp_path, saver.main)
                    found = contents(tmp_path)
                    value = float(found["w"][0])
                    assert found["emb"][1] == found["other"][1] == [[value]]
                    seen.add(value)
        finally:
            over.set()
            pushing.join()


def test_B090_a_server_takes_its_slices_from_the_files(tmp_path: Path) -> None:
    net = build()
    run_locally(net, 2, tmp_path / "local")
    config = fluid.DistributeTranspilerConfig()
    config.min_block_size = 1
    transpiler = fluid.DistributeTranspiler(config)
    transpiler.transpile(0, pservers="a:1,b:1", trainers=1)
    for endpoint in ("a:1", "b:1"):
        program, startup = transpiler.get_pserver_programs(endpoint)
        with fluid.scope_guard(fluid.Scope()):
            exe = fluid.Executor()
            exe.run(startup)
            fluid.io.load_persistables(exe, tmp_path / "local", program)
            for held in transpiler._distribution.plan.held():
                whole = files.load(tmp_path / "local" / held.name, held.name)
                for piece in held.pieces:
                    if piece.endpoint == endpoint:
                        assert_piece(held, piece, whole)
            fluid.io.save_persistables(exe, tmp_path / endpoint, program)
            saved = {path.name for path in (tmp_path / endpoint).iterdir()}
            assert "emb" in saved
            assert len(saved & {"words_w.block0", "words_w.block1"}) == 1


def test_a_server_loads_what_it_is_asked_to(tmp_path: Path) -> None:
    net = build()
    run_locally(net, 2, tmp_path)
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, pservers="a:1", trainers=1)
    program, startup = transpiler.get_pserver_programs("a:1")
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        exe.run(startup)
        fluid.io.load_params(exe, tmp_path, program)
        whole = contents(tmp_path)
        np.testing.assert_array_equal(fluid.global_scope().get("words_w"), whole["words_w"])
        moment = next(name for name in whole if name.startswith("words_w_moment1"))
        assert not np.array_equal(fluid.global_scope().get(moment), whole[moment])
        with pytest.raises(ProgramError, match="one file per variable, not from 'all'"):
            fluid.io.load_persistables(exe, tmp_path, program, filename="all")
        (tmp_path / "@LR_DECAY_COUNTER@").unlink()  # Fluid's trainers save none
        fluid.io.load_persistables(exe, tmp_path, program)
        np.testing.assert_array_equal(fluid.global_scope().get(moment), whole[moment])
        (tmp_path / moment).unlink()
        with pytest.raises(MissingFileError, match=moment):
            fluid.io.load_persistables(exe, tmp_path, program)


def assert_piece(held: Held, piece: Piece, whole: Any) -> None:
    value = fluid.global_scope().get(piece.name)
    if held.storage is Storage.ROWS:
        shard = {"a:1": 0, "b:1": 1}[piece.endpoint]
        expected = [row for row in whole.rows.tolist() if row % 2**64 % 2 == shard]
        assert value.export().rows.tolist() == expected
    elif held.storage is Storage.SLICES:
        np.testing.assert_array_equal(value, whole[piece.first_row : piece.first_row + piece.rows])
    else:
        np.testing.assert_array_equal(value, whole)


def test_a_lowered_program_is_no_inference_model(tmp_path: Path) -> None:
    net = build()
    with cluster(2) as job:
        trainer = job.trainers[0]
        lowered = fluid.Program(trainer.main.desc)
        with pytest.raises(ProgramError, match="op 'prefetch' asks servers"):
            fluid.io.save_inference_model(tmp_path, ["ids", "words"], [net.predict], trainer.executor, lowered)


def test_a_program_that_addresses_no_server_is_refused(tmp_path: Path) -> None:
    build()
    with cluster(1) as job:
        trainer = job.trainers[0]
        bare = fluid.Program()
        bare.distribution = trainer.main.distribution
        with pytest.raises(ProgramError, match="exchanges nothing with servers"):
            fluid.io.save_persistables(trainer.executor, tmp_path, bare)


def test_saving_a_job_needs_its_executor(tmp_path: Path) -> None:
    build()
    with cluster(1) as job, pytest.raises(ProgramError, match="needs the executor that runs it, not None"):
        fluid.io.save_persistables(None, tmp_path, job.trainers[0].main)


def test_a_file_of_another_height_is_refused() -> None:
    from fluidlite.dist_io import part_of

    held = Held("w", Storage.SLICES, (Piece("a:1", "w.block0", 0, 2), Piece("b:1", "w.block1", 2, 1)))
    np.testing.assert_array_equal(part_of(held, 1, np.arange(6).reshape(3, 2)), [[4, 5]])
    with pytest.raises(ShapeError, match=r"'w' is 3 rows high on its servers, the value is \[4, 2\]"):
        part_of(held, 0, np.zeros((4, 2)))
