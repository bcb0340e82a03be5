"""Training programs built here and written run in Fluid 1.8.5, with the losses that they have here. Needs
``FLUIDLITE_ORACLE_PYTHON``: a Python with paddlepaddle 1.8.5."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.values.lod import LoDTensor
from tests.frontend import fresh_programs
from tests.oracle.program_jobs import JOBS
from tests.shared_data import REPO

ORACLE = os.environ.get("FLUIDLITE_ORACLE_PYTHON", "")
STEPS = 5
#: Fluid's steps are other ones (docs/deviations.md, 3)
OTHER_STEPS = {"adadelta"}

pytestmark = pytest.mark.skipif(not ORACLE, reason="FLUIDLITE_ORACLE_PYTHON names no Python with paddlepaddle 1.8.5")


def train_here(name: str, folder: Path) -> list[list[float]]:
    """What the job's program gives, step by step; leaves what Fluid needs to do the same."""
    build, feed = JOBS[name]
    folder.mkdir()
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        fetch = build()
        main, startup = fluid.default_main_program(), fluid.default_startup_program()
        exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.global_scope()
        exe.run(startup)
        kept = [var.name for var in fluid.io.get_program_persistable_vars(main)]
        np.savez(folder / "values.npz", **{key: np.array(scope.get(key)) for key in kept})
        (folder / "main").write_bytes(main.serialize_to_string())
        (folder / "startup").write_bytes(startup.serialize_to_string())
        arrays = {key: np.array(value) for key, value in feed.items()}
        np.savez(folder / "batch.npz", **arrays)
        lengths = {k: v.recursive_sequence_lengths() for k, v in feed.items() if isinstance(v, LoDTensor)}
        plan = {"lengths": lengths, "fetch": [var.name for var in fetch], "steps": STEPS}
        (folder / "plan.json").write_text(json.dumps(plan))
        return [[value.item() for value in exe.run(main, feed, fetch)] for _ in range(STEPS)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("programs")
    ours = {name: train_here(name, folder / name) for name in JOBS}
    command = [ORACLE, str(REPO / "tests" / "oracle" / "program_trainer.py"), str(folder), *JOBS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert not done.returncode, done.stderr[-3000:]
    return ours, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", JOBS)
def test_it_trains_in_fluid(results: tuple[dict[str, Any], dict[str, Any]], name: str) -> None:
    ours, theirs = results[0][name], results[1][name]
    assert not isinstance(theirs, str), theirs
    steps = 1 if name in OTHER_STEPS else STEPS
    np.testing.assert_allclose(theirs[:steps], ours[:steps], rtol=1e-4, atol=1e-6)
    assert theirs[-1][0] < theirs[0][0]
