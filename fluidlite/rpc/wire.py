"""Transfers as messages: joins and cuts the four outer fields of proto/pserver.proto by hand.

A generated message would copy every payload twice more; here a payload is copied once on the way out (the join that
gRPC needs) and looked at where it lies on the way in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import RequestRefusedError
from fluidlite.protocol.packet import ALIGN, Packet, Payload, pieces_of

#: payload bytes per message; larger transfers stream, so no more than a few messages are in memory besides the arrays
CHUNK: Final = 1 << 20
#: bytes of payload that are believed to come; for more, memory is taken as they do
_BELIEVED: Final = 1 << 24
_MOST: Final = 1 << 48
_HEADER, _SIZE, _PAD, _PAYLOAD = 1, 2, 3, 4
_VARINT, _BYTES = 0, 2
_SKIPPED_WIRE_TYPES: Final = {1: 8, 5: 4}
_NOTHING: Final = memoryview(b"")


class Transfer(NamedTuple):
    """A header and what came behind it."""

    header: bytes
    payload: Payload


class _Message(NamedTuple):
    header: bytes | None
    size: int | None
    payload: memoryview


def messages_of(packet: Packet, chunk: int = CHUNK) -> Iterator[bytes]:
    """The messages of a transfer, each with at most ``chunk`` bytes of payload."""
    pieces = pieces_of(packet.arrays)
    size = sum(map(len, pieces))
    head = _field(_HEADER, len(packet.header)) + packet.header
    if size <= chunk:
        return iter((b"".join((head, _payload_field(len(head), size), *pieces)),))
    return _messages(head + _tag(_SIZE, _VARINT) + _varint(size), pieces, chunk)


def _messages(head: bytes, pieces: Iterable[memoryview | bytes], chunk: int) -> Iterator[bytes]:
    for part in _cut(pieces, chunk):
        yield b"".join((head, _payload_field(len(head), sum(map(len, part))), *part))
        head = b""


def transfers_of(messages: Iterable[bytes]) -> Iterator[Transfer]:
    """The transfers that a stream of messages holds.

    RequestRefusedError for anything that is none, and for a stream that ends inside one.
    """
    stream = iter(messages)
    for data in stream:
        first = _parse(data)
        if first.header is None:
            raise RequestRefusedError("malformed message: a transfer must start with its header")
        if first.size is None or first.size == len(first.payload):
            yield Transfer(first.header, Payload(first.payload))
        else:
            yield Transfer(first.header, Payload(_gather(first, first.size, stream)))


def _gather(first: _Message, size: int, stream: Iterator[bytes]) -> memoryview:
    """The payload of a transfer in many messages. Memory is taken for at most twice the bytes that really came."""
    if size > _MOST:
        raise RequestRefusedError(f"malformed message: a payload of {size} bytes")
    buffer = np.empty(min(size, _BELIEVED), np.uint8)
    filled, part = 0, first.payload
    while True:
        if filled + len(part) > size:
            raise RequestRefusedError(f"malformed message: more than the {size} bytes of payload that were announced")
        buffer = _with_room(buffer, filled, filled + len(part), size)
        buffer.data[filled : filled + len(part)] = part
        filled += len(part)
        if filled == size:
            return buffer.data.toreadonly()
        part = _continuation(stream, filled, size)


def _with_room(buffer: Array, filled: int, needed: int, size: int) -> Array:
    """The buffer, or a larger copy where it has no room for ``needed`` of ``size`` bytes."""
    if needed <= len(buffer):
        return buffer
    larger = np.empty(min(size, 2 * needed), np.uint8)
    larger[:filled] = buffer[:filled]
    return larger


def _continuation(stream: Iterator[bytes], filled: int, size: int) -> memoryview:
    data = next(stream, None)
    if data is None:
        raise RequestRefusedError(f"incomplete transfer: {filled} of {size} bytes came")
    message = _parse(data)
    if message.header is not None or not len(message.payload):
        raise RequestRefusedError(f"malformed message: a new header after {filled} of {size} bytes of payload")
    return message.payload


def _cut(pieces: Iterable[memoryview | bytes], chunk: int) -> Iterator[list[memoryview]]:
    """Group pieces, cut where needed, into lists of ``chunk`` bytes (the last one smaller)."""
    group: list[memoryview] = []
    room = chunk
    for piece in pieces:
        rest = memoryview(piece)
        while len(rest) >= room:
            yield [*group, rest[:room]]
            group, rest, room = [], rest[room:], chunk
        if len(rest):
            group.append(rest)
            room -= len(rest)
    if group:
        yield group


def _payload_field(before: int, size: int) -> bytes:
    """The pad and the tag of ``size`` bytes of payload behind ``before`` bytes: the payload starts at a multiple of ALIGN."""
    if not size:
        return b""
    tag = _field(_PAYLOAD, size)
    gap = -(before + len(tag)) % ALIGN
    if not gap:
        return tag
    if gap == 1:  # a pad field takes two bytes at least
        gap += ALIGN
    return _field(_PAD, gap - 2) + bytes(gap - 2) + tag


def _tag(number: int, wire_type: int) -> bytes:
    return bytes((number << 3 | wire_type,))


def _field(number: int, length: int) -> bytes:
    """Tag and length of a bytes field."""
    return _tag(number, _BYTES) + _varint(length)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _parse(data: bytes) -> _Message:
    """The outer fields of one message; unknown ones are skipped, the last of a repeated one counts."""
    header, size, payload = None, None, _NOTHING
    at, end = 0, len(data)
    while at < end:
        key, at = _read_varint(data, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, at = _read_varint(data, at)
            size = value if number == _SIZE else size
            continue
        if wire_type == _BYTES:
            length, at = _read_varint(data, at)
        elif wire_type in _SKIPPED_WIRE_TYPES:
            length = _SKIPPED_WIRE_TYPES[wire_type]
        else:
            raise RequestRefusedError(f"malformed message: wire type {wire_type} at byte {at}")
        if length > end - at:
            raise RequestRefusedError(f"malformed message: field {number} of {length} bytes ends outside")
        if wire_type == _BYTES and number == _HEADER:
            header = data[at : at + length]
        elif wire_type == _BYTES and number == _PAYLOAD:
            payload = memoryview(data)[at : at + length]
        at += length
    return _Message(header, size, payload)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at byte ``at``, and where the next byte is."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise RequestRefusedError("malformed message: it ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise RequestRefusedError("malformed message: a number of more than ten bytes")
