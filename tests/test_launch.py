"""The launcher with small scripts in place of training: roles, logs, failures, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fluidlite import launch as launcher
from fluidlite.errors import LaunchError

PRINT_ROLE = """
import os, sys
role = os.environ["TRAINING_ROLE"]
keys = ["PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ID", "POD_IP", "PADDLE_PORT"]
print(role, *[os.environ.get(k) for k in keys], *sys.argv[1:])
"""
#: the launcher in a process that heeds signals, also when this one ignores them as a background job does
LAUNCH = [
    sys.executable,
    "-c",
    "import signal\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    "from fluidlite.launch import main\n"
    "main()",
]


def write(tmp_path: Path, text: str) -> str:
    script = tmp_path / "script.py"
    script.write_text(text, encoding="utf-8")
    return str(script)


def cli(tmp_path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fluidlite.launch", "--log-dir", str(tmp_path / "logs"), *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_roles_ports_and_arguments(tmp_path: Path) -> None:
    script = write(tmp_path, PRINT_ROLE)
    done = cli(tmp_path, "--pservers", "2", "--trainers", "3", script, "--epochs", "4")
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("["))
    assert [line.split("]")[0][1:] for line in lines] == [
        "pserver 0", "pserver 1", "trainer 0", "trainer 1", "trainer 2",
    ]  # fmt: skip
    endpoints = lines[0].split()[3]
    hosts_ports = [endpoint.split(":") for endpoint in endpoints.split(",")]
    assert len({port for _, port in hosts_ports}) == 2
    assert lines[1].split()[2:] == ["PSERVER", endpoints, "3", "None", "127.0.0.1", hosts_ports[1][1], "--epochs", "4"]
    assert lines[4].split()[2:] == ["TRAINER", endpoints, "3", "2", "None", "None", "--epochs", "4"]
    assert sorted(p.name for p in (tmp_path / "logs").iterdir()) == [
        "serverlog.0", "serverlog.1", "workerlog.0", "workerlog.1", "workerlog.2",
    ]  # fmt: skip


def test_first_failure_ends_the_job_and_is_shown(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "import os, time\n"
        "if os.environ.get('PADDLE_TRAINER_ID') == '1':\n"
        "    raise SystemExit('no such feature: hour')\n"
        "time.sleep(100)\n",
    )
    done = cli(tmp_path, "--pservers", "1", "--trainers", "2", script)
    assert done.returncode == 1
    assert "trainer 1 ended with exit code 1" in done.stderr
    assert "no such feature: hour" in done.stderr


def test_a_killed_process_is_named_with_its_signal(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "import os, signal, time\n"
        "if os.environ['TRAINING_ROLE'] == 'PSERVER':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(100)\n",
    )
    job = launcher.Job([sys.executable, script], 1, 1, tmp_path / "logs", dict(os.environ))
    with pytest.raises(LaunchError, match="pserver 0 was ended by SIGKILL"):
        launcher.run_job(job, lambda worker, line: None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    script = write(tmp_path, "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(100)\n")
    with subprocess.Popen(
        [*LAUNCH, "--log-dir", str(tmp_path / "logs"), script],
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout is not None
        pids = [int(job.stdout.readline().split()[-1]) for _ in range(2)]
        job.send_signal(number)
        assert job.wait(timeout=30) == 130
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_nohup_holds(tmp_path: Path) -> None:
    script = write(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(1)\nprint('done', flush=True)\n")
    launch = ["nohup", sys.executable, "-m", "fluidlite.launch", "--log-dir", str(tmp_path / "logs"), script]
    with subprocess.Popen(launch, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert all("up" in job.stdout.readline() for _ in range(2))
        job.send_signal(signal.SIGHUP)
        assert job.stdout.read().count("done") == 2
    assert job.returncode == 0


def test_servers_that_do_not_end_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "SERVER_GRACE", 0.5)
    script = write(tmp_path, "import os, time\nif os.environ['TRAINING_ROLE'] == 'PSERVER':\n    time.sleep(100)\n")
    job = launcher.Job([sys.executable, script], 1, 1, tmp_path / "logs", dict(os.environ))
    shown: list[str] = []
    launcher.run_job(job, lambda worker, line: shown.append(f"{worker.name}: {line}"))
    assert shown == ["pserver 0: still there 0.5 s after the last trainer, so the launcher ends it"]


def test_a_second_interrupt_ends_what_ignores_the_first(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('told to end', flush=True))\n"
        "print('pid', os.getpid(), flush=True)\n"
        "while True:\n"
        "    time.sleep(100)\n",
    )
    with subprocess.Popen(
        [*LAUNCH, "--log-dir", str(tmp_path / "logs"), script],
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout is not None
        pids = [int(job.stdout.readline().split()[-1]) for _ in range(2)]
        job.send_signal(signal.SIGINT)
        for _ in pids:
            assert "told to end" in job.stdout.readline()
        job.send_signal(signal.SIGINT)
        assert job.wait(timeout=30) == 130
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_counts_and_missing_script_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one pserver"):
        launcher.launch(["x.py"], pservers=0)
    done = cli(tmp_path, "--pservers", "1", str(tmp_path / "absent.py"))
    assert done.returncode == 2
    assert "no such file" in done.stderr.replace("\n", " ")


FAILS_AT_FIRST = """
import os, sys
role = os.environ["TRAINING_ROLE"]
started = int(os.environ["FLUIDLITE_RESTARTS"])
print("start", started, "state" if os.path.isabs(os.environ["FLUIDLITE_STATE_DIR"]) else "no state", flush=True)
if role == "TRAINER" and started < int(sys.argv[1]):
    if started:
        raise SystemExit(3)
    os.kill(os.getpid(), 9)
"""


def test_a_process_that_fails_or_is_killed_is_started_again(tmp_path: Path) -> None:
    done = cli(tmp_path, "--restart", "2", write(tmp_path, FAILS_AT_FIRST), "2")
    assert done.returncode == 0, done.stderr
    assert "[trainer 0] was ended by SIGKILL; start 2 of at most 3" in done.stdout
    assert "[trainer 0] ended with exit code 3; start 3 of at most 3" in done.stdout
    lines = (tmp_path / "logs" / "workerlog.0").read_text().splitlines()
    assert lines == ["start 0 state", "start 1 state", "start 2 state"], "one log of all its starts"
    assert not list((tmp_path / "logs").glob("state.*")), "what servers kept goes when the job has ended well"


def test_a_process_is_not_started_more_often_than_allowed(tmp_path: Path) -> None:
    script = write(
        tmp_path, "import os\nos.makedirs(os.environ['FLUIDLITE_STATE_DIR'], exist_ok=True)\n" + FAILS_AT_FIRST
    )
    done = cli(tmp_path, "--restart", "1", script, "2")
    assert done.returncode == 1
    assert "trainer 0 ended with exit code 3" in done.stderr
    (state,) = (tmp_path / "logs").glob("state.*")
    assert f"what the servers kept is in {state}; FLUIDLITE_STATE_DIR={state} goes on from there" in done.stderr


ENDS_ON_SIGTERM = """
import os, signal, sys, time
if os.environ["TRAINING_ROLE"] == "PSERVER":
    if os.environ["FLUIDLITE_STAY"] == "0":
        raise SystemExit(print("put in order", flush=True))
    if sys.argv[1] == "heeds":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("serving", flush=True)
    open(f"{sys.argv[2]}/ready.{os.environ['PADDLE_PORT']}", "x").close()
    time.sleep(100)
while sum(name.startswith("ready.") for name in os.listdir(sys.argv[2])) < 2:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("heeds", [True, False])
def test_servers_that_stay_for_trainers_are_told_to_end(tmp_path: Path, heeds: bool) -> None:
    script = write(tmp_path, ENDS_ON_SIGTERM)
    done = cli(tmp_path, "--restart", "1", "--pservers", "2", script, "heeds" if heeds else "not yet", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("] serving") == 2
    assert done.stdout.count("] put in order") == (0 if heeds else 2), "one that was struck while it started"


def test_what_a_server_kept_stays_where_it_had_to_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its last checkpoint may not be whole."""
    monkeypatch.setattr(launcher, "SERVER_GRACE", 0.5)
    monkeypatch.setattr(launcher, "TERM_GRACE", 0.1)
    script = write(
        tmp_path,
        "import os, signal, time\n"
        "from pathlib import Path\n"
        "Path(os.environ['FLUIDLITE_STATE_DIR']).mkdir(parents=True, exist_ok=True)\n"
        "ready = Path(__file__).with_name('ready')\n"
        "if os.environ['TRAINING_ROLE'] == 'PSERVER':\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    ready.touch()\n"
        "    time.sleep(100)\n"
        "while not ready.exists():\n"
        "    time.sleep(0.01)\n",
    )
    launcher.launch([script], log_dir=tmp_path / "logs", restart=1)
    (state,) = (tmp_path / "logs").glob("state.*")
    assert f"what it kept is in {state}" in capfd.readouterr().err
