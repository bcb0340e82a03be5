"""The peers' job by fluidlite: ``python -m benchmarks.fluidlite_ctr [options]``, one line of JSON on stdout.

Job ``ctr``: 26 id slots and 13 numbers, one shared table of rows, hidden layers, sigmoid cross entropy. Job ``embed``:
pull and push of unique rows. ``--mode ps`` starts servers and trainers as processes on this machine.
``--extra dist=0``: the embedding is a dense parameter with sparse gradients, not an auto-grown table.
``--extra dense=trainer``: dense parameters stay on the only trainer. ``--extra log=1``: servers keep a log of what they
acknowledge; ``two_phase=0``: a step counts on each server at once.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from benchmarks.processes import Job, free_endpoints, mark, mark_result, timed

if TYPE_CHECKING:
    import fluidlite as fluid

MODULE: Final = "benchmarks.fluidlite_ctr"
_TIMEOUT: Final = 300.0
#: options that only the process that starts the others uses
_OWN: Final = ("role", "index", "endpoints", "log")


def parser() -> argparse.ArgumentParser:
    """The options of the peers' scripts."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--workload", choices=["ctr", "embed"], default="ctr")
    made.add_argument("--mode", choices=["local", "ps"], default="local")
    made.add_argument("--sync", choices=["async", "sync", "geo", "half"], default="async")
    made.add_argument("--servers", type=int, default=1)
    made.add_argument("--trainers", type=int, default=1)
    made.add_argument("--steps", type=int, default=200, help="timed steps of each trainer")
    made.add_argument("--warmup", type=int, default=20)
    made.add_argument("--batch", type=int, default=512)
    made.add_argument("--rows", type=int, default=10000, help="embed: unique rows a step")
    made.add_argument("--vocab", type=int, default=1_000_000)
    made.add_argument("--dim", type=int, default=16)
    made.add_argument("--hidden", default="400,400")
    made.add_argument("--optimizer", choices=["sgd", "adagrad", "adam"], default="sgd")
    made.add_argument("--lr", type=float, default=0.01)
    made.add_argument("--threads", type=int, default=1, help="threads a process; 0: as many as the libraries like")
    made.add_argument("--split-slots", action="store_true", help="26 id inputs and look-ups instead of one")
    made.add_argument("--feed", choices=["numpy", "dataset"], default="numpy", help="dataset: from MultiSlot text")
    made.add_argument("--data", default="", help="an .npz file with ids, dense, label; default: made when missing")
    made.add_argument("--profile", action="store_true", help="also report milliseconds a step by type of op")
    made.add_argument("--trace", default="", help="with --profile: file for a trace of the first trainer's ops")
    made.add_argument("--extra", default="", help="k=v,k=v; known: dist, two_phase, log=0|1, dense=trainer|server")
    for hidden in _OWN:
        made.add_argument(f"--{hidden}", default="", help=argparse.SUPPRESS)
    return made


def build(args: argparse.Namespace) -> fluid.Variable:
    """Append the model to the default programs; the loss."""
    import fluidlite as fluid
    from benchmarks.data import NUMBERS

    if args.workload == "embed":
        return fluid.layers.mean(lookup(args, fluid.data("ids", [None, 1], "int64")))
    inputs = id_inputs(args)
    numbers = fluid.data("dense", [None, NUMBERS], "float32")
    label = fluid.data("label", [None, 1], "float32")
    embedded = [fluid.layers.reshape(lookup(args, ids), [-1, ids.shape[1] * args.dim]) for ids in inputs]
    hidden = fluid.layers.concat([*embedded, numbers], axis=1)
    for size in map(int, args.hidden.split(",")):
        hidden = fluid.layers.fc(hidden, size, act="relu")
    logit = fluid.layers.fc(hidden, 1)
    return fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logit, label))


def feeds(args: argparse.Namespace, trainer: int) -> Iterator[dict[str, Any]]:
    """Endless feeds of one trainer."""
    from benchmarks import data

    if args.workload == "embed":
        for rows in data.unique_rows(args.vocab, args.rows, trainer):
            yield {"ids": rows[:, None]}
    path = Path(args.data) if args.data else data.data_file(args.vocab)
    for ids, dense, label in data.batches(path, args.batch, trainer, args.trainers):
        yield id_feeds(args, ids) | {"dense": dense, "label": label}


def asked_ahead(exe: fluid.Executor, stream: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The feeds, each after the servers were asked for the rows of the one behind it."""
    feed = next(stream)
    for following in stream:
        exe.prefetch(feed=following)
        yield feed
        feed = following


def id_inputs(args: argparse.Namespace) -> list[fluid.Variable]:
    """The id inputs, [B, 1] each of 26, or one [B, 26]."""
    import fluidlite as fluid
    from benchmarks.data import SLOTS

    if not args.split_slots:
        return [fluid.data("ids", [None, SLOTS], "int64")]
    return [fluid.data(f"C{slot}", [None, 1], "int64") for slot in range(SLOTS)]


def id_feeds(args: argparse.Namespace, ids: Any) -> dict[str, Any]:
    """(B, 26) ids as a feed."""
    if not args.split_slots:
        return {"ids": ids}
    return {f"C{slot}": ids[:, slot : slot + 1] for slot in range(ids.shape[1])}


def lookup(args: argparse.Namespace, ids: fluid.Variable) -> fluid.Variable:
    """Rows of the one table: ids' shape and the width."""
    import fluidlite as fluid

    uniform = fluid.initializer.Uniform(-0.01, 0.01)
    return fluid.embedding(
        ids,
        [args.vocab, args.dim],
        is_sparse=True,
        is_distributed="dist=0" not in args.extra,
        param_attr=fluid.ParamAttr("emb", initializer=uniform),
    )


def minimize(args: argparse.Namespace, loss: fluid.Variable) -> None:
    """Append backward and updates; Adam moves only rows that have a gradient."""
    import fluidlite as fluid

    optimizer: fluid.optimizer.Optimizer
    if args.optimizer == "sgd":
        optimizer = fluid.optimizer.SGD(args.lr)
    elif args.optimizer == "adagrad":
        optimizer = fluid.optimizer.Adagrad(args.lr)
    else:
        optimizer = fluid.optimizer.Adam(args.lr, lazy_mode=True)
    optimizer.minimize(loss)


def play(args: argparse.Namespace) -> None:
    """One process of the job."""
    import fluidlite as fluid

    fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 1
    index = int(args.index)
    loss = build(args)
    minimize(args, loss)
    exe = fluid.Executor(fluid.CPUPlace())
    if args.role in ("server", "trainer"):
        transpiler = fluid.DistributeTranspiler(config_of(args))
        trainer = index if args.role == "trainer" else 0
        transpiler.transpile(trainer, pservers=args.endpoints, trainers=args.trainers, sync_mode=args.sync == "sync")
        if args.role == "server":
            program, startup = transpiler.get_pserver_programs(args.endpoints.split(",")[index])
            exe.run(startup)
            mark("serving")
            exe.run(program)
            mark_result({"rows": rows_held()})
            return
    exe.run(fluid.default_startup_program())
    ahead = args.role == "trainer" and args.sync == "async"
    stream = asked_ahead(exe, feeds(args, index)) if ahead else feeds(args, index)
    keep = args.workload == "ctr"

    def step() -> float | None:
        (value,) = exe.run(feed=next(stream), fetch_list=[loss])
        return float(value.reshape(-1)[0]) if keep else None

    if args.feed == "dataset":
        from benchmarks.dataset_feed import timed_dataset

        result = timed_dataset(args, exe, index)
    else:
        result = timed(step, args.warmup, args.steps)
    if args.profile:
        result["breakdown"] = breakdown(step, args.trace if index == 0 else "")
    exe.close()
    mark_result(result)


def config_of(args: argparse.Namespace) -> fluid.DistributeTranspilerConfig:
    """How pushes count; in geo mode trainers exchange every ten steps, as the peers do."""
    import fluidlite as fluid

    return fluid.DistributeTranspilerConfig(
        dense_on_trainer="dense=trainer" in args.extra,
        sync_mode=args.sync == "sync",
        half_async=args.sync == "half",
        geo_sgd_mode=args.sync == "geo",
        geo_sgd_need_push_nums=10,
        two_phase_commit="two_phase=0" not in args.extra,
        log_dir=args.log,
    )


def breakdown(step: Callable[[], object], trace: str, steps: int = 50) -> dict[str, float]:
    """Milliseconds of a step by type of op, the most first, from some more steps."""
    from fluidlite import profiler

    with profiler.profile(trace or None) as report:
        for _ in range(steps):
            step()
    return {total.op_type: total.seconds * 1e3 / steps for total in report.totals()}


def rows_held() -> int:
    """Rows of this server's table; 0 where the embedding is a dense parameter."""
    import fluidlite as fluid
    from fluidlite.values.sparse_table import SparseTable

    table = fluid.global_scope().get("emb")
    return len(table) if isinstance(table, SparseTable) else 0


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Start the processes of the job and wait; the line of JSON as a dictionary."""
    local = args.mode == "local"
    servers, trainers = (0, 1) if local else (args.servers, args.trainers)
    job = Job(trainers)
    endpoints = ",".join(free_endpoints(servers))
    with TemporaryDirectory() as folder:
        argv = child_options(args, endpoints, folder if "log=1" in args.extra else "")
        for index in range(servers):
            job.start("server", index, MODULE, argv, args.threads)
        for index in range(trainers):
            job.start("local" if local else "trainer", index, MODULE, argv, args.threads)
        ok = job.finish(_TIMEOUT)
    given = {key: value for key, value in vars(args).items() if key not in (*_OWN, "data")}
    line = {"system": "fluidlite", "version": _version(), **given, "servers": servers, "trainers": trainers, "ok": ok}
    line["sync"] = None if local else args.sync
    line["unit"] = "examples/s" if args.workload == "ctr" else "rows/s (pull+push)"
    if ok:
        return line | job.report(args.batch if args.workload == "ctr" else args.rows, args.steps)
    return line | {"rcs": [(child.name, child.process.returncode) for child in job.servers + job.workers]}


def child_options(args: argparse.Namespace, endpoints: str, log: str) -> list[str]:
    """The options that this process was given, for its children."""
    options = ["--endpoints", endpoints] if endpoints else []
    options += ["--log", log] if log else []
    for key, value in vars(args).items():
        flag = f"--{key.replace('_', '-')}"
        if key in _OWN or value in ("", False):
            continue
        options += [flag] if value is True else [flag, str(value)]
    return options


def _version() -> str:
    from importlib import metadata

    return f"{metadata.version('fluidlite')} py{platform.python_version()}"


def main() -> None:
    """The job, or one process of it."""
    args = parser().parse_args()
    if args.role:
        play(args)
        return
    if args.workload == "ctr" and not args.data:
        from benchmarks.data import data_file

        args.data = str(data_file(args.vocab))
    line = run(args)
    print(json.dumps(line), flush=True)
    sys.exit(not line["ok"])


if __name__ == "__main__":
    main()
