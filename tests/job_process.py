"""A small job as processes: ``python -m tests.job_process --steps N [--pause K] [--fail K]``; roles by Fluid's environment variables.

Every trainer pulls one id of a table and one dense weight, both 0 at first. Its gradients are its own number plus 1, so
what a round leaves tells whose steps were in it. Before step ``--pause`` a trainer waits for a line on stdin; step
``--fail`` is fed wrongly.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

import fluidlite as fluid
from fluidlite.launch import free_endpoints
from fluidlite.ports import TrainerPorts
from fluidlite.rpc.client import grpc_port
from fluidlite.rpc.retry import Patience
from tests.shared_data import REPO

ID = -5
#: short enough for tests, long enough for a loaded machine
PATIENCE = Patience(connect=60.0, retry=1.0)


def build() -> fluid.Variable:
    """The model; its loss is also the sum of both parameters, times the fed size."""
    ids = fluid.data("ids", [None, 1], "int64")
    size = fluid.data("size", [1], "float64")
    zeros = fluid.initializer.Constant(0.0)
    row = fluid.layers.embedding(
        ids, [10, 1], is_distributed=True, param_attr=fluid.ParamAttr("emb", zeros), dtype="float64"
    )
    weight = fluid.layers.create_parameter([1], "float64", attr=fluid.ParamAttr("w", zeros))
    loss = fluid.layers.reduce_sum((row + weight) * size)
    fluid.optimizer.SGD(1.0).minimize(loss)
    return loss


def main() -> None:
    """One process of the job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--pause", type=int, default=-1)
    parser.add_argument("--fail", type=int, default=-1)
    args = parser.parse_args()
    loss = build()
    trainer, trainers = int(os.environ.get("PADDLE_TRAINER_ID", "0")), int(os.environ["PADDLE_TRAINERS_NUM"])
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(trainer, pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"], trainers=trainers)
    if os.environ["TRAINING_ROLE"] == "PSERVER":
        program, startup = transpiler.get_pserver_programs(os.environ["ENDPOINT"])
        with fluid.Executor() as server:
            server.run(startup)
            server.run(program)
        return
    ports = TrainerPorts(
        lambda trainer, trainers: grpc_port(trainer=trainer, trainers=trainers, patience=PATIENCE),
        host=None,  # type: ignore[arg-type]
    )
    with fluid.Executor(ports=ports) as exe:
        exe.run(fluid.default_startup_program())
        feed = {"ids": np.array([[ID]]), "size": np.array([trainer + 1.0])}
        for step in range(args.steps):
            if step == args.pause:
                print("paused", flush=True)
                sys.stdin.readline()
            exe.run(feed={"idz": 0} if step == args.fail else feed, fetch_list=[loss])
        feed["size"][:] = 0.0
        values = exe.run(fluid.default_main_program().clone(for_test=True), feed, ["w", "emb.rows0"])
        print("end", float(values[0][0]), float(values[1].value[0, 0]), flush=True)


Process = subprocess.Popen[str]


@contextmanager
def job(pservers: int, trainers: Sequence[Sequence[object]]) -> Iterator[tuple[list[Process], list[Process]]]:
    """(pservers, trainers) of a running job; ``trainers``: the arguments of each. What still runs in the end is killed."""
    endpoints = free_endpoints(pservers)
    common = {
        **os.environ,
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(endpoints),
        "PADDLE_TRAINERS_NUM": str(len(trainers)),
    }
    with ExitStack() as stack:
        servers = [
            stack.enter_context(_process([], {**common, "TRAINING_ROLE": "PSERVER", "ENDPOINT": endpoint}))
            for endpoint in endpoints
        ]
        yield (
            servers,
            [
                stack.enter_context(_process(args, {**common, "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(t)}))
                for t, args in enumerate(trainers)
            ],
        )


@contextmanager
def _process(args: Sequence[object], env: Mapping[str, str]) -> Iterator[Process]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.job_process", *map(str, args)],
        cwd=REPO,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: Process) -> str:
    """The next line that a process prints; "" at its end."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def resume(process: Process) -> None:
    """Let a paused trainer go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main()
