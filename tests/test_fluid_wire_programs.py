"""Programs that Fluid transpiled, and scripts that only know Fluid, choose Fluid's own wire by ``FLUIDLITE_WIRE``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import ProgramError, SettingError, TranspileError
from fluidlite.ops.fluid_remote import UNDECIDED
from fluidlite.ports import needs_of
from fluidlite.transpiler.fluid_wire import VARIABLE
from fluidlite.transpiler.legacy import translate
from tests import test_legacy_programs as legacy
from tests.fluid_jobs import Programs, endpoint_of, moved, recorded
from tests.oracle.wire_processes import free_endpoints
from tests.test_fluid_wire_plan import build

Feeds = Sequence[Sequence[dict[str, Any]]]


@pytest.fixture
def fluid_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "fluid")


def losses_of(trainers: Sequence[Programs], servers: dict[str, Programs], feeds: Feeds, loss: str) -> list[list[float]]:
    """Of each trainer; all are executors in threads, over the network, with programs as Fluid made them."""
    places = dict(zip(servers, free_endpoints(len(servers)), strict=True))

    def serve(programs: Programs) -> None:
        exe, scope = fluid.Executor(), fluid.Scope()
        exe.run(programs.startup, scope=scope)
        exe.run(programs.main, scope=scope)

    def train(programs: Programs, fed: Sequence[dict[str, Any]]) -> list[float]:
        exe, scope = fluid.Executor(), fluid.Scope()
        try:
            exe.run(programs.startup, scope=scope)
            return [exe.run(programs.main, feed, [loss], scope=scope)[0].item() for feed in fed]
        finally:
            exe.close()

    with ThreadPoolExecutor(len(servers) + len(trainers)) as threads:
        serving = [threads.submit(serve, moved(programs, places)) for programs in servers.values()]
        training = [
            threads.submit(train, moved(programs, places), fed) for programs, fed in zip(trainers, feeds, strict=True)
        ]
        found = [each.result(60) for each in training]
        for each in serving:
            each.result(20)
    return found


@pytest.mark.usefixtures("fluid_wire")
@pytest.mark.parametrize("name", ["shared.sync", "dense.async"])
def test_programs_of_fluid_give_its_losses_over_its_wire(name: str) -> None:
    job = recorded(name)
    assert job.losses is not None
    found = losses_of(job.trainers, job.pservers, job.feeds, job.loss)
    np.testing.assert_allclose(found, job.losses, rtol=1e-5)


@pytest.mark.usefixtures("fluid_wire")
def test_trainers_that_do_not_say_at_first_who_they_are() -> None:
    """Until 1.5 startup programs did not (that of 1.1 here)."""
    trainers = [
        Programs(legacy.program("1.2", "trainer", number), legacy.program("1.1", "trainer_startup"))
        for number in range(2)
    ]
    startup = needs_of(translate(trainers[0].startup.desc, "fluid"))
    assert startup is not None
    assert (startup.trainer, startup.wire) == (UNDECIDED, "fluid")
    served = [
        Programs(legacy.program("1.2", f"pserver{k}"), legacy.program("1.2", f"pserver{k}_startup")) for k in (0, 1)
    ]
    servers = {endpoint_of(programs.main): programs for programs in served}
    feeds = [[legacy.feed(number, step) for step in range(legacy.STEPS)] for number in range(2)]
    found = losses_of(trainers, servers, feeds, "loss")
    model = legacy.Model(mean=True, adam=False)
    expected = [model.step([feeds[0][step], feeds[1][step]]) for step in range(legacy.STEPS)]
    np.testing.assert_allclose(np.transpose(found), expected, rtol=1e-5)


def test_without_the_word_programs_speak_our_wire() -> None:
    job = recorded("shared.sync")
    needs = needs_of(translate(job.trainers[0].main.desc))
    assert needs is not None
    assert needs.wire == ""


@pytest.mark.parametrize(("name", "wire"), [("shared.sync", "fluid"), ("shared.async", "fluid_async")])
def test_the_program_with_the_gradients_says_whether_there_are_rounds(name: str, wire: str) -> None:
    job = recorded(name)
    found = [needs_of(translate(program.desc, "fluid")) for program in (job.trainers[0].startup, job.trainers[0].main)]
    assert [needs.wire for needs in found if needs is not None] == ["fluid", wire]


def test_a_program_of_ours_says_itself_what_it_speaks() -> None:
    main, startup = build()
    fluid.DistributeTranspiler().transpile(0, main, "a:1,b:2", 2, True, startup)
    assert translate(main.desc, "fluid") is main.desc


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: recorded("schedule.async").trainers[0].main, "'send' tells how far the schedule .* is"),
        (lambda: next(iter(recorded("dense.geo").pservers.values())).main, "'listen_and_serv' serves geo training"),
        (lambda: legacy.program("1.1", "trainer"), "'prefetch' asks for rows of a distributed table"),
    ],
)
def test_what_that_wire_does_not_carry_is_refused(make: Callable[[], fluid.Program], text: str) -> None:
    with pytest.raises(ProgramError, match=f"op {text}.*: Fluid's own wire does not carry that here"):
        translate(make().desc, "fluid")


@pytest.mark.usefixtures("fluid_wire")
def test_a_script_need_not_say_it() -> None:
    """`DistributeTranspilerConfig` of Fluid has no field for it."""
    main, startup = build()
    transpiler = fluid.DistributeTranspiler(fluid.DistributeTranspilerConfig())
    transpiler.transpile(0, main, "a:1,b:2", 2, True, startup)
    for program in (main, startup, transpiler.get_pserver_program("a:1")):
        spoken = {op.attr("wire") for op in program.desc.root.ops if op.type in ("recv", "listen_and_serv")}
        assert spoken == {"fluid"}


@pytest.mark.usefixtures("fluid_wire")
def test_calls_in_one_process_take_the_place_of_its_messages_too() -> None:
    main, startup = build()
    loss = next(op for op in main.desc.root.ops if op.type == "mean").outputs["Out"][0]
    with fluid.LocalCluster(main, startup, pservers=2, trainers=2) as cluster:
        feeds = [{"x": np.full((2, 40), trainer, np.float32)} for trainer in range(2)]
        first, second = (cluster.run(feeds, loss) for _ in range(2))
    assert first[1][0] != second[1][0]


@pytest.mark.usefixtures("fluid_wire")
def test_what_is_refused_with_it_is_refused_then_too() -> None:
    main, startup = build()
    config = fluid.DistributeTranspilerConfig(geo_sgd_mode=True, sync_mode=False)
    with pytest.raises(TranspileError, match="wire='fluid' carries sync and async training, not geo"):
        fluid.DistributeTranspiler(config).transpile(0, main, "a:1,b:2", 2, False, startup)


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "brpc")
    with pytest.raises(SettingError, match="FLUIDLITE_WIRE must be one of fluid, own, not 'brpc'"):
        fluid.DistributeTranspilerConfig().options()
