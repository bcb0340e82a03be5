"""Runs one script as P pservers and T trainers on this machine: ``fluidlite launch --pservers 2 --trainers 2 train.py``.

Every process gets its role from Fluid's environment variables. The first failure ends the job; so does Ctrl-C. With
``--restart N`` a process that fails or is killed is started again, up to N times each: servers keep what they were
acknowledged for on disk, and the round waits for a trainer that is on its way back.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
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
from typing import Annotated, Final, TextIO, TypeAlias

import typer

from fluidlite.errors import LaunchError

HOST: Final = "127.0.0.1"
#: seconds that servers get to end by themselves after the last trainer, any process after SIGTERM, and the last lines of
#: an ended process
SERVER_GRACE: Final = 30.0
TERM_GRACE: Final = 10.0
OUTPUT_GRACE: Final = 1.0
#: environment variables: where servers keep their state, for how many seconds a peer is tried again and a trainer whose
#: connection broke is waited for, and how often this process was started before
STATE: Final = "FLUIDLITE_STATE_DIR"
RETRY: Final = "FLUIDLITE_RETRY_SECONDS"
GRACE: Final = "FLUIDLITE_GRACE_SECONDS"
RESTARTS: Final = "FLUIDLITE_RESTARTS"
#: servers end when they are told to
STAY: Final = "FLUIDLITE_STAY"
#: seconds that a process may be away, where it is started again
_AWAY: Final = "60"
_TAIL: Final = 40
_LONGEST_LINE: Final = 1 << 16
_END_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: a line that imports one of the packages that tell which script is whose
_IMPORT: Final = re.compile(r"\s*(?:import|from)\s+(paddle|fluidlite)\b")
_COLORS: Final = {"pserver": "magenta", "trainer": "cyan"}


@dataclass
class Worker:
    """One process of the job."""

    role: str
    index: int
    process: subprocess.Popen[bytes]
    log: Path
    env: Mapping[str, str]
    restarts: int = 0
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL))
    reader: threading.Thread | None = None

    @property
    def name(self) -> str:
        return f"{self.role} {self.index}"


#: processes in the order in which they ended; None stands for a signal that asks for the end
Ended: TypeAlias = "queue.SimpleQueue[Worker | None]"


@dataclass(frozen=True)
class Job:
    """What to run: the script with its arguments, and the environment that all processes share. ``restarts``: how often
    each process may be started again. ``endpoints``: of the pservers; by default free ones. ``server_grace``: seconds that
    servers get to end by themselves after the last trainer, None: as many as usual."""

    command: Sequence[str]
    pservers: int
    trainers: int
    log_dir: Path
    env: Mapping[str, str]
    restarts: int = 0
    endpoints: Sequence[str] = ()
    server_grace: float | None = None


def free_endpoints(count: int) -> list[str]:
    """``host:port`` on loopback, distinct and free at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((HOST, 0))
        return [f"{HOST}:{sock.getsockname()[1]}" for sock in sockets]


def role_env(job: Job) -> Iterator[tuple[str, int, dict[str, str]]]:
    """(role, index, environment) of every process, servers first. At the endpoints of the trainers nobody listens, unless
    they exchange values themselves (`fluidlite.compat.fleet.gather`)."""
    free = free_endpoints(job.pservers + job.trainers)
    servers = job.endpoints or free[: job.pservers]
    common = {
        **job.env,
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(servers),
        "PADDLE_TRAINERS_NUM": str(job.trainers),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(free[job.pservers :]),
    }
    for index, endpoint in enumerate(servers):
        host, port = endpoint.rsplit(":", 1)
        yield "pserver", index, {**common, "TRAINING_ROLE": "PSERVER", "POD_IP": host, "PADDLE_PORT": port}
    for index in range(job.trainers):
        yield "trainer", index, {**common, "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(index)}


def run_job(job: Job, show: Callable[[Worker, str], None]) -> bool:
    """Start every process and wait for the end; whether all ended by themselves, or where they were told to in time.

    ``show`` gets every line of output, and may fail: the job goes on without it. Trainers end the job; servers then end
    by themselves, or are told to. Raises LaunchError for the first process that fails or cannot be started, and
    KeyboardInterrupt when SIGINT, SIGTERM or SIGHUP asked for the end; whatever is raised, no process is left.
    """
    ended: Ended = queue.SimpleQueue()
    workers: list[Worker] = []
    shown = _Sink("showing the output", show)
    with _signals_to(ended):
        try:
            for role, index, env in role_env(job):
                workers.append(_start(job, role, index, env, shown, ended))
            return _await_end(job, workers, ended, shown)
        finally:
            _stop(workers, ended)


@contextlib.contextmanager
def _signals_to(ended: Ended) -> Iterator[None]:
    """Signals that ask for the end are put into the queue, so that none strikes between the start of a process and the
    note of it, or while processes are being ended. Ignored ones stay ignored: under nohup the job goes on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heeded = [number for number in _END_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, lambda *_: ended.put(None)) for number in heeded}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _start(
    job: Job, role: str, index: int, env: Mapping[str, str], shown: _Sink, ended: Ended, restarts: int = 0
) -> Worker:
    """Start one process, and the threads that copy its output and wait for its end. One that was started before adds to
    its log."""
    path = job.log_dir / f"{'serverlog' if role == 'pserver' else 'workerlog'}.{index}"
    with contextlib.ExitStack() as stack:
        try:
            job.log_dir.mkdir(parents=True, exist_ok=True)
            log = stack.enter_context(path.open("a" if restarts else "w", encoding="utf-8"))
            process = subprocess.Popen(
                list(job.command),
                env={**env, RESTARTS: str(restarts)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"{role} {index} cannot be started with its output in {path}: {error}") from error
        stack.pop_all()
    worker = Worker(role, index, process, path, env, restarts)
    worker.reader = threading.Thread(target=_copy_output, args=(worker, log, shown), daemon=True)
    worker.reader.start()
    threading.Thread(target=_report_end, args=(worker, ended), daemon=True).start()
    return worker


def _copy_output(worker: Worker, log: TextIO, shown: _Sink) -> None:
    """Copy line by line (a very long one in pieces). It goes on when the log or the screen fails: a process whose output
    nobody reads would stop."""
    assert worker.process.stdout is not None
    logged = _Sink(f"the log {worker.log}", lambda line: print(line, file=log, flush=True))
    with worker.process.stdout as stdout:
        for raw in iter(lambda: stdout.readline(_LONGEST_LINE), b""):
            line = raw.decode("utf-8", "replace").rstrip("\n")
            worker.tail.append(line)
            logged.take(line)
            shown.take(worker, line)
    with contextlib.suppress(OSError):
        log.close()


class _Sink:
    """Hands on what it takes until that fails; says so once, and drops the rest."""

    def __init__(self, what: str, take: Callable[..., None]) -> None:
        self._what = what
        self._take: Callable[..., None] | None = take

    def take(self, *args: object) -> None:
        take = self._take
        if take is None:
            return
        try:
            take(*args)
        except Exception as error:
            self._take = None
            with contextlib.suppress(OSError):
                typer.echo(f"fluidlite launch: {self._what} failed, the job goes on without: {error}", err=True)


def _report_end(worker: Worker, ended: Ended) -> None:
    """Wait for a process, and a little for its last lines: children that it left behind may hold its output open."""
    worker.process.wait()
    _join(worker)
    ended.put(worker)


def _join(worker: Worker) -> bool:
    """Whether the output of an ended process has come to its end."""
    assert worker.reader is not None
    worker.reader.join(OUTPUT_GRACE)
    return not worker.reader.is_alive()


def _await_end(job: Job, workers: list[Worker], ended: Ended, shown: _Sink) -> bool:
    """Wait for all trainers, then for the servers to end by themselves, and whether they did; says which did not, and are
    told to. What fails is started again as often as it may be, and takes its place in ``workers``."""
    running = list(workers)
    grace = SERVER_GRACE if job.server_grace is None else job.server_grace
    deadline: float | None = None
    while running:
        if deadline is None and all(worker.role == "pserver" for worker in running):
            deadline = time.monotonic() + grace
            for server in running if job.restarts else ():  # they stayed, for a trainer might have come back
                _signal(server, signal.SIGTERM)
        try:
            worker = ended.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            for server in running:
                shown.take(server, f"still there {grace:g} s after the last trainer, so the launcher ends it")
            return False
        if worker is None:
            raise KeyboardInterrupt
        running.remove(worker)
        if worker.process.returncode != 0:
            again = _again(job, worker, shown, ended, stay=deadline is None)
            workers[workers.index(worker)] = again
            running.append(again)
    return True


def _again(job: Job, worker: Worker, shown: _Sink, ended: Ended, *, stay: bool) -> Worker:
    """Start a process again that failed; raises LaunchError when it must not be. Not ``stay``: no trainer will come back,
    so a server ends when it has put its state in order."""
    if worker.restarts >= job.restarts:
        raise _failure(worker)
    count = worker.restarts + 1
    shown.take(worker, f"{_reason(worker)}; start {count + 1} of at most {job.restarts + 1}")
    env = worker.env if stay else {**worker.env, STAY: "0"}
    return _start(job, worker.role, worker.index, env, shown, ended, count)


def _reason(worker: Worker) -> str:
    code = worker.process.returncode
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _failure(worker: Worker) -> LaunchError:
    reason = _reason(worker)
    tail = "\n".join(f"  {line}" for line in worker.tail) or "  (it printed nothing)"
    return LaunchError(f"{worker.name} {reason}; its last lines (all of them in {worker.log}):\n{tail}")


def _stop(workers: Sequence[Worker], ended: Ended) -> None:
    """End what still runs, whole process groups: SIGTERM, and SIGKILL after a while or at the next signal. Children that
    outlive their process and hold its output open are ended, too."""
    running = [worker for worker in workers if worker.process.poll() is None]
    for worker in running:
        _signal(worker, signal.SIGTERM)
    deadline = time.monotonic() + TERM_GRACE
    with contextlib.suppress(queue.Empty):
        while running and (gone := ended.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
            running = [worker for worker in running if worker is not gone]
    for worker in running:
        _signal(worker, signal.SIGKILL)
        worker.process.wait()
    for worker in workers:
        if not _join(worker):
            _signal(worker, signal.SIGKILL)
            _join(worker)


def _signal(worker: Worker, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.process.pid, number)


def make_env(pservers: int, trainers: int, seed: int, state: Path | None = None) -> dict[str, str]:
    """The environment that all processes share: ours, a job id, the seed, and a fair share of the cores for BLAS.

    With ``state``, processes may be started again: servers keep what they are there, and everybody is patient with who is
    away. What our environment says already stays.
    """
    threads = str(max(1, (os.cpu_count() or 1) // (pservers + trainers)))
    env = {
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        **({STATE: str(state), RETRY: _AWAY, GRACE: _AWAY, STAY: "1"} if state is not None else {}),
        **os.environ,
        "FLUIDLITE_JOB": uuid.uuid4().hex,
    }
    if seed:
        env["FLUIDLITE_SEED"] = str(seed)
    return env


def launch(
    script: Sequence[str],
    pservers: int = 1,
    trainers: int = 1,
    log_dir: str | Path = "logs",
    seed: int = 0,
    restart: int = 0,
    compat: bool | None = None,
) -> None:
    """Run ``script`` (path and arguments) as a job on this machine, printing every line with its role in front.

    ``restart``: how often each process may be started again after it failed or was killed. Servers then keep their state
    in ``log_dir``, until the job has ended well. ``compat``: whether the script finds fluidlite as ``paddle``, as under
    ``fluidlite run``; by default one does that imports paddle and not fluidlite. Raises LaunchError when a process fails for good and ValueError for
    counts out of range.
    """
    if pservers < 1 or trainers < 1 or restart < 0:
        raise ValueError(
            f"a job needs at least one pserver and one trainer and no negative restarts, not {pservers}, {trainers}, {restart}"
        )
    logs = Path(log_dir)
    state = logs.absolute() / f"state.{uuid.uuid4().hex}" if restart else None
    env = make_env(pservers, trainers, seed, state)
    try:
        well = run_job(Job(command_line(script, compat), pservers, trainers, logs, env, restart), show)
    except LaunchError as error:
        if state is None or not state.exists():
            raise
        raise LaunchError(f"{error}\nwhat the servers kept is in {state}; {STATE}={state} goes on from there") from None
    if state is not None and well:
        shutil.rmtree(state, ignore_errors=True)
    elif state is not None:
        typer.echo(f"fluidlite launch: a server did not end in time; what it kept is in {state}", err=True)


def command_line(script: Sequence[str], compat: bool | None) -> list[str]:
    """How python runs a script: as it is, or with fluidlite as its ``paddle``."""
    wanted = is_for_fluid(Path(script[0])) if compat is None else compat
    return [sys.executable, *(["-m", "fluidlite.compat"] if wanted else []), *script]


def is_for_fluid(script: Path) -> bool:
    """Whether a script imports paddle and not fluidlite. What cannot be read is left to python to complain about."""
    try:
        lines = script.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    imported = {found[1] for line in lines if (found := _IMPORT.match(line))}
    return "paddle" in imported and "fluidlite" not in imported


def show(worker: Worker, line: str) -> None:
    """Print a line with its role in front; what the terminal's encoding lacks becomes a question mark."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    printable = line.encode(encoding, "replace").decode(encoding)
    typer.echo(f"{typer.style(f'[{worker.name}]', fg=_COLORS[worker.role])} {printable}")


def command(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="the training script; arguments after it are its own")],
    pservers: Annotated[int, typer.Option(min=1, help="number of parameter servers")] = 1,
    trainers: Annotated[int, typer.Option(min=1, help="number of trainers")] = 1,
    log_dir: Annotated[Path, typer.Option(help="folder that keeps each process' output")] = Path("logs"),
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="seed of all first values; 0: the default, equal in every run")
    ] = 0,
    restart: Annotated[
        int, typer.Option(min=0, help="how often a process that failed or was killed is started again; nothing is lost")
    ] = 0,
    compat: Annotated[
        bool | None,
        typer.Option(help="whether `import paddle` finds fluidlite; by default where only paddle is imported"),
    ] = None,
) -> None:
    """Run one script as parameter servers and trainers on this machine."""
    if not script.is_file():
        raise typer.BadParameter(f"no such file: {script}")
    try:
        launch([str(script), *context.args], pservers, trainers, log_dir, seed, restart, compat)
    except LaunchError as error:
        typer.echo(f"fluidlite launch: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("fluidlite launch: interrupted; all processes were ended", err=True)
        raise typer.Exit(130) from None
    finally:
        _forget_broken_stdout()


def _forget_broken_stdout() -> None:
    """Output that nobody reads any more would fail once more when the interpreter ends, and change the exit code."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


#: options after the script belong to the script
CONTEXT: Final = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def main() -> None:
    """``python -m fluidlite.launch``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(context_settings=CONTEXT)(command)
    app()


if __name__ == "__main__":
    main()
