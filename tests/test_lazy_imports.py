"""``import fluidlite`` brings numpy only; protobuf, grpc, networkx, fsspec, typer and rich come when they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fluidlite
from tests.shared_data import REPO

HEAVY = {"fsspec", "google", "grpc", "networkx", "rich", "typer"}
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


def modules_of(code: str) -> set[str]:
    """The modules that a new process has after the code."""
    code += "\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


def imported_by(code: str) -> set[str]:
    """The top-level modules that a new process has after the code."""
    return {name.partition(".")[0] for name in modules_of(code)}


@pytest.mark.parametrize("code", ["import fluidlite", TRAIN], ids=["import", "train alone"])
def test_heavy_modules_come_when_used(code: str) -> None:
    assert imported_by(code) & HEAVY == set()


def test_servers_and_random_numbers_come_when_used() -> None:
    before = modules_of("import fluidlite")
    assert {
        name for name in before if name.startswith(("fluidlite.pserver.", "fluidlite.rpc.", "numpy.random"))
    } == set()
    for name in ("LocalCluster", "PSClient"):
        assert "fluidlite.pserver.host" in modules_of(f"from fluidlite import {name}")


def test_protobuf_comes_with_the_bytes_of_a_program() -> None:
    assert "google" in imported_by("import fluidlite\nfluidlite.Program().desc.serialize_to_string()")


def test_an_unknown_name_of_the_package_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'fluidlite' has no attribute 'DataLoader'"):
        fluidlite.DataLoader  # noqa: B018


def test_one_heavy_module_does_not_bring_another() -> None:
    assert imported_by("import fluidlite.rpc.client") & HEAVY == {"google", "grpc"}
    assert imported_by("import fluidlite.cli") & {"grpc", "networkx"} == set()


def test_no_module_is_needed_that_is_not_declared() -> None:
    declared = "import numpy"
    more = imported_by(f"{declared}\nimport fluidlite") - imported_by(declared)
    assert {name for name in more if name not in sys.stdlib_module_names} == {"fluidlite"}
