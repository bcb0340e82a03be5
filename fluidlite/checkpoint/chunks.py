"""Files of chunks: each with its length, a tag and a CRC, all little-endian.

A file is the 8 bytes ``FLCKPT01``, then chunks of a header (``CHNK``, number of the chunk, tag, CRC-32 of the payload and
of the header without it: 4 bytes each; bytes of the payload: 8) and the payload. The CRC of the file, which its
manifest holds, is that of the CRCs of its chunks.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, Final, NamedTuple, Self

import numpy as np

from fluidlite.checkpoint.storage import Output
from fluidlite.dtypes import Array
from fluidlite.errors import CorruptFileError

MAGIC: Final = b"FLCKPT01"
#: bytes of payload that a writer aims at, and that a reader accepts
CHUNK_BYTES: Final = 1 << 20
MOST_BYTES: Final = 1 << 26
_HEADER: Final = struct.Struct("<4sIIIQ")
_CHECKED: Final = struct.Struct("<4sIIQ")
_MARK: Final = b"CHNK"


class FileInfo(NamedTuple):
    """What a manifest says of a file of chunks: its name in the folder of its checkpoint, bytes, chunks, CRC of the CRCs."""

    name: str
    size: int
    chunks: int
    crc32: int


class ChunkWriter:
    """Appends chunks to a stream that was just opened. Use as a context manager: a thread of its own writes a chunk while
    the next one is made, and has ended at the end."""

    def __init__(self, stream: Output) -> None:
        self._stream = stream
        self._size = len(MAGIC)
        self._chunks = 0
        self._crc = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chunks")
        self._writing: Future[None] = self._thread.submit(self._put, [MAGIC])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._thread.shutdown()
        if kind is None:
            self._writing.result()

    def write(self, tag: int, *parts: Array) -> None:
        """One chunk of the bytes of C-contiguous arrays of little-endian numbers, one after the other. They must not change
        until the next chunk is written. Raises what went wrong with the chunk before."""
        views, crc = [bytes_of(part) for part in parts], 0
        for view in views:
            crc = zlib.crc32(view, crc)
        size = sum(map(len, views))
        crc = zlib.crc32(_CHECKED.pack(_MARK, self._chunks, tag, size), crc)
        header = _HEADER.pack(_MARK, self._chunks, tag, crc, size)
        self._writing.result()
        self._writing = self._thread.submit(self._put, [header, *views])
        self._crc = _crc_with(self._crc, crc)
        self._size += _HEADER.size + size
        self._chunks += 1

    def _put(self, pieces: Sequence[bytes | memoryview]) -> None:
        for piece in pieces:
            self._stream.write(piece)

    @property
    def place(self) -> tuple[int, int]:
        """(number, byte in the file) of the next chunk."""
        return self._chunks, self._size

    def info(self, name: str) -> FileInfo:
        """What was written, as the file ``name``."""
        return FileInfo(name, self._size, self._chunks, self._crc)


def read_chunks(stream: BinaryIO, size: int, info: FileInfo, source: str) -> Iterator[tuple[int, bytearray]]:
    """(tag, payload) of each chunk of a file of ``size`` bytes, as far as the stream is read; all is checked.

    Raises CorruptFileError naming ``source`` where the file is not what ``info`` says.
    """
    if size != info.size:
        raise CorruptFileError(f"{source} is {size} bytes long, its manifest says {info.size}")
    if _read(stream, len(MAGIC), source) != MAGIC:
        raise CorruptFileError(f"{source} is no file of a checkpoint: it does not begin with {MAGIC!r}")
    left, total = size - len(MAGIC), 0
    for number in range(info.chunks):
        tag, crc, payload = _chunk(stream, left, number, source)
        left -= _HEADER.size + len(payload)
        total = _crc_with(total, crc)
        yield tag, payload
    if left or total != info.crc32:
        raise CorruptFileError(f"{source} is not the file that its manifest names: the chunks differ")


def read_some(stream: BinaryIO, size: int, place: tuple[int, int], nbytes: int, source: str) -> bytearray:
    """The payloads of chunks one after the other, ``nbytes`` in all, from the one at ``place`` (`ChunkWriter.place`) on,
    of a file of ``size`` bytes. CorruptFileError naming ``source``."""
    number, at = place
    if at + nbytes > size:
        raise CorruptFileError(f"{source} is {size} bytes long, too short for what its manifest says")
    stream.seek(at)
    content = bytearray()
    while len(content) < nbytes:
        _, _, payload = _chunk(stream, size - at, number, source)
        if not payload:
            break
        content += payload
        number, at = number + 1, at + _HEADER.size + len(payload)
    if len(content) != nbytes:
        raise CorruptFileError(f"{source}: chunk {number} ends elsewhere than its manifest says")
    return content


def bytes_of(array: Array) -> memoryview:
    """The bytes of a C-contiguous array of little-endian numbers."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def little_endian(array: Array) -> Array:
    """The array, C-contiguous and little-endian: itself where it is so already."""
    return np.ascontiguousarray(array, stored_dtype(array.dtype))


def stored_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The same numbers, little-endian."""
    return dtype.newbyteorder("<")


def _chunk(stream: BinaryIO, left: int, number: int, source: str) -> tuple[int, int, bytearray]:
    """(tag, CRC, payload) of the chunk that comes next in a stream, of which so many bytes are left."""
    mark, found, tag, crc, length = _HEADER.unpack(_read(stream, _HEADER.size, source))
    if mark != _MARK or found != number or length > min(left - _HEADER.size, MOST_BYTES):
        raise CorruptFileError(f"{source}: the header of chunk {number} is damaged")
    payload = _read(stream, length, source)
    if zlib.crc32(_CHECKED.pack(_MARK, number, tag, length), zlib.crc32(payload)) != crc:
        raise CorruptFileError(f"{source}: chunk {number} is damaged: its CRC is not the one that was written")
    return tag, crc, payload


def _crc_with(total: int, crc: int) -> int:
    return zlib.crc32(crc.to_bytes(4, "little"), total)


def _read(stream: BinaryIO, size: int, source: str) -> bytearray:
    content = bytearray(size)
    view, got = memoryview(content), 0
    while got < size and (n := stream.readinto(view[got:])):  # type: ignore[attr-defined]
        got += n
    if got < size:
        raise CorruptFileError(f"{source} ends in the middle of a chunk")
    return content
