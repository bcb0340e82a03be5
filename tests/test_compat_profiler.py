"""Fluid's names of the profiler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import SettingError
from fluidlite.runtime import profile
from tests.frontend import fresh_programs


@pytest.fixture(autouse=True)
def _own_programs() -> Iterator[None]:
    with fresh_programs():
        yield
    profile._active.clear()


def step() -> None:
    if not fluid.default_main_program().global_block().ops:
        x = fluid.data("x", [None, 2])
        fluid.layers.relu(fluid.layers.scale(fluid.layers.relu(x), 2.0))
    fluid.Executor(fusion=False).run(feed={"x": np.ones([1, 2], np.float32)})


@pytest.mark.parametrize("key", [None, "default", "calls", "total", "max", "min", "ave"])
def test_profiler_prints_and_writes(key: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fluid.profiler.profiler("CPU", key, str(tmp_path / "trace"), "OpDetail"):
        fluid.profiler.start_profiler("All")
        step()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("op")
    found = [line.split()[:2] for line in lines[1:]]
    assert sorted(found) == [["relu", "2"], ["scale", "1"]]
    if key in (None, "default", "calls"):
        assert found[0] == ["relu", "2"]
    assert len(json.loads((tmp_path / "trace").read_text(encoding="utf-8"))["traceEvents"]) == 3


def test_reset_forgets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fluid.profiler.reset_profiler()
    fluid.profiler.start_profiler("GPU")
    step()
    fluid.profiler.reset_profiler()
    fluid.profiler.stop_profiler("total", str(tmp_path / "trace"))
    assert len(capsys.readouterr().out.splitlines()) == 1
    fluid.profiler.stop_profiler(profile_path=str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_wrong_settings_and_gpus() -> None:
    with pytest.raises(SettingError, match="must be one of CPU, GPU, All, not 'TPU'"):
        fluid.profiler.start_profiler("TPU")
    with pytest.raises(SettingError, match="sorted_key must be"):
        fluid.profiler.stop_profiler("name")
    with pytest.warns(UserWarning, match="no GPU; use profiler"), fluid.profiler.cuda_profiler("file", "csv"):
        pass
