"""The tests of the C kernels again, with kernels that report what is out of bounds or undefined (ASan and UBSan)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: on a machine that is busy with other things; alone the whole takes 25 s
pytestmark = [pytest.mark.timeout(600), pytest.mark.full]  # `nox -s sanitize` runs what this runs, and more

ROOT = Path(__file__).parent.parent
TESTS = [f"tests/{path.name}" for path in ROOT.glob("tests/test_kernels*.py") if path.name != Path(__file__).name]
#: added to the kernels, for the test that the sanitizer is at work
WRONG = "void fl_write_behind_the_end(long long *array, int length) { array[length] = 1; }"
#: reported by a sanitizer
REPORT = ("AddressSanitizer", "runtime error:")


def runtime_library() -> str:
    """The sanitizer's library, which a program that was built without it must load first; "" where there is none."""
    compiler = shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        return ""
    asked = [compiler, "-print-file-name=libasan.so"]
    name = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return name if Path(name).is_absolute() else ""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with sanitized kernels, and the tests of kernels."""
    if not runtime_library():
        pytest.skip("no gcc with libasan")
    folder = tmp_path_factory.mktemp("sanitized")
    shutil.copytree(
        ROOT / "fluidlite", folder / "fluidlite", ignore=shutil.ignore_patterns("*.so", "__pycache__", "demo")
    )
    (folder / "tests").mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", *TESTS):
        shutil.copy(ROOT / name, folder / name)
    (folder / "fluidlite" / "kernels" / "c" / "wrong.c").write_text(WRONG, encoding="utf-8")
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    env = {**os.environ, "FLUIDLITE_BUILD": "sanitized", "CC": "gcc"}
    done = subprocess.run(build, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "LD_PRELOAD": runtime_library(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(folder),
        "FLUIDLITE_KERNELS": "c",
    }
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=500
    )


def test_no_test_of_the_kernels_makes_a_sanitizer_report(checkout: Path) -> None:
    done = run(checkout, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "500", "tests")
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "passed" in output
    assert not [word for word in REPORT if word in output], output


def test_a_write_behind_the_end_of_an_array_is_reported(checkout: Path) -> None:
    """So the silence of the other test says something."""
    behind = """
import ctypes, numpy
from fluidlite.kernels import _c
library = ctypes.CDLL(_c.__file__)
library.fl_write_behind_the_end(numpy.zeros(4, numpy.int64).ctypes.data_as(ctypes.c_void_p), 4)
"""
    done = run(checkout, "-c", behind)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
