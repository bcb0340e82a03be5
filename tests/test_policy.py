"""When steps count: every mode's rules as tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from fluidlite.errors import CorruptFileError
from fluidlite.ops.modes import Mode, Settings
from fluidlite.pserver.policy import Async, Policy, Rendezvous, Round, Ssp, Step, Sync, make_policy

ALL = (0, 1, 2)

# --- rounds of distinct trainers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait", "live", "arrivals", "rounds"),
    [
        (None, ALL, (2, 0, 1), [None, None, (0, 1, 2)]),
        (1, ALL, (2, 0, 1), [(2,), (0,), (1,)]),
        (2, ALL, (2, 0, 1, 2), [None, (0, 2), None, (1, 2)]),
        (2, ALL, (1, 1, 0), [None, None, (0, 1)]),
        (2, (1,), (1, 1), [(1,), (1,)]),
        (3, (0, 2), (2, 0), [None, (0, 2)]),
    ],
    ids=["all", "one", "late_one_opens_the_next", "twice_is_once", "fewer_live_than_wanted", "all_that_are_left"],
)
def test_a_round_of_distinct_trainers(
    wait: int | None, live: Sequence[int], arrivals: Sequence[int], rounds: list[tuple[int, ...] | None]
) -> None:
    policy = Sync(wait)
    found = [policy.arrive(trainer, live) for trainer in arrivals]
    assert found == [None if trainers is None else Round(trainers, 1) for trainers in rounds]
    assert policy.waits


def test_a_round_smaller_than_the_job_misses_whoever_may_complete_it() -> None:
    policy = Sync(2)
    policy.arrive(1, ALL)
    assert policy.missing(ALL) == (0, 2)
    assert policy.left((1, 2)) is None
    assert policy.left((1,)) == Round((1,), 1)


# --- ElasticDL's rule: pushes are counted ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait", "tolerance", "pushes", "answers"),
    [
        # (trainer, version seen) -> accepted, version after the push
        (1, 0, [(0, 0), (0, 1), (1, 2)], [(True, 1), (True, 2), (True, 3)]),
        (1, 0, [(0, 0), (1, 0), (1, 1)], [(True, 1), (False, 1), (True, 2)]),
        (2, 0, [(0, 0), (0, 0), (0, 0)], [(True, 0), (True, 1), (False, 1)]),
        (2, 0, [(0, 0), (1, 0), (1, 1), (0, 1)], [(True, 0), (True, 1), (True, 1), (True, 2)]),
        (1, 1, [(0, 0), (1, 0), (1, 0), (1, 1)], [(True, 1), (True, 2), (False, 2), (True, 3)]),
        (2, 1, [(0, 0), (0, 0), (1, 0), (1, 1), (1, 0)], [(True, 0), (True, 1), (True, 1), (True, 2), (False, 2)]),
        (1, 0, [(0, 7)], [(True, 1)]),
        (3, None, [(0, 0), (0, -5), (1, -9), (0, 0)], [(True, 0), (True, 0), (True, 1), (True, 1)]),
    ],
    ids=["every_push", "stale", "one_trainer_twice", "two", "tolerance", "two_and_tolerance", "ahead", "any_version"],
)
def test_the_elasticdl_rule(
    wait: int, tolerance: int | None, pushes: list[tuple[int, int]], answers: list[tuple[bool, int]]
) -> None:
    policy = Sync(wait, tolerance, distinct=False)
    version, found = 0, []
    for trainer, seen in pushes:
        accepted = policy.check(trainer, seen, version) is None
        if accepted and policy.arrive(trainer, (0, 1)) is not None:
            version += 1
        found.append((accepted, version))
    assert found == answers
    assert not policy.waits


def test_a_refusal_says_what_is_current() -> None:
    reason = Sync(version_tolerance=2).check(1, 3, 6)
    assert reason is not None
    for part in ("trainer 1", "from version 3", "at version 6", "older than 4", "pull"):
        assert part in reason
    assert Sync(version_tolerance=2).check(1, 4, 6) is None
    assert Sync().check(1, 0, 10**6) is None


def test_a_trainer_stands_in_a_round_as_often_as_it_pushed() -> None:
    policy = Sync(3, distinct=False)
    assert policy.arrive(1, ALL) is None
    assert policy.arrive(0, ALL) is None
    assert policy.missing(ALL) == (2,)
    assert policy.arrive(1, ALL) == Round((0, 1, 1), 1)


def test_what_is_left_when_the_last_trainer_leaves_makes_the_last_round() -> None:
    policy = Sync(3, distinct=False)
    policy.arrive(1, (0, 1))
    policy.arrive(1, (0, 1))
    assert policy.left((1,)) is None
    assert policy.missing((1,)) == (1,)
    assert policy.left(()) == Round((1, 1), 1)
    assert policy.left(()) is None


def test_steps_of_one_trainer_are_joined() -> None:
    first, second = Step(("a",), 3, 0.5), Step(("b", "c"), 2)  # type: ignore[arg-type]
    assert first.joined(second) == Step(("a", "b", "c"), 3, 0.5)  # type: ignore[arg-type]
    assert second.joined(Step((), 4, 0.0)) == Step(("b", "c"), 4, 0.0)  # type: ignore[arg-type]


# --- on arrival -----------------------------------------------------------------------------------------------------


def test_on_arrival_nothing_is_refused_held_or_waited_for() -> None:
    for policy in (Async(), Async(ticks=False), Async(max_steps=5)):
        assert policy.check(0, -100, 100) is None
        assert policy.arrive(1, ALL) is not None
        assert policy.missing(ALL) == ()
        assert not policy.holds(1, ALL)
        assert policy.waits


def test_the_schedule_of_geo_is_the_trainers_own() -> None:
    policy = Async(ticks=False)
    assert [policy.arrive(trainer, ALL) for trainer in (0, 1, 0)] == [Round((t,), 0) for t in (0, 1, 0)]


@pytest.mark.parametrize(
    ("live", "steps", "ticks"),
    [
        (3, [1, 1, 1, 1], [1, 0, 0, 1]),
        (3, [3, 3, 1], [1, 1, 1]),
        (3, [2, 2, 2], [1, 1, 0]),
        (3, [7, 1, 1], [3, 0, 0]),
        (1, [4, 1], [4, 1]),
        (2, [10**18, 1], [4, 1]),
        (2, [0, -3, 1], [1, 0, 1]),
    ],
)
def test_a_merged_push_moves_the_schedule_as_its_steps_would(live: int, steps: list[int], ticks: list[int]) -> None:
    merged, one_by_one = Async(max_steps=8), Async()
    trainers = range(live)
    for count, expected in zip(steps, ticks, strict=True):
        decided = merged.arrive(0, trainers, count)
        assert decided == Round((0,), expected)
        alone = [one_by_one.arrive(0, trainers) for _ in range(max(1, min(count, 8)))]
        assert sum(part.tick for part in alone if part is not None) == expected


# --- bounded staleness ----------------------------------------------------------------------------------------------


def after(policy: Policy, order: Sequence[int], live: Sequence[int] = ALL) -> list[int]:
    """Whose answers are held after these steps."""
    for trainer in order:
        assert policy.arrive(trainer, live) is not None
    return [trainer for trainer in live if policy.holds(trainer, live)]


@pytest.mark.parametrize(
    ("staleness", "order", "held", "missing"),
    [
        (0, (), [], ()),
        (0, (0,), [0], (1, 2)),
        (0, (0, 1), [0, 1], (2,)),
        (0, (0, 1, 2), [], ()),
        (1, (0,), [], ()),
        (1, (0, 0), [0], (1, 2)),
        (1, (0, 0, 1, 2), [], ()),
        (2, (0, 0, 1), [], ()),
        (2, (0, 0, 0, 1, 1), [0], (2,)),
    ],
)
def test_nobody_runs_further_ahead_than_allowed(
    staleness: int, order: Sequence[int], held: list[int], missing: tuple[int, ...]
) -> None:
    policy = Ssp(staleness)
    assert after(policy, order) == held
    assert policy.missing(ALL) == missing


def test_one_that_left_holds_nobody_up() -> None:
    policy = Ssp(0)
    assert after(policy, (0, 1)) == [0, 1]
    assert policy.left((0, 1)) is None
    assert not policy.holds(0, (0, 1))
    assert not policy.holds(2, (0, 1)), "its own answer is nobody's concern"


def test_one_that_comes_back_is_counted_from_where_the_slowest_is() -> None:
    policy = Ssp(1)
    after(policy, (0, 1, 2))
    policy.left((0, 1))
    after(policy, (0, 1, 0, 1, 0), (0, 1))
    assert policy.missing(ALL) == ()
    assert after(policy, (0,)) == [0]
    assert policy.missing(ALL) == (1, 2)
    assert after(policy, (1,)) == [0], "the one that came back stands where the slowest stood"
    assert after(policy, (2,)) == []


def test_one_that_comes_back_to_nobody_goes_on_from_the_highest_round() -> None:
    policy = Ssp(0)
    after(policy, (1, 1, 1), (1,))
    policy.left(())
    assert after(policy, (0,), (0, 1)) == [0]
    assert policy.missing((0, 1)) == (1,)
    assert policy.state()["made"] == [[0, 4], [1, 3]]


def test_the_schedule_of_ssp_is_that_of_async() -> None:
    ssp, other = Ssp(3), Async()
    assert [ssp.arrive(t, ALL) for t in (0, 1, 0, 2)] == [other.arrive(t, ALL) for t in (0, 1, 0, 2)]


# --- which policy, and its state ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kind", "rounds"),
    [
        (Settings(), Sync, [None, None]),
        (Settings(grads_to_wait=1), Sync, [Round((0,), 1), Round((0,), 1)]),
        (Settings(grads_to_wait=2, distinct_trainers=False), Sync, [None, Round((0, 0), 1)]),
        (Settings(Mode.ASYNC), Async, [Round((0,), 1), Round((0,), 0)]),
        (Settings(Mode.HALF_ASYNC), Async, [Round((0,), 1), Round((0,), 0)]),
        (Settings(Mode.GEO), Async, [Round((0,), 0), Round((0,), 0)]),
        (Settings(Mode.SSP, staleness=1), Ssp, [Round((0,), 1), Round((0,), 0)]),
    ],
    ids=lambda value: value.mode.name if isinstance(value, Settings) else None,
)
def test_the_policy_of_settings(settings: Settings, kind: type, rounds: list[Round | None]) -> None:
    policy = make_policy(settings)
    assert type(policy) is kind
    assert [policy.arrive(0, (0, 1)) for _ in range(2)] == rounds


def test_settings_reach_the_policy() -> None:
    assert make_policy(Settings(sync_version_tolerance=0)).check(0, 0, 1) is not None
    assert make_policy(Settings(sync_version_tolerance=1)).check(0, 0, 1) is None
    assert after(make_policy(Settings(Mode.SSP, staleness=1)), (0, 0)) == [0]
    merged = make_policy(Settings(Mode.HALF_ASYNC, max_merge_var_num=4)).arrive(0, (0,), 9)
    assert merged == Round((0,), 4)


@pytest.mark.parametrize("make", [Sync, Async, lambda: Ssp(1), lambda: Async(max_steps=3)])
def test_a_policy_goes_on_from_its_state(make: Any) -> None:
    order = [0, 1, 2, 0, 0, 1]
    one, other = make(), make()
    for trainer in order:
        one.arrive(trainer, ALL)
    waiting = order[3:] if isinstance(one, Sync) else []
    other.restore(json.loads(json.dumps(one.state())))
    for trainer in waiting:
        other.arrive(trainer, ALL)
    for trainer in (1, 2, 2, 0, 1, 2):
        assert one.arrive(trainer, ALL) == other.arrive(trainer, ALL)
        assert [one.holds(t, ALL) for t in ALL] == [other.holds(t, ALL) for t in ALL]
        assert one.missing(ALL) == other.missing(ALL)


def test_a_rendezvous_goes_on_from_its_state() -> None:
    one, other = Rendezvous(), Rendezvous()
    one.arrive(2)
    other.restore(json.loads(json.dumps(one.state())))
    assert other.missing(ALL) == (0, 1)


@pytest.mark.parametrize(
    ("policy", "state"),
    [
        (Sync(), {}),
        (Sync(), {"policy": "async", "since_tick": 0}),
        (Async(), {"policy": "async"}),
        (Async(), {"policy": "async", "since_tick": -1}),
        (Async(), {"policy": "async", "since_tick": "0"}),
        (Async(), {"policy": "async", "since_tick": True}),
        (Ssp(0), {"policy": "ssp", "since_tick": 0}),
        (Ssp(0), {"policy": "ssp", "since_tick": 0, "made": [[0]], "reached": 0}),
        (Ssp(0), {"policy": "ssp", "since_tick": 0, "made": [7], "reached": 0}),
        (Ssp(0), {"policy": "ssp", "since_tick": 0, "made": [[0, 1.5]], "reached": 0}),
        (Rendezvous(), {}),
        (Rendezvous(), {"present": [-1]}),
    ],
)
def test_a_state_that_is_none_is_refused(policy: Any, state: dict[str, Any]) -> None:
    with pytest.raises(CorruptFileError):
        policy.restore(state)
