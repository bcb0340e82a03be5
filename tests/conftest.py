"""What holds for every test; and what a run says about the goldens."""

from __future__ import annotations

import collections
import re
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

# A busy machine is slow; how long an example takes says nothing about the code.
settings.register_profile("fluidlite", deadline=None)
settings.load_profile("fluidlite")

#: file of tests -> family of goldens
FAMILIES: Final = {
    "test_golden_ops.py": "ops",
    "test_golden_programs_frontend.py": "programs",
    "test_golden_transpiled.py": "transpiled programs",
    "test_golden_training.py": "training runs",
    "test_golden_jobs.py": "dist",
}
_PAGE: Final = Path(__file__).parents[1] / "docs" / "deviations.md"


#: files of tests whose golden tests, by name, read files of the goldens
_OF_FILES: Final = ("test_io.py", "test_records.py", "test_serde.py", "test_golden_files.py")


def _family(report: pytest.TestReport) -> str | None:
    file, name = report.nodeid.split("::")[0].rpartition("/")[2], report.nodeid.rpartition("::")[2]
    return "files" if file in _OF_FILES and "golden" in file + name else FAMILIES.get(file)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many goldens of each family passed, and how many were left out."""
    counts: dict[str, collections.Counter[str]] = {}
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            family = _family(report)
            if family is not None:
                counts.setdefault(family, collections.Counter())[outcome] += 1
    if counts:
        terminalreporter.section("goldens")
        for family in (*FAMILIES.values(), "files"):
            if family in counts:
                found = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts[family].items()))
                terminalreporter.write_line(f"{family}: {found}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> collections.abc.Generator[None, pytest.TestReport, pytest.TestReport]:
    """A golden case that is skipped without a line in docs/deviations.md fails."""
    report = yield
    if report.skipped and _family(report) and not _absent(report):
        case = re.search(r"\[(.*)\]", item.name)
        if case is None or f"| {case[1]} |" not in _PAGE.read_text(encoding="utf-8"):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} is skipped, but docs/deviations.md has no line for it: {report.longrepr}"
    return report


def _absent(report: pytest.TestReport) -> bool:
    """Whether there are no goldens at all."""
    return "no golden" in str(report.longrepr) or "empty parameter set" in str(report.longrepr)
