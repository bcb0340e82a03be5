"""The trainer's end of the gRPC transport: one channel per server, a call per verb."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import grpc

from fluidlite.errors import PeerLostError, RemoteError, UnreachableError
from fluidlite.proto_gen import pserver_pb2 as pb
from fluidlite.protocol import encode
from fluidlite.protocol.messages import (
    CommitReply,
    Gradient,
    Identity,
    PullReply,
    PullRequest,
    Registration,
    StepHeader,
    TableRequest,
    Value,
    Welcome,
)
from fluidlite.protocol.packet import Packet
from fluidlite.protocol.service import Pending
from fluidlite.rpc.options import client_options, method
from fluidlite.rpc.port import TrainerPort
from fluidlite.rpc.retry import Patience
from fluidlite.rpc.wire import Transfer, messages_of, transfers_of

#: signs of life per lease: two may get lost
_BEATS_PER_LEASE: Final = 3
#: the answer to a call that these codes end will not change
_FINAL: Final = {
    grpc.StatusCode.UNIMPLEMENTED: "it is no fluidlite pserver of this version",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "a message is larger than it accepts",
}


class GrpcChannel:
    """Implements `rpc.port.Channel` over gRPC. Nothing is sent before the first call."""

    def __init__(self, endpoint: str, patience: Patience) -> None:
        self._patience = patience
        self._channel: Any = grpc.insecure_channel(endpoint, options=client_options(patience.keepalive))
        self._stop = threading.Event()
        self._life: Any = None
        # Also at exit: gRPC can deadlock when it tears down an open stream to a dead server by itself.
        self._finalizer = weakref.finalize(self, _shut, self._stop, self._channel)

    def register(self, registration: Registration, timeout: float) -> Welcome:
        call = self._channel.unary_unary(method("Register"))
        request = encode.encode_registration(registration)
        return encode.decode_welcome(
            _attempt(lambda: call(request, timeout=timeout, wait_for_ready=True), late=UnreachableError)
        )

    def pull(self, identity: Identity, requests: Sequence[PullRequest]) -> Pending[PullReply]:
        whole = any(isinstance(request, TableRequest) for request in requests)
        timeout = self._patience.table if whole else self._patience.pull
        answer = self._transfer("Pull", encode.encode_pull(identity, requests), timeout)
        return lambda: encode.decode_pull_reply(*answer())

    def commit(self, header: StepHeader, gradients: Sequence[Gradient], wanted: Sequence[str]) -> Pending[CommitReply]:
        answer = self._transfer("Push", encode.encode_push(header, gradients, wanted), None)
        return lambda: encode.decode_commit_reply(*answer())

    def assign(self, identity: Identity, name: str, value: Value) -> Pending[None]:
        messages = messages_of(encode.encode_assign(identity, name, value))
        call = _attempt(
            lambda: self._channel.stream_unary(method("Assign")).future(messages, timeout=self._patience.table)
        )
        return lambda: encode.check_outcome(encode.parse(pb.AssignReply, _attempt(call.result)).outcome)

    def barrier(self, identity: Identity, number: int) -> Pending[None]:
        request = pb.BarrierRequest(identity=encode.encode_identity(identity), number=number)
        call = self._unary("Barrier", request.SerializeToString(), None)
        return lambda: encode.check_outcome(encode.parse(pb.BarrierReply, call()).outcome)

    def complete(self, identity: Identity) -> Pending[None]:
        request = pb.CompleteRequest(identity=encode.encode_identity(identity))
        call = self._unary("Complete", request.SerializeToString(), self._patience.control)
        return lambda: encode.check_outcome(encode.parse(pb.CompleteReply, call()).outcome)

    def show_life(self, identity: Identity, lease: float) -> None:
        """Beats leave from the thread that gRPC gives to the stream. A broken stream is opened again at once: the server
        takes a broken one for a dead trainer."""
        if self._life is None or self._life.done():
            self._open_life(identity, lease)

    def close(self) -> None:
        self._finalizer()

    def _open_life(self, identity: Identity, lease: float) -> None:
        over = threading.Event()
        stop = self._stop
        beat = pb.HeartbeatRequest(identity=encode.encode_identity(identity)).SerializeToString()

        def beats() -> Iterator[bytes]:
            while not (stop.is_set() or over.is_set()):
                yield beat
                stop.wait(lease / _BEATS_PER_LEASE)

        def reopen(call: Any) -> None:
            over.set()
            if call.code() == grpc.StatusCode.UNAVAILABLE and not stop.is_set():
                self._open_life(identity, lease)

        self._life = self._channel.stream_unary(method("Heartbeat")).future(beats(), wait_for_ready=True)
        self._life.add_done_callback(reopen)

    def _unary(self, verb: str, request: bytes, timeout: float | None) -> Pending[bytes]:
        call = _attempt(lambda: self._channel.unary_unary(method(verb)).future(request, timeout=timeout))
        return lambda: _attempt(call.result)

    def _transfer(self, verb: str, packet: Packet, timeout: float | None) -> Pending[Transfer]:
        """Send a packet; its answer is one transfer."""
        messages = messages_of(packet)
        first, second = next(messages), next(messages, None)
        if second is None:  # saves the thread that a stream of requests costs
            call = _attempt(lambda: self._channel.unary_stream(method(verb))(first, timeout=timeout))
        else:
            stream = chain((first, second), messages)
            call = _attempt(lambda: self._channel.stream_stream(method(verb))(stream, timeout=timeout))
        return lambda: _only(_attempt(lambda: list(transfers_of(call))))


def _only(transfers: list[Transfer]) -> Transfer:
    if len(transfers) != 1:
        raise RemoteError(f"the server answered {len(transfers)} times instead of once")
    return transfers[0]


def _shut(stop: threading.Event, channel: grpc.Channel) -> None:
    stop.set()
    channel.close()


def _attempt(call: Callable[[], Any], late: type[PeerLostError] = PeerLostError) -> Any:
    """The result of a call; what gRPC reports as a typed error, a missed deadline as ``late``."""
    try:
        return call()
    except grpc.RpcError as error:
        raise _typed(error, late) from None
    except ValueError as error:  # what gRPC raises for a closed channel
        raise PeerLostError(str(error)) from None


def _typed(error: Any, late: type[PeerLostError]) -> RemoteError:
    code, details = error.code(), error.details()
    if code in _FINAL:
        return RemoteError(f"{_FINAL[code]} ({details})")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return late(f"no answer in time ({details})")
    return UnreachableError(f"{code.name.lower()}: {details}")


def grpc_port(*, trainer: int, trainers: int = 0, job: str = "job", patience: Patience | None = None) -> TrainerPort:
    """A port to pservers over gRPC; endpoints are ``host:port``."""
    waits = patience if patience is not None else Patience()
    return TrainerPort(
        lambda endpoint: GrpcChannel(endpoint, waits), trainer=trainer, trainers=trainers, job=job, patience=waits
    )
