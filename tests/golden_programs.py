"""Golden programs: runs the snippet of a golden in fresh default programs and compares what it built with Fluid's.

The form of a golden is described in its README. Only differences count: attributes at their default are left out on
both sides, lists that Fluid orders by chance are sorted, and what fluidlite does otherwise on purpose is listed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

import fluidlite
from fluidlite import framework, unique_name
from fluidlite.core import ir
from fluidlite.core.ir import AttrType
from fluidlite.dtypes import VarKind
from fluidlite.ops import registry

Golden = dict[str, Any]

#: attributes that say how Fluid computes, not what; our ops do without them
IGNORED_ATTRS: Final = frozenset(
    {"op_callstack", "op_device", "use_mkldnn", "use_quantizer", "mkldnn_data_type", "data_format"}
)
#: attributes of ours that Fluid's ops do not have
OUR_ATTRS: Final = {
    "auto_grown_table": "init op of a distributed parameter: makes an empty table, not [height, width] values",
    "table_name": "init op of a table's accumulator: a column of that table",
}
#: arguments that Fluid orders by chance
UNORDERED: Final = {("conditional_block", "Input"), ("conditional_block", "Out"), ("while", "X"), ("while", "Out")}
#: op types whose `Out` dims differ: Fluid multiplies unknown dimensions, -1 * 3 = -3; ours stay -1
UNKNOWN_DIMS: Final = {"flatten2", "layer_norm", "expand_as"}
#: programs of which only the forward ops are compared
FORWARD_ONLY: Final = {
    "distributed_table": "Fluid updates a distributed table with sgd whatever the optimizer; ours by the user's optimizer",
}


class Snippet:
    """A golden's snippet after it ran."""

    def __init__(self, text: str, tmp: str) -> None:
        self.main = framework.Program()
        self.startup = framework.Program()
        self.names: dict[str, Any] = {"fluid": fluidlite, "np": np, "TMP": tmp}
        with fresh_state(), unique_name.guard(), framework.program_guard(self.main, self.startup):
            exec(compile(text, "<golden snippet>", "exec"), self.names)


@contextmanager
def fresh_state() -> Iterator[None]:
    """Name scopes count from the beginning, as in a new process."""
    before = framework.state.name_scope
    framework.state.name_scope = [("", {})]
    try:
        yield
    finally:
        framework.state.name_scope = before


def missing(golden: Golden) -> list[str]:
    """What a golden uses and this version does not have: names below ``fluid`` and op types."""
    names = sorted(set(re.findall(r"fluid(?:\.\w+)+", golden["text"])))
    names += [f"fluid.layers.{name}" for name in sorted(set(re.findall(r"\bL\.(\w+)", golden["text"])))]
    lacking = [name for name in names if not _resolves(name)]
    programs = [golden["main"], golden["startup"]]
    types = {op["type"] for program in programs for block in program["blocks"] for op in block["ops"]}
    return lacking + [f"op {type}" for type in sorted(types) if registry.find(type) is None]


def _resolves(path: str) -> bool:
    value: Any = fluidlite
    for part in path.split(".")[1:]:
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


def differences(golden: Golden, program: framework.Program, forward_only: bool = False) -> list[str]:
    """One line per difference between a golden program and ours."""
    expected, actual = golden["blocks"], program.desc.blocks
    if len(expected) != len(actual):
        return [f"{len(expected)} blocks expected, {len(actual)} built"]
    lines = []
    for before, block in zip(expected, actual, strict=True):
        keep = _is_forward if forward_only else None
        lines += _op_differences(before, block, keep)
        lines += _var_differences(before, block, forward_only)
        if before["parent"] != block.parent:
            lines.append(f"block {block.idx}: parent {before['parent']} expected, {block.parent} built")
    if golden.get("random_seed", 0) != program.random_seed:
        lines.append(f"random_seed {golden['random_seed']} expected, {program.random_seed} built")
    return lines


def _is_forward(role: int) -> bool:
    return not role & (ir.OpRole.BACKWARD | ir.OpRole.OPTIMIZE)


def _op_differences(before: Golden, block: ir.Block, keep: Callable[[int], bool] | None) -> list[str]:
    expected = [_golden_op(op) for op in before["ops"] if keep is None or keep(op.get("attrs", {}).get("op_role", 0))]
    actual = [canonical(op) for op in block.ops if keep is None or keep(int(op.role))]
    lines = [
        f"block {block.idx} op {index}:\n  expected {show(old)}\n  built    {show(new)}"
        for index, (old, new) in enumerate(zip(expected, actual, strict=False))
        if not _same(old, new)
    ]
    if len(expected) != len(actual):
        lines.append(
            f"block {block.idx}: {len(expected)} ops expected, {len(actual)} built: {_types(expected, actual)}"
        )
    return lines


def _types(expected: list[Golden], actual: list[Golden]) -> str:
    return f"{[op['type'] for op in expected]} against {[op['type'] for op in actual]}"


def show(op: Golden) -> str:
    """One op as a line: ``mul(X=[x], Y=[w]) -> (Out=[y]) {x_num_col_dims=2}``."""
    outputs = f" -> ({_arguments(op['out'])})" if op["out"] else ""
    attrs = ", ".join(f"{name}={value}" for name, value in op["attrs"].items())
    return f"{op['type']}({_arguments(op['in'])}){outputs}{f' {{{attrs}}}' if attrs else ''}"


def _arguments(arguments: Mapping[str, list[str]]) -> str:
    return ", ".join(f"{key}=[{' '.join(names)}]" for key, names in arguments.items())


def _golden_op(op: Golden) -> Golden:
    return _canonical(op["type"], op.get("in", {}), op.get("out", {}), op.get("attrs", {}))


def canonical(op: ir.Operator) -> Golden:
    """An op of ours in the golden form: attributes at their default left out."""
    attrs = {name: _plain(attr) for name, attr in op.attrs.items() if name not in OUR_ATTRS}
    inputs = {key: values for key, values in op.inputs.items() if values}
    outputs = {key: values for key, values in op.outputs.items() if values}
    if op.attr("is_distributed"):
        attrs.pop("is_sparse", None)
    return _canonical(op.type, inputs, outputs, attrs)


def _plain(attr: ir.Attr) -> Any:
    if attr.type is AttrType.BLOCK:
        return {"block": attr.value}
    if attr.type is AttrType.BLOCKS:
        return {"blocks": list(attr.value)}
    return list(attr.value) if isinstance(attr.value, tuple) else attr.value


def _canonical(
    type: str, inputs: Mapping[str, list[str]], outputs: Mapping[str, list[str]], attrs: Mapping[str, Any]
) -> Golden:
    distributed = attrs.get("is_distributed")
    kept = {
        name: value
        for name, value in attrs.items()
        if name not in IGNORED_ATTRS
        and not _is_default(type, name, value)
        and not (distributed and name == "is_sparse")
    }
    return {
        "type": type,
        "in": {key: sorted(v) if (type, key) in UNORDERED else list(v) for key, v in sorted(inputs.items())},
        "out": {key: sorted(v) if (type, key) in UNORDERED else list(v) for key, v in sorted(outputs.items())},
        "attrs": dict(sorted(kept.items())),
    }


def _is_default(type: str, name: str, value: Any) -> bool:
    if name == "op_role":
        return value == 0
    if name == "op_role_var":
        return not value
    if name == "op_namescope":
        return value == "/"
    if name == "use_cudnn":
        return not value
    for op_type in (type, re.sub(r"_grad2?$", "", type)):
        op_def = registry.find(op_type)
        if op_def is not None and name in op_def.attrs:
            return _same(_default(op_def.attrs[name].default), value)
    # an attribute that no record of ours declares must be at rest
    return value in (False, "", [], 1, [1.0])


def _default(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _same(a: Any, b: Any) -> bool:
    """Equality in which floats are float32."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, bool) or isinstance(b, bool) or not _is_number(a) or not _is_number(b):
        return bool(a == b)
    return a == b or bool(np.float32(a) == np.float32(b))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _var_differences(before: Golden, block: ir.Block, forward_only: bool) -> list[str]:
    expected = {var["n"]: _golden_var(var) for var in before["vars"]}
    actual = {name: _our_var(var) for name, var in block.vars.items()}
    lines = []
    for name in sorted(expected.keys() | actual.keys()):
        old, new = expected.get(name), actual.get(name)
        if forward_only and (old is None or new is None):
            continue
        if old != new and not (old and new and _only_unknown_dims(name, block, old, new)):
            lines.append(f"block {block.idx} var {name}:\n  expected {old}\n  built    {new}")
    return lines


def _only_unknown_dims(name: str, block: ir.Block, old: Golden, new: Golden) -> bool:
    """Whether the only difference is a product of unknown dimensions."""
    writers = {op.type for op in block.ops if name in op.output_arguments()}
    if not writers & UNKNOWN_DIMS or len(old["s"]) != len(new["s"]):
        return False
    dims_agree = all(a == b or (a <= 0 and b == -1) for a, b in zip(old["s"], new["s"], strict=True))
    return dims_agree and {**old, "s": None} == {**new, "s": None}


def _golden_var(var: Golden) -> Golden:
    kind = var.get("t", "LOD_TENSOR")
    tensor = kind in ("LOD_TENSOR", "SELECTED_ROWS", "LOD_TENSOR_ARRAY")
    return {
        "t": kind,
        "dt": var.get("dt", "float32") if tensor else None,
        "s": var.get("s", []),
        "lod": var.get("lod", 0),
        "flags": {key for key in ("p", "sg", "param", "data") if var.get(key)},
        "trainable": var.get("trainable", True),
        "lr": var.get("lr", 1.0),
    }


def _our_var(var: ir.Variable) -> Golden:
    tensor = var.kind in (VarKind.LOD_TENSOR, VarKind.SELECTED_ROWS, VarKind.LOD_TENSOR_ARRAY)
    is_param = isinstance(var, ir.Parameter)
    flags = {"p": var.persistable, "sg": var.stop_gradient, "param": is_param, "data": var.is_data}
    return {
        "t": var.kind.name,
        "dt": var.dtype if tensor else None,
        "s": list(var.shape or ()),
        "lod": var.lod_level,
        "flags": {key for key, on in flags.items() if on},
        "trainable": var.trainable if isinstance(var, ir.Parameter) else True,
        "lr": var.learning_rate if isinstance(var, ir.Parameter) else 1.0,
    }


def close(a: Any, b: Any) -> bool:
    """Whether two results agree: structure and strings exactly, numbers to 1e-6."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b, strict=True))
    if _is_number(a) and _is_number(b):
        return bool(np.isclose(a, b, rtol=1e-6, atol=1e-9))
    return bool(a == b)
