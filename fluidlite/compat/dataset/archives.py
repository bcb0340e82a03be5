"""Members of tar archives."""

from __future__ import annotations

import contextlib
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, Final

from fluidlite.errors import CorruptFileError

_BROKEN: Final = (tarfile.TarError, EOFError, zlib.error, OSError)


@contextlib.contextmanager
def opened_tar(path: str) -> Iterator[tarfile.TarFile]:
    """A tar archive, packed or not. Raises CorruptFileError."""
    try:
        with tarfile.open(path) as archive:
            yield archive
    except FileNotFoundError:
        raise
    except _BROKEN as error:
        raise CorruptFileError(f"{path} is no tar archive, or is cut off: {error}") from error


def member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    """One file of an archive. Raises CorruptFileError when there is none."""
    try:
        stream = archive.extractfile(name)
    except KeyError:
        stream = None
    if stream is None:
        raise CorruptFileError(f"{archive.name!r} holds no file {name}")
    return stream


def members(archive: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    """(name, file) of every file of an archive, in its order."""
    for info in archive:
        stream = archive.extractfile(info) if info.isfile() else None
        if stream is not None:
            yield info.name, stream
