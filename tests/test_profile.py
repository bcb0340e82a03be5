"""The profiler counts every op of every run inside the `with`, and nothing outside."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import FluidliteError
from fluidlite.runtime.executor import ExecutorCore
from fluidlite.runtime.profile import Event, Profile, active, profile
from fluidlite.runtime.scope import Scope
from tests.frontend import fresh_programs

FEED = {"x": np.ones((2, 3), np.float32)}


def two_ops() -> fluid.Program:
    with fresh_programs() as (main, _):
        fluid.layers.relu(fluid.layers.relu(fluid.layers.scale(fluid.data("x", [None, 3]), 2.0)))
    return main


def test_calls_and_time_by_op() -> None:
    main, core = two_ops().desc, ExecutorCore()
    core.run(main, FEED)
    with profile() as report:
        core.run(main, FEED)
        core.run(main, FEED)
    core.run(main, FEED)
    totals = {total.op_type: total for total in report.totals()}
    assert {name: total.calls for name, total in totals.items()} == {"relu": 4, "scale": 2}
    assert all(total.seconds > 0 for total in totals.values())
    assert totals["relu"].mean == totals["relu"].seconds / 4
    assert active() is None


def test_results_are_those_of_a_run_without() -> None:
    main, core = two_ops(), ExecutorCore()
    out = main.desc.root.ops[-1].outputs["Out"][0]
    plain = core.run(main.desc, FEED, [out])
    with profile():
        recorded = core.run(main.desc, FEED, [out])
    np.testing.assert_array_equal(plain, recorded)


def test_the_table_has_the_most_time_first() -> None:
    report = Profile()
    report.events += [Event("relu", 0, 1_000_000, 1), Event("mul", 0, 2_000_000, 1), Event("relu", 0, 2_000_000, 1)]
    head, *rows = report.table().splitlines()
    assert head.split() == ["op", "calls", "total", "ms", "mean", "us", "share"]
    assert [row.split() for row in rows] == [
        ["relu", "2", "3.000", "1500.00", "60.0%"],
        ["mul", "1", "2.000", "2000.00", "40.0%"],
    ]
    assert len(Profile().table().splitlines()) == 1


def test_the_trace_is_chromes(tmp_path: Path) -> None:
    main, core, path = two_ops().desc, ExecutorCore(), tmp_path / "trace.json"
    with profile(path):
        core.run(main, FEED)
    events = json.loads(path.read_text())["traceEvents"]
    assert [event["name"] for event in events] == ["scale", "relu", "relu"]
    assert {event["ph"] for event in events} == {"X"}
    assert events[0]["ts"] == 0
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in itertools.pairwise(events))
    assert {event["tid"] for event in events} == {threading.get_ident()}


def test_an_op_that_fails_is_recorded() -> None:
    main, core = two_ops().desc, ExecutorCore()
    with profile() as report, pytest.raises(FluidliteError):
        core.run(main, scope=Scope())
    assert [event.op_type for event in report.events] == ["scale"]
    assert active() is None


def test_one_profile_at_a_time() -> None:
    with profile(), pytest.raises(FluidliteError, match="being recorded already"), profile():
        pass


class Counted:
    """A transport that counts as it is told."""

    def __init__(self) -> None:
        self.traffic: dict[str, tuple[int, int]] = {"pull": (100, 1000)}


def test_bytes_by_verb_and_per_run_are_those_since_the_first_run() -> None:
    report, one, other = Profile(), Counted(), Counted()
    for transport in (one, other, one, one):
        report.counts(transport)
    one.traffic = {"pull": (1100, 5000), "push": (3000, 0)}
    assert report.traffic() == {"pull": (1000, 4000), "push": (3000, 0)}
    other.traffic = {"pull": (2100, 1000), "barrier": (0, 0)}
    assert report.traffic() == {"pull": (3000, 4000), "push": (3000, 0)}
    report.events.append(Event("prefetch", 0, 1_000_000, 1))
    _, _, blank, head, *rows = report.table().splitlines()
    assert blank == ""
    assert head.split() == ["verb", "kB", "sent", "kB", "received", "sent/run", "received/run"]
    assert [row.split() for row in rows] == [["pull", "3.0", "4.0", "0.8", "1.0"], ["push", "3.0", "0.0", "0.8", "0.0"]]


def test_what_an_executor_sends_is_counted() -> None:
    main = two_ops().desc

    class Ports(Counted):
        salt = 0

        def prepare(self, program: object) -> None:
            """Each run sends."""

    ports = Ports()
    core = ExecutorCore(ports)  # type: ignore[arg-type]
    with profile() as report:
        core.run(main, FEED)
        ports.traffic = {"pull": (150, 1000)}
        assert report.traffic() == {"pull": (50, 0)}
    assert report.table().splitlines()[-1].split() == ["pull", "0.1", "0.0", "0.1", "0.0"]
