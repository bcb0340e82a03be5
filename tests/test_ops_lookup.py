"""Lookups and the routing of ids: what the cases of the records cannot say (errors, tables, properties)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidlite.errors import DtypeError, OutOfRangeError, ProgramError, ShapeError, TableError
from fluidlite.runtime.plan import Env, Plan
from fluidlite.runtime.scope import Scope
from fluidlite.values.initial import Uniform
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows, to_dense
from fluidlite.values.sharding import shard_of
from fluidlite.values.sparse_table import SparseTable
from tests.op_harness import Bench, add_gradient, build, numbers

LOW, HIGH = -(2**63), 2**63 - 1
EXTREMES = [LOW, LOW + 1, -(2**53) - 1, -(2**32), -4, -1, 0, 1, 2**31, 2**32, 2**53 + 1, HIGH]
any_id = st.integers(LOW, HIGH) | st.integers(-3, 3) | st.sampled_from(EXTREMES)
W = np.array([[0.5, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]])
LOOKUPS = ["lookup_table", "lookup_table_v2"]


def ids_of(*ids: int) -> Any:
    return np.array(ids, np.int64).reshape(-1, 1)


def table(**rest: Any) -> SparseTable:
    return SparseTable("emb", 2, "float64", Uniform(), **rest)


def lookup(op: str, w: Any, ids: Any, **attrs: Any) -> Bench:
    return build(op, {"W": [w], "Ids": [ids]}, attrs)


def run(bench: Bench) -> Env:
    """Run on the fed values themselves: a table is not copied."""
    return Plan(bench.program, None).run(Scope(), dict(bench.feeds))


def out_of(bench: Bench) -> Any:
    return numbers(run(bench).read("Out_out0"))


def gradient(bench: Bench, upstream: Any) -> Any:
    """W@GRAD for a given Out@GRAD."""
    add_gradient(bench, {"Out_out0": upstream})
    return run(bench).read("W_0@GRAD")


# ---- ids of a fixed table


@pytest.mark.parametrize("op", LOOKUPS)
@pytest.mark.parametrize(("ids", "position"), [((0, -1), 1), ((4,), 0), ((1, 2, HIGH), 2), ((LOW, 0), 0)])
def test_c17_a_fixed_table_names_the_offending_position(op: str, ids: tuple[int, ...], position: int) -> None:
    with pytest.raises(OutOfRangeError) as caught:
        lookup(op, W, ids_of(*ids)).run()
    text = str(caught.value)
    assert f"id {ids[position]} at position {position} of 'Ids_0' is outside 'W_0', which has rows 0 to 3" in text
    assert f"in op {op}(" in text


@pytest.mark.parametrize("op", LOOKUPS)
def test_c17_an_auto_grown_table_takes_any_id(op: str) -> None:
    grown = table(height=4)
    rows = out_of(lookup(op, grown, ids_of(*EXTREMES))).reshape(-1, 2)
    assert len(np.unique(rows, axis=0)) == len(EXTREMES)
    np.testing.assert_array_equal(rows, table().lookup(np.array(EXTREMES)))


@pytest.mark.parametrize("op", LOOKUPS)
def test_b063_minus_one_is_no_padding_and_padding_skips_no_check(op: str) -> None:
    with pytest.raises(OutOfRangeError, match="id -1 at position 0"):
        lookup(op, W, ids_of(-1)).run()
    with pytest.raises(OutOfRangeError, match="id 12 at position 1"):
        lookup(op, W, ids_of(3, 12), padding_idx=3).run()


def test_ids_must_be_int64() -> None:
    with pytest.raises(DtypeError, match=r"'Ids_0' must be int64, not int32"):
        lookup("lookup_table", W, np.array([[1]], np.int32)).run()


def test_ids_that_do_not_end_in_one_column_are_refused_at_build_and_at_run() -> None:
    with pytest.raises(ShapeError, match=r"\[2, 3\] must be 1"):
        lookup("lookup_table", W, np.zeros((2, 3), np.int64))
    bench = lookup("lookup_table", W, ids_of(0))
    with pytest.raises(ShapeError, match=r"last dimension of 'Ids_0' \[2\] must be 1"):
        bench.run({"Ids_0": np.zeros(2, np.int64)})


def test_a_parameter_that_is_no_matrix_is_refused() -> None:
    with pytest.raises(ShapeError, match="must be a matrix"):
        lookup("lookup_table", W[0], ids_of(0))


def test_an_id_that_was_not_fetched_is_named() -> None:
    fetched = SelectedRows(np.array([7, -2]), W[:2], 10)
    with pytest.raises(TableError, match=r"id 3 at position 1 of 'Ids_0' is not among the 2 fetched rows of 'W_0'"):
        lookup("lookup_table", fetched, ids_of(7, 3)).run()
    nothing = SelectedRows(np.zeros(0, np.int64), np.zeros((0, 2)), 10)
    with pytest.raises(TableError, match="id 3 at position 0"):
        lookup("lookup_table", nothing, ids_of(3)).run()


# ---- padding


@pytest.mark.parametrize("op", LOOKUPS)
@pytest.mark.parametrize("sparse", [False, True])
def test_b060_the_padding_row_gets_no_gradient(op: str, sparse: bool) -> None:
    bench = lookup(op, W, ids_of(0, 1, 1), padding_idx=0, is_sparse=sparse)
    out = out_of(bench).reshape(-1, 2)
    np.testing.assert_array_equal(out, [[0, 0], W[1], W[1]])
    upstream = np.arange(1.0, 7.0).reshape(out_of(bench).shape)
    grad = gradient(bench, upstream)
    assert isinstance(grad, SelectedRows) == sparse
    dense = to_dense(grad) if sparse else grad
    np.testing.assert_array_equal(dense, [[0, 0], [8, 10], [0, 0], [0, 0]])


def test_c34_padding_makes_no_row_in_a_table() -> None:
    grown = table()
    bench = lookup("lookup_table", grown, ids_of(9, 5, 9), padding_idx=9, is_distributed=True)
    np.testing.assert_array_equal(out_of(bench), [[0, 0], table().lookup(ids_of(5))[0], [0, 0]])
    grad = gradient(bench, np.ones((3, 2)))
    assert grad.rows.tolist() == [5]
    plain = build("lookup_table", {"W": [grown], "Ids": [ids_of(9, 9)]}, {"padding_idx": 9})
    assert not out_of(plain).any()


def test_c34_padding_is_not_requested_from_servers() -> None:
    bench = build("split_ids", {"Ids": [ids_of(9, 5, 9)]}, {"padding_idx": 9}, n_outputs={"Out": 2, "Inverse": 1})
    env = bench.run()
    assert [env.read(name).ravel().tolist() for name in bench.op.outputs["Out"]] == [[], [5]]
    fetched = SelectedRows(np.array([5]), W[:1], 0)
    looked_up = lookup("lookup_table", fetched, ids_of(9, 5), padding_idx=9, is_distributed=True)
    np.testing.assert_array_equal(out_of(looked_up), [[0, 0], W[0]])
    assert gradient(looked_up, np.ones((2, 2))).rows.tolist() == [5]


def test_only_padding_is_legal_for_every_kind_of_parameter() -> None:
    empty = SelectedRows(np.zeros(0, np.int64), np.zeros((0, 2)), 0)
    for w in (W, empty, table()):
        np.testing.assert_array_equal(out_of(lookup("lookup_table", w, ids_of(1, 1), padding_idx=1)), np.zeros((2, 2)))


# ---- tables


def test_reading_for_inference_makes_no_row() -> None:
    grown = table()
    grown.lookup(ids_of(4))
    bench = build("lookup_table", {"W": [grown], "Ids": [ids_of(4, 8)]}, {"is_test": True})
    np.testing.assert_array_equal(out_of(bench), [table().lookup(ids_of(4))[0], [0, 0]])
    served = build("lookup_sparse_table", {"W": [grown], "Ids": [ids_of(8)]}, {"is_test": True})
    np.testing.assert_array_equal(out_of(served), [[0, 0]])
    assert grown.ids.tolist() == [4]


def test_a_full_preallocated_table_says_so() -> None:
    full = SelectedRows(np.array([1]), W[:2], 0)
    with pytest.raises(TableError, match=r"'W_0' is full: 2 new ids, the first 5, but 1 of 2 rows are free"):
        build("lookup_sparse_table", {"W": [full], "Ids": [ids_of(5, 1, 3)]}, {}).run()


# ---- gradients


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 3), max_size=8), st.booleans(), st.sampled_from(LOOKUPS))
def test_c21_sparse_gradients_equal_the_dense_one(ids: list[int], distributed: bool, op: str) -> None:
    shape = (len(ids), 2) if op == "lookup_table" else (len(ids), 1, 2)
    upstream = np.random.default_rng(len(ids)).normal(size=shape)
    dense = gradient(lookup(op, W, ids_of(*ids)), upstream)
    sparse = gradient(lookup(op, W, ids_of(*ids), is_sparse=True, is_distributed=distributed), upstream)
    assert sparse.rows.tolist() == ids
    np.testing.assert_array_equal(to_dense(sparse), dense)


@settings(deadline=None, max_examples=40)
@given(st.lists(any_id, max_size=10), st.integers(1, 5))
def test_c21_gradients_of_fetched_rows_carry_ids_not_positions(ids: list[int], servers: int) -> None:
    wanted = ids_of(*ids)
    grown = table()
    parts = _split(wanted, servers)
    rows = np.concatenate([part.ravel() for part in parts])
    fetched = SelectedRows(rows, grown.lookup(rows), 0)
    upstream = np.random.default_rng(servers).normal(size=(len(ids), 2))
    for w in (grown, fetched):
        bench = lookup("lookup_table", w, wanted, is_distributed=True)
        np.testing.assert_array_equal(out_of(bench), grown.lookup(wanted))
        grad = gradient(bench, upstream)
        assert grad.rows.tolist() == ids
        np.testing.assert_array_equal(grad.value, upstream)


def _split(ids: Any, servers: int) -> list[Any]:
    bench = build("split_ids", {"Ids": [ids]}, {}, n_outputs={"Out": servers, "Inverse": 1})
    env = bench.run()
    return [env.read(name) for name in bench.op.outputs["Out"]]


@settings(deadline=None, max_examples=60)
@given(st.lists(any_id, max_size=12), st.integers(1, 5))
def test_split_ids_sends_each_id_once_to_its_server_and_inverse_leads_back(ids: list[int], servers: int) -> None:
    bench = build("split_ids", {"Ids": [ids_of(*ids)]}, {}, n_outputs={"Out": servers, "Inverse": 1})
    env = bench.run()
    parts = [env.read(name) for name in bench.op.outputs["Out"]]
    for shard, part in enumerate(parts):
        assert part.shape == (len(part), 1)
        assert part.ravel().tolist() == sorted(set(part.ravel().tolist()))
        assert (shard_of(part, servers) == shard).all()
    inverse = env.read("Inverse_out0").ravel()
    assert np.concatenate(parts).ravel()[inverse].tolist() == ids


@settings(deadline=None, max_examples=40)
@given(st.lists(any_id, max_size=12), st.integers(1, 4))
def test_c42_each_row_of_a_gradient_keeps_its_own_value(ids: list[int], servers: int) -> None:
    value = np.arange(2.0 * len(ids)).reshape(-1, 2)
    grad = SelectedRows(np.array(ids, np.int64), value, 0)
    bench = build("split_ids", {"Ids": [grad]}, {}, n_outputs={"Out": servers, "Inverse": 0})
    env = bench.run()
    for shard, name in enumerate(bench.op.outputs["Out"]):
        part, mine = env.read(name), shard_of(grad.rows, servers) == shard
        np.testing.assert_array_equal(part.rows, grad.rows[mine])
        np.testing.assert_array_equal(part.value, value[mine])


def test_c42_fewer_values_than_ids_are_refused() -> None:
    with pytest.raises(ShapeError, match="3 ids but 2 rows"):
        SelectedRows(np.arange(3), np.zeros((2, 2)), 0)


# ---- routing by rows, and back


def split(ids: list[Any], outputs: int, **attrs: Any) -> Bench:
    return build("split_ids", {"Ids": ids}, attrs, n_outputs={"Out": outputs, "Inverse": 0})


def test_ids_outside_a_row_sliced_parameter_are_named() -> None:
    bench = split([ids_of(2), ids_of(9, 7, -1)], 2, height_sections=[4, 3], padding_idx=9)
    with pytest.raises(OutOfRangeError, match=r"id 7 at position 1 of 'Ids_1'.*rows 0 to 6"):
        bench.run()


def test_sections_must_match_the_outputs() -> None:
    bench = split([ids_of(0)], 2, height_sections=[1, 1, 1])
    with pytest.raises(ProgramError, match="3 height_sections but 2 outputs"):
        bench.run()
    rows = SelectedRows(np.array([0]), W[:1], 4)
    with pytest.raises(ProgramError, match="1 height_sections but 2 outputs"):
        build("split_selected_rows", {"X": [rows]}, {"height_sections": [4]}, n_outputs={"Out": 2})


def test_a_gradient_row_outside_all_sections_is_named() -> None:
    rows = SelectedRows(np.array([1, 4]), W[:2], 9)
    with pytest.raises(OutOfRangeError, match="id 4 at position 1 of 'X_0' is outside"):
        build("split_selected_rows", {"X": [rows]}, {"height_sections": [2, 2]}, n_outputs={"Out": 2}).run()


def test_merge_ids_names_what_no_server_sent() -> None:
    inputs = {"Ids": [ids_of(4, 8)], "Rows": [ids_of(4)], "X": [W[:1]]}
    with pytest.raises(TableError, match=r"id 8 at position 1 of 'Ids_0' is in none of Rows"):
        build("merge_ids", inputs, {}).run()
    with pytest.raises(ShapeError, match="1 ids in Rows but 2 rows"):
        build("merge_ids", {**inputs, "X": [W[:2]]}, {}).run()


def test_merge_ids_keeps_the_lod_of_each_input() -> None:
    ids = LoDTensor(ids_of(4, 4), ((0, 2, 2),))
    bench = build("merge_ids", {"Ids": [ids], "Rows": [ids_of(4)], "X": [W[:1]]}, {})
    out = bench.run().read("Out_out0")
    assert out.lod == ((0, 2, 2),)
    np.testing.assert_array_equal(out.array, W[[0, 0]])


def test_a_trainer_number_beyond_the_variables_is_refused() -> None:
    with pytest.raises(OutOfRangeError, match="trainer 2 of 'TrainerId_0', but X has 2"):
        build("ref_by_trainer_id", {"X": [W, W], "TrainerId": [np.array([2])]}, {}).run()


# ---- fused


def test_fused_pooling_equals_lookup_and_sum_for_every_kind_of_parameter() -> None:
    bags = LoDTensor(ids_of(3, 1, 3, 0), ((0, 2, 2, 4),))
    fetched = SelectedRows(np.array([3, 0, 1]), W[[3, 0, 1]], 4)
    expected = [W[3] + W[1], [0, 0], W[3] + W[0]]
    for w in (W, fetched):
        bench = build("fused_embedding_seq_pool", {"W": [w], "Ids": [bags]}, {"is_sparse": True})
        np.testing.assert_array_equal(out_of(bench), expected)
        grad = gradient(bench, np.array([[1.0, 2.0], [9.0, 9.0], [3.0, 4.0]]))
        assert grad.rows.tolist() == [3, 1, 3, 0]
        np.testing.assert_array_equal(grad.value, [[1, 2], [1, 2], [3, 4], [3, 4]])


def test_fused_pooling_refuses_other_combiners() -> None:
    bags = LoDTensor(ids_of(3), ((0, 1),))
    with pytest.raises(ProgramError, match="combiner 'mean' is not 'sum'"):
        build("fused_embedding_seq_pool", {"W": [W], "Ids": [bags]}, {"combiner": "mean"})
