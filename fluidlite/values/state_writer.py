"""Writes ``.pdparams``, ``.pdopt`` and ``.pdiparams.info``: the bytes that Fluid's pickle (protocol 2) has.

Written out by hand, so that the bytes depend neither on Python's version nor on numpy's (whose 2.x names its modules
otherwise), and every Fluid and Paddle can load them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from io import BufferedIOBase
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import DtypeError

#: as many items of a dict are set at a time
_BATCH: Final = 1000
_NUMBERS: Final = "biufc"


def write_state(stream: BufferedIOBase, state: Mapping[str, Any]) -> None:
    """Write values by name: arrays, texts, whole numbers, truth values, None and dicts of these.

    Raises DtypeError for an array of anything but numbers and for other values, naming them.
    """
    stream.write(b"\x80\x02")
    _Writer(stream).dict(state)
    stream.write(b".")


class _Writer:
    """Writes values and numbers them: what comes again is a reference."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._write = stream.write
        self._known: dict[Any, int] = {}
        self._count = 0

    def _number(self, key: Any = None) -> None:
        """The value just written gets the next number, and is found again by ``key``."""
        if key is not None:
            self._known[key] = self._count
        self._write(
            struct.pack("<cB", b"q", self._count) if self._count < 256 else struct.pack("<cI", b"r", self._count)
        )
        self._count += 1

    def _again(self, key: Any) -> bool:
        """Whether this was written before; then it is referred to."""
        number = self._known.get(key)
        if number is None:
            return False
        self._write(struct.pack("<cB", b"h", number) if number < 256 else struct.pack("<cI", b"j", number))
        return True

    def dict(self, items: Mapping[str, Any]) -> None:
        self._write(b"}")
        self._number()
        entries = list(items.items())
        for start in range(0, len(entries), _BATCH):
            batch = entries[start : start + _BATCH]
            self._write(b"(" if len(batch) > 1 else b"")
            for name, value in batch:
                self._text(name)
                self._value(name, value)
            self._write(b"u" if len(batch) > 1 else b"s")

    def _value(self, name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            self.dict(value)
        elif isinstance(value, np.ndarray):
            self._array(name, value)
        elif isinstance(value, str):
            self._text(value)
        elif isinstance(value, bool):
            self._write(b"\x88" if value else b"\x89")
        elif value is None:
            self._write(b"N")
        elif isinstance(value, int):
            self._int(value)
        else:
            raise DtypeError(f"{name!r} is a {type(value).__name__}, which a state file cannot keep")

    def _array(self, name: str, array: Array) -> None:
        """A call of numpy's ``_reconstruct``, then (version, shape, dtype, order, elements)."""
        if array.dtype.kind not in _NUMBERS:
            raise DtypeError(f"{name!r} is an array of {array.dtype}; a state file keeps numbers")
        self._global("numpy.core.multiarray", "_reconstruct")
        self._global("numpy", "ndarray")
        self._write(b"K\x00\x85")
        self._number()
        self._bytes(b"b")
        self._write(b"\x87")
        self._number()
        self._write(b"R")
        self._number()
        self._write(b"(K\x01")
        self._shape(array.shape)
        self._dtype(array.dtype.newbyteorder("<"))
        self._write(b"\x89")
        self._bytes(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        self._write(b"t")
        self._number()
        self._write(b"b")

    def _shape(self, shape: tuple[int, ...]) -> None:
        if not shape:
            self._write(b")")
            return
        self._write(b"(" if len(shape) > 3 else b"")
        for dim in shape:
            self._int(dim)
        self._write(b"t" if len(shape) > 3 else bytes([0x84 + len(shape)]))
        self._number()

    def _dtype(self, dtype: np.dtype[Any]) -> None:
        code = dtype.str[1:]
        if self._again(("dtype", code)):
            return
        self._global("numpy", "dtype")
        self._text(code, fresh=True)
        self._write(b"\x89\x88\x87")
        self._number()
        self._write(b"R")
        self._number(("dtype", code))
        self._write(b"(K\x03")
        self._text(dtype.str[0])
        self._write(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t")
        self._number()
        self._write(b"b")

    def _global(self, module: str, name: str) -> None:
        if not self._again((module, name)):
            self._write(f"c{module}\n{name}\n".encode())
            self._number((module, name))

    def _bytes(self, data: bytes) -> None:
        """Protocol 2 has no bytes: text that is to be encoded. Python keeps bytes of length 0 and 1 once."""
        key = ("bytes", data) if len(data) < 2 else None
        if key is not None and self._again(key):
            return
        if data:
            self._global("_codecs", "encode")
            self._text(str(data, "latin1"), fresh=len(data) > 1)
            self._text("latin1")
            self._write(b"\x86")
            self._number()
        else:
            self._global("__builtin__", "bytes")
            self._write(b")")
        self._write(b"R")
        self._number(key)

    def _text(self, text: str, *, fresh: bool = False) -> None:
        """``fresh``: a text that Python makes anew each time, so that it is written each time."""
        if not fresh and self._again(("text", text)):
            return
        data = text.encode("utf-8", "surrogatepass")
        self._write(struct.pack("<cI", b"X", len(data)))
        self._write(data)
        self._number(None if fresh else ("text", text))

    def _int(self, value: int) -> None:
        if 0 <= value < 1 << 8:
            self._write(struct.pack("<cB", b"K", value))
        elif 0 <= value < 1 << 16:
            self._write(struct.pack("<cH", b"M", value))
        elif -(1 << 31) <= value < 1 << 31:
            self._write(struct.pack("<ci", b"J", value))
        else:
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            self._write(b"\x8a" + bytes([len(data)]) + data)
