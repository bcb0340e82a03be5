"""Runs the scripts of `tests/fluid_scripts` with real Fluid and writes, or checks, the numbers that they print.

``FLUIDLITE_ORACLE_PYTHON=PYTHON_OF_FLUID python -m tests.oracle.record_scripts`` records them all in ``losses.json``; names of
scripts record only these; ``--verify`` compares and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests import fluid_script_runs as runs

#: two runs of one program with one version of Fluid; its matrix products depend on the processor
TOLERANCE = 1e-5
#: importing Fluid takes seconds, and a job is four processes
SECONDS = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=sorted(runs.SCRIPTS), help="scripts, without .py; all by default")
    parser.add_argument("--verify", action="store_true", help="compare with the recorded numbers, write nothing")
    args = parser.parse_args()
    recorded = read()
    different = []
    for name in args.names:
        try:
            found = both(runs.SCRIPTS[name])
        except runs.ScriptFailed as error:
            different.append(name)
            print(f"{name}: {error}", flush=True)
            continue
        print(f"{name}: {len(found['local'])} lines", flush=True)
        if not args.verify:
            write({**read(), name: found})
        elif difference(found, recorded.get(name)):
            different.append(name)
            print(f"  {difference(found, recorded.get(name))}", flush=True)
    if different:
        sys.exit(f"failed, or printed other numbers than recorded: {different}")


def both(script: Path) -> dict[str, Any]:
    command = [os.environ["FLUIDLITE_ORACLE_PYTHON"], str(script)]
    found: dict[str, Any] = {"local": runs.run_local(command, SECONDS)}
    if runs.plays_roles(script):
        found["2x2"] = runs.run_job(command, SECONDS, servers_end=False)
    return found


def difference(found: dict[str, Any], recorded: dict[str, Any] | None) -> str:
    if recorded is None or found.keys() != recorded.keys():
        return "not recorded"
    pairs = [(found["local"], recorded["local"]), *zip(found.get("2x2", []), recorded.get("2x2", []), strict=True)]
    return next(filter(None, (runs.close(a, b, TOLERANCE, TOLERANCE) for a, b in pairs)), "")


def read() -> dict[str, Any]:
    return json.loads(runs.RECORDED.read_text("utf-8")) if runs.RECORDED.exists() else {}


def write(recorded: dict[str, Any]) -> None:
    runs.RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
