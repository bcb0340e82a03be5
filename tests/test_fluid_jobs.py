"""Trainer and pserver programs that real Fluid 1.8.5 transpiled run here, and give its losses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import ProgramError
from tests.fluid_jobs import FOLDER, Job, Programs, Recorded, recorded

ORACLE = os.environ.get("FLUIDLITE_ORACLE_PYTHON", "")
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))

#: a job that servers of Fluid abort (docs/deviations.md), and one with the same losses: nothing is late with one trainer
ABORTED = {"dense.dc_asgd": "dense.async"}


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith(".geo")])
def test_programs_of_fluid_give_its_losses(name: str) -> None:
    job = recorded(name)
    running = Job(job.trainers, job.pservers)
    try:
        steps = [
            [values[0].item() for values in running.run([feeds[step] for feeds in job.feeds], [job.loss])]
            for step in range(len(job.feeds[0]))
        ]
    finally:
        running.close()
    assert np.isfinite(steps).all()
    expected = recorded(ABORTED[name]).losses if name in ABORTED else job.losses
    if expected is not None:
        np.testing.assert_allclose(np.transpose(steps), expected, rtol=1e-5)


def test_programs_of_fluid_run_as_processes(tmp_path: Path) -> None:
    """Two trainers and two servers, which end by themselves."""
    name = "shared.sync"
    job = recorded(name)
    with ExitStack() as stack:
        files = [tmp_path / f"endpoint{index}" for index in range(2)]
        servers = [
            stack.enter_context(_started(name, "pserver", str(index), FLUIDLITE_ENDPOINT_FILE=str(file)))
            for index, file in enumerate(files)
        ]
        endpoints = ",".join(_content(file, server) for file, server in zip(files, servers, strict=True))
        trainers = [stack.enter_context(_started(name, "trainer", str(index), endpoints)) for index in range(2)]
        losses = [[float(line.split()[1]) for line in p.communicate(timeout=60)[0].splitlines()] for p in trainers]
        assert [server.wait(30) for server in servers] == [0, 0]
    assert job.losses is not None
    np.testing.assert_allclose(losses, job.losses, rtol=1e-5)


@contextmanager
def _started(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.fluid_job_process", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _content(file: Path, process: subprocess.Popen[str]) -> str:
    """What the process writes into a file."""
    while process.poll() is None:
        if file.exists():
            return file.read_text(encoding="utf-8")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    raise AssertionError("the server ended before it listened")


def test_a_geo_trainer_of_fluid_is_refused_since_its_program_names_no_servers() -> None:
    job = recorded("shared.geo")
    with pytest.raises(ProgramError, match="in geo mode Fluid gave servers and intervals to its communicator"):
        fluid.Executor().run(job.trainers[0].main, job.feeds[0][0], [job.loss])


@pytest.fixture
def fresh_programs() -> Iterator[None]:
    with fluid.unique_name.guard(), fluid.program_guard(fluid.Program(), fluid.Program()):
        yield


def _shared_net() -> fluid.Variable:
    """The job ``shared`` of the recordings."""
    one, y = fluid.layers.data("one", [1], dtype="int64"), fluid.layers.data("y", [1])
    many = fluid.layers.data("many", [1], dtype="int64", lod_level=1)
    attr = fluid.ParamAttr(name="emb", initializer=fluid.initializer.Uniform(-0.5, 0.5, 3))
    first = fluid.layers.embedding(one, [2100, 8], is_sparse=True, param_attr=attr, padding_idx=7)
    pooled = fluid.layers.sequence_pool(
        fluid.layers.embedding(many, [2100, 8], is_sparse=True, param_attr=attr, padding_idx=7), "sum"
    )
    weights = fluid.initializer.NumpyArrayInitializer(np.linspace(-1, 1, 16, dtype=np.float32).reshape(16, 1))
    out = fluid.layers.fc(
        fluid.layers.concat([first, pooled], 1), 1, param_attr=fluid.ParamAttr(name="w", initializer=weights)
    )
    loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(out, y))
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    return loss


@pytest.mark.usefixtures("fresh_programs")
def test_geo_servers_of_fluid_do_what_ours_do() -> None:
    """Our trainers, once against Fluid's servers and once against ours, from equal values."""
    recording, loss = recorded("shared.geo"), _shared_net()
    config = fluid.DistributeTranspilerConfig()
    config.sync_mode, config.geo_sgd_mode, config.geo_sgd_need_push_nums = False, True, 2
    trainers = []
    for trainer in range(2):
        main, startup = fluid.default_main_program().clone(), fluid.default_startup_program().clone()
        transpiler = fluid.DistributeTranspiler(config)
        transpiler.transpile(trainer, main, ",".join(recording.pservers), 2, False, startup)
        trainers.append(Programs(main, startup))
    ours = {
        endpoint: Programs(transpiler.get_pserver_program(endpoint), programs.startup)
        for endpoint, programs in recording.pservers.items()
    }
    first, second = (_trained(trainers, pservers, recording, loss.name) for pservers in (recording.pservers, ours))
    assert first.keys() == second.keys() == {"loss", "emb.block0", "emb.block1", "w", "fc_0.b_0"}
    for name, value in first.items():
        np.testing.assert_allclose(value, second[name], rtol=1e-5, atol=1e-7, err_msg=name)


def _trained(trainers: list[Programs], pservers: dict[str, Programs], job: Recorded, loss: str) -> dict[str, Any]:
    """What servers hold in the end, and the losses; one trainer goes after the other, so that it is the same each time."""
    running, losses = Job(trainers, pservers), []
    try:
        for step in range(len(job.feeds[0])):
            losses += [running.step(trainer, feeds[step], [loss])[0].item() for trainer, feeds in enumerate(job.feeds)]
    finally:
        running.close()
    names = ("emb.block0", "emb.block1", "w", "fc_0.b_0")
    held = {n: s.get(n) for s in running.server_scopes.values() for n in names if s.get(n) is not None}
    return {"loss": losses, **held}


@pytest.mark.skipif(not ORACLE, reason="FLUIDLITE_ORACLE_PYTHON names no python with Fluid 1.8.5")
@pytest.mark.timeout(300)
def test_fluid_gives_the_losses_that_are_recorded(tmp_path: Path) -> None:
    script = Path(__file__).parent / "oracle" / "record_transpiled.py"
    subprocess.run([ORACLE, str(script), str(tmp_path), "shared.sync"], check=True, capture_output=True)
    found = json.loads((tmp_path / "shared.sync.json").read_text(encoding="utf-8"))
    np.testing.assert_allclose(found["losses"], np.array(recorded("shared.sync").losses), rtol=1e-5)
