"""Run by a Python that has paddlepaddle 1.8.5: ``FOLDER NAME...``; trains programs of ours, prints their results as JSON.

Of each NAME there are the bytes of two programs, the values to start from, a batch, and how often to run it for what.
"""

import json
import sys
from pathlib import Path

import numpy as np
import paddle.fluid as fluid


def train(folder):
    plan = json.loads((folder / "plan.json").read_text())
    main, startup = (fluid.Program.parse_from_string((folder / name).read_bytes()) for name in ("main", "startup"))
    place, scope = fluid.CPUPlace(), fluid.Scope()
    with fluid.scope_guard(scope), np.load(str(folder / "values.npz")) as values:
        exe = fluid.Executor(place)
        exe.run(startup)
        for name, value in values.items():
            scope.find_var(name).get_tensor().set(value, place)
        feed = {}
        with np.load(str(folder / "batch.npz")) as batch:
            for name, value in batch.items():
                feed[name] = fluid.LoDTensor()
                feed[name].set(value, place)
                if name in plan["lengths"]:
                    feed[name].set_recursive_sequence_lengths(plan["lengths"][name])
        return [[value.item() for value in exe.run(main, feed, plan["fetch"])] for _ in range(plan["steps"])]


results = {}
for name in sys.argv[2:]:
    try:
        results[name] = train(Path(sys.argv[1], name))
    except Exception as error:  # of which type, Fluid decides
        results[name] = str(error)[-1500:]
print(json.dumps(results))
