"""docs/deviations.md: every test that it names exists, and everything that golden tests leave out has its line there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import golden_programs, golden_transpiled, test_golden_ops, test_golden_transpiled

PAGE = (Path(__file__).parents[1] / "docs" / "deviations.md").read_text(encoding="utf-8")


def _cells(heading: str) -> list[list[str]]:
    """The rows of the tables of a section."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:2] == "| "]
    return [row for row in rows if row[0] and not set(row[0]) <= {"-"}]


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(test_\w+::\w+)", PAGE))))
def test_tests_that_the_page_names_exist(named: str) -> None:
    file, name = named.split("::")
    content = (Path(__file__).parent / f"{file}.py").read_text(encoding="utf-8")
    assert re.search(rf"^def {name}\(", content, re.M)


def test_every_rule_has_its_line() -> None:
    rules = {row[0].strip("`"): row[1] for row in _cells("Programs")}
    for rule in golden_transpiled.RULES:
        assert rules[rule.__name__] == " ".join((rule.__doc__ or "").split())
    assert test_golden_transpiled.OTHER.keys() <= rules.keys()
    named = {row[2].strip("`") for row in _cells("Programs") if len(row) == 3}
    assert named >= {"IGNORED_ATTRS", "OUR_ATTRS", "VAR_DEVIATIONS", "FORWARD_ONLY", "UNORDERED"}
    assert all(hasattr(golden_programs, name) for name in named - {"Entry"})
    assert golden_programs.FORWARD_ONLY.keys() <= set(re.findall(r"`(\w+)`", PAGE))


def test_every_case_that_is_left_out_has_its_line() -> None:
    skipped = {row[0] for row in _cells("Golden cases that are skipped")} - {"Case"}
    assert skipped >= test_golden_ops.QUESTIONED.keys()
    assert {op for op, _ in test_golden_ops.DEVIATIONS} == {"adam"}
    assert "adam.12" in skipped
    assert all(reason in PAGE for reason in test_golden_ops.WE_ACCEPT)


def test_every_defect_of_the_specification_has_its_line() -> None:
    numbers = {
        n
        for heading in ("Defects of Fluid's ops", "Defects of its transpiler and servers")
        for row in _cells(heading)
        for n in re.split(r", ", row[0])
    }
    assert {str(n) for n in range(1, 27)} <= numbers
