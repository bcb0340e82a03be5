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
from benchmarks.environment import benchmark_environment, prepare
from benchmarks.facts import Watch, facts
from benchmarks.figures import Figure, Outcome, Sample, SampleError, Settings, Target, Values, Verdict, measure
from benchmarks.inside import KERNELS
from benchmarks.page import markdown, write_page
from benchmarks.peers import Run, command_of, memory_values
from benchmarks.report import Report, compare, merged
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


def outcome(name: str = "pair", **given: str) -> Outcome:
    figure = dataclasses.replace(FIGURE, name=name)
    found = measure(figure, Settings(rounds=3), lambda outcome: None)
    found.facts = {"cores": "2", "commit": "abc", **given}
    return found


def report(note: str = "") -> Report:
    return Report([outcome()], note)


def test_the_median_of_ratios_within_rounds_decides() -> None:
    verdicts = {verdict.what: verdict for verdict in report().outcomes[0].verdicts}
    assert verdicts["ratio"].rounds == [1.0, 3.0, 1.5]
    assert verdicts["ratio"].text == "ratio (others absent)"
    assert {what: verdict.word for what, verdict in verdicts.items()} == {
        "ratio": "met",
        "at least": "met",
        "beyond": "met",
        "alone": "met",
        "unknown": "not measured",
    }
    assert verdicts["beyond"].rounds == [0.0, 4.0, 1.0]


def test_a_figure_says_how_much_it_needs_unless_told() -> None:
    figure = dataclasses.replace(FIGURE, steps=70, warmup=5)
    assert (Settings().of(figure).steps, Settings().of(figure).warmup) == (70, 5)
    assert (Settings(steps=2, warmup=1).of(figure).steps, Settings(steps=2, warmup=1).of(figure).warmup) == (2, 1)


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


def test_the_pictures_are_the_same_every_time_and_follow_the_reader(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plot import plot_jobs, plot_targets

    rates = [dataclasses.replace(outcome(), name="memory", unit="MB"), dataclasses.replace(outcome(), unit="rows/s")]
    for name in ("a.svg", "b.svg"):
        plot_targets(report().outcomes, tmp_path / name)
        plot_jobs(rates, tmp_path / f"jobs-{name}")
    for name in ("", "jobs-"):
        drawn = (tmp_path / f"{name}a.svg").read_text(encoding="utf-8")
        assert drawn == (tmp_path / f"{name}b.svg").read_text(encoding="utf-8")
        assert "currentColor" in drawn
        assert drawn.count("#1f2328") == drawn.count("#e6edf3") == 1
        assert "prefers-color-scheme: dark" in drawn


def test_failures_are_told_and_stop_nothing() -> None:
    (found,) = report().outcomes
    assert found.failures == ["peer: no luck"] * 3
    assert [set(values) for values in found.rounds] == [{"ours", "theirs"}] * 3


def test_what_is_measured_is_told_after_each_round_and_kept_when_a_figure_breaks() -> None:
    @contextmanager
    def breaks(settings: Settings) -> Iterator[Sequence[Sample]]:
        values = iter([1.0, 2.0])
        yield [lambda: {"ours": next(values)}]

    told = []
    found = measure(
        Figure("x", "", "ms", breaks, (Target("alone", "ours", 3.0),)),
        Settings(rounds=7),
        lambda outcome: told.append((len(outcome.rounds), outcome.verdicts[0].word)),
    )
    assert told == [(1, "met"), (2, "met")]
    assert found.rounds == [{"ours": 1.0}, {"ours": 2.0}]
    assert found.failures == ["StopIteration: "]


def test_a_stored_run_comes_back(tmp_path: Path) -> None:
    made = report("busy")
    made.save(tmp_path / "run.json")
    assert dataclasses.asdict(Report.load(tmp_path / "run.json")) == dataclasses.asdict(made)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_two_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = Report([outcome(), outcome("old")]), Report([outcome(commit="def"), outcome("new", commit="def")])
    for verdict in after.outcomes[0].verdicts:
        verdict.rounds = [value * 10 for value in verdict.rounds]
    before.save(tmp_path / "a.json")
    after.save(tmp_path / "b.json")
    assert cli.main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| pair | ratio (others absent) | ≤ 1.5 × | 1.5 (1..3) | 15 (10..30) | +900 % | spreads apart |" in lines
    assert "commit: abc before, def after" in lines
    assert [line.partition(": ")[::2] for line in lines if line.startswith("only")] == [
        (
            f"only {word}",
            "; ".join(f"{name}: {what}" for what in ("ratio (others absent)", "at least", "beyond", "alone")),
        )
        for word, name in (("before", "old"), ("after", "new"))
    ]
    assert not [line for line in lines if "unknown" in line]
    assert all("+0 %" in line for line in list(compare(before, before))[2:])


def test_partial_runs_make_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = Report([outcome("import"), outcome("pull-push")], "busy"), Report([outcome("pull-push", load="9")])
    whole = merged([first, second], ["pull-push", "import"])
    assert [(found.name, found.facts.get("load")) for found in whole.outcomes] == [("pull-push", "9"), ("import", None)]
    assert whole.note == "busy"
    first.save(tmp_path / "a.json")
    second.save(tmp_path / "b.json")
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    assert cli.main(["page", *files, "--json", str(tmp_path / "all.json")]) == 0
    assert Report.load(tmp_path / "all.json") == whole
    assert "| import | alone | ≤ 3 | 3 (2..6) | met |" in capsys.readouterr().out


def test_a_page_tells_what_is_common_once_and_what_differs_by_figure() -> None:
    text = markdown(Report([outcome("one", load="1"), outcome("two", load="2"), outcome("three")]))
    assert text.count("| commit | abc |") == 1
    assert "| figure | load |" in text
    assert "| two | 2 |\n| three | – |" in text
    assert "15 targets: 12 met, 3 not measured." in text


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
    assert "Fewer than 7 rounds" in text
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
    found = facts(Settings())
    assert {"cores", "processor", "numpy", "python", "commit", "kernels", "fusion passes"} <= found.keys()
    assert socket.gethostname() not in json.dumps(found)


def test_a_watch_says_what_a_stretch_of_time_was_like() -> None:
    found = Watch().facts()
    assert {"ended", "seconds", "load"} <= found.keys()
    if Path("/proc/stat").exists():
        assert float(found["others' cores"]) >= 0


def test_peers_run_only_where_they_are(tmp_path: Path) -> None:
    settings = Settings(steps=9, warmup=3, peers=tmp_path, pythons={"tf": "python-tf"}, data=tmp_path / "x.npz")
    assert not command_of(Run("torch", "torch"), "", settings)
    assert not command_of(Run("tf", "tf"), "", dataclasses.replace(settings, peers=None))
    job = "--mode ps --servers 2 --trainers 2"
    words = command_of(Run("tf", "tf", "--threads 2"), job, settings)
    assert words[:2] == ["python-tf", str(tmp_path / "tf_ctr.py")]
    assert words[words.index("--steps") + 1] == "18"  # its coordinator hands out the steps of both
    assert words[-2:] == ["--threads", "2"]


def test_memory_is_that_of_the_process_that_computes() -> None:
    tf = {"peak_rss_mb": {"pserver0": 5.0, "pserver1": 7.0, "worker0": 3.0, "trainer0": 9.0}}
    assert memory_values("tf", tf) == {"tf trainer MB": 3.0, "tf server MB": 7.0}
    assert memory_values("x", {"peak_rss_mb": {"trainer0": 2.0}}) == {"x trainer MB": 2.0}


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
        ["--mode", "ps", "--extra", "dense=trainer", "--profile"],
        ["--split-slots", "--feed", "dataset"],
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
    assert ("loss_last" in line) == (args.workload == "ctr" and args.feed == "numpy")
    assert ("breakdown" in line) == args.profile
    assert (line["rows_held"] > 0) == (servers > 0)


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
    ours = {f"fluidlite ({kernels})" for kernels in KERNELS}
    assert {"echo by our transport", "dict of rows", "raw TCP"} <= pull_push.rounds[0].keys()
    assert ours & pull_push.rounds[0].keys() == ours & embed.rounds[0].keys() != set()
    assert cli.main([*TINY, "--json", str(run), "--merge", "executor-overhead", "pull-push"]) == 0
    assert [found.name for found in Report.load(run).outcomes] == ["pull-push", "executor-overhead", "embed-local"]


@pytest.mark.full
def test_figures_of_memory_and_ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_DATA", str(tmp_path))
    run, trace, clicks = (tmp_path / name for name in ("run.json", "trace.json", "clicks.npz"))
    data.make_data(clicks, vocab=1000, examples=2048)
    options = [*TINY, "--peers", str(tmp_path / "absent"), "--data", str(clicks), "--trace", str(trace)]
    assert cli.main([*options, "--json", str(run), "memory", "op-profile"]) == 0
    memory, profile = Report.load(run).outcomes
    assert memory.rounds[0]["rows, keys, index MB"] > 0
    assert [verdict.what for verdict in memory.verdicts if verdict.rounds] == [
        "server against an empty one + rows, keys, index"
    ]
    assert {name.partition(": ")[0] for name in profile.rounds[0]} == {"local", "trainer of 1 × 1"}
    assert any(name.endswith("_grad") and ms > 0 for name, ms in profile.rounds[0].items())
    assert json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]


def test_unknown_figures_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["no-such"]) == 2
    assert "no figure no-such; there are pull-push, " in capsys.readouterr().err
