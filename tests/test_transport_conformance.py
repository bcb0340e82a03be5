"""What trainers and servers may rely on, whatever carries their messages: one suite for both transports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fluidlite.errors import (
    LeaseLostError,
    PeerLostError,
    RequestRefusedError,
    ServerFailedError,
    StaleError,
)
from fluidlite.protocol.messages import (
    PROTOCOL_VERSION,
    READER,
    Decision,
    Declared,
    DenseRequest,
    Gradient,
    Push,
    Registration,
    RowRequest,
    StepHeader,
    TableRequest,
    Use,
)
from fluidlite.pserver.service import ServiceOptions
from fluidlite.rpc.retry import Patience
from fluidlite.values.selected_rows import SelectedRows
from tests.fake_cluster import PATIENCE, TRANSPORTS, DictStore, Dropping, FakeCluster

Make = Callable[..., FakeCluster]


@pytest.fixture(params=TRANSPORTS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    clusters: list[FakeCluster] = []

    def build(**options: Any) -> FakeCluster:
        clusters.append(FakeCluster(request.param, **options))
        return clusters[-1]

    yield build
    for cluster in clusters:
        cluster.close()


def row_gradient(endpoint: str, ids: Sequence[int], width: int = 2) -> Gradient:
    return Gradient(endpoint, "emb", np.ones((len(ids), width)), np.array(ids, np.int64))


def ids_request(endpoint: str, ids: Sequence[int], width: int = 2) -> RowRequest:
    return RowRequest(endpoint, "emb", np.array(ids, np.int64), width, "float64")


def test_a_step_changes_values_and_moves_the_version_by_one(make: Make) -> None:
    cluster = make()
    port = cluster.port()
    assert cluster.push(port, 0.5) == {cluster.endpoint: 1}
    np.testing.assert_array_equal(cluster.pull(port), [-0.5] * 3)


def test_C22_B108_dense_and_sparse_gradients_of_one_step_are_one_version(make: Make) -> None:
    cluster = make()
    port = cluster.port()
    port.stage(Gradient(cluster.endpoint, "w", np.ones(3)))
    port.stage(row_gradient(cluster.endpoint, [7, -3]))
    assert dict(port.commit([cluster.endpoint]).versions) == {cluster.endpoint: 1}
    assert cluster.store.applied == [((0,), True)]


def test_answers_come_in_the_order_of_requests_over_all_servers(make: Make) -> None:
    cluster = make(servers=3)
    port = cluster.port()
    for index, endpoint in enumerate(cluster.endpoints):
        port.assign(endpoint, "w", np.full(3, float(index)))
        port.assign(endpoint, "emb", SelectedRows(np.array([index]), np.full((1, 2), 10.0 + index), 0))
    a, b, c = cluster.endpoints
    answers = port.pull(
        [
            DenseRequest(c, "w"),
            ids_request(a, [0, 1, 0]),
            DenseRequest(a, "w"),
            TableRequest(b, "emb"),
            ids_request(b, []),
        ]
    )
    np.testing.assert_array_equal(answers[0], [2.0] * 3)
    np.testing.assert_array_equal(answers[1], [[10, 10], [0, 0], [10, 10]])
    np.testing.assert_array_equal(answers[2], [0.0] * 3)
    np.testing.assert_array_equal(answers[3].rows, [1])
    assert answers[4].shape == (0, 2)


def test_C01_C37_a_step_without_rows_ticks_every_server(make: Make) -> None:
    cluster = make(servers=2)
    port = cluster.port()
    port.stage(row_gradient(cluster.endpoints[0], []))
    assert set(port.commit(cluster.endpoints).versions.values()) == {1}
    assert [store.version for store in cluster.stores] == [1, 1]


def test_the_reply_of_a_commit_brings_what_recv_asks_for(make: Make) -> None:
    cluster = make()
    calls: list[str] = []

    class Counting:
        def __init__(self, channel: Any) -> None:
            self._channel = channel

        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(self._channel, name)

    port = cluster.port(wrap=Counting)
    cluster.pull(port)
    for step in range(1, 4):
        cluster.push(port)
        np.testing.assert_array_equal(cluster.pull(port), [-step] * 3)
    assert calls.count("pull") == 1
    np.testing.assert_array_equal(cluster.pull(port), [-3.0] * 3)
    assert calls.count("pull") == 2, "a value from a reply is handed out once"


def test_sync_applies_a_round_when_every_trainer_has_come(make: Make) -> None:
    cluster = make(trainers=3, servers=2)
    ports = [cluster.port(trainer) for trainer in range(3)]
    for round in range(1, 4):
        steps = [cluster.run(lambda p=port, v=trainer: cluster.push(p, v)) for trainer, port in enumerate(ports)]
        assert all(set(step.result(20).values()) == {round} for step in steps)
    assert all(store.applied == [((0, 1, 2), True)] * 3 for store in cluster.stores)
    np.testing.assert_array_equal(cluster.pull(ports[0]), [-3.0] * 3)


def test_trainers_that_name_servers_in_different_orders_do_not_lock_each_other(make: Make) -> None:
    cluster = make(trainers=2, servers=2)
    one, two = cluster.port(0), cluster.port(1)
    first = cluster.run(lambda: one.commit(cluster.endpoints))
    second = cluster.run(lambda: two.commit(cluster.endpoints[::-1]))
    assert dict(first.result(20).versions) == dict(second.result(20).versions)


def test_async_applies_at_once_and_ticks_once_per_live_trainers(make: Make) -> None:
    cluster = make(trainers=2, sync=False)
    one, two = cluster.port(0), cluster.port(1)
    for port in (one, one, two, two, one):
        cluster.push(port)
    assert cluster.store.applied == [((0,), True), ((0,), False), ((1,), True), ((1,), False), ((0,), True)]
    assert cluster.store.version == 5


def test_H11_four_async_trainers_at_once(make: Make) -> None:
    cluster = make(trainers=4, sync=False)
    ports = [cluster.port(trainer) for trainer in range(4)]
    jobs = [cluster.run(lambda p=port: [cluster.push(p) for _ in range(10)]) for port in ports]
    for job in jobs:
        job.result(30)
    np.testing.assert_array_equal(cluster.pull(ports[0]), [-40.0] * 3)
    assert cluster.store.version == 40


def test_H31_a_reply_that_gets_lost_does_not_apply_the_step_twice(make: Make) -> None:
    cluster = make()
    port = cluster.port(wrap=lambda channel: Dropping(channel, "commit", replies=2))
    assert cluster.push(port) == {cluster.endpoint: 1}
    assert cluster.push(port) == {cluster.endpoint: 2}
    np.testing.assert_array_equal(cluster.store.values["w"], [-2.0] * 3)


@pytest.mark.parametrize("verb", ["pull", "commit", "assign", "barrier", "complete"])
def test_every_verb_survives_lost_requests_and_replies(make: Make, verb: str) -> None:
    cluster = make()
    port = cluster.port(wrap=lambda channel: Dropping(channel, verb, requests=1, replies=1))
    port.assign(cluster.endpoint, "w", np.full(3, 5.0))
    port.barrier(cluster.endpoints)
    port.barrier(cluster.endpoints)
    np.testing.assert_array_equal(cluster.pull(port), [5.0] * 3)
    cluster.push(port)
    np.testing.assert_array_equal(cluster.pull(port), [4.0] * 3)
    port.complete()
    assert cluster.ended()


def test_H31_a_lost_reply_of_a_sync_round(make: Make) -> None:
    cluster = make(trainers=2)
    lossy, other = cluster.port(0, wrap=lambda c: Dropping(c, "commit", replies=1)), cluster.port(1)
    first = cluster.run(lambda: cluster.push(lossy))
    assert cluster.push(other) == first.result(20) == {cluster.endpoint: 1}
    assert cluster.store.applied == [((0, 1), True)]


def test_a_server_that_stays_unreachable_is_lost_within_the_total_deadline(make: Make) -> None:
    cluster = make()
    impatient = Patience(retry=0.3)
    port = cluster.port(wrap=lambda c: Dropping(c, "commit", requests=10**9), patience=impatient)
    with pytest.raises(PeerLostError, match=f"commit at pserver {cluster.endpoint}.*tried again for 0"):
        cluster.push(port)
    assert cluster.store.version == 0


def test_H24_an_older_incarnation_is_refused(make: Make) -> None:
    cluster = make(sync=False)
    old, new = cluster.port(incarnation=1), cluster.port(incarnation=2)
    cluster.push(old)
    cluster.push(new)
    with pytest.raises(StaleError, match=f"commit at pserver {cluster.endpoint}.*newer incarnation of trainer 0"):
        cluster.push(old)
    with pytest.raises(StaleError):
        cluster.pull(old)
    assert cluster.store.version == 2


def test_B105_a_second_registration_does_not_move_the_version(make: Make) -> None:
    cluster = make(trainers=2, sync=False)
    one = cluster.port(0)
    for _ in range(5):
        cluster.push(one)
    assert cluster.push(cluster.port(1)) == {cluster.endpoint: 6}


def test_H29_a_trainer_that_comes_back_gets_the_open_round(make: Make) -> None:
    cluster = make(trainers=2)
    one, two = cluster.port(0), cluster.port(1, incarnation=1)
    first = cluster.run(lambda: cluster.push(one))
    cluster.push(two)
    first.result(20)
    second = cluster.run(lambda: cluster.push(one))
    again = cluster.port(1, incarnation=2)
    assert cluster.push(again) == second.result(20) == {cluster.endpoint: 2}


def test_a_restarted_trainer_goes_on_behind_the_step_that_it_sent(make: Make) -> None:
    cluster = make(trainers=2)
    before = cluster.port(1, incarnation=1)
    lost = cluster.run(lambda: cluster.push(before, 100.0))
    cluster.until_waiting(lost)
    again = cluster.port(1, incarnation=2)
    again.declare({cluster.endpoint: []})
    resumed = cluster.run(again.resume)
    while cluster.services[0]._members.member(1).incarnation != 2:
        assert not resumed.done()
    with pytest.raises(StaleError):
        cluster.pull(cluster.port(1, incarnation=1))
    one = cluster.port(0)
    cluster.push(one, 2.0)
    assert resumed.result(20) == 1, "it waited for the round that its step belongs to"
    outcome = lost.exception(20)
    assert outcome is None or isinstance(outcome, StaleError)
    assert cluster.store.applied == [((0, 1), 1)]
    np.testing.assert_array_equal(cluster.pull(again), [-51.0] * 3)
    steps = [cluster.run(lambda p=port: cluster.push(p, 1.0)) for port in (one, again)]
    assert [step.result(20) for step in steps] == [{cluster.endpoint: 2}] * 2


@pytest.mark.parametrize("elsewhere", [True, False])
def test_what_a_dead_trainer_left_undecided_counts_if_it_does_anywhere(make: Make, elsewhere: bool) -> None:
    cluster = make(servers=2, sync=False)
    before = cluster.port(0, incarnation=1)
    peers = [before._peers.met(endpoint) for endpoint in cluster.endpoints]
    header = StepHeader(before.identity, 0, 0, 0, 1)
    for peer in peers:
        gradient = Gradient(peer.endpoint, "w", np.ones(3))
        peer.channel.commit(Push(header, [gradient], [], decided=False))()
    if elsewhere:
        peers[1].channel.decide(Decision(before.identity, 0, apply=True))()
    again = cluster.port(0, incarnation=2)
    again.declare({endpoint: [] for endpoint in cluster.endpoints})
    assert again.resume() == elsewhere
    assert [store.version for store in cluster.stores] == [elsewhere] * 2
    assert cluster.push(again) == dict.fromkeys(cluster.endpoints, 1 + elsewhere)


def test_H32_a_step_that_one_server_refuses_counts_on_none(make: Make) -> None:
    cluster = make(servers=2, sync=False)
    port = cluster.port()
    port.stage(Gradient(cluster.endpoints[0], "w", np.ones(3)))
    port.stage(Gradient(cluster.endpoints[1], "nothing", np.ones(3)))
    with pytest.raises(
        RequestRefusedError, match=f"step 0: commit at pserver {cluster.endpoints[1]}.*unknown gradient"
    ):
        port.commit(cluster.endpoints)
    assert [store.version for store in cluster.stores] == [0, 0]
    assert cluster.push(port) == dict.fromkeys(cluster.endpoints, 1)


def test_without_two_phases_a_step_counts_on_each_server_at_once(make: Make) -> None:
    cluster = make(servers=2, sync=False)
    port = cluster.port()
    port.two_phase = False
    port.stage(Gradient(cluster.endpoints[0], "w", np.ones(3)))
    port.stage(Gradient(cluster.endpoints[1], "nothing", np.ones(3)))
    with pytest.raises(RequestRefusedError):
        dict(port.commit(cluster.endpoints).versions)
    assert [store.version for store in cluster.stores] == [1, 0]


@pytest.mark.parametrize(
    ("gradient", "text"),
    [
        (lambda e: Gradient(e, "nothing", np.ones(3)), "unknown gradient 'nothing'"),
        (lambda e: row_gradient(e, [1], width=5), "width 5"),
    ],
)
def test_H26_H21_C42_a_wrong_push_is_refused_and_the_server_goes_on(
    make: Make, gradient: Callable[[str], Gradient], text: str
) -> None:
    cluster = make()
    port = cluster.port()
    port.stage(gradient(cluster.endpoint))
    with pytest.raises(RequestRefusedError, match=f"commit at pserver {cluster.endpoint}.*{text}"):
        port.commit([cluster.endpoint])
    assert cluster.push(port) == {cluster.endpoint: 1}


def test_a_wrong_pull_is_refused_and_the_server_goes_on(make: Make) -> None:
    cluster = make()
    port = cluster.port()
    with pytest.raises(RequestRefusedError, match=f"pull at pserver {cluster.endpoint}.*unknown variable 'v'"):
        cluster.pull(port, "v")
    with pytest.raises(RequestRefusedError, match="width 2, not 5"):
        port.pull([ids_request(cluster.endpoint, [1], width=5)])
    cluster.pull(port)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"trainers": 4}, "transpiled for 4 trainers, this server for 2"),
        ({"trainer": 2}, "trainer 2 is none of the 2"),
        ({"trainer": -2}, "trainer -2 is none of the 2"),
    ],
)
def test_a_trainer_of_another_job_is_refused(make: Make, change: dict[str, Any], text: str) -> None:
    cluster = make(trainers=2)
    with pytest.raises(RequestRefusedError, match=text):
        cluster.pull(cluster.port(**change))
    cluster.pull(cluster.port(0))
    with pytest.raises(RequestRefusedError, match="works for job"):
        cluster.pull(cluster.port(1, job="another"))


def test_who_is_no_trainer_reads_and_is_counted_nowhere(make: Make) -> None:
    cluster = make(trainers=1, servers=2)
    reader = cluster.port(READER, job="another", trainers=0)
    trainer = cluster.port()
    rows = [replace(ids_request(endpoint, [5]), read_only=True) for endpoint in cluster.endpoints]
    np.testing.assert_array_equal(reader.pull(rows), np.zeros((2, 1, 2)))
    cluster.push(trainer)
    np.testing.assert_array_equal(reader.pull([DenseRequest(cluster.endpoint, "w")])[0], [-1.0] * 3)
    assert [service.live for service in cluster.services] == [(0,), (0,)]
    reader.complete()
    cluster.push(trainer)
    trainer.complete()
    assert cluster.ended(), "nobody waits for readers"


def test_who_is_no_trainer_changes_nothing(make: Make) -> None:
    cluster = make()
    reader = cluster.port(READER, trainers=0)
    for request in (ids_request(cluster.endpoint, [5]), TableRequest(cluster.endpoint, "emb")):
        with pytest.raises(RequestRefusedError, match="who is no trainer can read rows that there are, and arrays"):
            reader.pull([request])
    with pytest.raises(RequestRefusedError, match="trainer -1 is none of the 1 of this job"):
        cluster.push(reader)
    for call in (
        lambda: reader.assign(cluster.endpoint, "w", np.zeros(3)),
        lambda: reader.barrier(cluster.endpoints),
        lambda: reader.checkpoint(cluster.endpoints),
    ):
        with pytest.raises(RequestRefusedError, match="trainer -1 is none"):
            call()
    assert cluster.store.version == 0
    assert cluster.store.rows == {}


def test_a_reader_is_told_when_the_servers_end(make: Make) -> None:
    cluster = make()
    reader = cluster.port(READER, trainers=0, patience=Patience(retry=0.2))
    reader.pull([DenseRequest(cluster.endpoint, "w")])
    cluster.services[0].stop("the job is over")
    with pytest.raises(PeerLostError):
        reader.pull([DenseRequest(cluster.endpoint, "w", current=True)])


def test_servers_without_a_keeper_refuse_to_write_checkpoints(make: Make) -> None:
    cluster = make(servers=2)
    port = cluster.port()
    with pytest.raises(RequestRefusedError, match="keeps no checkpoints"):
        port.checkpoint(cluster.endpoints)
    cluster.push(port)


def test_another_version_of_the_protocol_is_refused(make: Make) -> None:
    cluster = make()
    channel = cluster.connect(cluster.endpoint)
    identity = cluster.port().identity
    with pytest.raises(RequestRefusedError, match=f"version {PROTOCOL_VERSION + 1} of the protocol"):
        channel.register(Registration(identity, 1, protocol=PROTOCOL_VERSION + 1), 10.0)
    channel.close()


def test_a_width_that_does_not_fit_is_refused_at_registration(make: Make) -> None:
    cluster = make()
    port = cluster.port()
    port.declare({cluster.endpoint: [Declared("emb", Use.ROWS, "float64", (4,))]})
    with pytest.raises(RequestRefusedError, match=f"register at pserver {cluster.endpoint}.*width 2, not 4"):
        cluster.pull(port)


def test_what_is_declared_later_is_checked_at_the_next_contact(make: Make) -> None:
    cluster = make()
    port = cluster.port()
    cluster.push(port)
    port.declare({cluster.endpoint: [Declared("v", Use.DENSE, "float64", (4,))]})
    with pytest.raises(RequestRefusedError, match="unknown variable 'v'"):
        cluster.push(port)


def test_an_update_that_fails_wakes_everybody_and_the_server_goes_on(make: Make) -> None:
    cluster = make(trainers=2)
    ports = [cluster.port(trainer) for trainer in range(2)]
    cluster.store.poison = "division of rows"
    steps = [cluster.run(lambda p=port: cluster.push(p)) for port in ports]
    for step in steps:
        with pytest.raises(ServerFailedError, match=f"pserver {cluster.endpoint}.*ZeroDivisionError: division of rows"):
            step.result(20)
    cluster.store.poison = None
    steps = [cluster.run(lambda p=port: cluster.push(p)) for port in ports]
    assert [step.result(20) for step in steps] == [{cluster.endpoint: 1}] * 2


def test_B095_a_trainer_that_completes_shrinks_the_round(make: Make) -> None:
    cluster = make(trainers=2)
    short, long = cluster.port(0), cluster.port(1)

    def train(port: Any, steps: int) -> None:
        for _ in range(steps):
            cluster.push(port)
        port.complete()

    jobs = [cluster.run(lambda: train(short, 3)), cluster.run(lambda: train(long, 8))]
    for job in jobs:
        job.result(30)
    assert cluster.store.applied == [((0, 1), True)] * 3 + [((1,), True)] * 5
    np.testing.assert_array_equal(cluster.store.values["w"], [-8.0] * 3)


def test_C11_the_divisor_is_what_was_summed(make: Make) -> None:
    cluster = make(trainers=2)
    one, two = cluster.port(0), cluster.port(1)
    first = cluster.run(lambda: cluster.push(one, 2.0))
    cluster.push(two, 4.0)
    first.result(20)
    np.testing.assert_array_equal(cluster.pull(one), [-3.0] * 3)
    two.complete()
    cluster.push(one, 2.0)
    np.testing.assert_array_equal(cluster.pull(one), [-5.0] * 3)


def test_H01_H19_B093_servers_end_when_all_trainers_are_complete(make: Make) -> None:
    cluster = make(trainers=2, servers=3)
    ports = [cluster.port(trainer) for trainer in range(2)]
    for port in ports:
        port.declare({endpoint: [] for endpoint in cluster.endpoints})
    cluster.pull(ports[0])
    ports[0].complete()
    assert not cluster.services[0].poll(0.0)
    ports[1].complete()
    ports[1].complete()
    assert cluster.ended()


def test_H06_a_server_without_variables_ticks_and_ends(make: Make) -> None:
    cluster = make(servers=2, make_store=lambda: DictStore(w=np.zeros(3)))
    cluster.stores[1].values.clear()
    port = cluster.port()
    port.stage(Gradient(cluster.endpoints[0], "w", np.ones(3)))
    port.commit(cluster.endpoints)
    port.barrier(cluster.endpoints)
    assert cluster.stores[1].version == 1
    port.complete()
    assert cluster.ended()


def test_after_complete_nothing_can_be_asked(make: Make) -> None:
    cluster = make(trainers=2)
    port = cluster.port()
    cluster.pull(port)
    port.complete()
    with pytest.raises(PeerLostError):
        cluster.pull(port)


def test_a_barrier_waits_for_every_live_trainer(make: Make) -> None:
    cluster = make(trainers=3, servers=2)
    ports = [cluster.port(trainer) for trainer in range(3)]
    waiting = [cluster.run(lambda p=port: p.barrier(cluster.endpoints)) for port in ports[:2]]
    ports[2].declare({endpoint: [] for endpoint in cluster.endpoints})
    cluster.pull(ports[2])
    assert not any(wait.done() for wait in waiting)
    ports[2].complete()
    for wait in waiting:
        wait.result(20)


def test_H04_a_trainer_whose_connection_breaks_is_given_up_and_the_others_go_on(make: Make) -> None:
    cluster = make(trainers=2, options=ServiceOptions(grace=0.0))
    one, two = cluster.port(0), cluster.port(1)
    cluster.pull(two)
    step = cluster.run(lambda: cluster.push(one, 4.0))
    two.close()
    assert step.result(20) == {cluster.endpoint: 1}
    assert cluster.store.applied == [((0,), True)]
    np.testing.assert_array_equal(cluster.pull(one), [-4.0] * 3)


def test_H04_or_all_get_an_error_when_the_policy_is_to_abort(make: Make) -> None:
    cluster = make(trainers=3, options=ServiceOptions(grace=0.0, on_loss="abort"))
    ports = [cluster.port(trainer) for trainer in range(3)]
    cluster.pull(ports[2])
    steps = [cluster.run(lambda p=port: cluster.push(p)) for port in ports[:2]]
    cluster.until_waiting(*steps)
    ports[2].close()
    for step in steps:
        with pytest.raises(PeerLostError, match=r"trainer\(s\) 2 died"):
            step.result(20)
    assert cluster.ended()


def test_a_trainer_that_was_given_up_registers_again_and_goes_on(make: Make) -> None:
    cluster = make(trainers=2, sync=False, options=ServiceOptions(grace=0.0))
    port = cluster.port(1)
    cluster.push(port)
    cluster.services[0].disconnected(port.identity)
    assert cluster.services[0].live == (0,)
    assert cluster.push(port) == {cluster.endpoint: 2}
    assert cluster.services[0].live == (0, 1)


def test_stop_wakes_those_who_wait(make: Make) -> None:
    cluster = make(trainers=2)
    one, two = cluster.port(0), cluster.port(1)
    service = cluster.services[0]
    step = cluster.run(lambda: cluster.push(one))
    barrier = cluster.run(lambda: two.barrier(cluster.endpoints))
    cluster.until_waiting(step)
    while service._ledger.gate.missing((0, 1)) != (0,):
        assert not barrier.done()
    service.stop("told to stop")
    for job in (step, barrier):
        with pytest.raises(PeerLostError):
            job.result(20)
    assert cluster.ended()


def test_a_server_that_forgot_everything_is_not_mistaken_for_the_old_one(make: Make) -> None:
    cluster = make()
    port = cluster.port()
    cluster.push(port)
    cluster.store.version = 0
    cluster.services[0]._members._members.clear()
    with pytest.raises(PeerLostError, match="lost its state"):
        cluster.push(port)


def test_a_round_that_waits_says_who_is_missing(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    cluster = make(trainers=3, options=ServiceOptions(report_every=0.05))
    one, two = cluster.port(0), cluster.port(1)
    cluster.pull(two)
    with caplog.at_level(logging.WARNING, "fluidlite"):
        step = cluster.run(lambda: cluster.push(one))
        while not any("waits for trainers 1, 2 (never came)" in r.getMessage() for r in list(caplog.records)):
            assert not step.done()
    two.complete()
    cluster.port(2).declare({cluster.endpoint: []})
    cluster.ports[-1].complete()
    step.result(20)


@pytest.mark.parametrize("megabytes", [5, 64])
def test_U01_B100_values_of_any_size_travel(make: Make, megabytes: int) -> None:
    big = np.arange(megabytes * 131072, dtype=np.float64)
    cluster = make(make_store=lambda: DictStore(big=np.zeros_like(big)))
    port = cluster.port()
    port.assign(cluster.endpoint, "big", big)
    np.testing.assert_array_equal(cluster.pull(port, "big"), big)
    port.stage(Gradient(cluster.endpoint, "big", 2 * big))
    port.commit(cluster.endpoints)
    np.testing.assert_array_equal(cluster.pull(port, "big"), -big)


def test_B020_ten_servers_ten_trainers(make: Make) -> None:
    cluster = make(trainers=10, servers=10)
    ports = [cluster.port(trainer) for trainer in range(10)]

    def train(port: Any) -> None:
        for endpoint in cluster.endpoints:
            port.stage(row_gradient(endpoint, [3, 4]))
        port.commit(cluster.endpoints)

    for job in [cluster.run(lambda p=port: train(p)) for port in ports]:
        job.result(60)
    for store in cluster.stores:
        assert sorted(store.rows) == [3, 4]
        np.testing.assert_allclose(list(store.rows.values()), -1.0)


def test_a_run_that_failed_half_way_does_not_count_with_the_next(make: Make) -> None:
    cluster = make()
    port = cluster.port()
    port.stage(Gradient(cluster.endpoint, "w", np.full(3, 99.0)))
    cluster.push(port, 1.0)
    np.testing.assert_array_equal(cluster.pull(port), [-1.0] * 3)


def test_B106_servers_at_different_versions_do_not_stall_a_round(make: Make) -> None:
    cluster = make(trainers=2, servers=2)
    one, two = cluster.port(0), cluster.port(1)
    for expected in ({cluster.endpoints[0]: 1}, dict(zip(cluster.endpoints, (2, 1), strict=True))):
        steps = [cluster.run(lambda p=port, e=expected: p.commit(list(e))) for port in (one, two)]
        assert [dict(step.result(20).versions) for step in steps] == [expected] * 2


def test_errors_are_catchable_as_what_users_expect() -> None:
    assert issubclass(PeerLostError, ConnectionError)
    assert issubclass(LeaseLostError, StaleError)
    assert PATIENCE.retry < PATIENCE.connect
