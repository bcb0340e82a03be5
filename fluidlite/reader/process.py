"""A reader in a process of its own. Spawned, not forked: a fork beside the threads of open connections may hang."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fluidlite.errors import ReaderError
from fluidlite.reader import transport
from fluidlite.reader.background import Background

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

Reader = Callable[[], Iterable[Any]]
#: bytes of the pipe between the processes, where the system lets one choose: a few batches
_PIPE: Final = 1 << 20
#: seconds until a process that does not heed SIGTERM is killed
_PATIENCE: Final = 1.0
_ITEM, _END, _ERROR = "item", "end", "error"


def read_in_process(reader: Reader, capacity: int) -> Background[Any]:
    """The items of ``reader()`` in their order, made by a process, with up to ``capacity`` of them kept here.

    A reader that cannot be sent to a process, as a function inside a function, is run by a thread of this one, and a
    warning says so; decorated readers can be sent where the reader within can. What the reader raises is raised as ReaderError with its traceback as text.
    """
    from multiprocessing import get_context

    context = get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sending, reader), name="fluidlite reader", daemon=True)
    try:
        process.start()
    except Exception as error:
        receiving.close()
        if not _is_about_sending(error):
            raise
        warnings.warn(
            f"the reader runs in a thread: it cannot be sent to another process ({error}); a function at the top of a "
            "module can",
            stacklevel=3,
        )
        return Background(reader(), capacity)
    finally:
        sending.close()
    end = partial(_end, process, threading.Lock())
    return Background(_received(receiving, process, end), capacity, interrupt=end)


def _is_about_sending(error: Exception) -> bool:
    """Whether multiprocessing could not make bytes of the reader; there is no one exception for that."""
    return isinstance(error, (AttributeError, TypeError)) or type(error).__name__ == "PicklingError"


def _received(receiving: Connection, process: BaseProcess, end: Callable[[], None]) -> Iterator[Any]:
    try:
        while True:
            try:
                kind, value = transport.receive(receiving)
            except (EOFError, OSError) as error:
                process.join(_PATIENCE)
                raise ReaderError(
                    f"the reader's process ended without a word, exit code {process.exitcode}; a script that uses such "
                    "readers does its work below `if __name__ == '__main__':`"
                ) from error
            if kind == _END:
                return
            if kind == _ERROR:
                raise ReaderError(f"the reader failed in its process:\n{value}")
            yield value
    finally:
        receiving.close()
        end()


def _end(process: BaseProcess, lock: threading.Lock) -> None:
    """End the process, if need be by force. The thread that reads from it and the one that stops it both do."""
    with lock:
        process.terminate()
        process.join(_PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(sending: Connection, reader: Reader) -> None:
    """The process: sends every item, then how it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that reads ends this one
    _widen(sending)
    try:
        for item in reader():
            transport.send(sending, _ITEM, item)
        transport.send(sending, _END)
    except BrokenPipeError:
        return  # nobody reads any more
    except BaseException:
        transport.send(sending, _ERROR, traceback.format_exc())


def _widen(pipe: Connection) -> None:
    """So that a batch does not wait in pieces for the other side."""
    if sys.platform == "linux":
        import fcntl

        try:
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)
        except OSError:
            return  # only slower
