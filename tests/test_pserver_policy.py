"""The decisions of a server, without threads: rounds, windows, leases."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fluidlite.errors import LeaseLostError, RequestRefusedError, ServerFailedError, StaleError
from fluidlite.protocol.events import Stepped
from fluidlite.protocol.messages import Gradient, Identity, Push, Registration, StepHeader
from fluidlite.pserver.buffer import Buffer, Contribution
from fluidlite.pserver.members import Members
from fluidlite.pserver.policy import Async, Rendezvous, Round, Sync
from fluidlite.pserver.service import PServer, ServiceOptions
from fluidlite.pserver.window import Outcome, Window
from tests.fake_cluster import DictStore


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def who(trainer: int = 0, incarnation: int = 1, job: str = "job") -> Identity:
    return Identity(job, trainer, incarnation)


# --- rounds ---------------------------------------------------------------------------------------------------------


def test_a_round_closes_when_the_last_live_trainer_comes_and_the_next_opens() -> None:
    policy = Sync()
    for _ in range(2):
        assert policy.arrive(2, {0, 1, 2}) is None
        assert policy.arrive(0, {0, 1, 2}) is None
        assert policy.missing({0, 1, 2}) == (1,)
        assert policy.arrive(1, {0, 1, 2}) == Round((0, 1, 2), tick=True)


def test_a_trainer_that_leaves_closes_the_round_of_the_others() -> None:
    policy = Sync()
    policy.arrive(0, {0, 1})
    assert policy.left({0}) == Round((0,), tick=True)
    assert policy.left({0}) is None


def test_the_step_of_a_trainer_that_left_after_it_counts() -> None:
    policy = Sync()
    policy.arrive(1, {0, 1})
    assert policy.left({0}) is None
    assert policy.arrive(0, {0}) == Round((0, 1), tick=True)
    policy.arrive(1, {0, 1})
    assert policy.left(()) == Round((1,), tick=True)


def test_coming_twice_is_coming_once() -> None:
    policy = Sync()
    assert policy.arrive(0, {0, 1}) is None
    assert policy.arrive(0, {0, 1}) is None
    assert policy.arrive(1, {0, 1}) == Round((0, 1), tick=True)


def test_a_withdrawn_trainer_is_waited_for_again() -> None:
    gate = Rendezvous()
    gate.arrive(0)
    gate.withdraw(0)
    gate.arrive(1)
    assert gate.meet({0, 1}) == ()
    assert gate.missing({0, 1}) == (0,)


def test_C09_B038_the_async_schedule_advances_once_per_live_trainers() -> None:
    policy = Async()
    ticks = [policy.arrive(trainer, {0, 1, 2}).tick for trainer in (0, 0, 1, 2, 2, 2, 0)]
    assert ticks == [True, False, False, True, False, False, True]
    assert policy.left({0, 2}) is None
    assert [policy.arrive(0, {0, 2}).tick for _ in range(3)] == [False, True, False]
    assert policy.left({0}) is None
    assert [policy.arrive(0, {0}).tick for _ in range(2)] == [True, True]
    assert policy.missing({0}) == ()


class Rounds(RuleBasedStateMachine):
    """Any order of arrivals, departures and returns: a round holds each trainer once, every live one, and no other
    than those that came since the last."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = Sync()
        self.live = set(range(4))
        self.came: set[int] = set()

    def check(self, decided: Round | None) -> None:
        if self.came and self.live <= self.came:
            assert decided == Round(tuple(sorted(self.came)), tick=True)
            self.came.clear()
        else:
            assert decided is None

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        trainer = data.draw(st.sampled_from(sorted(self.live)))
        self.came.add(trainer)
        self.check(self.policy.arrive(trainer, self.live))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.live.discard(data.draw(st.sampled_from(sorted(self.live))))
        self.check(self.policy.left(self.live))

    @rule(trainer=st.integers(0, 3))
    def join(self, trainer: int) -> None:
        self.live.add(trainer)

    @invariant()
    def never_stuck(self) -> None:
        assert not self.came or self.policy.missing(self.live)


TestRounds = Rounds.TestCase


# --- windows --------------------------------------------------------------------------------------------------------


def counted(window: Window, sequence: int) -> Outcome:
    """A new step that counts."""
    window.open(sequence)
    return window.decide(sequence)


def test_a_step_is_remembered_with_its_outcome() -> None:
    window = Window()
    assert window.find(0) is None
    outcome = counted(window, 0)
    assert not outcome.settled
    outcome.settle(7)
    assert window.find(0) is outcome
    assert outcome.result() == 7
    failed = counted(window, 1)
    failed.fail(ServerFailedError, "why")
    with pytest.raises(ServerFailedError, match="why"):
        failed.result()
    assert window.next == 2


def test_a_step_counts_once_it_is_decided_and_may_be_taken_back_before() -> None:
    window = Window()
    window.open(0)
    assert (window.next, window.undecided) == (0, 0)
    window.forget(0)
    assert window.find(0) is None
    assert window.undecided is None
    counted(window, 0)
    assert (window.next, window.undecided) == (1, None)


def test_a_window_comes_back_from_its_state_without_the_steps_that_are_open() -> None:
    window = Window()
    counted(window, 3).settle(9)
    counted(window, 4).fail(ServerFailedError, "why")
    counted(window, 5)
    window.open(6)
    other = Window()
    other.restore(json.loads(json.dumps(window.state())))
    assert (other.next, len(other)) == (6, 2)
    found = other.find(3)
    assert found is not None
    assert (found.decided, found.result()) == (True, 9)
    failed = other.find(4)
    assert failed is not None
    with pytest.raises(ServerFailedError, match="why"):
        failed.result()


def test_M08_a_window_does_not_grow() -> None:
    window = Window()
    for sequence in range(1000):
        assert window.find(sequence) is None
        counted(window, sequence)
    assert len(window) == Window.SIZE
    assert window.find(999 - Window.SIZE + 1) is not None
    with pytest.raises(StaleError, match="step 5 is older"):
        window.find(5)


@given(st.permutations(range(20)), st.lists(st.integers(0, 19)))
def test_steps_in_any_order_inside_the_window_are_opened_once(order: list[int], repeated: list[int]) -> None:
    window = Window()
    for sequence in [*order, *repeated]:
        if window.find(sequence) is None:
            counted(window, sequence)
    assert len(window) == window.next == 20


# --- the buffer -----------------------------------------------------------------------------------------------------


def contribution(trainer: int, sequence: int) -> Contribution:
    return Contribution(Stepped(step(trainer, sequence), tuple(GRADIENT), decided=True), Outcome())


def test_steps_are_given_away_by_trainer_the_oldest_first() -> None:
    buffer = Buffer()
    made = [contribution(1, 0), contribution(0, 0), contribution(1, 1)]
    for held in made:
        buffer.put(held)
    assert len(buffer) == 3
    assert buffer.take((0, 1)) == [made[1], made[0]]
    assert buffer.take((1,)) == [made[2]]
    assert len(buffer) == 0


def test_a_step_that_is_accepted_does_not_count_yet() -> None:
    buffer = Buffer()
    held = contribution(1, 5)
    buffer.accept(held)
    assert len(buffer) == 0
    assert (buffer.accepted(1), buffer.accepted(0)) == ([5], [])
    assert [(event.header.sequence, counts) for event, counts in buffer.held()] == [(5, False)]
    assert buffer.pop(1, 5) is held
    assert buffer.accepted(1) == []


def test_M06_a_trainer_that_runs_ahead_is_held_in_bounds_and_hangs_nobody() -> None:
    service = PServer(DictStore(), trainers=2, sync=True)
    for trainer in (0, 1):
        service.register(Registration(Identity("job", trainer, 1), 2))
    ahead = [service.commit(Push(step(0, sequence), GRADIENT, [])) for sequence in range(Window.SIZE)]
    with pytest.raises(RequestRefusedError, match="64 steps of trainer 0 are not applied yet"):
        service.commit(Push(step(0, Window.SIZE), GRADIENT, []))
    for sequence in range(3):
        assert service.commit(Push(step(1, sequence), GRADIENT, []))().version == sequence + 1
        assert ahead[sequence]().version == sequence + 1
    service.complete(Identity("job", 1, 1))
    assert [answer().version for answer in ahead[3:]] == list(range(4, Window.SIZE + 1))


# --- members --------------------------------------------------------------------------------------------------------


def members(clock: Clock | None = None) -> Members:
    return Members(3, lease=30.0, grace=2.0, clock=clock or Clock())


def test_every_trainer_is_live_until_it_leaves() -> None:
    group = members()
    assert group.live == group.absent == (0, 1, 2)
    group.register(who(1))
    assert group.absent == (0, 2)
    assert group.check_complete(who(1))
    group.complete(1)
    assert not group.check_complete(who(1))
    assert group.live == (0, 2)
    with pytest.raises(RequestRefusedError, match="complete"):
        group.require(who(1))
    with pytest.raises(RequestRefusedError, match="complete"):
        group.check_register(who(1))
    assert group.check_register(who(1, incarnation=2))
    group.register(who(1, incarnation=2))
    assert group.live == (0, 1, 2)


def test_a_lease_runs_out_unless_it_is_renewed() -> None:
    clock = Clock()
    group = members(clock)
    group.register(who(0))
    group.register(who(1))
    clock.now += 29
    group.require(who(1))
    assert group.overdue(clock.now) == []
    clock.now += 1
    assert group.overdue(clock.now) == [0]
    group.lose(0)
    assert group.overdue(clock.now) == []
    with pytest.raises(LeaseLostError, match="given up"):
        group.require(who(0))
    assert group.live == (1, 2)
    assert group.check_register(who(0)), "coming back is news"
    group.register(who(0))
    assert not group.check_register(who(0))
    assert group.live == (0, 1, 2)


def test_a_broken_connection_leaves_a_short_grace() -> None:
    clock = Clock()
    group = members(clock)
    for trainer in (0, 1):
        group.register(who(trainer))
        group.suspect(who(trainer))
    group.suspect(who(2))
    group.suspect(who(1, incarnation=0))
    clock.now += 1
    group.require(who(1))
    clock.now += 1
    assert group.overdue(clock.now) == [0]


def test_H24_incarnations_only_grow() -> None:
    group = members()
    with pytest.raises(LeaseLostError, match="not registered"):
        group.require(who(0))
    group.register(who(0, incarnation=5))
    counted(group.member(0).window, 3)
    group.register(who(0, incarnation=6))
    assert group.member(0).window.next == 4, "the steps of all incarnations are one sequence"
    for verb in (group.check_register, group.require, group.check_complete):
        with pytest.raises(StaleError, match="newer incarnation"):
            verb(who(0, incarnation=5))
    with pytest.raises(LeaseLostError):
        group.require(who(0, incarnation=7))


@pytest.mark.parametrize(
    ("identity", "text"),
    [(who(3), "none of the 3"), (who(-1), "none of the 3"), (who(1, job="other"), "works for job 'job'")],
)
def test_strangers_are_refused(identity: Identity, text: str) -> None:
    group = members()
    group.register(who(0))
    with pytest.raises(RequestRefusedError, match=text):
        group.check_register(identity)


def test_members_come_back_from_their_state() -> None:
    clock = Clock()
    group = members(clock)
    for trainer in range(3):
        group.register(who(trainer, incarnation=trainer))
    counted(group.member(1).window, 0).settle(4)
    group.complete(0)
    group.lose(2)
    other = members(clock)
    other.restore(json.loads(json.dumps(group.state())))
    clock.now += 1000
    other.begin_anew()
    assert (other.live, other.overdue(clock.now)) == ((1,), [])
    assert other.require(who(1)).window.next == 1
    with pytest.raises(StaleError):
        other.require(who(1, incarnation=0))
    with pytest.raises(LeaseLostError):
        other.require(who(2, incarnation=2))


def test_when_all_were_done_another_job_may_come() -> None:
    group = members()
    for trainer in range(3):
        group.register(who(trainer))
        group.complete(trainer)
    assert group.is_over
    group.clear()
    group.begin_anew()
    assert group.check_register(who(0, incarnation=0, job="another"))
    assert group.live == (0, 1, 2)


# --- the service with a clock of its own ----------------------------------------------------------------------------


def service(trainers: int = 2, **options: object) -> tuple[PServer, DictStore, Clock]:
    clock, store = Clock(), DictStore()
    made = PServer(store, trainers=trainers, sync=True, options=ServiceOptions(**options), clock=clock)
    for trainer in range(trainers):
        made.register(Registration(who(trainer), trainers))
    return made, store, clock


def step(trainer: int, sequence: int, rate: float | None = None) -> StepHeader:
    return StepHeader(who(trainer), sequence, sequence, 0, 1, rate)


GRADIENT = [Gradient("e", "w", np.ones(3))]


def test_H04_a_lease_that_runs_out_closes_the_round() -> None:
    server, store, clock = service()
    answer = server.commit(Push(step(0, 0), GRADIENT, ["w"]))
    clock.now += 29
    server.heartbeat(who(0))
    assert not server.poll(0.0)
    assert store.applied == []
    clock.now += 1
    assert not server.poll(0.0)
    reply = answer()
    assert reply.version == 1
    np.testing.assert_array_equal(reply.dense["w"], [-1.0] * 3)
    clock.now += 30
    assert server.poll(0.0), "without trainers the server ends"


def test_an_update_that_takes_longer_than_a_lease_makes_nobody_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    server, store, clock = service(trainers=1)
    looked = threading.Event()
    looker = threading.Thread(target=server.poll, args=(0.0,))
    read, apply = clock.__call__, store.apply

    def noted() -> float:
        if threading.current_thread() is looker:
            looked.set()
        return read()

    def slow(*step: object) -> int:
        looker.start()
        assert looked.wait(20)
        clock.now += 40
        return apply(*step)

    monkeypatch.setattr(server, "_clock", noted)
    monkeypatch.setattr(store, "apply", slow)
    assert server.commit(Push(step(0, 0), GRADIENT, []))().version == 1
    looker.join()
    assert server.live == (0,)


def test_H31_repeated_while_the_round_is_open_and_after_it() -> None:
    server, store, _ = service()
    answers = [server.commit(Push(step(0, 0), GRADIENT, [])) for _ in range(3)]
    answers.append(server.commit(Push(step(1, 0), GRADIENT, [])))
    answers.append(server.commit(Push(step(0, 0), GRADIENT, [])))
    assert [answer().version for answer in answers] == [1] * 5
    assert store.applied == [((0, 1), True)]
    np.testing.assert_array_equal(store.values["w"], [-1.0] * 3)


def test_a_refused_step_may_be_sent_again() -> None:
    server, store, _ = service(trainers=1)
    with pytest.raises(RequestRefusedError):
        server.commit(Push(step(0, 0), [Gradient("e", "nothing", np.ones(3))], []))
    assert server.commit(Push(step(0, 0), GRADIENT, []))().version == 1
    assert store.version == 1


def test_a_failed_step_repeats_its_failure() -> None:
    server, store, _ = service(trainers=1)
    store.poison = "broken"
    first = server.commit(Push(step(0, 0), GRADIENT, []))
    store.poison = None
    for answer in (first, server.commit(Push(step(0, 0), GRADIENT, []))):
        with pytest.raises(ServerFailedError, match="broken"):
            answer()
    assert server.commit(Push(step(0, 1), GRADIENT, []))().version == 1


def test_a_rate_that_a_step_carries_is_refused_not_ignored() -> None:
    server, _, _ = service(trainers=1)
    with pytest.raises(RequestRefusedError, match="schedule"):
        server.commit(Push(step(0, 0, rate=0.1), GRADIENT, []))


def test_a_barrier_out_of_order_is_refused() -> None:
    server, _, _ = service(trainers=1)
    server.barrier(who(0), 0)()
    server.barrier(who(0), 0)()
    with pytest.raises(RequestRefusedError, match="barrier 2 comes before barrier 1"):
        server.barrier(who(0), 2)
