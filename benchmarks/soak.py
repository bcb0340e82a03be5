"""A long run at full rate that must lose nothing and grow nowhere: ``python -m benchmarks.soak --minutes 30``.

Two servers and two trainers, async, each a process. What was pushed is compared with what the servers hold, exactly;
memory, threads, file descriptors and objects of every process, and the time of steps, must stay what they are after the
warm-up. Exit code 1 when a demand is violated. ``--minutes 0.5`` tries it; then only sums are judged.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.facts import Watch, facts
from benchmarks.figures import Settings
from benchmarks.page import write_between
from benchmarks.processes import Child, free_endpoints
from benchmarks.soak_job import MODULE, Pool
from benchmarks.soak_judge import (
    ENOUGH,
    Check,
    Series,
    after,
    constant_check,
    drift_check,
    held_check,
    memory_check,
    sums_check,
)

#: half of what a CTR step of 512 examples asks for
_IDS: Final = 26 * 256
_SAMPLES: Final = 120
_LEAST_INTERVAL: Final = 0.2
_WARMUP_SHARE, _WARMUP_MOST = 0.2, 360.0
#: seconds beyond the training itself
_TIMEOUT: Final = 120.0


class Soak:
    """The processes of one soak and what is sampled of them: series by (process, what)."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.seconds = 60 * args.minutes
        self.interval = max(self.seconds / _SAMPLES, _LEAST_INTERVAL)
        self.series: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        self._endpoints = ",".join(free_endpoints(args.servers))
        self._began = time.monotonic()
        self._pushed = threading.Event()
        self._yet_to_push = {f"trainer {index}" for index in range(args.trainers)}
        self.children: list[Child] = []

    def run(self, out: Path) -> list[dict[str, Any]]:
        """Train, read all values into ``out``, end; what the trainers counted. RuntimeError when a process failed."""
        try:
            servers = [self._start("server", index, out) for index in range(self._args.servers)]
            trainers = [self._start("trainer", index, out) for index in range(self._args.trainers)]
            ends = time.monotonic() + self.seconds + _TIMEOUT
            while not self._pushed.wait(self.interval):
                self._sample()
                if any(child.process.poll() for child in self.children) or time.monotonic() > ends:
                    break
            for child in self.children:
                if child.process.poll():
                    self._well(child)
            for child in [*trainers[1:], trainers[0]]:  # the first one reads when the others have gone
                child.release()
                self._well(child)
            for child in servers:
                self._well(child)
            return [child.marks["pushed"] for child in trainers]
        finally:
            for child in self.children:
                child.stop()

    def _start(self, role: str, index: int, out: Path) -> Child:
        options = {"role": role, "index": index, "endpoints": self._endpoints, "trainers": self._args.trainers}
        options |= {"ids": self._args.ids, "seconds": self.seconds, "interval": self.interval, "out": out}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        child = Child(f"{role} {index}", MODULE, words, 1, self._marked)
        self.children.append(child)
        return child

    def _well(self, child: Child) -> None:
        if not child.wait(_TIMEOUT):
            words = child.log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            raise RuntimeError(f"{child.name} failed: {words} (see {child.log})")

    def _marked(self, child: Child, what: str) -> None:
        if what == "pushed":
            self._yet_to_push.discard(child.name)
            if not self._yet_to_push:
                self._pushed.set()
        if what == "interval":
            now = time.monotonic() - self._began
            for name in ("ms", "reference", "objects", "blocks"):
                if name in child.marks[what]:
                    self.series[child.name, name].append((now, child.marks[what][name]))

    def _sample(self) -> None:
        """What the system says of each process."""
        now = time.monotonic() - self._began
        for child in self.children:
            for what, value in resources(child.process.pid).items():
                self.series[child.name, what].append((now, value))


def resources(pid: int) -> dict[str, float]:
    """Resident MB, threads and open files of a process; nothing when it is gone or the system does not say."""
    folder = Path(f"/proc/{pid}")
    try:
        lines = (folder / "status").read_text(encoding="ascii").splitlines()
        files = len(os.listdir(folder / "fd"))  # noqa: PTH208
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines)
    if "VmRSS" not in fields:
        return {}
    return {"MB": int(fields["VmRSS"].split()[0]) / 1024, "threads": int(fields["Threads"]), "files": files}


def judged(soak: Soak, results: Sequence[dict[str, Any]], out: Path, ids: int) -> list[Check]:
    """Every demand."""
    pools = [Pool(index, ids) for index in range(len(results))]
    counts, dense = ([np.array(result[name]) for result in results] for name in ("counts", "dense"))
    with np.load(out) as read:
        checks = [sums_check(counts, dense, pools, read)]
    warmup = min(_WARMUP_SHARE * soak.seconds, _WARMUP_MOST)
    enough = soak.seconds - warmup >= ENOUGH
    series: dict[tuple[str, str], Series] = {key: after(samples, warmup) for key, samples in soak.series.items()}
    for (process, what), samples in series.items():
        if what == "MB":
            checks.append(memory_check(process, samples, enough))
        elif what in ("threads", "files"):
            checks.append(constant_check(process, what, samples, enough))
        elif what in ("objects", "blocks"):
            checks.append(held_check(process, what, samples, enough))
        elif what == "ms":
            checks.append(drift_check(process, samples, series[process, "reference"], enough))
    return checks


def table(checks: Sequence[Check], common: dict[str, str]) -> str:
    """Markdown: every demand, and what it depends on."""
    lines = ["| what | demand | found | |", "|---|---|---|---|"]
    lines += [f"| {check.what} | {check.limit} | {check.found} | {check.word} |" for check in checks]
    lines += ["", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in common.items())]
    return "\n".join([*lines, ""])


def plot(soak: Soak, path: Path) -> None:
    """Memory of every process and the time of steps, over time."""
    from benchmarks.plot import save, subplots

    picture, axes = subplots(1, 2, figsize=(11, 3.2))
    for place, what, title in zip(axes, ("MB", "ms"), ("resident MB", "step, ms (median of an interval)"), strict=True):
        for (process, found), samples in soak.series.items():
            if found == what:
                minutes, values = [second / 60 for second, _ in samples], [value for _, value in samples]
                place.plot(minutes, values, label=process, linewidth=1.2)
        place.set_title(title, fontsize=9, loc="left")
        place.set_xlabel("minutes", fontsize=8)
        place.set_ylim(bottom=0)
        place.legend(fontsize=8, frameon=False)
    save(picture, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, judge, report; 1 when a demand is violated."""
    args = parser().parse_args(argv)
    soak, watch = Soak(args), Watch()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "values.npz"
        results = soak.run(out)
        checks = judged(soak, results, out, args.ids)
    common = facts(Settings()) | {"minutes": f"{args.minutes:g}", **watch.facts()}
    text = table(checks, common)
    print(text)
    if args.json:
        named = {f"{process}: {what}": samples for (process, what), samples in soak.series.items()}
        content = {"facts": common, "checks": [vars(check) for check in checks], "series": named}
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if args.page:
        write_between(args.page, "soak", text)
    if args.plot:
        plot(soak, args.plot)
    return int(any(check.met is False for check in checks))


def parser() -> argparse.ArgumentParser:
    """What the soak takes."""
    made = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--minutes", type=float, default=30.0)
    made.add_argument("--servers", type=int, default=2)
    made.add_argument("--trainers", type=int, default=2)
    made.add_argument("--ids", type=int, default=_IDS, help="ids of half a batch")
    made.add_argument("--json", type=Path, help="file for all samples and checks")
    made.add_argument("--page", type=Path, help="page that gets the table between its markers")
    made.add_argument("--plot", type=Path, help="picture of memory and step time; needs matplotlib")
    return made


if __name__ == "__main__":
    sys.exit(main())
