"""Fluid's reader decorators; the expected values are those of Fluid 1.8.5 where it has no error of its own."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fluidlite as fluid
from fluidlite import reader
from fluidlite.errors import DataError
from tests import reader_functions


def numbers(count: int) -> Callable[[], Iterator[int]]:
    return lambda: iter(range(count))


def pairs() -> Iterator[tuple[int, int]]:
    return iter([(1, 2), (3, 4)])


def test_batch() -> None:
    assert list(reader.batch(numbers(5), 2)()) == [[0, 1], [2, 3], [4]]
    assert list(reader.batch(numbers(5), 2, drop_last=True)()) == [[0, 1], [2, 3]]
    assert list(reader.batch(numbers(4), 2, drop_last=True)()) == [[0, 1], [2, 3]]
    assert list(reader.batch(numbers(0), 2)()) == []
    with pytest.raises(DataError, match="batch_size should be a positive whole number, not 0"):
        reader.batch(numbers(5), 0)


def test_shuffle_gives_the_order_of_fluid() -> None:
    random.seed(3)
    assert list(reader.shuffle(numbers(12), 5)()) == [0, 2, 3, 4, 1, 6, 8, 7, 5, 9, 10, 11]
    random.seed(3)
    assert list(reader.shuffle(numbers(12), 100)()) == [1, 7, 10, 0, 6, 11, 4, 5, 2, 8, 9, 3]
    assert list(reader.shuffle(numbers(4), 0)()) == [0, 1, 2, 3]


def test_chain_and_map_and_firstn() -> None:
    assert list(reader.chain(numbers(2), numbers(3))()) == [0, 1, 0, 1, 2]
    assert list(reader.chain()()) == []
    assert list(reader.map_readers(lambda a, b: a + b, numbers(3), numbers(5))()) == [0, 2, 4]
    assert [list(reader.firstn(numbers(5), n)()) for n in (0, 3, 9)] == [[], [0, 1, 2], [0, 1, 2, 3, 4]]


def test_compose() -> None:
    assert list(reader.compose(numbers(2), pairs, numbers(2))()) == [(0, 1, 2, 0), (1, 3, 4, 1)]
    assert list(reader.compose(lambda: iter([[1, 2]]), numbers(1))()) == [([1, 2], 0)]
    assert list(reader.compose(numbers(2), numbers(3), check_alignment=False)()) == [(0, 0), (1, 1)]


def test_composed_readers_of_different_lengths_are_refused_behind_the_common_part() -> None:
    composed = reader.compose(numbers(2), numbers(3))()
    assert [next(iter(composed)) for _ in range(2)] == [(0, 0), (1, 1)]
    with pytest.raises(reader.ComposeNotAligned, match="different numbers of samples"):
        next(iter(composed))
    assert issubclass(fluid.io.ComposeNotAligned, ValueError)


def test_cache_reads_once_and_at_once() -> None:
    reads = []

    def counted() -> Iterator[int]:
        reads.append(1)
        yield from range(3)

    cached = reader.cache(counted)
    assert reads == [1]
    assert [list(cached()), list(cached())] == [[0, 1, 2]] * 2
    assert reads == [1]


@given(count=st.integers(0, 30), size=st.integers(0, 5))
def test_buffered_and_xmap_keep_samples_and_order(count: int, size: int) -> None:
    assert list(reader.buffered(numbers(count), size)()) == list(range(count))
    mapped = reader.xmap_readers(lambda x: x * 2, numbers(count), 1 + size % 3, size, order=bool(size % 2))
    assert list(mapped()) == [2 * x for x in range(count)]


def test_xmap_raises_what_the_mapper_raises_behind_what_was_before() -> None:
    mapped = reader.xmap_readers(lambda x: 6 // (3 - x), numbers(5), 2, 2)()
    samples = iter(mapped)
    assert [next(samples) for _ in range(3)] == [2, 3, 6]
    with pytest.raises(ZeroDivisionError):
        next(samples)


def test_xmap_maps_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=30)
    assert len(list(reader.xmap_readers(lambda x: both.wait(), numbers(4), 2, 2)())) == 4


def test_multiprocess_reader_takes_turns() -> None:
    read = reader.multiprocess_reader([reader_functions.some_numbers, reader_functions.some_numbers])
    assert list(read()) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    with pytest.raises(DataError, match="one or more readers"):
        reader.multiprocess_reader([])


@pytest.mark.parametrize("name", ["batch", *sorted(set(reader.__all__) - {"batch", "criteo_reader"})])
def test_fluid_io_has_the_readers(name: str) -> None:
    assert getattr(fluid.io, name) is getattr(reader, name)


def test_decorators_stack_as_in_scripts() -> None:
    def square(x: int) -> Any:
        return x * x

    train = fluid.io.batch(fluid.io.shuffle(fluid.io.map_readers(square, numbers(6)), buf_size=3), batch_size=4)
    assert sorted(value for group in train() for value in group) == [0, 1, 4, 9, 16, 25]
    assert [len(group) for group in train()] == [4, 2]
