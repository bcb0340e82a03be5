"""What `conftest.py` does with goldens: a case that is skipped needs a line in docs/deviations.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONTENT = """
import pytest

@pytest.mark.parametrize("case", ["adam.12", "adam.99"])
def test_golden_op(case):
    pytest.skip("another formula")
"""


def test_a_skip_without_a_line_fails_and_families_are_counted(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "docs").mkdir()
    here = Path(__file__).parent
    for source, target in (
        (here / "conftest.py", "tests/conftest.py"),
        (here.parent / "docs" / "deviations.md", "docs/deviations.md"),
    ):
        (tmp_path / target).write_bytes(source.read_bytes())
    (tmp_path / "tests" / "test_golden_ops.py").write_text(CONTENT, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "ops: 1 failed, 1 skipped" in found.stdout
    assert "test_golden_op[adam.99] is skipped, but docs/deviations.md has no line for it" in found.stdout
