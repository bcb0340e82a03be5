"""The soak loses nothing in a few seconds, and notices what it must; how long it takes is nobody's business here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import soak
from benchmarks.soak_job import LISTS, SHAPE, VOCAB, WIDTH, Array, Pool
from benchmarks.soak_judge import (
    Series,
    constant_check,
    drift_check,
    held_check,
    memory_check,
    slope,
    sums_check,
)


def ramp(start: float, growth: float) -> Series:
    """Samples every 10 s over 20 minutes that grow by so much in 10 minutes, with a spike."""
    series = [(10.0 * at, start + growth * at / 60) for at in range(120)]
    return [*series[:50], (505.0, start * 5), *series[50:]]


@pytest.fixture
def pushed() -> tuple[list[Array], list[Array], list[Pool], dict[str, Array]]:
    """What two trainers pushed, and what servers hold after it, computed step by step in float32."""
    random = np.random.default_rng(0)
    pools = [Pool(trainer, 50) for trainer in range(2)]
    counts, dense = [np.zeros(2 * LISTS, np.int64) for _ in pools], [np.zeros(2, np.int64) for _ in pools]
    table, parameter = np.zeros((VOCAB, WIDTH), np.float32), np.zeros(SHAPE, np.float32)
    touched = []
    for step in range(30):
        trainer = step % 2
        one, two, third = *random.integers(0, 2 * LISTS, 2), random.integers(0, 2)
        feed = pools[trainer].feed(one, two, third)
        np.subtract.at(table, feed["ids"][:, 0], feed["weight"])
        parameter -= feed["push"]
        np.add.at(counts[trainer], [one, two], 1)
        dense[trainer][third] += 1
        touched.append(feed["ids"][:, 0])
    ids = random.permutation(np.unique(np.concatenate(touched)))
    return counts, dense, pools, {"ids": ids, "rows": table[ids], "dense": parameter}


def test_sums_that_are_right_are_taken_for_right(pushed: tuple[list[Array], list[Array], list[Pool], dict]) -> None:
    check = sums_check(*pushed)
    assert check.met, check.found
    assert "after 30 steps" in check.found


def test_one_lost_value_is_noticed(pushed: tuple[list[Array], list[Array], list[Pool], dict]) -> None:
    counts, dense, pools, read = pushed
    rows, parameter = read["rows"].copy(), read["dense"].copy()
    rows[7, 3] += 1
    parameter[0, 0] -= 1
    assert sums_check(counts, dense, pools, {**read, "rows": rows}).found == "1 values differ"
    assert sums_check(counts, dense, pools, {**read, "dense": parameter}).met is False
    fewer = {**read, "ids": read["ids"][1:], "rows": read["rows"][1:]}
    assert "were pushed to" in sums_check(counts, dense, pools, fewer).found
    counts[1][counts[1].argmax()] += 1
    assert sums_check(counts, dense, pools, read).met is False


def test_growth_is_the_slope_whatever_single_samples_say() -> None:
    assert slope(ramp(100, 3)) * 600 == pytest.approx(3, rel=0.01)
    assert memory_check("a", ramp(100, 1.9), enough=True).met
    assert memory_check("a", ramp(100, 2.1), enough=True).met is False
    assert memory_check("a", ramp(1000, 9.9), enough=True).met
    assert memory_check("a", ramp(1000, 10.2), enough=True).met is False
    assert memory_check("a", ramp(100, 50), enough=False).met is None


def test_what_has_a_number_must_not_grow() -> None:
    steady = [(float(at), 17.0) for at in range(8)]
    assert constant_check("a", "threads", steady, enough=True).met
    assert constant_check("a", "threads", [*steady, (9.0, 1.0)], enough=True).met
    assert constant_check("a", "threads", [*steady, (9.0, 18.0)], enough=True).met is False
    assert held_check("a", "blocks", ramp(50_000, 100), enough=True).met
    assert held_check("a", "blocks", ramp(50_000, 3_000), enough=True).met is False


def test_a_slower_machine_is_no_drift() -> None:
    usual, slower = ramp(10, 0), ramp(10, 5)
    assert drift_check("a", usual, usual, enough=True).met
    assert drift_check("a", slower, usual, enough=True).met is False
    assert drift_check("a", slower, slower, enough=True).met
    assert drift_check("a", usual, slower, enough=True).met


def test_a_short_soak_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_DATA", str(tmp_path))
    page, run = tmp_path / "page.md", tmp_path / "soak.json"
    page.write_text("<!-- soak: begin -->\n<!-- soak: end -->\n", encoding="utf-8")
    assert soak.main(["--minutes", "0.03", "--ids", "200", "--json", str(run), "--page", str(page)]) == 0
    stored = json.loads(run.read_text(encoding="utf-8"))
    sums, *others = stored["checks"]
    assert sums["met"] is True
    assert sums["found"].startswith("equal: ")
    assert {check["met"] for check in others} == {None}
    assert {"server 0: MB", "trainer 1: ms"} <= stored["series"].keys()
    assert "| sums of rows and of the dense parameter | as pushed, exactly | equal" in page.read_text(encoding="utf-8")
