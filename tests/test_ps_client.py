"""`PSClient`: ElasticDL's verbs over ordinary servers."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite import initializer
from fluidlite.errors import (
    FeedError,
    OutOfRangeError,
    PeerLostError,
    ProgramError,
    RequestRefusedError,
    SettingError,
    StaleError,
    TableError,
    TranspileError,
)
from fluidlite.protocol.messages import READER
from fluidlite.ps_client import DenseParameterInfo, EmbeddingTableInfo, PSClient, PSModel, Tensor, serve
from fluidlite.ps_model import Parts, part_name
from fluidlite.pserver.host import make_service
from fluidlite.pserver.service import IN_PROCESS, PServer
from fluidlite.rpc.inproc import inproc_port
from fluidlite.runtime.scope import Scope
from tests.shared_data import REPO

SIX = np.arange(12.0).reshape(6, 2)


def model(trainers: int = 1, rate: float = 1.0, block: int = 1, **config: Any) -> PSModel:
    """A table "emb" of width 2 and a dense "w" [6, 2], cut if ``block`` lets it, by sgd; in float64."""
    return PSModel(
        [EmbeddingTableInfo("emb", 2, "zeros", "float64")],
        [DenseParameterInfo("w", [6, 2], "float64")],
        "sgd",
        {"learning_rate": rate},
        trainers,
        fluid.DistributeTranspilerConfig(min_block_size=block, **config),
    )


def started(described: PSModel, servers: int = 2) -> list[PSClient]:
    """Clients of local servers to which "w" was pushed as zeros."""
    clients = PSClient.local(described, servers)
    assert clients[0].push_model([Tensor("w", np.zeros((6, 2)))])
    return clients


def push(client: PSClient, size: float = 1.0, **options: Any) -> tuple[bool, int]:
    """A gradient of ``size`` everywhere in "w" and in row 5 of "emb"."""
    return client.push_gradients(
        [Tensor("w", np.full((6, 2), size))], [Tensor("emb", np.full((1, 2), size), [5])], **options
    )


def totals(client: PSClient) -> tuple[float, float]:
    """What "w" and row 5 of "emb" are, in every element."""
    (w, *others), row = client.pull_dense_parameters()[0]["w"].ravel(), client.pull_embedding_vectors("emb", [5])
    assert {w} == {w, *others}
    return float(w), float(row[0, 0])


# --- which pushes are accepted, and at which rate -------------------------------------------------------------------


@pytest.mark.parametrize("servers", [1, 2, 3])
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
        (3, -1, [(0, 0), (0, 0), (1, 0), (0, 0)], [(True, 0), (True, 0), (True, 1), (True, 1)]),
    ],
    ids=["every_push", "stale", "one_trainer_twice", "two", "tolerance", "two_and_tolerance", "ahead", "any_version"],
)
def test_elasticdl_accepts_and_rejects(
    servers: int, wait: int, tolerance: int, pushes: list[tuple[int, int]], answers: list[tuple[bool, int]]
) -> None:
    options: dict[str, Any] = {"grads_to_wait": wait, "sync_version_tolerance": tolerance}
    clients = started(model(2, distinct_trainers=False, **options), servers)
    found = [push(clients[trainer], model_versions=[seen] * servers) for trainer, seen in pushes]
    assert found == answers
    applied = found[-1][1]
    assert totals(clients[0]) == (-applied, -applied), "a round is the mean of its pushes"


@pytest.mark.parametrize("carried", [None, 0.5, 0.0])
@pytest.mark.parametrize(
    ("seen", "divisors"),
    [([0, 1, 2], [1, 1, 1]), ([0, 0, 0, 0], [1, 1, 2, 3]), ([0, 1, 0, 9], [1, 1, 2, 1])],
    ids=["fresh", "never_pulled", "mixed"],
)
def test_elasticdl_divides_the_rate_by_staleness(
    carried: float | None, seen: Sequence[int], divisors: Sequence[int]
) -> None:
    options = {"sync_mode": False, "lr_staleness_modulation": True, "lr_from_trainer": carried is not None}
    (client,) = started(model(**options))
    for versions in seen:
        assert push(client, learning_rate=carried, model_versions=[versions] * 2)[0]
    moved = sum((1.0 if carried is None else carried) / divisor for divisor in divisors)
    assert totals(client) == pytest.approx((-moved, -moved), rel=1e-12)


def test_versions_are_those_of_what_was_pulled() -> None:
    one, other = started(model(2, sync_mode=False), servers=3)
    versions = [0, 0, 0]
    assert one.pull_dense_parameters(model_versions=versions)[1] == []
    assert push(other) == (True, 1)
    one.pull_embedding_vectors("emb", [0])
    assert one.model_versions == versions == [0, 0, 0], "the dense parameters are older than the rows"
    assert push(one) == (True, 2)
    one.pull_embedding_vectors("emb", [0])
    assert push(other) == (True, 3)
    by_number: dict[int, int] = {}
    one.pull_dense_parameters([1], by_number)
    assert by_number == {1: 2}, "the rows are older"
    assert push(one) == (True, 4)
    one.pull_dense_parameters(model_versions=versions)
    assert one.model_versions == versions == [4, 4, 4]


def test_reading_for_inference_makes_no_gradient_older() -> None:
    one, other = started(model(2, sync_mode=False))
    one.pull_embedding_vectors("emb", [1], read_only=True)
    push(other)
    one.pull_embedding_vectors("emb", [1])
    one.pull_dense_parameters()
    assert one.model_versions == [1, 1]


def test_a_refused_push_counts_nowhere_and_the_next_one_can_be_right() -> None:
    one, other = started(model(2, grads_to_wait=1, distinct_trainers=False, sync_version_tolerance=0))
    one.pull_dense_parameters()
    other.pull_dense_parameters()
    assert push(one) == (True, 1)
    assert push(other, 100.0) == (False, 1)
    assert totals(other) == (-1.0, -1.0)
    assert push(other, 100.0) == (True, 2)
    assert totals(one) == (-101.0, -101.0)


def test_a_push_that_one_server_refuses_counts_on_none() -> None:
    (client,) = started(model(grads_to_wait=1, sync_version_tolerance=0))
    assert push(client) == (True, 1)
    assert push(client, model_versions=[1, 0]) == (False, 1)
    assert totals(client) == (-1.0, -1.0)


def test_nobody_is_refused_for_ever_who_looks_up_on_one_server_only() -> None:
    """Servers from which nothing is needed have versions, too."""
    described = PSModel(
        [EmbeddingTableInfo("emb", 1)],
        trainers=2,
        settings=fluid.DistributeTranspilerConfig(grads_to_wait=1, distinct_trainers=False, sync_version_tolerance=0),
    )
    one, other = PSClient.local(described, 2)
    for client in (one, other, one, other):
        rows = client.pull_embedding_vectors("emb", [0])
        assert client.push_gradients([], [Tensor("emb", rows, [0])])[0]


def test_rounds_of_all_trainers_are_their_mean() -> None:
    clients = started(model(2))
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            assert list(pool.map(push, clients, [2.0, 6.0])) == [(True, version := _ + 1)] * 2
            assert version
    assert totals(clients[0]) == (-12.0, -12.0)


# --- what is pushed and pulled --------------------------------------------------------------------------------------

ANY_ID = st.integers(-(2**63), 2**63 - 1) | st.integers(-4, 4)
#: ids, and a gradient for each: a whole number, so that the order of sums does not matter
PUSH = st.lists(st.tuples(ANY_ID, st.integers(-9, 9)), max_size=8)


@settings(max_examples=40)
@given(st.lists(st.tuples(PUSH, st.integers(-9, 9)), max_size=5), st.integers(1, 4), st.sampled_from([1, 4, 100]))
def test_any_pushes_give_what_one_process_gives(steps: list[Any], servers: int, block: int) -> None:
    (client,) = PSClient.local(model(rate=0.5, block=block, sync_mode=False), servers)
    client.push_model([Tensor("w", SIX)])
    rows: dict[int, float] = {}
    w = SIX.copy()
    for pairs, size in steps:
        ids = np.array([id for id, _ in pairs], np.int64)
        values = np.repeat(np.array([[float(g)] for _, g in pairs]).reshape(-1, 1), 2, axis=1)
        half = len(ids) // 2
        edl = [Tensor("emb", values[:half], ids[:half]), Tensor("emb", values[half:], ids[half:])]
        assert client.push_gradients([Tensor("w", np.full((6, 2), float(size)))], edl)[0]
        w -= 0.5 * size
        for id, value in pairs:
            rows[id] = rows.get(id, 0.0) - 0.5 * value
    wanted = [*rows, 3, 3]
    found = client.pull_embedding_vectors("emb", wanted)
    np.testing.assert_array_equal(found, [[rows.get(id, 0.0)] * 2 for id in wanted])
    np.testing.assert_array_equal(client.pull_dense_parameters()[0]["w"], w)
    client.complete()


def test_ids_of_any_shape_and_kind() -> None:
    (client,) = PSClient.local(
        PSModel(
            [EmbeddingTableInfo("emb", 3, initializer.Uniform(-1, 1))], settings=fluid.DistributeTranspilerConfig()
        ),
        3,
    )
    ids = np.array([[7, -1, 2**62], [7, 7, 0]])
    rows = client.pull_embedding_vectors("emb", ids)
    assert rows.shape == (2, 3, 3)
    assert rows.dtype == np.float32
    assert len(np.unique(rows.reshape(-1, 3), axis=0)) == 4
    np.testing.assert_array_equal(client.pull_embedding_vectors("emb", ids.astype(np.uint64)), rows)
    np.testing.assert_array_equal(client.pull_embedding_vectors("emb", ids.ravel().tolist()), rows.reshape(-1, 3))
    assert client.pull_embedding_vectors("emb", []).shape == (0, 3)
    assert client.pull_embedding_vectors("emb", 7).shape == (3,)


def test_looking_up_for_inference_makes_no_rows() -> None:
    (client,) = PSClient.local(PSModel([EmbeddingTableInfo("emb", 2, "ones")]), 2)
    assert not client.pull_embedding_vectors("emb", [1, 2], read_only=True).any()
    assert client.pull_embedding_vectors("emb", [1]).all()
    np.testing.assert_array_equal(client.pull_embedding_vectors("emb", [2, 1], read_only=True), [[0, 0], [1, 1]])


class _TorchLike:
    """A tensor as PyTorch has them: what needs a gradient must be detached before numpy may see it."""

    def __init__(self, array: Any, attached: bool = True) -> None:
        self._array, self._attached = np.asarray(array), attached

    def detach(self) -> _TorchLike:
        return _TorchLike(self._array, attached=False)

    def cpu(self) -> _TorchLike:
        return self

    def numpy(self) -> Any:
        if self._attached:
            raise RuntimeError("call detach first")
        return self._array


def _tensorflow_like(array: Any) -> Any:
    return SimpleNamespace(numpy=lambda: np.asarray(array))


@pytest.mark.parametrize("made", [np.array, _TorchLike, _tensorflow_like, np.ndarray.tolist], ids=["numpy", "torch", "tf", "list"])  # fmt: skip
def test_tensors_of_any_kind(made: Callable[[Any], Any]) -> None:
    (client,) = PSClient.local(model())
    assert client.push_model([Tensor("w", made(SIX))])
    edl = SimpleNamespace(name="emb", values=made(np.ones((2, 2))), indices=made(np.array([5, 5])))
    dense = SimpleNamespace(name="w", values=made(np.ones((2, 2))), indices=made(np.array([0, 0])))
    assert client.push_gradients([dense, Tensor("w", made(np.ones((6, 2))))], [edl]) == (True, 1)
    np.testing.assert_array_equal(client.pull_embedding_vectors("emb", made(np.array([5]))), [[-2.0, -2.0]])
    moved = np.ones((6, 2)) + 2 * (np.arange(6) == 0)[:, None]
    np.testing.assert_array_equal(client.pull_dense_parameters()[0]["w"], SIX - moved)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda c: c.push_gradients([Tensor("v", SIX)]), "no dense parameter 'v'; there are w"),
        (lambda c: c.push_gradients([Tensor("w", SIX.astype("f4"))]), "'w' is float32, on the servers it is float64"),
        (lambda c: c.push_gradients([Tensor("w", SIX[:5])]), r"'w' is \[5, 2\], on the servers it is \[6, 2\]"),
        (lambda c: c.push_gradients([Tensor("w", None)]), "the gradient of 'w' is no array"),
        (lambda c: c.push_gradients([Tensor("w", SIX, [0])]), r"is \[6, 2\], on the servers it is \[1, 2\]"),
        (lambda c: c.push_gradients([], [Tensor("emb", SIX)]), "'emb' has no indices"),
        (lambda c: c.push_gradients([], [Tensor("emb", SIX, [0.5] * 6)]), "must be integers, not float64"),
        (lambda c: c.push_gradients([], [Tensor("w", SIX, [0] * 6)]), "no table 'w'; there are emb"),
        (lambda c: c.pull_embedding_vectors("model_pushed", [0]), "no table 'model_pushed'"),
        (lambda c: c.pull_embedding_vectors("emb", ["a"]), "no array of numbers but of <U1"),
        (lambda c: c.pull_dense_parameters([2]), "no server 2 among 2"),
        (lambda c: c.push_model([]), "needs every dense parameter; there is no 'w'"),
        (lambda c: c.push_model([Tensor("w", SIX.T)]), r"'w' is \[2, 6\]"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_and_nothing_is_sent(wrong: Callable[[PSClient], Any], message: str) -> None:
    (client,) = started(model())
    with pytest.raises(FeedError, match=message):
        wrong(client)
    assert push(client) == (True, 1)
    assert totals(client) == (-1.0, -1.0)


def test_a_row_that_a_dense_parameter_does_not_have() -> None:
    (client,) = started(model())
    with pytest.raises(OutOfRangeError, match="no row 6 among 6"):
        client.push_gradients([Tensor("w", SIX[:2], [5, 6])])


@pytest.mark.parametrize(
    ("config", "given", "message"),
    [({}, {"learning_rate": 0.5}, "lr_from_trainer is off"), ({"nan_policy": "error"}, {"size": np.nan}, "not finite")],
    ids=["rate", "nan"],
)
def test_what_servers_refuse_is_an_error_and_no_stale_push(
    config: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    (client,) = started(model(**config))
    with pytest.raises(RequestRefusedError, match=message):
        push(client, **given)
    assert push(client) == (True, 1)
    assert totals(client) == (-1.0, -1.0)


# --- the first values -----------------------------------------------------------------------------------------------


def test_the_model_of_trainer_0_is_taken_once() -> None:
    one, other = PSClient.local(model(2, sync_mode=False), 3)
    assert other.pull_dense_parameters([2, 0]) == ({}, [2, 0])
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(other.push_model, [Tensor("w", -SIX)])
        assert one.push_model([Tensor("w", SIX)])
        assert waits.result(20) is False
    push(other)
    assert one.push_model([Tensor("w", SIX)]) is False
    values, without = other.pull_dense_parameters()
    assert without == []
    np.testing.assert_array_equal(values["w"], SIX - 1)
    assert not np.shares_memory(values["w"], SIX)


def test_waiting_for_a_model_that_never_comes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUIDLITE_CONNECT_SECONDS", "0.05")
    _, other = PSClient.local(model(2))
    with pytest.raises(PeerLostError, match="trainer 0 has pushed no model"):
        other.push_model([Tensor("w", SIX)])


def test_table_infos_are_compared() -> None:
    (client,) = started(model())
    client.push_embedding_table_infos([EmbeddingTableInfo("emb", 2, "ones", "float64")])
    with pytest.raises(TableError, match=r"'emb' is \(2, 'float64'\) .* not \(3, 'float32'\); table 'more' is none"):
        client.push_embedding_table_infos([EmbeddingTableInfo("emb", 3), EmbeddingTableInfo("more", 1)])


def test_a_model_without_dense_parameters_needs_no_push() -> None:
    (client,) = PSClient.local(PSModel([EmbeddingTableInfo("emb", 2)]))
    assert client.push_model([]) is False
    assert client.pull_dense_parameters() == ({}, [])


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (PSModel, "needs tables or dense parameters"),
        (lambda: PSModel([EmbeddingTableInfo("a", 1)], [DenseParameterInfo("a", [1])]), "'a' is there 2 times"),
        (lambda: PSModel([EmbeddingTableInfo("model_pushed", 1)]), "a table of their own"),
        (lambda: PSModel([EmbeddingTableInfo("a", 1, "odd")]).programs(), "table 'a': there is no initializer 'odd'"),
        (lambda: PSModel([EmbeddingTableInfo("a", 1)], optimizer="x").programs(), "no optimizer 'x'; there are Adadelta"),
        (lambda: PSModel([EmbeddingTableInfo("a", 1)], (), "sgd", {}).programs(), "optimizer SGD: .*'learning_rate'"),
        (lambda: PSModel([EmbeddingTableInfo("a", 1)], (), "adam", {"x": 1}).programs(), "optimizer Adam: .*'x'"),
        (lambda: PSModel([EmbeddingTableInfo("a", 1)], (), "sgd", {"learning_rate": 1, "x": 1}).programs(), "'x'"),
        (lambda: model(half_async=True, sync_mode=False), "let trainers run a part"),
        (lambda: model(dense_on_trainer=True), "let trainers run a part"),
        (lambda: Parts(model(), 0), "at least one server"),
        (lambda: Parts(model(), 2).part(2), "no server 2 among 2"),
    ],
)  # fmt: skip
def test_models_that_contradict_themselves(described: Callable[[], object], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        described()


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(TranspileError, match="grads_to_wait is 5, but the job has 1 trainer"):
        PSClient.local(model(grads_to_wait=5))


# --- servers --------------------------------------------------------------------------------------------------------


def services_of(described: PSModel, servers: int) -> dict[str, PServer]:
    parts, services = Parts(described, servers), {}
    for server in range(servers):
        part, scope = parts.part(server), Scope()
        services[part_name(server)] = make_service(part.host(scope), IN_PROCESS)
        part.take_place(scope)
    return services


def client_of(services: dict[str, PServer], described: PSModel, endpoints: Sequence[str]) -> PSClient:
    return PSClient(described, endpoints, 0, port=inproc_port(services, trainer=0, trainers=described.trainers))


TABLE = PSModel([EmbeddingTableInfo("emb", 2)])


@pytest.mark.parametrize(
    ("endpoints", "message"),
    [
        ((1, 0), "unknown variable 'server 0 of 2'"),
        ((0,), "unknown variable 'server 0 of 1'"),
    ],
    ids=["order", "number"],
)
def test_servers_in_another_order_or_number_are_refused(endpoints: Sequence[int], message: str) -> None:
    """Else ids would be looked up where they are not."""
    client = client_of(services_of(TABLE, 2), TABLE, [part_name(server) for server in endpoints])
    with pytest.raises(RequestRefusedError, match=message):
        client.pull_embedding_vectors("emb", [0])


def test_servers_of_another_model_are_refused() -> None:
    services = services_of(TABLE, 1)
    other = PSModel([EmbeddingTableInfo("emb", 3), EmbeddingTableInfo("more", 1)])
    with pytest.raises(RequestRefusedError, match=r"'emb' is \[2\] float32 here, not \[3\].*unknown table 'more'"):
        client_of(services, other, [part_name(0)]).push_embedding_table_infos([])


def test_a_client_that_has_a_successor_gets_an_error() -> None:
    described = model(grads_to_wait=1, sync_version_tolerance=0)
    services = services_of(described, 2)
    old, new = (client_of(services, described, list(services)) for _ in range(2))
    old.push_model([Tensor("w", SIX)])
    new.pull_dense_parameters()
    with pytest.raises(StaleError, match="a newer incarnation of trainer 0"):
        push(old)
    assert push(new) == (True, 1)


def test_who_only_reads_is_no_trainer() -> None:
    described = model(2, sync_mode=False)
    services = services_of(described, 2)
    readers = [
        PSClient(described, list(services), read_only=True, port=inproc_port(services, trainer=READER))
        for _ in range(2)
    ]
    assert readers[0].pull_dense_parameters() == ({}, [0, 1])
    trainer = client_of(services, described, list(services))
    trainer.push_model([Tensor("w", SIX)])
    push(trainer)
    for reader in readers:
        np.testing.assert_array_equal(reader.pull_dense_parameters()[0]["w"], SIX - 1)
        np.testing.assert_array_equal(reader.pull_embedding_vectors("emb", [5, 6, 7]), [[-1, -1], [0, 0], [0, 0]])
        with pytest.raises(RequestRefusedError):
            push(reader)
        assert reader.push_model([Tensor("w", SIX)]) is False
        reader.complete()
    assert trainer.pull_embedding_vectors("emb", [5]).tolist() == [[-1.0, -1.0]]
    assert [service.live for service in services.values()] == [(0, 1), (0, 1)]


@contextmanager
def listening(described: PSModel, servers: int) -> Iterator[list[str]]:
    """Servers on loopback, a thread each; they have ended by themselves when the block is left."""
    bound: list[queue.SimpleQueue[str]] = [queue.SimpleQueue() for _ in range(servers)]
    threads = [
        threading.Thread(target=serve, args=(described, "127.0.0.1:0", server, servers, bound[server].put))
        for server in range(servers)
    ]
    for thread in threads:
        thread.start()
    yield [endpoint.get(timeout=30) for endpoint in bound]
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_models_are_cut_in_threads() -> None:
    described, interval = model(sync_mode=False), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            cut = [threads.submit(Parts, described, 2) for _ in range(8)]
            parts = [part.result().part(1) for part in cut]
    finally:
        sys.setswitchinterval(interval)
    assert len({re.sub(r'op_namescope="[^"]*"', "", str(part.program)) for part in parts}) == 1


def test_checkpoints_go_on_with_another_number_of_servers(tmp_path: Path) -> None:
    described = model(sync_mode=False, checkpoint_dir=str(tmp_path))
    ids = [5, -1, 2**62, 6, 7]
    with listening(described, 2) as endpoints, PSClient(described, endpoints, 0) as client:
        assert client.push_model([Tensor("w", SIX)])
        for size in (1.0, 2.0):
            assert push(client, size)[0]
        client.push_gradients([], [Tensor("emb", np.arange(10.0).reshape(5, 2), ids)])
        rows, dense = client.pull_embedding_vectors("emb", ids), client.pull_dense_parameters()[0]["w"]
    with listening(described, 3) as endpoints, PSClient(described, endpoints, 0) as client:
        assert not client.push_model([Tensor("w", SIX)]), "the model of the checkpoint stays"
        np.testing.assert_array_equal(client.pull_embedding_vectors("emb", ids), rows)
        np.testing.assert_array_equal(client.pull_dense_parameters()[0]["w"], dense)
        assert client.model_versions == [3, 3, 3]
        assert push(client) == (True, 4)


def test_large_gradients_over_the_network_carry_rate_and_versions() -> None:
    """They leave before their step does, which has the rate and the versions."""
    described = PSModel(
        dense=[DenseParameterInfo("big", [600, 200], "float64")],
        settings=fluid.DistributeTranspilerConfig(grads_to_wait=1, sync_version_tolerance=0, lr_from_trainer=True),
    )
    size = (600, 200)
    with listening(described, 2) as endpoints, PSClient(described, endpoints, 0) as client:
        client.push_model([Tensor("big", np.zeros(size))])
        assert client.push_gradients([Tensor("big", np.ones(size))], learning_rate=0.5) == (True, 1)
        refused = client.push_gradients([Tensor("big", np.ones(size))], (), 4.0, model_versions=[1, 0])
        assert refused == (False, 1)
        assert client.push_gradients([Tensor("big", np.ones(size))], learning_rate=0.25) == (True, 2)
        np.testing.assert_array_equal(client.pull_dense_parameters()[0]["big"], np.full(size, -0.75))


def test_an_error_inside_the_block_leaves_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUIDLITE_GRACE_SECONDS", "0.1")
    described = model(2)
    with listening(described, 2) as endpoints, PSClient(described, endpoints, 0) as goes_on:
        goes_on.push_model([Tensor("w", SIX)])
        fails = PSClient(described, endpoints, 1)
        fails.pull_dense_parameters()
        with pytest.raises(FeedError), fails:
            fails.pull_embedding_vectors("none", [0])
        assert push(goes_on) == (True, 1)


def test_where_roles_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINER_ID", "POD_IP", "PADDLE_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SettingError, match="needs the endpoints of its servers"):
        PSClient(TABLE)
    with pytest.raises(SettingError, match="serve needs an endpoint"):
        serve(TABLE)
    monkeypatch.setenv("PADDLE_PSERVERS_IP_PORT_LIST", "10.0.0.1:7000, 10.0.0.2:7000")
    monkeypatch.setenv("POD_IP", "10.0.0.3")
    monkeypatch.setenv("PADDLE_PORT", "7000")
    with pytest.raises(SettingError, match=r"10\.0\.0\.3:7000, which is none of"):
        serve(TABLE)
    monkeypatch.setenv("PADDLE_TRAINER_ID", "3")
    client = PSClient(TABLE)
    assert (client.trainer_id, client.endpoints) == (3, ("10.0.0.1:7000", "10.0.0.2:7000"))
    client.close()


# --- the examples, as processes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["client_numpy", "client_torch"])
def test_examples_with_two_servers_and_two_trainers(name: str, tmp_path: Path) -> None:
    if name == "client_torch" and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    script = str(REPO / "examples" / f"{name}.py")
    path = os.pathsep.join([str(REPO), *filter(None, [os.environ.get("PYTHONPATH")])])
    base = {**os.environ, "PYTHONPATH": path, "PADDLE_TRAINERS_NUM": "2"}
    with ExitStack() as stack:

        def start(*command: str, **env: str) -> subprocess.Popen[str]:
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                [sys.executable, *command], cwd=tmp_path, env=base | env, stdout=pipe, stderr=pipe, text=True
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        servers = [start("-m", "tests.ps_process", script, str(server), "2", "2") for server in range(2)]
        endpoints = ",".join(server.stdout.readline().strip() for server in servers if server.stdout)
        role = {"TRAINING_ROLE": "TRAINER", "PADDLE_PSERVERS_IP_PORT_LIST": endpoints}
        trainers = [
            start(script, "--steps", "100", "--batch", "32", **role, PADDLE_TRAINER_ID=str(trainer))
            for trainer in range(2)
        ]
        for process in trainers:
            out, err = process.communicate(timeout=100)
            assert process.returncode == 0, err
            assert float(out.split("right ")[1]) > 0.9
        for process in servers:
            _, err = process.communicate(timeout=30)
            assert process.returncode == 0, err


def test_the_script_of_the_page_runs(tmp_path: Path) -> None:
    page = (REPO / "docs" / "client.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "job.py").write_text(script, encoding="utf-8")
    env = {key: value for key, value in os.environ.items() if key != "TRAINING_ROLE"} | {"PYTHONPATH": str(REPO)}
    for command in (["job.py"], ["-m", "fluidlite.launch", "--pservers", "2", "--trainers", "2", "job.py"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        found = re.findall(r"version (\d+) error (\S+)", done.stdout)
        assert len(found) == (1 if len(command) == 1 else 2)
        assert all(float(error) < 0.02 for _, error in found), done.stdout


@pytest.mark.parametrize("versions", [[], [0], [0, 0, 0], {0: 0}, ["a", 0], [None, 0], 5, [1 << 63, 0], [-1, 0]])
def test_versions_that_are_none(versions: Any) -> None:
    (client,) = PSClient.local(model(sync_mode=False), servers=2)
    with client:
        client.push_model([Tensor("w", SIX)])
        with pytest.raises(FeedError, match="model_versions"):
            client.push_gradients([], [], model_versions=versions)
        if not isinstance(versions, dict):  # which may be filled in
            with pytest.raises(FeedError, match="model_versions"):
                client.pull_dense_parameters(model_versions=versions)


def test_other_arguments_that_are_none() -> None:
    (client,) = PSClient.local(model(sync_mode=False, lr_from_trainer=True), servers=2)
    with client:
        client.push_model([Tensor("w", SIX)])
        for rate in ("x", [0.1], 10**400):
            with pytest.raises(FeedError, match="learning_rate must be a number"):
                client.push_gradients([], [], learning_rate=rate)  # type: ignore[arg-type]
        with pytest.raises(RequestRefusedError, match="in float32 too"):
            client.push_gradients([], [], learning_rate=1e308)
        for servers in (["a"], [0.0], 5):
            with pytest.raises(FeedError, match="ps_ids must be whole numbers"):
                client.pull_dense_parameters(ps_ids=servers)  # type: ignore[arg-type]
    for trainer in (1 << 40, "a", 0.5, -2):
        with pytest.raises(SettingError, match="trainer_id must be a whole number from 0 on"):
            PSClient(model(), ["127.0.0.1:1"], trainer)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="not the string"):
        PSClient(model(), "127.0.0.1:1", 0)
