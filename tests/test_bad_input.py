"""What is wrong with an input, a message or a peer is a typed error that names what and where, within seconds; the others
neither hang nor lose data. By whole programs, over real transports and by real processes."""

from __future__ import annotations

import inspect
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fluidlite as fluid
from fluidlite import cli
from fluidlite.errors import (
    AddressInUseError,
    CorruptFileError,
    FeedError,
    FetchError,
    FluidliteError,
    MissingFileError,
    OutOfRangeError,
    PeerLostError,
    RequestRefusedError,
    ServerFailedError,
    ShapeError,
    TextFormError,
    UninitializedError,
)
from fluidlite.ports import TrainerPorts
from fluidlite.rpc.client import GrpcChannel, grpc_port
from fluidlite.rpc.port import TrainerPort
from fluidlite.rpc.retry import Patience
from tests.job_process import Process, job, line, resume
from tests.training_jobs import Cluster, GrpcCluster, Local, Programs, assert_states, config_of

LINES = {"embedding": 0, "fc": 0}


def net(width: int = 2, dtype: str = "float64", kind: str = "table", name: str = "emb") -> Programs:
    """A lookup, a bag, an fc, a square error: ids [n, 1], bag [m, 1] with LoD, x [n, 3], label [n, 1]."""

    def build() -> fluid.Variable:
        ids = fluid.data("ids", [None, 1], "int64")
        bag = fluid.data("bag", [None, 1], "int64", lod_level=1)
        x = fluid.data("x", [None, 3], dtype)
        label = fluid.data("label", [None, 1], dtype)
        options: dict[str, Any] = {"is_sparse": kind != "dense", "is_distributed": kind == "table", "dtype": dtype}
        LINES["embedding"] = here() + 1
        row = fluid.layers.embedding(ids, [9, width], param_attr=fluid.ParamAttr(name), **options)
        bags = fluid.layers.embedding(bag, [9, width], param_attr=fluid.ParamAttr("bags"), **options)
        parts = [row, fluid.layers.sequence_pool(bags, "sum"), x]
        LINES["fc"] = here() + 1
        out = fluid.layers.fc(fluid.layers.concat(parts, axis=1), 1, param_attr="w")
        loss = fluid.layers.mean(fluid.layers.square_error_cost(out, label))
        fluid.optimizer.Adagrad(0.1).minimize(loss)
        return loss

    return Programs(build)


def here() -> int:
    """The line that calls this."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def feed(**changes: Any) -> dict[str, Any]:
    """A right feed of two examples, changed; None leaves a variable out."""
    right: dict[str, Any] = {
        "ids": np.array([[1], [2]]),
        "bag": fluid.LoDTensor(np.array([[3], [4], [5]]), ((0, 1, 3),)),
        "x": np.ones((2, 3)),
        "label": np.zeros((2, 1)),
    }
    return {name: value for name, value in {**right, **changes}.items() if value is not None}


@pytest.fixture(params=["local", "cluster"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Runs a feed in one process, or by a trainer of a job; afterwards a right step still counts."""
    programs = net(kind="sparse")
    local = Local(programs)
    if request.param == "local":
        yield lambda given, fetch=programs.loss: local.run(given, [fetch])
        local.step(feed())
        return
    with closing(Cluster(programs, 2)) as cluster:
        trainer = cluster.inside.trainers[0]
        yield lambda given, fetch=programs.loss: trainer.run(given, [fetch])
        cluster.step([feed()])
        local.step(feed())
        assert_states(cluster.state(), local.state())


# ---- feeds


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"idz": np.array([[1]])}, FeedError, "cannot feed 'idz': the program has no such variable; its data variables: ids, bag, x, label"),
        ({"x": np.ones((2, 3), np.float32)}, FeedError, "the dtype of fed 'x' must be 'float64', but it is 'float32'"),
        ({"ids": np.ones((2, 1))}, FeedError, "the dtype of fed 'ids' must be 'int64', but it is 'float64'"),
        ({"ids": np.array([1, 2])}, FeedError, "the shape of fed 'ids' must be [-1, 1] (-1: any), but it is [2]"),
        ({"x": np.ones((2, 4))}, FeedError, "the shape of fed 'x' must be [-1, 3] (-1: any), but it is [2, 4]"),
        ({"x": np.ones((2, 3, 1))}, FeedError, "the shape of fed 'x' must be [-1, 3]"),
        ({"bag": np.array([[1], [2]])}, FeedError, "'bag' has lod_level 1 but the fed value has 0 levels of LoD"),
        ({"bag": fluid.LoDTensor(np.array([[1]]), ((0, 2),))}, FluidliteError, "LoD level 0 of the feed of 'bag' ends at 2"),
        ({"x": [["a"]]}, FeedError, "the feed of 'x' is no array of float64"),
    ],
)  # fmt: skip
def test_B065_B066_a_wrong_feed_names_the_variable_and_what_is_right(
    run: Callable[..., Any], changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        run(feed(**changes))


@pytest.mark.parametrize(
    ("missing", "op", "where"), [("ids", "split_ids|lookup_table", "embedding"), ("x", "concat", "fc")]
)
def test_a_missing_feed_names_the_op_and_its_line(run: Callable[..., Any], missing: str, op: str, where: str) -> None:
    with pytest.raises(UninitializedError, match=f"'{missing}' of op '({op})' was never written; .*feed it") as caught:
        run(feed(**{missing: None}))
    shows(caught.value, op, missing, LINES[where])


def test_what_is_missing_in_a_list_is_no_smaller_sum() -> None:
    main = fluid.Program()
    with fluid.program_guard(main):
        total = fluid.layers.sum([fluid.data(name, [None, 2], "float64") for name in ("one", "two")])
        made_at = here() - 1
    with pytest.raises(UninitializedError, match="'two' of op 'sum' was never written") as caught:
        fluid.Executor().run(main, {"one": np.ones((1, 2))}, [total])
    shows(caught.value, "sum", "two", made_at)


def test_examples_of_different_number_are_an_error_of_the_op_that_sees_them(run: Callable[..., Any]) -> None:
    with pytest.raises(ShapeError) as caught:
        run(feed(x=np.ones((3, 3))))
    shows(caught.value, "concat", "x", LINES["fc"])


def test_an_unknown_fetch_is_named(run: Callable[..., Any]) -> None:
    with pytest.raises(FetchError, match="cannot fetch 'losss': the program has no such variable"):
        run(feed(), "losss")


def test_an_id_out_of_range_is_named_with_op_and_position(run: Callable[..., Any]) -> None:
    with pytest.raises(
        OutOfRangeError, match="id 9 at position 1 of 'ids' is outside 'emb', which has rows 0 to 8"
    ) as caught:
        run(feed(ids=np.array([[1], [9]])))
    shows(caught.value, "split_ids|lookup_table", "ids", LINES["embedding"])


def test_a_program_that_was_not_initialised_says_what_to_run() -> None:
    programs = net()
    with pytest.raises(UninitializedError, match="run the startup program") as caught:
        fluid.Executor().run(programs.main, feed(), [programs.loss], scope=fluid.Scope())
    shows(caught.value, "lookup_table", "emb", LINES["embedding"])


def shows(error: Exception, op: str, variable: str, line: int) -> None:
    """The message shows op, variables, block and the user's source line."""
    made_at = rf"made at (pass \w+, for )?{re.escape(__file__)}:{line}\b"
    pattern = rf"(?s)in op ({op})\(.*\b{variable}\b.*\n  of block 0, {made_at}"
    assert re.search(pattern, str(error)), str(error)


# ---- messages that do not fit the server's program


def stranger(cluster: GrpcCluster, programs: Programs, trainers: int = 1) -> Any:
    """Runs the startup program of a trainer that was transpiled from another program, against these servers."""
    transpiler = fluid.DistributeTranspiler(config_of(1))
    main, startup = programs.main.clone(), programs.startup.clone()
    transpiler.transpile(0, main, ",".join(cluster.servers), trainers, startup_program=startup)
    patience = Patience(connect=20.0, retry=1.0)
    ports = TrainerPorts(
        lambda trainer, count: TrainerPort(
            lambda endpoint: GrpcChannel(cluster.servers[endpoint].endpoint, patience), trainer=trainer, trainers=count
        ),
        host=None,  # type: ignore[arg-type]
    )
    exe = fluid.Executor(ports=ports)
    scope = fluid.Scope()
    try:
        exe.run(startup, scope=scope)
        return exe.run(main, feed(), [programs.loss], scope=scope)
    finally:
        ports.leave()


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (lambda: net(width=3), r"'w' is \[7, 1\] float64 here, not \[9, 1\] float64|'emb' is \[2\] float64 here, not \[3\] float64"),
        (lambda: net(dtype="float32"), r"float64 here, not .*float32"),
        (lambda: net(name="emd"), r"unknown (table|gradient) 'emd|unknown variable 'emd"),
        (lambda: net(kind="dense"), r"variable 'emb' holds SparseTable, not an array"),
    ],
)  # fmt: skip
def test_a_trainer_of_another_program_is_refused_and_changes_nothing(other: Callable[[], Programs], text: str) -> None:
    with closing(GrpcCluster(net(), 1, block=10**6)) as cluster:
        cluster.step([feed()])
        before = cluster.state()
        with pytest.raises(RequestRefusedError, match=text) as caught:
            stranger(cluster, other())
        assert re.search(r"at pserver pserver0:0.*\n  in op \w+\(", str(caught.value)), str(caught.value)
        assert_states(cluster.state(), before)


def test_a_trainer_of_a_job_of_another_size_is_refused() -> None:
    with closing(GrpcCluster(net(), 1)) as cluster:
        with pytest.raises(RequestRefusedError, match="transpiled for 3 trainers, this server for 1"):
            stranger(cluster, net(), trainers=3)
        cluster.step([feed()])


def test_an_update_that_fails_on_a_server_is_its_error_and_the_server_goes_on() -> None:
    with closing(GrpcCluster(net(), 1)) as cluster:
        (scope,) = cluster.scopes.values()
        rate = scope.get("learning_rate_0")
        scope.set("learning_rate_0", np.ones(2))
        with pytest.raises(
            ServerFailedError, match=r"(?s)commit at pserver .*LearningRate must have one element.*in op adagrad"
        ):
            cluster.step([feed()])
        scope.set("learning_rate_0", rate)
        cluster.step([feed()])


# ---- servers that are not there


def test_an_unreachable_server_is_named_by_the_op_that_needs_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        programs = net()
        fluid.DistributeTranspiler().transpile(0, programs.main, endpoint, startup_program=programs.startup)
        ports = TrainerPorts(
            lambda trainer, count: grpc_port(trainer=trainer, patience=Patience(connect=0.5)),
            host=None,  # type: ignore[arg-type]
        )
        with pytest.raises(
            PeerLostError,
            match=rf"(?s)register at pserver {endpoint}: the server did not come up within 0.5 s.*in op recv",
        ):
            fluid.Executor(ports=ports).run(programs.startup, scope=fluid.Scope())
        ports.leave()


def test_a_port_in_use_is_named_by_the_pserver_program() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        programs = net()
        transpiler = fluid.DistributeTranspiler()
        transpiler.transpile(0, programs.main, endpoint, startup_program=programs.startup)
        main, startup = transpiler.get_pserver_programs(endpoint)
        exe, scope = fluid.Executor(), fluid.Scope()
        exe.run(startup, scope=scope)
        with pytest.raises(
            AddressInUseError, match=f"(?s)cannot listen at {endpoint}: the port is in use.*in op listen_and_serv"
        ):
            exe.run(main, scope=scope)


# ---- processes that die


def ends(process: Process) -> tuple[int, str]:
    """Exit code and errors of a process that is about to end."""
    _, errors = process.communicate(timeout=40)
    return process.returncode, errors


def test_a_server_that_dies_in_mid_step_is_an_error_of_every_trainer_and_the_other_server_ends() -> None:
    with job(2, [["--steps", 5], ["--steps", 5, "--pause", 2]]) as (servers, trainers):
        assert line(trainers[1]) == "paused"
        servers[1].send_signal(signal.SIGKILL)
        resume(trainers[1])
        for trainer in trainers:
            code, errors = ends(trainer)
            assert code == 1
            assert re.search(
                r"(?s)PeerLostError: (step \d+: commit|commit|pull) at pserver 127\.0\.0\.1:\d+: no answer.*in op \w+\(",
                errors,
            ), errors
        assert ends(servers[0])[0] == 0


def test_a_trainer_that_dies_in_mid_round_leaves_the_others_and_all_their_steps() -> None:
    with job(2, [["--steps", 5], ["--steps", 5, "--pause", 2]]) as (servers, trainers):
        assert line(trainers[1]) == "paused"
        trainers[1].send_signal(signal.SIGKILL)
        together, alone = -2 * 1.5, -3 * 1.0
        assert line(trainers[0]) == f"end {together + alone} {together + alone}"
        assert ends(trainers[0])[0] == 0
        assert [ends(server)[0] for server in servers] == [0, 0]


def test_a_trainer_that_stops_by_an_error_of_its_own_does_not_keep_the_others() -> None:
    with job(1, [["--steps", 4], ["--steps", 4, "--fail", 1]]) as (servers, trainers):
        code, errors = ends(trainers[1])
        assert code == 1
        assert "cannot feed 'idz'" in errors
        assert line(trainers[0]) == f"end {-1.5 - 3.0} {-1.5 - 3.0}"
        assert ends(servers[0])[0] == 0


# ---- files


def test_a_corrupt_program_file_is_named(tmp_path: Path) -> None:
    programs = net()
    good = programs.main.serialize_to_string()
    for broken in (good[:-7], good[: len(good) // 2], b"\x0a\x05", b"no program at all"):
        path = tmp_path / "__model__"
        path.write_bytes(broken)
        with pytest.raises(CorruptFileError, match=re.escape(str(path))):
            fluid.io.load_inference_model(str(tmp_path), fluid.Executor())
        with pytest.raises(CorruptFileError):
            fluid.Program.parse_from_string(broken)
        shown = CliRunner().invoke(cli.app, ["show", str(path)])
        assert isinstance(shown.exception, CorruptFileError)
    with pytest.raises(MissingFileError, match="absent"):
        fluid.io.load_inference_model(str(tmp_path / "absent"), fluid.Executor())


def test_a_program_in_broken_text_form_names_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "train.program"
    path.write_text(str(net().main).replace(") -> (", ") => (", 1), encoding="utf-8")
    shown = CliRunner().invoke(cli.app, ["show", str(path)])
    assert isinstance(shown.exception, TextFormError)
    assert re.search(r"line \d+, column \d+", str(shown.exception)), str(shown.exception)
