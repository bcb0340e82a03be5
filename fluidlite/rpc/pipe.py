"""Messages to and from one open call of gRPC."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from queue import SimpleQueue
from typing import Any, Final, Protocol

from fluidlite.rpc.failures import attempt, typed
from fluidlite.rpc.library import grpc

#: what gRPC's own blocking calls stand on
cygrpc: Any = getattr(getattr(grpc, "_cython", None), "cygrpc", None)

_STATUS: Final[dict[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}
_NO_FLAGS: Final = 0
#: the operations that every call begins with, batch by batch
_START: Final[tuple[tuple[Callable[[], Any], ...], ...]] = (
    (
        lambda: cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS),
        lambda: cygrpc.ReceiveStatusOnClientOperation(_NO_FLAGS),
    ),
    (lambda: cygrpc.ReceiveInitialMetadataOperation(_NO_FLAGS),),
)
#: makes a pipe, raising what `rpc.failures.attempt` does
Open = Callable[[], "Pipe"]


class Pipe(Protocol):
    """An open call. For any number of threads, but one at a time for `receive`."""

    @property
    def active(self) -> bool:
        """Whether it has not ended yet."""
        ...

    def send(self, messages: Iterator[bytes]) -> None:
        """Hand messages over, to leave in order, behind those handed over before. Errors show in `receive`."""
        ...

    def flush(self) -> None:
        """Return once all but the last of them are on their way, or somebody else sees to it."""
        ...

    def receive(self) -> bytes | None:
        """The next message; None when the other side ended the call well. UnreachableError when it broke."""
        ...

    def cancel(self) -> None:
        """End the call now. Idempotent."""
        ...


def opener(channel: Any, path: str) -> Open:
    """What opens calls of a method that streams both ways: direct ones where this version of gRPC has them."""
    if hasattr(getattr(channel, "_channel", None), "segregated_call") and cygrpc is not None:
        return lambda: attempt(lambda: DirectPipe(channel, path))
    return lambda: attempt(lambda: ThreadedPipe(channel, path))


class ThreadedPipe:
    """A pipe over gRPC's public interface: two threads of gRPC's hand messages to and from the threads that use it."""

    def __init__(self, channel: Any, path: str) -> None:
        outbox: SimpleQueue[Iterator[bytes] | None] = SimpleQueue()
        self._outbox = outbox
        self._call = channel.stream_stream(path)(chain.from_iterable(iter(outbox.get, None)))
        # However the call ends, the thread in which gRPC asks for more to send must not wait forever.
        self._call.add_done_callback(lambda _: outbox.put(None))

    @property
    def active(self) -> bool:
        return bool(self._call.is_active())

    def send(self, messages: Iterator[bytes]) -> None:
        self._outbox.put(messages)

    def flush(self) -> None:
        """A thread of gRPC's does that."""

    def receive(self) -> bytes | None:
        message: bytes | None = attempt(lambda: next(self._call, None))
        return message

    def cancel(self) -> None:
        self._call.cancel()


class DirectPipe:
    """A pipe driven by the threads that use it, without hand-overs: they cost as much as the transfers.

    It stands on `segregated_call` of grpcio's private channel, which its blocking calls use: a call with a queue of its
    own for what happens to it. Whoever waits for a message takes from that queue, also for others.
    """

    def __init__(self, channel: Any, path: str) -> None:
        self._call = _segregated_call(channel, path)
        #: held by the thread that takes from the queue
        self._turning = threading.Lock()
        #: guards what follows
        self._lock = threading.Lock()
        #: events that the queue still owes; after the last one it must not be asked
        self._pending = len(_START)
        self._outbox: deque[Iterator[bytes]] = deque()
        self._next: bytes | None = None
        self._sending = self._receiving = False
        self._inbox: deque[bytes] = deque()
        self._status: tuple[grpc.StatusCode, str] | None = None
        self._cancelled = False
        #: an event may have been taken without being looked at
        self._interrupted = False

    @property
    def active(self) -> bool:
        return self._status is None and not self._cancelled

    def send(self, messages: Iterator[bytes]) -> None:
        with self._lock:
            self._outbox.append(messages)
            self._send_next()
            self._receive_next()

    def flush(self) -> None:
        while self._next is not None and self._turning.acquire(blocking=False):
            try:
                self._turn()
            finally:
                self._turning.release()

    def receive(self) -> bytes | None:
        with self._turning:
            while not self._inbox:
                if self._status is not None and not self._pending:
                    return self._end(self._status)
                with self._lock:
                    self._receive_next()
                self._turn()
            return self._inbox.popleft()

    def cancel(self) -> None:
        self._cancelled = True
        self._call.cancel(cygrpc.StatusCode.cancelled, "cancelled")
        if self._turning.acquire(blocking=False):
            try:
                while self._pending and not self._interrupted:  # the call is freed with its last event
                    self._turn()
            finally:
                self._turning.release()

    def _turn(self) -> None:
        """Wait for one event, and do what it allows."""
        if not self._pending:
            return
        self._interrupted = True
        event = self._call.next_event()
        with self._lock:
            self._pending -= 1
            for operation in event.batch_operations:
                self._completed(operation)
        self._interrupted = False

    def _completed(self, operation: Any) -> None:
        kind = operation.type()
        if kind == cygrpc.OperationType.send_message:
            self._sending = False
            self._send_next()
        elif kind == cygrpc.OperationType.receive_message:
            self._receiving = False
            if (message := operation.message()) is not None:
                self._inbox.append(message)
        elif kind == cygrpc.OperationType.receive_status_on_client:
            code, details = operation.code(), operation.details()
            text = details.decode(errors="replace") if isinstance(details, bytes) else str(details)
            self._status = _STATUS.get(code, grpc.StatusCode.UNKNOWN), text

    def _send_next(self) -> None:
        """Send a message, if there is one and none is under way; have the one after it at hand."""
        if self._next is None:
            self._next = self._from_outbox()
        if self._next is not None and not self._sending:
            self._sending = self._operate(cygrpc.SendMessageOperation(self._next, _NO_FLAGS))
            self._next = self._from_outbox() if self._sending else None

    def _from_outbox(self) -> bytes | None:
        while self._outbox:
            message = next(self._outbox[0], None)
            if message is not None:
                return message
            self._outbox.popleft()
        return None

    def _receive_next(self) -> None:
        if not self._receiving:
            self._receiving = self._operate(cygrpc.ReceiveMessageOperation(_NO_FLAGS))

    def _operate(self, operation: Any) -> bool:
        """Start an operation; whether the call still takes any."""
        if self._status is not None:
            return False
        started = bool(self._call.operate((operation,), None))
        self._pending += started
        return started

    @staticmethod
    def _end(status: tuple[grpc.StatusCode, str]) -> None:
        if status[0] is not grpc.StatusCode.OK:
            raise typed(*status)


def _segregated_call(channel: Any, path: str) -> Any:
    batches = tuple((tuple(make() for make in batch), None) for batch in _START)
    given = (_NO_FLAGS, path.encode(), None, None, None, None, batches, cygrpc.build_census_context())
    try:
        return channel._channel.segregated_call(*given, None)  # noqa: SLF001
    except TypeError:  # an argument less, before grpcio 1.62
        return channel._channel.segregated_call(*given)  # noqa: SLF001
