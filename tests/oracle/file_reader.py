"""Run by a Python that has paddlepaddle 1.8.5: ``FOLDER NAME...``; how far models and states of ours are from their examples.

Of each NAME there is a folder, NAME.pdmodel and NAME.pdiparams, and the example in NAME.npz (tests/interop/models.py).
"""

import sys
from pathlib import Path

import numpy as np
import paddle.fluid as fluid

folder, names = sys.argv[1], sys.argv[2:]


def difference(example, *files):
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        program, feeds, fetches = fluid.io.load_inference_model(files[0], exe, *files[1:])
        feed = {}
        for name in feeds:
            tensor = fluid.LoDTensor()
            tensor.set(example["in_" + name], fluid.CPUPlace())
            if "lod_" + name in example:
                tensor.set_lod(example["lod_" + name].tolist())
            feed[name] = tensor
        results = exe.run(program, feed, fetches, return_numpy=False)
    worst = 0.0
    for index, result in enumerate(results):
        expected = example[f"out_{index}"]
        assert np.array(result).shape == expected.shape, (np.array(result).shape, expected.shape)
        worst = max(worst, float(np.abs(np.array(result) - expected).max()))
    return worst


for name in names:
    example = dict(np.load(f"{folder}/{name}.npz"))
    print("difference", name, "folder", difference(example, folder + "/" + name))
    print("difference", name, "files", difference(example, folder, name + ".pdmodel", name + ".pdiparams"))

state = fluid.io.load_program_state(folder + "/state")
np.savez(folder + "/state_read.npz", **state)
x = fluid.data("x", [None, 3])
loss = fluid.layers.mean(fluid.layers.fc(x, 2))
fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
fluid.load(fluid.default_main_program(), folder + "/state", exe)
print(
    "difference state loaded",
    abs(np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor()) - state["fc_0.w_0"]).max(),
)
parsed = fluid.Program.parse_from_string(Path(folder, "state.pdmodel").read_bytes())
print("ops", *[op.type for op in parsed.global_block().ops])
