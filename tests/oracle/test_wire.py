"""Jobs whose processes are of Fluid 1.8.5, of fluidlite, or both; of fluidlite also those that run Fluid's own programs, and
those of a script that only knows Fluid. Needs ``FLUIDLITE_ORACLE_PYTHON``: a Python with
paddlepaddle 1.8.5."""

from __future__ import annotations

import functools
import os
import sys

import numpy as np
import pytest

from tests.oracle.wire_processes import Job, Way

ORACLE = os.environ.get("FLUIDLITE_ORACLE_PYTHON", "")
BY_ENVIRONMENT = ("FLUIDLITE_WIRE", "fluid")
WAYS = {
    "fluid": Way((ORACLE,)),
    "ours": Way((sys.executable,)),
    "programs": Way((sys.executable,), (BY_ENVIRONMENT, ("WIRE_JOB_PROGRAMS", ORACLE))),
    "script": Way((sys.executable, "-m", "fluidlite", "run"), (BY_ENVIRONMENT,)),
}
#: of both processes, those of real Fluid alone are the reference
MIXED = [("ours", "fluid"), ("fluid", "ours"), ("ours", "ours")]
STEPS = 10

pytestmark = [
    pytest.mark.skipif(not ORACLE, reason="FLUIDLITE_ORACLE_PYTHON names no Python with paddlepaddle 1.8.5"),
    pytest.mark.timeout(240),
]


@functools.cache
def losses(servers: str, trainers: str, kind: str, count: int, steps: tuple[int, ...]) -> list[list[float]]:
    """Of each trainer, in a job of its own."""
    with Job(WAYS[servers], WAYS[trainers], kind, 0, count) as job:
        found = job.train(steps=steps)
        if servers != "fluid":  # they end when their trainers are done
            for server in job.servers:
                assert server.wait(30) == 0
    return found


@pytest.mark.parametrize("kind", ["dense", "dense_decay", "sparse", "sparse_decay"])
@pytest.mark.parametrize(("servers", "trainers"), MIXED)
def test_losses_are_those_of_an_all_fluid_job(servers: str, trainers: str, kind: str) -> None:
    reference = losses("fluid", "fluid", kind, 2, (STEPS, STEPS))
    np.testing.assert_allclose(losses(servers, trainers, kind, 2, (STEPS, STEPS)), reference, rtol=1e-5)


@pytest.mark.parametrize("kind", ["dense_decay", "sparse"])
@pytest.mark.parametrize("mine", ["programs", "script"])
def test_what_was_made_for_fluid_takes_part(mine: str, kind: str) -> None:
    """Programs that Fluid transpiled, and a script that names no wire; on one side and on both."""
    reference = losses("fluid", "fluid", kind, 2, (STEPS, STEPS))
    for servers, trainers in ((mine, "fluid"), ("fluid", mine), (mine, mine)):
        np.testing.assert_allclose(losses(servers, trainers, kind, 2, (STEPS, STEPS)), reference, rtol=1e-5)


@pytest.mark.parametrize("kind", ["dense", "sparse_decay"])
def test_one_trainer(kind: str) -> None:
    """Fluid's own trainer and server do not understand each other then (spec 9.1, no. 4); each does with ours."""
    reference = losses("ours", "ours", kind, 1, (STEPS,))
    for servers, trainers in (("ours", "fluid"), ("fluid", "ours")):
        np.testing.assert_allclose(losses(servers, trainers, kind, 1, (STEPS,)), reference, rtol=1e-5)


@pytest.mark.parametrize("trainers", ["fluid", "ours"])
def test_a_trainer_that_is_done_earlier(trainers: str) -> None:
    """Until then all is equal. What Fluid's own servers do afterwards is chance: docs/fluid_wire.md."""
    found = losses("ours", trainers, "dense", 2, (3, 6))
    reference = losses("fluid", "fluid", "dense", 2, (STEPS, STEPS))
    assert [len(each) for each in found] == [3, 6]
    np.testing.assert_allclose(found[0], reference[0][:3], rtol=1e-5)
    np.testing.assert_allclose(found[1][:4], reference[1][:4], rtol=1e-5)


@pytest.mark.parametrize(
    ("servers", "trainers"), [("fluid", "fluid"), *MIXED, ("programs", "fluid"), ("fluid", "programs")]
)
def test_async_training_learns(servers: str, trainers: str) -> None:
    """Which step comes first is chance, so only what the steps come to is looked at."""
    for found in losses(servers, trainers, "async", 2, (20, 20)):
        assert np.mean(found[-3:]) < 0.1  # untrained 0.5


def test_our_server_survives_what_fluids_would_not() -> None:
    """A trainer of Fluid with another model is told so, and ends; the server goes on."""
    with Job(WAYS["ours"], WAYS["fluid"], "dense", 0, 2) as job:
        with pytest.raises(AssertionError, match="unknown variable 'emb"):
            job.train(steps=[1], kind="sparse")
        assert [server.poll() for server in job.servers] == [None, None]
