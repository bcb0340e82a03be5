"""The way to one server that speaks Fluid's own wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from fluidlite.errors import RemoteError, RequestRefusedError
from fluidlite.proto_gen import fluid_pb2 as pb
from fluidlite.protocol.service import Pending
from fluidlite.rpc.failures import attempt
from fluidlite.rpc.fluid_message import LARGEST, SERVICE, parse
from fluidlite.rpc.library import grpc
from fluidlite.rpc.traffic import Meter, Traffic

#: Fluid's servers end connections that ask more often than every five minutes whether they are there
_KEEPALIVE_MS: Final = 360_000
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.max_send_message_length", LARGEST),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
]


class FluidChannel(Protocol):
    """The way to one server. A call is made once: this wire cannot tell a repetition."""

    @property
    def traffic(self) -> Mapping[str, Traffic]:
        """Bytes so far, by method."""
        ...

    def meet(self, timeout: float) -> None:
        """Wait for the server to come up; UnreachableError when it does not."""
        ...

    def call(self, method: str, request: pb.VariableMessage, timeout: float | None) -> Pending[pb.VariableMessage]:
        """A request on its way; the answer waits for it up to ``timeout`` seconds."""
        ...

    def close(self) -> None:
        """End the connection. Idempotent."""
        ...


class FluidGrpcChannel:
    """Implements `FluidChannel` over gRPC."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._channel = grpc.insecure_channel(endpoint, options=_OPTIONS)
        self._meters: dict[str, Meter] = {}

    @property
    def traffic(self) -> Mapping[str, Traffic]:
        return {method: meter.read() for method, meter in self._meters.items()}

    def meet(self, timeout: float) -> None:
        ready = grpc.channel_ready_future(self._channel)
        try:
            ready.result(timeout=timeout)
        except grpc.FutureTimeoutError:
            ready.cancel()
            raise RemoteError(f"the server did not come up within {timeout:g} s") from None

    def call(self, method: str, request: pb.VariableMessage, timeout: float | None) -> Pending[pb.VariableMessage]:
        meter = self._meters.setdefault(method, Meter())
        data = meter.sent(request.SerializeToString())
        start: Callable[..., grpc.Future] = self._channel.unary_unary(f"/{SERVICE}/{method}").future
        future = attempt(lambda: start(data, timeout=timeout))

        def answer() -> pb.VariableMessage:
            reply = attempt(future.result)
            try:
                return parse(meter.received(reply or b""))
            except RequestRefusedError as error:
                raise RemoteError(f"the answer is none of Fluid's: {error}") from None

        return answer

    def close(self) -> None:
        self._channel.close()
