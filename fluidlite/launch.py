"""Runs one script as P pservers and T trainers on this machine: ``fluidlite launch --pservers 2 --trainers 2 train.py``.

Every process gets its role from Fluid's environment variables. The first failure ends the job; so does Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from fluidlite.errors import LaunchError

HOST: Final = "127.0.0.1"
#: seconds that servers get to end by themselves after the last trainer, and any process after SIGTERM
SERVER_GRACE: Final = 30.0
TERM_GRACE: Final = 10.0
_TAIL: Final = 40
_COLORS: Final = {"pserver": "magenta", "trainer": "cyan"}


@dataclass
class Worker:
    """One process of the job."""

    role: str
    index: int
    process: subprocess.Popen[bytes]
    log: Path
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL))
    reader: threading.Thread | None = None

    @property
    def name(self) -> str:
        return f"{self.role} {self.index}"


@dataclass(frozen=True)
class Job:
    """What to run: the script with its arguments, and the environment that all processes share."""

    command: Sequence[str]
    pservers: int
    trainers: int
    log_dir: Path
    env: Mapping[str, str]


def free_endpoints(count: int) -> list[str]:
    """``host:port`` on loopback, distinct and free at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((HOST, 0))
        return [f"{HOST}:{sock.getsockname()[1]}" for sock in sockets]


def role_env(job: Job, endpoints: Sequence[str]) -> Iterator[tuple[str, int, dict[str, str]]]:
    """(role, index, environment) of every process, servers first."""
    common = {
        **job.env,
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(endpoints),
        "PADDLE_TRAINERS_NUM": str(job.trainers),
    }
    for index, endpoint in enumerate(endpoints):
        host, port = endpoint.rsplit(":", 1)
        yield "pserver", index, {**common, "TRAINING_ROLE": "PSERVER", "POD_IP": host, "PADDLE_PORT": port}
    for index in range(job.trainers):
        yield "trainer", index, {**common, "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(index)}


def run_job(job: Job, show: Callable[[Worker, str], None]) -> None:
    """Start every process and wait for the end; raises LaunchError for the first one that fails.

    ``show`` gets every line of output. Trainers end the job; servers then end by themselves, or are told to.
    """
    job.log_dir.mkdir(parents=True, exist_ok=True)
    ended: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    workers: list[Worker] = []
    try:
        for role, index, env in role_env(job, free_endpoints(job.pservers)):
            workers.append(_start(job, role, index, env))
            _watch(workers[-1], show, ended)
        _await_trainers(workers, ended)
        _await_servers(workers, show)
    finally:
        _stop(workers)
        for worker in workers:
            if worker.reader is not None:
                worker.reader.join(TERM_GRACE)


def _start(job: Job, role: str, index: int, env: Mapping[str, str]) -> Worker:
    process = subprocess.Popen(
        list(job.command),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    log_name = "serverlog" if role == "pserver" else "workerlog"
    return Worker(role, index, process, job.log_dir / f"{log_name}.{index}")


def _watch(worker: Worker, show: Callable[[Worker, str], None], ended: queue.SimpleQueue[Worker]) -> None:
    def read() -> None:
        assert worker.process.stdout is not None
        with worker.log.open("w", encoding="utf-8") as log, worker.process.stdout as stdout:
            for raw in stdout:
                line = raw.decode("utf-8", "replace").rstrip("\n")
                log.write(line + "\n")
                log.flush()
                worker.tail.append(line)
                show(worker, line)
        worker.process.wait()
        ended.put(worker)

    worker.reader = threading.Thread(target=read, name=f"log of {worker.name}", daemon=True)
    worker.reader.start()


def _await_trainers(workers: Sequence[Worker], ended: queue.SimpleQueue[Worker]) -> None:
    waiting = sum(worker.role == "trainer" for worker in workers)
    while waiting:
        worker = ended.get()
        if worker.process.returncode != 0:
            raise _failure(worker)
        if worker.role == "trainer":
            waiting -= 1


def _await_servers(workers: Sequence[Worker], show: Callable[[Worker, str], None]) -> None:
    """Wait for the servers to end by themselves; says which of them did not, and are told to."""
    deadline = time.monotonic() + SERVER_GRACE
    for worker in workers:
        if worker.role == "pserver":
            try:
                code = worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                show(worker, f"still there {SERVER_GRACE:g} s after the last trainer, so the launcher ends it")
                continue
            if code != 0:
                raise _failure(worker)


def _failure(worker: Worker) -> LaunchError:
    if worker.reader is not None:
        worker.reader.join(TERM_GRACE)  # until its last lines are there
    code = worker.process.returncode
    reason = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    tail = "\n".join(f"  {line}" for line in worker.tail) or "  (it printed nothing)"
    return LaunchError(f"{worker.name} {reason}; its last lines (all of them in {worker.log}):\n{tail}")


def _stop(workers: Sequence[Worker]) -> None:
    """End what still runs: SIGTERM, then SIGKILL to whole process groups."""
    running = [worker for worker in workers if worker.process.poll() is None]
    for worker in running:
        _signal(worker, signal.SIGTERM)
    deadline = time.monotonic() + TERM_GRACE
    try:
        for worker in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))
    finally:  # also when a second Ctrl-C ends the wait
        for worker in running:
            if worker.process.poll() is None:
                _signal(worker, signal.SIGKILL)
                worker.process.wait()


def _signal(worker: Worker, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.process.pid, number)


def make_env(pservers: int, trainers: int, seed: int) -> dict[str, str]:
    """The environment that all processes share: ours, a job id, the seed, and a fair share of the cores for BLAS."""
    threads = str(max(1, (os.cpu_count() or 1) // (pservers + trainers)))
    env = {
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        "FLUIDLITE_JOB": uuid.uuid4().hex,
    }
    if seed:
        env["FLUIDLITE_SEED"] = str(seed)
    return env


def launch(
    script: Sequence[str], pservers: int = 1, trainers: int = 1, log_dir: str | Path = "logs", seed: int = 0
) -> None:
    """Run ``script`` (path and arguments) as a job on this machine, printing every line with its role in front.

    Raises LaunchError when a process fails and ValueError for counts below 1.
    """
    if pservers < 1 or trainers < 1:
        raise ValueError(f"a job needs at least one pserver and one trainer, not {pservers} and {trainers}")
    console = Console(highlight=False, soft_wrap=True)

    def show(worker: Worker, line: str) -> None:
        console.print(Text(f"[{worker.name}] ", style=_COLORS[worker.role]) + Text(line))

    command = [sys.executable, *script]
    job = Job(command, pservers, trainers, Path(log_dir), make_env(pservers, trainers, seed))
    run_job(job, show)


def _raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def command(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="the training script; arguments after it are its own")],
    pservers: Annotated[int, typer.Option(min=1, help="number of parameter servers")] = 1,
    trainers: Annotated[int, typer.Option(min=1, help="number of trainers")] = 1,
    log_dir: Annotated[Path, typer.Option(help="folder that keeps each process' output")] = Path("logs"),
    seed: Annotated[int, typer.Option(help="seed of all first values; 0: the default, equal in every run")] = 0,
) -> None:
    """Run one script as parameter servers and trainers on this machine."""
    if not script.is_file():
        raise typer.BadParameter(f"no such file: {script}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _raise_interrupt)
    try:
        launch([str(script), *context.args], pservers, trainers, log_dir, seed)
    except LaunchError as error:
        typer.echo(f"fluidlite launch: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("fluidlite launch: interrupted; all processes were ended", err=True)
        raise typer.Exit(130) from None


#: options after the script belong to the script
CONTEXT: Final = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def main() -> None:
    """``python -m fluidlite.launch``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings=CONTEXT)(command)
    app()


if __name__ == "__main__":
    main()
