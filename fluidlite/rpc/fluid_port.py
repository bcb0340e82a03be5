"""The trainer's side of Fluid's own wire: steps towards servers of Fluid, as a `ServerPort`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from fluidlite.core import names
from fluidlite.dtypes import Array
from fluidlite.errors import NotSupported, PeerLostError, RemoteError, RequestRefusedError
from fluidlite.proto_gen import fluid_pb2 as pb
from fluidlite.protocol.messages import (
    Declared,
    DenseRequest,
    Gradient,
    Identity,
    PullRequest,
    Reply,
    RowRequest,
    Use,
    Value,
)
from fluidlite.protocol.service import Pending
from fluidlite.rpc import fluid_message as wire
from fluidlite.rpc.fluid_client import FluidChannel, FluidGrpcChannel
from fluidlite.rpc.peers import first_of, located
from fluidlite.rpc.retry import Patience
from fluidlite.rpc.traffic import Traffic
from fluidlite.values.selected_rows import SelectedRows

log = logging.getLogger("fluidlite")
_SEND, _GET, _GET_NOW, _PREFETCH = "SendVariable", "GetVariable", "GetVariableNoBarrier", "PrefetchVariable"


@dataclass(slots=True)
class _Server:
    """What a trainer knows of one server."""

    endpoint: str
    channel: FluidChannel
    met: bool = False
    #: the parameters that it will be asked for, in order; those that the last step brought
    dense: dict[str, None] = field(default_factory=dict)
    fresh: dict[str, Array] = field(default_factory=dict)
    #: sends of the open step that are not answered yet, and parameters asked for before the first step
    sent: list[Pending[pb.VariableMessage]] = field(default_factory=list)
    fetched: set[str] = field(default_factory=set)


class FluidPort:
    """Implements `ops.context.ServerPort` towards servers that run Fluid 1.8, or fluidlite with ``wire="fluid"``.

    ``sync``: the servers work by the round. A step's gradients leave when they are staged; `commit` says that they are
    all, waits for the round, and brings every declared parameter. Nothing is repeated: a connection that breaks is a
    PeerLostError. One thread trains. What Fluid's servers cannot do raises NotSupported.
    """

    def __init__(
        self,
        connect: Callable[[str], FluidChannel],
        *,
        trainer: int,
        sync: bool = True,
        patience: Patience | None = None,
    ) -> None:
        self.identity = Identity("", trainer, time.time_ns())
        #: of no meaning on this wire
        self.two_phase = False
        self._connect = connect
        self._sync = sync
        self._patience = patience if patience is not None else Patience()
        self._servers: dict[str, _Server] = {}
        self._lock = threading.RLock()
        self._thread: int | None = None
        self._steps = 0
        #: whether the servers know that this trainer has its first parameters
        self._begun = not sync
        self._completed = False

    @property
    def endpoints(self) -> frozenset[str]:
        """The servers that this port knows."""
        return frozenset(self._servers)

    @property
    def version(self) -> int:
        """How many steps this trainer has made: these servers tell no version."""
        return self._steps

    @property
    def traffic(self) -> dict[str, dict[str, Traffic]]:
        """Bytes sent and received so far, by endpoint and method."""
        return {endpoint: dict(server.channel.traffic) for endpoint, server in self._servers.items()}

    def work_on_arrival(self) -> None:
        """The servers do not work by the round after all, which startup programs of Fluid do not say."""
        with self._lock:
            self._sync, self._begun = False, True

    def declare(self, declared: Mapping[str, Iterable[Declared]], trainers: int = 0) -> None:
        """Make endpoints known, and which parameters each step brings from them."""
        for endpoint, items in declared.items():
            dense = self._server(endpoint).dense
            dense.update(dict.fromkeys(item.name for item in items if item.use is Use.DENSE))

    def resume(self) -> int:
        """None: these servers do not remember steps."""
        return 0

    def pull(self, requests: Sequence[PullRequest]) -> list[Any]:
        """One array per request, all under way together."""
        with self._lock:
            pending = [self._ask(request) for request in requests]
            answers = self._all((request.endpoint, answer) for request, answer in zip(requests, pending, strict=True))
            for request in requests:
                self._server(request.endpoint).fetched.add(getattr(request, "name", ""))
            if (
                self._trains
                and not self._begun
                and all(server.fetched >= server.dense.keys() for server in self._servers.values())
            ):
                self._begin()
        return answers

    def pull_ahead(self, requests: Sequence[PullRequest]) -> bool:
        """Nothing is asked ahead."""
        return False

    def stage(self, gradient: Gradient) -> None:
        """Send a gradient, whose step counts once it is committed. A run that fails half-way leaves it at the server, where
        the one of the next step takes its place."""
        if gradient.rows is not None and not len(gradient.rows):
            return  # Fluid sends none, and its server expects none
        value: Value = gradient.value
        if gradient.rows is not None:
            value = SelectedRows(gradient.rows, gradient.value, gradient.height)
        trainer = self._number
        name = names.of_trainer(gradient.name, trainer) if self._sync else gradient.name
        with self._lock:
            self._begin()
            server = self._met(gradient.endpoint)
            message = wire.message_of(name, value, trainer_id=trainer)
            server.sent.append(self._call(server, _SEND, message, None))

    def abandon(self) -> None:
        """Wait for what was sent of the step; a server cannot be told to forget it."""
        with self._lock:
            for server in self._servers.values():
                for answer in server.sent:
                    try:
                        answer()
                    except RemoteError as error:
                        log.warning("%s", error)
                server.sent.clear()

    def commit(self, endpoints: Sequence[str]) -> Reply:
        """End the step on these servers, and take the parameters that follow it. Waits for the other trainers."""
        self._check_thread()
        with self._lock:
            self._begin()
            servers = [self._met(endpoint) for endpoint in endpoints]
            self._all((server.endpoint, answer) for server in servers for answer in _taken(server.sent))
            if self._sync:
                self._barrier(_SEND, wire.BATCH_BARRIER, servers)
                self._fetch(servers)
                self._barrier(_GET, wire.FETCH_BARRIER, servers)
            self._steps += 1
            versions = dict.fromkeys(endpoints, self._steps)
        return Reply(lambda: versions)

    def barrier(self, endpoints: Sequence[str]) -> NoReturn:
        _refuse("a barrier of its own", "the end of a step is one")

    def assign(self, endpoint: str, name: str, value: Array | SelectedRows) -> NoReturn:
        _refuse(f"assigning {name!r} from a trainer", "load the parameters in the servers' own processes")

    def checkpoint(self, endpoints: Sequence[str], folder: str = "") -> NoReturn:
        _refuse("checkpoints", "save the parameters from a trainer (save_persistables)")

    def complete(self) -> None:
        """Tell every server that this trainer is done, then close. Idempotent. What goes wrong is logged, not raised."""
        if self._completed:
            return
        self._completed = True
        message = pb.VariableMessage(varname=wire.COMPLETE, trainer_id=self._number)
        for server in self._servers.values() if self._trains else ():
            try:
                self._call(self._met(server.endpoint), _SEND, message, self._patience.control)()
            except RemoteError as error:
                log.warning("%s", located(error, "complete", server.endpoint))
        self.close()

    def close(self) -> None:
        """Drop all connections. Without `complete` the servers wait for this trainer for ever. Idempotent."""
        for server in self._servers.values():
            server.channel.close()

    @property
    def _trains(self) -> bool:
        """Whether servers wait for this port: not for one that only reads, or that does not know yet who it is."""
        return self.identity.trainer >= 0

    @property
    def _number(self) -> int:
        return max(self.identity.trainer, 0)

    def _server(self, endpoint: str) -> _Server:
        with self._lock:
            if endpoint not in self._servers:
                self._servers[endpoint] = _Server(endpoint, self._connect(endpoint))
            return self._servers[endpoint]

    def _met(self, endpoint: str) -> _Server:
        """A server that is up."""
        server = self._server(endpoint)
        if not server.met:
            try:
                server.channel.meet(self._patience.connect)
            except RemoteError as error:
                raise PeerLostError(f"pserver {endpoint}: {error}") from None
            server.met = True
        return server

    def _ask(self, request: PullRequest) -> Pending[Array]:
        server = self._met(request.endpoint)
        if isinstance(request, RowRequest):
            return self._ask_rows(server, request)
        if not isinstance(request, DenseRequest):
            _refuse(f"a whole table ({request.table!r})", "Fluid 1.8's servers have parameters only")
        if not request.current and request.name in server.fresh:
            fresh = server.fresh.pop(request.name)
            return lambda: fresh
        return self._get(server, request.name, now=request.current or (self._sync and self._begun))

    def _ask_rows(self, server: _Server, request: RowRequest) -> Pending[Array]:
        """The rows of a slice; its trainer and its server call them as Fluid's do."""
        message = wire.message_of(f"prefetch_send@{server.endpoint}", request.ids.reshape(-1, 1))
        message.out_varname, message.table_name = f"prefetch_recv@{server.endpoint}", request.table
        return self._value(self._call(server, _PREFETCH, message, self._patience.pull))

    def _get(self, server: _Server, name: str, now: bool) -> Pending[Array]:
        """A parameter: ``now``, or when the server is open for parameters."""
        asked = name + wire.WITHOUT_BARRIER if now else name
        message = pb.VariableMessage(varname=asked, out_varname=name, trainer_id=self._number)
        return self._value(self._call(server, _GET_NOW if now else _GET, message, self._patience.pull if now else None))

    def _fetch(self, servers: Sequence[_Server]) -> None:
        """Take what follows the step from servers that are open for parameters."""
        asked = [(server, name, self._get(server, name, now=False)) for server in servers for name in server.dense]
        values = self._all((server.endpoint, answer) for server, _, answer in asked)
        for (server, name, _), value in zip(asked, values, strict=True):
            server.fresh[name] = value

    def _begin(self) -> None:
        """Before the first step: servers are open for parameters until every trainer has said that it has them."""
        if not self._begun:
            self._begun = True
            self._barrier(_GET, wire.FETCH_BARRIER, [self._met(endpoint) for endpoint in self._servers])

    def _barrier(self, method: str, name: str, servers: Sequence[_Server]) -> None:
        message = pb.VariableMessage(varname=name)
        self._all([(server.endpoint, self._call(server, method, message, None)) for server in servers])

    def _call(
        self, server: _Server, method: str, message: pb.VariableMessage, timeout: float | None
    ) -> Pending[pb.VariableMessage]:
        answer = server.channel.call(method, message, timeout)

        def waited() -> pb.VariableMessage:
            try:
                return answer()
            except RemoteError as error:
                raise located(error, f"{method} {message.varname!r}", server.endpoint) from None

        return waited

    def _value(self, pending: Pending[pb.VariableMessage]) -> Pending[Array]:
        def answer() -> Array:
            try:
                value = wire.value_of(pending())
            except RequestRefusedError as error:
                raise RemoteError(f"a server of Fluid answered what it should not: {error}") from None
            if isinstance(value, SelectedRows):
                raise RemoteError("a server of Fluid answered rows where an array was asked for")
            return value.astype(value.dtype.newbyteorder("="))

        return answer

    def _all(self, pending: Iterable[tuple[str, Pending[Any]]]) -> list[Any]:
        """All answers; every call has ended before the first error is raised."""
        answers, failures = [], []
        for _, answer in list(pending):
            try:
                answers.append(answer())
            except RemoteError as error:
                failures.append(error)
        if failures:
            raise first_of(failures)
        return answers

    def _check_thread(self) -> None:
        """On this wire a step does not say which trainer's it is, so a second one at a time would be another trainer's."""
        me = threading.get_ident()
        if self._thread is None:
            self._thread = me
        if self._thread != me:
            raise NotSupported("steps of several threads of one trainer towards servers of Fluid: let one thread train")


def _taken(pending: list[Pending[pb.VariableMessage]]) -> list[Pending[pb.VariableMessage]]:
    taken = pending.copy()
    pending.clear()
    return taken


def _refuse(what: str, instead: str) -> NoReturn:
    raise NotSupported(f"Fluid's own wire has nothing for {what}: {instead}")


def fluid_port(*, trainer: int, sync: bool, patience: Patience | None = None) -> FluidPort:
    """A port to Fluid's pservers over gRPC; endpoints are ``host:port``."""
    return FluidPort(FluidGrpcChannel, trainer=trainer, sync=sync, patience=patience)
