"""A pserver or a trainer as a process of its own: ``python -m tests.pserver_process server|async_server|trainer ...``."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fluidlite.protocol.messages import DenseRequest, Gradient
from fluidlite.pserver.host import Host, make_service
from fluidlite.rpc.client import grpc_port
from fluidlite.rpc.server import serve
from tests.pserver_program import pserver_program
from tests.shared_data import REPO


def server(trainers: int, sync: bool) -> None:
    """Serve the program of tests/pserver_program.py; print the endpoint."""
    host = Host(*pserver_program(sync=sync, trainers=trainers))
    serve(make_service(host), "127.0.0.1:0", trainers=trainers, on_bound=lambda endpoint: print(endpoint, flush=True))


def trainer(endpoint: str, trainer: int, ending: str) -> None:
    """Pull, say so, and then end without a word when told to on stdin (``wait``), or at once (``vanish``), or train."""
    port = grpc_port(trainer=trainer)
    port.pull([DenseRequest(endpoint, "w")])
    print("pulled", flush=True)
    if ending == "wait":
        sys.stdin.readline()
    elif ending == "train":
        for _ in range(5):
            port.stage(Gradient(endpoint, "w@GRAD", np.ones(3)))
            port.commit([endpoint])
        port.complete()


@contextmanager
def started(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and the first line that it prints."""
    command = [sys.executable, "-m", "tests.pserver_process", *map(str, arguments)]
    process = subprocess.Popen(
        command, cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    if sys.argv[1] != "trainer":
        server(int(sys.argv[2]), sync=sys.argv[1] == "server")
    else:
        trainer(sys.argv[2], int(sys.argv[3]), sys.argv[4])
