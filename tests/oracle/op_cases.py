"""Writes the cases of op records in the form of the goldens, without results: ``python -m tests.oracle.op_cases roll``.

`record_ops.py` runs them under real Fluid and adds what came out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from fluidlite.ops import registry
from fluidlite.ops.registry import Case, OpDef
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows


def cases(op_def: OpDef) -> Iterator[dict[str, Any]]:
    """Each case of a record without empty values (Fluid's kernels refuse most, and write none)."""
    many = {arg.name for arg in op_def.inputs if arg.many}
    for index, case in enumerate(op_def.cases):
        values = [v for name, value in case.inputs.items() for v in (value if name in many else [value])]
        values += [value for value in case.outputs.values() if not isinstance(value, list)]
        if all(_size(value) for value in values):
            yield _golden(op_def, case, index, many)


def _size(value: Any) -> int:
    return 1 if isinstance(value, (list, SelectedRows)) else np.size(_array(value))


def _array(value: Any) -> Any:
    return value.array if isinstance(value, LoDTensor) else value


def _golden(op_def: OpDef, case: Case, index: int, many: set[str]) -> dict[str, Any]:
    inputs = {
        name: [tensor(item) for item in (value if name in many else [value])] for name, value in case.inputs.items()
    }
    return {
        "id": f"{op_def.type}.{index:02}",
        "op": op_def.type,
        "inputs": inputs,
        "attrs": {name: _plain(value) for name, value in case.attrs.items()},
        "n_outputs": {arg.name: case.n_outputs.get(arg.name, 1) for arg in op_def.outputs},
        "aux": [arg.name for arg in op_def.outputs if arg.intermediate],
        "grads": list(case.check_grad),
    }


def tensor(value: Any) -> dict[str, Any]:
    """A value in the golden form; floats become float32."""
    if isinstance(value, list):
        return {"array": [tensor(item) for item in value]}
    if isinstance(value, SelectedRows):
        return {"rows": value.rows.tolist(), "height": value.height, "value": tensor(value.value)}
    array = np.asarray(_array(value))
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    made: dict[str, Any] = {"d": array.dtype.name, "s": list(array.shape), "v": _numbers(array)}
    if isinstance(value, LoDTensor) and value.lod:
        made["lod"] = [np.diff(level).tolist() for level in value.lod]
    return made


def _numbers(array: Any) -> list[Any]:
    if array.dtype.kind != "f":
        return list(array.reshape(-1).tolist())
    return [float(str(number)) if np.isfinite(number) else str(number) for number in array.reshape(-1)]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


if __name__ == "__main__":
    json.dump([case for name in sys.argv[1:] for case in cases(registry.get(name))], sys.stdout)
