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
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Final, NamedTuple, Protocol

from fluidlite.errors import FluidliteError, SettingError
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


#: what `stop_profiler` sorts by, besides the first one that was run: largest first, but for the shortest run
_ORDERS: Final[dict[str, Callable[[Sequence[int]], float]]] = {
    "calls": lambda spent: -len(spent),
    "total": lambda spent: -sum(spent),
    "max": lambda spent: -max(spent),
    "min": min,
    "ave": lambda spent: -sum(spent) / len(spent),
}


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

    def totals(self, sorted_key: str | None = "total") -> list[Total]:
        """One entry per op type, by default the most time first; ``sorted_key`` as in `stop_profiler`."""
        spent: dict[str, list[int]] = {}
        for event in self.events:
            spent.setdefault(event.op_type, []).append(event.end - event.start)
        found = [Total(op_type, len(times), sum(times) / 1e9) for op_type, times in spent.items()]
        order = _ORDERS.get(sorted_key or "")
        return sorted(found, key=lambda total: (order(spent[total.op_type]), total.op_type)) if order else found

    def table(self, sorted_key: str | None = "total") -> str:
        """The totals as text: op type, calls, total milliseconds, mean microseconds, share. Below, if anything travelled:
        verb, kilobytes sent and received, the same per run."""
        totals = self.totals(sorted_key)
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


# Fluid's names, used by scripts.
_STATES: Final = ("CPU", "GPU", "All")


def start_profiler(state: str, tracer_option: str = "Default") -> None:
    """Record every op that executors run, until `stop_profiler`; nothing when that is being done already.

    ``state``: "CPU", "GPU" or "All", which are the same here, as are all of ``tracer_option``. FluidliteError (a
    ValueError) for others.
    """
    if state not in _STATES:
        raise SettingError(f"the state of the profiler must be one of {', '.join(_STATES)}, not {state!r}")
    if not _active:
        _active.append(Profile())


def stop_profiler(sorted_key: str | None = None, profile_path: str = "/tmp/profile") -> None:  # noqa: S108 (Fluid's)
    """Print what was recorded, a line per op type, and write its Chrome trace to ``profile_path``; nothing when nothing is
    being recorded.

    ``sorted_key``: "calls", "total", "max", "min" or "ave"; None or "default": the order in which ops were first run.
    """
    if sorted_key not in (None, "default", *_ORDERS):
        raise SettingError(f"sorted_key must be None, default, {', '.join(_ORDERS)}, not {sorted_key!r}")
    if _active:
        report = _active.pop()
        print(report.table(sorted_key))
        report.save_trace(profile_path)


def reset_profiler() -> None:
    """Forget what was recorded so far."""
    for report in _active:
        report.events.clear()


@contextmanager
def profiler(
    state: str,
    sorted_key: str | None = None,
    profile_path: str = "/tmp/profile",  # noqa: S108 (Fluid's)
    tracer_option: str = "Default",
) -> Iterator[None]:
    """`start_profiler` and `stop_profiler` around the ``with``."""
    start_profiler(state, tracer_option)
    try:
        yield
    finally:
        stop_profiler(sorted_key, profile_path)


@contextmanager
def cuda_profiler(output_file: str, output_mode: str | None = None, config: object = None) -> Iterator[None]:
    """Nothing but a warning: there is no GPU; use `profiler`."""
    warnings.warn("cuda_profiler: fluidlite has no GPU; use profiler", UserWarning, stacklevel=3)
    yield
