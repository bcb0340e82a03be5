"""What only a network can do wrong: ports that are taken, dead connections, foreign and broken clients."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from fluidlite.errors import AddressInUseError, PeerLostError, RemoteError
from fluidlite.proto_gen import pserver_pb2 as pb
from fluidlite.protocol import encode
from fluidlite.protocol.messages import DenseRequest, Identity, Registration
from fluidlite.pserver.service import PServer, ServiceOptions
from fluidlite.rpc.client import GrpcChannel, grpc_port
from fluidlite.rpc.options import method
from fluidlite.rpc.port import Channel
from fluidlite.rpc.retry import Patience
from fluidlite.rpc.server import GrpcServer, serve
from tests.fake_cluster import PATIENCE, DictStore, FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster("grpc", trainers=2, sync=False) as made:
        yield made


@pytest.fixture
def raw(cluster: FakeCluster) -> Iterator[Any]:
    """A channel that says whatever it is told."""
    with grpc.insecure_channel(cluster.endpoint) as channel:
        yield channel


def quiet() -> PServer:
    return PServer(DictStore(), trainers=1, sync=True)


def test_U03_a_port_in_use_is_an_error_at_once_for_two_servers(cluster: FakeCluster) -> None:
    with pytest.raises(AddressInUseError, match=f"cannot listen at {cluster.endpoint}: the port is in use"):
        GrpcServer(quiet(), cluster.endpoint, trainers=1, bind_within=0.0)
    with pytest.raises(OSError, match="in use"):
        GrpcServer(quiet(), cluster.endpoint, trainers=1, bind_within=0.6)


def test_U03_a_port_is_free_again_as_soon_as_its_server_ended() -> None:
    first = GrpcServer(quiet(), "127.0.0.1:0", trainers=1)
    first.close()
    second = GrpcServer(quiet(), first.endpoint, trainers=1)
    assert second.endpoint == first.endpoint
    second.close()


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(RemoteError, match="no such address here") as caught:
        GrpcServer(quiet(), "192.0.2.1:0", trainers=1, bind_within=0.0)
    assert not isinstance(caught.value, AddressInUseError)


def test_serve_tells_the_real_port_and_returns_when_the_service_ends() -> None:
    service = quiet()
    bound: list[str] = []

    def end(endpoint: str) -> None:
        bound.append(endpoint)
        threading.Thread(target=service.stop, args=("enough",)).start()

    serve(service, "127.0.0.1:0", trainers=1, on_bound=end)
    host, _, port = bound[0].rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


def test_serve_leaves_no_server_behind_when_nobody_can_be_told_its_port() -> None:
    bound: list[str] = []

    def fail(endpoint: str) -> None:
        bound.append(endpoint)
        raise BrokenPipeError("nobody reads")

    with pytest.raises(BrokenPipeError):
        serve(quiet(), "127.0.0.1:0", trainers=1, on_bound=fail)
    GrpcServer(quiet(), bound[0], trainers=1, bind_within=0.0).close()


def test_H02_a_trainer_waits_for_a_server_that_is_not_up_yet(caplog: pytest.LogCaptureFixture) -> None:
    probe = GrpcServer(quiet(), "127.0.0.1:0", trainers=1)
    probe.close()
    port = grpc_port(trainer=0, patience=Patience(connect=30.0, connect_report=0.2))
    values: list[Any] = []
    early = threading.Thread(target=lambda: values.extend(port.pull([DenseRequest(probe.endpoint, "w")])))
    early.start()
    while not any(f"waiting for pserver {probe.endpoint}" in r.getMessage() for r in list(caplog.records)):
        assert early.is_alive()
    server = GrpcServer(quiet(), probe.endpoint, trainers=1)
    early.join(20)
    port.complete()
    server.close()
    np.testing.assert_array_equal(values, [[0.0] * 3])


def test_an_unreachable_server_is_a_lost_peer_after_the_connect_deadline() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        port = grpc_port(trainer=0, patience=Patience(connect=0.5))
        with pytest.raises(
            PeerLostError, match=f"register at pserver {endpoint}: the server did not come up within 0.5"
        ):
            port.pull([DenseRequest(endpoint, "w")])
        port.close()


def test_H07_a_call_that_hangs_ends_at_its_own_deadline(cluster: FakeCluster) -> None:
    go = threading.Event()
    answer = cluster.store.pull
    cluster.store.pull = lambda requests: (go.wait(60), answer(requests))[1]
    port = cluster.port(patience=Patience(connect=60.0, pull=0.3))
    with pytest.raises(PeerLostError, match=f"pull at pserver {cluster.endpoint}: no answer in time"):
        cluster.pull(port)
    go.set()
    cluster.push(port)


def test_H09_pings_do_not_end_the_connection() -> None:
    """gRPC's client sends at most one ping a second; its server ends a connection after the third it did not expect."""
    commits: list[Channel] = []

    def counting(channel: Any) -> Any:
        commit = channel.commit
        channel.commit = lambda *step: (commits.append(channel), commit(*step))[1]
        return channel

    with FakeCluster("grpc", trainers=2) as cluster:
        port = cluster.port(patience=Patience(keepalive=0.05), wrap=counting)
        cluster.pull(port)
        step = cluster.run(lambda: cluster.push(port))
        cluster.until_waiting(step)
        threading.Event().wait(4.5)
        cluster.push(cluster.port(1))
        assert step.result(20) == {cluster.endpoint: 1}
    assert len(commits) == 1, "the connection ended, and the step was sent again"


def test_a_connection_that_breaks_and_comes_back_loses_nothing() -> None:
    patience = Patience(retry=20.0)
    with FakeCluster("grpc", trainers=2, options=ServiceOptions(grace=20.0)) as cluster:
        one, two = cluster.port(0, patience=patience), cluster.port(1, patience=patience)
        step = cluster.run(lambda: cluster.push(one))
        cluster.until_waiting(step)
        cluster.servers[0]._server.stop(0).wait()
        again = GrpcServer(cluster.services[0], cluster.endpoint, trainers=2)
        assert cluster.push(two) == step.result(30) == {cluster.endpoint: 1}
        assert cluster.store.applied == [((0, 1), True)]
    again.close()


def test_a_broken_stream_of_heartbeats_does_not_count_while_another_is_open(cluster: FakeCluster, raw: Any) -> None:
    service = cluster.services[0]
    identity = Identity("job", 0, 1)
    service.register(Registration(identity, 2))
    gone: list[Identity] = []
    service.disconnected = gone.append
    beat = pb.HeartbeatRequest(identity=encode.encode_identity(identity)).SerializeToString()
    beats, heard = service.heartbeat, threading.Semaphore(0)
    service.heartbeat = lambda speaker: (beats(speaker), heard.release())[0]

    def stream() -> Any:
        sending = queue.SimpleQueue()
        sending.put(beat)
        call = raw.stream_unary(method("Heartbeat")).future(iter(sending.get, None))
        assert heard.acquire(timeout=20)
        return call

    first, second = stream(), stream()
    first.cancel()
    second.cancel()
    while not gone:
        assert service.live == (0, 1)
    assert gone == [identity]


def test_a_closed_port_raises_at_once(cluster: FakeCluster) -> None:
    port = cluster.port()
    cluster.pull(port)
    port.close()
    port.close()
    with pytest.raises(PeerLostError, match="closed"):
        cluster.pull(port)


@pytest.mark.parametrize("met", [0, 1])
def test_a_closed_port_opens_no_connection(met: int) -> None:
    with FakeCluster("grpc", servers=2) as cluster:
        port = cluster.port()
        for endpoint in cluster.endpoints[:met]:
            port.pull([DenseRequest(endpoint, "w")])
        port.close()
        registered: list[object] = []
        cluster.services[1].register = registered.append  # type: ignore[assignment]
        with pytest.raises(PeerLostError, match="closed"):
            port.pull([DenseRequest(cluster.endpoints[1], "w")])
        assert not registered


def test_a_closed_port_wakes_who_waits_at_a_barrier(cluster: FakeCluster) -> None:
    port = cluster.port()
    waiting = cluster.run(lambda: port.barrier([cluster.endpoint]))
    while cluster.services[0]._ledger.gate.missing((0, 1)) != (1,):
        assert not waiting.done()
    port.close()
    with pytest.raises(PeerLostError, match=f"barrier at pserver {cluster.endpoint}"):
        waiting.result(20)


def test_an_endpoint_that_is_no_pserver_is_an_error_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    stranger = grpc.server(ThreadPoolExecutor(1))
    endpoint = f"127.0.0.1:{stranger.add_insecure_port('127.0.0.1:0')}"
    stranger.start()
    channel = GrpcChannel(endpoint, PATIENCE)
    with pytest.raises(RemoteError, match="no fluidlite pserver"):
        channel.register(Registration(Identity("job", 0, 1), 1), 10.0)
    channel.close()
    stranger.stop(0).wait()


@pytest.mark.parametrize("verb", ["Register", "Barrier", "Complete"])
def test_H21_malformed_requests_are_refused_and_the_server_goes_on(cluster: FakeCluster, raw: Any, verb: str) -> None:
    reply = raw.unary_unary(method(verb))(b"\xff\xff\xff", timeout=20)
    assert pb.CompleteReply.FromString(reply).outcome.code == pb.REFUSED
    cluster.push(cluster.port())


@pytest.mark.parametrize("verb", ["Pull", "Push"])
@pytest.mark.parametrize(
    "message", [b"", b"\xff", pb.PullRequest(payload=b"x").SerializeToString(), b"\x0a\x02\xff\xff"]
)
def test_H21_malformed_streams_are_refused_and_the_server_goes_on(
    cluster: FakeCluster, raw: Any, verb: str, message: bytes
) -> None:
    (reply,) = raw.stream_stream(method(verb))(iter([message]), timeout=20)
    assert pb.PullReply.FromString(reply).header.outcome.code == pb.REFUSED
    cluster.push(cluster.port())


@pytest.mark.parametrize("verb", ["Assign", "Heartbeat"])
def test_H21_malformed_one_way_streams_are_refused(cluster: FakeCluster, raw: Any, verb: str) -> None:
    reply = raw.stream_unary(method(verb))(iter([b"\xff"]), timeout=20)
    assert pb.AssignReply.FromString(reply).outcome.code == pb.REFUSED
    cluster.push(cluster.port())


def test_an_error_inside_the_server_comes_back_as_text(cluster: FakeCluster) -> None:
    def broken(requests: object) -> Any:
        raise KeyError("lost my keys")

    cluster.store.pull = broken
    with pytest.raises(RemoteError, match="KeyError: 'lost my keys'"):
        cluster.pull(cluster.port())


def test_a_stock_client_trains_with_parts_that_leave_early(cluster: FakeCluster, raw: Any) -> None:
    identity = pb.Identity(job="job", trainer=1, incarnation=1)
    register = raw.unary_unary(method("Register"), pb.RegisterRequest.SerializeToString, pb.RegisterReply.FromString)
    assert register(pb.RegisterRequest(identity=identity, protocol=1), timeout=20).trainers == 2
    push = raw.stream_stream(method("Push"), pb.PushRequest.SerializeToString, pb.PushReply.FromString)
    value = pb.Value(array=pb.Array(dtype=6, shape=[3]))
    start = pb.PushRequest(header=pb.PushRequestHeader(start=pb.Start(identity=identity)))
    part = pb.PushRequest(
        header=pb.PushRequestHeader(parts=[pb.Part(name="w", value=value)]), payload=np.ones(3).tobytes()
    )
    commit = pb.PushRequest(header=pb.PushRequestHeader(commit=pb.Commit(parts=1, wanted=["w"])))
    assert list(push(iter([start, part]), timeout=20)) == []
    assert cluster.store.version == 0, "a stream that ends before its commit leaves nothing"
    (reply,) = push(iter([start, part, commit]), timeout=20)
    assert reply.header.version == cluster.store.version == 1
    np.testing.assert_array_equal(np.frombuffer(reply.payload), [-1.0] * 3)
    (again,) = push(iter([start, part, commit]), timeout=20)
    assert again.header.version == cluster.store.version == 1


def test_one_stream_carries_many_pulls(cluster: FakeCluster, raw: Any) -> None:
    port = cluster.port()
    cluster.pull(port)
    from fluidlite.rpc.wire import messages_of, transfers_of

    (message,) = messages_of(encode.encode_pull(port.identity, [DenseRequest("", "w")]))
    replies = list(transfers_of(raw.stream_stream(method("Pull"))(iter([message] * 3), timeout=20)))
    assert len(replies) == 3
    np.testing.assert_array_equal(encode.decode_pull_reply(*replies[2]).values[0], [0.0] * 3)
