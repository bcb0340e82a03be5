"""The processes of tests/oracle/wire_job.py, each run in the way that it is given."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

SCRIPT = Path(__file__).parent / "wire_job.py"
REPO = SCRIPT.parent.parent.parent
_QUIET = {"GLOG_v": "0", "GLOG_minloglevel": "1", "OMP_NUM_THREADS": "1"}


class Way(NamedTuple):
    """How a process is run: what comes before the script, and what its environment has besides."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


class Job:
    """Two servers that run, and trainers that are started by `train`. Ends all of them when it is left."""

    def __init__(self, servers: Way, trainers: Way, kind: str, steps: int, count: int = 2, wait: float = 150.0) -> None:
        self._trainers, self._kind, self._steps, self._count, self._wait = trainers, kind, steps, count, wait
        self.endpoints = free_endpoints(2)
        given = ",".join(self.endpoints)
        self.servers = [start(servers, "pserver", index, given, count, kind, 0) for index in range(2)]
        self._running: list[subprocess.Popen[str]] = list(self.servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.kill()
            process.communicate()

    def train(
        self, endpoints: Sequence[str] | None = None, steps: Sequence[int] | None = None, kind: str = ""
    ) -> list[list[float]]:
        """Run one trainer for each number of ``steps``; their losses. They are given ``endpoints``, and train a ``kind``, other
        than their servers' if that is said."""
        for endpoint, server in zip(self.endpoints, self.servers, strict=True):
            until_listening(endpoint, server, self._wait)
        given = ",".join(endpoints or self.endpoints)
        lengths = steps or [self._steps] * self._count
        processes = [
            start(self._trainers, "trainer", index, given, self._count, kind or self._kind, length)
            for index, length in enumerate(lengths)
        ]
        self._running += processes
        return [losses_of(process, self._wait) for process in processes]


def start(way: Way, *arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, **_QUIET, "PYTHONPATH": "", **dict(way.environment)}
    command = ["nice", "-n", "19", *way.command, str(SCRIPT), *map(str, arguments)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=REPO, env=environment, **pipes)


def losses_of(process: subprocess.Popen[str], within: float) -> list[float]:
    out, errors = process.communicate(timeout=within)
    assert process.returncode == 0, errors
    return [float(loss) for loss in json.loads(out.strip().splitlines()[-1])]


def free_endpoints(count: int) -> list[str]:
    """Ports that nobody has now; held together, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    found = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return found


def until_listening(endpoint: str, server: subprocess.Popen[str], within: float) -> None:
    host, _, port = endpoint.rpartition(":")
    ends = time.monotonic() + within
    while time.monotonic() < ends:
        if server.poll() is not None:
            raise AssertionError(f"the server of {endpoint} ended: {server.communicate()[1]}")
        with suppress(OSError), socket.create_connection((host, int(port)), 1):
            return
        time.sleep(0.1)  # no signal says that a foreign process listens
    raise AssertionError(f"the server of {endpoint} does not listen")
