"""The log of a server: its events on disk, appended before anything that builds on them is acknowledged.

A log is a folder of segments, ``events.000000``, ``events.000001``, ... A segment is a magic number and entries, each

    u32 bytes of header | u64 bytes of payload | u32 CRC-32 of these two | u32 CRC-32 of what follows | header | payload

in little-endian. The first entry of a segment says, in JSON, whose log it is; the others are events. `write(2)` has
returned before an event counts as written, so that a killed process loses nothing; with ``fsync`` a machine that loses
power loses nothing either.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import struct
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from fluidlite.errors import CorruptFileError, RequestRefusedError, ServerFailedError, UnwritableFileError
from fluidlite.protocol.events import Event, decode_event, encode_event
from fluidlite.protocol.packet import Packet, Payload, pieces_of

log = logging.getLogger("fluidlite")
MAGIC: Final = b"FLUIDLOG"
_SIZES: Final = struct.Struct("<IQ")
_CRC: Final = struct.Struct("<I")
_HEAD: Final = _SIZES.size + 2 * _CRC.size
_NAME: Final = re.compile(r"events\.(\d{6,})")
#: pieces that one call of writev takes
_MOST_PIECES: Final = 512
_FORMAT: Final = 1
#: an entry's pieces, or the number of a segment that begins
_Item: TypeAlias = "list[Any] | int"


def segments(folder: Path) -> list[int]:
    """The numbers of the segments in a folder, ascending."""
    if not folder.is_dir():
        return []
    found = sorted(int(match[1]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name)))
    return [number for number in found if segment_path(folder, number).exists()]


def lock(folder: Path) -> int:
    """Keep other processes from a log; a file to close, which the system does for a process that is killed.

    Raises UnwritableFileError where somebody has it, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UnwritableFileError(f"the log in {folder} cannot be written: {error}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise UnwritableFileError(f"the log in {folder} is that of a server which is running: {error}") from error
    return file


def remove_unbegun(folder: Path, number: int) -> bool:
    """Remove a segment whose making was interrupted: nobody was told of what it was to hold. Whether it was one."""
    path = segment_path(folder, number)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        magic = file.read(len(MAGIC))
        at = file.tell()
        begun = magic == MAGIC and (_read_entry(file, size - at) is not None or not _is_unfinished(file, at, size))
    if begun or not MAGIC.startswith(magic):
        return False
    log.warning("%s: removed, for it was never begun", path)
    path.unlink()
    return True


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"events.{number:06d}"


class Journal:
    """Appends events to a segment in the order in which they were given.

    Whoever waits for an event writes it, with all that was given by then: no thread has to be woken for it. ``whose``
    describes the server and its job; it is the head of every segment. ``append`` gives a number, `wait` returns once the
    event of that number is written. Appending is for one thread at a time, waiting for any number. Raises
    UnwritableFileError where a segment cannot be made, ServerFailedError from `wait` once writing failed.
    """

    def __init__(self, folder: Path, number: int, whose: Mapping[str, Any], *, fsync: bool = False) -> None:
        self._folder = folder
        self._whose = dict(whose)
        self._fsync = fsync
        #: guards what follows
        self._changed = threading.Condition()
        self._queue: list[_Item] = []
        self._given = self._written = 0
        self._is_writing = self._closed = False
        self._failure: OSError | None = None
        self.number = number
        #: bytes of the segment that is open
        self.size = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._open(number)
            self.size = os.fstat(self._file).st_size
        except OSError as error:
            raise UnwritableFileError(f"the log in {folder} cannot be written: {error}") from error

    def append(self, event: Event) -> int:
        """Give an event; the number to `wait` for. Its arrays must not change until then."""
        pieces = _entry(encode_event(event))
        self.size += sum(map(len, pieces))
        return self._put(pieces)

    def rotate(self) -> int:
        """What follows goes to a new segment, whose number is returned."""
        self.number += 1
        self.size = 0
        self._put(self.number)
        return self.number

    @property
    def failure(self) -> OSError | None:
        """What went wrong, if anything did. It does not pass: what was not written is lacking."""
        return self._failure

    @property
    def given(self) -> int:
        """The number of what was given last."""
        return self._given

    def wait(self, number: int) -> None:
        """Until the event of this number is written."""
        while self._written < number:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_writing or self._written >= number)
                if self._written >= number:
                    return
                if self._failure is not None or self._closed:
                    why = self._failure or "it is closed"
                    raise ServerFailedError(f"the log in {self._folder} cannot be written: {why}")
                items, self._queue = self._queue, []
                last, self._is_writing = self._given, True
            self._write_all(items, last)

    def close(self) -> None:
        """Write what was given; what is given later fails whoever waits for it. Idempotent."""
        with contextlib.suppress(ServerFailedError):  # it was logged, and said to whoever waited
            self.wait(self._given)
        with self._changed:
            self._changed.wait_for(lambda: not self._is_writing)
            if not self._closed:
                self._closed = True
                os.close(self._file)

    def _put(self, item: _Item) -> int:
        with self._changed:
            self._given += 1
            self._queue.append(item)
            return self._given

    def _write_all(self, items: list[_Item], last: int) -> None:
        """Write items, the last of which has the number ``last``; whoever waits learns how it went. After a failure nothing
        follows: it would not follow what is there."""
        failure: OSError | None = OSError("writing was interrupted")
        try:
            for item in items:
                self._write(item)
            if self._fsync:
                os.fsync(self._file)
            failure = None
        except OSError as error:
            log.error("the log in %s cannot be written: %s", self._folder, error)
            failure = error
        finally:
            with self._changed:
                self._is_writing = False
                self._failure = self._failure or failure
                if failure is None:
                    self._written = last
                self._changed.notify_all()

    def _write(self, item: _Item) -> None:
        if isinstance(item, int):
            opened = self._open(item)
            if self._fsync:
                os.fsync(self._file)
            os.close(self._file)
            self._file = opened
        else:
            _seal(item)
            _write_pieces(self._file, item)

    def _open(self, number: int) -> int:
        """A segment to append to: a new one with its head, or one that ends with a whole entry."""
        path = segment_path(self._folder, number)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if not os.fstat(file).st_size:
            head = _entry(Packet(json.dumps({"format": _FORMAT, "segment": number, **self._whose}).encode(), []))
            _seal(head)
            _write_pieces(file, [MAGIC, *head])
            if self._fsync:
                os.fsync(file)
                self._sync_folder()
        return file

    def _sync_folder(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _entry(packet: Packet) -> list[Any]:
    """The pieces of an entry; the first one still lacks its check sum, see `_seal`."""
    pieces = pieces_of(packet.arrays)
    return [_SIZES.pack(len(packet.header), sum(map(len, pieces))), packet.header, *pieces]


def _seal(pieces: list[Any]) -> None:
    crc = 0
    for piece in pieces[1:]:
        crc = zlib.crc32(piece, crc)
    pieces[0] += _CRC.pack(zlib.crc32(pieces[0])) + _CRC.pack(crc)


def _write_pieces(file: int, pieces: list[Any]) -> None:
    """All bytes, however often the system takes only some."""
    views = deque(memoryview(piece).cast("B") for piece in pieces if len(piece))
    while views:
        some = [views[index] for index in range(min(len(views), _MOST_PIECES))]
        done = os.writev(file, some)
        while done:
            if done < len(views[0]):
                views[0] = views[0][done:]
                break
            done -= len(views.popleft())


def read_segment(folder: Path, number: int, *, last: bool) -> tuple[dict[str, Any], Iterator[Event]]:
    """The head of a segment and its events.

    Of the ``last`` segment an unfinished entry at the end is cut off, with a warning: nobody was told that it is there.
    Any other damage raises CorruptFileError, from here or from the iterator.
    """
    path = segment_path(folder, number)
    entries = _entries(path, last)
    header, _ = next(entries, (b"", None))
    try:
        head = json.loads(header)
        if head["format"] != _FORMAT:
            raise CorruptFileError(f"{path}: format {head['format']!r} of the log is not supported")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(f"{path}: the head of the log cannot be read: {error}") from error
    return head, _events(path, entries)


def _events(path: Path, entries: Iterator[tuple[bytes, Payload]]) -> Iterator[Event]:
    for header, payload in entries:
        try:
            yield decode_event(header, payload)
        except RequestRefusedError as error:
            raise CorruptFileError(f"{path}: {error}") from error


def _entries(path: Path, last: bool) -> Iterator[tuple[bytes, Payload]]:
    with path.open("r+b" if last else "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(len(MAGIC)) != MAGIC:
            raise CorruptFileError(f"{path}: not a log of a server")
        start = file.tell()
        while start < size:
            entry = _read_entry(file, size - start)
            if entry is not None:
                yield entry
                start = file.tell()
            elif last and _is_unfinished(file, start, size):
                log.warning("%s: cut off an unfinished entry of %d bytes at its end", path, size - start)
                file.truncate(start)
                return
            else:
                raise CorruptFileError(f"{path}: the entry at byte {start} is damaged")


def _read_entry(file: BinaryIO, left: int) -> tuple[bytes, Payload] | None:
    """The next entry; None when it is not whole, or not what was written."""
    head = file.read(_HEAD)
    if not _is_head(head):
        return None
    header_size, payload_size = _SIZES.unpack_from(head)
    if header_size + payload_size > left - _HEAD:
        return None
    header, payload = file.read(header_size), file.read(payload_size)
    crc = zlib.crc32(payload, zlib.crc32(header))
    return (header, Payload(payload)) if (crc,) == _CRC.unpack_from(head, _HEAD - _CRC.size) else None


def _is_head(head: bytes) -> bool:
    return len(head) == _HEAD and bool(_CRC.pack(zlib.crc32(head[: _SIZES.size])) == head[_SIZES.size : -_CRC.size])


def _is_unfinished(file: BinaryIO, start: int, size: int) -> bool:
    """Whether the damage at ``start`` is what an interrupted write leaves: the file ends inside the entry or with it, or
    only zeros follow."""
    file.seek(start)
    head = file.read(_HEAD)
    if len(head) < _HEAD:
        return True
    if _is_head(head):
        header_size, payload_size = _SIZES.unpack_from(head)
        return start + _HEAD + int(header_size) + int(payload_size) >= size
    return not any(head) and not any(any(block) for block in iter(lambda: file.read(1 << 20), b""))
