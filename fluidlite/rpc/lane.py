"""One long-lived stream per verb and server: a call of its own for every transfer costs more than the transfer."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from fluidlite.errors import PeerLostError, UnreachableError
from fluidlite.protocol.packet import Packet, Payload
from fluidlite.protocol.service import Pending
from fluidlite.rpc.failures import attempt
from fluidlite.rpc.traffic import Meter
from fluidlite.rpc.wire import Transfer, messages_of, transfers_of

T = TypeVar("T")
#: makes a call of an iterator of messages; the result iterates over the answers
Call = Callable[[Iterator[bytes]], Any]
_NEVER: Final = math.inf


@dataclass(slots=True, eq=False)
class _Ticket:
    """One request on its way: until when it must be answered (by the monotonic clock), and the answer."""

    due: float
    answer: Transfer | None = None


class _Stream:
    """An open call. Requests leave in order, and their answers come in that order."""

    def __init__(self, open: Call, meter: Meter) -> None:
        outbox: SimpleQueue[Packet | None] = SimpleQueue()
        self._outbox = outbox
        self._reading = threading.Lock()
        #: guards what follows, so that it can be looked at while somebody reads
        self._lock = threading.Lock()
        self._open: deque[_Ticket] = deque()
        messages = chain.from_iterable(map(messages_of, iter(outbox.get, None)))
        self._call = attempt(lambda: open(map(meter.sent, messages)))
        # However the call ends, the thread in which gRPC asks for more to send must not wait forever.
        self._call.add_done_callback(lambda _: outbox.put(None))
        self._answers = transfers_of(map(meter.received, self._call))

    @property
    def active(self) -> bool:
        return bool(self._call.is_active())

    @property
    def due(self) -> float:
        """When the first of the answers that are still to come is overdue."""
        with self._lock:
            return min((ticket.due for ticket in self._open), default=_NEVER)

    def send(self, packet: Packet, due: float) -> _Ticket:
        ticket = _Ticket(due)
        with self._lock:
            self._open.append(ticket)
            self._outbox.put(packet)
        return ticket

    def collect(self, ticket: _Ticket) -> Transfer:
        """Wait for an answer; those to earlier requests that nobody has waited for yet are read on the way."""
        with self._reading:
            while ticket.answer is None:
                transfer = self._next(ticket)
                with self._lock:
                    self._open.popleft().answer = transfer
        return ticket.answer

    def cancel(self) -> None:
        self._call.cancel()

    def _next(self, ticket: _Ticket) -> Transfer:
        """The next answer, on behalf of whoever waits for this ticket's."""
        try:
            transfer: Transfer | None = attempt(lambda: next(self._answers, None))
        except UnreachableError:
            if time.monotonic() < ticket.due:
                raise
            raise PeerLostError("no answer in time") from None
        if transfer is None:
            raise UnreachableError("the server ended the stream")
        return transfer


class Lane:
    """All transfers of a verb to one server, over one stream that is opened when needed.

    A failure of any kind ends the stream, for nobody could tell which answer comes next; the next request opens
    another. So does a missed deadline: a thread, started with the first deadline, cancels the stream. It sleeps until
    the earliest of them, not until the next answer, so that calls answered in time do not wake it.
    """

    def __init__(self, open: Call, meter: Meter) -> None:
        self._make = open
        self._meter = meter
        self._changed = threading.Condition()
        self._stream: _Stream | None = None
        self._closed = False
        self._watch: threading.Thread | None = None
        self._looks_at = _NEVER

    def ask(self, packet: Packet, timeout: float | None, decode: Callable[[bytes, Payload], T]) -> Pending[T]:
        """Send a transfer, to be answered within ``timeout`` seconds (None: some time), and decode its answer.

        The answer raises UnreachableError when the stream broke, PeerLostError when the time was over or the lane is
        closed, and what ``decode`` raises.
        """
        due = _NEVER if timeout is None else time.monotonic() + timeout
        with self._changed:
            stream = self._usable()
            ticket = stream.send(packet, due)
            if due < self._looks_at:
                self._look()

        def answer() -> T:
            try:
                return decode(*stream.collect(ticket))
            except BaseException:  # an interrupt, too, may leave half an answer behind
                stream.cancel()
                raise

        return answer

    def close(self) -> None:
        """End the stream; whoever waits for an answer gets an error. Idempotent."""
        with self._changed:
            self._closed = True
            if self._stream is not None:
                self._stream.cancel()
            self._changed.notify_all()

    def _usable(self) -> _Stream:
        if self._closed:
            raise PeerLostError("the connection is closed")
        if self._stream is None or not self._stream.active:
            self._stream = _Stream(self._make, self._meter)
        return self._stream

    def _look(self) -> None:
        if self._watch is None:
            self._watch = threading.Thread(target=self._cancel_overdue, name="deadlines", daemon=True)
            self._watch.start()
        self._changed.notify_all()

    def _cancel_overdue(self) -> None:
        with self._changed:
            while not self._closed:
                self._looks_at = self._stream.due if self._stream is not None and self._stream.active else _NEVER
                left = self._looks_at - time.monotonic()
                if left <= 0 and self._stream is not None:
                    self._stream.cancel()
                else:
                    self._changed.wait(None if left == _NEVER else left)
