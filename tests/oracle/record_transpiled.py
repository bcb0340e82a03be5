"""Transpiles jobs with real Fluid 1.8.5, runs them as processes, and writes programs and losses to a folder:

    FLUID_PYTHON tests/oracle/record_transpiled.py tests/fluid_values/transpiled [JOB.MODE ...]

A file holds the bytes of every role's programs (compressed, base64, without call stacks), what each trainer was fed, and, for modes
that run by programs alone and in one order, the losses. Servers of Fluid do not end by themselves: they are killed here.
"""

import base64
import json
import socket
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import paddle.fluid as fluid
from paddle.fluid.proto import framework_pb2
from paddle.fluid.transpiler.geo_sgd_transpiler import GeoSgdTranspiler

STEPS = 4
L = fluid.layers


def initial(*shape):
    count = int(np.prod(shape))
    values = ((np.arange(count) * 7 % 11 - 5) / 20.0).astype("float32").reshape(shape)
    return fluid.initializer.NumpyArrayInitializer(values)


def weight(name, *shape):
    return fluid.ParamAttr(name=name, initializer=initial(*shape))


def dense():
    """A parameter that is cut in two, momentum, regularisation."""
    x, y = L.data("x", [100]), L.data("y", [1])
    h = L.fc(
        x, 200, act="tanh", param_attr=fluid.ParamAttr(name="w", initializer=fluid.initializer.Uniform(-0.1, 0.1, 7))
    )
    p = L.fc(h, 1, param_attr=fluid.ParamAttr(name="v", initializer=fluid.initializer.Constant(0.01)))
    loss = L.mean(L.square_error_cost(p, y))
    fluid.optimizer.Momentum(0.01, 0.9, regularization=fluid.regularizer.L2Decay(0.1)).minimize(loss)
    return loss


def adam():
    x, y = L.data("x", [3]), L.data("y", [1])
    p = L.fc(L.fc(x, 4, act="sigmoid", param_attr=weight("w", 3, 4)), 1, param_attr=weight("v", 4, 1))
    loss = L.mean(L.square_error_cost(p, y))
    fluid.optimizer.Adam(0.1).minimize(loss)
    return loss


def schedule():
    """A schedule with branches."""
    x, y = L.data("x", [3]), L.data("y", [1])
    loss = L.mean(L.square_error_cost(L.fc(x, 1, param_attr=weight("w", 3, 1)), y))
    fluid.optimizer.SGD(L.piecewise_decay([1, 3], [0.1, 0.01, 0.05])).minimize(loss)
    return loss


def warmup():
    """A schedule whose result is a temporary."""
    x, y = L.data("x", [3]), L.data("y", [1])
    loss = L.mean(L.square_error_cost(L.fc(x, 1, param_attr=weight("w", 3, 1)), y))
    fluid.optimizer.SGD(L.noam_decay(4, 3)).minimize(loss)
    return loss


def shared():
    """Two lookups of one parameter that is cut in two, one of sequences, with a padding id."""
    one, many, y = L.data("one", [1], dtype="int64"), L.data("many", [1], dtype="int64", lod_level=1), L.data("y", [1])
    attr = fluid.ParamAttr(name="emb", initializer=fluid.initializer.Uniform(-0.5, 0.5, 3))
    found = [L.embedding(ids, [2100, 8], is_sparse=True, param_attr=attr, padding_idx=7) for ids in (one, many)]
    h = L.concat([found[0], L.sequence_pool(found[1], "sum")], 1)
    loss = L.mean(L.sigmoid_cross_entropy_with_logits(L.fc(h, 1, param_attr=weight("w", 16, 1)), y))
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    return loss


def two_tables():
    """Parameters that are fetched by row, each whole on one server."""
    one, other, y = L.data("one", [1], dtype="int64"), L.data("other", [1], dtype="int64"), L.data("y", [1])
    a = L.embedding(one, [50, 4], is_sparse=True, param_attr=weight("a", 50, 4))
    b = L.embedding(other, [30, 2], is_sparse=True, param_attr=weight("b", 30, 2))
    loss = L.mean(L.square_error_cost(L.fc(L.concat([a, b], 1), 1, param_attr=weight("w", 6, 1)), y))
    fluid.optimizer.SGD(0.2).minimize(loss)
    return loss


def any_shape():
    """A lookup of ids without a last dimension of one, which Fluid itself fetches in another shape."""
    ids, y = fluid.data("ids", [None, 2], "int64"), L.data("y", [1])
    rows = fluid.embedding(ids, [50, 4], is_sparse=True, param_attr=weight("a", 50, 4))
    loss = L.mean(L.square_error_cost(L.fc(rows, 1, num_flatten_dims=1, param_attr=weight("w", 8, 1)), y))
    fluid.optimizer.SGD(0.2).minimize(loss)
    return loss


JOBS = {job.__name__: job for job in (dense, adam, schedule, warmup, shared, two_tables, any_shape)}
#: mode -> (trainers, servers, whether it is run; "local": without servers)
MODES = {
    "sync": (2, 2, True),
    "sync3": (3, 2, True),
    "sync1": (1, 2, "local"),
    "noslice": (2, 2, True),
    "async": (1, 2, True),
    "dc_asgd": (1, 2, False),
    "async_rt": (2, 2, False),
    "half_async": (2, 2, False),
    "geo": (2, 2, False),
}
WANTED = {
    "dense": ["sync", "sync3", "noslice", "async", "dc_asgd", "async_rt", "geo"],
    "adam": ["sync", "async"],
    "schedule": ["sync", "async", "half_async"],
    "warmup": ["sync"],
    "shared": ["sync", "sync3", "async", "async_rt", "half_async", "geo"],
    "two_tables": ["sync", "sync1", "async"],
    "any_shape": ["sync1"],
}


def config(mode):
    made = fluid.DistributeTranspilerConfig()
    made.slice_var_up = mode != "noslice"
    if mode not in ("sync", "sync1", "sync3", "noslice"):
        made.sync_mode = False
    made.enable_dc_asgd = mode == "dc_asgd"
    made.runtime_split_send_recv = mode in ("async_rt", "half_async", "geo")
    made.half_async = mode == "half_async"
    if mode == "geo":
        made.geo_sgd_mode, made.geo_sgd_need_push_nums = True, 5
    made.wait_port = False
    return made


def transpiled(job, mode, trainer, endpoints):
    """(transpiler, main, startup, loss) of one trainer."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss = JOBS[job]()
    made = config(mode)
    kind = GeoSgdTranspiler if mode == "geo" else fluid.DistributeTranspiler
    transpiler = kind(made)
    transpiler.transpile(
        trainer,
        program=main,
        pservers=",".join(endpoints),
        trainers=MODES[mode][0],
        sync_mode=made.sync_mode,
        startup_program=startup,
    )
    return transpiler, main, startup, loss


def packed(program):
    desc = framework_pb2.ProgramDesc()
    desc.ParseFromString(program.desc.serialize_to_string())
    for block in desc.blocks:
        for op in block.ops:
            kept = [attr for attr in op.attrs if attr.name not in ("op_callstack", "op_namescope")]
            del op.attrs[:]
            op.attrs.extend(sorted(kept, key=lambda attr: attr.name))
    return base64.b64encode(zlib.compress(desc.SerializeToString(), 9)).decode()


def programs(job, mode):
    trainers, servers, _ = MODES[mode]
    endpoints = [f"127.0.0.1:{6174 + index}" for index in range(servers)]
    found = {}
    for trainer in range(trainers):
        transpiler, main, startup, loss = transpiled(job, mode, trainer, endpoints)
        main = transpiler.get_trainer_program(wait_port=False)
        found[f"trainer{trainer}"] = {"main": packed(main), "startup": packed(startup)}
    for index, endpoint in enumerate(endpoints):
        transpiler, _, _, loss = transpiled(job, mode, 0, endpoints)
        main, startup = transpiler.get_pserver_programs(endpoint)
        found[f"pserver{index}"] = {"main": packed(main), "startup": packed(startup)}
    return found, loss.name


def feeds(job, trainer):
    """Per step name -> (nested values, lengths of the sequences)."""
    made = []
    for step in range(STEPS):
        start = 10 * trainer + 3 * step
        rows = 3
        batch = {"y": ([[float((start + i) % 2)] for i in range(rows)], None)}
        if job in ("shared", "two_tables"):
            batch["one"] = ([[(start * 17 + i * 13) % 40] for i in range(rows)], None)
        if job == "shared":
            batch["many"] = ([[(start + i * 401) % 2100] for i in range(5)] + [[7]], [2, 1, 3])
        if job == "any_shape":
            batch["ids"] = ([[(start + i) % 50, (start * i) % 50] for i in range(rows)], None)
        elif job == "two_tables":
            batch["other"] = ([[(start + i) % 30] for i in range(rows)], None)
        elif job != "shared":
            width = 100 if job == "dense" else 3
            x = ((np.arange(rows * width) * 5 + start) % 13 / 13.0 - 0.4).reshape(rows, width)
            batch["x"] = (np.round(x, 3).tolist(), None)
        made.append(batch)
    return made


def value(name, item):
    array = np.array(item[0], "int64" if name in ("one", "many", "other", "ids") else "float32")
    return fluid.create_lod_tensor(array, [item[1]], fluid.CPUPlace()) if item[1] else array


def run_trainer(job, mode, trainer, endpoints):
    transpiler, main, startup, loss = transpiled(job, mode, trainer, endpoints)
    main = transpiler.get_trainer_program(wait_port=False)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    for batch in feeds(job, trainer):
        (found,) = exe.run(main, {name: value(name, item) for name, item in batch.items()}, [loss])
        print(f"LOSS {found.item():.9g}", flush=True)
    exe.close()


def run_server(job, mode, index, endpoints):
    transpiler, _, _, _ = transpiled(job, mode, 0, endpoints)
    main, startup = transpiler.get_pserver_programs(endpoints[index])
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    exe.run(main)


def losses(job, mode):
    trainers, servers, _ = MODES[mode]
    holders = [socket.socket() for _ in range(servers)]
    for holder in holders:
        holder.bind(("127.0.0.1", 0))
    endpoints = [f"127.0.0.1:{holder.getsockname()[1]}" for holder in holders]
    for holder in holders:
        holder.close()

    def start(role, index):
        command = [sys.executable, str(Path(__file__).resolve()), role, job, mode, str(index), ",".join(endpoints)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tempfile.gettempdir())

    started = [start("server", index) for index in range(servers)]
    working = [start("trainer", index) for index in range(trainers)]
    try:
        outputs = [process.communicate(timeout=120)[0].decode() for process in working]
    finally:
        for process in started + working:
            process.kill()
            process.wait()
    found = [[float(line.split()[1]) for line in text.splitlines() if line.startswith("LOSS")] for text in outputs]
    if any(len(steps) != STEPS for steps in found):
        raise RuntimeError(f"{job}.{mode}: a trainer failed")
    return found


def recorded_losses(job, mode):
    runs = MODES[mode][2]
    return [local_losses(job)] if runs == "local" else losses(job, mode) if runs else None


def local_losses(job):
    """Those of one process: what one trainer is to give in sync mode, where servers of 1.8.5 abort."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss = JOBS[job]()
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        steps = [{name: value(name, item) for name, item in batch.items()} for batch in feeds(job, 0)]
        return [exe.run(main, step, [loss])[0].item() for step in steps]


def main(folder, wanted):
    for job in JOBS:
        for mode in WANTED[job]:
            if wanted and f"{job}.{mode}" not in wanted:
                continue
            found, loss = programs(job, mode)
            trainers = MODES[mode][0]
            record = {
                "job": job,
                "mode": mode,
                "loss": loss,
                "feeds": [feeds(job, trainer) for trainer in range(trainers)],
                "losses": recorded_losses(job, mode),
                "programs": found,
            }
            content = json.dumps(record, separators=(",", ":"), sort_keys=True)
            (Path(folder) / f"{job}.{mode}.json").write_text(content + "\n", encoding="utf-8")
            print(job, mode, record["losses"], flush=True)


if __name__ == "__main__":
    if sys.argv[1] in ("trainer", "server"):
        role, job, mode, index, endpoints = sys.argv[1:]
        (run_trainer if role == "trainer" else run_server)(job, mode, int(index), endpoints.split(","))
    else:
        main(sys.argv[1], sys.argv[2:])
