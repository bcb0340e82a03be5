"""Servers over a store that needs no program, and trainers' ports to them, in process or over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import RequestRefusedError, UnreachableError
from fluidlite.protocol.messages import Declared, DenseRequest, Gradient, PullRequest, RowRequest, Value
from fluidlite.pserver.policy import Step
from fluidlite.pserver.service import PServer, ServiceOptions
from fluidlite.rpc.client import GrpcChannel
from fluidlite.rpc.inproc import InprocChannel
from fluidlite.rpc.port import Channel, TrainerPort
from fluidlite.rpc.retry import Patience
from fluidlite.rpc.server import GrpcServer
from fluidlite.values.selected_rows import SelectedRows

TRANSPORTS = ["inproc", "grpc"]
#: short enough for tests, long enough for a loaded machine
PATIENCE = Patience(connect=20.0, retry=1.0)


class DictStore:
    """Implements `pserver.service.Store`: ``w -= mean of gradients``; a table ``emb`` of width 2, rows start at zero."""

    def __init__(self, **dense: Array) -> None:
        self.values: dict[str, Array] = dense or {"w": np.zeros(3)}
        self.rows: dict[int, Array] = {}
        self.version = 0
        #: (trainers, ticks) of every step
        self.applied: list[tuple[tuple[int, ...], int]] = []
        self.poison: str | None = None
        self._lock = threading.Lock()

    def check_declared(self, declared: Sequence[Declared]) -> None:
        for item in declared:
            if item.name != "emb" and item.name not in self.values:
                raise RequestRefusedError(f"unknown variable {item.name!r}")
            if item.name == "emb" and item.shape != (2,):
                raise RequestRefusedError(f"table 'emb' has width 2, not {item.shape[0]}")

    def check_step(
        self,
        gradients: Sequence[Gradient],
        wanted: Sequence[str],
        trainer: int | None = None,
        learning_rate: float | None = None,
    ) -> None:
        if learning_rate is not None:
            raise RequestRefusedError("this server follows its own schedule")
        for gradient in gradients:
            if gradient.name != "emb" and gradient.name not in self.values:
                raise RequestRefusedError(f"unknown gradient {gradient.name!r}")
            if gradient.rows is not None and gradient.value.shape[1] != 2:
                raise RequestRefusedError(f"gradient of 'emb' has width {gradient.value.shape[1]}, not 2")
        self._known(wanted)

    def settle(self) -> None:
        """Nothing is lazy here."""

    def remember(self, trainer: int) -> None:
        """Nothing is compensated here."""

    def apply(self, steps: Mapping[int, Step], tick: int) -> int:
        with self._lock:
            if self.poison is not None:
                raise ZeroDivisionError(self.poison)
            for gradient in (gradient for step in steps.values() for gradient in step.gradients):
                self._subtract(gradient, len(steps))
            self.applied.append((tuple(steps), tick))
            self.version += 1
            return self.version

    def pull(self, requests: Sequence[PullRequest]) -> tuple[int, list[Value]]:
        with self._lock:
            return self.version, [self._value(request) for request in requests]

    def dense(self, names: Sequence[str]) -> dict[str, Array]:
        with self._lock:
            return {name: self.values[name].copy() for name in names}

    def assign(self, name: str, value: Value) -> None:
        with self._lock:
            if isinstance(value, SelectedRows):
                self.rows.update(zip(value.rows.tolist(), value.value.copy(), strict=True))
            else:
                self._known([name])
                self.values[name] = value.copy()

    def _known(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.values:
                raise RequestRefusedError(f"unknown variable {name!r}")

    def _subtract(self, gradient: Gradient, steps: int) -> None:
        if gradient.rows is None:
            self.values[gradient.name] = self.values[gradient.name] - gradient.value / steps
            return
        for id, value in zip(gradient.rows.tolist(), gradient.value, strict=True):
            self.rows[id] = self.rows.get(id, np.zeros(2)) - value / steps

    def _value(self, request: PullRequest) -> Value:
        if isinstance(request, RowRequest):
            if request.width != 2:
                raise RequestRefusedError(f"table 'emb' has width 2, not {request.width}")
            return np.array([self.rows.get(id, np.zeros(2)) for id in request.ids.tolist()]).reshape(-1, 2)
        if isinstance(request, DenseRequest):
            self._known([request.name])
            return self.values[request.name].copy()
        ids = np.array(list(self.rows), np.int64)
        return SelectedRows(ids, np.array(list(self.rows.values())).reshape(-1, 2), 0)


class FakeCluster:
    """``servers`` servers and any number of ports of ``trainers`` trainers."""

    def __init__(
        self,
        transport: str,
        *,
        trainers: int = 1,
        servers: int = 1,
        sync: bool = True,
        options: ServiceOptions | None = None,
        make_store: Callable[[], DictStore] = DictStore,
    ) -> None:
        self.transport = transport
        self.trainers = trainers
        self.stores = [make_store() for _ in range(servers)]
        self.services = [PServer(store, trainers=trainers, sync=sync, options=options) for store in self.stores]
        self.servers = [GrpcServer(s, "127.0.0.1:0", trainers=trainers) for s in self.services if transport == "grpc"]
        self.endpoints = [s.endpoint for s in self.servers] or [f"ps{index}" for index in range(servers)]
        self.ports: list[TrainerPort] = []
        self._waiting = [threading.Thread(target=server.wait) for server in self.servers]
        for thread in self._waiting:
            thread.start()
        self._pool = ThreadPoolExecutor(32)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def store(self) -> DictStore:
        return self.stores[0]

    @property
    def endpoint(self) -> str:
        return self.endpoints[0]

    def connect(self, endpoint: str, patience: Patience = PATIENCE) -> Channel:
        if self.transport == "grpc":
            return GrpcChannel(endpoint, patience)
        return InprocChannel(self.services[self.endpoints.index(endpoint)])

    def port(
        self,
        trainer: int = 0,
        *,
        wrap: Callable[[Channel], Any] = lambda channel: channel,
        patience: Patience = PATIENCE,
        **options: Any,
    ) -> TrainerPort:
        """A port of a trainer; ``wrap`` puts something between it and its channels."""
        options.setdefault("trainers", self.trainers)
        port = TrainerPort(
            lambda endpoint: wrap(self.connect(endpoint, patience)), trainer=trainer, patience=patience, **options
        )
        self.ports.append(port)
        return port

    def push(self, port: TrainerPort, value: float = 1.0, name: str = "w") -> dict[str, int]:
        """One step with a dense gradient for every server; the versions."""
        for endpoint in self.endpoints:
            port.stage(Gradient(endpoint, name, np.full(3, value)))
        return dict(port.commit(self.endpoints).versions)

    def run(self, call: Callable[[], Any]) -> Future[Any]:
        """Run a call in a thread."""
        return self._pool.submit(call)

    def until_waiting(self, *jobs: Future[Any]) -> None:
        """Return once the steps of these jobs have come to the first server and wait there for others."""
        while len(self.services[0]._ledger._buffer) < len(jobs):
            assert not any(job.done() for job in jobs)

    def pull(self, port: TrainerPort, name: str = "w") -> Array:
        """A dense variable of the first server."""
        return port.pull([DenseRequest(self.endpoint, name)])[0]

    def ended(self) -> bool:
        """Whether every server ended by itself; waits a few seconds."""
        for thread in self._waiting:
            thread.join(10)
        return all(service.poll(0.0) for service in self.services) and not any(t.is_alive() for t in self._waiting)

    def close(self) -> None:
        """End everything, whatever state it is in."""
        for port in self.ports:
            port.close()
        for service in self.services:
            service.stop("the test is over")
        for thread in self._waiting:
            thread.join(10)
        self._pool.shutdown()


class Dropping:
    """A channel that loses the first ``requests`` requests and then the first ``replies`` replies of a verb."""

    def __init__(self, channel: Any, verb: str, requests: int = 0, replies: int = 0) -> None:
        self._channel = channel
        self._verb = verb
        self.requests = requests
        self.replies = replies

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._channel, name)
        return self._unreliable(found) if name == self._verb else found

    def _unreliable(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def attempt(*arguments: Any) -> Any:
            if self.requests:
                self.requests -= 1
                raise UnreachableError("request dropped")
            pending = call(*arguments)

            def answer() -> Any:
                result = pending()
                if self.replies:
                    self.replies -= 1
                    raise UnreachableError("reply dropped")
                return result

            return answer

        return attempt
