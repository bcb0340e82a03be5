"""Scripts in the manner of public Fluid ones print what they print with real Fluid 1.8.5, alone and in jobs of 2 x 2.

`tests/oracle/record_scripts.py` recorded the numbers in `losses.json`. Every sixth script runs as a job in the gate, the
others in `nox -s full`.
"""

from __future__ import annotations

import json
import sys

import pytest

import tests.fluid_script_runs as runs

COMMAND = [sys.executable, "-m", "fluidlite.compat"]
RECORDED = json.loads(runs.RECORDED.read_text("utf-8"))
JOBS = [name for name, script in runs.SCRIPTS.items() if runs.plays_roles(script)]

#: float32 summed in another order, over 20 steps
TOLERANCE = 5e-5
#: numbers are printed with six decimals or seven digits
ABSOLUTE = 1e-6


def different(found: list[str], recorded: list[str]) -> str:
    return runs.close(found, recorded, TOLERANCE, ABSOLUTE)


def test_all_are_recorded() -> None:
    assert RECORDED.keys() == runs.SCRIPTS.keys()
    assert len(JOBS) >= 30
    for name, recorded in RECORDED.items():
        for numbers in [recorded["local"], *recorded.get("2x2", [])]:
            steps = [int(line.split()[1]) for line in numbers if line.startswith("step")]
            assert steps == list(range(20)), name


@pytest.mark.parametrize("name", runs.SCRIPTS)
def test_alone(name: str) -> None:
    assert not different(runs.run_local([*COMMAND, str(runs.SCRIPTS[name])]), RECORDED[name]["local"])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] if n % 6 else []) for n, name in enumerate(JOBS)]
)
def test_job(name: str) -> None:
    for found, recorded in zip(runs.run_job([*COMMAND, str(runs.SCRIPTS[name])]), RECORDED[name]["2x2"], strict=True):
        assert not different(found, recorded)
