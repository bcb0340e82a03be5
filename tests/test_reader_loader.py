"""DataLoader and PyReader: what they feed is what Fluid 1.8.5's feed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fluidlite as fluid
from fluidlite.errors import FeedError, ReaderError
from fluidlite.values.lod import LoDTensor
from tests import reader_functions
from tests.frontend import fresh_programs

PLACE = fluid.CPUPlace()


@pytest.fixture(autouse=True)
def _own_programs() -> Iterator[None]:
    with fresh_programs(), fluid.scope_guard(fluid.Scope()):
        yield


def two_variables() -> list[fluid.Variable]:
    return [fluid.data("x", [None, 2]), fluid.data("w", [None, 1], "int64", lod_level=1)]


def shown(feed: Any) -> dict[str, Any]:
    return {name: (tensor.array.tolist(), tensor.recursive_sequence_lengths()) for name, tensor in feed.items()}


FEEDS = [
    {"x": ([[0.0, 0.5], [1.0, 1.5]], []), "w": ([[0], [0], [1]], [[1, 2]])},
    {"x": ([[2.0, 2.5], [3.0, 3.5]], []), "w": ([[0], [1], [2], [0], [1], [2], [3]], [[3, 4]])},
    {"x": ([[4.0, 4.5]], []), "w": ([[0], [1], [2], [3], [4]], [[5]])},
]


@pytest.mark.parametrize("use_multiprocess", [False, True])
def test_samples_become_feeds(use_multiprocess: bool) -> None:
    loader = fluid.io.DataLoader.from_generator(two_variables(), 4, use_multiprocess=use_multiprocess)
    assert loader.set_sample_generator(reader_functions.samples, 2, drop_last=False, places=PLACE) is loader
    assert [shown(feed) for (feed,) in loader()] == FEEDS
    loader.set_sample_generator(reader_functions.samples, batch_size=2)
    assert [shown(feed) for (feed,) in loader] == FEEDS[:2]


def test_lists_of_samples_become_feeds_that_run() -> None:
    x, w = two_variables()
    fetches = [fluid.layers.reduce_sum(x), fluid.layers.sequence_pool(fluid.layers.cast(w, "float32"), "sum")]
    loader = fluid.io.DataLoader.from_generator(feed_list=[x, w], capacity=4)
    loader.set_sample_list_generator(fluid.io.batch(reader_functions.samples, 2), places=PLACE)
    exe = fluid.Executor(PLACE)
    results = [exe.run(feed=data, fetch_list=fetches) for data in loader()]
    assert [values[0].tolist() for values in results] == [[3.0], [11.0], [8.5]]
    assert [values[1].ravel().tolist() for values in results] == [[0.0, 1.0], [3.0, 6.0], [10.0]]


@pytest.mark.parametrize("use_multiprocess", [False, True])
def test_batches_are_fed_as_they_are(use_multiprocess: bool) -> None:
    loader = fluid.io.DataLoader.from_generator(two_variables(), 1, use_multiprocess=use_multiprocess)
    feeds = [shown(feed) for (feed,) in loader.set_batch_generator(reader_functions.batches)]
    assert feeds == [{"x": ([[n, n]] * 2, []), "w": ([[1]] * 3, [[1, 2]])} for n in (0.0, 1.0, 2.0)]


def test_lists_in_place_of_feeds() -> None:
    loader = fluid.io.DataLoader.from_generator(two_variables(), 4, return_list=True)
    loader.set_sample_generator(reader_functions.samples, 5)
    ((tensors,),) = loader
    assert [tensor.shape() for tensor in tensors] == [[5, 2], [15, 1]]


def test_a_batch_may_be_a_dict() -> None:
    x = fluid.data("x", [None, 2])
    loader = fluid.io.DataLoader.from_generator([x], 4)
    loader.set_batch_generator(lambda: iter([{"x": [[1, 2]], "unused": 3}, {"y": 1}]))
    feeds = iter(loader)
    assert shown(next(feeds)[0]) == {"x": ([[1.0, 2.0]], [])}
    with pytest.raises(FeedError, match="nothing for x"):
        next(feeds)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((np.ones((2, 2)), np.ones(3)), "2 entries for 1 variables: x; for lists of samples"),
        ((["a"],), "does not fit variable 'x'"),
    ],
)
def test_batches_that_do_not_fit_are_named(batch: Any, message: str) -> None:
    loader = fluid.io.DataLoader.from_generator([fluid.data("x", [None, 2])], 4)
    loader.set_batch_generator(lambda: iter([batch]))
    with pytest.raises(FeedError, match=message):
        next(loader())


SETTERS = {
    "set_batch_generator": (),
    "set_sample_generator": (2,),
    "set_sample_list_generator": (),
}


@pytest.mark.parametrize("setter", SETTERS)
def test_only_what_can_be_called_is_a_generator(setter: str) -> None:
    loader = fluid.io.DataLoader.from_generator([fluid.data("x", [None, 2])], 4)
    for wrong in (None, 3, [[1.0, 2.0]], iter([])):
        with pytest.raises(ReaderError, match=f"needs a generator: a function .* not {type(wrong).__name__}"):
            getattr(loader, setter)(wrong, *SETTERS[setter])
    reader = fluid.io.PyReader([fluid.data("y", [None, 2])], 4)
    with pytest.raises(ReaderError, match="needs a generator"):
        reader.decorate_batch_generator(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("setter", SETTERS)
@pytest.mark.parametrize("wrong", [None, 3])
def test_a_generator_that_returns_nothing_to_iterate(setter: str, wrong: Any) -> None:
    loader = fluid.io.DataLoader.from_generator([fluid.data("x", [None, 2])], 4)
    getattr(loader, setter)(lambda: wrong, *SETTERS[setter])
    with pytest.raises(FeedError, match=f"the generator returned {type(wrong).__name__}, .* did it mean to yield"):
        next(loader())


@pytest.mark.parametrize("setter", SETTERS)
@pytest.mark.parametrize(
    "wrong", [None, 3, object(), np.float32(1.0), np.array(1.0), [None], [[None, None]], "x", {1, 2}]
)
def test_a_generator_that_yields_what_is_no_batch(setter: str, wrong: Any) -> None:
    loader = fluid.io.DataLoader.from_generator([fluid.data("x", [None, 2])], 4)
    getattr(loader, setter)(lambda: iter([wrong, wrong]), *SETTERS[setter])
    with pytest.raises(FeedError):
        next(loader())


def test_an_error_of_the_generator_itself_stays_what_it_is() -> None:
    def failing() -> Iterator[Any]:
        yield [np.zeros((1, 2), np.float32)]
        raise TypeError("its own")

    feeds = fluid.io.DataLoader.from_generator([fluid.data("x", [None, 2])], 4).set_batch_generator(failing)()
    next(feeds)
    with pytest.raises(TypeError, match=r"^its own$"):
        next(feeds)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((2, 3), np.float32), r"shape of fed 'x' must be \[-1, 2\] \(-1: any\), but it is \[2, 3\]"),
        (np.zeros(2, np.float32), r"shape of fed 'x' must be"),
        (LoDTensor(np.zeros((2, 3), np.float32)), r"shape of fed 'x' must be"),
        (LoDTensor(np.zeros((2, 2), np.int64)), "dtype of fed 'x' must be 'float32'"),
        (LoDTensor(np.zeros((2, 2), np.float32), ((0, 3),)), "ends at 3 but there are 2"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_by_the_loader(value: Any, message: str) -> None:
    x = fluid.data("x", [None, 2])
    loader = fluid.io.DataLoader.from_generator([x], 4).set_batch_generator(lambda: iter([[value]]))
    with pytest.raises(FeedError, match=f"does not fit variable 'x': .*{message}"):
        next(loader())


def test_a_batch_without_the_sequences_of_its_variable_is_refused_by_the_loader() -> None:
    words = fluid.data("words", [None, 1], "int64", lod_level=1)
    loader = fluid.io.DataLoader.from_generator([words], 4).set_batch_generator(
        lambda: iter([[np.zeros((2, 1), np.int64)]])
    )
    with pytest.raises(FeedError, match="'words' has lod_level 1 but the fed value has 0 levels"):
        next(loader())


def test_samples_that_do_not_fit_are_refused_by_the_loader() -> None:
    loader = fluid.io.DataLoader.from_generator([fluid.data("x", [None, 2])], 4)
    loader.set_sample_generator(lambda: iter([([1.0, 2.0, 3.0],)] * 2), 2)
    with pytest.raises(FeedError, match=r"shape of fed 'x' must be \[-1, 2\]"):
        next(loader())


def test_what_the_generator_raises_is_raised_here() -> None:
    loader = fluid.io.DataLoader.from_generator([fluid.data("x", [None, 1])], 4)
    loader.set_sample_generator(lambda: ((1.0 / number,) for number in (1, 2, 0)), 1)
    feeds = loader()
    assert [shown(next(feeds)[0])["x"][0] for _ in range(2)] == [[[1.0]], [[0.5]]]
    with pytest.raises(ZeroDivisionError):
        next(feeds)


def test_a_pass_goes_on_by_next_and_tells_how_far_it_is_ahead() -> None:
    all_made = threading.Event()

    def samples() -> Iterator[Any]:
        yield from reader_functions.samples()
        all_made.set()

    loader = fluid.io.DataLoader.from_generator(two_variables(), 4)
    loader.set_sample_generator(samples, 2, drop_last=False)
    with pytest.raises(ReaderError, match=r"call iter\(loader\) before"):
        next(loader)
    iter(loader)
    assert all_made.wait(20)
    assert shown(next(loader)[0]) == FEEDS[0]
    assert 1 <= loader.queue.size() <= 2
    assert loader.queue.cap() == 4
    assert [shown(next(loader)[0]) for _ in range(2)] == FEEDS[1:]
    assert loader.queue.size() == 0
    with pytest.raises(StopIteration):
        next(loader)


def test_the_next_feed_can_be_seen() -> None:
    made = threading.Event()

    def batches() -> Iterator[Any]:
        yield [[[1.0]]]
        yield [[[2.0]]]
        made.set()

    feeds = fluid.io.DataLoader.from_generator([fluid.data("x", [None, 1])], 2).set_batch_generator(batches)()
    assert made.wait(30)
    for expected in (1.0, 2.0):
        ahead = feeds.peek()
        assert ahead is not None
        assert shown(ahead[0]) == shown(next(feeds)[0]) == {"x": ([[expected]], [])}
    assert feeds.peek() is None
    feeds.close()
    assert list(feeds) == []


# ---- loaders that feed a program


def test_a_started_loader_feeds_the_program() -> None:
    x = fluid.data("x", [None, 2])
    loader = fluid.io.DataLoader.from_generator([x], capacity=4, iterable=False)
    total = fluid.layers.reduce_sum(x)
    loader.set_sample_generator(lambda: (([i, i],) for i in range(5)), batch_size=2)
    exe = fluid.Executor(PLACE)
    exe.run(fluid.default_startup_program())
    test_program = fluid.default_main_program().clone(for_test=True)
    with pytest.raises(ReaderError, match=r"feeds x is not started: call its start\(\)"):
        exe.run(fetch_list=[total])
    for _ in range(2):
        loader.start()
        loader.start()
        assert [exe.run(fetch_list=[total])[0].tolist() for _ in range(2)] == [[2.0], [10.0]]
        for _ in range(2):
            with pytest.raises(fluid.core.EOFException, match="no more batches"):
                exe.run(fetch_list=[total])
        loader.reset()
        loader.reset()
    loader.start()
    assert exe.run(test_program, fetch_list=[total.name])[0].tolist() == [2.0]
    assert exe.run(feed={"x": np.ones((1, 2), np.float32)}, fetch_list=[total])[0].tolist() == [2.0]
    assert loader.peek_feed() is None or shown(loader.peek_feed()) == {"x": ([[2.0, 2.0], [3.0, 3.0]], [])}
    loader.reset()
    assert loader.peek_feed() is None


def test_one_of_two_loaders_of_a_program_is_started() -> None:
    x = fluid.data("x", [None, 1])
    doubled = fluid.layers.scale(x, 2.0)
    train, test = (fluid.io.DataLoader.from_generator([x], 2, iterable=False) for _ in range(2))
    train.set_sample_generator(lambda: iter([(1.0,)]), 1)
    test.set_sample_generator(lambda: iter([(5.0,)]), 1)
    exe = fluid.Executor()
    for loader, expected in ((train, 2.0), (test, 10.0)):
        loader.start()
        assert exe.run(fetch_list=[doubled])[0].tolist() == [[expected]]
        loader.reset()


def test_both_kinds_refuse_what_the_other_is_for() -> None:
    x = fluid.data("x", [None, 1])
    with pytest.raises(ReaderError, match="not iterable"):
        iter(fluid.io.DataLoader.from_generator([x], 2, iterable=False))
    with pytest.raises(ReaderError, match="iterate this one"):
        fluid.io.DataLoader.from_generator([x], 2).start()
    with pytest.raises(ReaderError, match="loader of x has no generator yet"):
        fluid.io.DataLoader.from_generator([x], 2)()


@pytest.mark.parametrize(("arguments", "message"), [({"capacity": 3}, "feed_list"), ({"feed_list": ["x"]}, "capacity")])
def test_variables_and_capacity_are_needed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ReaderError, match=message):
        fluid.io.DataLoader.from_generator(**arguments)


def test_py_reader() -> None:
    x = fluid.data("x", [None, 1])
    for iterable in (True, False):
        reader = fluid.io.PyReader(feed_list=[x], capacity=2, iterable=iterable)
        reader.decorate_sample_generator(lambda: iter([(1.0,), (2.0,)]), 2)
        reader.decorate_sample_list_generator(lambda: iter([[(3.0,)]]))
        reader.decorate_batch_generator(lambda: iter([[np.float32([[4.0]])]]))
        if iterable:
            assert [shown(feed) for (feed,) in reader()] == [{"x": ([[4.0]], [])}]
        else:
            reader.start()
            assert fluid.Executor().run(fetch_list=[fluid.layers.scale(x, 1.0)])[0].tolist() == [[4.0]]
            reader.reset()
