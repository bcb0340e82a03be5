"""An import may only point upwards in the list of layers (docs/ARCHITECTURE.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fluidlite"
BASE = {"errors", "dtypes", "proto_gen"}
FRONT_END = {
    "framework", "unique_name", "layers", "backward", "optimizer", "initializer", "regularizer", "clip", "param_attr",
    "layer_helper", "input", "nets", "data_feeder", "lod_tensor", "inference",
}  # fmt: skip
#: layer -> layers it may import besides itself and BASE
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "dtypes": set(),
    "proto_gen": set(),
    "protocol": {"values"},
    "core": set(),
    "values": set(),
    "ops": {"core", "values", "protocol"},
    "runtime": {"core", "values", "ops"},
    **{name: {"core", "ops"} | FRONT_END for name in FRONT_END},
    "lod_tensor": {"core", "ops", "values"} | FRONT_END,
    "data_feeder": {"core", "ops", "values"} | FRONT_END,
    "metrics": {"core", "ops", "values", "runtime"} | FRONT_END,
    "reader": {"core", "ops", "values", "runtime"} | FRONT_END,
    "io": {"core", "ops", "values", "runtime", "protocol", "dist_io"} | FRONT_END,
    "dist_io": {"core", "ops", "values", "runtime", "protocol", "transpiler", "io"} | FRONT_END,
    "transpiler": {"core", "ops", "framework"},
    "pserver": {"core", "values", "runtime", "protocol", "ops"},
    "rpc": {"values", "protocol", "ops"},
}
#: third-party packages that only one place may import
ONLY_IN = {"grpc": {"rpc"}, "networkx": {"core"}}
FORBIDDEN = {"transpiler": {"numpy", "socket", "time", "threading"}}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "fluidlite")


def layer_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


FILES = sorted(p for p in PACKAGE.rglob("*.py") if "proto_gen" not in p.parts)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_upwards(path: Path) -> None:
    layer = layer_of(path)
    wrong = []
    for module in imports_of(path):
        top, _, rest = module.partition(".")
        if top == "fluidlite" and rest and layer in ALLOWED:
            target = rest.split(".")[0]
            if target not in BASE | ALLOWED[layer] | {layer}:
                wrong.append(module)
        if top in ONLY_IN and layer not in ONLY_IN[top]:
            wrong.append(module)
        if top in FORBIDDEN.get(layer, ()):
            wrong.append(module)
    assert not wrong, f"layer {layer!r} may not import {wrong}"
