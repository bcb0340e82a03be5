"""Checkpoints: their rate beside a raw write of the same bytes, and what a save costs the pushes beside it.

``python -m benchmarks.checkpoint --rows 5000000 --folder /data`` prints the figures. The folder must be on the disk that is
measured; it gets twice the table's bytes for a moment.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.environment import prepare

_WIDTH: Final = 16
_PUSHED: Final = 10_000
_CHUNK: Final = 1 << 22
_TARGET_RATE: Final = 0.8
_TARGET_MEMORY: Final = 1.1


def main() -> int:
    """Settings first: numpy reads them when it is imported."""
    prepare()
    args = _parser().parse_args()
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=args.folder))
    try:
        figures = [*measure_rate(folder, args.rows, args.rounds), *measure_fire(folder, args.rows, args.seconds)]
        figures += measure_tracking(args.rounds)
    finally:
        shutil.rmtree(folder)
    width = max(len(name) for name, _ in figures)
    for name, value in figures:
        sys.stdout.write(f"{name:{width}}  {value}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="of pushes at full rate with one save after the other"
    )
    parser.add_argument("--folder", type=Path, default=None, help="where to write; default: the system's")
    return parser


def measure_rate(folder: Path, rows: int, rounds: int) -> Iterator[tuple[str, str]]:
    """A full checkpoint and a raw write with fsync of as many bytes, in turn."""
    job = _Job(rows)
    content = os.urandom(_CHUNK)
    raw, saves = [], []
    for number in range(rounds):
        with _gone_after(folder / "raw") as target:
            raw.append(_seconds(partial(_write, target, content, job.nbytes)))
        with _gone_after(folder / "saved") as target:
            saves.append(_seconds(partial(job.save, target, number)))
    ratio = statistics.median(raw) / statistics.median(saves)
    yield "bytes of the table", f"{job.nbytes / 1e6:.0f} MB"
    yield "raw write + fsync", f"{job.nbytes / statistics.median(raw) / 1e6:.0f} MB/s"
    yield "checkpoint", f"{job.nbytes / statistics.median(saves) / 1e6:.0f} MB/s"
    yield "rate of a checkpoint / raw", f"{ratio:.2f} (target: {_TARGET_RATE} or more)"


def measure_fire(folder: Path, rows: int, seconds: float) -> Iterator[tuple[str, str]]:
    """Pushes at full rate, without a save and then with one save after the other."""
    job = _Job(rows)
    quiet = job.push_for(min(seconds, 10.0))
    before = _resident()
    saves: list[float] = []
    stop = threading.Event()

    def save() -> None:
        while not stop.is_set():
            with _gone_after(folder / "fire") as target:
                saves.append(_seconds(partial(job.save, target, len(saves))))

    thread = threading.Thread(target=save)
    thread.start()
    loud = job.push_for(seconds)
    stop.set()
    thread.join()
    table = job.table.nbytes
    yield "saves while pushes go on", f"{len(saves)}, {statistics.median(saves):.2f} s each"
    yield (
        "pushes of 10,000 rows, without",
        f"{statistics.median(quiet.times) * 1e3:.1f} ms, at most {max(quiet.times) * 1e3:.0f}",
    )
    yield (
        "pushes of 10,000 rows, saving",
        f"{statistics.median(loud.times) * 1e3:.1f} ms, at most {max(loud.times) * 1e3:.0f}",
    )
    rate = len(loud.times) / sum(loud.times) / (len(quiet.times) / sum(quiet.times))
    yield "rate of pushes, saving / without", f"{rate:.2f}"
    more = (table + loud.most_resident - before) / table
    yield "memory at its peak / table", f"{more:.3f} (target: below {_TARGET_MEMORY})"


def measure_tracking(rounds: int) -> Iterator[tuple[str, str]]:
    """Pushes to two tables in turn, one of which marks what changes."""
    plain, tracked = _Job(1_000_000), _Job(1_000_000)
    tracked.table.snapshot(None, "a").close()
    times: dict[str, list[float]] = {"plain": [], "tracked": []}
    for _ in range(100 * rounds):
        for name, job in (("plain", plain), ("tracked", tracked)):
            times[name].append(_seconds(job.push))
    ratio = statistics.median(times["tracked"]) / statistics.median(times["plain"])
    yield "a push with changed rows marked / without", f"{ratio:.3f}"


class _Pushes:
    """How long each push took, and the most bytes that the process had."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.most_resident = 0


class _Job:
    """A server's table of ``rows`` rows with accumulators, and pushes to random rows of it."""

    def __init__(self, rows: int) -> None:
        import numpy as np

        from fluidlite.kernels.rules import Rule
        from fluidlite.values.initial import Constant
        from fluidlite.values.selected_rows import SelectedRows
        from fluidlite.values.sparse_table import SparseTable, TableColumn

        self.table = SparseTable("emb", _WIDTH, "float32", Constant(0.01))
        self._column = TableColumn("emb_moment_0", _WIDTH, 0.0, "float32")
        self.table.attach(self._column)
        for first in range(0, rows, 1 << 16):
            self.table.lookup(np.arange(first, min(first + (1 << 16), rows)))
        random = np.random.default_rng(1)
        gradient = random.standard_normal((_PUSHED, _WIDTH), np.float32)
        self._gradients = [SelectedRows(random.integers(0, rows, _PUSHED), gradient, 0) for _ in range(64)]
        self._step = Rule("adagrad", (0.1, 1e-6))
        self._turn = 0
        self.nbytes = rows * (8 + 2 * _WIDTH * 4)

    def push(self) -> None:
        """One optimizer step."""
        self._turn += 1
        self.table.update(self._gradients[self._turn % len(self._gradients)], [self._column], self._step)

    def push_for(self, seconds: float) -> _Pushes:
        """Pushes one after the other."""
        found = _Pushes()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            found.times.append(_seconds(self.push))
            found.most_resident = max(found.most_resident, _resident())
        return found

    def save(self, folder: Path, number: int) -> None:
        """A full checkpoint."""
        from fluidlite.checkpoint.cut import Cut
        from fluidlite.checkpoint.writer import CheckpointWriter

        CheckpointWriter(folder).write(Cut(number, f"{number:08x}", number, {}, (self.table.snapshot(),)))


@contextmanager
def _gone_after(path: Path) -> Iterator[Path]:
    """A path for what is written; it is removed, and the disk is idle, afterwards."""
    yield path
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    os.sync()


def _write(path: Path, content: bytes, size: int) -> None:
    with path.open("wb", buffering=0) as stream:
        for first in range(0, size, len(content)):
            stream.write(content[: size - first])
        os.fsync(stream.fileno())


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _resident() -> int:
    """Bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
