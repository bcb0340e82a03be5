"""Sequence ops: what the cases of the records cannot say (errors, empty input, nested LoD, properties)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidlite.core import edit
from fluidlite.core.ir import Program, Variable
from fluidlite.errors import FeedError, OutOfRangeError, ProgramError, ShapeError
from fluidlite.runtime.executor import ExecutorCore
from fluidlite.values.lod import LoDTensor, lod_from_lengths
from tests.op_harness import Bench, add_gradient, build, numbers

POOLS = ["AVERAGE", "SUM", "SQRT", "MAX", "FIRST", "LAST"]
NEEDS_LOD = {
    "sequence_pool": {},
    "sequence_softmax": {},
    "sequence_reverse": {},
    "sequence_reshape": {"new_dim": 1},
    "sequence_enumerate": {"win_size": 2},
    "sequence_erase": {"tokens": [1]},
}


def tensor(array: Any, *lengths: list[int]) -> LoDTensor:
    return LoDTensor(np.asarray(array), lod_from_lengths(lengths))


def column(count: int) -> Any:
    return np.arange(1.0, count + 1).reshape(-1, 1)


def out_of(bench: Bench, name: str = "Out") -> Any:
    return bench.run().read(f"{name}_out0")


def refused(op: str, inputs: dict[str, list[Any]], attrs: dict[str, Any], message: str) -> None:
    bench = build(op, inputs, attrs)
    with pytest.raises(ShapeError, match=message):
        bench.run()


# ---- LoD


@pytest.mark.parametrize("op", NEEDS_LOD)
def test_b066_a_missing_lod_names_the_variable(op: str) -> None:
    refused(op, {"X": [column(2)]}, NEEDS_LOD[op], r"'X_0' has no LoD \(sequence lengths\).*create_lod_tensor")


@pytest.mark.parametrize("op", NEEDS_LOD)
def test_a_lod_that_does_not_end_at_the_rows_is_refused(op: str) -> None:
    wrong = LoDTensor(column(3), ((0, 2),))
    refused(op, {"X": [wrong]}, NEEDS_LOD[op], "the LoD of 'X_0' ends at 2 but there are 3 rows")


@pytest.mark.parametrize(
    ("lod", "message"),
    [(((1, 3),), "must start at 0"), (((0, 2, 1, 3),), "must not decrease"), (((0, 2),), "ends at 2 but there are 3")],
)
def test_c36_corrupt_lengths_are_refused_at_the_feed(lod: Any, message: str) -> None:
    program = Program()
    edit.add_var(program, program.root, Variable("x", shape=(-1, 1), lod_level=1, is_data=True))
    feed = {"x": LoDTensor(column(3).astype("float32"), lod)}
    with pytest.raises((FeedError, ShapeError), match=message):
        ExecutorCore().run(program, feed)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
def test_c36_an_empty_batch_pools_to_the_pad_value(pool: str, lengths: list[int]) -> None:
    x = tensor(np.zeros((0, 2)), lengths)
    bench = build("sequence_pool", {"X": [x]}, {"pooltype": pool, "pad_value": 0.5})
    np.testing.assert_array_equal(out_of(bench), np.full((len(lengths), 2), 0.5))
    add_gradient(bench, {"Out_out0": np.ones((len(lengths), 2))})
    assert numbers(bench.run().read("X_0@GRAD")).shape == (0, 2)


@pytest.mark.parametrize("pool", POOLS)
def test_b068_an_empty_sequence_between_others_is_zeros(pool: str) -> None:
    x = tensor([[1.0], [3.0], [5.0]], [2, 0, 1])
    first = {"AVERAGE": 2, "SUM": 4, "SQRT": 4 / np.sqrt(2), "MAX": 3, "FIRST": 1, "LAST": 3}[pool]
    bench = build("sequence_pool", {"X": [x]}, {"pooltype": pool})
    np.testing.assert_allclose(out_of(bench).ravel(), [first, 0, 5])
    add_gradient(bench, {"Out_out0": np.array([[1.0], [100.0], [10.0]])})
    grad = numbers(bench.run().read("X_0@GRAD")).ravel()
    assert grad[2] == 10
    assert grad.max() == 10


@pytest.mark.parametrize("pool", POOLS)
def test_b070_pooling_keeps_the_outer_level(pool: str) -> None:
    bench = build("sequence_pool", {"X": [tensor(column(6), [2, 1], [3, 1, 2])]}, {"pooltype": pool})
    assert out_of(bench).lod == ((0, 2, 3),)
    assert bench.block.vars["Out_out0"].lod_level == 1


def test_max_takes_the_first_of_equals_and_passes_nan_on() -> None:
    x = tensor([[2.0], [2.0], [1.0], [np.nan], [4.0]], [2, 3])
    bench = build("sequence_pool", {"X": [x]}, {"pooltype": "MAX"})
    add_gradient(bench, {"Out_out0": np.array([[1.0], [1.0]])})
    env = bench.run()
    np.testing.assert_array_equal(env.read("Out_out0"), [[2.0], [np.nan]])
    np.testing.assert_array_equal(env.read("MaxIndex_out0"), [[0], [3]])
    np.testing.assert_array_equal(numbers(env.read("X_0@GRAD")).ravel(), [1, 0, 0, 1, 0])


def test_an_unknown_pooltype_is_refused_at_build() -> None:
    with pytest.raises(ProgramError, match="pooltype 'MEDIAN' is none of AVERAGE"):
        build("sequence_pool", {"X": [tensor(column(1), [1])]}, {"pooltype": "MEDIAN"})


# ---- properties


some_lengths = st.lists(st.integers(0, 4), min_size=1, max_size=5)


@settings(deadline=None, max_examples=40)
@given(some_lengths, st.sampled_from(POOLS))
def test_pooling_equals_numpy_on_each_sequence(lengths: list[int], pool: str) -> None:
    rows = np.random.default_rng(sum(lengths)).normal(size=(sum(lengths), 3))
    reduce = {
        "AVERAGE": lambda s: s.mean(axis=0),
        "SUM": lambda s: s.sum(axis=0),
        "SQRT": lambda s: s.sum(axis=0) / np.sqrt(len(s)),
        "MAX": lambda s: s.max(axis=0),
        "FIRST": lambda s: s[0],
        "LAST": lambda s: s[-1],
    }[pool]
    pieces = np.split(rows, np.cumsum(lengths)[:-1])
    expected = [reduce(piece) if len(piece) else np.zeros(3) for piece in pieces]
    bench = build("sequence_pool", {"X": [tensor(rows, lengths)]}, {"pooltype": pool})
    np.testing.assert_allclose(out_of(bench), expected, rtol=1e-12)


@settings(deadline=None, max_examples=30)
@given(some_lengths)
def test_padding_and_cutting_off_again_is_the_identity(lengths: list[int]) -> None:
    x = tensor(column(sum(lengths)), lengths)
    env = build("sequence_pad", {"X": [x], "PadValue": [np.array([9.0])]}, {}).run()
    padded, length = env.read("Out_out0"), env.read("Length_out0")
    assert length.tolist() == lengths
    back = out_of(build("sequence_unpad", {"X": [padded], "Length": [length]}, {}))
    assert back.lod == x.lod
    np.testing.assert_array_equal(back.array, x.array)


@settings(deadline=None, max_examples=30)
@given(some_lengths)
def test_reversing_twice_is_the_identity(lengths: list[int]) -> None:
    x = tensor(column(sum(lengths)), lengths)
    once = out_of(build("sequence_reverse", {"X": [x]}, {}), "Y")
    twice = out_of(build("sequence_reverse", {"X": [once]}, {}), "Y")
    np.testing.assert_array_equal(twice.array, x.array)


@settings(deadline=None, max_examples=30)
@given(some_lengths)
def test_concat_of_two_halves_then_slice_gives_the_first_half(lengths: list[int]) -> None:
    x = tensor(column(sum(lengths)), lengths)
    joined = out_of(build("sequence_concat", {"X": [x, x]}, {}))
    inputs = {"X": [joined], "Offset": [np.zeros((len(lengths), 1), int)], "Length": [np.array(lengths)]}
    half = out_of(build("sequence_slice", inputs, {}))
    assert half.lod == x.lod
    np.testing.assert_array_equal(half.array, x.array)


# ---- refusals


def test_sequences_that_do_not_fit_each_other_are_refused() -> None:
    two, three = tensor(column(2), [1, 1]), tensor(column(3), [1, 1, 1])
    refused("sequence_concat", {"X": [two, three]}, {}, r"equally many sequences, they have \[2, 3\]")
    refused("sequence_expand", {"X": [column(2)], "Y": [three]}, {}, "has 2 sequences .* 'Y_0' has 3")
    refused("sequence_expand_as", {"X": [column(2)], "Y": [three]}, {}, "'X_0' has 2 rows but 'Y_0' has 3")
    refused("sequence_expand", {"X": [column(3)], "Y": [three]}, {"ref_level": 1}, "ref_level 1 but 'Y_0' has 1")


def test_lengths_that_do_not_fit_are_refused() -> None:
    x = tensor(column(3), [3])
    offset, length = np.array([[2]]), np.array([[2]])
    refused("sequence_slice", {"X": [x], "Offset": [offset], "Length": [length]}, {}, "rows 2 to 4 of sequence 0")
    refused("sequence_reshape", {"X": [x]}, {"new_dim": 2}, "sequence 0 has 3 values, no multiple of 2")
    refused("sequence_unpad", {"X": [np.zeros((1, 2))], "Length": [np.array([3])]}, {}, r"lengths 'Length_0' \[3\]")
    refused("sequence_pad", {"X": [x], "PadValue": [np.zeros(1)]}, {"padded_length": 2}, "longest sequence of 'X_0', 3")
    refused("sequence_softmax", {"X": [tensor(np.zeros((1, 2)), [1])]}, {}, "one value per row")
    refused("lod_reset", {"X": [x]}, {"target_lod": [0, 2]}, "ends at 2 but there are 3")


def test_windows_must_fit_the_filter() -> None:
    inputs = {"X": [tensor(column(2), [2])], "Filter": [np.zeros((3, 1))]}
    refused("sequence_conv", inputs, {"contextLength": 2}, "windows of 2 rows of X .* do not fit Filter")
    with pytest.raises(ProgramError, match="contextStride must be 1"):
        build("sequence_conv", inputs, {"contextLength": 3, "contextStride": 2})
    with pytest.raises(ProgramError, match="paddingTrainable needs PaddingData"):
        build("sequence_conv", inputs, {"contextLength": 3, "paddingTrainable": True})


def test_a_column_outside_the_matrix_is_named() -> None:
    ids, updates = tensor(np.array([[0], [4]]), [1, 1]), tensor(column(2), [1, 1])
    bench = build("sequence_scatter", {"X": [np.zeros((2, 3))], "Ids": [ids], "Updates": [updates]}, {})
    with pytest.raises(OutOfRangeError, match=r"id 4 at position 1 of 'Ids_0' is none of the 3 columns"):
        bench.run()


def test_an_empty_batch_goes_through_every_sequence_op() -> None:
    empty = tensor(np.zeros((0, 1)), [0, 0])
    for op, attrs in NEEDS_LOD.items():
        bench = build(op, {"X": [empty]}, attrs)
        assert len(numbers(bench.run().read(next(bench.op.output_arguments())))) in {0, 2}
    conv = build("sequence_conv", {"X": [empty], "Filter": [np.ones((3, 2))]}, {"contextLength": 3})
    assert numbers(out_of(conv)).shape == (0, 2)
    pad = build("sequence_pad", {"X": [empty], "PadValue": [np.zeros(1)]}, {})
    assert out_of(pad).shape == (2, 0, 1)


def test_the_gradient_of_an_empty_convolution_is_zero() -> None:
    empty = tensor(np.zeros((0, 2)), [0])
    bench = build("sequence_conv", {"X": [empty], "Filter": [np.ones((6, 4))]}, {"contextLength": 3})
    add_gradient(bench, {"Out_out0": tensor(np.zeros((0, 4)), [0])})
    env = bench.run()
    assert numbers(env.read("X_0@GRAD")).shape == (0, 2)
    np.testing.assert_array_equal(env.read("Filter_0@GRAD"), np.zeros((6, 4)))
