"""A server as a process of its own: ``python -m benchmarks.servers KIND``; says where it listens, ends with its stdin.

``pserver``: a table of fluidlite, sgd. ``echo``: our transport with nothing behind it. ``dict``: our transport, rows in a
Python dict. ``tcp``: a bare socket that takes and sends as many bytes.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

import fluidlite as fluid
from benchmarks import fluidlite_ctr
from benchmarks.environment import REPO, benchmark_environment
from fluidlite.protocol.messages import (
    CommitReply,
    Identity,
    PullReply,
    PullRequest,
    Push,
    RowRequest,
    Value,
)
from fluidlite.protocol.service import Pending, Service
from fluidlite.pserver.host import Host, make_service
from fluidlite.pserver.service import PServer, Store
from fluidlite.rpc.server import GrpcServer
from fluidlite.runtime.scope import global_scope
from fluidlite.values.sparse_table import SparseTable

_LOCAL: Final = "127.0.0.1:0"
RATE: Final = np.float32(0.01)
#: rows made at a time when a table is filled
_BLOCK: Final = 1 << 16


def fill(table: SparseTable, rows: int) -> None:
    """Make rows 0 .. rows - 1, in an order that scatters any range of ids over the table."""
    order = np.random.default_rng(1).permutation(rows)
    for start in range(0, rows, _BLOCK):
        table.lookup(order[start : start + _BLOCK])


class Echo(PServer):
    """Sends as many bytes as a server of rows would, and has no rows."""

    def __init__(self, store: Store, width: int) -> None:
        super().__init__(store, trainers=1, sync=False)
        self._width = width
        self._rows = np.zeros((0, width), np.float32)

    def pull(self, identity: Identity, requests: Sequence[PullRequest]) -> PullReply:
        return PullReply(0, tuple(self.answer(request) for request in requests))

    def answer(self, request: PullRequest) -> Value:
        """Zeros, made once."""
        assert isinstance(request, RowRequest)
        if len(request.ids) != len(self._rows):
            self._rows = np.zeros((len(request.ids), self._width), np.float32)
        return self._rows

    def commit(self, push: Push) -> Pending[CommitReply]:
        return lambda: CommitReply(0)


class DictOfRows(Echo):
    """Rows as one would write them first: a dict of arrays, sgd row by row."""

    def __init__(self, store: Store, width: int, rows: int) -> None:
        super().__init__(store, width)
        self._table = {row: np.zeros(width, np.float32) for row in range(rows)}

    def answer(self, request: PullRequest) -> Value:
        """Row after row."""
        assert isinstance(request, RowRequest)
        return np.stack([self._table[row] for row in request.ids.tolist()])

    def commit(self, push: Push) -> Pending[CommitReply]:
        for gradient in push.gradients:
            assert gradient.rows is not None
            for row, value in zip(gradient.rows.tolist(), gradient.value, strict=True):
                self._table[row] -= RATE * value
        return lambda: CommitReply(0)


def table_host(width: int, rows: int) -> tuple[Host, str]:
    """What a transpiled program serves, its table filled with ``rows`` rows, and its gradient's name."""
    args = fluidlite_ctr.parser().parse_args(["--workload", "embed", "--dim", str(width)])
    fluidlite_ctr.minimize(args, fluidlite_ctr.build(args))
    transpiler = fluid.DistributeTranspiler()
    endpoint = "127.0.0.1:1"  # only a name: the server takes a free port
    transpiler.transpile(0, pservers=endpoint, trainers=1, sync_mode=False)
    program, startup = transpiler.get_pserver_programs(endpoint)
    fluid.Executor().run(startup)
    fill(global_scope().get("emb"), rows)
    (listen,) = (op for op in program.desc.root.ops if op.type == "listen_and_serv")
    (pair,) = listen.attr("sparse_grad_to_param")
    return Host(program.desc, listen, global_scope()), pair.partition(":")[0]


def service_of(kind: str, width: int, rows: int) -> tuple[Service, str]:
    """The service of a kind, and the name that its gradient has."""
    host, gradient = table_host(width, rows if kind == "pserver" else 0)
    if kind == "pserver":
        return make_service(host), gradient
    return (Echo(host, width) if kind == "echo" else DictOfRows(host, width, rows)), gradient


def serve(service: Service, gradient: str) -> None:
    """Put a service on the network until stdin ends."""
    server = GrpcServer(service, _LOCAL, trainers=1)
    print(json.dumps({"endpoint": server.endpoint, "gradient": gradient}), flush=True)
    sys.stdin.read()
    server.close()


def serve_tcp(width: int, ids: int) -> None:
    """Take ids and send rows, take ids with rows and send one byte, again and again, until the client goes."""
    request, rows, push = pair_bytes(width, ids)
    answer, buffer = bytes(rows), bytearray(push)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(json.dumps({"endpoint": f"127.0.0.1:{listener.getsockname()[1]}", "gradient": ""}), flush=True)
        connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while receive(connection, memoryview(buffer)[:request]):
            connection.sendall(answer)
            receive(connection, memoryview(buffer))
            connection.sendall(b"\0")


def pair_bytes(width: int, ids: int) -> tuple[int, int, int]:
    """Bytes of a pull's request, of its answer, and of a push."""
    return 8 * ids, 4 * width * ids, (8 + 4 * width) * ids


def receive(connection: socket.socket, into: memoryview) -> bool:
    """Fill a buffer; False when the other side is gone."""
    while len(into):
        count = connection.recv_into(into)
        if not count:
            return False
        into = into[count:]
    return True


@contextmanager
def started(kind: str, **options: int) -> Iterator[dict[str, Any]]:
    """A server in a process of its own, and what it said of itself: ``endpoint``, ``gradient``."""
    flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "benchmarks.servers", kind, *flags],
        cwd=REPO,
        env=benchmark_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        try:
            process.communicate(timeout=10)  # closes its stdin
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def main() -> None:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["pserver", "echo", "dict", "tcp"])
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ids", type=int, default=13_000, help="tcp: ids per pull and push")
    args = parser.parse_args()
    if args.kind == "tcp":
        serve_tcp(args.width, args.ids)
    else:
        serve(*service_of(args.kind, args.width, args.rows))


if __name__ == "__main__":
    main()
