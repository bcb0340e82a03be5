"""Programs built by the front end against those of real Fluid 1.8.5."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden_programs import FORWARD_ONLY, Snippet, close, differences, missing
from tests.shared_data import golden_json, golden_names, needs_golden


@needs_golden
@pytest.mark.parametrize("name", golden_names("programs"))
@pytest.mark.filterwarnings("default")
def test_golden_program(name: str, tmp_path: Path) -> None:
    golden = golden_json("programs", f"{name}.json")
    lacking = missing(golden)
    if lacking:
        pytest.skip(f"not available: {', '.join(lacking)}")
    snippet = Snippet(golden["text"], str(tmp_path))
    forward_only = name in FORWARD_ONLY
    found = differences(golden["main"], snippet.main, forward_only)
    found += [f"startup {line}" for line in differences(golden["startup"], snippet.startup, forward_only)]
    for key, program in golden.get("extra", {}).items():
        found += [f"{key} {line}" for line in differences(program, snippet.names["extra"][key], forward_only)]
    if "results" in golden and not close(golden["results"], snippet.names["results"]):
        found.append(f"results:\n  expected {json.dumps(golden['results'])}\n  found    {snippet.names['results']!r}")
    assert not found, "\n".join(found)
