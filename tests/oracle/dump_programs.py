"""Programs of snippets in the goldens' form, by real Fluid 1.8.5; for the Python in which it is installed. Reads
``{id: text}`` from standard input, writes ``{id: {main, startup, extra}}``; what `record_programs.py` starts.
"""

import json
import sys
import tempfile

import numpy as np
import paddle.fluid as fluid
from paddle.fluid import framework

TYPES = {number: name for name, number in fluid.proto.framework_pb2.VarType.Type.items()}
KINDS = ("LOD_TENSOR", "SELECTED_ROWS", "LOD_TENSOR_ARRAY")
DTYPES = {"FP16": "float16", "FP32": "float32", "FP64": "float64", "BOOL": "bool"}


def main():
    texts = json.load(sys.stdin)
    found = {}
    for name, text in texts.items():
        print(name, file=sys.stderr)
        found[name] = programs(text)
    json.dump(found, sys.stdout)


def programs(text):
    main, startup = fluid.Program(), fluid.Program()
    names = {"fluid": fluid, "np": np, "TMP": tempfile.mkdtemp()}
    framework._name_scope = framework.NameScope()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        exec(compile(text, "<snippet>", "exec"), names)
    extra = {key: shown(program) for key, program in names.get("extra", {}).items()}
    return {"main": shown(main), "startup": shown(startup), "extra": extra}


def shown(program):
    desc = fluid.proto.framework_pb2.ProgramDesc()
    desc.ParseFromString(program.desc.serialize_to_string())
    blocks = []
    for block, content in zip(program.blocks, desc.blocks):  # noqa: B905 - Python 3.7
        variables = sorted((variable(v) for v in block.vars.values()), key=lambda v: v["n"])
        ops = [op(item) for item in content.ops]
        parent, forward = content.parent_idx, content.forward_block_idx
        blocks.append({"idx": content.idx, "parent": parent, "forward": forward, "ops": ops, "vars": variables})
    return {"random_seed": program.random_seed, "blocks": blocks}


def op(desc):
    attrs = {attr.name: attribute(attr) for attr in desc.attrs if attr.name != "op_callstack"}
    inputs = {item.parameter: list(item.arguments) for item in desc.inputs if item.arguments}
    outputs = {item.parameter: list(item.arguments) for item in desc.outputs if item.arguments}
    return {"type": desc.type, "in": inputs, "out": outputs, "attrs": attrs}


FIELDS = ("i", "f", "s", "ints", "floats", "strings", "b", "bools", "block_idx", "l", "blocks_idx", "longs")


def attribute(attr):
    field = FIELDS[attr.type]
    value = getattr(attr, field)
    if field == "block_idx":
        return {"block": value}
    if field == "blocks_idx":
        return {"blocks": list(value)}
    if field == "f":
        return short(value)
    if field == "floats":
        return [short(item) for item in value]
    return value if field in ("i", "s", "b", "l") else list(value)


def short(value):
    return float(str(np.float32(value)))


def variable(var):
    kind = TYPES[int(var.type)]
    found = {"n": var.name, "t": kind}
    if kind in KINDS:
        dtype = TYPES[int(var.dtype)]
        found.update(
            dt=DTYPES.get(dtype, dtype.lower()), s=list(var.shape), lod=var.lod_level if kind != "SELECTED_ROWS" else 0
        )
    found.update(p=var.persistable, sg=var.stop_gradient, data=var.is_data, param=isinstance(var, framework.Parameter))
    if found["param"]:
        found.update(trainable=var.trainable, lr=var.optimize_attr["learning_rate"])
    return found


if __name__ == "__main__":
    main()
