"""Records what real Fluid makes of `tests/program_snippets.py`:
``FLUIDLITE_ORACLE_PYTHON=python-of-fluid python -m tests.oracle.record_programs [NAME ...]``.

What the comparison ignores is left out: attributes at their default, fields that say nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.golden_programs import golden_op
from tests.program_snippets import SNIPPETS

FOLDER: Final = Path(__file__).parents[1] / "fluid_values" / "programs"
_DEFAULTS = {"t": "LOD_TENSOR", "dt": "float32", "lod": 0, "trainable": True, "lr": 1.0}


def main(names: list[str]) -> None:
    texts = {name: text for name, text in SNIPPETS.items() if not names or name in names}
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, made in programs_of(texts, os.environ["FLUIDLITE_ORACLE_PYTHON"]).items():
        content = json.dumps(made, separators=(",", ":"))
        (FOLDER / f"{name}.json").write_text(content + "\n", encoding="utf-8")


def programs_of(texts: dict[str, str], python: str) -> dict[str, Any]:
    """What a file holds, by snippet. ``python``: the one with Fluid."""
    command = [python, str(Path(__file__).parent / "dump_programs.py")]
    found = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    return {name: _slimmed(made) for name, made in json.loads(found.stdout.splitlines()[-1]).items()}


def _slimmed(made: dict[str, Any]) -> dict[str, Any]:
    slim: dict[str, Any] = {part: _slim(made[part]) for part in ("main", "startup")}
    return {**slim, "extra": {key: _slim(program) for key, program in made["extra"].items()}}


def _slim(program: dict[str, Any]) -> dict[str, Any]:
    for block in program["blocks"]:
        block["ops"] = [{key: value for key, value in golden_op(op).items() if value} for op in block["ops"]]
        block["vars"] = [_slim_var(var) for var in block["vars"]]
    return program


def _slim_var(var: dict[str, Any]) -> dict[str, Any]:
    flags = ("p", "sg", "data", "param")
    return {k: v for k, v in var.items() if (v if k in flags else v != _DEFAULTS.get(k))}


if __name__ == "__main__":
    main(sys.argv[1:])
