"""Whole scripts in the manner of old ones, as `fluidlite run` runs them. Losses are those of Fluid 1.8.5 (but for the
InMemoryDataset, whose lines Fluid reorders)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared_data import REPO

SCRIPTS = Path(__file__).with_name("compat_scripts")


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fluidlite.compat", str(SCRIPTS / name), *arguments]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("arguments", [(), ("gpu",)], ids=["cpu", "gpu"])
def test_py_reader_and_parallel_executor(arguments: tuple[str, ...]) -> None:
    done = run("py_reader_parallel.py", *arguments)
    assert done.stdout.splitlines() == ["epoch 0 train 0.72825 test 0.61356", "epoch 1 train 0.64828 test 0.56092"]
    assert done.stderr.count("has no GPU") == len(arguments)


def test_dataset_with_a_data_generator_as_its_pipe_command(tmp_path: Path) -> None:
    lines = "".join(f"{i % 2}\t{i} {i * 2} {i + 3}\n" for i in range(1, 11))
    (tmp_path / "lines.txt").write_text(lines, encoding="utf-8")
    assert run("dataset_pipe.py", str(tmp_path / "lines.txt")).stdout.splitlines() == [
        "batch 2 QueueDataset: [0.6931472]",
        "lines 10",
        "batch 2 InMemoryDataset: [0.69355834]",
        "batch 2 auc: [0.5]",
    ]


def test_trainer_and_inferencer(tmp_path: Path) -> None:
    first, *tests, steps, inferred = run("trainer_inferencer.py", str(tmp_path)).stdout.splitlines()
    losses = [float(line.rpartition(" ")[2]) for line in (first, *tests)]
    assert losses == sorted(losses, reverse=True)
    assert len(losses) == 3
    assert (steps, inferred) == ("steps 19", "infer (2, 1) True")
    # stopped by its handler in the fourth epoch, the next one goes on behind the newest checkpoint: 18 steps are left out
    *_, steps, inferred = run("trainer_inferencer.py", str(tmp_path)).stdout.splitlines()
    assert (steps, inferred) == ("steps 1", "infer (2, 1) True")


def test_predictors(tmp_path: Path) -> None:
    assert run("predictor.py", str(tmp_path / "model")).stdout.splitlines() == [
        "analysis [2, 2] True True True",
        "zero copy [2, 2] True",
        "native True",
    ]


def test_loader_compiled_program_profiler_and_state(tmp_path: Path) -> None:
    lines = run("compiled_loader.py", str(tmp_path)).stdout.splitlines()
    assert lines[-2:] == ["better True 24", "loaded True False"]
    assert lines[0].split()[:2] == ["op", "calls"]
    assert (tmp_path / "profile").read_text(encoding="utf-8").startswith('{"traceEvents"')
