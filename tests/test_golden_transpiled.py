"""Every transpiled program of the goldens against ours: equal but for the rules of `tests/golden_transpiled.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden_transpiled import MODES, RULES, differences
from tests.shared_data import golden_json, golden_names, needs_golden

ROLES = ("trainer0", "trainer1", "pserver0", "pserver1")
#: (golden, mode) whose programs are not compared op by op, with the reason
OTHER = {
    "geo": "trainers exchange by ops of the program (docs/decisions/0033); Fluid's communicator is not in the program",
}


def _cases() -> list[tuple[str, str]]:
    return [
        (name, mode)
        for name in golden_names("programs")
        for mode in golden_json("programs", f"{name}.json").get("transpiled", {})
        if mode not in OTHER
    ]


@needs_golden
@pytest.mark.parametrize(("name", "mode"), _cases())
@pytest.mark.filterwarnings("default")
def test_transpiled_programs_are_those_of_fluid(name: str, mode: str, tmp_path: Path) -> None:
    golden = golden_json("programs", f"{name}.json")
    found = [line for role in ROLES for line in differences(golden, mode, role, str(tmp_path), set())]
    assert not found, "\n".join(found)


@needs_golden
@pytest.mark.filterwarnings("default")
def test_every_rule_is_needed(tmp_path: Path) -> None:
    used: set[str] = set()
    for name, mode in (("word2vec_sparse", "sync"), ("regularised_momentum", "sync"), ("lr_piecewise", "async")):
        golden = golden_json("programs", f"{name}.json")
        for role in ROLES:
            differences(golden, mode, role, str(tmp_path), used)
    assert used == {rule.__name__ for rule in RULES}
    assert set(MODES) >= {mode for _, mode in _cases()}
