"""Golden programs: runs the snippet of a golden in fresh default programs and compares what it built with Fluid's.

The form of a golden is described in its README. Only differences count: attributes at their default are left out on
both sides, lists that Fluid orders by chance are sorted, and what fluidlite does otherwise on purpose is listed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

import fluidlite
from fluidlite import framework, unique_name
from fluidlite.core import ir
from fluidlite.core.ir import AttrType
from fluidlite.core.names import forward_of, is_grad
from fluidlite.dtypes import VarKind
from fluidlite.ops import registry

Golden = dict[str, Any]

#: attributes that say how Fluid computes, not what; our ops do without them
IGNORED_ATTRS: Final = frozenset(
    {
        "op_device",
        "use_mkldnn",
        "use_quantizer",
        "@ALL_KERNELS_MUST_COMPUTE_RUNTIME_SHAPE@",
    }
)
#: attributes of ours that Fluid's ops do not have
OUR_ATTRS: Final = {
    "auto_grown_table": "init op of a distributed parameter: makes an empty table, not [height, width] values",
    "table_name": "init op of a table's accumulator: a column of that table",
}
#: arguments that Fluid orders by chance
UNORDERED: Final = {
    ("conditional_block", "Input"),
    ("conditional_block_grad", "Input"),
    ("conditional_block_grad", "Input@GRAD"),
    ("recurrent", "parameters"),
    ("recurrent_grad", "parameters"),
    ("recurrent_grad", "parameters@GRAD"),
    ("while", "Out"),
    ("while", "X"),
    ("while_grad", "Out"),
    ("while_grad", "Out@GRAD"),
    ("while_grad", "X"),
    ("while_grad", "X@GRAD"),
}
#: attributes that follow the order of such arguments
UNORDERED_ATTRS: Final = {
    ("conditional_block_grad", "op_role_var"),
    ("recurrent_grad", "op_role_var"),
    ("while_grad", "op_role_var"),
    ("while_grad", "original_output_grad"),
}
#: (op type, output) -> fields of the variable's declaration (and its gradient's) that differ, and why
VAR_DEVIATIONS: Final[dict[tuple[str, str], tuple[str, str]]] = {
    ("flatten2", "Out"): ("s", "Fluid multiplies unknown dimensions, -1 * 3 = -3; ours stay -1"),
    ("reshape2", "Out"): ("s", "[0, -1] of [-1, 3, 4] is [-1, 12]; Fluid leaves -1"),
    ("auc", "StatPosOut"): ("s", "with slide_steps 0 Fluid declares another shape than the startup program's"),
    ("auc", "StatNegOut"): ("s", "the same"),
    ("shape", "Out"): ("dt", "int32 values that Fluid's `gradients` declares bool"),
    ("cross_entropy2", "XShape"): ("lod", "Fluid keeps LoD also where the rows change"),
    ("accuracy", "Accuracy"): ("lod", "the same"),
    ("cudnn_lstm", "Out"): ("s", "Fluid forgets that both directions give outputs"),
    ("affine_grid", "Output"): ("s", "Fluid does not use the sizes that it is told"),
    ("ctc_align", "Output"): ("lod", "sequences that Fluid declares without LoD"),
    ("grid_sampler", "Output"): ("s", "Fluid declares the size of X, where that of Grid holds"),
    ("instance_norm", "SavedMean"): ("s", "Fluid multiplies unknown dimensions, -1 * 4 = -4; ours stay -1"),
    ("instance_norm", "SavedVariance"): ("s", "the same"),
    ("isinf", "Out"): ("dt", "bool values that Fluid declares float32"),
    ("isnan", "Out"): ("dt", "the same"),
    ("max_pool2d_with_index", "Mask"): ("dt", "int32 values that Fluid declares float32"),
    ("max_pool3d_with_index", "Mask"): ("dt", "the same"),
    ("random_crop", "SeedOut"): ("s", "one number, which Fluid declares without a shape"),
    ("sequence_topk_avg_pooling", "pos"): ("dt", "int32 values that Fluid declares float32"),
    ("var_conv_2d", "Out"): ("lod", "sequences that Fluid declares without LoD"),
    ("var_conv_2d", "Col"): ("lod", "the same"),
    ("sample_logits", "LabelsDim"): ("dt", "numbers that Fluid declares without a dtype"),
    ("warpctc", "Loss"): ("s", "Fluid declares one loss per step of padded Logits"),
    ("warpctc", "WarpCTCGrad"): ("s", "Fluid declares no shape"),
}
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
    """One line per difference between a golden program and ours.

    ``forward_only`` leaves out backward and optimizer ops, and what initialises the state of optimizers.
    """
    expected, actual = golden["blocks"], program.desc.blocks
    if len(expected) != len(actual):
        return [f"{len(expected)} blocks expected, {len(actual)} built"]
    lines = []
    for before, block in zip(expected, actual, strict=True):
        old = [golden_op(op) for op in before["ops"]]
        new = [canonical(op) for op in block.ops]
        if forward_only:
            params = {name for name, var in block.vars.items() if isinstance(var, ir.Parameter)}
            old, new = _forward(old, params), _forward(new, params)
        lines += _op_differences(block.idx, old, new)
        lines += _var_differences(before, block, forward_only)
        if before["parent"] != block.parent:
            lines.append(f"block {block.idx}: parent {before['parent']} expected, {block.parent} built")
    if golden.get("random_seed", 0) != program.random_seed:
        lines.append(f"random_seed {golden['random_seed']} expected, {program.random_seed} built")
    return lines


def _forward(ops: list[Golden], params: set[str]) -> list[Golden]:
    training = ir.OpRole.BACKWARD | ir.OpRole.OPTIMIZE
    kept = [op for op in ops if not op["attrs"].get("op_role", 0) & training]
    return [op for op in kept if op["in"] or params.issuperset(op["out"]["Out"])]


def _op_differences(block: int, expected: list[Golden], actual: list[Golden]) -> list[str]:
    lines = [
        f"block {block} op {index}:\n  expected {show(old)}\n  built    {show(new)}"
        for index, (old, new) in enumerate(zip(expected, actual, strict=False))
        if not _same(old, new)
    ]
    if len(expected) != len(actual):
        types = f"{[op['type'] for op in expected]} against {[op['type'] for op in actual]}"
        lines.append(f"block {block}: {len(expected)} ops expected, {len(actual)} built: {types}")
    return lines


def show(op: Golden) -> str:
    """One op as a line: ``mul(X=[x], Y=[w]) -> (Out=[y]) {x_num_col_dims=2}``."""
    outputs = f" -> ({_arguments(op['out'])})" if op["out"] else ""
    attrs = ", ".join(f"{name}={_short(value)}" for name, value in op["attrs"].items())
    return f"{op['type']}({_arguments(op['in'])}){outputs}{f' {{{attrs}}}' if attrs else ''}"


def _arguments(arguments: Mapping[str, list[str]]) -> str:
    return ", ".join(f"{key}=[{' '.join(names)}]" for key, names in arguments.items())


def _short(value: Any) -> str:
    """A float as the shortest decimal that is it in float32."""
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    return repr(float(str(np.float32(value)))) if isinstance(value, float) else str(value)


def golden_op(op: Golden) -> Golden:
    return _canonical(op["type"], op.get("in", {}), op.get("out", {}), op.get("attrs", {}))


def canonical(op: ir.Operator) -> Golden:
    """An op of ours in the golden form: attributes at their default left out."""
    attrs = {name: _plain(attr) for name, attr in op.attrs.items() if name not in OUR_ATTRS}
    inputs = {key: values for key, values in op.inputs.items() if values}
    outputs = {key: values for key, values in op.outputs.items() if values}
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
    kept = {
        name: value for name, value in attrs.items() if name not in IGNORED_ATTRS and not _is_default(type, name, value)
    }
    if kept.get("is_distributed"):
        # a table's gradient is always sparse here
        kept.pop("is_sparse", None)
    return {
        "type": type,
        "in": {key: sorted(v) if (type, key) in UNORDERED else list(v) for key, v in sorted(inputs.items())},
        "out": {key: sorted(v) if (type, key) in UNORDERED else list(v) for key, v in sorted(outputs.items())},
        "attrs": {name: sorted(v) if (type, name) in UNORDERED_ATTRS else v for name, v in sorted(kept.items())},
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
    # of the attributes that no record of ours declares only those at rest can be left out
    return value is not True and value in (False, "", [], 1, [1.0])


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
        if old is not None and new is not None:
            for field in _deviating_fields(block, forward_of(name)):
                old[field] = new[field]
            if is_grad(name):  # see docs/deviations.md
                old["lod"] = new["lod"]
        if old != new:
            lines.append(f"block {block.idx} var {name}:\n  expected {old}\n  built    {new}")
    return lines


def _deviating_fields(block: ir.Block, name: str) -> list[str]:
    """Fields of a variable's declaration in which we differ from Fluid on purpose."""
    written = [(op.type, key) for op in block.ops for key, names in op.outputs.items() if name in names]
    return [VAR_DEVIATIONS[place][0] for place in written if place in VAR_DEVIATIONS]


def deviations(before: Golden, block: ir.Block) -> Iterator[tuple[str, str]]:
    """The entries of `VAR_DEVIATIONS` without which a variable of a block would differ."""
    expected = {var["n"]: _golden_var(var) for var in before["vars"]}
    for name, old in expected.items():
        var = block.vars.get(name)
        new = _our_var(var) if var is not None else old
        for op in block.ops:
            places = [(op.type, key) for key, names in op.outputs.items() if forward_of(name) in names]
            yield from (at for at in places if at in VAR_DEVIATIONS and new != old and _differ(old, new, at))


def _differ(old: Golden, new: Golden, at: tuple[str, str]) -> bool:
    field = VAR_DEVIATIONS[at][0]
    return bool(old[field] != new[field])


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
        # the startup program holds a distributed parameter as the table that it makes
        "t": "LOD_TENSOR" if isinstance(var, ir.Parameter) and var.is_distributed else var.kind.name,
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
