"""One long-lived stream per verb and server: a call of its own for every transfer costs more than the transfer."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from fluidlite.errors import PeerLostError, UnreachableError
from fluidlite.protocol.packet import Packet, Payload
from fluidlite.protocol.service import Pending
from fluidlite.rpc.pipe import Open
from fluidlite.rpc.traffic import Meter
from fluidlite.rpc.wire import Transfer, messages_of, transfers_of

T = TypeVar("T")
_NEVER: Final = math.inf


@dataclass(slots=True, eq=False)
class _Ticket:
    """One request on its way: until when it must be answered (by the monotonic clock), and the answer."""

    due: float = _NEVER
    answer: Transfer | None = None


class _Stream:
    """An open call. Requests leave in order, and their answers come in that order.

    Whatever goes wrong while it is used, in a ``with`` block, ends it: an interrupt, too, may leave half a message behind.
    """

    def __init__(self, open: Open, meter: Meter) -> None:
        self._meter = meter
        self._reading = threading.Lock()
        #: guards what follows, so that it can be looked at while somebody reads
        self._lock = threading.Lock()
        self._open: deque[_Ticket] = deque()
        self._pipe = open()
        self._answers = transfers_of(map(meter.received, iter(self._pipe.receive, None)))

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self.cancel()

    @property
    def active(self) -> bool:
        return self._pipe.active

    @property
    def due(self) -> float:
        """When the first of the answers that are still to come is overdue."""
        with self._lock:
            return min((ticket.due for ticket in self._open), default=_NEVER)

    def send(self, packet: Packet) -> _Ticket:
        ticket = _Ticket()
        with self._lock:
            self._open.append(ticket)
            self.post(packet)
        return ticket

    def post(self, packet: Packet) -> None:
        """Send what is not answered."""
        self._pipe.send(map(self._meter.sent, messages_of(packet)))

    def flush(self) -> None:
        """See `Pipe.flush`; not under a lock, for a server that takes nothing holds it up until the call is cancelled."""
        self._pipe.flush()

    def collect(self, ticket: _Ticket) -> Transfer:
        """Wait for an answer; those to earlier requests that nobody has waited for yet are read on the way."""
        with self._reading:
            while ticket.answer is None:
                transfer = self._next(ticket)
                with self._lock:
                    self._open.popleft().answer = transfer
        return ticket.answer

    def cancel(self) -> None:
        self._pipe.cancel()

    def _next(self, ticket: _Ticket) -> Transfer:
        """The next answer, on behalf of whoever waits for this ticket's."""
        try:
            transfer = next(self._answers, None)
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

    def __init__(self, open: Open, meter: Meter) -> None:
        self._make = open
        self._meter = meter
        self._changed = threading.Condition()
        self._stream: _Stream | None = None
        self._closed = False
        self._watch: threading.Thread | None = None
        self._looks_at = _NEVER

    def ask(
        self, packet: Packet, timeout: float | None, decode: Callable[[bytes, Payload], T], ahead: bool = False
    ) -> Pending[T]:
        """Send a transfer, to be answered within ``timeout`` seconds (None: some time), and decode its answer.

        The seconds count from now, or ``ahead``: from when the answer is waited for, which raises UnreachableError when
        the stream broke, PeerLostError when the time was over or the lane is closed, and what ``decode`` raises.
        """
        with self._changed:
            stream = self._usable()
            with stream:
                ticket = stream.send(packet)
            if not ahead:
                self._limit(ticket, timeout)
        with stream:
            stream.flush()

        def answer() -> T:
            if ahead:
                with self._changed:
                    self._limit(ticket, timeout)
            with stream:
                return decode(*stream.collect(ticket))

        return answer

    def post(self, packet: Packet) -> object:
        """Send a transfer that is not answered; what names the stream that took it."""
        with self._changed:
            stream = self._usable()
            with stream:
                stream.post(packet)
        with stream:
            stream.flush()
        return stream

    def is_on(self, stream: object) -> bool:
        """Whether the next transfer goes over this stream, too."""
        return self._stream is not None and self._stream is stream and self._stream.active

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

    def _limit(self, ticket: _Ticket, timeout: float | None) -> None:
        """From now on the seconds of a request count."""
        if timeout is None:
            return
        ticket.due = time.monotonic() + timeout
        if ticket.due < self._looks_at:
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
