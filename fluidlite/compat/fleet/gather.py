"""Values that the processes of a job exchange among themselves: barrier, sum, minimum, maximum, and all of them.

The first member of a group serves it at its own endpoint, over TCP, one line of JSON per message: a member says which call
of which group it is and what it gives, and gets everybody's values when the last one has called. Numbers travel as Python
prints them, so they arrive exactly.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from fluidlite.environment import seconds
from fluidlite.errors import AddressInUseError, FleetError, NotSupported, PeerLostError

#: what `all_reduce` can make of the values of all members
REDUCTIONS: Final[Mapping[str, Callable[..., Any]]] = {"sum": sum, "min": min, "max": max}
#: seconds between two attempts to reach the first member, and until the last answers are out at the end
_AGAIN: Final = 0.05
_LAST_ANSWERS: Final = 10.0


class Group(Protocol):
    """Processes that call the same functions in the same order."""

    def all_gather(self, value: Any) -> list[Any]:
        """Everybody's value, in the order of the members."""
        ...


class Alone:
    """The group of one process."""

    def all_gather(self, value: Any) -> list[Any]:
        return [value]


class Unknown:
    """A group of which nobody knows the other members, so nothing can be exchanged."""

    def __init__(self, members: str) -> None:
        self._members = members

    def all_gather(self, value: Any) -> list[Any]:
        raise NotSupported(
            f"{self._members} cannot exchange values: PADDLE_TRAINER_ENDPOINTS does not say where the workers are; "
            "start the job by fluidlite launch or paddle.distributed.launch_ps, or set it"
        )


class Comm:
    """What Fluid's scripts ask of the group that a process belongs to."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def barrier(self) -> None:
        """Return when every member has called it."""
        self._group.all_gather(None)

    def all_gather(self, value: Any) -> list[Any]:
        """Everybody's value, in the order of the members; a value is a number, a text, or a list of such."""
        return self._group.all_gather(value)

    allgather = all_gather

    def all_reduce(self, values: Sequence[Any], mode: str = "sum") -> list[Any]:
        """Element by element the ``"sum"``, ``"min"`` or ``"max"`` of everybody's values. Raises FleetError."""
        if mode not in REDUCTIONS:
            raise FleetError(f"all_reduce: mode must be one of {', '.join(REDUCTIONS)}, not {mode!r}")
        gathered = self._group.all_gather([getattr(value, "item", lambda value=value: value)() for value in values])
        if len({len(given) for given in gathered}) > 1:
            raise FleetError(f"all_reduce: the members gave different numbers of values: {[len(g) for g in gathered]}")
        return [REDUCTIONS[mode](column) for column in zip(*gathered, strict=True)]

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: str = "sum") -> None:  # noqa: N802 (mpi4py's name)
        """`all_reduce` of one array into another."""
        recvbuf[...] = self.all_reduce(list(sendbuf), op)


class Members:
    """One process' view of a group over TCP: ``rank`` of ``size``, served at ``endpoint`` by the member of rank 0."""

    def __init__(self, name: str, endpoint: str, rank: int, size: int) -> None:
        self._name = name
        self._endpoint = endpoint
        self._rank = rank
        self._size = size
        self._calls = 0
        self._stream: Any = None
        self._lock = threading.Lock()

    def all_gather(self, value: Any) -> list[Any]:
        """Raises PeerLostError when a member is gone or never comes, AddressInUseError when it cannot be served."""
        with self._lock:
            if self._stream is None:
                self._stream = self._open()
            self._calls += 1
            message = {"group": self._name, "call": self._calls, "rank": self._rank, "size": self._size, "value": value}
            try:
                self._stream.write(json.dumps(message).encode() + b"\n")
                self._stream.flush()
                answer = self._stream.readline()
            except OSError as error:
                raise self._lost(str(error)) from error
        if not answer:
            raise self._lost("the connection broke")
        reply = json.loads(answer)
        if "error" in reply:
            raise self._lost(reply["error"])
        values: list[Any] = reply["values"]
        return values

    def _open(self) -> Any:
        host, port = self._endpoint.rsplit(":", 1)
        if self._rank == 0:
            _serve(host, int(port))
        deadline = time.monotonic() + seconds("FLUIDLITE_CONNECT_SECONDS", 60.0)
        while True:
            try:
                connection = socket.create_connection((host, int(port)), timeout=max(0.1, deadline - time.monotonic()))
            except OSError as error:
                if time.monotonic() > deadline:
                    raise self._lost(str(error)) from error
                time.sleep(_AGAIN)
                continue
            with connection:  # it stays open as long as the file over it
                connection.settimeout(None)
                return connection.makefile("rwb")

    def close(self) -> None:
        """Leave the group; the others' later calls fail."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()

    def _lost(self, reason: str) -> PeerLostError:
        self.close()
        return PeerLostError(
            f"{self._name}: member {self._rank} of {self._size} lost the others (met at {self._endpoint}): {reason}"
        )


class _Call:
    """One call of a group: what members gave so far."""

    def __init__(self) -> None:
        self.given: dict[int, Any] = {}
        self.error = ""


class _Meeting:
    """What all connections of a server share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._calls: dict[tuple[str, int], _Call] = {}
        self._gone: dict[str, str] = {}
        self._waiting = 0

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Wait until every member of the group has made the call."""
        group, size = message["group"], message["size"]
        with self.changed:
            call = self._calls.setdefault((group, message["call"]), _Call())
            call.given[message["rank"]] = message["value"]
            self.changed.notify_all()
            self._waiting += 1
            self.changed.wait_for(lambda: len(call.given) == size or group in self._gone)
            if len(call.given) < size:
                return {"error": self._gone[group]}
            self._calls.pop((group, message["call"]), None)
            return {"values": [call.given[rank] for rank in range(size)]}

    def answered(self) -> None:
        with self.changed:
            self._waiting -= 1
            self.changed.notify_all()

    def leave(self, group: str, rank: int) -> None:
        """A member's connection is closed: calls that it made are complete without it, later ones never will be."""
        with self.changed:
            self._gone.setdefault(group, f"member {rank} is gone")
            self.changed.notify_all()

    def wait_until_answered(self) -> None:
        with self.changed:
            self.changed.wait_for(lambda: not self._waiting, _LAST_ANSWERS)


class _Connection(socketserver.StreamRequestHandler):
    """Serves one member."""

    server: _Server

    def handle(self) -> None:
        member = None
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError
        ):  # also who talks something else is gone then
            for message in self._messages():
                member = message["group"], message["rank"]
                reply = self.server.meeting.answer(message)
                try:
                    self.wfile.write(json.dumps(reply).encode() + b"\n")
                finally:
                    self.server.meeting.answered()
        if member is not None:
            self.server.meeting.leave(*member)

    def _messages(self) -> Iterator[dict[str, Any]]:
        for line in self.rfile:
            yield json.loads(line)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, _Connection)
        self.meeting = _Meeting()


_servers: dict[tuple[str, int], _Server] = {}


def _serve(host: str, port: int) -> None:
    """Serve the groups of this process at its endpoint, once."""
    if (host, port) in _servers:
        return
    try:
        server = _Server((host, port))
    except OSError as error:
        raise AddressInUseError(f"worker 0 cannot meet the other workers at {host}:{port}: {error}") from error
    _servers[host, port] = server
    threading.Thread(target=server.serve_forever, daemon=True, name="fleet-gather").start()
    atexit.register(server.meeting.wait_until_answered)
