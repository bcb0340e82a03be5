"""A whole job whose processes are killed and whose messages get lost; `python -m benchmarks.chaos` does it for longer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import chaos

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the launcher's processes in /proc"),
    pytest.mark.timeout(400),
]
STEPS = 120
#: seconds between two kills
PAUSES = (1.0, 3.0)


def test_H16_H17_K21_a_disturbed_sync_job_ends_with_the_bytes_of_an_undisturbed_one(tmp_path: Path) -> None:
    peaceful = chaos.play(tmp_path / "peace", model="ctr", sync=True, steps=STEPS, disturb=None, limit=180)
    disturbed = chaos.play(tmp_path / "war", model="ctr", sync=True, steps=STEPS, disturb=PAUSES, limit=300)
    assert disturbed.kills.total() > 0
    assert chaos.problems(disturbed, peaceful) == []


def test_every_step_of_a_disturbed_async_job_counts_exactly_once(tmp_path: Path) -> None:
    disturbed = chaos.play(tmp_path / "war", model="sums", sync=False, steps=STEPS, disturb=PAUSES, limit=300)
    assert disturbed.kills.total() > 0
    assert chaos.miscounted(disturbed, STEPS) == []
