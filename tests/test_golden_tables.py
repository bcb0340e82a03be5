"""Every entry of the tables of `tests/golden_programs.py` is needed by a program of real Fluid that is compared with ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fluidlite.framework import Program
from tests import golden_programs, test_layer_calls, test_sub_blocks
from tests.golden_programs import IGNORED_ATTRS, OUR_ATTRS, UNORDERED, UNORDERED_ATTRS, VAR_DEVIATIONS, Golden, Snippet
from tests.oracle.record_programs import FOLDER
from tests.program_snippets import SNIPPETS
from tests.shared_data import golden_json, golden_names, needs_golden

Pair = tuple[Golden, Program]


def pairs(tmp: str) -> Iterator[Pair]:
    """Fluid's program and ours, of all that are compared."""
    for name in golden_names("programs"):
        golden = golden_json("programs", f"{name}.json")
        yield from _parts(golden, Snippet(golden["text"], tmp))
    for name, text in SNIPPETS.items():
        yield from _parts(json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")), Snippet(text, tmp))
    for entry in test_sub_blocks.RECORDED.values():
        yield entry["main"], Snippet(entry["text"], tmp).main
    for entry in test_layer_calls.FOUND["programs"]:
        text = test_layer_calls.TEXTS[entry["id"]].replace("fluid.contrib.layers", test_layer_calls.OURS)
        yield from _parts(entry, Snippet(text, tmp))


def _parts(golden: Golden, snippet: Snippet) -> Iterator[Pair]:
    yield golden["main"], snippet.main
    yield golden["startup"], snippet.startup
    for key, program in golden.get("extra", {}).items():
        yield program, snippet.names["extra"][key]


def needed(golden: Golden, program: Program) -> set[Any]:
    """The entries without which the comparison could find a difference."""
    found: set[Any] = set()
    for before, block in zip(golden["blocks"], program.desc.blocks, strict=True):
        for op in before["ops"]:
            arguments = [(op["type"], key, names) for way in ("in", "out") for key, names in op.get(way, {}).items()]
            attrs = op.get("attrs", {})
            found |= {(type, key) for type, key, names in arguments if len(names) > 1}
            found |= {(op["type"], name) for name, value in attrs.items() if isinstance(value, list) and len(value) > 1}
            found |= {name for name in attrs if name in IGNORED_ATTRS}
        found |= {name for op in block.ops for name in op.attrs if name in OUR_ATTRS}
        found |= set(golden_programs.deviations(before, block))
    return found


@needs_golden
@pytest.mark.filterwarnings("default")
def test_every_entry_is_needed(tmp_path: Any) -> None:
    found = set().union(*(needed(*pair) for pair in pairs(str(tmp_path))))
    entries = {*IGNORED_ATTRS, *OUR_ATTRS, *UNORDERED, *UNORDERED_ATTRS, *VAR_DEVIATIONS}
    assert sorted(map(str, entries - found)) == []
