"""The benchmarks run and report; what they measure is nobody's business here."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from benchmarks import cli, data, fluidlite_ctr
from benchmarks.environment import benchmark_environment, machine, prepare
from benchmarks.figures import Figure, Sample, SampleError, Settings, Target, Values, Verdict, measure
from benchmarks.report import Report, compare, settings_of, write_page
from tests.shared_data import REPO

TINY = ["--rounds", "1", "--steps", "2", "--warmup", "1", "--scale", "0.001"]
IN_THIS_PROCESS = ["table-height", "table-growth", "local-rows", "dense-step", "executor-overhead", "import"]


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small file of clicks; logs of jobs lie beside it."""
    monkeypatch.setenv("BENCH_DATA", str(tmp_path))
    path = tmp_path / "clicks.npz"
    data.make_data(path, vocab=1000, examples=256)
    return path


def job(examples: Path, *options: str) -> argparse.Namespace:
    words = ["--data", str(examples), "--batch", "32", "--hidden", "8", "--vocab", "1000", "--rows", "50"]
    return fluidlite_ctr.parser().parse_args([*words, "--steps", "3", "--warmup", "2", *options])


@contextmanager
def two_samples(settings: Settings) -> Iterator[Sequence[Sample]]:
    rounds = iter([2.0, 6.0, 3.0])

    def broken() -> Values:
        raise SampleError("peer: no luck")

    yield [lambda: {"ours": next(rounds)}, lambda: {"theirs": 2.0}, broken]


TARGETS = (
    Target("ratio", "ours", 1.5, ("theirs", "others")),
    Target("at least", "ours", 1.5, ("theirs",), at_most=False),
    Target("beyond", "ours", 1.0, ("theirs",), difference=True),
    Target("alone", "ours", 3.0),
    Target("unknown", "ours", 1.0, ("others",)),
)
FIGURE = Figure("pair", "ours and theirs", "ms", two_samples, TARGETS)


def report(note: str = "") -> Report:
    settings = Settings(rounds=3)
    return Report({"cores": "2"}, settings_of(settings), [measure(FIGURE, settings, lambda line: None)], note)


def test_the_median_of_ratios_within_rounds_decides() -> None:
    verdicts = {verdict.what: verdict for verdict in report().outcomes[0].verdicts}
    assert verdicts["ratio (others absent)"].rounds == [1.0, 3.0, 1.5]
    assert {what: verdict.word for what, verdict in verdicts.items()} == {
        "ratio (others absent)": "met",
        "at least": "met",
        "beyond": "met",
        "alone": "met",
        "unknown": "not measured",
    }
    assert verdicts["beyond"].rounds == [0.0, 4.0, 1.0]


def test_the_hardest_opponent_counts() -> None:
    values = {"ours": 6.0, "fast": 3.0, "slow": 2.0}
    assert Target("rate", "ours", 1, ("fast", "slow"), at_most=False).value(values) == 2
    assert Target("time", "ours", 1, ("fast", "slow")).value(values) == 3
    assert not Verdict.of(Target("time", "ours", 1, ("fast", "slow")), [values]).met


def test_margins_say_how_much_better_than_the_limit() -> None:
    rates = Target("rate", "ours", 2, at_most=False)
    times = Target("time", "ours", 2)
    rounds = [{"ours": value} for value in (1.0, 2.0, 4.0, -1.0)]
    assert Verdict.of(rates, rounds).margins()[:3] == [0.5, 1, 2]
    assert Verdict.of(times, rounds).margins() == [2, 1, 0.5, 100]


def test_the_picture_is_the_same_every_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plot import plot_targets

    for name in ("a.svg", "b.svg"):
        plot_targets(report().outcomes, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_failures_are_told_and_stop_nothing() -> None:
    (outcome,) = report().outcomes
    assert outcome.failures == ["peer: no luck"] * 3
    assert [set(values) for values in outcome.rounds] == [{"ours", "theirs"}] * 3


def test_a_stored_run_comes_back(tmp_path: Path) -> None:
    made = report("busy")
    made.save(tmp_path / "run.json")
    assert dataclasses.asdict(Report.load(tmp_path / "run.json")) == dataclasses.asdict(made)


def test_two_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = report(), report()
    for verdict in after.outcomes[0].verdicts:
        verdict.rounds = [value * 10 for value in verdict.rounds]
    before.settings["steps"] = 7
    before.save(tmp_path / "a.json")
    after.save(tmp_path / "b.json")
    assert cli.main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| pair | ratio (others absent) | ≤ 1.5 × | 1.5 (1..3) | 15 (10..30) | +900 % | spreads apart |" in lines
    assert "steps: 7 before, 200 after" in lines
    assert not [line for line in lines if "unknown" in line]
    assert all("+0 %" in line for line in list(compare(before, before))[2:])


def test_the_page_keeps_what_is_around_the_tables(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- benchmarks: begin -->\nold\n<!-- benchmarks: end -->\nafter\n", encoding="utf-8")
    for _ in range(2):
        write_page(page, report("busy"))
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("-->\nafter\n")
    assert "old" not in text
    assert text.count("| pair | ratio (others absent) | ≤ 1.5 × | 1.5 (1..3) | met |") == 1
    assert "**busy**" in text
    assert "Only 3 rounds" in text
    assert "- pair: peer: no luck" in text
    page.write_text("nothing to fill\n", encoding="utf-8")
    with pytest.raises(ValueError, match="benchmarks: begin"):
        write_page(page, report())


def test_the_page_of_the_repository_can_be_filled(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text((REPO / "docs" / "performance.md").read_text(encoding="utf-8"), encoding="utf-8")
    write_page(page, report())


def test_the_environment_of_a_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    env = benchmark_environment(1, {"MORE": "yes"})
    assert ("OPENBLAS_CORETYPE" in env, env["OMP_NUM_THREADS"], env["MORE"]) == (False, "1", "yes")
    assert "OMP_NUM_THREADS" not in benchmark_environment(0)
    with mock.patch.dict(os.environ):
        prepare(2)
        assert ("OPENBLAS_CORETYPE" in os.environ, os.environ["OMP_NUM_THREADS"]) == (False, "2")


def test_the_machine_has_no_name() -> None:
    assert {"cores", "processor", "numpy", "python"} <= machine().keys()
    assert socket.gethostname() not in json.dumps(machine())


def test_made_up_clicks(examples: Path) -> None:
    ids, dense, label = next(data.batches(examples, 64, trainer=1, trainers=2))
    with np.load(examples) as stored:
        np.testing.assert_array_equal(ids, stored["ids"][64:128])
    assert (ids.shape, dense.shape, label.shape) == ((64, 26), (64, 13), (64, 1))
    assert 0 <= ids.min() < ids.max() < 1000
    assert set(label.ravel()) == {0.0, 1.0}


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--optimizer", "adam", "--split-slots"],
        ["--optimizer", "adagrad", "--extra", "dist=0"],
        ["--workload", "embed"],
        ["--mode", "ps", "--servers", "2", "--trainers", "2", "--sync", "sync"],
    ],
    ids=" ".join,
)
def test_the_job(examples: Path, options: list[str]) -> None:
    args = job(examples, *options)
    line = fluidlite_ctr.run(args)
    assert line["ok"], line
    trainers = args.trainers if args.mode == "ps" else 1
    servers = args.servers if args.mode == "ps" else 0
    assert len(line["peak_rss_mb"]) == servers + trainers
    assert line["per_s"] > 0
    assert {"median", "p10", "p90"} <= line["step_ms"].keys()
    assert ("loss_last" in line) == (args.workload == "ctr")


def test_every_figure_of_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.json"
    assert cli.main([*TINY, "--json", str(run), *IN_THIS_PROCESS]) == 0
    stored: dict[str, Any] = json.loads(run.read_text(encoding="utf-8"))
    assert [outcome["name"] for outcome in stored["outcomes"]] == IN_THIS_PROCESS
    assert [outcome["failures"] for outcome in stored["outcomes"]] == [[]] * len(IN_THIS_PROCESS)
    assert "| table-growth | worst against median push | ≤ 10 × |" in capsys.readouterr().out


def test_figures_with_servers_and_jobs(examples: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    nobody = ["--peers", str(tmp_path / "absent"), "--data", str(examples)]
    assert cli.main([*TINY, *nobody, "--json", str(run), "pull-push", "embed-local"]) == 0
    pull_push, embed = Report.load(run).outcomes
    assert set(pull_push.rounds[0]) == {"fluidlite", "echo by our transport", "dict of rows", "raw TCP"}
    assert embed.rounds[0]["fluidlite"] > 0
    assert not pull_push.failures


def test_unknown_figures_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["no-such"]) == 2
    assert "no figure no-such; there are pull-push, " in capsys.readouterr().err
