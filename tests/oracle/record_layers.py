"""Writes the programs that real Fluid 1.8.5 builds for the calls of `tests/layer_calls.py`; for the Python that has it:

FLUID_PYTHON tests/oracle/record_layers.py tests/fluid_values/layer_calls.json
"""

import json
import sys
from pathlib import Path

import numpy as np
import paddle.fluid as fluid
from paddle.fluid import core
from paddle.fluid.framework import Parameter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import layer_calls

SKIPPED = {"op_callstack", "op_role", "op_role_var", "op_namescope", "op_device"}


def main(path):
    lines = []
    for name, text in layer_calls.calls():
        try:
            lines.append(json.dumps(recorded(name, text), separators=(",", ":"), sort_keys=True))
        except Exception as error:
            print(name, "refused:", str(error).strip().splitlines()[-1][:200], file=sys.stderr)
    Path(path).write_text('{"programs":[\n' + ",\n".join(lines) + "\n]}\n")


def recorded(name, text):
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        exec(text, {"fluid": fluid, "np": np})
    return {"id": name, "main": packed(main), "startup": packed(startup)}


def packed(program):
    return {
        "random_seed": program.random_seed,
        "blocks": [
            {
                "idx": block.idx,
                "parent": block.parent_idx,
                "ops": [packed_op(op) for op in block.ops],
                "vars": sorted((packed_var(var) for var in block.vars.values()), key=lambda var: var["n"]),
            }
            for block in program.blocks
        ],
    }


def packed_op(op):
    attrs = {name: value(op.attr(name)) for name in op.attr_names if name not in SKIPPED}
    return {
        "type": op.type,
        "in": {name: op.input(name) for name in op.input_names if op.input(name)},
        "out": {name: op.output(name) for name in op.output_names if op.output(name)},
        "attrs": attrs,
    }


def value(attr):
    return attr if isinstance(attr, (bool, int, float, str, list)) else str(attr)


def packed_var(var):
    made = {"n": var.name}
    if var.type != core.VarDesc.VarType.LOD_TENSOR:
        made["t"] = str(var.type).split(".")[-1]
    try:
        dtype = fluid.data_feeder.convert_dtype(var.dtype)
    except (TypeError, ValueError):  # a dtype that no tensor has
        dtype = str(var.dtype)
    if dtype != "float32":
        made["dt"] = dtype
    made["s"] = list(var.shape)
    flags = {
        "lod": var.lod_level,
        "p": var.persistable,
        "sg": var.stop_gradient,
        "param": isinstance(var, Parameter),
        "data": var.is_data,
    }
    made.update((key, held) for key, held in flags.items() if held)
    if isinstance(var, Parameter):
        made["trainable"] = var.trainable
        made["lr"] = var.optimize_attr["learning_rate"]
    return made


if __name__ == "__main__":
    main(sys.argv[1])
