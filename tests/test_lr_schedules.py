"""Learning-rate schedules: their values step by step, their ops and where these stand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fluidlite.layers as L
from fluidlite import optimizer
from fluidlite.core.ir import OpRole
from fluidlite.errors import ProgramError
from fluidlite.framework import Variable
from fluidlite.initializer import Constant
from tests.frontend import Session, fresh_programs, lines, op_types

#: spec, section 9.2: the rates of runs 1 to 6 on Fluid 1.8.5
VALUES: list[tuple[str, Callable[[], Variable], list[float]]] = [
    (
        "exponential",
        lambda: L.exponential_decay(0.1, 2, 0.5),
        [0.1, 0.07071068, 0.05, 0.03535534, 0.025, 0.01767767],
    ),
    ("exponential_stairs", lambda: L.exponential_decay(0.1, 2, 0.5, True), [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]),
    (
        "natural_exp",
        lambda: L.natural_exp_decay(0.1, 2, 0.5),
        [0.1, 0.07788008, 0.06065307, 0.04723665, 0.03678795, 0.02865048],
    ),
    (
        "inverse_time",
        lambda: L.inverse_time_decay(0.1, 2, 0.5),
        [0.1, 0.08, 0.06666667, 0.05714286, 0.05, 0.04444445],
    ),
    (
        "inverse_time_stairs",
        lambda: L.inverse_time_decay(0.1, 2, 0.5, staircase=True),
        [0.1, 0.1, 0.06666667, 0.06666667, 0.05, 0.05],
    ),
    ("polynomial", lambda: L.polynomial_decay(0.1, 3, 0.01), [0.1, 0.07, 0.04, 0.01, 0.01, 0.01]),
    (
        "polynomial_cycle",
        lambda: L.polynomial_decay(0.1, 3, 0.01, 2.0, cycle=True),
        [0.1, 0.05, 0.02, 0.01, 0.02, 0.0125],
    ),
    ("piecewise", lambda: L.piecewise_decay([2, 4], [0.1, 0.05, 0.01]), [0.1, 0.1, 0.05, 0.05, 0.01, 0.01]),
    (
        "noam",
        lambda: L.noam_decay(512, 4),
        [0.005524272, 0.01104854, 0.01657281, 0.02209709, 0.01976424, 0.0180422],
    ),
    ("cosine", lambda: L.cosine_decay(0.1, 2, 3), [0.1, 0.1, 0.075, 0.075, 0.025, 0.025]),
    (
        "warmup",
        lambda: L.linear_lr_warmup(0.1, 3, 0.0, 0.1),
        [0, 0.03333334, 0.06666667, 0.1, 0.1, 0.1],
    ),
    (
        "warmup_then_schedule",
        lambda: L.linear_lr_warmup(L.piecewise_decay([4], [0.1, 0.01]), 2, 0.0, 0.1),
        [0, 0.05, 0.1, 0.1, 0.01, 0.01],
    ),
]
schedules = pytest.mark.parametrize(
    ("make", "expected"), [case[1:] for case in VALUES], ids=[case[0] for case in VALUES]
)


@schedules
def test_values_of_fluid(make: Callable[[], Variable], expected: list[float]) -> None:
    with fresh_programs() as (main, startup):
        rate = make()
    session = Session(startup)
    found = [session.run(main, fetch=[rate])[0] for _ in expected]
    assert all(value.shape == (1,) and value.dtype == np.float32 for value in found)
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=2e-6, atol=1e-9)


@schedules
def test_every_op_has_the_role_of_a_schedule(make: Callable[[], Variable], expected: list[float]) -> None:
    with fresh_programs() as (main, startup):
        make()
    assert {op.role for _, op in main.desc.all_ops()} == {OpRole.LR_SCHED}
    assert {op.role for _, op in startup.desc.all_ops()} == {OpRole.FORWARD}


OPS: list[tuple[str, Callable[[], Variable], str]] = [
    ("noam", lambda: L.noam_decay(64, 3), "cast fill_constant elementwise_pow scale elementwise_min scale"),
    ("exponential", lambda: L.exponential_decay(0.1, 2, 0.5), "cast scale fill_constant elementwise_pow scale"),
    ("exponential_stairs", lambda: L.exponential_decay(0.1, 2, 0.5, True), "cast scale floor fill_constant elementwise_pow scale"),
    ("natural_exp", lambda: L.natural_exp_decay(0.1, 2, 0.5), "cast scale scale exp scale"),
    ("inverse_time", lambda: L.inverse_time_decay(0.1, 2, 0.5), "cast scale scale scale fill_constant elementwise_div"),
    (
        "polynomial",
        lambda: L.polynomial_decay(0.1, 3),
        "cast fill_constant elementwise_min scale scale fill_constant elementwise_pow scale scale",
    ),
    ("cosine", lambda: L.cosine_decay(0.1, 2, 3), "cast scale floor scale scale cos scale scale"),
    (
        "warmup",
        lambda: L.linear_lr_warmup(0.1, 3, 0.0, 0.1),
        "cast fill_constant less_than logical_not conditional_block conditional_block",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "expected"), [case[1:] for case in OPS], ids=[case[0] for case in OPS])
def test_ops_of_fluid(make: Callable[[], Variable], expected: str) -> None:
    with fresh_programs() as (main, _):
        make()
    assert op_types(main) == ["increment", *expected.split()]


def test_the_counter_is_incremented_before_everything_else_and_shared() -> None:
    with fresh_programs() as (main, startup):
        p = L.create_parameter([1], "float32", "p", default_initializer=Constant(1.0))
        loss = L.mean(p)
        first, second = L.exponential_decay(0.1, 1, 0.5), L.natural_exp_decay(0.1, 1, 1.0)
        optimizer.SGD(first).minimize(loss)
    assert lines(main)[0] == "increment(X=@LR_DECAY_COUNTER@) -> Out=@LR_DECAY_COUNTER@"
    assert op_types(main).count("increment") == 1
    session = Session(startup)
    assert session.value("@LR_DECAY_COUNTER@").tolist() == [-1]
    for _ in range(3):
        values = session.run(main, fetch=[first, second])
    np.testing.assert_allclose(np.concatenate(values), [0.025, 0.1 * np.exp(-2.0)], rtol=1e-6)
    np.testing.assert_allclose(session.value("p"), 1 - (0.1 + 0.05 + 0.025), rtol=1e-6)


def test_b038_each_run_is_one_step_of_the_schedule() -> None:
    with fresh_programs() as (main, startup):
        rate = L.exponential_decay(1.0, 1, 0.5)
        p = L.create_parameter([1], "float32", "p", default_initializer=Constant(0.0))
        optimizer.SGD(rate).minimize(L.mean(p))
    session = Session(startup)
    rates = [float(session.run(main, fetch=[rate])[0][0]) for _ in range(4)]
    assert rates == [1.0, 0.5, 0.25, 0.125]
    assert session.value("p").tolist() == [-1.875]


def test_two_piecewise_schedules_do_not_share_their_variable() -> None:
    with fresh_programs() as (main, startup):
        rates = [L.piecewise_decay([1], [value, 10 * value]) for value in (1.0, 2.0)]
    session = Session(startup)
    assert [float(v[0]) for v in session.run(main, fetch=rates)] == [1.0, 2.0]
    assert [float(v[0]) for v in session.run(main, fetch=rates)] == [10.0, 20.0]


def test_schedules_that_cannot_be() -> None:
    with fresh_programs() as (main, _):
        with pytest.raises(ProgramError, match="one value more than boundaries, not 2 values and 2"):
            L.piecewise_decay([1, 2], [0.1, 0.2])
        with pytest.raises(ProgramError, match=r"must increase, not \[2, 1\]"):
            L.piecewise_decay([2, 1], [0.1, 0.2, 0.3])
        with pytest.raises(ProgramError, match="decay_steps > 0, not 0"):
            L.exponential_decay(0.1, 0, 0.5)
        with pytest.raises(ProgramError, match="warmup_steps > 0, not -1"):
            L.noam_decay(64, -1)
    assert lines(main) == []
