"""Where the time of runs goes: calls and time per op type, and a trace for chrome://tracing or ui.perfetto.dev.

with profile() as report:
    exe.run(main, feed, fetch_list)
print(report.table())
report.save_trace("trace.json")
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Final, NamedTuple, Protocol

from fluidlite.errors import FluidliteError
from fluidlite.runtime.env import Env, Step


class Event(NamedTuple):
    """One run of an op, in nanoseconds. A group of ops that ask servers together counts as one, by its first op."""

    op_type: str
    start: int
    end: int
    thread: int


class Total(NamedTuple):
    """All runs of one type of op, in seconds. An op that runs a block includes the ops inside, which count again."""

    op_type: str
    calls: int
    seconds: float

    @property
    def mean(self) -> float:
        return self.seconds / self.calls


class Transport(Protocol):
    """What counts the bytes that travel: the ports of an executor."""

    @property
    def traffic(self) -> Mapping[str, tuple[int, int]]:
        """Bytes sent and received so far, by verb."""
        ...


class Profile:
    """What was recorded: every op that any executor of this process ran, in any thread, and the bytes that these executors
    sent and received meanwhile."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._runs = 0
        #: with the bytes before the first run
        self._transports: dict[int, tuple[Transport, Mapping[str, tuple[int, int]]]] = {}

    def counts(self, transport: Transport) -> None:
        """A run begins that may use a transport."""
        self._runs += 1
        self._transports.setdefault(id(transport), (transport, transport.traffic))

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Bytes sent and received by verb (pull, push, ...)."""
        found: dict[str, tuple[int, int]] = {}
        for transport, before in self._transports.values():
            for verb, (sent, received) in transport.traffic.items():
                old, sums = before.get(verb, (0, 0)), found.get(verb, (0, 0))
                found[verb] = sums[0] + sent - old[0], sums[1] + received - old[1]
        return {verb: amounts for verb, amounts in found.items() if any(amounts)}

    def timed(self, step: Step, op_type: str) -> Step:
        """A step that records itself, also when it fails."""

        def run(env: Env) -> None:
            start = perf_counter_ns()
            try:
                step(env)
            finally:
                self.events.append(Event(op_type, start, perf_counter_ns(), threading.get_ident()))

        return run

    def totals(self) -> list[Total]:
        """One entry per op type, the most time first."""
        sums: dict[str, tuple[int, int]] = {}
        for event in self.events:
            calls, spent = sums.get(event.op_type, (0, 0))
            sums[event.op_type] = calls + 1, spent + event.end - event.start
        found = [Total(op_type, calls, spent / 1e9) for op_type, (calls, spent) in sums.items()]
        return sorted(found, key=lambda total: (-total.seconds, total.op_type))

    def table(self) -> str:
        """The totals as text: op type, calls, total milliseconds, mean microseconds, share. Below, if anything travelled:
        verb, kilobytes sent and received, the same per run."""
        totals = self.totals()
        whole = sum(total.seconds for total in totals) or 1.0
        width = max([len("op"), *(len(total.op_type) for total in totals)])
        lines = [f"{'op':<{width}}  {'calls':>8}  {'total ms':>10}  {'mean us':>10}  {'share':>6}"]
        for op_type, calls, seconds in totals:
            mean = seconds / calls * 1e6
            lines.append(
                f"{op_type:<{width}}  {calls:>8}  {seconds * 1e3:>10.3f}  {mean:>10.2f}  {seconds / whole:>6.1%}"
            )
        return "\n".join(lines + self._traffic_lines(width))

    def _traffic_lines(self, width: int) -> list[str]:
        traffic = self.traffic()
        if not traffic:
            return []
        columns = ("kB sent", "kB received", "sent/run", "received/run")
        lines = ["", f"{'verb':<{width}}" + "".join(f"  {name:>12}" for name in columns)]
        for verb, (sent, received) in traffic.items():
            amounts = (sent, received, sent / self._runs, received / self._runs)
            lines.append(f"{verb:<{width}}" + "".join(f"  {amount / 1e3:>12.1f}" for amount in amounts))
        return lines

    def save_trace(self, path: str | Path) -> None:
        """Write the events in Chrome's trace format (JSON, complete events, microseconds from the first one)."""
        first = min((event.start for event in self.events), default=0)
        process = os.getpid()
        trace = [
            {
                "name": event.op_type,
                "ph": "X",
                "ts": (event.start - first) / 1e3,
                "dur": (event.end - event.start) / 1e3,
                "pid": process,
                "tid": event.thread,
            }
            for event in self.events
        ]
        Path(path).write_text(json.dumps({"traceEvents": trace, "displayTimeUnit": "ns"}), encoding="utf-8")


_active: Final[list[Profile]] = []


def active() -> Profile | None:
    """The profile that is being recorded."""
    return _active[-1] if _active else None


@contextmanager
def profile(trace: str | Path | None = None) -> Iterator[Profile]:
    """Record every op that executors run inside the ``with``; at its end write a Chrome trace to ``trace``, if given.

    One profile at a time: another one inside raises FluidliteError.
    """
    if _active:
        raise FluidliteError("a profile is being recorded already; end it first")
    report = Profile()
    _active.append(report)
    try:
        yield report
    finally:
        _active.remove(report)
        if trace is not None:
            report.save_trace(trace)
