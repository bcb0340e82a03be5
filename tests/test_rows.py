"""What is promised about rows: ids of any kind, first values, duplicates, padding, emptiness. End to end: by programs
that are run locally, by servers in this process, and as inference."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import OutOfRangeError, ProgramError, RequestRefusedError
from fluidlite.protocol.messages import Declared, Gradient, RowRequest, Use
from fluidlite.rpc.inproc import inproc_port
from fluidlite.values.lod import lod_from_lengths
from fluidlite.values.sharding import shard_of
from tests.random_programs import FAR_IDS, OPTIMIZERS, POOLS, joined
from tests.training_jobs import Cluster, Local, Programs, State, assert_states, by_id, matrix

KINDS = ["dense", "sparse", "table"]
UNIFORM = fluid.initializer.Uniform(-0.5, 0.5)


def embedding_net(
    kind: str = "table",
    *,
    height: int = 4,
    width: int = 2,
    optimizer: Callable[[], Any] = lambda: fluid.optimizer.SGD(0.1),
    initial: Any = UNIFORM,
    padding: int | None = None,
    pool: str | None = None,
) -> Programs:
    """One lookup, and the sum of squares of what it gives as loss: an empty batch has a loss, 0."""

    def build() -> fluid.Variable:
        ids = fluid.data("ids", [None, 1], "int64", lod_level=int(pool is not None))
        rows = fluid.layers.embedding(
            ids,
            [height, width],
            is_sparse=kind != "dense",
            is_distributed=kind == "table",
            padding_idx=padding,
            param_attr=fluid.ParamAttr("emb", initial),
            dtype="float64",
        )
        if pool is not None:
            rows = fluid.layers.sequence_pool(rows, pool)
        loss = fluid.layers.reduce_sum(fluid.layers.square(rows))
        optimizer().minimize(loss)
        return loss

    return Programs(build)


def column(*ids: int) -> dict[str, Any]:
    return {"ids": np.array(ids, np.int64).reshape(-1, 1)}


def bags(*bags: list[int]) -> dict[str, Any]:
    ids = np.array([id for bag in bags for id in bag], np.int64).reshape(-1, 1)
    return {"ids": fluid.LoDTensor(ids, lod_from_lengths([[len(bag) for bag in bags]]))}


@contextmanager
def trained(programs: Programs, feeds: list[dict[str, Any]], servers: int = 3, **options: Any) -> Iterator[Cluster]:
    """A cluster of one trainer after these steps."""
    with closing(Cluster(programs, servers, **options)) as cluster:
        for feed in feeds:
            cluster.step([feed])
        yield cluster


def check_like_local(programs: Programs, feeds: list[dict[str, Any]], servers: int = 3) -> State:
    """Servers end as a local run does; what it leaves."""
    local = Local(programs)
    for feed in feeds:
        local.step(feed)
    state = local.state()
    with trained(programs, feeds, servers) as cluster:
        assert_states(cluster.state(), state)
    return state


# ---- ids


def test_any_64_bit_number_is_an_id() -> None:
    state = check_like_local(embedding_net(), [column(*FAR_IDS, 0, 1), column(*FAR_IDS)])
    assert set(state["emb"]) == {*FAR_IDS, 0, 1}
    assert len({tuple(row) for row in state["emb"].values()}) == len(FAR_IDS) + 2


def test_an_id_goes_to_the_server_of_its_unsigned_remainder() -> None:
    with trained(embedding_net(), [column(*FAR_IDS)], servers=3) as cluster:
        for index, scope in enumerate(cluster.shards):
            mine = scope.get("emb").ids.tolist()
            assert mine == [id for id in sorted(FAR_IDS) if (id % 2**64) % 3 == index]
    assert shard_of(np.array([-1]), 3)[0] == 0 != np.array([-1])[0] % 3


@pytest.mark.parametrize("servers", [0, 2])
def test_unsigned_feeds_above_2_63_are_the_same_bits(servers: int) -> None:
    feed = {"ids": np.array([[2**63], [2**64 - 1], [5]], np.uint64)}
    if not servers:
        local = Local(embedding_net())
        local.step(feed)
        assert set(by_id(local.scope.get("emb"))) == {-(2**63), -1, 5}
        return
    with trained(embedding_net(), [feed], servers) as cluster:
        assert set(cluster.state()["emb"]) == {-(2**63), -1, 5}


def test_unsigned_feeds_in_bags_are_the_same_bits() -> None:
    local = Local(embedding_net(pool="sum"))
    local.step({"ids": fluid.LoDTensor(np.array([[2**63], [1]], np.uint64), ((0, 0, 2),))})
    assert set(by_id(local.scope.get("emb"))) == {-(2**63), 1}


def test_C49_a_table_of_fewer_rows_than_servers() -> None:
    for kind in KINDS:
        check_like_local(embedding_net(kind, height=2), [column(0, 1, 1)], servers=5)


def test_B016_an_id_above_the_declared_height_is_legal_in_a_table() -> None:
    state = check_like_local(embedding_net(height=3), [column(3, 4, 5, 10**15, 1, 0)])
    assert set(state["emb"]) == {3, 4, 5, 10**15, 1, 0}


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("servers", [0, 3])
@pytest.mark.parametrize("bad", [4, -1, 2**40])
def test_C17_an_id_outside_a_parameter_of_fixed_height_is_an_error(kind: str, servers: int, bad: int) -> None:
    programs = embedding_net(kind)
    expected = (
        rf"(?s)id {bad} at position 2 of 'ids' is outside 'emb', .*in op \w+\(.*of block 0, made at .*test_rows.py:\d+"
    )
    if not servers:
        local = Local(programs)
        with pytest.raises(OutOfRangeError, match=expected):
            local.step(column(0, 1, bad, 2))
        return
    with trained(programs, [column(0)], servers) as cluster:
        before = cluster.state()
        with pytest.raises(OutOfRangeError, match=expected):
            cluster.inside.trainers[0].run(column(0, 1, bad, 2))
        assert_states(cluster.state(), before)
        cluster.step([column(0, 3)])


# ---- first values

INITIALS: dict[str, Any] = {
    "constant": fluid.initializer.Constant(0.25),
    "uniform": fluid.initializer.Uniform(-0.5, 0.5),
    "uniform with a seed": fluid.initializer.Uniform(-0.5, 0.5, seed=7),
    "normal": fluid.initializer.Normal(1.0, 2.0),
    "truncated normal": fluid.initializer.TruncatedNormal(1.0, 2.0),
    "xavier": fluid.initializer.Xavier(),
    "xavier normal": fluid.initializer.Xavier(uniform=False),
    "msra": fluid.initializer.MSRA(),
    "msra normal": fluid.initializer.MSRA(uniform=False),
    "array": fluid.initializer.NumpyArrayInitializer(np.arange(8.0).reshape(4, 2)),
}


@pytest.mark.parametrize("name", INITIALS)
def test_C46_a_first_value_depends_on_no_server_and_no_order(name: str) -> None:
    ids = [3, 0, 2, -1, 2**62, 1]
    programs = embedding_net(initial=INITIALS[name], optimizer=lambda: fluid.optimizer.SGD(0.0))
    expected = check_like_local(programs, [column(*ids)], servers=1)["emb"]
    for servers in (2, 5):
        with trained(programs, [column(id) for id in reversed(ids)], servers) as cluster:
            assert_states({"emb": cluster.state()["emb"]}, {"emb": expected})
    if name == "array":
        assert {id: row.tolist() for id, row in expected.items() if id in (0, 3)} == {0: [0.0, 1.0], 3: [6.0, 7.0]}
    elif name != "constant":
        assert len({tuple(row) for row in expected.values()}) == len(ids)


def test_first_values_differ_by_table_name_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(name: str) -> list[float]:
        def build() -> fluid.Variable:
            ids = fluid.data("ids", [None, 1], "int64")
            attr = fluid.ParamAttr(name, UNIFORM)
            rows = fluid.layers.embedding(ids, [4, 2], is_distributed=True, param_attr=attr, dtype="float64")
            loss = fluid.layers.reduce_sum(rows)
            fluid.optimizer.SGD(0.0).minimize(loss)
            return loss

        return check_like_local(Programs(build), [column(7)])[name][7].tolist()

    one = first("emb")
    assert first("emb") == one, "without a seed runs repeat"
    assert first("other") != one
    monkeypatch.setenv("FLUIDLITE_SEED", "5")
    assert first("emb") != one, "launch --seed gives others"


@pytest.mark.parametrize("block", [1, 10**6])
@pytest.mark.parametrize("seed", [0, 3])
def test_B035_trainers_start_with_the_servers_values_and_these_are_a_local_runs(block: int, seed: int) -> None:
    def build() -> fluid.Variable:
        x = fluid.data("x", [None, 6], "float64")
        loss = fluid.layers.mean(
            fluid.layers.fc(x, 5, param_attr=fluid.ParamAttr("w", fluid.initializer.Xavier(seed=seed)))
        )
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    programs = Programs(build)
    expected = Local(programs).scope.get("w")
    with closing(Cluster(programs, 3, 2, block=block)) as cluster:
        np.testing.assert_array_equal(cluster.state()["w"], expected)
        for trainer in cluster.inside.trainers:
            np.testing.assert_array_equal(trainer.scope.get("w"), expected)


def test_two_trainers_that_touch_a_new_id_at_once_get_one_row() -> None:
    programs = embedding_net(optimizer=lambda: fluid.optimizer.SGD(0.0))
    trainers = 8
    with closing(Cluster(programs, 2, trainers, sync=False)) as cluster:
        start = threading.Barrier(trainers)
        values: list[Any] = [None] * trainers

        def touch(index: int) -> None:
            start.wait(20)
            (values[index],) = cluster.inside.trainers[index].run(column(9, 4), programs.rows)

        threads = [threading.Thread(target=touch, args=(index,)) for index in range(trainers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(len(scope.get("emb")) for scope in cluster.shards) == [1, 1]
    for value in values[1:]:
        np.testing.assert_array_equal(value, values[0])


def test_a_push_to_an_id_never_pulled_makes_the_row_first() -> None:
    programs = embedding_net()
    made = check_like_local(embedding_net(optimizer=lambda: fluid.optimizer.SGD(0.0)), [column(42)])["emb"][42]
    with closing(Cluster(programs, 1)) as cluster:
        port = inproc_port(cluster.inside.services, trainer=0, trainers=1)
        (endpoint,) = cluster.inside.services
        port.stage(Gradient(endpoint, "emb@GRAD", np.ones((1, 2)), np.array([42])))
        port.commit([endpoint])
        np.testing.assert_allclose(cluster.state()["emb"][42], made - 0.1, rtol=1e-6)


# ---- inference


@pytest.mark.parametrize("servers", [0, 2])
def test_C02_inference_of_an_unknown_id_reads_zeros_and_changes_nothing(servers: int) -> None:
    programs = embedding_net()
    test = programs.main.clone(for_test=True)
    if not servers:
        local = Local(programs)
        local.step(column(1))
        (rows,) = local.run(column(1, 77), programs.rows, test)
        assert set(by_id(local.scope.get("emb"))) == {1}
    else:
        with trained(programs, [column(1)], servers) as cluster:
            trainer = cluster.inside.trainers[0]
            versions = [service._store.version for service in cluster.inside.services.values()]
            (rows,) = trainer.run(column(1, 77), programs.rows, trainer.main.clone(for_test=True))
            assert set(cluster.state()["emb"]) == {1}
            assert [service._store.version for service in cluster.inside.services.values()] == versions
    assert rows[0].any()
    np.testing.assert_array_equal(rows[1], [0.0, 0.0])


# ---- duplicates


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_C31_duplicates_give_the_dense_result_also_across_trainers(optimizer: str) -> None:
    initial = fluid.initializer.NumpyArrayInitializer(np.arange(8.0).reshape(4, 2) / 10)
    nets = {kind: embedding_net(kind, initial=initial, optimizer=lambda: OPTIMIZERS[optimizer](0.1)) for kind in KINDS}
    feeds = [[column(0, 1, 1, 3), column(2, 1, 3, 3)], [column(3, 3, 2, 0), column(1, 0, 0, 2)]]
    dense = Local(nets["dense"])
    for pair in feeds:
        dense.step(joined(pair))
    expected = dense.state()["emb"]
    for kind in KINDS:
        with closing(Cluster(nets[kind], 3, 1)) as cluster:
            for pair in feeds:
                cluster.step([joined(pair)])
            np.testing.assert_allclose(matrix(cluster.state()["emb"]), expected, rtol=1e-12)


def test_duplicates_across_trainers_are_summed_before_the_optimizer_sees_them() -> None:
    programs = embedding_net(optimizer=lambda: fluid.optimizer.Adagrad(0.1))
    averaged = embedding_net(optimizer=lambda: fluid.optimizer.Adagrad(0.1))
    with closing(Cluster(programs, 2, 2)) as two, closing(Cluster(averaged, 2, 1)) as one:
        two.step([column(5, 5), column(5, 5)])
        one.step([column(5, 5)])
        assert_states(two.state(), one.state())


# ---- what is touched


@pytest.mark.parametrize("optimizer", ["momentum", "rmsprop", "adam", "ftrl", "adagrad"])
def test_an_optimizer_touches_the_rows_of_the_batch_only_on_a_table(optimizer: str) -> None:
    programs = embedding_net(optimizer=lambda: OPTIMIZERS[optimizer](0.1))
    with trained(programs, [column(1, 2)]) as cluster:
        before = cluster.state()
        cluster.step([column(2)])
        after = cluster.state()
    assert (after["emb"][2] != before["emb"][2]).any()
    used = [name for name, rows in after.items() if isinstance(rows, dict) and rows]
    assert len(used) > 1
    for name in used:
        np.testing.assert_array_equal(after[name][1], before[name][1], err_msg=name)


def test_beta_powers_advance_once_per_step_also_without_ids() -> None:
    programs = embedding_net(optimizer=lambda: fluid.optimizer.Adam(0.1, beta1=0.5))
    state = check_like_local(programs, [column(0), column(), column(3)])
    power = next(value for name, value in state.items() if "beta1_pow" in name)
    np.testing.assert_allclose(power, [0.5**4])


def test_C44_accumulators_start_with_values_of_their_own() -> None:
    programs = embedding_net(
        initial=fluid.initializer.Constant(-5.0),
        optimizer=lambda: fluid.optimizer.Adagrad(0.1, initial_accumulator_value=0.5),
    )
    state = check_like_local(programs, [column(3)])
    moment = next(value for name, value in state.items() if "moment" in name)
    np.testing.assert_allclose(moment[3], 0.5 + (2 * -5.0) ** 2)


@pytest.mark.parametrize("make", [lambda: fluid.optimizer.Lamb(0.1), lambda: fluid.optimizer.LarsMomentum(0.1, 0.9)])
def test_optimizers_that_need_a_norm_are_refused_on_tables_and_never_sliced(make: Callable[[], Any]) -> None:
    with pytest.raises(ProgramError, match=r"'emb', a distributed table: .* needs a norm of the whole parameter"):
        embedding_net("table", optimizer=make)
    with closing(Cluster(embedding_net("dense", optimizer=make), 3)) as cluster:
        (param,) = cluster.plan.dense
        assert len(param.slices) == 1
        cluster.step([column(0, 1)])


# ---- padding


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", [1, -3])
def test_C34_B060_padding_is_zeros_without_gradient_and_row(kind: str, padding: int) -> None:
    programs = embedding_net(kind, padding=padding)
    local = Local(programs)
    first = None if kind == "table" else local.scope.get("emb").copy()
    (rows,) = local.run(column(0, 1, 1, 3), programs.rows)
    np.testing.assert_array_equal(rows[1:3], np.zeros((2, 2)))
    assert rows[0].any()
    with trained(programs, [column(0, 1, 1, 3)]) as cluster:
        assert_states(cluster.state(), local.state())
        emb = cluster.state()["emb"]
    if first is None:
        assert set(emb) == {0, 3}
    else:
        np.testing.assert_array_equal(emb[1], first[1])
        assert (emb[0] != first[0]).all()


def test_minus_one_is_an_id_where_no_padding_is_set() -> None:
    assert set(check_like_local(embedding_net(), [column(-1)])["emb"]) == {-1}


# ---- emptiness


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_is_a_step(kind: str) -> None:
    programs = embedding_net(kind, optimizer=lambda: fluid.optimizer.Momentum(0.1, 0.9))
    check_like_local(programs, [column(0, 3), column(), column(1)])
    check_like_local(programs, [column()])


@pytest.mark.parametrize("kind", KINDS)
def test_one_trainers_batch_may_be_empty(kind: str) -> None:
    programs = embedding_net(kind)
    halved = embedding_net(kind, optimizer=lambda: fluid.optimizer.SGD(0.05))
    with closing(Cluster(programs, 3, 2)) as two, closing(Cluster(halved, 3, 1)) as one:
        two.step([column(0, 3, 3), column()])
        one.step([column(0, 3, 3)])
        np.testing.assert_allclose(matrix(two.state()["emb"]), matrix(one.state()["emb"]), rtol=1e-6)


def test_a_server_without_ids_ticks_and_makes_no_row() -> None:
    with trained(embedding_net(), [column(0, 2), column(4)], servers=2) as cluster:
        assert [len(scope.get("emb")) for scope in cluster.shards] == [3, 0]
        assert [service._store.version for service in cluster.inside.services.values()] == [2, 2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pool", POOLS)
def test_an_empty_bag_pools_to_zeros(kind: str, pool: str) -> None:
    programs = embedding_net(kind, pool=pool)
    feeds = [bags([1, 2, 2], [], [3]), bags([], []), bags()]
    check_like_local(programs, feeds)
    local = Local(programs)
    pooled = next(op.output("Out") or "" for op in programs.main.desc.root.ops if op.type == "sequence_pool")
    (value,) = local.run(bags([1], [], [2]), [pooled])
    assert value[0].any()
    np.testing.assert_array_equal(value[1], [0.0, 0.0])


def test_C47_one_bag_over_three_servers_is_averaged_as_a_whole() -> None:
    programs = embedding_net(pool="average", optimizer=lambda: fluid.optimizer.SGD(0.0))
    pooled = next(op.output("Out") or "" for op in programs.main.desc.root.ops if op.type == "sequence_pool")
    with trained(programs, [bags([0, 1, 2, 3, 3])]) as cluster:
        (value,) = cluster.inside.trainers[0].run(bags([0, 1, 2, 3, 3]), [pooled])
        rows = cluster.state()["emb"]
    np.testing.assert_allclose(value[0], np.mean([rows[id] for id in (0, 1, 2, 3, 3)], axis=0), rtol=1e-12)


@pytest.mark.parametrize("servers", [0, 2])
def test_an_empty_table_is_saved_and_loaded(servers: int, tmp_path: Any) -> None:
    programs = embedding_net(optimizer=lambda: fluid.optimizer.Adam(0.1))
    if not servers:
        local = Local(programs)
        with fluid.scope_guard(local.scope):
            fluid.io.save_persistables(local.executor, str(tmp_path), programs.main)
            fluid.io.load_persistables(local.executor, str(tmp_path), programs.main)
        assert len(local.scope.get("emb")) == 0
        return
    with closing(Cluster(programs, servers)) as cluster:
        trainer = cluster.inside.trainers[0]
        with fluid.scope_guard(trainer.scope):
            fluid.io.save_persistables(trainer.executor, str(tmp_path), trainer.main)
            fluid.io.load_persistables(trainer.executor, str(tmp_path), trainer.main)
        assert cluster.state()["emb"] == {}
        cluster.step([column(1)])


# ---- width


def test_a_table_of_another_width_is_refused_at_registration() -> None:
    with closing(Cluster(embedding_net(width=2), 1)) as cluster:
        port = inproc_port(cluster.inside.services, trainer=0, trainers=1)
        (endpoint,) = cluster.inside.services
        port.declare({endpoint: [Declared("emb", Use.ROWS, "float64", (3,))]})
        with pytest.raises(RequestRefusedError, match=r"register at pserver .*'emb' is \[2\] float64 here, not \[3\]"):
            port.pull([RowRequest(endpoint, "emb", np.array([1]), 3, "float64")])
