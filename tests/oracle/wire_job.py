"""A job that runs under Fluid 1.8.5 and under fluidlite alike, in the manner of scripts for Fluid:
``python wire_job.py pserver|trainer INDEX ENDPOINTS TRAINERS KIND STEPS``. A trainer prints its losses as JSON.

With ``WIRE_JOB_PROGRAMS`` naming a Python, programs are those that it transpiles (``python wire_job.py programs-of-trainer|programs-of-pserver ...``).
"""

import base64
import json
import os
import subprocess
import sys

import numpy as np

try:
    import paddle.fluid as fluid
except ImportError:
    import fluidlite as fluid

#: rows of the embedding and units of the hidden layer: both are cut in two by the smallest block that Fluid allows
ROWS, WIDTH, UNITS, BATCH = 2048, 8, 512, 8
PADDING = 3


def build(kind):
    """The loss of a small regression; its optimizer is appended. ``kind``: "dense", or "sparse" and "async" with an
    embedding; with "_decay" behind it, the learning rate has a schedule."""
    label = fluid.layers.data(name="label", shape=[1], dtype="float32")
    if kind.startswith("dense"):
        x = fluid.layers.data(name="x", shape=[32], dtype="float32")
    else:
        ids = fluid.layers.data(name="ids", shape=[1], dtype="int64", lod_level=1)
        other = fluid.layers.data(name="other", shape=[1], dtype="int64")
        table = fluid.ParamAttr(name="emb", initializer=fluid.initializer.Constant(0.1))
        looked_up = [
            fluid.layers.embedding(name, size=[ROWS, WIDTH], is_sparse=True, padding_idx=PADDING, param_attr=table)
            for name in (ids, other)
        ]
        x = fluid.layers.concat([fluid.layers.sequence_pool(looked_up[0], "sum"), looked_up[1]], axis=1)
        x = fluid.layers.concat([x, x], axis=1)
    first = fluid.ParamAttr(name="fc_w", initializer=fluid.initializer.Constant(0.02))
    hidden = fluid.layers.fc(x, UNITS, act="tanh", param_attr=first, bias_attr=fluid.ParamAttr(name="fc_b"))
    second = fluid.ParamAttr(name="out_w", initializer=fluid.initializer.Constant(0.01))
    predicted = fluid.layers.fc(hidden, 1, param_attr=second, bias_attr=fluid.ParamAttr(name="out_b"))
    loss = fluid.layers.mean(fluid.layers.square_error_cost(predicted, label))
    rate = {"dense": 0.002, "dense_decay": 0.002, "sparse": 0.005}.get(kind, 0.05)
    if kind.endswith("decay"):
        rate = fluid.layers.exponential_decay(rate, decay_steps=2, decay_rate=0.9)
    if kind == "dense":
        optimizer = fluid.optimizer.Momentum(rate, momentum=0.9)
    elif kind == "sparse":
        optimizer = fluid.optimizer.Adagrad(rate, epsilon=0.01)
    else:
        optimizer = fluid.optimizer.SGD(rate)
    optimizer.minimize(loss)
    return loss


def feed(kind, trainer, step):
    """The batch of a trainer in a step."""
    random = np.random.RandomState(100 * step + trainer)
    label = random.rand(BATCH, 1).astype("float32")
    if kind == "async":  # something to learn whatever the order of steps
        label = np.ones_like(label)
    if kind.startswith("dense"):
        return {"x": random.randint(-1, 2, (BATCH, 32)).astype("float32"), "label": label}
    lengths = random.randint(1, 4, BATCH)
    ids = random.randint(0, ROWS, (int(lengths.sum()), 1)).astype("int64")
    other = random.choice([0, PADDING, 1023, 1024, 2047], (BATCH, 1)).astype("int64")
    sequences = fluid.create_lod_tensor(ids, [[int(n) for n in lengths]], fluid.CPUPlace())
    return {"ids": sequences, "other": other, "label": label}


def transpiled(kind, trainer, endpoints, trainers):
    """(transpiler, loss), transpiled for a trainer."""
    loss = build(kind)
    config = fluid.DistributeTranspilerConfig()
    if "FLUIDLITE_WIRE" not in os.environ:
        config.wire = "fluid"  # Fluid knows no other, and does not mind
    config.sync_mode = not kind.startswith("async")
    transpiler = fluid.DistributeTranspiler(config=config)
    transpiler.transpile(trainer, pservers=endpoints, trainers=trainers, sync_mode=config.sync_mode)
    return transpiler, loss


def made(role, index, endpoints, trainers, kind):
    """(main program, startup program, name of the loss) of a trainer or server. One role per process: the programs of
    servers that Fluid makes change those of its trainers."""
    transpiler, loss = transpiled(kind, index if role == "trainer" else 0, endpoints, trainers)
    if role == "trainer":
        return transpiler.get_trainer_program(wait_port=False), fluid.default_startup_program(), loss.name
    endpoint = endpoints.split(",")[index]
    program = transpiler.get_pserver_program(endpoint)
    return program, transpiler.get_startup_program(endpoint, program), loss.name


def dump(main, startup, loss):
    """What `made` returns, as JSON."""
    programs = [base64.b64encode(program.desc.serialize_to_string()).decode() for program in (main, startup)]
    print(json.dumps([programs, loss]), flush=True)


def made_by(python, *arguments):
    """What `made` returns in another Python."""
    command = [python, __file__, "programs-of-" + arguments[0], *map(str, arguments[1:]), "0"]
    programs, loss = json.loads(subprocess.check_output(command).decode().splitlines()[-1])
    main, startup = [fluid.Program.parse_from_string(base64.b64decode(text)) for text in programs]
    return main, startup, loss


def programs_of(*arguments):
    """What `made` returns, here or as the environment says."""
    python = os.environ.get("WIRE_JOB_PROGRAMS", "")
    return made_by(python, *arguments) if python else made(*arguments)


def serve(index, endpoints, trainers, kind):
    """Be a pserver until the trainers are done (fluidlite) or the process is ended (Fluid)."""
    program, startup, _ = programs_of("pserver", index, endpoints, trainers, kind)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    exe.run(program)


def train(index, endpoints, trainers, kind, steps):
    """The losses of a trainer."""
    program, startup, loss = programs_of("trainer", index, endpoints, trainers, kind)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    losses = []
    for step in range(steps):
        (value,) = exe.run(program, feed=feed(kind, index, step), fetch_list=[loss])
        losses.append(float(np.asarray(value).ravel()[0]))
    exe.close()
    return losses


if __name__ == "__main__":
    role, number, servers, count, which, length = sys.argv[1:7]
    if role == "pserver":
        serve(int(number), servers, int(count), which)
    elif role == "trainer":
        print(json.dumps(train(int(number), servers, int(count), which, int(length))), flush=True)
    else:
        dump(*made(role.split("-")[-1], int(number), servers, int(count), which))
