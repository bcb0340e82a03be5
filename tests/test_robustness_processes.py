"""The launcher and the network with processes that misbehave: stop, fork, flood, write where nobody reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from fluidlite import launch as launcher
from fluidlite.errors import LaunchError, PeerLostError
from fluidlite.protocol.messages import DenseRequest, Gradient
from fluidlite.rpc.client import grpc_port
from fluidlite.rpc.retry import Patience
from tests.pserver_process import started


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_server_that_stands_still_is_a_lost_peer_within_the_keepalive(stack: ExitStack) -> None:
    """gRPC has deadlines of a minute of its own for what keepalive and reconnection wait for."""
    process, endpoint = stack.enter_context(started("server", 2))
    port = grpc_port(trainer=0, patience=Patience(keepalive=1.0, retry=1.0))
    stack.callback(port.close)
    port.pull([DenseRequest(endpoint, "w")])
    port.stage(Gradient(endpoint, "w@GRAD", np.ones(3)))
    with ThreadPoolExecutor() as pool:
        step = pool.submit(port.commit, [endpoint])
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(PeerLostError, match=f"commit at pserver {endpoint}: no answer"):
            step.result(30)


# --- the launcher ---------------------------------------------------------------------------------------------------

TRAINER = "import os, subprocess, sys, time\nif os.environ['TRAINING_ROLE'] == 'TRAINER':\n"


def job(tmp_path: Path, body: str, logs: str = "logs") -> launcher.Job:
    """A job whose trainer runs ``body``, indented by four; its pserver does nothing."""
    script = tmp_path / "script.py"
    script.write_text(TRAINER + body, encoding="utf-8")
    return launcher.Job([sys.executable, str(script)], 1, 1, tmp_path / logs, dict(os.environ))


def run(tmp_path: Path, body: str) -> list[str]:
    """The lines that the trainer prints."""
    shown: list[str] = []
    launcher.run_job(job(tmp_path, body), lambda worker, line: shown.append(line))
    return shown


def cli(tmp_path: Path, script: str, *, encoding: str = "utf-8") -> subprocess.Popen[bytes]:
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "fluidlite.launch",
        "--log-dir",
        str(tmp_path / "logs"),
        str(tmp_path / "script.py"),
    ]
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


LEAVE_A_CHILD = """\
    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])
    print(child.pid, flush=True)
"""


@pytest.mark.parametrize("code", [0, 3])
def test_children_that_outlive_their_process_neither_hold_up_the_job_nor_stay(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "OUTPUT_GRACE", 0.2)
    body = LEAVE_A_CHILD + f"    sys.exit({code})\n"
    shown: list[str] = []
    wanted = job(tmp_path, body)
    if code:
        with pytest.raises(LaunchError, match="trainer 0 ended with exit code 3"):
            launcher.run_job(wanted, lambda worker, line: shown.append(line))
    else:
        launcher.run_job(wanted, lambda worker, line: shown.append(line))
    while not _is_gone(int(shown[0])):
        pass


def _is_gone(pid: int) -> bool:
    """Whether no such process runs; one that nobody has waited for yet is gone, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("taken", ["logs", "logs/serverlog.0/below"])
def test_logs_that_cannot_be_written_are_an_error_at_once(tmp_path: Path, taken: str) -> None:
    wanted = job(tmp_path, "    time.sleep(100)\n")
    (tmp_path / taken).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / taken).touch()
    with pytest.raises(LaunchError, match=r"pserver 0 cannot be started with its output in .*serverlog\.0"):
        launcher.run_job(wanted, lambda worker, line: None)


def test_a_log_that_fails_later_stops_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "workerlog.0").symlink_to(full)
    assert run(tmp_path, "    print('one', flush=True); print('two')\n") == ["one", "two"]
    assert "workerlog.0 failed, the job goes on without" in capsys.readouterr().err


def test_a_screen_that_fails_stops_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def show(worker: launcher.Worker, line: str) -> None:
        raise ZeroDivisionError("broken screen")

    launcher.run_job(job(tmp_path, "    print('one'); print('two')\n"), show)
    assert (tmp_path / "logs" / "workerlog.0").read_text(encoding="utf-8") == "one\ntwo\n"
    assert capsys.readouterr().err.count("broken screen") == 1


def test_a_reader_that_leaves_stops_nobody(tmp_path: Path) -> None:
    with cli(tmp_path, TRAINER + "    print('x' * 100_000)\n    time.sleep(0.5)\n    print('end')\n") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert b"showing the output failed" in process.stderr.read()
    assert process.returncode == 0
    assert (tmp_path / "logs" / "workerlog.0").read_text(encoding="utf-8").endswith("end\n")


def test_any_bytes_may_be_printed_on_any_terminal(tmp_path: Path) -> None:
    script = TRAINER + "    os.write(1, bytes(range(14, 256)) + b'\\n' + 'ü'.encode() * 100_000 + b' end')\n"
    with cli(tmp_path, script, encoding="ascii") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert out.isascii()
    assert out.endswith(b" end\n")


def test_an_absurd_seed_is_refused(tmp_path: Path) -> None:
    for seed in ("-1", str(2**31)):
        command = [sys.executable, "-m", "fluidlite.launch", "--seed", seed, __file__]
        assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 2
