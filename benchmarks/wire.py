"""Figures of one client and one server: what rows cost beyond the transport, and the transport beyond the socket."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import numpy as np

from benchmarks.figures import Figure, Sample, Settings, Target, Values
from benchmarks.servers import pair_bytes, receive, started
from benchmarks.timing import median_ms
from fluidlite.protocol.messages import Gradient, RowRequest
from fluidlite.rpc.client import grpc_port

WIDTH: Final = 16
_KINDS: Final = {"fluidlite": "pserver", "echo by our transport": "echo", "dict of rows": "dict"}


@contextmanager
def open_pull_push(settings: Settings) -> Iterator[Sequence[Sample]]:
    """Servers of every kind, each with the same rows; a sample is the median of many pairs of pull and push."""
    rows, count = settings.size(1_000_000), settings.size(13_000)
    ids = np.random.default_rng(7).choice(rows, count, replace=False).astype(np.int64)
    with ExitStack() as stack:
        calls = {}
        for name, kind in _KINDS.items():
            server = stack.enter_context(started(kind, width=WIDTH, rows=rows))
            calls[name] = stack.enter_context(grpc_pair(server, ids))
        server = stack.enter_context(started("tcp", width=WIDTH, ids=count))
        calls["raw TCP"] = stack.enter_context(tcp_pair(server["endpoint"], count))
        yield [sampler(name, call, settings) for name, call in calls.items()]


def sampler(name: str, call: Callable[[], object], settings: Settings) -> Sample:
    """Measures one pair; the dict takes a hundred times longer, so it gets fewer."""
    repeats = max(1, settings.steps // 20) if name == "dict of rows" else settings.steps

    def sample() -> Values:
        return {name: median_ms(call, repeats)}

    return sample


@contextmanager
def grpc_pair(server: dict[str, Any], ids: Any) -> Iterator[Callable[[], object]]:
    """Pull rows and push as many of gradient through a trainer's port."""
    endpoint, name = server["endpoint"], server["gradient"]
    port = grpc_port(trainer=0)
    gradient = np.full((len(ids), WIDTH), 1e-6, np.float32)

    def call() -> None:
        port.pull([RowRequest(endpoint, "emb", ids, WIDTH, "float32")])
        port.stage(Gradient(endpoint, name, gradient, rows=ids, height=0))
        port.commit([endpoint])

    try:
        yield call
    finally:
        port.complete()


@contextmanager
def tcp_pair(endpoint: str, count: int) -> Iterator[Callable[[], object]]:
    """The same bytes through a socket."""
    host, _, port = endpoint.rpartition(":")
    request, rows, push = pair_bytes(WIDTH, count)
    buffer = memoryview(bytearray(rows))
    out = bytes(push)
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def call() -> None:
            connection.sendall(out[:request])
            receive(connection, buffer)
            connection.sendall(out)
            receive(connection, buffer[:1])

        yield call


FIGURES: Final = (
    Figure(
        "pull-push",
        "pull + push of 13,000 unique ids × 16 floats, async sgd, 1 client, 1 server, table of 1 M rows",
        "ms",
        open_pull_push,
        (
            Target(
                "ms beyond the echo, limit for C kernels", "fluidlite", 1.2, ("echo by our transport",), difference=True
            ),
            Target(
                "ms beyond the echo, limit for numpy kernels",
                "fluidlite",
                2.0,
                ("echo by our transport",),
                difference=True,
            ),
            Target("echo against raw TCP", "echo by our transport", 6.0, ("raw TCP",)),
            Target("faster than a dict of rows", "dict of rows", 15.0, ("fluidlite",), at_most=False),
        ),
    ),
)
