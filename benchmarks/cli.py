"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks import execution, jobs, parsing, tables, wire
from benchmarks.environment import peers_folder
from benchmarks.facts import Watch, facts, figure_facts
from benchmarks.figures import Figure, Outcome, Settings, measure
from benchmarks.page import targets_table, values_table, write_page
from benchmarks.peers import peer_settings
from benchmarks.report import Report, compare, merged

FIGURES: Final[tuple[Figure, ...]] = (
    *wire.FIGURES,
    *tables.FIGURES,
    *execution.FIGURES,
    *parsing.FIGURES,
    *jobs.FIGURES,
)
_KNOWN: Final = {figure.name: figure for figure in FIGURES}
_PYTHONS: Final = {
    "fluid": "paddlepaddle 1.8.5",
    "torch": "torch",
    "tf": "tensorflow-cpu",
    "paddle": "paddlepaddle 3.0.0",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report, or work on stored runs; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    others: dict[str, Callable[[Sequence[str]], int]] = {"compare": compare_files, "page": page_of_files}
    if words and words[0] in others:
        return others[words[0]](words[1:])
    args = parser().parse_args(words)
    unknown = [name for name in args.figures if name not in _KNOWN]
    if unknown:
        print(f"no figure {', '.join(unknown)}; there are {', '.join(_KNOWN)}", file=sys.stderr)
        return 2
    report = Report([], args.note)
    if args.merge and args.json is not None and args.json.exists():
        report = merged([Report.load(args.json), report], list(_KNOWN))
    measured = list(args.figures or _KNOWN)
    run(measured, report, args)
    show([outcome for outcome in report.outcomes if outcome.name in measured])
    return 0


def parser() -> argparse.ArgumentParser:
    """What ``python -m benchmarks`` takes."""
    usual = Settings()
    made = argparse.ArgumentParser(prog="benchmarks", description=_description(), formatter_class=_Raw)
    made.add_argument("figures", nargs="*", help="which to measure, by name; default: all")
    made.add_argument("--rounds", type=int, default=usual.rounds)
    made.add_argument("--steps", type=int, default=0, help="steps of one sample; default: what the figure needs")
    made.add_argument("--warmup", type=int, default=0, help="steps before its clock starts; default: the same")
    made.add_argument("--scale", type=float, default=1.0, help="shrinks tables, to try the benchmarks themselves")
    made.add_argument("--peers", type=_as_path, default=peers_folder(), help="folder of the peers' scripts")
    made.add_argument("--data", type=_as_path, help="an .npz file of examples; default: made when missing")
    for name, package in _PYTHONS.items():
        made.add_argument(f"--{name}-python", default="", metavar="PYTHON", help=f"python with {package}")
    made.add_argument("--trace", type=Path, help="op-profile: file for a trace, for ui.perfetto.dev")
    made.add_argument("--merge", action="store_true", help="keep other figures that the file of --json has")
    made.add_argument("--note", default="", help="what a reader of the page must know")
    _add_results(made)
    return made


def _add_results(made: argparse.ArgumentParser) -> None:
    made.add_argument("--json", type=Path, help="where to store the run, after each round")
    made.add_argument("--page", type=Path, help="page that gets the tables between its markers")
    made.add_argument("--plot", type=Path, help="picture of all targets, e.g. x.svg; beside it x-jobs.svg; matplotlib")


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keeps the list of figures as it is."""


def _description() -> str:
    names = "\n".join(f"  {figure.name:18} {figure.title}" for figure in FIGURES)
    return f"""Measure fluidlite in turn with what it is compared to, round by round.

figures:
{names}

or: page A.json [B.json ...] --page PAGE --plot PICTURE    one page of stored runs, the last of each figure
or: compare A.json B.json                                  two stored runs side by side"""


def settings_of(args: argparse.Namespace) -> Settings:
    """What was asked for."""
    pythons = {name: _as_program(getattr(args, f"{name}_python")) for name in _PYTHONS}
    trace = args.trace.resolve() if args.trace else None
    return Settings(args.rounds, args.steps, args.warmup, args.scale, args.peers, pythons, args.data, trace)


def _as_path(text: str) -> Path:
    """Peers run in folders of their own."""
    return Path(text).absolute()


def _as_program(text: str) -> str:
    """A path, or a name to be looked for."""
    return str(_as_path(text)) if "/" in text else text


def run(names: Sequence[str], report: Report, args: argparse.Namespace) -> None:
    """Measure figures one after the other; what is there is stored all the time, since all of it takes long."""
    settings = settings_of(args)
    common = facts(settings) | peer_settings()
    for name in names:
        run_one(_KNOWN[name], settings, common, report, args)


def run_one(
    figure: Figure, settings: Settings, common: Mapping[str, str], report: Report, args: argparse.Namespace
) -> None:
    """Measure a figure into the report, which is stored after each round."""
    watch, own = Watch(), figure_facts(settings.of(figure))

    def keep(outcome: Outcome) -> None:
        outcome.facts = {**common, **own, **watch.facts()}
        report.put(outcome)
        if args.json is not None:
            report.save(args.json)

    def told(outcome: Outcome) -> None:
        print(outcome.last, file=sys.stderr, flush=True)
        keep(outcome)

    keep(measure(figure, settings, told))  # once more: now its processes have ended and count
    store(report, args)


def store(report: Report, args: argparse.Namespace) -> None:
    """Write what was asked for: JSON, page, pictures."""
    report = merged([report], list(_KNOWN))
    if args.json is not None:
        report.save(args.json)
    if args.page is not None:
        write_page(args.page, report)
    if args.plot is not None:
        from benchmarks.plot import plot_jobs, plot_targets

        plot_targets(report.outcomes, args.plot)
        plot_jobs(report.outcomes, args.plot.with_stem(f"{args.plot.stem}-jobs"))


def page_of_files(words: Sequence[str]) -> int:
    """Put stored runs together and write them as one."""
    made = argparse.ArgumentParser(prog="benchmarks page")
    made.add_argument("runs", type=Path, nargs="+")
    _add_results(made)
    args = made.parse_args(words)
    report = merged([Report.load(path) for path in args.runs], list(_KNOWN))
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


def show(outcomes: Sequence[Outcome]) -> None:
    """Print the tables."""
    print("\n".join([*targets_table(outcomes), "", *values_table(outcomes)]))
    for outcome in outcomes:
        for text in dict.fromkeys(outcome.failures):
            print(f"{outcome.name}: {text}", file=sys.stderr)
