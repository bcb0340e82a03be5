"""What a stream that carries many requests could get wrong: whose answer is whose, deadlines, ends."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fluidlite.errors import PeerLostError, RequestRefusedError, UnreachableError
from fluidlite.protocol import encode
from fluidlite.protocol.messages import (
    DenseRequest,
    Gradient,
    Identity,
    PullReply,
    Push,
    Registration,
    RowRequest,
    StepHeader,
    TableRequest,
)
from fluidlite.protocol.service import Pending
from fluidlite.pserver.service import ServiceOptions
from fluidlite.rpc import pipe
from fluidlite.rpc.client import GrpcChannel
from fluidlite.rpc.retry import Patience
from fluidlite.rpc.server import GrpcServer
from fluidlite.rpc.traffic import Traffic
from fluidlite.rpc.wire import messages_of
from tests.fake_cluster import PATIENCE, DictStore, FakeCluster

ME = Identity("job", 0, 1)


@pytest.fixture(params=["direct", "threaded"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds of pipe."""
    if request.param == "threaded":
        monkeypatch.setattr(pipe, "cygrpc", None)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster("grpc", trainers=2, make_store=lambda: DictStore(w=np.zeros(3), v=np.ones(2))) as made:
        yield made


@pytest.fixture
def channel(cluster: FakeCluster) -> Iterator[GrpcChannel]:
    made = connected(cluster, PATIENCE)
    yield made
    made.close()


def connected(cluster: FakeCluster, patience: Patience) -> GrpcChannel:
    channel = GrpcChannel(cluster.endpoint, patience)
    channel.register(Registration(ME, 2), 20.0)
    return channel


def ask(channel: GrpcChannel, name: str) -> Pending[PullReply]:
    return channel.pull(ME, [DenseRequest("", name)])


def push(channel: GrpcChannel, sequence: int) -> Any:
    return channel.commit(Push(StepHeader(ME, sequence, 0, 0, 1), [Gradient("", "w", np.ones(3))], ["w"]))


def held(cluster: FakeCluster) -> threading.Event:
    """Pulls wait for this event."""
    go = threading.Event()
    answer = cluster.store.pull
    cluster.store.pull = lambda requests: (go.wait(60), answer(requests))[1]
    return go


def test_all_pulls_and_all_pushes_go_over_one_stream_each() -> None:
    with FakeCluster("grpc", sync=False) as cluster:
        channels: list[Any] = []
        port = cluster.port(wrap=lambda channel: (channels.append(channel), channel)[1])
        streams = set()
        for _ in range(5):
            cluster.push(port)
            port.pull([DenseRequest(cluster.endpoint, "w", current=True)])
            streams |= {channels[0]._pulls._stream, channels[0]._pushes._stream}
        assert len(streams) == 2


def test_requests_under_way_together_get_their_own_answers(channel: GrpcChannel) -> None:
    first, second, third = ask(channel, "w"), ask(channel, "v"), ask(channel, "w")
    np.testing.assert_array_equal(second().values[0], [1.0] * 2)
    np.testing.assert_array_equal(third().values[0], [0.0] * 3)
    np.testing.assert_array_equal(first().values[0], [0.0] * 3)


def test_an_answer_that_nobody_waited_for_is_not_taken_for_another(channel: GrpcChannel) -> None:
    ask(channel, "w")
    np.testing.assert_array_equal(ask(channel, "v")().values[0], [1.0] * 2)


def test_an_interrupt_while_waiting_leaves_no_answer_behind(
    channel: GrpcChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*transfer: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(encode, "decode_pull_reply", interrupted)
        answer = ask(channel, "w")
    before = channel._pulls._stream
    with pytest.raises(KeyboardInterrupt):
        answer()
    np.testing.assert_array_equal(ask(channel, "v")().values[0], [1.0] * 2)
    assert channel._pulls._stream is not before


@pytest.mark.parametrize("call", ["send", "flush"])
def test_an_interrupt_while_sending_leaves_no_half_request_behind(
    channel: GrpcChannel, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    ask(channel, "w")()
    stream = channel._pulls._stream
    assert stream is not None

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stream._pipe, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask(channel, "w")
    monkeypatch.undo()
    np.testing.assert_array_equal(ask(channel, "v")().values[0], [1.0] * 2)
    assert channel._pulls._stream is not stream


def test_after_a_refusal_the_next_request_opens_another_stream(channel: GrpcChannel) -> None:
    refused, behind = ask(channel, "nothing"), ask(channel, "v")
    with pytest.raises(RequestRefusedError, match="unknown variable 'nothing'"):
        refused()
    with pytest.raises(UnreachableError):
        behind()
    np.testing.assert_array_equal(ask(channel, "v")().values[0], [1.0] * 2)


def test_a_commit_that_waits_for_others_holds_up_no_pull(cluster: FakeCluster, channel: GrpcChannel) -> None:
    step = push(channel, 0)
    while not len(cluster.services[0]._ledger._buffer):
        pass
    np.testing.assert_array_equal(ask(channel, "w")().values[0], [0.0] * 3)
    other = cluster.port(1)
    np.testing.assert_array_equal(cluster.pull(other), [0.0] * 3)
    cluster.push(other)
    np.testing.assert_array_equal(step().dense["w"], [-1.0] * 3)


def test_a_missed_deadline_ends_the_stream_and_what_is_not_late_may_be_repeated(cluster: FakeCluster) -> None:
    go = held(cluster)
    channel = connected(cluster, Patience(pull=0.3))
    late, table = ask(channel, "w"), channel.pull(ME, [TableRequest("", "emb")])
    with pytest.raises(PeerLostError, match="no answer in time") as caught:
        late()
    assert not isinstance(caught.value, UnreachableError)
    with pytest.raises(UnreachableError):
        table()
    go.set()
    np.testing.assert_array_equal(ask(channel, "w")().values[0], [0.0] * 3)
    channel.close()


def test_a_deadline_holds_behind_a_request_without_one(cluster: FakeCluster) -> None:
    go = held(cluster)
    channel = connected(cluster, Patience(pull=0.3))
    channel.pull(ME, [TableRequest("", "emb")])
    with pytest.raises(PeerLostError, match="no answer in time"):
        ask(channel, "w")()
    go.set()
    channel.close()


def test_deadlines_of_many_calls_hold_one_after_the_other(cluster: FakeCluster) -> None:
    channel = connected(cluster, Patience(pull=0.3))
    for _ in range(2):
        go = held(cluster)
        with pytest.raises(PeerLostError, match="no answer in time"):
            ask(channel, "w")()
        go.set()
        np.testing.assert_array_equal(ask(channel, "w")().values[0], [0.0] * 3)
    channel.close()


def test_the_deadline_of_a_pull_ahead_counts_from_when_somebody_waits(cluster: FakeCluster) -> None:
    go = held(cluster)
    channel = connected(cluster, Patience(pull=0.3))
    ahead = channel.pull(ME, [DenseRequest("", "w")], ahead=True)
    with pytest.raises(PeerLostError, match="no answer in time"):
        ask(channel, "v")()
    with pytest.raises(UnreachableError):
        ahead()
    ahead = channel.pull(ME, [DenseRequest("", "w")], ahead=True)
    stream = channel._pulls._stream
    assert stream is not None
    assert stream.due == math.inf
    with pytest.raises(PeerLostError, match="no answer in time"):
        ahead()
    go.set()
    np.testing.assert_array_equal(channel.pull(ME, [DenseRequest("", "w")], ahead=True)().values[0], [0.0] * 3)
    channel.close()


def test_a_large_request_to_a_server_that_takes_nothing_ends_with_its_deadline(cluster: FakeCluster) -> None:
    go = held(cluster)
    channel = connected(cluster, Patience(pull=0.3))
    first = ask(channel, "w")
    many = RowRequest("", "emb", np.zeros(1 << 22, np.int64), 2, "float64")
    with pytest.raises(PeerLostError):
        channel.pull(ME, [many])()
    with pytest.raises(PeerLostError):
        first()
    go.set()
    channel.close()


def test_a_server_that_comes_back_between_two_steps_is_reached_again() -> None:
    with FakeCluster("grpc", options=ServiceOptions(grace=20.0)) as cluster:
        port = cluster.port(patience=Patience(retry=20.0))
        cluster.push(port)
        port.pull([DenseRequest(cluster.endpoint, "w", current=True)])
        cluster.servers[0]._server.stop(0).wait()
        again = GrpcServer(cluster.services[0], cluster.endpoint, trainers=1)
        assert cluster.push(port) == {cluster.endpoint: 2}
        np.testing.assert_array_equal(port.pull([DenseRequest(cluster.endpoint, "w", current=True)])[0], [-2.0] * 3)
    again.close()


def test_close_wakes_who_waits_and_leaves_no_thread(cluster: FakeCluster) -> None:
    before = set(threading.enumerate())
    go = held(cluster)
    channel = connected(cluster, PATIENCE)
    step = push(channel, 0)
    waiting = [cluster.run(answer) for answer in (ask(channel, "w"), step)]
    while not len(cluster.services[0]._ledger._buffer):
        pass
    channel.close()
    for job in waiting:
        with pytest.raises(PeerLostError):
            job.result(20)
    with pytest.raises(PeerLostError, match="closed"):
        ask(channel, "w")
    go.set()
    started = [thread for thread in set(threading.enumerate()) - before if not is_pooled(thread)]
    for thread in started:
        thread.join(20)
    assert not [thread for thread in started if thread.is_alive()]


@pytest.mark.parametrize("end", ["stream", "channel"])
def test_signs_of_life_end_with_their_stream(cluster: FakeCluster, end: str) -> None:
    """However long the next one is to wait."""
    channel = connected(cluster, PATIENCE)
    heard = threading.Event()
    beat = cluster.services[0].heartbeat
    cluster.services[0].heartbeat = lambda who: (beat(who), heard.set())[0]  # type: ignore[method-assign, func-returns-value]
    before = set(threading.enumerate())
    channel.show_life(ME, 1e6)
    assert heard.wait(20)
    started = [thread for thread in set(threading.enumerate()) - before if not is_pooled(thread)]
    assert started
    (channel._life.cancel if end == "stream" else channel.close)()
    for thread in started:
        thread.join(20)
        assert not thread.is_alive()
    channel.close()


def is_pooled(thread: threading.Thread) -> bool:
    """Whether it is one of the server's or of the test's own."""
    return thread.name.startswith(("pserver", "ThreadPoolExecutor"))


def test_dropped_streams_leave_no_thread(cluster: FakeCluster, channel: GrpcChannel) -> None:
    ask(channel, "w")()
    before = set(threading.enumerate())
    for _ in range(3):
        with pytest.raises(RequestRefusedError):
            ask(channel, "nothing")()
    for thread in set(threading.enumerate()) - before:
        if not is_pooled(thread):
            thread.join(20)
            assert not thread.is_alive()


def test_bytes_are_counted_by_endpoint_and_verb(caplog: pytest.LogCaptureFixture) -> None:
    with FakeCluster("grpc") as cluster:
        port = cluster.port()
        (request,) = messages_of(encode.encode_pull(port.identity, [DenseRequest(cluster.endpoint, "w")]))
        (reply,) = messages_of(encode.encode_pull_reply(PullReply(0, (np.zeros(3),))))
        for _ in range(2):
            port.pull([DenseRequest(cluster.endpoint, "w", current=True)])
        assert port.traffic[cluster.endpoint]["pull"] == Traffic(2 * len(request), 2 * len(reply))
        cluster.push(port)
        port.barrier(cluster.endpoints)
        port.assign(cluster.endpoint, "w", np.zeros(1000))
        with caplog.at_level(logging.INFO, "fluidlite"):
            port.complete()
            port.close()
        traffic = port.traffic[cluster.endpoint]
    assert set(traffic) >= {"register", "pull", "push", "assign", "barrier", "complete"}
    assert traffic["assign"].sent > 8000
    assert traffic["push"].sent > 24
    total, per_step = [r.getMessage() for r in caplog.records if cluster.endpoint in r.getMessage()]
    assert "in 1 steps: " in total
    assert all(f"{verb} {amount}" in total for verb, amount in traffic.items())
    assert f"per step: {sum(t.sent for t in traffic.values()) / 1e3:.1f} kB sent" in per_step


def test_large_transfers_are_counted_message_by_message() -> None:
    big = np.zeros(1 << 18)
    with FakeCluster("grpc", make_store=lambda: DictStore(w=big)) as cluster:
        port = cluster.port()
        cluster.pull(port)
        assert big.nbytes < port.traffic[cluster.endpoint]["pull"].received < big.nbytes + 200


def test_in_process_nothing_travels(caplog: pytest.LogCaptureFixture) -> None:
    with FakeCluster("inproc") as cluster, caplog.at_level(logging.INFO, "fluidlite"):
        port = cluster.port()
        cluster.push(port)
        port.complete()
    assert port.traffic == {cluster.endpoint: {}}
    assert not caplog.records


def test_an_amount_reads_well() -> None:
    assert str(Traffic(999, 2_500_000_000)) == "999 B sent, 2.5 GB received"
