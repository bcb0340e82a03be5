"""Runs as JSON: stored, merged, compared."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.figures import Outcome, Spread, Verdict, number


@dataclasses.dataclass
class Report:
    """Figures that were measured, each with the facts it depends on. ``note``: what else a reader must know."""

    outcomes: list[Outcome]
    note: str = ""

    def save(self, path: Path) -> None:
        """Write JSON; a reader never sees half of it."""
        unfinished = path.with_name(path.name + ".unfinished")
        text = json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)
        unfinished.write_text(text + "\n", encoding="utf-8")
        unfinished.replace(path)

    @classmethod
    def load(cls, path: Path) -> Report:
        """Read what `save` wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls([Outcome.from_json(outcome) for outcome in data["outcomes"]], data["note"])

    def put(self, outcome: Outcome) -> None:
        """Add a figure, or replace what there is of it."""
        names = [known.name for known in self.outcomes]
        if outcome.name in names:
            self.outcomes[names.index(outcome.name)] = outcome
        else:
            self.outcomes.append(outcome)


def merged(reports: Sequence[Report], order: Sequence[str]) -> Report:
    """One report of several: of a figure that occurs more than once the last counts. Figures come in ``order``."""
    whole = Report([], "\n\n".join(dict.fromkeys(report.note for report in reports if report.note)))
    for report in reports:
        for outcome in report.outcomes:
            whole.put(outcome)
    place = {name: index for index, name in enumerate(order)}
    whole.outcomes.sort(key=lambda outcome: place.get(outcome.name, len(place)))
    return whole


def shared_facts(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Facts that are the same for all figures."""
    first = outcomes[0].facts if outcomes else {}
    return {
        name: value for name, value in first.items() if all(outcome.facts.get(name) == value for outcome in outcomes)
    }


def spread_text(spread: Spread) -> str:
    """``median (low..high)``."""
    return f"{number(spread.median)} ({number(spread.low)}..{number(spread.high)})"


def compare(before: Report, after: Report) -> Iterator[str]:
    """Markdown: targets of two runs side by side, then what only one of them has.

    Values of two runs are not compared: the machine drifts between them, the ratios inside a run do not.
    """
    yield from _changed_facts(before, after)
    yield "| figure | what counts | target | before | after | change | |"
    yield "|---|---|---|---|---|---|---|"
    old, new = _by_target(before), _by_target(after)
    for key, verdict in new.items():
        if key in old:
            was, now = Spread.of(old[key].rounds), Spread.of(verdict.rounds)
            change = f"{(now.median / was.median - 1) * 100:+.0f} %" if was.median else "–"
            apart = "" if _overlap(was, now) else "spreads apart"
            cells = (*key, verdict.limit, spread_text(was), spread_text(now), change, apart)
            yield f"| {' | '.join(cells)} |"
    for word, some, others in (("before", old, new), ("after", new, old)):
        lone = [f"{figure}: {what}" for figure, what in some if (figure, what) not in others]
        if lone:
            yield f"\nonly {word}: {'; '.join(lone)}"


def _changed_facts(before: Report, after: Report) -> Iterator[str]:
    old, new = shared_facts(before.outcomes), shared_facts(after.outcomes)
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            yield f"{name}: {old.get(name, '–')} before, {new.get(name, '–')} after\n"


def _by_target(report: Report) -> Mapping[tuple[str, str], Verdict]:
    """Targets that were measured, by figure and what counts."""
    return {
        (outcome.name, verdict.text): verdict
        for outcome in report.outcomes
        for verdict in outcome.verdicts
        if verdict.rounds
    }


def _overlap(one: Spread, other: Spread) -> bool:
    return one.low <= other.high and other.low <= one.high
