"""Pservers and trainers as real processes that end, are killed, or come late."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from fluidlite.errors import PeerLostError, RemoteError
from fluidlite.protocol.messages import DenseRequest, Gradient, RowRequest
from fluidlite.rpc.client import grpc_port
from fluidlite.rpc.port import TrainerPort
from fluidlite.rpc.retry import Patience
from tests.pserver_process import started

PATIENCE = Patience(connect=30.0, retry=1.0)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def make_port(stack: ExitStack, trainer: int) -> TrainerPort:
    port = grpc_port(trainer=trainer, patience=PATIENCE)
    stack.callback(port.close)
    return port


def push(port: TrainerPort, endpoint: str, value: float) -> int:
    port.stage(Gradient(endpoint, "w@GRAD", np.full(3, value)))
    return port.commit([endpoint]).versions[endpoint]


def test_H01_B093_B098_three_servers_end_by_themselves_with_exit_code_0(stack: ExitStack) -> None:
    servers = [stack.enter_context(started("server", 1)) for _ in range(3)]
    endpoints = [endpoint for _, endpoint in servers]
    port = make_port(stack, 0)
    for endpoint in endpoints:
        port.stage(Gradient(endpoint, "w@GRAD", np.ones(3)))
    assert set(port.commit(endpoints).versions.values()) == {1}
    port.complete()
    assert [process.wait(5) for process, _ in servers] == [0, 0, 0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_B098_a_signal_ends_a_server_cleanly_also_with_trainers_waiting(stack: ExitStack, number: int) -> None:
    process, endpoint = stack.enter_context(started("server", 2))
    port = make_port(stack, 0)
    port.pull([DenseRequest(endpoint, "w")])
    with ThreadPoolExecutor() as pool:
        step = pool.submit(push, port, endpoint, 1.0)
        process.send_signal(number)
        with pytest.raises(PeerLostError, match=f"commit at pserver {endpoint}"):
            step.result(20)
    assert process.wait(10) == 0


def test_H04_a_trainer_killed_in_mid_round_leaves_the_round_to_the_others(stack: ExitStack) -> None:
    _, endpoint = stack.enter_context(started("server", 2))
    victim, said = stack.enter_context(started("trainer", endpoint, 1, "wait"))
    assert said == "pulled"
    port = make_port(stack, 0)
    with ThreadPoolExecutor() as pool:
        step = pool.submit(push, port, endpoint, 3.0)
        victim.send_signal(signal.SIGKILL)
        assert step.result(20) == 1
    np.testing.assert_array_equal(port.pull([DenseRequest(endpoint, "w")])[0], [-3.0] * 3)


def test_B093_a_trainer_that_ends_without_close_does_not_keep_the_server(stack: ExitStack) -> None:
    server, endpoint = stack.enter_context(started("server", 1))
    trainer, _ = stack.enter_context(started("trainer", endpoint, 0, "vanish"))
    assert trainer.wait(20) == 0
    assert server.wait(20) == 0


def test_H16_a_server_killed_in_mid_step_is_a_lost_peer_within_seconds(stack: ExitStack) -> None:
    process, endpoint = stack.enter_context(started("server", 2))
    port = make_port(stack, 0)
    port.pull([DenseRequest(endpoint, "w")])
    with ThreadPoolExecutor() as pool:
        step = pool.submit(push, port, endpoint, 1.0)
        process.send_signal(signal.SIGKILL)
        with pytest.raises(PeerLostError, match=f"commit at pserver {endpoint}: no answer"):
            step.result(20)
    with pytest.raises(PeerLostError, match=f"pull at pserver {endpoint}: no answer"):
        port.pull([DenseRequest(endpoint, "w")])
    port.complete()


def test_a_server_killed_in_mid_step_leaves_nothing_running_in_the_trainer(stack: ExitStack) -> None:
    before = set(threading.enumerate())
    process, endpoint = stack.enter_context(started("server", 2))
    port = make_port(stack, 0)
    port.pull([DenseRequest(endpoint, "w")])
    with ThreadPoolExecutor() as pool:
        step = pool.submit(push, port, endpoint, 1.0)
        process.send_signal(signal.SIGKILL)
        with pytest.raises(PeerLostError, match=rf"step 0: commit at pserver {endpoint}: no answer, .* in all"):
            step.result(20)
        pool.submit(port.close).result(20)
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive()


def test_a_close_while_a_step_waits_for_a_server_that_was_killed_or_stands_still_wakes_it(stack: ExitStack) -> None:
    for number in (signal.SIGKILL, signal.SIGSTOP):
        process, endpoint = stack.enter_context(started("server", 2))
        port = grpc_port(trainer=0, patience=Patience(retry=600.0, keepalive=600.0))
        port.pull([DenseRequest(endpoint, "w")])
        with ThreadPoolExecutor() as pool:
            step = pool.submit(push, port, endpoint, 1.0)
            process.send_signal(number)
            pool.submit(port.close).result(20)
            with pytest.raises(PeerLostError, match=f"step 0: commit at pserver {endpoint}: "):
                step.result(20)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_killed_server_is_an_error_that_names_the_late_step(stack: ExitStack, ahead: bool) -> None:
    process, endpoint = stack.enter_context(started("async_server", 1))
    port = make_port(stack, 0)
    rows = RowRequest(endpoint, "emb", np.array([1]), 2, "float64")
    port.pull([DenseRequest(endpoint, "w"), rows])
    process.send_signal(signal.SIGSTOP)
    assert not ahead or port.pull_ahead([rows])
    port.stage(Gradient(endpoint, "w@GRAD", np.ones(3)))
    port.commit([endpoint])
    process.send_signal(signal.SIGKILL)
    with pytest.raises(PeerLostError, match=f"step 0: commit at pserver {endpoint}: no answer"):
        port.pull([rows])
    with pytest.raises(PeerLostError, match=f"pull at pserver {endpoint}: no answer"):
        port.pull([rows])


WRONG = {
    "shape": ("w@GRAD", np.ones(5), None),
    "dtype": ("w@GRAD", np.ones(3, np.int64), None),
    "width": ("emb@GRAD", np.ones((1, 3)), np.array([1])),
    "name": ("v@GRAD", np.ones(3), None),
    "rows": ("v.block0@GRAD", np.ones((1, 2)), np.array([99])),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_commit_that_is_refused_late_is_raised_by_the_next_call_and_names_the_step(
    stack: ExitStack, wrong: str
) -> None:
    _, endpoint = stack.enter_context(started("async_server", 1))
    port = make_port(stack, 0)
    assert push(port, endpoint, 1.0) == 1
    name, value, ids = WRONG[wrong]
    port.stage(Gradient(endpoint, name, value, ids))
    port.commit([endpoint])
    with pytest.raises(RemoteError, match=f"step 1: commit at pserver {endpoint}: .*{name}"):
        port.pull([DenseRequest(endpoint, "w")])
    np.testing.assert_array_equal(port.pull([DenseRequest(endpoint, "w")])[0], [-1.0] * 3)
    assert push(port, endpoint, 1.0) >= 2


def test_a_trainer_that_outlives_its_server_can_end(stack: ExitStack) -> None:
    server, endpoint = stack.enter_context(started("server", 1))
    trainer, _ = stack.enter_context(started("trainer", endpoint, 0, "wait"))
    server.send_signal(signal.SIGKILL)
    server.wait(10)
    trainer.communicate("\n", timeout=20)
    assert trainer.returncode == 0


OPEN_STREAMS = """
import sys
from fluidlite.protocol.messages import DenseRequest, Push, StepHeader
from fluidlite.rpc.client import grpc_port
port = grpc_port(trainer=0)
port.pull([DenseRequest(sys.argv[1], "w")])
channel = port._peers[sys.argv[1]].channel
step = channel.commit(Push(StepHeader(port.identity, 0, 0, 0, 0), [], []))
print("open", flush=True)
sys.stdin.readline()
late = channel.pull(port.identity, [DenseRequest(sys.argv[1], "w")])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_ends_with_open_streams_to_a_server_that_does_not_answer(stack: ExitStack, number: int) -> None:
    server, endpoint = stack.enter_context(started("server", 2))
    trainer = subprocess.Popen(
        [sys.executable, "-c", OPEN_STREAMS, endpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stack.callback(trainer.communicate)
    stack.callback(trainer.kill)
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "open\n"
    server.send_signal(number)
    trainer.communicate("\n", timeout=20)
    assert trainer.returncode in (0, 1), "the pull after the end may fail at once"


def test_H02_B096_trainers_that_start_apart_train_together(stack: ExitStack) -> None:
    server, endpoint = stack.enter_context(started("server", 2))
    early, _ = stack.enter_context(started("trainer", endpoint, 0, "train"))
    late, _ = stack.enter_context(started("trainer", endpoint, 1, "train"))
    assert [process.wait(20) for process in (early, late, server)] == [0, 0, 0]


def _double(x: int) -> int:
    return 2 * x


def test_B103_H22_processes_start_beside_live_channels(stack: ExitStack) -> None:
    _, endpoint = stack.enter_context(started("server", 1))
    port = make_port(stack, 0)
    port.pull([DenseRequest(endpoint, "w")])
    done = subprocess.run([sys.executable, "-c", "print(42)"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "42\n"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_double, [1, 2]) == [2, 4]
    assert push(port, endpoint, 1.0) == 1


def test_H22_importing_fluidlite_does_not_import_grpc() -> None:
    code = "import fluidlite, fluidlite.pserver.host, sys; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
