"""What a server makes of steps in every mode, by numbers: reductions, learning rates, gradients that are not finite."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, RequestRefusedError
from fluidlite.protocol.messages import Gradient, RowRequest
from fluidlite.pserver.host import Host
from fluidlite.pserver.policy import Step
from fluidlite.transpiler import DistributeTranspiler, DistributeTranspilerConfig
from tests.pserver_program import pserver_program

NAN, INF = float("nan"), float("inf")


def dense(*values: float, name: str = "w@GRAD") -> Gradient:
    return Gradient("e", name, np.array(values, np.float64))


def rows(ids: list[int], values: list[list[float]], name: str = "emb@GRAD") -> Gradient:
    return Gradient("e", name, np.array(values, np.float64).reshape(-1, 2), np.array(ids, np.int64))


def w(host: Host) -> list[float]:
    found: list[float] = host.dense(["w"])["w"].tolist()
    return found


def emb(host: Host, *ids: int) -> list[list[float]]:
    request = RowRequest("e", "emb", np.array(ids, np.int64), 2, "float64")
    found: list[list[float]] = host.pull([request])[1][0].tolist()
    return found


# --- what is summed, and divided by what ----------------------------------------------------------------------------


@pytest.mark.parametrize(("reduce", "row"), [("mean", 1 - 3.0), ("sum", 1 - 6.0)])
def test_gradients_that_are_rows_are_averaged_or_summed(reduce: str, row: float) -> None:
    host = Host(*pserver_program(trainers=3, sparse_grad_reduce=reduce))
    steps = {0: Step([dense(2, 2, 2), rows([5], [[2, 2]])]), 2: Step([dense(4, 4, 4), rows([5], [[4, 4]])])}
    host.apply(steps, 1)
    assert w(host) == [-3.0] * 3, "dense gradients are averaged either way"
    assert emb(host, 5) == [[row, row]]


def test_the_divisor_counts_who_gave_this_gradient() -> None:
    host = Host(*pserver_program(trainers=3))
    host.apply({0: Step([rows([1], [[6, 6]])]), 1: Step([]), 2: Step([rows([], [])])}, 1)
    assert emb(host, 1) == [[-2.0, -2.0]]


def test_two_pushes_of_one_trainer_are_two_contributions() -> None:
    host = Host(*pserver_program(trainers=2, grads_to_wait=3, distinct_trainers=False))
    twice = Step([dense(1, 1, 1), rows([7], [[1, 1]])]).joined(Step([dense(2, 2, 2), rows([7, 7], [[2, 2], [3, 3]])]))
    host.apply({0: twice, 1: Step([dense(6, 6, 6), rows([8], [[3, 3]])])}, 1)
    assert w(host) == [-3.0] * 3
    assert emb(host, 7, 8) == [[-1.0, -1.0], [0.0, 0.0]]


def test_pushes_of_one_trainer_need_a_block_that_sums_them() -> None:
    program = pserver_program(sync=False, trainers=1, distributed_mode=0, grads_to_wait=2, distinct_trainers=False)
    with pytest.raises(ProgramError, match="does not sum"):
        Host(*program)


def test_the_schedule_advances_as_often_as_it_is_told_to() -> None:
    host = Host(*pserver_program(sync=False))
    host.apply({0: Step([])}, 3)
    assert host.dense(["lr"])["lr"] == [0.25]
    host.apply({0: Step([])}, 0)
    assert host.dense(["lr"])["lr"] == [0.25]


# --- learning rates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "seen", "divisor"),
    [(0, 0, 1), (1, 1, 1), (1, 0, 1), (2, 0, 2), (5, 1, 4), (5, 5, 1), (5, 9, 1), (6, -2, 8)],
)
@pytest.mark.parametrize("carried", [None, 0.5, 0.0])
def test_staleness_modulation(version: int, seen: int, divisor: int, carried: float | None) -> None:
    """The rate is divided by max(1, version - version seen), whether the server's own or one that the step carries."""
    host = Host(*pserver_program(sync=False, lr_staleness_modulation=True, lr_from_trainer=True))
    for _ in range(version):
        host.apply({1: Step([], host.version)}, 0)
    host.apply({0: Step([dense(8, 16, 0), rows([3], [[8, 0]])], seen, carried)}, 1)
    rate = (1.0 if carried is None else carried) / divisor
    assert w(host) == [-8 * rate, -16 * rate, 0]
    assert emb(host, 3) == [[1 - 8 * rate, 1]]
    assert host.dense(["lr"])["lr"] == [1.0], "the server's own rate stays"


def test_without_modulation_and_override_a_step_changes_no_rate() -> None:
    host = Host(*pserver_program(sync=False))
    for _ in range(4):
        host.apply({0: Step([dense(1, 1, 1)], 0, 7.0)}, 0)
    assert w(host) == [-8.0] * 3
    with pytest.raises(RequestRefusedError, match="its own schedule"):
        host.check_step([], [], 0, 7.0)


def test_the_rate_of_a_round_is_that_of_the_step_that_saw_the_newest_version() -> None:
    host = Host(*pserver_program(trainers=3, lr_from_trainer=True))
    steps = {
        0: Step([dense(3, 3, 3)], 4, 0.5),
        1: Step([dense(3, 3, 3)], 5, 0.25),
        2: Step([dense(3, 3, 3)], 5, 0.125),
    }
    host.apply(steps, 1)
    assert w(host) == [-0.75] * 3
    host.apply({0: Step([dense(1, 1, 1)], 4, 0.5), 1: Step([dense(1, 1, 1)], 9)}, 0)
    assert w(host) == [-1.25] * 3


@pytest.mark.parametrize("rate", [NAN, INF, -0.1])
def test_a_rate_that_makes_no_sense_is_refused(rate: float) -> None:
    host = Host(*pserver_program(lr_from_trainer=True))
    with pytest.raises(RequestRefusedError, match="learning rate"):
        host.check_step([], [], learning_rate=rate)
    host.check_step([], [], learning_rate=0.0)


def served(build: Any, trainers: int = 2, **config: Any) -> Host:
    """The host of the only server of a model, with its startup program run."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        build()
    transpiler = DistributeTranspiler(DistributeTranspilerConfig(sync_mode=False, **config))
    transpiler.transpile(0, main, "ps:1", trainers, startup_program=startup)
    program, start = transpiler.get_pserver_programs("ps:1")
    scope = fluid.Scope()
    fluid.Executor().run(start, scope=scope)
    return Host(program.desc, program.desc.root.ops[-1], scope)


def two_params(rate: Any = 0.5) -> None:
    """Parameters p and q [2] of 1, under sgd; q has half the learning rate."""
    start = fluid.initializer.Constant(1.0)
    x = fluid.data("x", [2], "float32")
    p = fluid.layers.create_parameter([2], "float32", "p", default_initializer=start)
    attr = fluid.ParamAttr("q", start, learning_rate=0.5)
    q = fluid.layers.create_parameter([2], "float32", attr=attr)
    loss = fluid.layers.reduce_sum(fluid.layers.elementwise_mul(x, fluid.layers.elementwise_add(p, q)))
    fluid.optimizer.SGD(rate).minimize(loss)


def grads(p: list[float], q: list[float]) -> list[Gradient]:
    return [Gradient("e", f"{name}@GRAD", np.float32(value)) for name, value in (("p", p), ("q", q))]


def values(host: Host, *names: str) -> list[list[float]]:
    return [host.dense([name])[name].tolist() for name in names]


@pytest.mark.parametrize("schedule", [False, True])
def test_parameters_keep_their_own_factor_of_a_carried_rate(schedule: bool) -> None:
    host = served(
        lambda: two_params(fluid.layers.exponential_decay(0.5, 10, 0.5) if schedule else 0.5),
        lr_from_trainer=True,
        lr_staleness_modulation=True,
    )
    host.apply({0: Step(grads([1, 1], [1, 1]), 0, 0.25)}, 1)
    assert values(host, "p", "q") == [[0.75, 0.75], [0.875, 0.875]]
    host.apply({0: Step(grads([0, 0], [0, 0]), 0)}, 1)
    host.apply({1: Step(grads([1, 1], [1, 1]), 0, 0.25)}, 0)
    assert values(host, "p", "q") == [[0.625, 0.625], [0.8125, 0.8125]]


# --- gradients that are not finite ----------------------------------------------------------------------------------


def test_without_a_policy_nothing_is_looked_at() -> None:
    host = Host(*pserver_program(trainers=1))
    host.check_step([dense(NAN, 1, 1)], [])
    host.apply({0: Step([dense(NAN, 1, 1)])}, 1)
    np.testing.assert_array_equal(w(host), [NAN, -1, -1])
    assert host.counters == {}


@pytest.mark.parametrize(
    ("gradient", "text"),
    [
        (dense(1, NAN, INF), r"'w@GRAD' of trainer 1 for 'w' is not finite in 2 of 3 elements, first in element 1"),
        (
            rows([9, -4], [[1, 1], [0, INF]]),
            r"'emb@GRAD' of trainer 1 for 'emb' is not finite in 1 of 2 rows, first in id -4",
        ),
        (rows([2, 2], [[1e308, 0], [1e308, 0]]), r"1 of 1 rows, first in id 2; nan_policy='error': refused"),
    ],
    ids=["dense", "rows", "the_sum_of_duplicates"],
)
def test_C41_error_refuses_the_step_before_it_counts(gradient: Gradient, text: str) -> None:
    host = Host(*pserver_program(nan_policy="error"))
    with pytest.raises(RequestRefusedError, match=text):
        host.check_step([rows([1], [[0, 0]], "v.block0@GRAD"), gradient], [], trainer=1)
    host.check_step([dense(1, 2, 3), rows([2, 2], [[1e308, 0], [-1e308, 0]])], [], trainer=1)
    assert host.counters["gradients not finite"] == {gradient.name.removesuffix("@GRAD"): 1}


def test_skip_leaves_out_what_a_trainer_gave_for_that_parameter() -> None:
    host = Host(*pserver_program(trainers=3, nan_policy="skip"))
    bad = Step([dense(NAN, 9, 9), rows([4, 5], [[9, 9], [9, INF]])])
    good = Step([dense(2, 4, 6), rows([4], [[2, 2]])])
    other = Step([dense(4, 4, 4), rows([4, 5], [[NAN, 0], [1, 1]])])
    host.check_step(bad.gradients, [])
    host.apply({0: bad, 1: good, 2: other}, 1)
    assert w(host) == [-3.0, -4.0, -5.0], "the mean of the two that remain"
    assert emb(host, 4, 5) == [[-1.0, -1.0], [1.0, 1.0]]
    assert host.counters == {
        "gradients not finite": {"emb": 2, "w": 1},
        "elements not finite": {"w": 1},
        "rows not finite": {"emb": 2},
    }


@pytest.mark.parametrize("sync", [True, False])
def test_skip_where_nothing_remains(sync: bool) -> None:
    host = Host(*pserver_program(sync=sync, nan_policy="skip"))
    host.apply({0: Step([dense(NAN, 9, 9), rows([4], [[9, NAN]])])}, 1)
    assert w(host) == [0.0] * 3
    assert emb(host, 4) == [[1.0, 1.0]]
    assert host.version == 1


def test_zero_takes_elements_out_of_dense_gradients_and_whole_rows_out_of_others() -> None:
    host = Host(*pserver_program(trainers=2, nan_policy="zero"))
    bad = Step([dense(NAN, 4, -INF), rows([4, 5, 4], [[9, NAN], [8, 8], [1, 1]])])
    host.apply({0: bad, 1: Step([dense(2, 2, 2), rows([4], [[2, 2]])])}, 1)
    assert w(host) == [-1.0, -3.0, -1.0]
    assert emb(host, 4, 5) == [[0.0, 0.0], [-3.0, -3.0]]
    assert host.counters == {
        "gradients not finite": {"emb": 1, "w": 1},
        "elements not finite": {"w": 2},
        "rows not finite": {"emb": 1},
    }


def test_the_sum_of_duplicates_counts_and_not_its_parts() -> None:
    host = Host(*pserver_program(sync=False, nan_policy="zero"))
    host.apply({0: Step([rows([4, 4, 5, 5], [[1e308, 1], [1e308, 1], [1e308, 1], [-1e308, 1]])])}, 1)
    assert emb(host, 4, 5) == [[1.0, 1.0], [1.0, -1.0]]


def test_what_the_trainer_sent_is_not_changed() -> None:
    host = Host(*pserver_program(sync=False, nan_policy="zero"))
    sent = dense(NAN, 1, 1)
    sent.value.flags.writeable = False
    host.apply({0: Step([sent])}, 1)
    assert w(host) == [0, -1, -1]


def test_warnings_become_rarer(caplog: pytest.LogCaptureFixture) -> None:
    host = Host(*pserver_program(sync=False, nan_policy="skip"))
    with caplog.at_level(logging.WARNING, "fluidlite"):
        for _ in range(9):
            host.apply({1: Step([rows([77], [[NAN, 0]])])}, 1)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 4
    assert "'emb@GRAD' of trainer 1 for 'emb'" in texts[0]
    assert "id 77" in texts[0]
    assert "skipped" in texts[0]


# --- delay compensation ---------------------------------------------------------------------------------------------


class Reference:
    """Delay-compensated sgd in numpy: each trainer's gradient plus g * g * (w - w as it last saw it)."""

    def __init__(self, trainers: int) -> None:
        self.now = np.ones(2, np.float32)
        self.seen = [self.now.copy() for _ in range(trainers)]

    def push(self, trainer: int, gradient: Array) -> None:
        corrected = gradient + (self.now - self.seen[trainer]) * gradient * gradient
        self.now = self.now - np.float32(0.5) * corrected
        self.seen[trainer] = self.now.copy()


def test_a_late_gradient_is_compensated_for_what_changed_since() -> None:
    host, reference = served(two_params, 3, enable_dc_asgd=True), Reference(3)
    random = np.random.default_rng(0)
    late = 0
    for trainer in random.integers(0, 3, 30).tolist():
        gradient = random.normal(size=2).astype(np.float32)
        late += not np.array_equal(reference.seen[trainer], reference.now)
        reference.push(trainer, gradient)
        host.apply({trainer: Step(grads(gradient.tolist(), [0, 0]))}, 1)
        np.testing.assert_array_equal(host.dense(["p"])["p"], reference.now)
    assert late > 10


def test_a_gradient_that_is_not_late_is_left_alone() -> None:
    host = served(two_params, 2, enable_dc_asgd=True)
    for _ in range(3):
        host.apply({1: Step(grads([1, 1], [0, 0]))}, 1)
    assert values(host, "p", "q") == [[-0.5, -0.5], [1.0, 1.0]]


def test_one_that_registers_has_seen_what_is_there_now() -> None:
    hosts = [served(two_params, 2, enable_dc_asgd=True) for _ in range(2)]
    for host in hosts:
        host.apply({0: Step(grads([1, 1], [0, 0]))}, 1)
    hosts[1].remember(1)
    for host in hosts:
        host.apply({1: Step(grads([1, 1], [0, 0]))}, 1)
    assert [values(host, "p")[0] for host in hosts] == [[0.25, 0.25], [0.0, 0.0]]


def test_an_assigned_parameter_is_seen_by_all() -> None:
    host = served(two_params, 2, enable_dc_asgd=True)
    host.apply({0: Step(grads([1, 1], [0, 0]))}, 1)
    host.assign("p", np.zeros(2, np.float32))
    host.apply({1: Step(grads([1, 1], [0, 0]))}, 1)
    assert values(host, "p") == [[-0.5, -0.5]]


def test_backups_for_fewer_trainers_than_the_job_has_are_refused() -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        two_params()
    transpiler = DistributeTranspiler(DistributeTranspilerConfig(sync_mode=False, enable_dc_asgd=True))
    transpiler.transpile(0, main, "ps:1", 2, startup_program=startup)
    program, start = transpiler.get_pserver_programs("ps:1")
    scope = fluid.Scope()
    fluid.Executor().run(start, scope=scope)
    for block in program.desc.blocks:
        for op in block.ops:
            if op.type == "ref_by_trainer_id":
                op.inputs["X"].pop()
    with pytest.raises(ProgramError, match="1 backups of 'p', but the job has 2 trainers"):
        Host(program.desc, program.desc.root.ops[-1], scope)
