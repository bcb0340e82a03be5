"""A report as the tables of a page, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.figures import Outcome, Spread
from benchmarks.report import Report, shared_facts, spread_text

_ENOUGH_ROUNDS: Final = 7


def write_page(page: Path, report: Report) -> None:
    """Put a run into a page, see `write_between`."""
    write_between(page, "benchmarks", markdown(report))


def write_between(page: Path, name: str, text: str) -> None:
    """Put text between two lines of a page, ``<!-- NAME: begin -->`` and its end. ValueError for a page without them."""
    opening, closing = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, begin, rest = page.read_text(encoding="utf-8").partition(opening)
    _, end, tail = rest.partition(closing)
    if not (begin and end):
        raise ValueError(f"{page.name} needs the lines {opening} and {closing}")
    page.write_text(f"{head}{opening}\n\n{text}\n{closing}{tail}", encoding="utf-8")


def markdown(report: Report) -> str:
    """All that a page says of a run."""
    outcomes = report.outcomes
    lines = [f"**{report.note}**", ""] if report.note else []
    lines += [*summary(outcomes), "", *targets_table(outcomes), "", "The figures:", ""]
    lines += [f"- {outcome.name}: {outcome.title} ({outcome.unit})" for outcome in outcomes]
    lines += ["", "What was measured:", "", *values_table(outcomes), ""]
    lines += ["Machine, code and settings:", "", *facts_table(outcomes), ""]
    own = list(own_facts_table(outcomes))
    lines += ["What differs from figure to figure:", "", *own, ""] if own else []
    failures = [f"- {outcome.name}: {text}" for outcome in outcomes for text in dict.fromkeys(outcome.failures)]
    if failures:
        lines += ["Samples that failed:", "", *failures, ""]
    return "\n".join(lines)


def summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """How many targets were met, and how much that is worth."""
    verdicts = [verdict for outcome in outcomes for verdict in outcome.verdicts]
    counts = {word: sum(verdict.word == word for verdict in verdicts) for word in ("met", "missed", "not measured")}
    yield f"{len(verdicts)} targets: " + ", ".join(f"{count} {word}" for word, count in counts.items() if count) + "."
    few = [outcome.name for outcome in outcomes if len(outcome.rounds) < _ENOUGH_ROUNDS]
    if few:
        yield ""
        yield (
            f"Fewer than {_ENOUGH_ROUNDS} rounds, so that met and missed are only indications: {', '.join(few)}."
            if len(few) < len(outcomes)
            else f"Fewer than {_ENOUGH_ROUNDS} rounds: met and missed are only indications."
        )


def targets_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Every target, met or not."""
    yield "| figure | what counts | target | measured: median (lowest..highest) | |"
    yield "|---|---|---|---|---|"
    for outcome in outcomes:
        for verdict in outcome.verdicts:
            found = spread_text(Spread.of(verdict.rounds)) if verdict.rounds else "–"
            yield f"| {outcome.name} | {verdict.text} | {verdict.limit} | {found} | {verdict.word} |"


def values_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What was measured, with spread."""
    yield "| figure | unit | measured | median (lowest..highest) |"
    yield "|---|---|---|---|"
    for outcome in outcomes:
        for name, spread in outcome.spreads().items():
            yield f"| {outcome.name} | {unit_of(name, outcome.unit)} | {name} | {spread_text(spread)} |"


def unit_of(name: str, usual: str) -> str:
    """A value may end in its own unit."""
    last = name.rpartition(" ")[2]
    return last if last in ("MB", "s") else usual


def facts_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What all figures have in common."""
    yield "| | |"
    yield "|---|---|"
    yield from (f"| {name} | {value} |" for name, value in shared_facts(outcomes).items())


def own_facts_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """One row per figure."""
    shared = shared_facts(outcomes)
    names = list(dict.fromkeys(name for outcome in outcomes for name in outcome.facts if name not in shared))
    if not names:
        return
    yield f"| figure | {' | '.join(names)} |"
    yield "|---|" + "---|" * len(names)
    for outcome in outcomes:
        yield f"| {outcome.name} | {' | '.join(outcome.facts.get(name, '–') for name in names)} |"
