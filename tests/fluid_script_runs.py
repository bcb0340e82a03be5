"""Runs scripts of `tests/fluid_scripts` as their users do, with real Fluid or with fluidlite, and reads what they print.

Only the standard library, so that the recorder may use it with any Python. A script prints its numbers as lines such as
``step 3 loss 0.6931472 auc 0.5`` or ``test loss 0.7``; all other lines are for people.
"""

from __future__ import annotations

import math
import os
import random
import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

FOLDER = Path(__file__).parent / "fluid_scripts"
SCRIPTS = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
RECORDED = FOLDER / "losses.json"
#: on 127.0.0.1 and 127.0.0.2, for scripts that take addresses and one port must find each server at the same port
ADDRESSES = ("127.0.0.1", "127.0.0.2")
TRAINERS = 2

_NUMBERS = re.compile(r"^(?:step \d+|test)(?: \w+ [-+\w.]+)+$")


class ScriptFailed(Exception):
    """A process ended with an error, or did not end."""


def numbers_of(output: str) -> list[str]:
    """The lines that hold numbers."""
    return [line for line in output.splitlines() if _NUMBERS.match(line)]


def close(found: Sequence[str], recorded: Sequence[str], relative: float, absolute: float) -> str:
    """What is different in two runs' lines of numbers; empty when they are close."""
    if len(found) != len(recorded):
        return f"{len(found)} lines, not {len(recorded)}"
    for ours, theirs in zip(found, recorded, strict=True):
        ours_, theirs_ = [list(map(_number, line.split(" "))) for line in (ours, theirs)]
        if len(ours_) != len(theirs_) or not all(
            a == b
            or (
                isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=relative, abs_tol=absolute)
            )
            for a, b in zip(ours_, theirs_, strict=True)
        ):
            return f"{ours!r} is not {theirs!r}"
    return ""


def _number(word: str) -> str | float:
    try:
        return float(word)
    except ValueError:
        return word


def plays_roles(script: Path) -> bool:
    """Whether the script can be a trainer or a server; else it runs alone only."""
    return "TRAINING_ROLE" in script.read_text("utf-8")


def run_local(command: Sequence[str], seconds: float = 100) -> list[str]:
    """The numbers of one process that plays no role."""
    with _running([_Process(command, {})]) as (process,):
        return numbers_of(process.output(seconds))


def run_job(command: Sequence[str], seconds: float = 100, *, servers_end: bool = True) -> list[list[str]]:
    """The numbers of each trainer, in a job of two and two servers. Real Fluid's servers do not end by themselves."""
    port = _port_of_all(ADDRESSES)
    roles = [_server_environment(address, port) for address in ADDRESSES]
    roles += [_trainer_environment(trainer, port) for trainer in range(TRAINERS)]
    with _running([_Process(command, role) for role in roles]) as processes:
        servers, trainers = processes[: len(ADDRESSES)], processes[len(ADDRESSES) :]
        try:
            found = [numbers_of(trainer.output(seconds)) for trainer in trainers]
            if servers_end:
                for server in servers:
                    server.output(seconds)
        except ScriptFailed as error:
            raise ScriptFailed("\n".join([str(error), *(f"server:\n{server.log()}" for server in servers)])) from None
        return found


def _job_environment(port: int) -> dict[str, str]:
    return {
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(f"{address}:{port}" for address in ADDRESSES),
        "PADDLE_PSERVER_IPS": ",".join(ADDRESSES),  # so the demos of Fluid's book have it
        "PADDLE_PSERVER_PORT": str(port),
        "PADDLE_PORT": str(port),
        "PADDLE_TRAINERS_NUM": str(TRAINERS),
        "PADDLE_TRAINERS": str(TRAINERS),
    }


def _server_environment(address: str, port: int) -> dict[str, str]:
    role = {"TRAINING_ROLE": "PSERVER", "PADDLE_TRAINING_ROLE": "PSERVER", "POD_IP": address}
    return _job_environment(port) | role | {"PADDLE_CURRENT_IP": address}


def _trainer_environment(trainer: int, port: int) -> dict[str, str]:
    role = {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(trainer)}
    return _job_environment(port) | role


class _Process:
    """A script that runs in a folder of its own, where it may write."""

    def __init__(self, command: Sequence[str], role: dict[str, str]) -> None:
        self.folder = TemporaryDirectory()
        self._log = Path(self.folder.name) / "output.txt"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                list(command),
                cwd=self.folder.name,
                env=_environment(role),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def log(self) -> str:
        """What it printed so far."""
        return self._log.read_text("utf-8", errors="replace")

    def output(self, seconds: float) -> str:
        """What it printed, when it has ended well."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ScriptFailed(f"did not end in {seconds:.0f} s\n{self.log()}") from None
        if code:
            raise ScriptFailed(f"exit code {code}\n{self.log()}")
        return self.log()


def _environment(role: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not re.match(r"PADDLE_|TRAINING_ROLE|.*_proxy$", name)}
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CPU_NUM": "1"}
    return kept | threads | {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"} | role


@contextmanager
def _running(processes: list[_Process]) -> Iterator[list[_Process]]:
    try:
        yield processes
    finally:
        for one in processes:
            one.process.kill()
            one.process.wait()
            one.folder.cleanup()


def _port_of_all(addresses: Sequence[str]) -> int:
    """A port that is free on all of them, below those that the system gives to whoever asks for any."""
    chosen = random.Random()  # jobs side by side must not agree
    while True:
        port = chosen.randrange(10000, 32000)
        if all(_free(address, port) for address in addresses):
            return port


def _free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
