"""A server in the same process: calls go straight to the service, values by reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from fluidlite.errors import PeerLostError
from fluidlite.protocol.encode import error_of, outcome_of
from fluidlite.protocol.messages import (
    CommitReply,
    Decision,
    Gradient,
    Identity,
    PullReply,
    PullRequest,
    Push,
    Registration,
    RowRequest,
    StepHeader,
    Value,
    Welcome,
)
from fluidlite.protocol.narrow import rounded
from fluidlite.protocol.service import Pending, Service
from fluidlite.rpc.port import TrainerPort
from fluidlite.rpc.retry import Patience
from fluidlite.rpc.traffic import Traffic

T = TypeVar("T")


class InprocChannel:
    """Implements `rpc.port.Channel` over a service. Errors arrive as they would over a network."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._identity: Identity | None = None
        self._closed = False

    @property
    def traffic(self) -> Mapping[str, Traffic]:
        """Nothing: values go by reference."""
        return {}

    def register(self, registration: Registration, timeout: float) -> Welcome:
        return self._call(lambda: self._service.register(registration))

    def pull(self, identity: Identity, requests: Sequence[PullRequest], ahead: bool = False) -> Pending[PullReply]:
        reply = self._call(lambda: self._service.pull(identity, requests))
        if any(isinstance(request, RowRequest) and request.wire_dtype for request in requests):
            reply = self._call(lambda: _travelled(reply, requests))
        return lambda: reply

    def part(self, header: StepHeader, number: int, gradient: Gradient) -> None:
        """Nothing leaves before the commit: it takes no time."""

    def commit(self, push: Push) -> Pending[CommitReply]:
        sent = replace(push, gradients=[_as_sent(gradient) for gradient in push.gradients])
        pending = self._call(lambda: self._service.commit(sent))
        return lambda: self._call(pending)

    def decide(self, decision: Decision) -> Pending[CommitReply]:
        pending = self._call(lambda: self._service.decide(decision))
        return lambda: self._call(pending)

    def assign(self, identity: Identity, name: str, value: Value) -> Pending[None]:
        return lambda: self._call(lambda: self._service.assign(identity, name, value))

    def barrier(self, identity: Identity, number: int) -> Pending[None]:
        pending = self._call(lambda: self._service.barrier(identity, number))
        return lambda: self._call(pending)

    def checkpoint(self, identity: Identity, number: int, folder: str) -> Pending[int]:
        pending = self._call(lambda: self._service.checkpoint(identity, number, folder))
        return lambda: self._call(pending)

    def complete(self, identity: Identity) -> Pending[None]:
        return lambda: self._call(lambda: self._service.complete(identity))

    def show_life(self, identity: Identity, lease: float) -> None:
        """Nothing to do: one process lives or dies as one. `close` tells the service that this trainer is gone."""
        self._identity = identity

    def close(self) -> None:
        if not self._closed and self._identity is not None:
            self._service.disconnected(self._identity)
        self._closed = True

    def _call(self, call: Callable[[], T]) -> T:
        if self._closed:
            raise PeerLostError("the connection is closed")
        try:
            return call()
        except Exception as error:
            raise error_of(outcome_of(error)) from error


def _travelled(reply: PullReply, requests: Sequence[PullRequest]) -> PullReply:
    """With rows rounded as they would be on a wire."""
    pairs = zip(reply.values, requests, strict=True)
    return PullReply(reply.version, tuple(_rounded(value, request) for value, request in pairs))


def _rounded(value: Value, request: PullRequest) -> Value:
    if isinstance(request, RowRequest) and isinstance(value, np.ndarray):
        return rounded(value, request.wire_dtype, f"rows of {request.table!r}")
    return value


def _as_sent(gradient: Gradient) -> Gradient:
    if gradient.rows is None or not gradient.wire_dtype:
        return gradient
    return replace(gradient, value=rounded(gradient.value, gradient.wire_dtype, f"gradient {gradient.name!r}"))


def inproc_port(
    services: Mapping[str, Service], *, trainer: int, trainers: int = 0, patience: Patience | None = None
) -> TrainerPort:
    """A port to services of this process, by endpoint; an endpoint that is not among them is a lost peer."""

    def connect(endpoint: str) -> InprocChannel:
        if endpoint not in services:
            raise PeerLostError(f"no pserver {endpoint} in this process; there are {', '.join(services) or 'none'}")
        return InprocChannel(services[endpoint])

    return TrainerPort(connect, trainer=trainer, trainers=trainers, patience=patience)
