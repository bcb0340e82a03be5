"""Names, parameters and defaults of Fluid's layers, nets, optimizers, ... against ours.

What Fluid 1.8.5 has is in `fluid_values/signatures.json` (`tests/oracle/record_signatures.py`). Parameters of ours may
follow Fluid's, and what Fluid requires may have a default here.
"""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from fluidlite.dtypes import VarKind
from fluidlite.errors import NotSupported
from fluidlite.layers.left_out import LEFT_OUT

FOUND = json.loads(Path(__file__).with_name("fluid_values").joinpath("signatures.json").read_text(encoding="utf-8"))
#: modules of Fluid that only scripts of Fluid need, and where they are
ELSEWHERE = {
    "average": "fluidlite.compat.average",
    "evaluator": "fluidlite.compat.evaluator",
    "optimizer.DGCMomentumOptimizer": "fluidlite.compat.dgc",
}
#: what is left out, besides the layers that `layers.left_out` lists
ALSO_LEFT_OUT = {"optimizer.PipelineOptimizer", "metrics.DetectionMAP"}
#: left out of a module without a table of its own: the name is not there
ABSENT = {"evaluator.DetectionMAP"}
NAMES = [(module, name) for module, names in FOUND.items() for name in names]


def module_of(module: str, name: str) -> Any:
    path = ELSEWHERE.get(f"{module}.{name}", ELSEWHERE.get(module, f"fluidlite.{module}"))
    return importlib.import_module(path)


def parameters(value: Any) -> list[list[Any]]:
    """As `record_signatures` writes them."""
    function = value.__init__ if inspect.isclass(value) else value
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        mark = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = [] if parameter.default is parameter.empty else [plain(parameter.default)]
        found.append([mark + parameter.name, *default])
    return found


def plain(default: Any) -> Any:
    if default is None or type(default) in (bool, int, float, str):
        return default
    if isinstance(default, (list, tuple)):
        return [plain(item) for item in default]
    return f"VarType.{default.name}" if isinstance(default, VarKind) else str(default)


def left_out(module: str, name: str) -> bool:
    return (module == "layers" and name in LEFT_OUT) or f"{module}.{name}" in ALSO_LEFT_OUT


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda value: value)
def test_signature(module: str, name: str) -> None:
    if left_out(module, name):
        with pytest.raises(NotSupported, match=rf"fluid\.{module}\.{name}\b"):
            getattr(module_of(module, name), name)
        return
    if f"{module}.{name}" in ABSENT:
        assert not hasattr(module_of(module, name), name)
        return
    expected = FOUND[module][name]
    actual = parameters(getattr(module_of(module, name), name))
    assert len(actual) >= len(expected), f"{actual} lacks parameters of {expected}"
    for mine, theirs in zip(actual, expected, strict=False):
        assert mine[0] == theirs[0], f"{actual} against {expected}"
        assert len(theirs) == 1 or mine == theirs


@pytest.mark.parametrize("module", ["layers", "optimizer", "metrics"])
def test_an_unknown_name_is_an_ordinary_attribute_error(module: str) -> None:
    assert not hasattr(importlib.import_module(f"fluidlite.{module}"), "no_such_name")


def test_a_name_left_out_says_so_on_import() -> None:
    with pytest.raises(NotSupported, match="prior_box is not supported: object detection"):
        from fluidlite.layers import prior_box  # noqa: F401


def test_nothing_left_out_is_there() -> None:
    layers = importlib.import_module("fluidlite.layers")
    assert not {*LEFT_OUT} & {*vars(layers)}
    assert {*LEFT_OUT} <= {*FOUND["layers"]}
