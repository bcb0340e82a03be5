"""Pictures of a report: how far each target is, and what every system does per job. Needs matplotlib.

An .svg follows the reader's light or dark mode: its ink is ``currentColor``, its background is left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import Outcome, Spread, Verdict, number
from benchmarks.page import unit_of

#: inks of light and of dark mode; the first is drawn
_INK, _INK_ON_DARK = "#1f2328", "#e6edf3"
_STYLE: Final = (
    f"<style>svg {{ color: {_INK} }} @media (prefers-color-scheme: dark) {{ svg {{ color: {_INK_ON_DARK} }} }}</style>"
)
_MET, _MISSED, _OURS, _OTHERS = "#2da44e", "#e5534b", "#2f81f7", "#8c959f"
_TICKS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10)
#: how far the axis of targets goes; what lies beyond is drawn at its end
_LEAST, _MOST = _TICKS[0], _TICKS[-1]
_COLUMNS: Final = 3
_THIN: Final = 0.25
#: how names of what is ours begin
_OWN: Final = ("fluidlite", "table")
_RATES: Final = ("examples/s", "rows/s")


@dataclass(frozen=True)
class Panel:
    """Bars of one job: what was measured by system."""

    title: str
    unit: str
    bars: Mapping[str, Spread]


def plot_targets(outcomes: Sequence[Outcome], path: Path) -> None:
    """One row per target that was measured: median and spread of its rounds, in multiples of the limit."""
    rows = [(outcome.name, verdict) for outcome in outcomes for verdict in outcome.verdicts if verdict.rounds]
    picture, axes = subplots(figsize=(10, 1.2 + 0.27 * len(rows)))
    for at, (_, verdict) in enumerate(rows):
        _draw_target(axes, at, verdict)
    axes.set_yticks(range(len(rows)), [f"{name}: {verdict.what} {verdict.limit}" for name, verdict in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xscale("log")
    axes.set_xlim(_LEAST, _MOST)
    axes.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS], fontsize=8)
    axes.minorticks_off()
    axes.grid(axis="x", alpha=_THIN)
    axes.axvspan(1, _MOST, color=_MET, alpha=0.07)
    axes.axvline(1, color=_INK, linewidth=1)
    axes.set_xlabel("times better than the target (left of 1: missed); point: median, line: all rounds", fontsize=8)
    save(picture, path)


def _draw_target(axes: Any, at: int, verdict: Verdict) -> None:
    spread = Spread.of([min(max(margin, _LEAST), _MOST) for margin in verdict.margins()])
    color = _MET if verdict.met else _MISSED
    axes.plot([spread.low, spread.high], [at, at], color=color, linewidth=2.5, alpha=0.6, solid_capstyle="round")
    axes.plot([spread.median], [at], "o", color=color, markersize=5.5)
    text = number(Spread.of(verdict.rounds).median)
    axes.annotate(text, (1, at), (3, 0), xycoords=("axes fraction", "data"), textcoords="offset points", **_SMALL)


_SMALL: Final[dict[str, Any]] = {"fontsize": 8, "va": "center", "annotation_clip": False}


def plot_jobs(outcomes: Sequence[Outcome], path: Path) -> None:
    """Bars by system: rates of the jobs, memory, and where a step goes."""
    panels = list(panels_of(outcomes))
    if not panels:
        return
    lines = [panels[start : start + _COLUMNS] for start in range(0, len(panels), _COLUMNS)]
    heights = [2 + max(len(panel.bars) for panel in line) for line in lines]
    picture, axes = subplots(
        len(lines), _COLUMNS, figsize=(14, 0.24 * sum(heights)), squeeze=False, height_ratios=heights
    )
    for places, line, height in zip(axes, lines, heights, strict=True):
        for place in places:
            place.set_axis_off()
        for place, panel in zip(places, line, strict=False):
            _draw_panel(place, panel, height - 2)
    save(picture, path)


def panels_of(outcomes: Sequence[Outcome]) -> Iterator[Panel]:
    """What is worth bars."""
    for outcome in outcomes:
        spreads = outcome.spreads()
        if outcome.unit in _RATES:
            bars = {name: spread for name, spread in spreads.items() if unit_of(name, outcome.unit) == outcome.unit}
            yield Panel(outcome.name, outcome.unit, bars)
        if outcome.name == "memory":
            for role in (" trainer MB", " server MB"):
                found = {name.removesuffix(role): spread for name, spread in spreads.items() if name.endswith(role)}
                yield Panel(f"memory of the{role.removesuffix(' MB')}", "MB", found)
        if outcome.name == "op-profile":
            for run in dict.fromkeys(name.partition(": ")[0] for name in spreads):
                found = {name.partition(": ")[2]: spread for name, spread in spreads.items() if name.startswith(run)}
                yield Panel(f"a step by op, {run}", "ms", found)


def _draw_panel(axes: Any, panel: Panel, height: int) -> None:
    axes.set_axis_on()
    for at, (name, spread) in enumerate(panel.bars.items()):
        color = _OURS if name.startswith(_OWN) or panel.unit == "ms" else _OTHERS
        axes.barh(at, spread.median, color=color, height=0.72)
        axes.plot([spread.low, spread.high], [at, at], color=_INK, linewidth=1)
        axes.annotate(short(spread.median), (spread.high, at), (4, 0), textcoords="offset points", **_SMALL)
    most = max((spread.high for spread in panel.bars.values()), default=1.0)
    axes.set_xlim(0, most * 1.22)
    axes.set_ylim(height - 0.4, -0.6)
    axes.set_yticks(range(len(panel.bars)), list(panel.bars), fontsize=8)
    axes.xaxis.set_visible(False)
    axes.tick_params(length=0)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_title(f"{panel.title} ({panel.unit})", fontsize=9, loc="left", fontweight="bold")


def short(value: float) -> str:
    """Three digits: 41.2k, 1.86M, 135."""
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.3g}"


def subplots(*shape: int, **options: Any) -> tuple[Any, Any]:
    """A picture and its axes, in the inks of these pages."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    matplotlib.rcParams.update(dict.fromkeys(inks, _INK))
    # the same run gives the same bytes; letters stay letters
    matplotlib.rcParams.update({"svg.hashsalt": "fluidlite", "svg.fonttype": "none"})
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    found: tuple[Any, Any] = pyplot.subplots(*shape, layout="constrained", **options)
    return found


def save(picture: Any, path: Path) -> None:
    """Write a picture in the format that the name of ``path`` says."""
    svg = path.suffix == ".svg"
    for axes in picture.axes:
        axes.set_facecolor("none" if svg else "white")
    picture.savefig(path, metadata={"Date": None} if svg else None, transparent=svg)
    importlib.import_module("matplotlib.pyplot").close(picture)
    if svg:
        drawn = path.read_text(encoding="utf-8").replace(_INK, "currentColor")
        path.write_text(drawn.replace("<defs>", f"{_STYLE}\n <defs>", 1), encoding="utf-8")
