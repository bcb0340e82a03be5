"""Writes the public names of the objects that scripts hold; for the Python in which Fluid 1.8.5 is installed:

FLUID_PYTHON tests/oracle/record_attributes.py tests/fluid_values/attributes.json

`tests/test_fluid_attributes.py` makes the same objects of ours by `objects`.
"""

import json
import sys
from pathlib import Path

import numpy as np


def main(path):
    import paddle.fluid as fluid
    from paddle.fluid.transpiler import ps_dispatcher

    found = objects(fluid, ps_dispatcher)
    lines = [f"{json.dumps(name)}:{json.dumps(names)}" for name, names in sorted(found.items())]
    Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def objects(fluid, ps_dispatcher):
    """The public names of each object."""
    program, startup, place = fluid.Program(), fluid.Program(), fluid.CPUPlace()
    with fluid.program_guard(program, startup):
        x = fluid.data("x", [None, 2])
        loss = fluid.layers.mean(fluid.layers.fc(x, 1))
        optimizer = fluid.optimizer.SGD(0.1)
        optimizer.minimize(loss)
        loaders = [fluid.io.DataLoader.from_generator([x], 4), fluid.io.PyReader([x], 4)]
    block, exe = program.global_block(), fluid.Executor(place)
    found = {
        "Program": program,
        "Block": block,
        "Operator": block.ops[0],
        "Variable": loss,
        "Parameter": program.all_parameters()[0],
        "Optimizer": optimizer,
        "Executor": exe,
        "Scope": fluid.core.Scope(),
        "LoDTensor": fluid.create_lod_tensor(np.zeros((2, 1), "float32"), [[1, 1]], place),
        "LoDTensorArray": fluid.LoDTensorArray(),
        "DataFeeder": fluid.DataFeeder([x], place),
        "DataLoader": loaders[0],
        "PyReader": loaders[1],
        "InMemoryDataset": fluid.DatasetFactory().create_dataset("InMemoryDataset"),
        "QueueDataset": fluid.DatasetFactory().create_dataset("QueueDataset"),
        "DistributeTranspiler": fluid.DistributeTranspiler(),
        "DistributeTranspilerConfig": fluid.DistributeTranspilerConfig(),
        "CompiledProgram": fluid.CompiledProgram(program),
        "BuildStrategy": fluid.BuildStrategy(),
        "ExecutionStrategy": fluid.ExecutionStrategy(),
        "ParamAttr": fluid.ParamAttr(),
        "RoundRobin": ps_dispatcher.RoundRobin(["a"]),
        "HashName": ps_dispatcher.HashName(["a"]),
    }
    with fluid.scope_guard(fluid.core.Scope()):
        exe.run(startup)
        found["scope variable"] = fluid.global_scope().find_var(program.all_parameters()[0].name)
        found["scope tensor"] = found["scope variable"].get_tensor()
    return {name: sorted(n for n in dir(thing) if not n.startswith("_")) for name, thing in found.items()}


if __name__ == "__main__":
    main(sys.argv[1])
