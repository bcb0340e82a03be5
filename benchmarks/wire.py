"""Figures of one client and one server: what rows cost beyond the transport, and the transport beyond the socket."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import numpy as np

from benchmarks.figures import Figure, Sample, Settings, Target
from benchmarks.inside import KERNELS, with_kernels
from benchmarks.servers import pair_bytes, receive, started
from benchmarks.timing import median_ms
from fluidlite.protocol.messages import Gradient, RowRequest
from fluidlite.rpc.client import grpc_port

WIDTH: Final = 16
_IDS: Final = 13_000
_ECHO: Final = "echo by our transport"
_DICT: Final = "dict of rows"
_OURS: Final = "fluidlite"
_C, _NUMPY = (f"{_OURS} ({kernels})" for kernels in KERNELS)


@contextmanager
def open_pull_push(settings: Settings) -> Iterator[Sequence[Sample]]:
    """Servers of every kind, each with the same rows; a sample is the median of many pairs of pull and push.

    Ours run twice, client and server with C kernels and with numpy kernels.
    """
    count = settings.size(_IDS)
    with ExitStack() as stack:
        samples = [stack.enter_context(with_kernels(open_ours, kernels, settings)) for kernels in KERNELS]
        for name, kind in ((_ECHO, "echo"), (_DICT, "dict")):
            samples += stack.enter_context(open_kind(name, kind, settings))
        server = stack.enter_context(started("tcp", width=WIDTH, ids=count))
        call = stack.enter_context(tcp_pair(server["endpoint"], count))
        yield [*samples, lambda: {"raw TCP": median_ms(call, settings.steps)}]


@contextmanager
def open_ours(settings: Settings) -> Iterator[Sequence[Sample]]:
    """A server of rows."""
    with open_kind(_OURS, "pserver", settings) as samples:
        yield samples


@contextmanager
def open_kind(name: str, kind: str, settings: Settings) -> Iterator[Sequence[Sample]]:
    """A server of one kind and a client; the dict takes a hundred times longer, so it gets fewer pairs."""
    rows, count = settings.size(1_000_000), settings.size(_IDS)
    ids = np.random.default_rng(7).choice(rows, count, replace=False).astype(np.int64)
    repeats = max(1, settings.steps // 20) if kind == "dict" else settings.steps
    with started(kind, width=WIDTH, rows=rows) as server, grpc_pair(server, ids) as call:
        yield [lambda: {name: median_ms(call, repeats)}]


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
            Target("ms beyond the echo, C kernels", _C, 1.2, (_ECHO,), difference=True),
            Target("ms beyond the echo, numpy kernels", _NUMPY, 2.0, (_ECHO,), difference=True),
            Target("echo against raw TCP", _ECHO, 6.0, ("raw TCP",)),
            Target("C kernels faster than a dict of rows", _DICT, 15.0, (_C,), at_most=False),
        ),
        steps=300,
    ),
)
