"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import execution, jobs, tables, wire
from benchmarks.environment import machine, peers_folder
from benchmarks.figures import Figure, Outcome, Settings, measure
from benchmarks.report import Report, compare, settings_of, targets_table, values_table, write_page

FIGURES: tuple[Figure, ...] = (*wire.FIGURES, *tables.FIGURES, *execution.FIGURES, *jobs.FIGURES)


def parser() -> argparse.ArgumentParser:
    """What ``python -m benchmarks`` takes."""
    usual = Settings()
    made = argparse.ArgumentParser(prog="benchmarks", description=_description(), formatter_class=_Raw)
    made.add_argument("figures", nargs="*", help="which to measure, by name; default: all")
    made.add_argument("--rounds", type=int, default=usual.rounds)
    made.add_argument("--steps", type=int, default=usual.steps, help="steps or repetitions of one sample")
    made.add_argument("--warmup", type=int, default=usual.warmup, help="steps of a job before its clock starts")
    made.add_argument("--scale", type=float, default=1.0, help="shrinks tables, to try the benchmarks themselves")
    made.add_argument("--peers", type=Path, default=peers_folder(), help="folder of the peers' scripts")
    made.add_argument("--data", type=Path, help="an .npz file of examples; default: made when missing")
    made.add_argument("--fluid-python", default="", help="python with paddlepaddle 1.8.5")
    made.add_argument("--torch-python", default="", help="python with torch")
    made.add_argument("--json", type=Path, help="where to store the run")
    made.add_argument("--page", type=Path, help="page that gets the tables between its markers")
    made.add_argument("--plot", type=Path, help="picture of all targets, e.g. an .svg; needs matplotlib")
    made.add_argument("--note", default="", help="what a reader of the page must know")
    return made


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keeps the list of figures as it is."""


def _description() -> str:
    names = "\n".join(f"  {figure.name:18} {figure.title}" for figure in FIGURES)
    return f"Measure fluidlite in turn with what it is compared to, round by round.\n\nfigures:\n{names}\n\nor: compare A.json B.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report, or compare two stored runs; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["compare"]:
        return compare_files(words[1:])
    args = parser().parse_args(words)
    known = {figure.name: figure for figure in FIGURES}
    unknown = [name for name in args.figures if name not in known]
    if unknown:
        print(f"no figure {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    settings = Settings(
        args.rounds, args.steps, args.warmup, args.scale, args.peers, args.fluid_python, args.torch_python, args.data
    )
    report = Report(machine(), settings_of(settings), [], args.note)
    for name in args.figures or known:
        report.outcomes.append(measure(known[name], settings, _say))
        store(report, args)
    show(report.outcomes)
    return 0


def compare_files(words: Sequence[str]) -> int:
    """Print two stored runs side by side."""
    made = argparse.ArgumentParser(prog="benchmarks compare")
    made.add_argument("before", type=Path)
    made.add_argument("after", type=Path)
    args = made.parse_args(words)
    print("\n".join(compare(Report.load(args.before), Report.load(args.after))))
    return 0


def store(report: Report, args: argparse.Namespace) -> None:
    """Keep what is there so far: a run takes long."""
    if args.json is not None:
        report.save(args.json)
    if args.page is not None:
        write_page(args.page, report)
    if args.plot is not None:
        from benchmarks.plot import plot_targets

        plot_targets(report.outcomes, args.plot)


def show(outcomes: Sequence[Outcome]) -> None:
    """Print the tables."""
    print("\n".join([*targets_table(outcomes), "", *values_table(outcomes)]))
    for outcome in outcomes:
        for text in dict.fromkeys(outcome.failures):
            print(f"{outcome.name}: {text}", file=sys.stderr)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
