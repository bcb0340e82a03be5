"""Figures as tables for people, and as JSON for the next comparison."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import Outcome, Settings, Spread, number

_BEGIN, _END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
_ENOUGH_ROUNDS: Final = 7


@dataclasses.dataclass
class Report:
    """One run of the benchmarks. ``note``: what a reader must know, e.g. that the machine was busy."""

    machine: dict[str, str]
    settings: dict[str, Any]
    outcomes: list[Outcome]
    note: str = ""

    def save(self, path: Path) -> None:
        """Write JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Report:
        """Read what `save` wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**data, "outcomes": [Outcome.from_json(outcome) for outcome in data["outcomes"]]})


def settings_of(settings: Settings) -> dict[str, Any]:
    """The settings without paths."""
    peers = {"fluid": settings.fluid_python, "torch": settings.torch_python, "numpy": settings.peers}
    return {
        **{name: getattr(settings, name) for name in ("rounds", "steps", "warmup", "scale")},
        "peers": [name for name, where in peers.items() if where and settings.peers],
    }


def targets_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Markdown: every target, met or not."""
    yield "| figure | what counts | target | measured: median (lowest..highest) | |"
    yield "|---|---|---|---|---|"
    for outcome in outcomes:
        for verdict in outcome.verdicts:
            found = spread_text(Spread.of(verdict.rounds)) if verdict.rounds else "–"
            yield f"| {outcome.name} | {verdict.what} | {verdict.limit} | {found} | {verdict.word} |"


def values_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Markdown: what was measured, with spread."""
    yield "| figure | unit | measured | median (lowest..highest) |"
    yield "|---|---|---|---|"
    for outcome in outcomes:
        for name, spread in outcome.spreads().items():
            yield f"| {outcome.name} | {_unit(name, outcome.unit)} | {name} | {spread_text(spread)} |"


def _unit(name: str, usual: str) -> str:
    """A value may end in its own unit."""
    last = name.rpartition(" ")[2]
    return last if last in ("MB", "s") else usual


def spread_text(spread: Spread) -> str:
    """``median (low..high)``."""
    return f"{number(spread.median)} ({number(spread.low)}..{number(spread.high)})"


def markdown(report: Report) -> str:
    """All that a page says of a run."""
    rounds = report.settings["rounds"]
    lines = [_BEGIN, ""]
    if report.note:
        lines += [f"**{report.note}**", ""]
    if rounds < _ENOUGH_ROUNDS:
        lines += [
            f"Only {rounds} rounds: met and missed are indications; a target is judged over {_ENOUGH_ROUNDS} at least.",
            "",
        ]
    lines += ["| machine and settings | |", "|---|---|"]
    lines += [f"| {name} | {_text(value)} |" for name, value in (report.machine | report.settings).items()]
    lines += ["", *targets_table(report.outcomes), "", "The figures:", ""]
    lines += [f"- {outcome.name}: {outcome.title} ({outcome.unit})" for outcome in report.outcomes]
    lines += ["", "What was measured:", "", *values_table(report.outcomes), ""]
    failures = [f"- {outcome.name}: {text}" for outcome in report.outcomes for text in dict.fromkeys(outcome.failures)]
    if failures:
        lines += ["Samples that failed:", "", *failures, ""]
    return "\n".join([*lines, _END])


def _text(value: object) -> str:
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)


def write_page(page: Path, report: Report) -> None:
    """Put a run between the page's markers. ValueError for a page without them."""
    text = page.read_text(encoding="utf-8")
    head, begin, rest = text.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{page.name} needs the lines {_BEGIN} and {_END}")
    page.write_text(head + markdown(report) + tail, encoding="utf-8")


def compare(before: Report, after: Report) -> Iterator[str]:
    """Markdown: targets of two runs side by side; what one run lacks is left out.

    Values of two runs are not compared: the machine drifts between them, the ratios inside a run do not.
    """
    for name, value in after.settings.items():
        if before.settings.get(name) != value:
            yield f"{name}: {_text(before.settings.get(name))} before, {_text(value)} after\n"
    yield "| figure | what counts | target | before | after | change | |"
    yield "|---|---|---|---|---|---|---|"
    old = _by_target(before)
    for key, verdict in _by_target(after).items():
        if key in old and old[key].rounds and verdict.rounds:
            was, now = Spread.of(old[key].rounds), Spread.of(verdict.rounds)
            change = f"{(now.median / was.median - 1) * 100:+.0f} %" if was.median else "–"
            apart = "" if _overlap(was, now) else "spreads apart"
            cells = (*key, verdict.limit, spread_text(was), spread_text(now), change, apart)
            yield f"| {' | '.join(cells)} |"


def _by_target(report: Report) -> Mapping[tuple[str, str], Any]:
    return {(outcome.name, verdict.what): verdict for outcome in report.outcomes for verdict in outcome.verdicts}


def _overlap(one: Spread, other: Spread) -> bool:
    return one.low <= other.high and other.low <= one.high
