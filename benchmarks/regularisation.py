"""What regularisation of skipped rows costs, and how wrong the power of the gap is: ``python -m benchmarks.regularisation``.

One process. A step is a lookup, an update and a tick of one table. Heights and modes are measured in turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels.updates import Rule
from fluidlite.values.initial import Uniform
from fluidlite.values.row_decay import Decay, Shrinkage
from fluidlite.values.row_momentum import MomentumDecay
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable, TableColumn

HEIGHTS = (10_000, 100_000, 1_000_000)
WIDTH, TOUCHED, ROUNDS, STEPS = 16, 4_096, 5, 40
RATE, L1, L2 = 0.01, 1e-5, 1e-3

Step = Callable[[Array, Array], None]


def make_step(height: int, mode: str) -> Step:
    """A step on a table of ``height`` rows with regularisation of a mode."""
    table = SparseTable("emb", WIDTH, "float32", Uniform(-0.1, 0.1))
    for first in range(0, height, 1 << 16):
        table.lookup(np.arange(first, min(first + (1 << 16), height)))
    rule = Shrinkage(L1, L2)
    velocity = TableColumn("velocity", WIDTH, 0.0, "float32")
    columns: tuple[TableColumn, ...] = (velocity,) if mode == "lazy momentum" else ()
    clock: Decay = MomentumDecay(0.9, l2=L2) if columns else rule
    optimizer = Rule("momentum", (RATE, 0.9)) if columns else Rule("sgd", (RATE,))

    def decay(value: Array, _gradient: Array) -> None:
        rule.step(RATE, value)

    def step(ids: Array, gradient: Array) -> None:
        table.lookup(ids)
        rows = SelectedRows(ids, gradient, 0)
        table.update(rows, columns, optimizer)
        if mode == "touched":
            table.update(rows, (), decay)
        elif mode == "dense":
            every = table.ids
            table.update(SelectedRows(every, np.zeros((len(every), WIDTH), np.float32), 0), (), decay)
        elif mode.startswith("lazy"):
            table.tick(clock, columns, RATE, ids if columns else None)

    return step


def time_steps() -> dict[tuple[str, int], float]:
    """Median milliseconds of a step by mode and height."""
    random = np.random.default_rng(0)
    gradient = random.normal(0, 1, (TOUCHED, WIDTH)).astype(np.float32)
    cases = [
        (mode, height)
        for mode in ("none", "touched", "lazy", "lazy momentum", "dense")
        for height in HEIGHTS
        if mode != "dense" or height <= HEIGHTS[1]
    ]
    steps = {case: make_step(case[1], case[0]) for case in cases}
    times: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for turn in range(ROUNDS):
        for case in cases if turn % 2 else cases[::-1]:
            for _ in range(STEPS if case[0] != "dense" else 4):
                ids = random.choice(case[1], TOUCHED, replace=False).astype(np.int64)
                start = time.perf_counter()
                steps[case](ids, gradient)
                times[case].append((time.perf_counter() - start) * 1e3)
    return {case: statistics.median(found) for case, found in times.items()}


def schedules(steps: int) -> dict[str, Array]:
    """Learning rates by name of the schedule."""
    at = np.arange(steps)
    return {
        "constant 0.01": np.full(steps, 0.01),
        "0.1, divided by 10 at each third": 0.1 / 10 ** (3 * at // steps),
        "cosine from 0.1": 0.05 * (1 + np.cos(np.pi * at / steps)),
        "warm-up to 0.1, then 1 / sqrt": 0.1 * np.minimum((at + 1) / 1000, np.sqrt(1000 / (at + 1))),
    }


def errors_of_the_power(gap: int = 10_000, l2: float = L2) -> dict[str, tuple[float, float, float]]:
    """By schedule, of a row of ones that is skipped for ``gap`` steps: (where it is, where the last rate to the power of the
    gap puts it, where the lazy clock puts it)."""
    found = {}
    for name, rates in schedules(gap).items():
        exact, table = np.longdouble(1.0), SparseTable("emb", 1, "float64", Uniform(1.0, 1.0))
        table.lookup(np.zeros(1, np.int64))
        for rate in rates.tolist():
            exact *= 1 - np.longdouble(rate) * np.longdouble(l2)
            table.tick(Shrinkage(l2=l2, form="multiplicative"), (), rate)
        lazy = float(table.lookup(np.zeros(1, np.int64))[0, 0])
        found[name] = float(exact), float((1 - rates[-1] * l2) ** gap), lazy
    return found


def main() -> None:
    """Print both tables."""
    lines: list[Any] = [f"Milliseconds of a step, {TOUCHED} of the rows touched, width {WIDTH}, float32.", ""]
    lines += [
        "| mode | " + " | ".join(f"{height:,} rows" for height in HEIGHTS) + " |",
        "|---|" + "---|" * len(HEIGHTS),
    ]
    times = time_steps()
    for mode in dict.fromkeys(mode for mode, _ in times):
        cells = [f"{times[mode, height]:.2f}" if (mode, height) in times else "" for height in HEIGHTS]
        lines.append(f"| {mode} | " + " | ".join(cells) + " |")
    lines += ["", "A row skipped for 10,000 steps, L2 0.001, first value 1.", ""]
    lines += [
        "| schedule | every step | last rate to the power of the gap | error | lazy, error |",
        "|---|---|---|---|---|",
    ]
    for name, (exact, power, lazy) in errors_of_the_power().items():
        lines.append(f"| {name} | {exact:.6f} | {power:.6f} | {abs(power - exact):.1e} | {abs(lazy - exact):.1e} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
