"""A header with arrays behind it: how values are laid out, whether they go over a wire or into a log.

The header (serialized protobuf) describes each array as ``pb.Array(dtype, shape)``; their bytes follow in the same
order, little-endian, row-major, each padded with zeros to a multiple of `ALIGN`, back to back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from fluidlite.dtypes import DTYPE_NAMES, Array, dtype_number
from fluidlite.errors import RequestRefusedError
from fluidlite.proto_gen import pserver_pb2 as pb
from fluidlite.protocol.messages import Value
from fluidlite.protocol.narrow import BFLOAT16, NARROW, narrow, widen
from fluidlite.values.selected_rows import SelectedRows

#: every array starts at a multiple of this, so that the views made on receipt are aligned
ALIGN: Final = 8
#: of a shape; numpy can name no more in every version
_MOST_DIMENSIONS: Final = 32
_ZEROS: Final = bytes(ALIGN)
#: made from strings: on a little-endian machine these are the native dtypes, also to who asks for an array's buffer
_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    number: BFLOAT16 if name == "bfloat16" else np.dtype(np.dtype(name).newbyteorder("<").str)
    for number, name in DTYPE_NAMES.items()
}
_WIDE: Final = frozenset(dtype_number(name) for name in ("float32", "float64"))
#: the numbers by dtype; `dtype_number` takes longer than all the rest of describing an array
_NUMBERS: Final[dict[np.dtype[Any], int]] = {dtype: number for number, dtype in _DTYPES.items()}
_CASTABLE: Final = frozenset(_NUMBERS) - {BFLOAT16}


class Packet(NamedTuple):
    """A serialized header and the arrays that it describes, in order."""

    header: bytes
    arrays: list[Array]


def describe(array: Array) -> pb.Array:
    """Dtype and shape of an array. DtypeError for a dtype that programs do not have."""
    return pb.Array(dtype=_number(array.dtype), shape=array.shape)


def put_value(value: Value, arrays: list[Array], wire_dtype: str = "", what: str = "") -> pb.Value:
    """Describe a value and append its arrays; the ids of SelectedRows go first.

    The values of rows are narrowed to ``wire_dtype``, if given: RequestRefusedError, naming ``what``, where that cannot be.
    """
    if isinstance(value, SelectedRows):
        arrays.append(value.rows)
        described = put_value(value.value, arrays, wire_dtype, what)
        described.rows.CopyFrom(describe(value.rows))
        described.height = value.height
        return described
    if not wire_dtype or value.dtype.itemsize <= NARROW[wire_dtype].itemsize:
        arrays.append(value)
        return pb.Value(array=describe(value))
    arrays.append(narrow(value, wire_dtype, what))
    return pb.Value(array=describe(arrays[-1]), dtype=dtype_number(value.dtype))


def pieces_of(arrays: Iterable[Array]) -> list[memoryview | bytes]:
    """The payload of some arrays as pieces without copies (but for arrays that are not row-major little-endian)."""
    pieces: list[memoryview | bytes] = []
    for array in arrays:
        if array.size:
            pieces.append(_bytes_of(array))
            if surplus := array.nbytes % ALIGN:
                pieces.append(_ZEROS[surplus:])
    return pieces


def _bytes_of(array: Array) -> memoryview:
    if array.flags.c_contiguous and array.dtype in _CASTABLE:
        return array.data.cast("B")
    plain = np.ascontiguousarray(array, _DTYPES[_number(array.dtype)])
    return plain.reshape(-1).view(np.uint8).data


def _number(dtype: np.dtype[Any]) -> int:
    return _NUMBERS.get(dtype) or dtype_number(dtype)


class Payload:
    """The bytes behind a header, handed out as arrays in the order in which the header describes them.

    The arrays are read-only views where the buffer is. A description that does not fit the bytes raises
    RequestRefusedError; nothing is allocated for it.
    """

    def __init__(self, buffer: bytes | memoryview) -> None:
        self._buffer = memoryview(buffer)
        self._offset = 0

    def take(self, described: pb.Array) -> Array:
        """The next array."""
        dtype = _DTYPES.get(described.dtype)
        shape = tuple(described.shape)
        if dtype is None or len(shape) > _MOST_DIMENSIONS or min(shape, default=0) < 0:
            start = ", ".join(map(str, shape[:_MOST_DIMENSIONS]))
            raise RequestRefusedError(
                f"malformed array: dtype number {described.dtype}, {len(shape)} dimensions [{start}]"
            )
        count = math.prod(shape)
        size = count * dtype.itemsize
        if size > len(self._buffer) - self._offset:
            raise RequestRefusedError(
                f"malformed array: {dtype.name} {list(shape)} needs {size} bytes, "
                f"{len(self._buffer) - self._offset} of {len(self._buffer)} are left"
            )
        return self._view(dtype, shape, count, size)

    def take_value(self, described: pb.Value) -> Value:
        """The next array, or the next two as SelectedRows; what was narrowed is widened."""
        rows = self.take(described.rows) if described.HasField("rows") else None
        value = self.take(described.array)
        if described.dtype:
            value = self._widened(value, described.dtype)
        if rows is None:
            return value
        check_rows(rows, value)
        return SelectedRows(rows, value, described.height)

    @staticmethod
    def _widened(value: Array, dtype: int) -> Array:
        if value.dtype not in NARROW.values() or dtype not in _WIDE:
            raise RequestRefusedError(f"malformed array: {value.dtype.name} in place of dtype number {dtype}")
        return widen(value, DTYPE_NAMES[dtype])

    def finish(self) -> None:
        """Refuse bytes that no array claims."""
        if self._offset < len(self._buffer):
            raise RequestRefusedError(f"malformed message: {len(self._buffer) - self._offset} bytes belong to no array")

    def _view(self, dtype: np.dtype[Any], shape: tuple[int, ...], count: int, size: int) -> Array:
        start = self._offset
        self._offset = min(len(self._buffer), start + size + -size % ALIGN)
        try:
            if not count:
                return np.empty(shape, dtype)
            return np.frombuffer(self._buffer, dtype, count, start).reshape(shape)
        except ValueError as error:  # larger dimensions than numpy can name
            raise RequestRefusedError(f"malformed array of shape {list(shape)}: {error}") from None


def check_rows(rows: Array, value: Array) -> None:
    """Refuse rows whose ids are not (n,) int64 or whose values are not (n, ...)."""
    if rows.ndim != 1 or rows.dtype != np.int64:
        raise RequestRefusedError(f"ids must be [n] int64, not {list(rows.shape)} {rows.dtype}")
    if value.ndim < 1 or len(rows) != len(value):
        raise RequestRefusedError(f"{len(rows)} ids come with values of shape {list(value.shape)}")
