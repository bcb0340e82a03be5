"""The ports of an executor: what its programs say about other processes, turned into connections.

Nothing is opened before a program needs it. `ProcessPorts` talks gRPC; `fluidlite.cluster` brings ports that stay inside
the process.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fluidlite.core.ir import Block, Operator, Program
from fluidlite.dtypes import VarKind, dtype_name
from fluidlite.environment import seconds, setting
from fluidlite.errors import ProgramError
from fluidlite.ops.context import HostPort, ServerPort
from fluidlite.protocol.messages import Declared, Use
from fluidlite.runtime.scope import Scope

if TYPE_CHECKING:
    from fluidlite.rpc.port import TrainerPort

#: makes a trainer's port from (trainer id, number of trainers)
PortMaker = Callable[[int, int], "TrainerPort"]


@dataclass
class Needs:
    """What one program will ask of servers and send to them."""

    trainer: int
    trainers: int
    declared: dict[str, list[Declared]]


class TrainerPorts:
    """Implements `ops.context.Ports` for one trainer, whatever the transport.

    One executor is one trainer: programs of different trainer ids are refused.
    """

    def __init__(self, make_port: PortMaker, host: HostPort) -> None:
        self._make_port = make_port
        self._port: TrainerPort | None = None
        self._trainer: int | None = None
        self.host = host

    def prepare(self, program: Program) -> None:
        """Read off a program what it will exchange, so that servers can check it at the first contact."""
        needs = needs_of(program)
        if needs is None:
            return
        if self._port is None:
            self._trainer = needs.trainer
            self._port = self._open(needs)
        if needs.trainer != self._trainer:
            raise ProgramError(
                f"this executor is trainer {self._trainer}; run programs of trainer {needs.trainer} by an executor of their own"
            )
        self._port.declare(needs.declared, needs.trainers)

    def _open(self, needs: Needs) -> TrainerPort:
        return self._make_port(needs.trainer, needs.trainers)

    def server(self, op: Operator) -> ServerPort:
        """The trainer's port; ``op`` belongs to a program that was prepared."""
        if self._port is None:
            raise ProgramError(f"op {op.type!r} belongs to a program that was not prepared ({op.origin})")
        return self._port

    @property
    def salt(self) -> int:
        """Makes the randomness of trainers differ."""
        return self._trainer or 0

    @property
    def traffic(self) -> dict[str, tuple[int, int]]:
        """Bytes sent to all servers and received from them so far, by verb."""
        sums: dict[str, tuple[int, int]] = {}
        for verbs in self._port.traffic.values() if self._port is not None else ():
            for verb, (sent, received) in verbs.items():
                before = sums.get(verb, (0, 0))
                sums[verb] = before[0] + sent, before[1] + received
        return sums

    def leave(self) -> None:
        """Drop the connections without a word, as a process that dies does."""
        if self._port is not None:
            self._port.close()

    def close(self) -> None:
        """Tell the servers that this trainer is done."""
        if self._port is not None:
            self._port.complete()


def needs_of(program: Program) -> Needs | None:
    """What the ops of a program exchange with servers; None when they exchange nothing."""
    declared: dict[str, list[Declared]] = {}
    trainer, trainers, found = 0, 0, False
    for block, op in program.all_ops():
        items = list(_declared(program, block, op))
        if not items and op.type != "send_barrier":
            continue
        found = True
        trainer, trainers = op.attr("trainer_id", 0), max(trainers, op.attr("trainers", 0))
        for endpoint, item in items:
            declared.setdefault(endpoint, []).append(item)
        for endpoint in op.attr("endpoints", ()):
            declared.setdefault(endpoint, [])
    return Needs(trainer, trainers, declared) if found else None


def _declared(program: Program, block: Block, op: Operator) -> Iterator[tuple[str, Declared]]:
    """(endpoint, what is exchanged) of one op."""
    if op.type == "prefetch":
        dtype = dtype_name(op.attr("dtype", 5))
        for endpoint, table in zip(op.attr("epmap"), op.attr("table_names"), strict=True):
            yield endpoint, Declared(table, Use.ROWS, dtype, (op.attr("width"),))
    elif op.type in ("send", "recv"):
        arguments, attr = (op.inputs["X"], "send_varnames") if op.type == "send" else (op.outputs["Out"], "varnames")
        for argument, endpoint, name in zip(arguments, op.attr("epmap"), op.attr(attr) or arguments, strict=True):
            var = program.find_var(argument, block)
            if var is None or var.shape is None:
                raise ProgramError(f"op {op.type!r}: {argument!r} is not declared with a shape ({op.origin})")
            rows = var.kind == VarKind.SELECTED_ROWS
            sent = Use.ROW_GRADIENT if rows else Use.GRADIENT
            yield (
                endpoint,
                Declared(
                    name, Use.DENSE if op.type == "recv" else sent, var.dtype, var.shape[1:] if rows else var.shape
                ),
            )


@dataclass(eq=False)
class _Shared:
    """A port of this process, and who uses it."""

    port: TrainerPort
    users: weakref.WeakSet[ProcessPorts] = field(default_factory=weakref.WeakSet)


_shared: weakref.WeakSet[_Shared] = weakref.WeakSet()
_sharing = threading.Lock()


class ProcessPorts(TrainerPorts):
    """The ports of an ordinary process, over gRPC.

    Executors that are one trainer of the same servers share a port: servers know one of each trainer, and take a second
    for its successor. The last executor to close completes the trainer.
    """

    def __init__(self) -> None:
        super().__init__(_grpc_port, _GrpcHost())
        self._mine: _Shared | None = None

    def leave(self) -> None:
        if self._is_last():
            super().leave()

    def close(self) -> None:
        if self._is_last():
            super().close()

    def _open(self, needs: Needs) -> TrainerPort:
        with _sharing:
            mine = next((known for known in _shared if _is_for(known.port, needs)), None)
            if mine is None:
                mine = _Shared(super()._open(needs))
                _shared.add(mine)
            mine.port.declare(needs.declared, needs.trainers)
            mine.users.add(self)
            self._mine = mine
            return mine.port

    def _is_last(self) -> bool:
        """Stop using the port; whether nobody does any more."""
        with _sharing:
            if self._mine is None or self not in self._mine.users:
                return False
            self._mine.users.discard(self)
            if self._mine.users:
                return False
            _shared.discard(self._mine)
            return True


def _is_for(port: TrainerPort, needs: Needs) -> bool:
    return port.identity.trainer == needs.trainer and not port.endpoints.isdisjoint(needs.declared)


def _grpc_port(trainer: int, trainers: int) -> TrainerPort:
    from fluidlite.rpc.client import grpc_port
    from fluidlite.rpc.retry import Patience

    usual = Patience()
    patience = replace(usual, connect=connect_seconds(usual.connect))
    return grpc_port(trainer=trainer, trainers=trainers, job=job_id(), patience=patience)


def connect_seconds(usual: float) -> float:
    """How long a trainer waits for a server to come up. Raises SettingError."""
    return seconds("FLUIDLITE_CONNECT_SECONDS", usual)


def job_id() -> str:
    """What tells the processes of one job from those of another: ``FLUIDLITE_JOB``, set by the launcher."""
    return setting("FLUIDLITE_JOB") or "job"


class _GrpcHost:
    """Serves a pserver program over gRPC until all trainers are done."""

    def serve(self, program: Program, op: Operator, scope: Scope) -> None:
        from fluidlite.pserver.host import Host, make_service
        from fluidlite.rpc.server import serve

        host = Host(program, op, scope)
        serve(make_service(host, job=job_id()), op.attr("endpoint"), trainers=host.trainers, on_bound=_publish)


def _publish(endpoint: str) -> None:
    """Write the real endpoint into the file that ``FLUIDLITE_ENDPOINT_FILE`` names: how a server at port 0 is found."""
    path = setting("FLUIDLITE_ENDPOINT_FILE")
    if path:
        unfinished = Path(f"{path}.{os.getpid()}")
        unfinished.write_text(endpoint, encoding="utf-8")
        unfinished.replace(path)
