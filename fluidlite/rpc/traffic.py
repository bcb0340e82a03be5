"""How many bytes go over a connection."""

from __future__ import annotations

import threading
from typing import NamedTuple


class Traffic(NamedTuple):
    """Bytes of messages as they travel, without what HTTP/2 and TCP put around them."""

    sent: int
    received: int

    def __str__(self) -> str:
        return f"{_size(self.sent)} sent, {_size(self.received)} received"


class Meter:
    """Counts the messages of one verb on one connection. For use by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent = 0
        self._received = 0

    def sent(self, message: bytes) -> bytes:
        """The message, counted."""
        with self._lock:
            self._sent += len(message)
        return message

    def received(self, message: bytes) -> bytes:
        """The message, counted."""
        with self._lock:
            self._received += len(message)
        return message

    def read(self) -> Traffic:
        """So far."""
        with self._lock:
            return Traffic(self._sent, self._received)


def _size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
