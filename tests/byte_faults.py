"""Bad bytes: damaged ones, random protobuf messages, and what may become of them."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from fluidlite.errors import FluidliteError

M = TypeVar("M", bound=Message)
#: bytes that reading something small may take, whatever sizes it declares
LITTLE = 32 << 20
#: varints of 2^63 - 1 and of -1: sizes that no memory holds
_HUGE = (b"\xff" * 8 + b"\x7f", b"\xff" * 9 + b"\x01")
_FIELD = FieldDescriptor
_INT32 = st.sampled_from([0, 1, 2, 3, 5, -1, 7, 1000, 2**31 - 1, -(2**31)])
_INT64 = _INT32 | st.sampled_from([2**31, 2**40, 2**62, 2**63 - 1, -(2**63)])
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    _FIELD.TYPE_INT32: _INT32,
    _FIELD.TYPE_INT64: _INT64,
    _FIELD.TYPE_UINT64: st.sampled_from([0, 1, 8, 16, 2**31, 2**40, 2**63, 2**64 - 1]),
    _FIELD.TYPE_BOOL: st.booleans(),
    _FIELD.TYPE_FLOAT: st.floats(width=32),
    _FIELD.TYPE_DOUBLE: st.floats(),
    _FIELD.TYPE_BYTES: st.binary(max_size=24),
    _FIELD.TYPE_STRING: st.text(max_size=4),
}


def damaged(*wholes: bytes) -> st.SearchStrategy[bytes]:
    """One of these with a few faults: flipped, cut, inserted and repeated bytes, huge numbers."""

    @st.composite
    def draw_damaged(draw: st.DrawFn) -> bytes:
        data = draw(st.sampled_from(wholes))
        for _ in range(draw(st.integers(1, 3))):
            data = draw(_with_a_fault(data))
        return data

    return draw_damaged()


@st.composite
def _with_a_fault(draw: st.DrawFn, data: bytes) -> bytes:
    if not data:
        return draw(st.binary(max_size=8))
    at = draw(st.integers(0, len(data) - 1))
    end = draw(st.integers(at, min(len(data), at + 40)))
    kind = draw(st.sampled_from(["flip", "cut", "drop", "insert", "repeat", "huge"]))
    match kind:
        case "flip":
            return data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :]
        case "cut":
            return data[:at]
        case "drop":
            return data[:at] + data[end:]
        case "insert":
            return data[:at] + draw(st.binary(min_size=1, max_size=12)) + data[at:]
        case "repeat":
            return data[:end] + data[at:]
        case _:
            return data[:at] + draw(st.sampled_from(_HUGE)) + data[at + draw(st.integers(0, 1)) :]


def messages(kind: type[M], special: Mapping[str, Sequence[Any]] | None = None) -> st.SearchStrategy[M]:
    """Any message of a type. ``special``: the values that fields of these names have (otherwise: any, extremes mostly)."""

    @st.composite
    def draw_message(draw: st.DrawFn) -> M:
        message = kind()
        _fill(draw, message, special or {}, 6)
        return message

    return draw_message()


def _fill(draw: st.DrawFn, message: Message, special: Mapping[str, Sequence[Any]], depth: int) -> None:
    descriptor: Descriptor = message.DESCRIPTOR
    for field in descriptor.fields:
        needed = field.label == _FIELD.LABEL_REQUIRED if hasattr(field, "label") else field.is_required
        if not needed and not draw(st.booleans()):
            continue
        repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == _FIELD.LABEL_REPEATED
        for _ in range(draw(st.integers(0, 3)) if repeated else 1):
            if field.type == _FIELD.TYPE_MESSAGE:
                if depth:
                    inner = getattr(message, field.name)
                    _fill(draw, inner.add() if repeated else inner, special, depth - 1)
            elif repeated:
                getattr(message, field.name).append(draw(_scalar(field, special)))
            else:
                setattr(message, field.name, draw(_scalar(field, special)))


def _scalar(field: FieldDescriptor, special: Mapping[str, Sequence[Any]]) -> st.SearchStrategy[Any]:
    if field.name in special:
        return st.sampled_from(special[field.name])
    if field.type == _FIELD.TYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return _SCALARS[field.type]


def refused_or_read(call: Callable[[], Any], most: int = LITTLE) -> bool:
    """Whether ``call`` refuses what it reads, by an error of ours. It must take less than ``most`` bytes of memory."""
    tracemalloc.start()
    try:
        call()
    except FluidliteError:
        return True
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < most, f"{peak} bytes were taken"
    return False


@contextmanager
def no_failures() -> Iterator[None]:
    """No server in this process fails by an error that is not ours."""
    seen: list[str] = []

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and not isinstance(record.exc_info[1], FluidliteError):
                seen.append(f"{record.getMessage()}: {record.exc_info[1]!r}")

    handler = Seen()
    log = logging.getLogger("fluidlite")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
    assert seen == []
