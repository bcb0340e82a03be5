"""Runs cases under real Fluid 1.8.5 and writes one golden file per op; for the Python in which Fluid is installed:

    python -m tests.oracle.op_cases roll flip | FLUID_PYTHON tests/oracle/record_ops.py tests/fluid_values

Gradients are those of the outputs weighted by numbers that follow from their positions.
"""

import json
import sys
from pathlib import Path

import numpy as np
import paddle.fluid as fluid


def main(folder):
    found = {}
    for case in json.load(sys.stdin):
        result = recorded(case)
        if result is not None:
            found.setdefault(case["op"], []).append(result)
    for op, cases in found.items():
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        Path(folder, op + ".json").write_text('{"op":"' + op + '","cases":[\n' + lines + "\n]}\n")


def recorded(case):
    wanted, counts, aux = (case.pop(key) for key in ("grads", "n_outputs", "aux"))
    try:
        outputs, _ = run(case, counts, None, ())
    except Exception as error:
        print(case["id"], "refused:", str(error).strip().splitlines()[-1][:300], file=sys.stderr)
        return None
    case["n_outputs"] = {name: count for name, count in counts.items() if count != 1}
    case["outputs"] = {name: values for name, values in outputs.items() if name not in aux}
    if wanted:
        weights = {name: [weight(value) for value in values] for name, values in case["outputs"].items()}
        try:
            _, grads = run(case, counts, weights, wanted)
            case["grad"] = {"out_grads": weights, "in_grads": grads}
        except Exception as error:
            print(case["id"], "no gradient:", str(error).strip().splitlines()[-1][:300], file=sys.stderr)
    return case


def weight(value):
    if not value["d"].startswith("float"):
        return None
    count = len(value["v"])
    numbers = (0.5 + np.arange(count) * 7 % 11 / 10).astype(value["d"])
    return dict(value, v=[float(str(number)) for number in numbers])


def run(case, counts, weights, wanted):
    """(outputs, gradients of the inputs ``wanted``)."""
    main, feed = fluid.Program(), {}
    with fluid.program_guard(main, fluid.Program()):
        block = main.global_block()
        inputs = {
            name: [declared(block, feed, f"{name}_{i}", value) for i, value in enumerate(values)]
            for name, values in case["inputs"].items()
        }
        outputs = {
            name: [block.create_var(name=f"{name}_out{i}") for i in range(count)] for name, count in counts.items()
        }
        attrs = dict(case["attrs"])
        block.append_op(type=case["op"], inputs=inputs, outputs=outputs, attrs=attrs)
        fetch = [var for values in outputs.values() for var in values]
        grads = []
        if weights:
            targets, given = [], []
            for name, values in weights.items():
                for i, value in enumerate(values):
                    if value is not None:
                        targets.append(outputs[name][i])
                        given.append(declared(block, feed, f"w_{name}_{i}", value))
                        given[-1].desc.set_shape(outputs[name][i].shape)  # unknown dimensions must be so on both
            asked = [var for name in wanted for var in inputs[name]]
            grads = fluid.gradients(targets, asked, given)
        executor = fluid.Executor(fluid.CPUPlace())
        got = executor.run(
            main,
            feed=feed,
            fetch_list=[v.name for v in fetch + [g for g in grads if g is not None]],
            return_numpy=False,
        )
    values = iter(got)
    made = {name: [tensor(next(values)) for _ in range(count)] for name, count in counts.items()}
    in_grads = iter([None if grad is None else tensor(next(values)) for grad in grads])
    return made, {name: [next(in_grads) for _ in inputs[name]] for name in (wanted if weights else ())}


def declared(block, feed, name, value):
    array = np.array([float(v) if isinstance(v, str) else v for v in value["v"]], value["d"]).reshape(value["s"])
    lod = value.get("lod") or []
    var = block.create_var(name=name, shape=array.shape, dtype=value["d"], lod_level=len(lod), stop_gradient=False)
    made = fluid.LoDTensor()
    made.set(array, fluid.CPUPlace())
    if lod:
        made.set_recursive_sequence_lengths(lod)
    feed[name] = made
    return var


def tensor(value):
    if not value._is_initialized():
        return {"d": None, "s": list(value.shape()), "v": None}
    array = np.array(value)
    made = {"d": array.dtype.name, "s": list(array.shape), "v": numbers(array)}
    lod = value.recursive_sequence_lengths()
    return dict(made, lod=lod) if lod else made


def numbers(array):
    if array.dtype.kind != "f":
        return array.reshape(-1).tolist()
    return [float(str(number)) if np.isfinite(number) else str(number) for number in array.reshape(-1)]


if __name__ == "__main__":
    main(sys.argv[1])
