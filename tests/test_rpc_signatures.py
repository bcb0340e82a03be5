"""A push names the ids that were just pulled by a signature; whatever goes wrong with it, the step counts once and whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from fluidlite.dtypes import Array
from fluidlite.errors import ForgottenError, RequestRefusedError, UnreachableError
from fluidlite.proto_gen import pserver_pb2 as pb
from fluidlite.protocol import encode
from fluidlite.protocol.messages import Gradient, Identity, RowRequest
from fluidlite.protocol.packet import Packet, Payload
from fluidlite.pserver.service import ServiceOptions
from fluidlite.rpc.options import method
from fluidlite.rpc.port import TrainerPort
from fluidlite.rpc.retry import Patience
from fluidlite.rpc.server import GrpcServer
from fluidlite.rpc.signatures import WORTH, KnownLists, SentLists
from fluidlite.rpc.wire import messages_of, transfers_of
from fluidlite.values.found_lists import FoundLists
from fluidlite.values.initial import Uniform
from fluidlite.values.row_index import RowIndex
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable
from tests.fake_cluster import FakeCluster

MANY = np.arange(WORTH) * 3 - 700
WHO = Identity("job", 0, 5)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster("grpc", options=ServiceOptions(grace=20.0)) as made:
        yield made


def pull(cluster: FakeCluster, port: TrainerPort, ids: Array = MANY) -> Array:
    (rows,) = port.pull([RowRequest(cluster.endpoint, "emb", ids, 2, "float64")])
    return rows


def push(cluster: FakeCluster, port: TrainerPort, ids: Array = MANY, value: float = 1.0) -> int:
    """The bytes that one step took."""
    before = pushed(cluster, port)
    port.stage(Gradient(cluster.endpoint, "emb", np.full((len(ids), 2), value), ids))
    port.commit([cluster.endpoint])
    return pushed(cluster, port) - before


def pushed(cluster: FakeCluster, port: TrainerPort) -> int:
    verbs = port.traffic.get(cluster.endpoint, {})
    return verbs["push"].sent if "push" in verbs else 0


def all_rows(cluster: FakeCluster) -> dict[int, list[float]]:
    return {id: row.tolist() for id, row in cluster.store.rows.items()}


def test_ids_that_were_pulled_do_not_travel_again(cluster: FakeCluster) -> None:
    port = cluster.port()
    in_full = push(cluster, port)
    pull(cluster, port)
    assert in_full - push(cluster, port) > MANY.nbytes - 64
    assert all_rows(cluster) == dict.fromkeys(MANY.tolist(), [-2.0] * 2)


@pytest.mark.parametrize(
    "other", [MANY[::-1].copy(), MANY[1:], MANY + 1, np.append(MANY[:-1], 99_999)], ids=["order", "part", "all", "last"]
)
def test_other_ids_travel(cluster: FakeCluster, other: Array) -> None:
    port = cluster.port()
    pull(cluster, port)
    assert push(cluster, port, other) > other.nbytes + 16 * len(other)
    assert all_rows(cluster) == dict.fromkeys(other.tolist(), [-1.0] * 2)


def test_ids_that_are_changed_in_place_after_the_pull_are_others(cluster: FakeCluster) -> None:
    port, ids = cluster.port(), MANY.copy()
    pull(cluster, port, ids)
    ids += 1
    push(cluster, port, ids)
    assert all_rows(cluster) == dict.fromkeys((MANY + 1).tolist(), [-1.0] * 2)


def test_several_tables_and_servers_each_know_their_own_lists() -> None:
    with FakeCluster("grpc", servers=2) as cluster:
        port = cluster.port()
        lists = dict(zip(cluster.endpoints, (MANY, MANY + 10_000), strict=True))
        port.pull([RowRequest(endpoint, "emb", ids, 2, "float64") for endpoint, ids in lists.items()])
        for endpoint, ids in lists.items():
            port.stage(Gradient(endpoint, "emb", np.ones((len(ids), 2)), ids))
        port.commit(cluster.endpoints)
        for store, ids in zip(cluster.stores, lists.values(), strict=True):
            assert sorted(store.rows) == ids.tolist()


def test_a_server_that_forgot_gets_the_ids(cluster: FakeCluster) -> None:
    port = cluster.port()
    in_full = push(cluster, port)
    pull(cluster, port)
    cluster.servers[0]._server.stop(0).wait()
    again = GrpcServer(cluster.services[0], cluster.endpoint, trainers=1)  # with the rows, without the lists
    assert push(cluster, port) > in_full, "in short, then in full"
    assert cluster.store.version == 2
    assert all_rows(cluster) == dict.fromkeys(MANY.tolist(), [-2.0] * 2)
    assert push(cluster, port) <= in_full + 8, "in full at once"
    pull(cluster, port)
    assert push(cluster, port) < 16 * len(MANY) + 200
    again.close()


def test_a_signed_step_whose_reply_gets_lost_counts_once() -> None:
    with FakeCluster("grpc") as cluster:
        lost: list[int] = []

        class Losing:
            def __init__(self, channel: Any) -> None:
                self._channel = channel

            def __getattr__(self, name: str) -> Any:
                return getattr(self._channel, name)

            def commit(self, *step: Any) -> Any:
                pending = self._channel.commit(*step)

                def answer() -> Any:
                    reply = pending()
                    if len(lost) < 2:
                        lost.append(reply.version)
                        raise UnreachableError("lost")
                    return reply

                return answer

        port = cluster.port(wrap=Losing, patience=Patience(retry=20.0))
        pull(cluster, port)
        push(cluster, port)
        assert lost == [1, 1]
        assert all_rows(cluster) == dict.fromkeys(MANY.tolist(), [-1.0] * 2)


def test_a_signature_that_nobody_gave_is_answered_as_forgotten(cluster: FakeCluster) -> None:
    port = cluster.port()
    pull(cluster, port)
    header = pb.PushRequestHeader(
        start=pb.Start(identity=encode.encode_identity(port.identity)), commit=pb.Commit(parts=1)
    )
    value = pb.Value(array=pb.Array(dtype=6, shape=[1, 2]))
    header.parts.add(name="emb", value=value, signature=bytes(16))
    with grpc.insecure_channel(cluster.endpoint) as raw:
        (message,) = messages_of(Packet(header.SerializeToString(), [np.ones((1, 2))]))
        replies = raw.stream_stream(method("Push"))(iter([message]))
        (transfer,) = transfers_of(replies)
    with pytest.raises(ForgottenError, match="signature 0000"):
        encode.decode_commit_reply(*transfer)
    assert cluster.store.version == 0


def test_a_signature_for_another_number_of_rows_is_refused() -> None:
    lists = KnownLists()
    lists.put(WHO, bytes(16), np.arange(3))
    header = pb.PushRequestHeader(start=pb.Start(identity=encode.encode_identity(WHO)), commit=pb.Commit(parts=1))
    header.parts.add(name="emb", value=pb.Value(array=pb.Array(dtype=6, shape=[2, 1])), signature=bytes(16))
    with pytest.raises(RequestRefusedError, match="3 ids come with values of shape"):
        encode.OpenStep("e", lists.get).add(header.SerializeToString(), Payload(bytes(16)))


def test_a_signature_has_sixteen_bytes() -> None:
    header = pb.PullRequestHeader()
    header.items.add().rows.CopyFrom(pb.RowRequest(table="t", ids=pb.Array(dtype=3), dtype=5, signature=b"short"))
    with pytest.raises(RequestRefusedError, match="a signature of 5 bytes"):
        encode.decode_pull(header.SerializeToString(), Payload(bytes(8)), "e")


def test_a_trainer_remembers_the_latest_long_lists() -> None:
    sent = SentLists()
    assert sent.sign(MANY[1:]) == sent.find(MANY[1:]) == b""
    signatures = [sent.sign(MANY + shift) for shift in range(5)]
    assert len(set(signatures)) == 5
    assert {len(signature) for signature in signatures} == {16}
    assert [sent.find(MANY + shift) for shift in range(5)] == [b"", *signatures[1:]]
    assert sent.sign(MANY + 4) != signatures[4]
    sent.forget()
    assert sent.find(MANY + 4) == b""
    assert SentLists().sign(MANY)[:8] != signatures[0][:8], "of other trainers' lists"


def test_a_server_remembers_so_many_lists_of_each_trainer() -> None:
    lists = KnownLists()
    for number in range(10):
        lists.put(WHO, bytes([number]), np.arange(number))
        lists.put(Identity("job", 1, 1), bytes([number]), -np.arange(number))
    np.testing.assert_array_equal(lists.get(WHO, bytes([9])), np.arange(9))
    np.testing.assert_array_equal(lists.get(Identity("job", 1, 1), bytes([2])), [0, -1])
    for who, signature in (
        (WHO, bytes([1])),
        (Identity("job", 0, 6), bytes([9])),
        (Identity("job", 2, 5), bytes([9])),
        (Identity("other", 0, 5), bytes([9])),
    ):
        with pytest.raises(ForgottenError, match=f"trainer {who.trainer}"):
            lists.get(who, signature)
    lists.put(Identity("job", 0, 6), b"n", np.arange(3))
    with pytest.raises(ForgottenError):
        lists.get(WHO, bytes([9]))


def test_a_server_remembers_so_many_ids_of_each_trainer() -> None:
    lists = KnownLists()
    large = np.broadcast_to(np.int64(7), (1 << 21,))
    for number in range(3):
        lists.put(WHO, bytes([number]), large)
    with pytest.raises(ForgottenError):
        lists.get(WHO, bytes([0]))
    assert len(lists.get(WHO, bytes([2]))) == 1 << 21
    lists.put(WHO, b"huge", np.broadcast_to(np.int64(7), (1 << 23,)))
    with pytest.raises(ForgottenError):
        lists.get(WHO, b"huge")


def received(ids: Array) -> Array:
    """As they come from the wire: a view of bytes."""
    return np.frombuffer(ids.tobytes(), np.int64)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long the lists were that tables searched for."""
    found: list[int] = []
    search = RowIndex.find_or_number

    def counted(index: RowIndex, ids: Array) -> tuple[Array, Array]:
        found.append(len(ids))
        return search(index, ids)

    monkeypatch.setattr(RowIndex, "find_or_number", counted)
    return found


def make_table() -> SparseTable:
    return SparseTable("emb", 2, "float32", Uniform())


def subtract(table: SparseTable, ids: Array) -> None:
    """From each row its own id."""

    def step(rows: Array, gradient: Array) -> None:
        rows -= gradient

    gradient = np.broadcast_to(ids[:, None], (len(ids), 2)).astype(np.float32)
    table.update(SelectedRows(ids, gradient, 0), [], step)


def test_a_table_does_not_search_again_for_the_list_that_it_just_found(searches: list[int]) -> None:
    table = make_table()
    ids = received(MANY)
    before = table.lookup(ids)
    subtract(table, ids)
    assert searches == [len(MANY)]
    np.testing.assert_array_equal(table.lookup(MANY.copy()), before - MANY[:, None].astype(np.float32))


def test_a_table_searches_where_ids_may_have_changed_or_rows_moved(searches: list[int]) -> None:
    table = make_table()
    for ids in (MANY.copy(), np.frombuffer(bytearray(MANY.tobytes()), np.int64), received(MANY)[1:]):
        table.lookup(ids)
        subtract(table, ids)
    assert len(searches) == 6
    ids = received(MANY)
    table.lookup(ids)
    table.replace(SelectedRows(MANY[::-1].copy(), np.zeros((len(MANY), 2), np.float32), 0))
    subtract(table, ids)
    np.testing.assert_array_equal(table.lookup(MANY.copy()), -np.stack([MANY, MANY], 1))


def test_lists_are_told_apart_by_where_they_lie() -> None:
    found = FoundLists()
    for _ in range(6):
        one, other = received(MANY), received(MANY + 1)
        found.put(one, np.arange(len(MANY)))
        assert found.get(other) is None
        assert found.get(one[:-1]) is None
        np.testing.assert_array_equal(found.get(one.reshape(-1)), np.arange(len(MANY)))
        del one, other
