"""Writes names, parameters and defaults of Fluid 1.8.5's public callables; for the Python in which Fluid is installed:

FLUID_PYTHON tests/oracle/record_signatures.py tests/fluid_values/signatures.json
"""

import inspect
import json
import sys
from pathlib import Path

import paddle.fluid as fluid

MODULES = (
    "layers",
    "nets",
    "initializer",
    "optimizer",
    "clip",
    "regularizer",
    "metrics",
    "backward",
    "average",
    "evaluator",
)


def main(path):
    found = {name: signatures(getattr(fluid, name)) for name in MODULES}
    lines = [json.dumps(name) + ":{\n" + ",\n".join(listed(entries)) + "\n}" for name, entries in found.items()]
    Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def listed(entries):
    return [f"{json.dumps(name)}:{json.dumps(value)}" for name, value in sorted(entries.items())]


def signatures(module):
    return {name: parameters(getattr(module, name)) for name in module.__all__}


def parameters(value):
    """[name] or [name, default] of each parameter; * and ** as in source. Objects without a value are their type."""
    function = value.__init__ if inspect.isclass(value) else value
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        mark = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = [] if parameter.default is parameter.empty else [plain(parameter.default)]
        found.append([mark + parameter.name, *default])
    return found


def plain(default):
    simple = default is None or isinstance(default, (bool, int, float, str))
    if simple:
        return default
    return [plain(item) for item in default] if isinstance(default, (list, tuple)) else str(default)


if __name__ == "__main__":
    main(sys.argv[1])
