"""One picture of all targets: how far each figure is on either side of its limit. Needs matplotlib."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import Outcome, Spread, Verdict

_COLORS: Final = {True: "tab:green", False: "tab:red"}
_INCHES_PER_ROW: Final = 0.28
_TICKS: Final = (0.01, 0.1, 0.25, 0.5, 1, 2, 4, 10, 100)


def plot_targets(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write a picture in the format that the name of ``path`` says; one row per target that was measured."""
    rows = [(outcome.name, verdict) for outcome in outcomes for verdict in outcome.verdicts if verdict.rounds]
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fluidlite"  # the same run gives the same bytes
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    picture, axes = pyplot.subplots(figsize=(9, 1.2 + _INCHES_PER_ROW * len(rows)), layout="constrained")
    for at, (_, verdict) in enumerate(rows):
        draw(axes, at, verdict)
    axes.set_yticks(range(len(rows)), [f"{name}: {verdict.what} {verdict.limit}" for name, verdict in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xticks(_TICKS, map(str, _TICKS))
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times better than the target (left of 1: missed); median, lowest and highest round")
    picture.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(picture)


def draw(axes: Any, at: int, verdict: Verdict) -> None:
    """A point for the median of the rounds, a line for their spread."""
    spread = Spread.of(verdict.margins())
    color = _COLORS[bool(verdict.met)]
    axes.plot([spread.low, spread.high], [at, at], color=color)
    axes.plot([spread.median], [at], "o", color=color)
