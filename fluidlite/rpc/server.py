"""Puts a service on the network: handlers that unpack, call and pack."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from fluidlite.errors import AddressInUseError, RemoteError, RequestRefusedError
from fluidlite.proto_gen import pserver_pb2 as pb
from fluidlite.protocol import encode
from fluidlite.protocol.messages import READER, Decision, Identity, RowRequest
from fluidlite.protocol.packet import Packet
from fluidlite.protocol.service import Service
from fluidlite.rpc.fluid_server import FluidHandlers
from fluidlite.rpc.fluid_session import FluidSession
from fluidlite.rpc.library import grpc
from fluidlite.rpc.options import SERVICE, server_options
from fluidlite.rpc.signatures import KnownLists
from fluidlite.rpc.wire import Transfer, messages_of, transfers_of
from fluidlite.values.memory import keep_freed_memory, share_one_arena

log = logging.getLogger("fluidlite")
#: seconds that calls under way get when the server ends
_GRACE: Final = 2.0
#: seconds between two looks at leases
_TICK: Final = 0.25
_BIND_PAUSE: Final = 0.5


class Handlers:
    """One handler per verb over a service; whatever a verb raises travels as an outcome, so no call stays unanswered.

    ``readers_only``: nobody trains this way, for the trainers of this server speak another.
    """

    def __init__(self, service: Service, endpoint: str, *, readers_only: bool = False) -> None:
        self._service = service
        self._endpoint = endpoint
        self._readers_only = readers_only
        self._signed = KnownLists()
        self._beating: Counter[Identity] = Counter()
        self._lock = threading.Lock()

    def table(self) -> dict[str, Any]:
        """gRPC's method handlers by verb; messages are bytes on both sides."""
        return {
            "Register": grpc.unary_unary_rpc_method_handler(_answering(self.register)),
            "Pull": grpc.stream_stream_rpc_method_handler(_streaming(lambda: self.pull)),
            "Push": grpc.stream_stream_rpc_method_handler(_streaming(self.push)),
            "Assign": grpc.stream_unary_rpc_method_handler(_answering(self.assign)),
            "Heartbeat": grpc.stream_unary_rpc_method_handler(_answering(self.heartbeat)),
            "Barrier": grpc.unary_unary_rpc_method_handler(_answering(self.barrier)),
            "Checkpoint": grpc.unary_unary_rpc_method_handler(_answering(self.checkpoint)),
            "Complete": grpc.unary_unary_rpc_method_handler(_answering(self.complete)),
        }

    def register(self, request: bytes) -> bytes:
        registration = encode.decode_registration(request)
        if self._readers_only and registration.identity.trainer != READER:
            raise RequestRefusedError(
                "the trainers of this server speak Fluid's own wire; transpile this one with wire='fluid', too, or none"
            )
        return encode.encode_welcome(self._service.register(registration))

    def pull(self, transfer: Transfer) -> Packet:
        identity, requests = encode.decode_pull(*transfer, self._endpoint)
        reply = self._service.pull(identity, requests)
        for request in requests:
            if isinstance(request, RowRequest) and request.signature:
                self._signed.put(identity, request.signature, request.ids)
        return encode.encode_pull_reply(reply, requests)

    def push(self) -> Callable[[Transfer], Packet | None]:
        """What answers the transfers of one stream: parts are held until the commit of their step comes."""
        step = encode.OpenStep(self._endpoint, self._signed.get)

        def answer(transfer: Transfer) -> Packet | None:
            nonlocal step
            came = step.add(*transfer)
            if came is None:
                return None
            if isinstance(came, Decision):
                return encode.encode_commit_reply(self._service.decide(came)())
            step = encode.OpenStep(self._endpoint, self._signed.get)
            return encode.encode_commit_reply(self._service.commit(came)())

        return answer

    def assign(self, messages: Iterator[bytes]) -> bytes:
        for transfer in transfers_of(messages):
            self._service.assign(*encode.decode_assign(*transfer))
        return pb.AssignReply().SerializeToString()

    def heartbeat(self, messages: Iterator[bytes]) -> bytes:
        identity: Identity | None = None
        try:
            for message in messages:
                speaker = encode.decode_identity(encode.parse(pb.HeartbeatRequest, message).identity)
                if identity is None:
                    identity = speaker
                    self._count_stream(identity, 1)
                self._service.heartbeat(speaker)
        finally:
            if identity is not None and not self._count_stream(identity, -1):
                self._service.disconnected(identity)
        return pb.HeartbeatReply().SerializeToString()

    def _count_stream(self, identity: Identity, change: int) -> int:
        """How many streams a trainer has open: a new one may be here before the end of a broken one is noticed."""
        with self._lock:
            self._beating[identity] += change
            left = self._beating[identity]
            if not left:
                del self._beating[identity]
            return left

    def barrier(self, request: bytes) -> bytes:
        message = encode.parse(pb.BarrierRequest, request)
        self._service.barrier(encode.decode_identity(message.identity), message.number)()
        return pb.BarrierReply().SerializeToString()

    def checkpoint(self, request: bytes) -> bytes:
        message = encode.parse(pb.CheckpointRequest, request)
        identity = encode.decode_identity(message.identity)
        version = self._service.checkpoint(identity, message.number, message.folder)()
        return pb.CheckpointReply(version=version).SerializeToString()

    def complete(self, request: bytes) -> bytes:
        self._service.complete(encode.decode_identity(encode.parse(pb.CompleteRequest, request).identity))
        return pb.CompleteReply().SerializeToString()


def _failure(error: Exception) -> bytes:
    """Any verb's reply that reports an error: the outcome is field 1 of all of them."""
    if not isinstance(error, (RemoteError, grpc.RpcError)):
        log.exception("a request failed inside the server")
    return pb.CompleteReply(outcome=encode.outcome_of(error)).SerializeToString()


def _answering(verb: Callable[[Any], bytes]) -> Callable[[Any, Any], bytes]:
    def handler(request: Any, context: Any) -> bytes:
        try:
            return verb(request)
        except Exception as error:
            return _failure(error)

    return handler


def _streaming(
    answerer: Callable[[], Callable[[Transfer], Packet | None]],
) -> Callable[[Iterator[bytes], Any], Iterator[bytes]]:
    """Answer transfer by transfer. After a failure the stream ends: what follows may build on what failed."""

    def handler(messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        answer = answerer()
        try:
            for transfer in transfers_of(messages):
                reply = answer(transfer)
                if reply is not None:
                    yield from messages_of(reply)
        except Exception as error:
            yield from messages_of(Packet(_failure(error), []))

    return handler


class GrpcServer:
    """A service listening at an endpoint. Port 0 takes a free one; ``endpoint`` says which.

    ``fluid_job``: trainers of this job may speak Fluid's own wire (docs/fluid_wire.md); None: nobody may.
    """

    def __init__(
        self,
        service: Service,
        endpoint: str,
        *,
        trainers: int,
        bind_within: float = 3.0,
        fluid_job: str | None = None,
    ) -> None:
        keep_freed_memory()
        share_one_arena()
        # Per trainer the streams of heartbeats, pulls and pushes and a barrier or assignment hold a thread each, and
        # for a while also those of a connection that broke. The pool makes only those threads that it needs; many more
        # than trainers need, so that they go on beside streams that somebody left half open.
        workers = ThreadPoolExecutor(max_workers=8 * trainers + 1024, thread_name_prefix="pserver")
        self._service = service
        self._server = grpc.server(workers, options=server_options(whole_messages=fluid_job is not None))
        self._workers = workers
        self.endpoint = _bind(self._server, endpoint, bind_within)
        handlers = Handlers(service, self.endpoint, readers_only=fluid_job is not None).table()
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        if fluid_job is not None:
            fluid = FluidHandlers(FluidSession(service, self.endpoint, trainers, fluid_job))
            self._server.add_generic_rpc_handlers((fluid.grpc_handler(),))
        self._server.start()

    def wait(self) -> None:
        """Serve until the service ends; calls under way are answered, then the port is free."""
        try:
            while not self._service.poll(_TICK):
                pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening now; calls under way get a short grace. Idempotent."""
        self._service.stop("the server stops")
        self._server.stop(_GRACE).wait()
        self._workers.shutdown(wait=False)
        self._service.close()


def serve(
    service: Service,
    endpoint: str,
    *,
    trainers: int,
    on_bound: Callable[[str], None] | None = None,
    fluid_job: str | None = None,
) -> None:
    """Listen at ``endpoint`` (``host:port``) until the service ends, or SIGTERM or SIGINT ask for it.

    ``on_bound`` gets the real endpoint once clients can connect. Raises AddressInUseError for a port that is taken.
    ``fluid_job``: as in `GrpcServer`.
    """
    server = GrpcServer(service, endpoint, trainers=trainers, fluid_job=fluid_job)
    log.info("pserver listens at %s", server.endpoint)
    try:
        if on_bound is not None:
            on_bound(server.endpoint)
        with _signals_call(service.stop):
            server.wait()
    finally:
        server.close()
    log.info("pserver %s ends", server.endpoint)


@contextmanager
def _signals_call(stop: Callable[[str], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call ``stop`` (from a thread: a handler may interrupt whoever holds the locks it needs)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: object) -> None:
        threading.Thread(target=stop, args=(f"the server got {signal.Signals(number).name}",)).start()

    previous = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)


def _bind(server: grpc.Server, endpoint: str, within: float) -> str:
    """Take the port, waiting a little for a predecessor that is just ending; the endpoint with the real port."""
    host = endpoint.rpartition(":")[0]
    ends = time.monotonic() + within
    while True:
        try:
            return f"{host}:{server.add_insecure_port(endpoint)}"
        except RuntimeError:
            if time.monotonic() >= ends or not _is_taken(endpoint):
                break
            time.sleep(_BIND_PAUSE)
    if _is_taken(endpoint):
        raise AddressInUseError(f"cannot listen at {endpoint}: the port is in use by another process")
    raise RemoteError(f"cannot listen at {endpoint}: no such address here; give a host and port of this machine")


def _is_taken(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    try:
        info = socket.getaddrinfo(host.strip("[]") or None, int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return False
    family, kind, proto, _, address = info[0]
    with socket.socket(family, kind, proto) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
