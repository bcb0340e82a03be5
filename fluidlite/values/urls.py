"""Folders and files by URL: a plain path and ``file://`` are the system's own, everything else is fsspec's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from fluidlite.errors import DataError, MissingFileError


def local_path(url: str) -> Path | None:
    """The path that a plain path or a ``file://`` URL names, None for any other URL."""
    if url.startswith("file://"):
        return Path(unquote(urlsplit(url).path))
    return None if "://" in url else Path(url)


def remote(url: str) -> tuple[Any, str]:
    """(fsspec's file system, the path in it) of a URL.

    Raises DataError for a scheme that fsspec does not know, or whose package is not installed.
    """
    from fsspec.core import url_to_fs

    try:
        system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise DataError(f"{url}: {error}") from error
    return system, path.rstrip("/")


def open_url(url: str, what: str) -> BinaryIO:
    """The file at a URL, open for reading; MissingFileError naming it and ``what`` was wanted."""
    path = local_path(url)
    try:
        if path is not None:
            return path.open("rb")
        system, name = remote(url)
        stream: BinaryIO = system.open(name, "rb")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise MissingFileError(f"{what} cannot be read: there is no file {url}") from error
    return stream
