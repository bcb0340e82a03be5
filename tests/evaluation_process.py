"""A job whose model another process evaluates: ``python -m tests.evaluation_process FOLDER``; roles by environment variables.

A pserver, the trainer, or the evaluation (``TRAINING_ROLE=EVALUATOR``), or a process that predicts by asking the servers
(``READER``). Each prints "version prediction" lines.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import fluidlite as fluid
from fluidlite.launch import free_endpoints
from tests.shared_data import REPO

EVERY, PAUSE, ASKED, STEPS = 2, 4, 7, 9
Process = subprocess.Popen[str]


def build() -> tuple[fluid.Variable, fluid.Variable, fluid.Program]:
    """(prediction, loss, the program for evaluation) of a model with a table and a dense layer that is cut."""
    ids, y = fluid.data("ids", [None, 1], "int64"), fluid.data("y", [None, 1])
    rows = fluid.layers.embedding(ids, [1000, 4], is_sparse=True, is_distributed=True, param_attr="emb")
    predict = fluid.layers.fc(fluid.layers.fc(rows, 8, act="tanh"), 1)
    test = fluid.default_main_program().clone(for_test=True)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(predict, y))
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    return predict, loss, test


def batch(step: int) -> dict[str, Any]:
    ids = np.random.default_rng(step).integers(-50, 50, (16, 1))
    return {"ids": ids, "y": np.sign(ids).astype(np.float32)}


#: some ids that were trained, some that never are
EVALUATED = {"ids": np.arange(-60, 60, 3).reshape(-1, 1), "y": np.zeros((40, 1), np.float32)}


def report(version: int, predicted: Any) -> None:
    """Print a version and every bit of a prediction."""
    print(version, predicted.tobytes().hex(), flush=True)


def evaluate(folder: str) -> None:
    """What the docs show."""
    predict, _, test = build()
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    for number in fluid.io.watch_checkpoints(folder, timeout=60, poll=0.02):
        version = fluid.io.load_checkpoint(exe, folder, test, number)
        report(version, exe.run(test, EVALUATED, [predict])[0])
        if version == STEPS:
            break


def train(transpiler: fluid.DistributeTranspiler, test: fluid.Program, predict: fluid.Variable, folder: str) -> None:
    """Report what the trainer sees at the versions of checkpoints; stop in between, and at the end save a model."""
    test = transpiler.get_test_program(test)
    with fluid.Executor() as exe:
        exe.run(fluid.default_startup_program())
        exe.run_every(EVERY, lambda version: report(version, exe.run(test, EVALUATED, [predict])[0]))
        for step in range(STEPS):
            exe.run(feed=batch(step))
            if step + 1 == PAUSE:
                fluid.io.save_inference_model(f"{folder}/model", ["ids"], [predict], exe)
                sys.stdin.readline()
            if step + 1 == ASKED:
                report(fluid.io.save_checkpoint(exe), exe.run(test, EVALUATED, [predict])[0])
        report(STEPS, exe.run(test, EVALUATED, [predict])[0])


def read(folder: str) -> None:
    """Predict by a saved model and the rows that the servers have."""
    with fluid.Executor() as exe:
        endpoints = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")
        program, feeds, fetches = fluid.io.load_inference_model(f"{folder}/model", exe, pserver_endpoints=endpoints)
        report(0, exe.run(program, {name: EVALUATED[name] for name in feeds}, fetches)[0])


def main(folder: str) -> None:
    """One process."""
    role = os.environ["TRAINING_ROLE"]
    if role == "EVALUATOR":
        evaluate(f"{folder}/checkpoints")
        return
    if role == "READER":
        read(folder)
        return
    predict, _, test = build()
    config = fluid.DistributeTranspilerConfig(
        checkpoint_dir=f"{folder}/checkpoints", checkpoint_every=EVERY, checkpoint_keep_max=0
    )
    config.min_block_size = 4
    transpiler = fluid.DistributeTranspiler(config)
    transpiler.transpile(0, pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"], trainers=1)
    if role == "TRAINER":
        train(transpiler, test, predict, folder)
        return
    program, startup = transpiler.get_pserver_programs(os.environ["ENDPOINT"])
    with fluid.Executor() as server:
        server.run(startup)
        server.run(program)


@dataclass
class Job:
    """The processes of a job; `start` adds one."""

    folder: str
    endpoints: list[str]
    stack: ExitStack

    def start(self, role: str, **env: str) -> Process:
        """A process of a role; it is killed at the end, if it still runs."""
        common = {**os.environ, "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(self.endpoints)}
        return self.stack.enter_context(_process(self.folder, {**common, "TRAINING_ROLE": role, **env}))


@contextmanager
def job(folder: object) -> Iterator[Job]:
    """A job of two pservers."""
    with ExitStack() as stack:
        made = Job(str(folder), free_endpoints(2), stack)
        for endpoint in made.endpoints:
            made.start("PSERVER", ENDPOINT=endpoint)
        yield made


@contextmanager
def _process(folder: str, env: Mapping[str, str]) -> Iterator[Process]:
    command = [sys.executable, "-m", "tests.evaluation_process", folder]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": None}
    process = subprocess.Popen(command, cwd=REPO, env=dict(env), text=True, **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    main(sys.argv[1])
