"""Policies under any order of pushes, departures, deaths and returns."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fluidlite.pserver.policy import Async, Policy, Round, Ssp, Sync

TRAINERS = range(4)
MAKES: dict[str, Callable[[], Policy]] = {
    "sync": Sync,
    "sync of 1": lambda: Sync(1),
    "sync of 2": lambda: Sync(2, 1),
    "sync of 3": lambda: Sync(3),
    "2 pushes": lambda: Sync(2, 0, distinct=False),
    "5 pushes": lambda: Sync(5, 2, distinct=False),
    "async": Async,
    "ssp 0": lambda: Ssp(0),
    "ssp 2": lambda: Ssp(2),
}


class Server:
    """What a server does with a policy: holds the steps that wait, and answers those that are applied."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.live = set(TRAINERS)
        self.version = 0
        self.pushed = 0
        self.waiting: dict[int, deque[int]] = {trainer: deque() for trainer in TRAINERS}
        self.applied: list[int] = []
        self.refused: list[int] = []
        self.seen: dict[int, int] = {}
        self.rounds: list[tuple[Round, list[int]]] = []

    def may_push(self, trainer: int) -> bool:
        """Whether the answer to the trainer's last step came."""
        if trainer not in self.live:
            return False
        answered = not self.policy.waits or not self.waiting[trainer]
        return answered and not self.policy.holds(trainer, self.live)

    def push(self, trainer: int, seen: int) -> None:
        step, self.pushed = self.pushed, self.pushed + 1
        self.seen[step] = seen
        if self.policy.check(trainer, seen, self.version) is not None:
            self.refused.append(step)
            return
        self.waiting[trainer].append(step)
        self.apply(self.policy.arrive(trainer, self.live))

    def leave(self, trainer: int) -> None:
        self.live.discard(trainer)
        self.apply(self.policy.left(self.live))

    def apply(self, decided: Round | None) -> None:
        if decided is None:
            return
        steps = [self.waiting[trainer].popleft() for trainer in decided.trainers]
        self.applied += steps
        self.rounds.append((decided, steps))
        self.version += 1


class AnyOrder(RuleBasedStateMachine):
    """Nothing is lost or counted twice, only what was accepted is applied, and nobody waits for nobody."""

    server: Server
    kind: str

    @initialize(kind=st.sampled_from(sorted(MAKES)))
    def start(self, kind: str) -> None:
        self.kind = kind
        self.server = Server(MAKES[kind]())

    @precondition(lambda self: any(map(self.server.may_push, TRAINERS)))
    @rule(data=st.data(), behind=st.integers(-1, 4))
    def push(self, data: st.DataObject, behind: int) -> None:
        able = [trainer for trainer in TRAINERS if self.server.may_push(trainer)]
        self.server.push(data.draw(st.sampled_from(able)), self.server.version - behind)

    @precondition(lambda self: self.server.live)
    @rule(data=st.data())
    def leave_or_die(self, data: st.DataObject) -> None:
        self.server.leave(data.draw(st.sampled_from(sorted(self.server.live))))

    @rule(trainer=st.sampled_from(TRAINERS))
    def join_or_return(self, trainer: int) -> None:
        self.server.live.add(trainer)

    @precondition(lambda self: self.kind.startswith("sync") and any(self.server.waiting.values()))
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """A new incarnation of a trainer whose step waits repeats it: that changes nothing but perhaps who is missing."""
        server = self.server
        trainer = data.draw(st.sampled_from([t for t in TRAINERS if server.waiting[t]]))
        server.live.add(trainer)
        server.apply(server.policy.arrive(trainer, server.live))

    @invariant()
    def nothing_is_counted_twice_and_nothing_is_lost(self) -> None:
        server = self.server
        held = [step for steps in server.waiting.values() for step in steps]
        assert sorted([*server.applied, *server.refused, *held]) == list(range(server.pushed))

    @invariant()
    def a_round_is_what_the_policy_promises(self) -> None:
        for decided, steps in self.server.rounds:
            assert steps
            assert list(decided.trainers) == sorted(decided.trainers)
            if isinstance(self.server.policy, Sync):
                assert decided.tick == 1
            if "pushes" not in self.kind:
                assert len(set(decided.trainers)) == len(decided.trainers)
            if self.kind.startswith("sync of"):
                assert len(steps) <= int(self.kind[-1])

    @invariant()
    def nobody_waits_for_nobody(self) -> None:
        server = self.server
        waits = any(server.waiting.values()) or any(server.policy.holds(t, server.live) for t in server.live)
        missing = server.policy.missing(server.live)
        assert set(missing) <= server.live
        if waits:
            assert missing, "somebody is waited for"
            assert any(map(server.may_push, missing)), "and one of them can end the wait"

    @invariant()
    def without_trainers_nothing_waits(self) -> None:
        if not self.server.live:
            assert not any(self.server.waiting.values())

    @invariant()
    def holding_an_answer_changes_nothing(self) -> None:
        before = self.server.policy.state()
        for trainer in TRAINERS:
            self.server.policy.holds(trainer, self.server.live)
            self.server.policy.missing(self.server.live)
        assert self.server.policy.state() == before


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class Schedule:
    """Trainers that go on whenever they may, at random; their own count of who is how far ahead."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.staleness = self.random.randrange(5)
        self.policy = Ssp(self.staleness)
        self.live = set(range(self.random.randrange(2, 6)))
        self.steps = dict.fromkeys(self.live, 0)
        self.furthest = 0
        #: some trainers are much slower than others
        self.speed = {trainer: self.random.choice([1, 1, 5, 20]) for trainer in self.live}

    def run(self, events: int) -> None:
        everybody = sorted(self.live)
        for _ in range(events):
            kind = self.random.random()
            if kind < 0.04 and len(self.live) > 1:
                self.live.discard(self.random.choice(sorted(self.live)))
                self.policy.left(self.live)
            elif kind < 0.08:
                self.come(self.random.choice(everybody))
            else:
                self.step()

    def come(self, trainer: int) -> None:
        """A trainer that left comes back to the round where the slowest is."""
        if trainer not in self.live:
            self.steps[trainer] = min(self.steps[other] for other in self.live)
            self.live.add(trainer)

    def step(self) -> None:
        able = [trainer for trainer in sorted(self.live) if not self.policy.holds(trainer, self.live)]
        assert able, "all are held"
        (trainer,) = self.random.choices(able, [self.speed[t] for t in able])
        slowest = min(self.steps[other] for other in self.live)
        self.furthest = max(self.furthest, self.steps[trainer] - slowest)
        self.steps[trainer] += 1
        assert self.policy.arrive(trainer, self.live) is not None


def test_ssp_never_exceeds_its_staleness_in_10000_random_schedules() -> None:
    reached = set()
    for seed in range(10_000):
        schedule = Schedule(seed)
        schedule.run(40)
        assert schedule.furthest <= schedule.staleness, f"schedule {seed}"
        reached.add((schedule.staleness, schedule.furthest))
    for staleness in range(5):
        assert (staleness, staleness) in reached, "the bound is reached: nobody is held for nothing"


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_trainer_that_is_held_goes_on_with_the_slowest_step(staleness: int) -> None:
    policy = Ssp(staleness)
    for _ in range(staleness + 1):
        policy.arrive(0, (0, 1))
    assert policy.holds(0, (0, 1))
    policy.arrive(1, (0, 1))
    assert not policy.holds(0, (0, 1))
