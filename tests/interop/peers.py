"""The Python that has Paddle 3, paddle2onnx, onnxruntime and Netron (`fluidlite[interop]`), and what runs in it.

``FLUIDLITE_INTEROP_PYTHON`` names it; default: the Python that runs the tests. What runs there runs in processes of its
own: these packages warn, print and end processes as they like.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.shared_data import REPO

PYTHON = os.environ.get("FLUIDLITE_INTEROP_PYTHON") or sys.executable
HERE = REPO / "tests" / "interop"
_FOUND = "import sys; from importlib.util import find_spec; print(*[name for name in sys.argv[1:] if find_spec(name) is None])"


@functools.cache
def lacking(*packages: str) -> str:
    """Those of the packages that the Python lacks."""
    if sys.executable == PYTHON:
        return " ".join(name for name in packages if find_spec(name) is None)
    done = subprocess.run([PYTHON, "-c", _FOUND, *packages], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def need(*packages: str) -> None:
    """Skip the test where a package is not there."""
    if missing := lacking(*packages):
        pytest.skip(f"no {missing} in {PYTHON}: install fluidlite[interop], or set FLUIDLITE_INTEROP_PYTHON")


def run(*command: str | Path, fails: bool = False) -> str:
    """Run a script or module there; what it printed. ``fails``: it must end with an error."""
    environment = {**os.environ, "FLAGS_enable_pir_api": "0", "PYTHONPATH": str(REPO), "GLOG_minloglevel": "2"}
    done = subprocess.run(
        [PYTHON, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
        cwd=REPO,
    )
    output = done.stdout + done.stderr
    assert bool(done.returncode) == fails, output[-3000:]
    return output


def run_here(script: str, *arguments: str | Path) -> str:
    """Run a script of this folder."""
    return run(HERE / script, *arguments)
