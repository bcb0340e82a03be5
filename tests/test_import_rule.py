"""An import may only point upwards in the list of layers (docs/ARCHITECTURE.md), and no two modules need each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

PACKAGE = Path(__file__).parent.parent / "fluidlite"
BASE = {"errors", "dtypes", "environment"}
FRONT_END = {
    "framework", "unique_name", "layers", "backward", "optimizer", "initializer", "regularizer", "clip", "constraint", "param_attr",
    "layer_helper", "input", "nets", "data_feeder", "lod_tensor", "inference",
}  # fmt: skip
#: layer -> layers it may import besides itself and BASE
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "dtypes": set(),
    "environment": set(),
    "kernels": set(),
    "proto_gen": set(),
    "protocol": {"values", "proto_gen"},
    "core": set(),
    "values": {"kernels"},
    "ops": {"core", "values", "protocol", "kernels"},
    "fusion": {"core", "ops"},
    "runtime": {"core", "values", "ops", "fusion"},
    **{name: {"core", "ops"} | FRONT_END for name in FRONT_END},
    "lod_tensor": {"core", "ops", "values"} | FRONT_END,
    "data_feeder": {"core", "ops", "values"} | FRONT_END,
    "metrics": {"values"},
    "reader": {"kernels", "values"},
    "dataset": {"core", "values", "reader"} | FRONT_END,
    "dataset_run": {"core", "values", "reader", "dataset"} | FRONT_END,
    "data_loader": {"core", "values", "reader", "dataset"} | FRONT_END,
    "transpiler": {"core", "ops"},
    "dist_io": {"core", "ops", "values", "runtime", "protocol", "transpiler"},
    "serving": {"core", "protocol", "transpiler"} | FRONT_END,
    "checkpoint_io": {"core", "runtime", "dist_io", "checkpoint"} | FRONT_END,
    "var_io": {"core", "values", "runtime", "dist_io"} | FRONT_END,
    "state_io": {"core", "values", "runtime", "var_io"} | FRONT_END,
    "io": {
        "reader",
        "data_loader",
        "core",
        "ops",
        "values",
        "runtime",
        "var_io",
        "state_io",
        "serving",
        "checkpoint_io",
    }
    | FRONT_END,
    "checkpoint": {"values"},
    "ps_values": {"values"},
    "pserver": {"core", "values", "runtime", "protocol", "ops", "checkpoint"},
    "rpc": {"values", "protocol", "ops", "proto_gen"},
}
#: these put the parts together and may import everything
COMPOSITION = {
    "__init__",
    "__main__",
    "executor",
    "ports",
    "cluster",
    "compat",
    "export",
    "export_command",
    "launch",
    "cli",
    "config",
    "demo",
    "ops_page",
    "ps_client",
    "ps_model",
    "tracing",
}
#: what one module may import besides what its layer may
MORE = {
    "core/serde.py": {"proto_gen"},
    "core/reader_desc.py": {"proto_gen"},
    "layers/io.py": {"data_loader"},
    "core/later_attrs.py": {"proto_gen"},
    "core/op_compat.py": {"proto_gen"},
    "values/records.py": {"proto_gen"},
    "transpiler/distribute.py": {"framework"},
    "rpc/fluid_session.py": {"core"},
    "rpc/fluid_port.py": {"core"},
}
#: third-party packages that only one layer may import
ONLY_IN = {"grpc": "rpc", "networkx": "core"}
FORBIDDEN = {"transpiler": {"numpy", "socket", "time", "threading", "os", "random"}}

FILES = sorted(p for p in PACKAGE.rglob("*.py") if "proto_gen" not in p.parts)


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or inside a function; packages and their modules alike."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if is_module(whole) else node.module or ""


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path.with_suffix(".pyi"), path / "__init__.py")
    return any(file.exists() for file in files)


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str:
    """``fluidlite.core.ir`` -> ``core``."""
    return module.split(".")[1] if "." in module else "__init__"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_upwards(path: Path) -> None:
    layer = layer_of(module_of(path))
    found = list(imports_of(path))
    wrong = [name for name in found if (top := name.split(".")[0]) in ONLY_IN and ONLY_IN[top] != layer]
    wrong += [name for name in found if name.split(".")[0] in FORBIDDEN.get(layer, ())]
    if layer not in COMPOSITION:
        legal = {layer} | BASE | ALLOWED[layer] | MORE.get(path.relative_to(PACKAGE).as_posix(), set())
        ours = [name for name in found if name.split(".")[0] == "fluidlite"]
        wrong += [name for name in ours if layer_of(name) not in legal]
    assert not wrong, f"layer {layer!r} may not import {wrong}"


def test_every_module_belongs_to_a_layer() -> None:
    layers = {layer_of(module_of(path)) for path in FILES} | {"proto_gen"}
    assert layers == set(ALLOWED) | COMPOSITION


def test_no_two_modules_need_each_other() -> None:
    graph = nx.DiGraph()
    for path in FILES:
        graph.add_edges_from((module_of(path), name) for name in imports_of(path) if name.startswith("fluidlite."))
    assert [group for group in nx.strongly_connected_components(graph) if len(group) > 1] == []
