"""Records what the processes of a job say to each other: ``FLUIDLITE_ORACLE_PYTHON=... python -m tests.oracle.wire_record``
writes tests/fluid_values/wire anew, from jobs of real Fluid."""

from __future__ import annotations

import json
import lzma
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc

FOLDER = Path(__file__).parent.parent / "fluid_values" / "wire"
_SIZES = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.enable_http_proxy", 0)]


class Exchange(NamedTuple):
    """One request and its reply. ``trainer``: who asked, ``server``: the position of who answered."""

    server: int
    trainer: int
    method: str
    request: bytes
    reply: bytes


class Record(NamedTuple):
    """A job: its exchanges in the order in which they were asked, and the losses of each trainer."""

    endpoints: list[str]
    trainers: int
    kind: str
    losses: list[list[float]]
    exchanges: list[Exchange]


def write(path: Path, record: Record) -> None:
    """A header in JSON, its length before it, and all messages behind it; compressed."""
    lengths = [[*item[:3], len(item.request), len(item.reply)] for item in record.exchanges]
    header = json.dumps({**record._asdict(), "exchanges": lengths}).encode()
    body = b"".join(item.request + item.reply for item in record.exchanges)
    path.write_bytes(lzma.compress(len(header).to_bytes(4, "little") + header + body, preset=9))


def read(path: Path) -> Record:
    data = lzma.decompress(path.read_bytes())
    at = 4 + int.from_bytes(data[:4], "little")
    header = json.loads(data[4:at])
    exchanges = []
    for server, trainer, method, asked, answered in header["exchanges"]:
        request, reply = data[at : at + asked], data[at + asked : at + asked + answered]
        exchanges.append(Exchange(server, trainer, method, request, reply))
        at += asked + answered
    return Record(**{**header, "exchanges": exchanges})


class Recorder:
    """Stands before a server: passes every call on, and keeps what was said. Who asks is told by connection: see `peers`."""

    def __init__(self, server: int, target: str, calls: list[list[Any]]) -> None:
        self._server = server
        self._calls = calls
        self._lock = threading.Lock()
        self._channel = grpc.insecure_channel(target, options=_SIZES)
        self._grpc = grpc.server(ThreadPoolExecutor(max_workers=64), options=_SIZES)
        self.endpoint = f"127.0.0.1:{self._grpc.add_insecure_port('127.0.0.1:0')}"
        self._grpc.add_generic_rpc_handlers((self,))
        self._grpc.start()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """gRPC's hook: how any method is handled."""
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._pass_on(details.method, request, context)
        )

    def _pass_on(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        call = [self._server, context.peer(), method.rpartition("/")[2], request, None]
        with self._lock:
            self._calls.append(call)
        # Fluid answers a barrier by no message at all, which gRPC gives as None
        call[4] = self._channel.unary_unary(method)(request, wait_for_ready=True) or b""
        return call[4]

    def close(self) -> None:
        self._grpc.stop(0)
        self._channel.close()


def exchanges_of(calls: Sequence[Sequence[Any]]) -> list[Exchange]:
    """Calls with their trainers: a connection that sends a gradient says whose it is."""
    from fluidlite.core.names import parse_slice
    from fluidlite.proto_gen import fluid_pb2 as pb

    whose = {}
    for _, peer, method, request, _ in calls:
        if method == "SendVariable":
            trainer = parse_slice(pb.VariableMessage.FromString(request).varname).trainer
            if trainer is not None:
                whose[peer] = trainer
    return [Exchange(server, whose[peer], *rest) for server, peer, *rest in calls]


def record(python: str, kind: str, steps: int, trainers: int = 2) -> Record:
    """The record of a job of real Fluid with two servers."""
    from tests.oracle.wire_processes import Job, Way

    calls: list[list[Any]] = []
    with Job(Way((python,)), Way((python,)), kind, steps, trainers) as job:
        recorders = [Recorder(index, endpoint, calls) for index, endpoint in enumerate(job.endpoints)]
        losses = job.train([recorder.endpoint for recorder in recorders])
        for recorder in recorders:
            recorder.close()
    return Record([recorder.endpoint for recorder in recorders], trainers, kind, losses, exchanges_of(calls))


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for kind in ("dense", "sparse_decay"):
        write(FOLDER / f"{kind}.bin.xz", record(os.environ["FLUIDLITE_ORACLE_PYTHON"], kind, 3))


if __name__ == "__main__":
    main()
