"""Blocks of whole lines out of files, also through a pipe command."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

from fluidlite.errors import DataError, MissingFileError

#: a block of text, in bytes; its tokens fit into the cache of a core
_BLOCK: Final = 1 << 20
#: the pipe command that does nothing
PLAIN: Final = "cat"


class Block(NamedTuple):
    """Whole lines, and where they are from. ``first_line`` counts from 1; the last line may lack its newline."""

    text: bytes
    source: str
    first_line: int


def read_blocks(path: str | Path, command: str = PLAIN, size: int = _BLOCK) -> Iterator[Block]:
    """The lines of a file, or what the shell command ``command`` makes of it, in blocks of about ``size`` bytes.

    Raises MissingFileError, and DataError when the command fails. To stop early ends the command.
    """
    try:
        file = Path(path).open("rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise MissingFileError(f"cannot read the data file {str(path)!r}: {error.strerror}") from error
    with file:
        if command == PLAIN:
            yield from _blocks(file, str(path), size)
        else:
            with _piped(file, command, str(path)) as output:
                yield from _blocks(output, str(path), size)


def _blocks(stream: IO[bytes], source: str, size: int) -> Iterator[Block]:
    rest, line = b"", 1
    while chunk := stream.read(size):
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            rest += chunk
            continue
        block = Block(rest + chunk[:cut], source, line)
        rest, line = chunk[cut:], line + block.text.count(b"\n")
        yield block
    if rest:
        yield Block(rest, source, line)


@contextmanager
def _piped(file: IO[bytes], command: str, source: str) -> Iterator[IO[bytes]]:
    """The output of a shell command that reads the file; all its processes are ended when the reading stops early."""
    import subprocess

    process = subprocess.Popen(  # noqa: S602 (to run the user's shell command is the job)
        command, shell=True, stdin=file, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    finished = False
    try:
        yield process.stdout
        finished = True
    finally:
        process.stdout.close()
        if not finished:
            _end_group(process.pid)
        code = process.wait()
    if code:
        raise DataError(f"the pipe command {command!r} failed on {source!r}: exit code {code}")


def _end_group(pid: int) -> None:
    """End a process that leads a group, and the group."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
