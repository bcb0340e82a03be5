"""How long it takes until a job goes on: ``python -m benchmarks.recovery``.

A server whose shard has 200 MB is killed and started again; then a trainer of two leaves, and one is killed and not started
again, in sync mode. Prints seconds; the second part as multiples of the lease.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from benchmarks.environment import REPO, prepare
from benchmarks.processes import free_endpoints

if TYPE_CHECKING:
    import fluidlite as fluid
    from fluidlite.rpc.port import TrainerPort

_WIDTH: Final = 16
#: a row has its values, an accumulator of the same size, and its key
_ROW_BYTES: Final = 2 * 4 * _WIDTH + 8
_BATCH: Final = 100_000
_WITHIN: Final = 5.0
_LEASES: Final = 1.5


def transpiled(endpoint: str, trainers: int, folder: str) -> fluid.DistributeTranspiler:
    """A table with Adagrad and one dense parameter, on one server."""
    import fluidlite as fluid

    ids = fluid.data("ids", [None, 1], "int64")
    rows = fluid.embedding(ids, [1 << 40, _WIDTH], is_distributed=True, param_attr=fluid.ParamAttr("emb"))
    weight = fluid.layers.create_parameter([_WIDTH, 1], "float32", name="w")
    fluid.optimizer.Adagrad(0.1).minimize(fluid.layers.mean(fluid.layers.matmul(rows, weight)))
    config = fluid.DistributeTranspilerConfig(
        checkpoint_dir=f"{folder}/checkpoints" if folder else "", log_dir=f"{folder}/log" if folder else ""
    )
    transpiler = fluid.DistributeTranspiler(config)
    transpiler.transpile(0, pservers=endpoint, trainers=trainers)
    return transpiler


def serve(endpoint: str, trainers: int, folder: str) -> None:
    """The server's process."""
    import fluidlite as fluid

    program, startup = transpiled(endpoint, trainers, folder).get_pserver_programs(endpoint)
    exe = fluid.Executor()
    exe.run(startup)
    exe.run(program)


@contextmanager
def server(endpoint: str, trainers: int, folder: str = "", **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A running server; killed at the end."""
    command = [sys.executable, "-m", "benchmarks.recovery", "--serve", endpoint, "--trainers", str(trainers)]
    process = subprocess.Popen([*command, "--folder", folder], cwd=REPO, env={**os.environ, **env})  # noqa: S603
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def port(trainer: int, trainers: int) -> TrainerPort:
    """A trainer's port that is patient with a server that is away."""
    from fluidlite.rpc.client import grpc_port
    from fluidlite.rpc.retry import Patience

    return grpc_port(trainer=trainer, trainers=trainers, patience=Patience(retry=60.0))


def measure_server(megabytes: int) -> float:
    """Seconds from the kill of a server to its first answer after its restart."""
    import numpy as np

    from fluidlite.protocol.messages import DenseRequest, Gradient

    endpoint = free_endpoints(1)[0]
    rows = megabytes * 2**20 // _ROW_BYTES
    with TemporaryDirectory() as folder:
        mine = port(0, 1)
        with server(endpoint, 1, folder) as process:
            for first in range(0, rows, _BATCH):
                ids = np.arange(first, min(rows, first + _BATCH))
                mine.stage(Gradient(endpoint, "emb@GRAD", np.ones((len(ids), _WIDTH), np.float32), ids, 1 << 40))
                version = mine.commit([endpoint]).versions[endpoint]
            began = time.monotonic()
            process.kill()
            process.wait()
        with server(endpoint, 1, folder, FLUIDLITE_RESTARTS="1"):
            mine.pull([DenseRequest(endpoint, "w", current=True)])
            seconds = time.monotonic() - began
            mine.stage(Gradient(endpoint, "emb@GRAD", np.ones((1, _WIDTH), np.float32), np.zeros(1, np.int64), 1 << 40))
            assert mine.commit([endpoint]).versions[endpoint] == version + 1, "the server lost steps"
            mine.complete()
    return seconds


def measure_trainer(lease: float, *, killed: bool) -> float:
    """Seconds that a step waits when the other trainer leaves, or is killed, instead of giving its own."""
    import numpy as np

    from fluidlite.protocol.messages import DenseRequest, Gradient

    endpoint = free_endpoints(1)[0]
    seconds = {"FLUIDLITE_LEASE_SECONDS": str(lease), "FLUIDLITE_GRACE_SECONDS": str(lease)}
    with server(endpoint, 2, **seconds):
        mine = port(0, 2)
        mine.pull([DenseRequest(endpoint, "w")])
        command = [sys.executable, "-m", "benchmarks.recovery", "--meet", endpoint]
        other = subprocess.Popen(command, cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
        assert other.stdout is not None
        other.stdout.readline()
        began = time.monotonic()
        if killed:
            other.send_signal(signal.SIGKILL)
        else:
            other.communicate(b"leave\n")
        mine.stage(Gradient(endpoint, "w@GRAD", np.ones((_WIDTH, 1), np.float32)))
        _ = mine.commit([endpoint]).versions
        waited = time.monotonic() - began
        mine.complete()
        other.kill()
        other.communicate()
    return waited


def meet(endpoint: str) -> None:
    """The other trainer: comes, and leaves when told to."""
    from fluidlite.protocol.messages import DenseRequest

    other = port(1, 2)
    other.pull([DenseRequest(endpoint, "w")])
    print("met", flush=True)
    sys.stdin.readline()
    other.complete()


def main(argv: Sequence[str] | None = None) -> int:
    """All figures, or one process of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--lease", type=float, default=4.0, help="seconds")
    for hidden in ("serve", "meet", "folder"):
        parser.add_argument(f"--{hidden}", default="", help=argparse.SUPPRESS)
    parser.add_argument("--trainers", type=int, default=1, help=argparse.SUPPRESS)
    args: Any = parser.parse_args(argv)
    if args.serve:
        serve(args.serve, args.trainers, args.folder)
        return 0
    if args.meet:
        meet(args.meet)
        return 0
    prepare()
    back = measure_server(args.megabytes)
    print(f"server with {args.megabytes} MB killed: serving again after {back:.2f} s (at most {_WITHIN:g})", flush=True)
    waits = {how: measure_trainer(args.lease, killed=how == "killed") / args.lease for how in ("left", "killed")}
    for how, leases in waits.items():
        print(f"trainer {how}: the others go on after {leases:.2f} × the lease (at most {_LEASES:g})", flush=True)
    return int(back > _WITHIN or max(waits.values()) > _LEASES)


if __name__ == "__main__":
    sys.exit(main())
