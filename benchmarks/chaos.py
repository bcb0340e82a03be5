"""A job whose processes are killed and whose messages get lost: ``python -m benchmarks.chaos [--minutes 1]``.

2 pservers and 2 trainers, started by ``fluidlite launch --restart``. Every few seconds a random process gets SIGKILL, and a
fifth of all requests and of all replies is dropped. The job must end by itself, and what the servers hold in the end must
be, byte for byte, what they hold after the same job in peace; in async mode, every step must have been added exactly once.
Exit code 1 where it is not so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from benchmarks.chaos_job import feed_of
from fluidlite.checkpoint.compare import differences
from fluidlite.checkpoint.source import open_checkpoint

REPO: Final = Path(__file__).resolve().parent.parent
PSERVERS: Final = 2
TRAINERS: Final = 2
DROPPED: Final = 0.2
#: the launcher starts each process again so often
RESTARTS: Final = 1000


@dataclass
class Run:
    """One run of the job: its folder, and whom the killer struck."""

    folder: Path
    kills: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"


def play(folder: Path, *, model: str, sync: bool, steps: int, disturb: tuple[float, float] | None, limit: float) -> Run:
    """Run the job; ``disturb``: seconds between two kills, at least and at most. Raises RuntimeError when it fails."""
    run = Run(folder)
    options = ["--model", model, "--steps", str(steps), "--every", "25", "--out", str(run.checkpoints)]
    options += ["--sync"] if sync else []
    options += ["--drop", str(DROPPED)] if disturb else []
    launcher = [sys.executable, "-m", "fluidlite.launch", "--pservers", str(PSERVERS), "--trainers", str(TRAINERS)]
    launcher += ["--restart", str(RESTARTS), "--log-dir", str(folder / "logs")]
    output = folder / "output.txt"
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with output.open("wb") as stream:
        job = subprocess.Popen(  # noqa: S603
            [*launcher, str(REPO / "benchmarks" / "chaos_job.py"), *options],
            cwd=REPO,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        ended = threading.Event()
        killer = threading.Thread(target=_kill, args=(job.pid, disturb, ended, run.kills))
        if disturb:
            killer.start()
        try:
            code: int | None = job.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            ended.set()
            if disturb:
                killer.join()
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.send_signal(signal.SIGINT) if job.poll() is None else None
                job.wait(30)
    run.seconds = time.monotonic() - began
    if code != 0:
        tail = "\n".join(output.read_text(errors="replace").splitlines()[-40:])
        raise RuntimeError(
            f"the job {'did not end' if code is None else f'ended with {code}'}; its last lines:\n{tail}"
        )
    return run


def _kill(launcher: int, pauses: tuple[float, float] | None, ended: threading.Event, kills: Counter[str]) -> None:
    """Strike one of the launcher's processes now and then. These are ours: no other pid is touched."""
    assert pauses is not None
    while not ended.wait(random.uniform(*pauses)):  # noqa: S311
        children = _children(launcher)
        if children:
            pid = random.choice(children)  # noqa: S311
            with contextlib.suppress(OSError):
                role = _role(pid)
                os.kill(pid, signal.SIGKILL)
                kills[role] += 1


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _role(pid: int) -> str:
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return "pserver" if b"TRAINING_ROLE=PSERVER" in environment else "trainer"


def problems(disturbed: Run, peaceful: Run) -> list[str]:
    """Where what the servers hold in the end differs."""
    one, other = open_checkpoint(str(disturbed.checkpoints)), open_checkpoint(str(peaceful.checkpoints))
    found = [f"{difference.name}: {difference}" for difference in differences(one, other) if not difference.is_empty]
    if one.versions != other.versions:
        found.append(f"versions {one.versions} and {other.versions}")
    return found


def miscounted(run: Run, steps: int) -> list[str]:
    """Where the sums are not those of every step counted once."""
    counts: Counter[int] = Counter()
    for trainer in range(TRAINERS):
        for step in range(steps):
            counts.update(feed_of("sums", trainer, step)["ids"].reshape(-1).tolist())
    source = open_checkpoint(str(run.checkpoints))
    rows = {  # of an incremental checkpoint the row that was written last comes last
        id: row
        for layout, chunk in source.rows("emb")
        for id, row in zip(chunk.ids.tolist(), chunk.records[:, : layout.width], strict=True)
    }
    found = []
    if rows.keys() != counts.keys():
        found.append(f"{len(rows)} rows where {len(counts)} were pushed")
    wrong = [id for id, row in rows.items() if (row != -counts[id]).any()]
    if wrong:
        found.append(f"{len(wrong)} rows of {len(rows)} are not the sum of what was pushed, {wrong[0]} for one")
    weight = source.array("w", 0)
    if weight is None or not (np.asarray(weight) == -TRAINERS * steps).all():
        found.append(f"the dense parameter is {weight}, not -{TRAINERS * steps}")
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Both modes, each as long as asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="about how long the disturbed jobs take together")
    parser.add_argument("--pauses", type=float, nargs=2, default=(2.0, 5.0), help="seconds between two kills")
    args = parser.parse_args(argv)
    steps = max(10, int(args.minutes * 60 * 4))
    wrong = []
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        limit = args.minutes * 60 * 10 + 120
        peaceful = play(folder / "peace", model="ctr", sync=True, steps=steps, disturb=None, limit=limit)
        sync = play(folder / "sync", model="ctr", sync=True, steps=steps, disturb=tuple(args.pauses), limit=limit)
        wrong += [f"sync: {problem}" for problem in problems(sync, peaceful)]
        print(f"sync: {steps} steps of {TRAINERS} trainers in {sync.seconds:.0f} s, killed: {dict(sync.kills)}")
        apart = play(folder / "async", model="sums", sync=False, steps=steps, disturb=tuple(args.pauses), limit=limit)
        wrong += [f"async: {problem}" for problem in miscounted(apart, steps)]
        print(f"async: {steps} steps of {TRAINERS} trainers in {apart.seconds:.0f} s, killed: {dict(apart.kills)}")
    for problem in wrong:
        print(problem)
    print("nothing lost, nothing counted twice" if not wrong else "FAILED")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
