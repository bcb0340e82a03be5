"""DataFeeder, create_lod_tensor and create_random_int_lodtensor."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.dtypes import exact_array
from fluidlite.errors import DtypeError, FeedError, ShapeError
from tests.frontend import fresh_programs
from tests.golden_programs import Snippet
from tests.shared_data import golden_json


@pytest.fixture(autouse=True)
def _own_programs() -> Iterator[None]:
    with fresh_programs():
        yield


def feeder(*feed_list: Any) -> fluid.DataFeeder:
    return fluid.DataFeeder(feed_list, fluid.CPUPlace())


def test_golden_data_feeder(tmp_path: Path) -> None:
    described = golden_json("programs", "data_feeder.json")
    assert Snippet(described["text"], str(tmp_path)).names["results"] == described["results"]


def test_numbers_and_flat_rows_take_the_declared_shape() -> None:
    label = fluid.data("label", [None, 1], "int64")
    image = fluid.data("image", [None, 1, 2, 2])
    fed = feeder(label, image).feed([(3, [1, 2, 3, 4]), (5, np.zeros(4))])
    assert fed["label"].array.tolist() == [[3], [5]]
    assert fed["image"].array.shape == (2, 1, 2, 2)
    assert fed["image"].array.dtype == np.float32


def test_two_unknown_dimensions_are_left_alone() -> None:
    fluid.data("x", [None, None, 2])
    assert feeder("x").feed([([1.0, 2.0],)])["x"].shape() == [1, 2]


def test_sequences_are_flattened_and_their_lengths_kept() -> None:
    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    deep = fluid.data("deep", [None, 1], "int64", lod_level=2)
    fed = feeder(words, deep).feed([([7, 8], [[1], [2, 3]]), ([], [[4]]), ([6], [])])
    assert fed["words"].recursive_sequence_lengths() == [[2, 0, 1]]
    assert fed["words"].array.tolist() == [[7], [8], [6]]
    assert fed["deep"].recursive_sequence_lengths() == [[2, 1, 0], [1, 2, 1]]
    assert fed["deep"].array.tolist() == [[1], [2], [3], [4]]


def test_only_empty_sequences() -> None:
    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    fed = feeder(words).feed([([],), ([],)])["words"]
    assert (fed.shape(), fed.recursive_sequence_lengths()) == ([0, 1], [[0, 0]])


def test_sequences_of_vectors() -> None:
    steps = fluid.data("steps", [None, 2], lod_level=1)
    fed = feeder(steps).feed([(np.ones((3, 2)),), ([[5, 6]],)])["steps"]
    assert fed.shape() == [4, 2]
    assert fed.array[3].tolist() == [5.0, 6.0]


def test_unsigned_hashes_keep_their_bits() -> None:
    ids = fluid.data("ids", [None, 1], "int64")
    fed = feeder(ids).feed([(2**63 + 1,), (7,)])["ids"].array
    assert fed.view(np.uint64).tolist() == [[2**63 + 1], [7]]


def test_numbers_that_a_reader_left_as_text() -> None:
    ids, sequence, value = (
        fluid.data("ids", [None], "int64"),
        fluid.data("s", [None], "int64", 1),
        fluid.data("v", [None, 2]),
    )
    feeder = fluid.DataFeeder([ids, sequence, value], program=fluid.default_main_program())
    feed = feeder.feed(
        [["9007199254740993", ["1", "2"], np.array(["0.5", "1e-3"])], ["4", ["3"], np.array(["2", "3"])]]
    )
    assert feed["ids"].array.tolist() == [9007199254740993, 4]
    assert feed["s"].array.ravel().tolist() == [1, 2, 3]
    assert np.array_equal(feed["v"].array, np.float32([[0.5, 1e-3], [2, 3]]))
    with pytest.raises(FeedError, match=r"ids.*'x'"):
        feeder.feed([["x", ["1"], ["0", "1"]]])
    with pytest.raises(FeedError, match="fractions in place of whole numbers"):
        feeder.feed([["1.5", ["1"], ["0", "1"]]])


def test_names_belong_to_the_given_program() -> None:
    other = fluid.Program()
    with fluid.program_guard(other):
        fluid.data("inner", [None, 1])
    assert fluid.DataFeeder(["inner"], program=other).feed([(1.0,)])["inner"].shape() == [1, 1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, 2)], "row 0 has 2 entries, but 1 variables are fed: x"),
        ([([1.0, 2.0],), ([1.0],)], r"the rows do not fit variable 'x' \(float32 \[-1, 2\], lod_level 0\)"),
        ([("a",)], "do not fit variable 'x'"),
        ([(1.0,)], "do not fit variable 'x'"),
    ],
)
def test_rows_that_do_not_fit_name_the_variable(rows: Any, message: str) -> None:
    fluid.data("x", [None, 2])
    with pytest.raises(FeedError, match=message):
        feeder("x").feed(rows)


def test_C36_a_sequence_variable_needs_sequences() -> None:
    fluid.data("words", [None, 1], "int64", lod_level=1)
    with pytest.raises(FeedError, match="'words'"):
        feeder("words").feed([(3,)])


@pytest.mark.parametrize("lod", [[[0, 1]], [[0, 2, 1, 3]], [[1, 3]], [[]]])
def test_C36_the_executor_checks_the_lod_of_a_feed(lod: list[list[int]]) -> None:
    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    tensor = fluid.LoDTensor(np.zeros((3, 1), np.int64))
    tensor.set_lod(lod)
    with pytest.raises(ShapeError, match="LoD level 0 of the feed of 'words'"):
        fluid.Executor().run(feed={"words": tensor}, fetch_list=[words])


def test_readers_and_places() -> None:
    fluid.data("x", [None, 1])
    batches = [[(1.0,)], [(2.0,), (3.0,)], [(4.0,)]]
    one = list(feeder("x").decorate_reader(lambda: batches)())
    assert [feed["x"].shape() for feed in one] == [[1, 1], [2, 1], [1, 1]]
    grouped = feeder("x").decorate_reader(lambda: batches, multi_devices=True, num_places=2)
    assert [len(group) for group in grouped()] == [2]
    with pytest.raises(FeedError, match="last 1 batches do not fill 2 places"):
        list(feeder("x").decorate_reader(lambda: batches, multi_devices=True, num_places=2, drop_last=False)())
    assert len(list(feeder("x").feed_parallel(batches, 3))) == 3
    with pytest.raises(FeedError, match="3 batches for 2 places"):
        feeder("x").feed_parallel(batches, 2)


def test_create_lod_tensor() -> None:
    place = fluid.CPUPlace()
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    tensor = fluid.create_lod_tensor(array, [[2, 1]], place)
    assert tensor.lod == ((0, 2, 3),)
    array[0] = 9
    assert tensor.array[0, 0] == 0
    assert fluid.create_lod_tensor(tensor, [[1, 1], [1, 2]], place).lod == ((0, 1, 2), (0, 1, 3))
    ids = fluid.create_lod_tensor([[1, 2], [], [3]], [[2, 0, 1]], place)
    assert (ids.array.tolist(), ids.array.dtype) == ([[1], [2], [3]], np.int64)


def test_C36_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(
        ShapeError, match=r"the lists have lengths \[2\], but recursive_seq_lens ends with \[\[1, 1\]\]"
    ):
        fluid.create_lod_tensor([[1, 2]], [[1, 1]])
    with pytest.raises(ShapeError, match="ends at 3 but there are 2 units"):
        fluid.create_lod_tensor(np.zeros((2, 1)), [[2, 1]])
    with pytest.raises(ShapeError, match="negative length"):
        fluid.create_lod_tensor(np.zeros((2, 1)), [[3, -1]])


def test_random_lod_tensors_repeat_under_a_seed() -> None:
    def make() -> Any:
        np.random.seed(4)  # noqa: NPY002 (as scripts do)
        return fluid.create_random_int_lodtensor([[2, 3]], [1], fluid.CPUPlace(), low=0, high=3)

    tensor = make()
    assert (tensor.shape(), tensor.lod) == ([5, 1], ((0, 2, 5),))
    assert tensor.array.dtype == np.int64
    assert set(tensor.array.ravel().tolist()) <= {0, 1, 2, 3}
    np.testing.assert_array_equal(make().array, tensor.array)


def test_fractions_are_no_ids() -> None:
    with fresh_programs():
        feeder = fluid.DataFeeder([fluid.data("ids", [None, 1], "int64")])
        with pytest.raises(FeedError, match=r"'ids'.*fractions in place of whole numbers"):
            feeder.feed([(1.5,), (2,)])
        assert feeder.feed([(1.0,), (2,)])["ids"].array.tolist() == [[1], [2]]


@pytest.mark.parametrize("value", [[np.nan], [1.0, np.inf], np.array([np.nan, 1]), np.array([-np.inf], np.float32)])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_no_number_is_no_whole_number_and_warns_of_nothing(value: Any, dtype: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DtypeError):
            exact_array(value, dtype)


def test_complex_numbers_do_not_lose_a_part() -> None:
    for dtype in ("float32", "int64"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(DtypeError):
                exact_array(np.array([1 + 2j]), dtype)
    assert exact_array([1 + 2j], "complex64").dtype == np.complex64


def test_nan_for_ids_is_a_feed_error_without_a_warning() -> None:
    fluid.data("ids", [None, 1], "int64")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FeedError, match="the rows do not fit variable 'ids'"):
            feeder("ids").feed([(np.nan,)])


def test_rows_of_another_width_are_refused() -> None:
    fluid.data("x", [None, 2])
    with pytest.raises(FeedError, match=r"'x' .*must be \[-1, 2\] \(-1: any\), but it is \[1, 3\]"):
        feeder("x").feed([([1.0, 2.0, 3.0],)])


@pytest.mark.parametrize(
    ("rows", "message"), [(None, "a batch is NoneType"), ([None], "row 0 is NoneType"), ([3], "row 0 is int")]
)
def test_what_holds_no_rows_is_refused(rows: Any, message: str) -> None:
    fluid.data("x", [None, 2])
    with pytest.raises(FeedError, match=message):
        feeder("x").feed(rows)
