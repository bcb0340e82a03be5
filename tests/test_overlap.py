"""What overlaps with computation: gradients that leave ahead of the commit, replies that are waited for late, rows that are
asked for ahead. For both transports, and what only a network shows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from fluidlite.dtypes import Array
from fluidlite.errors import PeerLostError, RequestRefusedError, ServerFailedError, UnreachableError
from fluidlite.protocol.messages import DenseRequest, Gradient, Push, RowRequest, StepHeader
from fluidlite.pserver.service import ServiceOptions
from fluidlite.rpc import port as port_module
from fluidlite.rpc.port import TrainerPort
from fluidlite.rpc.retry import Patience
from tests.fake_cluster import TRANSPORTS, DictStore, FakeCluster

Make = Callable[..., FakeCluster]
#: elements of a gradient large enough to leave ahead
LARGE = 1 << 17


@pytest.fixture(params=TRANSPORTS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    clusters: list[FakeCluster] = []

    def build(transport: str = request.param, **options: Any) -> FakeCluster:
        options.setdefault("make_store", lambda: DictStore(w=np.zeros(LARGE), v=np.zeros(LARGE), b=np.zeros(1)))
        options.setdefault("options", ServiceOptions(grace=20.0))
        clusters.append(FakeCluster(transport, **options))
        return clusters[-1]

    yield build
    for cluster in clusters:
        cluster.close()


def stage(cluster: FakeCluster, port: TrainerPort, name: str, value: float) -> None:
    size = 1 if name == "b" else LARGE
    for endpoint in cluster.endpoints:
        port.stage(Gradient(endpoint, name, np.full(size, value)))


def sums(cluster: FakeCluster) -> dict[str, float]:
    """The one number that each variable of the first server holds everywhere."""
    found = {}
    for name, value in cluster.store.values.items():
        assert (value == value[0]).all(), name
        found[name] = float(value[0])
    return found


def bytes_pushed(cluster: FakeCluster, port: TrainerPort) -> int:
    verbs = port.traffic[cluster.endpoint]
    return verbs["push"].sent if "push" in verbs else 0


class Unreliable:
    """A channel that loses replies to commits, or does what ``before`` says before each."""

    def __init__(self, channel: Any, replies: int = 0, before: Callable[[Any], None] | None = None) -> None:
        self._channel = channel
        self._replies = replies
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def commit(self, *step: Any) -> Any:
        if self._before is not None:
            self._before(self._channel)
        pending = self._channel.commit(*step)

        def answer() -> Any:
            reply = pending()
            if self._replies:
                self._replies -= 1
                raise UnreachableError("reply dropped")
            return reply

        return answer


# gradients that leave ahead


@pytest.mark.parametrize("sync", [True, False])
def test_steps_with_large_gradients_change_values_once(make: Make, sync: bool) -> None:
    cluster = make(sync=sync, servers=2)
    port = cluster.port()
    for step in range(1, 4):
        for name in ("b", "w", "v"):
            stage(cluster, port, name, 1.0)
        assert set(port.commit(cluster.endpoints).versions.values()) == {step}
    assert sums(cluster) == {"w": -3.0, "v": -3.0, "b": -3.0}
    assert cluster.store.applied == [((0,), True)] * 3


def test_a_run_that_failed_half_way_leaves_nothing(make: Make) -> None:
    cluster = make()
    port = cluster.port()
    port.commit(cluster.endpoints)
    stage(cluster, port, "w", 99.0)
    stage(cluster, port, "v", 99.0)
    assert sums(cluster) == {"w": 0.0, "v": 0.0, "b": 0.0}
    for value in (1.0, 2.0):
        for name in ("w", "v", "b"):
            stage(cluster, port, name, value)
        port.commit(cluster.endpoints)
    assert sums(cluster) == {"w": -3.0, "v": -3.0, "b": -3.0}
    assert cluster.store.version == 3


def test_a_trainer_that_dies_half_way_leaves_nothing(make: Make) -> None:
    cluster = make(trainers=2, sync=False, options=ServiceOptions(grace=0.0))
    lost, other = cluster.port(0), cluster.port(1)
    lost.commit(cluster.endpoints)
    other.commit(cluster.endpoints)
    stage(cluster, lost, "w", 99.0)
    lost.close()
    stage(cluster, other, "w", 1.0)
    assert other.commit(cluster.endpoints).versions
    assert sums(cluster)["w"] == -1.0


def test_a_lost_reply_does_not_apply_the_early_parts_twice(make: Make) -> None:
    cluster = make()
    port = cluster.port(wrap=lambda channel: Unreliable(channel, replies=2), patience=Patience(retry=20.0))
    port.commit(cluster.endpoints)
    for name in ("w", "v", "b"):
        stage(cluster, port, name, 1.0)
    port.commit(cluster.endpoints)
    assert sums(cluster) == {"w": -1.0, "v": -1.0, "b": -1.0}
    assert cluster.store.version == 2


def test_steps_of_threads_with_large_gradients_stay_whole(make: Make) -> None:
    """Each step sends its own number to both variables: were parts mixed, these would differ in between."""
    cluster = make(sync=False)
    port = cluster.port()
    port.commit(cluster.endpoints)
    seen: list[tuple[float, float]] = []
    apply = cluster.store.apply

    def recorded(steps: Any, tick: int) -> int:
        by_name = {gradient.name: gradient.value for gradient in steps[0].gradients}
        seen.append((float(by_name["w"][0]), float(by_name["v"][-1])))
        return apply(steps, tick)

    cluster.store.apply = recorded  # type: ignore[method-assign]
    together = threading.Barrier(3)

    def train(thread: int) -> None:
        for step in range(6):
            stage(cluster, port, "w", thread * 100.0 + step)
            if step < 2:
                together.wait(20)
            stage(cluster, port, "v", thread * 100.0 + step)
            assert port.commit(cluster.endpoints).versions

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(train, range(3)))
    assert sorted(seen) == [(t * 100.0 + s,) * 2 for t in range(3) for s in range(6)]


def test_a_large_gradient_that_is_refused_is_refused_at_the_commit(make: Make) -> None:
    cluster = make()
    port = cluster.port()
    port.commit(cluster.endpoints)
    port.stage(Gradient(cluster.endpoint, "unknown", np.ones(LARGE)))
    stage(cluster, port, "w", 1.0)
    with pytest.raises(RequestRefusedError, match="unknown gradient 'unknown'"):
        port.commit(cluster.endpoints)
    stage(cluster, port, "w", 1.0)
    port.commit(cluster.endpoints)
    assert sums(cluster)["w"] == -1.0


def test_large_gradients_leave_before_the_commit_and_small_ones_with_it() -> None:
    with FakeCluster("grpc", make_store=lambda: DictStore(w=np.zeros(LARGE), b=np.zeros(1))) as cluster:
        port = cluster.port()
        port.commit(cluster.endpoints)
        before = bytes_pushed(cluster, port)
        stage(cluster, port, "b", 1.0)
        assert bytes_pushed(cluster, port) == before
        stage(cluster, port, "w", 1.0)
        early = bytes_pushed(cluster, port)
        assert early - before > 8 * LARGE
        assert cluster.store.version == 1
        port.commit(cluster.endpoints)
        assert bytes_pushed(cluster, port) - early < 200
        assert sums(cluster) == {"w": -1.0, "b": -1.0}


def test_a_stream_that_breaks_after_the_early_parts_takes_the_whole_step_again() -> None:
    with FakeCluster("grpc", make_store=lambda: DictStore(w=np.zeros(LARGE), b=np.zeros(1))) as cluster:
        breaking: list[bool] = []

        def break_stream(channel: Any) -> None:
            if breaking:
                breaking.clear()
                channel._pushes._stream.cancel()

        port = cluster.port(wrap=lambda channel: Unreliable(channel, before=break_stream))
        port.commit(cluster.endpoints)
        stage(cluster, port, "w", 1.0)
        stage(cluster, port, "b", 1.0)
        breaking.append(True)
        port.commit(cluster.endpoints)
        assert sums(cluster) == {"w": -1.0, "b": -1.0}
        assert cluster.store.version == 2


def test_parts_of_a_step_that_another_one_overtook_are_sent_again() -> None:
    with FakeCluster("grpc", sync=False, make_store=lambda: DictStore(w=np.zeros(LARGE))) as cluster:
        channels: list[Any] = []
        port = cluster.port(wrap=lambda channel: (channels.append(channel), channel)[1])
        port.commit(cluster.endpoints)
        (channel,) = channels
        one, other = (StepHeader(port.identity, sequence, sequence, 0, 1) for sequence in (5, 6))
        gradient = Gradient(cluster.endpoint, "w", np.ones(LARGE))
        channel.part(one, 0, gradient)
        channel.commit(Push(other, [gradient], []))()
        channel.commit(Push(one, [gradient], []))()
        channel.part(other, 0, gradient)
        channel.part(StepHeader(port.identity, 7, 7, 0, 1), 0, gradient)
        channel.commit(Push(StepHeader(port.identity, 7, 7, 0, 1), [gradient], []))()
        assert sums(cluster)["w"] == -3.0
        assert cluster.store.version == 4


# replies that are waited for late


def held(cluster: FakeCluster) -> threading.Event:
    """Steps are applied when this event is set."""
    go = threading.Event()
    apply = cluster.store.apply
    cluster.store.apply = lambda steps, tick: (go.wait(60), apply(steps, tick))[1]  # type: ignore[method-assign]
    return go


@pytest.fixture
def network() -> Iterator[FakeCluster]:
    with FakeCluster("grpc", sync=False, options=ServiceOptions(grace=20.0)) as cluster:
        yield cluster


def test_an_async_commit_returns_before_the_step_is_applied(network: FakeCluster) -> None:
    go, port = held(network), network.port()
    port.stage(Gradient(network.endpoint, "w", np.ones(3)))
    reply = port.commit([network.endpoint])
    assert network.store.version == 0
    go.set()
    assert dict(reply.versions) == {network.endpoint: 1}
    np.testing.assert_array_equal(network.pull(port), [-1.0] * 3)


def test_a_trainer_reads_what_it_wrote(network: FakeCluster) -> None:
    port = network.port()
    for step in range(1, 20):
        port.stage(Gradient(network.endpoint, "w", np.ones(3)))
        port.commit([network.endpoint])
        (value,) = port.pull([DenseRequest(network.endpoint, "w", current=bool(step % 2))])
        np.testing.assert_array_equal(value, [-step] * 3)


def fail_once(cluster: FakeCluster) -> None:
    """The next step cannot be applied."""
    apply = cluster.store.apply

    def fail(steps: Any, tick: bool) -> int:
        cluster.store.apply = apply  # type: ignore[method-assign]
        raise ZeroDivisionError("division of rows")

    cluster.store.apply = fail  # type: ignore[method-assign]


def failing_calls(cluster: FakeCluster, port: TrainerPort) -> dict[str, Callable[[], object]]:
    end = cluster.endpoint
    return {
        "pull": lambda: cluster.pull(port),
        "commit": lambda: port.commit([end]),
        "assign": lambda: port.assign(end, "w", np.zeros(3)),
        "barrier": lambda: port.barrier([end]),
        "complete": port.complete,
    }


@pytest.mark.parametrize("call", ["pull", "commit", "assign", "barrier", "complete"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_next_call_raises_what_went_wrong_and_names_the_step(transport: str, call: str) -> None:
    with FakeCluster(transport, sync=False) as cluster:
        port = cluster.port()
        assert cluster.push(port) == {cluster.endpoint: 1}
        fail_once(cluster)
        port.stage(Gradient(cluster.endpoint, "w", np.ones(3)))
        port.commit([cluster.endpoint])
        pattern = rf"step 1: commit at pserver {cluster.endpoint}: .*division of rows"
        with pytest.raises(ServerFailedError, match=pattern):
            failing_calls(cluster, port)[call]()
        if call == "complete":
            assert cluster.ended()
        else:
            failing_calls(cluster, port)[call]()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_step_after_one_that_failed_is_over(transport: str) -> None:
    """It was computed for nothing, and must not travel with a later one."""
    with FakeCluster(transport, sync=False) as cluster:
        port = cluster.port()
        cluster.push(port)
        fail_once(cluster)
        port.commit(cluster.endpoints)
        port.stage(Gradient(cluster.endpoint, "w", np.full(3, 99.0)))
        with pytest.raises(ServerFailedError, match="step 1: commit at"):
            port.commit(cluster.endpoints)
        port.commit(cluster.endpoints)
        np.testing.assert_array_equal(cluster.pull(port), [-1.0] * 3)


@pytest.mark.parametrize("call", ["pull", "commit", "complete"])
def test_who_asked_for_the_reply_is_not_told_again(network: FakeCluster, call: str) -> None:
    port = network.port()
    network.push(port)
    fail_once(network)
    reply = port.commit([network.endpoint])
    for _ in range(2):
        with pytest.raises(ServerFailedError, match="step 1: commit at"):
            assert reply.versions
    failing_calls(network, port)[call]()


def test_all_servers_that_refused_are_named(make: Make) -> None:
    cluster = make(sync=False, servers=3)
    port = cluster.port()
    cluster.stores[0].poison = cluster.stores[2].poison = "division of rows"
    port.commit(cluster.endpoints)
    with pytest.raises(ServerFailedError, match=f"step 0: commit at pserver {cluster.endpoints[0]}") as caught:
        cluster.pull(port, "b")
    (note,) = caught.value.__notes__
    assert note.startswith(f"also: commit at pserver {cluster.endpoints[2]}: ")


class Interrupted(Unreliable):
    """A channel whose first wait for a commit's answer is interrupted."""

    def commit(self, *step: Any) -> Any:
        pending = self._channel.commit(*step)
        if not self._replies:
            return pending
        self._replies -= 1
        interrupts = iter([KeyboardInterrupt()])

        def answer() -> Any:
            for interrupt in interrupts:
                raise interrupt
            return pending()

        return answer


def test_an_interrupt_while_the_reply_is_waited_for_hides_no_failed_step(make: Make) -> None:
    cluster = make(sync=False)
    port = cluster.port(wrap=lambda channel: Interrupted(channel, replies=1))
    cluster.store.poison = "division of rows"
    port.commit(cluster.endpoints)
    with pytest.raises(KeyboardInterrupt):
        cluster.pull(port, "b")
    with pytest.raises(ServerFailedError, match="step 0: commit at"):
        cluster.pull(port, "b")


def test_an_end_that_was_interrupted_can_be_gone_on_with(make: Make) -> None:
    cluster = make(sync=False)
    port = cluster.port(wrap=lambda channel: Interrupted(channel, replies=1))
    port.commit(cluster.endpoints)
    with pytest.raises(KeyboardInterrupt):
        port.complete()
    port.complete()
    assert cluster.ended()


def test_what_went_wrong_is_logged_when_the_connection_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    with FakeCluster("inproc", sync=False) as cluster:
        port = cluster.port()
        cluster.store.poison = "division of rows"
        port.commit([cluster.endpoint])
        with caplog.at_level(logging.WARNING, "fluidlite"):
            port.close()
    assert any("step 0: commit at" in record.getMessage() for record in caplog.records)


def test_a_late_reply_that_gets_lost_does_not_apply_the_step_twice() -> None:
    with FakeCluster("grpc", sync=False) as cluster:
        port = cluster.port(wrap=lambda channel: Unreliable(channel, replies=2), patience=Patience(retry=20.0))
        for _ in range(3):
            port.stage(Gradient(cluster.endpoint, "w", np.ones(3)))
            port.commit([cluster.endpoint])
        np.testing.assert_array_equal(cluster.pull(port), [-3.0] * 3)
        assert cluster.store.version == 3


def test_each_thread_gets_its_own_late_error(network: FakeCluster) -> None:
    port, end = network.port(), network.endpoint
    network.pull(port)
    network.store.poison = "broken"
    with ThreadPoolExecutor(1) as other:
        other.submit(port.commit, [end]).result(20)
        with pytest.raises(ServerFailedError):
            other.submit(port.pull, [DenseRequest(end, "w", current=True)]).result(20)
        other.submit(port.commit, [end]).result(20)
        network.pull(port)
        with pytest.raises(ServerFailedError, match="step 1"):
            other.submit(port.barrier, [end]).result(20)


def test_a_sync_commit_waits_and_raises_at_once() -> None:
    with FakeCluster("grpc") as cluster:
        port = cluster.port()
        cluster.store.poison = "division of rows"
        with pytest.raises(ServerFailedError, match=f"commit at pserver {cluster.endpoint}"):
            port.commit([cluster.endpoint])


# rows that are asked for ahead


def rows(cluster: FakeCluster, ids: list[int], endpoint: int = 0) -> RowRequest:
    return RowRequest(cluster.endpoints[endpoint], "emb", np.array(ids, np.int64), 2, "float64")


def ask_ahead(cluster: FakeCluster, port: TrainerPort, requests: list[RowRequest]) -> None:
    """Ask, and return when the servers have answered."""
    answered = threading.Semaphore(0)
    pulls = {store: store.pull for store in cluster.stores}
    for store, pull in pulls.items():
        store.pull = lambda asked, pull=pull: (pull(asked), answered.release())[0]  # type: ignore[method-assign]
    assert port.pull_ahead(requests)
    for _ in {request.endpoint for request in requests}:
        assert answered.acquire(timeout=20)
    for store, pull in pulls.items():
        store.pull = pull  # type: ignore[method-assign]


def push_rows(cluster: FakeCluster, port: TrainerPort, ids: list[int]) -> None:
    """A step that lowers rows by one: they count the steps they have seen."""
    for endpoint in cluster.endpoints:
        port.stage(Gradient(endpoint, "emb", np.ones((len(ids), 2)), np.array(ids, np.int64)))
    assert port.commit(cluster.endpoints).versions


def counts(answer: Array) -> list[float]:
    return (-answer[:, 0]).tolist()


def test_rows_asked_ahead_are_those_of_then_and_handed_out_once(make: Make) -> None:
    cluster = make(sync=False)
    port = cluster.port()
    push_rows(cluster, port, [1, 2])
    ask_ahead(cluster, port, [rows(cluster, [2, 3])])
    push_rows(cluster, port, [2])
    assert counts(port.pull([rows(cluster, [2, 3])])[0]) == [1.0, 0.0]
    assert counts(port.pull([rows(cluster, [2, 3])])[0]) == [2.0, 0.0]


def test_a_step_on_rows_asked_ahead_says_at_which_version_they_were(make: Make) -> None:
    cluster = make(sync=False)
    headers: list[StepHeader] = []

    class Recording(Unreliable):
        def commit(self, push: Push) -> Any:
            headers.append(push.header)
            return super().commit(push)

    port = cluster.port(wrap=Recording)
    push_rows(cluster, port, [1])
    ask_ahead(cluster, port, [rows(cluster, [1])])
    for _ in range(2):
        push_rows(cluster, port, [1])
    port.pull([rows(cluster, [1])])
    assert port._peers[cluster.endpoint].version == 3, "the highest: by it a server that lost its state is known"
    push_rows(cluster, port, [1])
    assert [header.version_seen for header in headers] == [0, 1, 2, 1]


def test_other_rows_are_asked_for_as_usual(make: Make) -> None:
    cluster = make(sync=False)
    port = cluster.port()
    ask_ahead(cluster, port, [rows(cluster, [1, 2])])
    push_rows(cluster, port, [1, 2, 3])
    different = RowRequest(cluster.endpoint, "emb", np.array([1, 2]), 2, "float64", read_only=True)
    wanted = [rows(cluster, [1, 3]), rows(cluster, [2, 1]), different, rows(cluster, [1, 2])]
    assert [counts(answer) for answer in port.pull(wanted)] == [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]


def test_ids_may_be_changed_after_the_call(make: Make) -> None:
    cluster = make(sync=False)
    port, request = cluster.port(), rows(cluster, [1, 2])
    ask_ahead(cluster, port, [request])
    request.ids[:] += 1
    push_rows(cluster, port, [1, 2, 3])
    assert counts(port.pull([request])[0]) == [1.0, 1.0]
    assert counts(port.pull([rows(cluster, [1, 2])])[0]) == [0.0, 0.0]


def test_rows_of_several_servers_and_batches(make: Make) -> None:
    cluster = make(sync=False, servers=2)
    port = cluster.port()
    batches = [[rows(cluster, [number], 0), rows(cluster, [number, 9], 1)] for number in range(4)]
    for batch in batches[:3]:
        ask_ahead(cluster, port, batch)
    push_rows(cluster, port, [0, 1, 2, 3, 9])
    found = [[counts(answer) for answer in port.pull(batch)] for batch in batches]
    stale, current = [[0.0], [0.0, 0.0]], [[1.0], [1.0, 1.0]]
    assert found == [current, stale, stale, current], "only the last two calls are kept"


def test_in_sync_mode_nothing_is_asked_ahead(make: Make) -> None:
    cluster = make()
    port = cluster.port()
    assert not port.pull_ahead([rows(cluster, [1])])
    push_rows(cluster, port, [1])
    assert counts(port.pull([rows(cluster, [1])])[0]) == [1.0]


def test_only_rows_are_asked_ahead(make: Make) -> None:
    cluster = make(sync=False)
    port = cluster.port()
    assert not port.pull_ahead([DenseRequest(cluster.endpoint, "b")])
    assert not port.pull_ahead([])


def test_a_wrong_request_ahead_is_refused_where_it_is_needed(make: Make) -> None:
    cluster = make(sync=False)
    port = cluster.port()
    wrong = RowRequest(cluster.endpoint, "emb", np.array([1]), 7, "float64")
    assert port.pull_ahead([wrong])
    cluster.pull(port, "b")
    with pytest.raises(RequestRefusedError, match="width 2, not 7"):
        port.pull([wrong])


def test_a_failed_step_is_named_also_where_what_was_asked_ahead_fails(make: Make) -> None:
    cluster = make(sync=False)
    port = cluster.port()
    push_rows(cluster, port, [1])
    wrong = RowRequest(cluster.endpoint, "emb", np.array([1]), 7, "float64")
    assert port.pull_ahead([wrong])
    fail_once(cluster)
    port.commit(cluster.endpoints)
    with pytest.raises(ServerFailedError, match=r"step 1: commit at .*division of rows") as caught:
        port.pull([wrong])
    assert isinstance(caught.value.__context__, RequestRefusedError)
    assert counts(port.pull([rows(cluster, [1])])[0]) == [1.0]


def test_a_failed_step_is_raised_in_the_end_though_all_rows_were_there(make: Make) -> None:
    cluster = make(sync=False)
    port = cluster.port()
    port.pull_ahead([rows(cluster, [1])])
    fail_once(cluster)
    port.commit(cluster.endpoints)
    assert counts(port.pull([rows(cluster, [1])])[0]) == [0.0]
    with pytest.raises(ServerFailedError, match="step 0: commit at"):
        push_rows(cluster, port, [1])


def test_what_was_asked_ahead_fails_once(make: Make) -> None:
    """All that was asked of a server that failed then is asked again."""
    cluster = make(sync=False)
    port = cluster.port()
    push_rows(cluster, port, [1])
    pull = cluster.store.pull
    asked = threading.Semaphore(0)

    def fail(requests: Any) -> Any:
        asked.release()
        raise ZeroDivisionError("division of rows")

    cluster.store.pull = fail  # type: ignore[method-assign]
    batches = [[rows(cluster, [number]), rows(cluster, [number, 5])] for number in (1, 2)]
    for batch in batches:
        port.pull_ahead(batch)
    assert asked.acquire(timeout=20)
    with pytest.raises(ServerFailedError, match=r"pull at .*division of rows"):
        port.pull(batches[0])
    cluster.store.pull = pull  # type: ignore[method-assign]
    found = [[counts(answer) for answer in port.pull(batch)] for batch in batches]
    assert found == [[[1.0], [1.0, 0.0]], [[0.0], [0.0, 0.0]]]


class Silent:
    """A channel to a server that takes whatever is sent, and answers nothing: each answer is waited for ``seconds``."""

    def __init__(self, channel: Any, clock: Any, seconds: float) -> None:
        self._channel = channel
        self._clock = clock
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def pull(self, *call: Any) -> Any:
        return self._wait

    commit = pull

    def _wait(self) -> Any:
        self._clock.sleep(self._seconds)
        raise UnreachableError("silence")


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("seconds", "again", "whole"), [(0.0, 10.0, 10.0), (4.0, 13.5, 17.5), (20.0, 20.5, 40.5)])
def test_an_error_says_how_long_was_tried(seconds: float, again: float, whole: float) -> None:
    """The wait for the first answer counts; idle time before anybody waited does not."""
    with FakeCluster("inproc", sync=False) as cluster:
        clock = Clock()
        patience = Patience(retry=10.0, backoff=0.5, backoff_max=0.5, clock=clock, sleep=clock.sleep)
        port = cluster.port(wrap=lambda channel: Silent(channel, clock, seconds), patience=patience)
        tried = f"no answer, tried again for {again:.1f} s, {whole:.1f} s in all: silence"
        with pytest.raises(PeerLostError, match=f"pull at pserver {cluster.endpoint}: {tried}"):
            cluster.pull(port)
        port.pull_ahead([rows(cluster, [1])])
        port.commit(cluster.endpoints)
        clock.sleep(100.0)
        with pytest.raises(PeerLostError, match="step 0: commit at pserver") as caught:
            port.pull([rows(cluster, [1])])
        assert tried in str(caught.value.__context__)


def test_rows_come_while_the_trainer_does_something_else(network: FakeCluster) -> None:
    """The pull is answered before anybody waits for it, and does not wait for the step that is under way."""
    port = network.port()
    network.pull(port)
    answered = threading.Event()
    answer = network.store.pull
    network.store.pull = lambda requests: (answer(requests), answered.set())[0]  # type: ignore[method-assign]
    go = held(network)
    port.pull_ahead([rows(network, [1, 2])])
    assert answered.wait(20)
    port.stage(Gradient(network.endpoint, "w", np.ones(3)))
    port.commit([network.endpoint])
    assert counts(port.pull([rows(network, [1, 2])])[0]) == [0.0, 0.0]
    assert network.store.version == 0
    go.set()


def test_a_server_that_went_is_asked_again(network: FakeCluster) -> None:
    port = network.port(patience=Patience(retry=20.0))
    network.pull(port)
    port.pull_ahead([rows(network, [5])])
    port._peers[network.endpoint].channel._pulls._stream.cancel()  # type: ignore[attr-defined]
    assert counts(port.pull([rows(network, [5])])[0]) == [0.0]


def test_what_was_asked_ahead_and_never_fetched_holds_up_no_end(make: Make) -> None:
    cluster = make(sync=False)
    port = cluster.port()
    port.pull_ahead([rows(cluster, [1])])
    port.complete()
    assert cluster.ended()
    with pytest.raises(PeerLostError):
        cluster.pull(port)


def test_the_size_from_which_gradients_leave_ahead_is_what_this_file_takes_it_for() -> None:
    assert 8 < port_module._LEAVES_EARLY < 8 * LARGE
