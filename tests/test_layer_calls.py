"""A call of each layer builds the ops, variables and parameters that real Fluid 1.8.5 builds for it.

What Fluid built is in `fluid_values/layer_calls.json` (`tests/oracle/record_layers.py`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import layer_calls
from tests.golden_programs import Snippet, differences

FOUND = json.loads(Path(__file__).with_name("fluid_values").joinpath("layer_calls.json").read_text(encoding="utf-8"))
TEXTS = dict(layer_calls.calls())
#: where we have the layers that Fluid keeps apart
OURS = "__import__('importlib').import_module('fluidlite.compat.contrib_layers')"
#: what we build otherwise on purpose (docs/deviations.md)
DIFFERENT: dict[str, str] = {
    "npair_loss": "Fluid reshapes the labels in place, which then could not be fed in their shape",
    "randn": "Fluid draws a seed below 100 when the layer is called, so that every run gives the same numbers",
}


@pytest.mark.parametrize("program", [pytest.param(program, id=program["id"]) for program in FOUND["programs"]])
def test_builds_what_fluid_builds(program: dict[str, Any]) -> None:
    if program["id"] in DIFFERENT:
        pytest.skip(f"deviation from Fluid: {DIFFERENT[program['id']]}")
    snippet = Snippet(TEXTS[program["id"]].replace("fluid.contrib.layers", OURS), "")
    for part, built in (("main", snippet.main), ("startup", snippet.startup)):
        lines = differences({**program[part], "random_seed": 0}, built)
        assert not lines, "\n".join([part, *lines])


def test_every_call_is_recorded() -> None:
    assert {*TEXTS} == {program["id"] for program in FOUND["programs"]}
