"""``import fluidlite`` brings numpy and protobuf only; grpc, networkx, typer and rich come when they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.shared_data import REPO

HEAVY = {"grpc", "networkx", "rich", "typer"}
TRAIN = """
import numpy as np
import fluidlite as fluid
x = fluid.data("x", [None, 2], "float32")
loss = fluid.layers.mean(fluid.layers.fc(x, 1))
fluid.optimizer.SGD(0.1).minimize(loss)
exe = fluid.Executor()
exe.run(fluid.default_startup_program())
exe.run(feed={"x": np.ones([1, 2], "float32")}, fetch_list=[loss])
exe.close()
"""


def imported_by(code: str) -> set[str]:
    """The top-level modules that a new process has after the code."""
    code += "\nimport sys\nprint(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("code", ["import fluidlite", TRAIN], ids=["import", "train alone"])
def test_heavy_modules_come_when_used(code: str) -> None:
    assert imported_by(code) & HEAVY == set()


def test_one_heavy_module_does_not_bring_another() -> None:
    assert imported_by("import fluidlite.rpc.client") & HEAVY == {"grpc"}
    assert imported_by("import fluidlite.cli") & {"grpc", "networkx"} == set()


def test_no_module_is_needed_that_is_not_declared() -> None:
    declared = "import numpy.random, google.protobuf.descriptor"
    more = imported_by(f"{declared}\nimport fluidlite") - imported_by(declared)
    assert {name for name in more if name not in sys.stdlib_module_names} == {"fluidlite"}
