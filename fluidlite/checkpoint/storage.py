"""Where checkpoints are kept: a folder of this system, or of any that fsspec reaches.

What `Folder.create` wrote is durable when it returns, what `Folder.publish` writes appears whole or not at all. On object
stores both are one upload.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from fluidlite.errors import MissingFileError, UnwritableFileError
from fluidlite.values.urls import local_path, remote

#: bytes after which the system is asked to write them to the disk
_WRITE_BACK: Final = 1 << 23


class Output(Protocol):
    """What a new file's bytes are written to."""

    def write(self, content: bytes | memoryview, /) -> int:
        """Append bytes."""
        ...


class Folder(Protocol):
    """Files by their path below one folder; ``url`` names it. Paths have "/" between their parts."""

    url: str

    def names(self, at: str = "") -> list[str]:
        """What is directly in a folder below, sorted; nothing where there is none."""
        ...

    def size(self, path: str) -> int:
        """Bytes of a file; MissingFileError."""
        ...

    def open(self, path: str) -> BinaryIO:
        """A file open for reading; MissingFileError."""
        ...

    def create(self, path: str) -> AbstractContextManager[Output]:
        """A new file to write; of an error nothing stays. UnwritableFileError."""
        ...

    def publish(self, path: str, content: bytes) -> None:
        """Write or replace a small file at once. UnwritableFileError."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, and its folder where that is then empty. Idempotent."""
        ...


def open_folder(url: str | Path) -> Folder:
    """The folder at a URL; it need not exist. DataError for a URL that nothing here can reach."""
    path = local_path(str(url))
    return LocalFolder(path, str(url)) if path is not None else RemoteFolder(str(url))


class LocalFolder:
    """Implements `Folder` by the operating system, with fsync."""

    def __init__(self, path: Path, url: str) -> None:
        self.url = url
        self._path = path

    def names(self, at: str = "") -> list[str]:
        try:
            return sorted(entry.name for entry in (self._path / at).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, path: str) -> int:
        try:
            return (self._path / path).stat().st_size
        except OSError as error:
            raise MissingFileError(f"there is no file {self._path / path}") from error

    def open(self, path: str) -> BinaryIO:
        try:
            return (self._path / path).open("rb", buffering=0)
        except OSError as error:
            raise MissingFileError(f"{self._path / path} cannot be read: {error}") from error

    @contextmanager
    def create(self, path: str) -> Iterator[Output]:
        target = self._path / path
        done = False
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as stream:
                yield _WrittenBack(stream)
                stream.flush()
                os.fsync(stream.fileno())
            done = True
        except OSError as error:
            raise UnwritableFileError(f"cannot write {target}: {error}") from error
        finally:
            if not done:
                with suppress(OSError):
                    target.unlink(missing_ok=True)

    def publish(self, path: str, content: bytes) -> None:
        target = self._path / path
        unfinished = f"{path}.{os.getpid()}.tmp"
        with self.create(unfinished) as stream:
            stream.write(content)
        try:
            (self._path / unfinished).replace(target)
            for folder in (target.parent, self._path, self._path.parent):
                _sync_folder(folder)
        except OSError as error:
            raise UnwritableFileError(f"cannot write {target}: {error}") from error

    def remove(self, path: str) -> None:
        with suppress(OSError):
            (self._path / path).unlink(missing_ok=True)
            (self._path / path).parent.rmdir()


class RemoteFolder:
    """Implements `Folder` by fsspec; what its system raises otherwise is an OSError."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._system: Any
        self._system, self._path = remote(url)

    def names(self, at: str = "") -> list[str]:
        self._system.invalidate_cache()
        try:
            found = self._system.ls(self._full(at), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted({str(path).rstrip("/").rpartition("/")[2] for path in found})

    def size(self, path: str) -> int:
        try:
            return int(self._system.size(self._full(path)))
        except (OSError, TypeError) as error:
            raise MissingFileError(f"there is no file {self.url}/{path}") from error

    def open(self, path: str) -> BinaryIO:
        try:
            stream: BinaryIO = self._system.open(self._full(path), "rb")
        except OSError as error:
            raise MissingFileError(f"{self.url}/{path} cannot be read: {error}") from error
        return stream

    @contextmanager
    def create(self, path: str) -> Iterator[Output]:
        done = False
        try:
            self._system.makedirs(self._parent(path), exist_ok=True)
            with self._system.open(self._full(path), "wb") as stream:
                yield stream
            done = True
        except OSError as error:
            raise UnwritableFileError(f"cannot write {self.url}/{path}: {error}") from error
        finally:
            if not done:
                self.remove(path)

    def publish(self, path: str, content: bytes) -> None:
        with self.create(path) as stream:
            stream.write(content)

    def remove(self, path: str) -> None:
        with suppress(OSError):
            self._system.rm_file(self._full(path))
            self._system.invalidate_cache()
            if not self.names(path.rpartition("/")[0]):
                self._system.rmdir(self._parent(path))

    def _full(self, path: str) -> str:
        return f"{self._path}/{path}" if path else self._path

    def _parent(self, path: str) -> str:
        return self._full(path).rpartition("/")[0]


class _WrittenBack:
    """Appends to a file whose pages the system is asked to write to the disk as they come, and not all at the fsync."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._size = 0
        self._asked = 0

    def write(self, content: bytes | memoryview, /) -> int:
        """Append bytes."""
        self._size += self._stream.write(content)
        if self._size - self._asked >= _WRITE_BACK and hasattr(os, "posix_fadvise"):
            self._stream.flush()
            # pages that are not wanted any more are first written
            os.posix_fadvise(self._stream.fileno(), self._asked, self._size - self._asked, os.POSIX_FADV_DONTNEED)
            self._asked = self._size
        return len(content)


def _sync_folder(path: Path) -> None:
    """Make the names in a folder durable, where the system can."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
