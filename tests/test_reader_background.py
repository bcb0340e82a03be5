"""Reading ahead by threads and processes: order, bounds, errors, early stops, the end of the interpreter."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluidlite.errors import ReaderError
from fluidlite.reader.background import Background, interleaved
from fluidlite.reader.process import read_in_process
from fluidlite.values.lod import LoDTensor
from tests import reader_functions
from tests.shared_data import REPO

WAIT = 30.0


def ended(until: threading.Event) -> Iterator[int]:
    """Endless; sets ``until`` when it is closed."""
    number = 0
    try:
        while True:
            yield number
            number += 1
    finally:
        until.set()


# ---- threads


@given(count=st.integers(0, 40), capacity=st.integers(1, 5), taken=st.integers(0, 40))
def test_items_keep_their_order_and_never_too_many_wait(count: int, capacity: int, taken: int) -> None:
    consumed = 0
    most = 0

    def source() -> Iterator[int]:
        nonlocal most
        for number in range(count):
            most = max(most, number - consumed)
            yield number

    with Background(source(), capacity) as ahead:
        for _ in range(min(count, taken)):
            consumed += 1  # before it is asked for: what is made in the meantime counts as waiting
            assert next(ahead) == consumed - 1
    assert most <= capacity


def test_it_runs_ahead_of_who_takes() -> None:
    made = threading.Event()

    def source() -> Iterator[int]:
        yield 0
        yield 1
        made.set()
        yield 2

    with Background(source(), 2) as ahead:
        assert made.wait(WAIT)
        assert ahead.peek() == 0
        assert list(ahead) == [0, 1, 2]
        assert ahead.peek() is None
        assert list(ahead) == []


def test_an_error_comes_behind_the_items_with_its_traceback() -> None:
    with Background(reader_functions.failing(), 4) as ahead:
        assert next(ahead) == 1
        with pytest.raises(ZeroDivisionError, match="in the reader") as caught:
            next(ahead)
        assert "failing" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        with pytest.raises(StopIteration):
            next(ahead)


@pytest.mark.parametrize("stop", ["close", "drop", "with"])
def test_who_stops_early_ends_the_source(stop: str) -> None:
    closed = threading.Event()
    ahead = Background(ended(closed), 1)
    assert next(ahead) == 0
    if stop == "close":
        ahead.close()
        ahead.close()
    elif stop == "with":
        with ahead:
            pass
    else:
        alive = weakref.ref(ahead)
        del ahead
        gc.collect()
        assert alive() is None
    assert closed.wait(WAIT)


def test_closing_wakes_who_waits_for_an_item() -> None:
    blocked, release = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        blocked.set()
        release.wait(WAIT)
        yield 1

    ahead = Background(source(), 1)
    with futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(list, ahead)
        assert blocked.wait(WAIT)
        ahead.close()
        assert waiting.result(WAIT) == []
    release.set()


def test_interleaving_takes_turns_and_closes_all() -> None:
    closed = [threading.Event() for _ in range(2)]
    both = interleaved([Background(iter("abc"), 1), Background(iter("x"), 1), Background(iter(""), 1)])
    assert "".join(both) == "axbc"
    endless = interleaved([Background(ended(event), 1) for event in closed])
    assert [next(endless) for _ in range(4)] == [0, 0, 1, 1]
    endless.close()  # type: ignore[attr-defined]
    assert all(event.wait(WAIT) for event in closed)


# ---- processes


def same(one: Any, other: Any) -> bool:
    """Equal in type and value, arrays also in dtype and shape."""
    if type(one) is not type(other):
        return False
    if isinstance(one, LoDTensor):
        return one.lod == other.lod and same(one.array, other.array)
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_everything_passes_between_processes_as_it_is() -> None:
    with read_in_process(reader_functions.all_kinds, 3) as items:
        received = list(items)
    assert same(received, reader_functions.kinds())


def test_an_error_in_the_process_carries_its_traceback() -> None:
    with read_in_process(reader_functions.failing, 3) as items:
        assert next(items) == 1
        with pytest.raises(ReaderError, match=r"(?s)in its process.*in failing\n.*ZeroDivisionError: in the reader"):
            next(items)


def test_what_cannot_be_sent_is_named() -> None:
    with read_in_process(reader_functions.not_sendable, 3) as items:
        assert next(items) == 1
        with pytest.raises(ReaderError, match=r"cannot pass on set: \{1, 2\}"):
            next(items)


def test_a_killed_process_is_noticed() -> None:
    with read_in_process(reader_functions.killed, 3) as items:
        assert next(items) > 0
        with pytest.raises(ReaderError, match="ended without a word, exit code -9"):
            next(items)


@pytest.mark.parametrize("reader", [reader_functions.without_end, reader_functions.stubborn])
def test_who_stops_early_ends_the_process(reader: Callable[[], Iterator[Any]]) -> None:
    items = read_in_process(reader, 2)
    next(items)
    (child,) = multiprocessing.active_children()
    items.close()
    child.join(WAIT)
    assert child.exitcode is not None


def test_a_reader_that_cannot_be_sent_runs_in_a_thread_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="runs in a thread: it cannot be sent to another process"):
        items = read_in_process(lambda: iter([1, {2}]), 2)
    assert list(items) == [1, {2}]


def test_a_process_beside_open_connections() -> None:
    """Their threads hold locks; the process, which is no copy of this one, does not wait for them."""
    echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Test", {"Echo": echo})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/Test/Echo")
        assert call(b"before", timeout=WAIT) == b"before"
        with read_in_process(reader_functions.some_numbers, 2) as items:
            assert [(item, call(b"beside", timeout=WAIT)) for item in items] == [(n, b"beside") for n in range(5)]
        assert call(b"after", timeout=WAIT) == b"after"
    server.stop(0).wait(WAIT)


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(script)
    return subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=WAIT * 2,
        check=False,
    )


def test_the_interpreter_ends_with_readers_open(tmp_path: Path) -> None:
    script = """
import itertools, multiprocessing
from fluidlite.reader.background import Background
from fluidlite.reader.process import read_in_process
from tests import reader_functions

if __name__ == "__main__":
    thread = Background(itertools.count(), 2)
    process = read_in_process(reader_functions.without_end, 2)
    next(thread), next(process)
    print(multiprocessing.active_children()[0].pid)
"""
    done = run(script, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    script = """
from fluidlite.reader.process import read_in_process
from tests import reader_functions

print(list(read_in_process(reader_functions.some_numbers, 2)))
"""
    done = run(script, tmp_path)
    assert done.returncode == 1
    assert "does its work below `if __name__ == '__main__':`" in done.stderr
