"""Fluid's own service on the network: handlers that unpack, call a session, and pack. Errors become gRPC's statuses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np

from fluidlite.errors import PeerLostError, RemoteError, RequestRefusedError
from fluidlite.proto_gen import fluid_pb2 as pb
from fluidlite.rpc import fluid_message as wire
from fluidlite.rpc.fluid_session import FluidSession
from fluidlite.rpc.library import grpc
from fluidlite.values.selected_rows import SelectedRows

log = logging.getLogger("fluidlite")
_VOID: Final = b""
#: Fluid repeats what ends by UNAVAILABLE, which would count twice: no error is told so
_CODES: Final = (
    (RequestRefusedError, grpc.StatusCode.INVALID_ARGUMENT),
    (PeerLostError, grpc.StatusCode.ABORTED),
    (RemoteError, grpc.StatusCode.FAILED_PRECONDITION),
)
#: (request, connection) to reply
Verb: TypeAlias = Callable[[bytes, str], bytes]


class FluidHandlers:
    """One handler per method of Fluid's service; requests and replies are bytes. `grpc.GenericRpcHandler` of a server.

    ``profile`` of a message, by which Fluid turns its server's profiler on and off, changes nothing.
    """

    def __init__(self, session: FluidSession) -> None:
        self._session = session

    def table(self) -> dict[str, Verb]:
        """What answers a method, by its name."""
        return {
            "SendVariable": self.send,
            "GetVariable": self.get,
            "GetVariableNoBarrier": self.get_now,
            "PrefetchVariable": self.prefetch,
            "CheckpointNotify": self.checkpoint,
            "DistributeNotify": self.notify,
        }

    def grpc_handler(self) -> grpc.GenericRpcHandler:
        """All of them, for gRPC."""
        methods = {name: grpc.unary_unary_rpc_method_handler(_answering(verb)) for name, verb in self.table().items()}
        return grpc.method_handlers_generic_handler(wire.SERVICE, methods)

    def send(self, request: bytes, connection: str) -> bytes:
        message = wire.parse(request)
        if message.varname == wire.BATCH_BARRIER:
            self._session.batch_barrier(connection)
        elif message.varname == wire.COMPLETE:
            self._session.complete(message.trainer_id, connection)
        else:
            self._session.send(message.varname, wire.value_of(message), message.trainer_id)
        return _VOID

    def get(self, request: bytes, connection: str) -> bytes:
        message = wire.parse(request)
        if message.varname == wire.FETCH_BARRIER:
            self._session.fetch_barrier(connection)
            return _VOID
        return _reply(message, message.varname, self._session.get(message.varname, message.trainer_id))

    def get_now(self, request: bytes, connection: str) -> bytes:
        message = wire.parse(request)
        name = message.varname.removesuffix(wire.WITHOUT_BARRIER)
        return _reply(message, name, self._session.get_now(name))

    def prefetch(self, request: bytes, connection: str) -> bytes:
        message = wire.parse(request)
        if not message.table_name:
            raise RequestRefusedError(
                f"prefetch of {message.varname!r} names no table; trainers of Fluid 1.2 and later, without is_distributed, do"
            )
        ids = wire.value_of(message)
        if isinstance(ids, SelectedRows) or ids.dtype != np.int64:
            raise RequestRefusedError(f"prefetch from {message.table_name!r}: {message.varname!r} must be int64 ids")
        return _reply(message, message.varname, self._session.prefetch(message.table_name, ids))

    def checkpoint(self, request: bytes, connection: str) -> bytes:
        message = wire.parse(request)
        if message.varname != wire.SAVE:
            raise RequestRefusedError(f"{message.varname!r}: servers write checkpoints when asked, and load none")
        self._session.checkpoint()
        return _VOID

    def notify(self, request: bytes, connection: str) -> bytes:
        """How far the schedule of an asynchronous trainer is. It is only read: the server counts steps itself."""
        wire.value_of(wire.parse(request))
        return _VOID


def _reply(request: pb.VariableMessage, name: str, value: Any) -> bytes:
    return wire.message_of(request.out_varname or name, value).SerializeToString()


def _answering(verb: Verb) -> Callable[[bytes, Any], bytes]:
    def handler(request: bytes, context: Any) -> bytes:
        try:
            return verb(request, context.peer())
        except Exception as error:
            failure = error
        if not isinstance(failure, RemoteError):
            log.error("a request failed inside the server", exc_info=failure)
        return _abort(context, failure)

    return handler


def _abort(context: Any, error: Exception) -> NoReturn:
    """End a call by an error. The trainer of Fluid that gets it ends, showing the text."""
    text = str(error) if isinstance(error, RemoteError) else f"{type(error).__name__}: {error}"
    context.abort(next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL), text)
    raise error
