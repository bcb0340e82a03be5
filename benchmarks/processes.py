"""Servers and trainers of one job as processes, and the one line of JSON that says how it went.

A child reports by marks: lines ``@@{"mark": ...}`` on its output. Everything else that it prints goes to its log.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from benchmarks.environment import REPO, benchmark_environment, cpu_seconds, data_folder, peak_mb

_MARK: Final = "@@"
#: seconds that servers get to end by themselves after the last trainer
_GRACE: Final = 10.0


def mark(what: str, **fields: Any) -> None:
    """Tell the process that started this one."""
    print(_MARK + json.dumps({"mark": what, "t": time.time(), **fields}), flush=True)


def free_endpoints(count: int) -> list[str]:
    """Endpoints at ports that nobody uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    endpoints = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]
    for sock in sockets:
        sock.close()
    return endpoints


def timed(step: Callable[[], float | None], warmup: int, steps: int) -> dict[str, Any]:
    """Run ``step``, which may return a loss, ``warmup`` times, then ``steps`` times by the clock."""
    losses = [step()]
    first = time.time()
    losses += [step() for _ in range(warmup - 1)]
    mark("start")
    ms, began = [], time.perf_counter()
    for _ in range(steps):
        start = time.perf_counter()
        losses.append(step())
        ms.append((time.perf_counter() - start) * 1e3)
    wall = time.perf_counter() - began
    mark("end")
    result = {"wall_s": wall, "step_ms": quantiles(ms), "first_step_at": first}
    known = [loss for loss in losses if loss is not None]
    if known:
        some = max(1, min(50, len(known) // 4))
        result |= {"loss_first": sum(known[:some]) / some, "loss_last": sum(known[-some:]) / some}
    return result


def quantiles(ms: Sequence[float]) -> dict[str, float]:
    """Median, 10th and 90th percentile, mean and maximum."""
    order, count = sorted(ms), len(ms)
    return {
        "median": order[count // 2],
        "p10": order[count // 10],
        "p90": order[9 * count // 10],
        "mean": sum(order) / count,
        "max": order[-1],
    }


class Child:
    """A process of the job. ``marks`` fills as they come; ``on_mark(child, what)`` is called from a thread.

    Its stdin is open until `release`, for children that wait for its end.
    """

    def __init__(
        self, name: str, module: str, argv: Sequence[str], threads: int, on_mark: Callable[[Child, str], None]
    ) -> None:
        self.name = name
        self.started = time.time()
        self.marks: dict[str, dict[str, Any]] = {}
        self._on_mark = on_mark
        logs = data_folder() / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"fluidlite.{os.getpid()}.{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-u", "-m", module, *argv],
                cwd=REPO,
                env=benchmark_environment(threads),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines, self.log.open("a", encoding="utf-8") as log:
            for line in lines:
                if not line.startswith(_MARK):
                    log.write(line)
                    continue
                found = json.loads(line.removeprefix(_MARK))
                self.marks[found["mark"]] = found
                self._on_mark(self, found["mark"])

    def release(self) -> None:
        """Close its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self, timeout: float) -> bool:
        """Whether the process ended well within ``timeout`` seconds."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        self._reader.join(_GRACE)
        return code == 0

    def stop(self, within: float = 0.0) -> None:
        """End the process, after ``within`` seconds by force."""
        self.release()
        if not self.wait(within):
            self.process.kill()
            self.wait(_GRACE)


class Job:
    """The processes of one run. CPU counts from the last trainer's start of the clock to the first one's end."""

    def __init__(self, trainers: int) -> None:
        self._trainers = trainers
        self._lock = threading.Lock()
        self._started = 0
        self._from: dict[str, Any] = {}
        self._to: dict[str, Any] = {}
        self.servers: list[Child] = []
        self.workers: list[Child] = []

    def start(self, role: str, index: int, module: str, argv: Sequence[str], threads: int) -> None:
        """Start a ``server``, or a process of another role, which trains."""
        children = self.servers if role == "server" else self.workers
        name = f"{'pserver' if role == 'server' else 'trainer'}{index}"
        children.append(Child(name, module, [*argv, "--role", role, "--index", str(index)], threads, self._marked))

    def finish(self, timeout: float) -> bool:
        """Wait for the trainers, then end the servers; whether all trainers ended well."""
        ends = time.monotonic() + timeout
        try:
            well = [child.wait(max(0.1, ends - time.monotonic())) for child in self.workers]
            return all(well)
        finally:
            for child in self.workers:
                child.stop()
            for child in self.servers:
                child.stop(_GRACE)

    def report(self, units: int, steps: int) -> dict[str, Any]:
        """The measured part of the line; ``units`` of work (examples, rows) per step and trainer."""
        results = [child.marks["result"]["result"] for child in self.workers]
        begun = min(child.started for child in self.servers + self.workers)
        report: dict[str, Any] = {
            "per_s": round(sum(units * steps / result["wall_s"] for result in results), 1),
            "step_ms": {key: round(_mean(results, "step_ms", key), 3) for key in results[0]["step_ms"]},
            "startup_s": round(max(result["first_step_at"] for result in results) - begun, 2),
        }
        for key in ("loss_first", "loss_last"):
            if key in results[0]:
                report[key] = round(_mean(results, key), 4)
        if "breakdown" in results[0]:
            report["breakdown"] = results[0]["breakdown"]
        children = {child.name: child for child in self.servers + self.workers}
        ended = {name: child.marks["result"] for name, child in children.items() if "result" in child.marks}
        report["rows_held"] = sum(end["result"]["rows"] for name, end in ended.items() if name.startswith("pserver"))
        report["cpu_window"] = self._cpu(children)
        report["cpu_total_s"] = {name: [round(part, 2) for part in end["cpu_s"]] for name, end in ended.items()}
        report["peak_rss_mb"] = {name: round(end["peak_mb"]) for name, end in ended.items()}
        return report

    def _cpu(self, children: Mapping[str, Child]) -> dict[str, dict[str, int]]:
        if not (self._from and self._to):
            return {}
        wall = self._to["at"] - self._from["at"]
        cpu = {}
        for name in children:
            before, after = self._from.get(name), self._to.get(name)
            if before and after:
                user, system = (round(100 * (b - a) / wall) for a, b in zip(before, after, strict=True))
                cpu[name] = {"user_pct": user, "sys_pct": system}
        return cpu

    def _marked(self, child: Child, what: str) -> None:
        with self._lock:
            if what == "start":
                self._started += 1
                if self._started == self._trainers:
                    self._from = self._now()
            elif what == "end" and self._from and not self._to:
                self._to = self._now()

    def _now(self) -> dict[str, Any]:
        usage = {child.name: cpu_seconds(child.process.pid) for child in self.servers + self.workers}
        return {"at": time.time(), **usage}


def mark_result(result: Mapping[str, Any]) -> None:
    """The last mark of every child: what it measured, and what it took."""
    used = os.times()
    mark("result", result=result, cpu_s=[used.user, used.system], peak_mb=peak_mb() or 0.0)


def _mean(results: Sequence[Mapping[str, Any]], *path: str) -> float:
    total = 0.0
    for result in results:
        value: Any = result
        for key in path:
            value = value[key]
        total += value
    return total / len(results)
