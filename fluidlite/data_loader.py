"""DataLoader and PyReader: feeds made ahead by a thread or a process, from generators and from datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from fluidlite.core import ir
from fluidlite.data_feeder import Feed, feed_of_rows
from fluidlite.dtypes import exact_array
from fluidlite.errors import DtypeError, EOFException, FeedError, ReaderError, ShapeError
from fluidlite.framework import Program, Variable, readers
from fluidlite.reader.background import Background
from fluidlite.reader.decorators import batch
from fluidlite.reader.process import read_in_process
from fluidlite.values.fed import checked
from fluidlite.values.lod import LoDTensor

if TYPE_CHECKING:
    from fluidlite.dataset import DatasetBase

Reader: TypeAlias = Callable[[], Iterable[Any]]


class DataLoader:
    """Makes loaders; Fluid's name for `from_generator` and `from_dataset`."""

    @staticmethod
    def from_generator(
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,  # noqa: ARG004
    ) -> GeneratorLoader:
        """A loader of batches for the variables of ``feed_list``, up to ``capacity`` of them made ahead.

        ``iterable``: it is iterated for feeds; else it feeds the program that the variables belong to between its
        ``start()`` and ``reset()``; `read` ops in it say so. ``return_list``: lists of tensors in place of feeds.
        ``use_multiprocess``: the generator runs in a process of its own. ``use_double_buffer`` and ``drop_last`` are
        Fluid's, for several devices; the first still puts its op into the program.
        """
        return GeneratorLoader(feed_list, capacity, iterable, return_list, use_multiprocess, use_double_buffer)

    @staticmethod
    def from_dataset(
        dataset: DatasetBase,
        places: object = None,  # noqa: ARG004
        drop_last: bool = True,
    ) -> DatasetLoader:
        """An iterable of the feeds of a dataset, without the last batch where ``drop_last`` and it is not full."""
        return DatasetLoader(dataset, drop_last)


class Loader:
    """Feeds from a generator that one of the ``set_`` methods gives it, for ``items``: the variables, or what a batch has.

    What the generator raises is raised to who takes the batches, behind the batches before it; so is FeedError for a batch
    that does not fit the variables. The ``set_`` methods raise ReaderError for what cannot be called.
    """

    def __init__(
        self,
        items: Sequence[ir.Variable],
        capacity: int | None,
        iterable: bool = False,
        return_list: bool = False,
        use_multiprocess: bool = False,
    ) -> None:
        self.iterable = iterable
        #: the READER variable of the program that is fed; empty where none is
        self.reader = ""
        self._vars = list(items)
        self._capacity = _checked_capacity(capacity)
        self._return_list = return_list
        self._use_multiprocess = use_multiprocess
        self._feeds: Callable[[], Iterable[Feed]] | None = None
        self._running: Background[Feed] | None = None
        self._pass: FeedIterator | None = None

    @property
    def names(self) -> list[str]:
        """The variables fed."""
        return [var.name for var in self._vars]

    def set_sample_generator(
        self, reader: Reader, batch_size: int, drop_last: bool = True, places: object = None
    ) -> Self:
        """Batches of ``batch_size`` of the samples of ``reader()``; a sample has an entry per variable."""
        return self.set_sample_list_generator(batch(_Generator(reader), batch_size, drop_last), places)

    def set_sample_list_generator(self, reader: Reader, places: object = None) -> Self:
        """The lists of samples of ``reader()`` as batches; see `DataFeeder` for how samples become tensors."""
        return self._set(_SampleLists(self._vars, _Generator(reader)))

    def set_batch_generator(self, reader: Reader, places: object = None) -> Self:
        """The batches of ``reader()`` as they are: an array or LoDTensor per variable, in a list, or in a dict by name."""
        return self._set(_Batches(self._vars, _Generator(reader)))

    def _set(self, feeds: Callable[[], Iterable[Feed]]) -> Self:
        self._feeds = feeds
        return self

    def _start(self) -> Background[Feed]:
        if self._feeds is None:
            raise ReaderError(
                f"the loader of {', '.join(self.names)} has no generator yet: call one of its set_ methods"
            )
        if self._use_multiprocess:
            return read_in_process(self._feeds, self._capacity)
        return Background(self._feeds(), self._capacity)

    def __call__(self) -> FeedIterator:
        """One pass over the generator: an iterator of feeds for ``Executor.run``, each in a list as in Fluid."""
        if not self.iterable:
            raise ReaderError("this loader is not iterable: call start(), run the program, and reset() at EOFException")
        return FeedIterator(self._start(), self.names if self._return_list else None)

    def __iter__(self) -> FeedIterator:
        """The same. ``next(loader)`` goes on with the pass that was begun last this way, as in Fluid."""
        self._pass = self()
        return self._pass

    def __next__(self) -> list[Any]:
        """The next feed of the pass that ``iter(loader)`` began."""
        if self._pass is None:
            raise ReaderError("no pass was begun: call iter(loader) before next(loader)")
        return next(self._pass)

    # the name that scripts for Fluid 1.x use
    next = __next__

    @property
    def queue(self) -> FeedQueue:
        """The batches made ahead; scripts log ``loader.queue.size()``."""
        return FeedQueue(self)

    def ready(self) -> int:
        """How many batches of the present pass are made already."""
        if self._running is not None:
            return self._running.ready()
        return 0 if self._pass is None else self._pass.ready()

    @property
    def capacity(self) -> int:
        """How many batches are made ahead at most."""
        return self._capacity

    @property
    def is_started(self) -> bool:
        """Whether runs of the program take batches of this loader."""
        return self._running is not None

    def start(self) -> None:
        """Begin a pass: from now on each run of the program takes a batch. For loaders that are not iterable."""
        if self.iterable:
            raise ReaderError("start() is for loaders that are not iterable; iterate this one")
        if self._running is None:
            self._running = self._start()

    def reset(self) -> None:
        """End the pass, finished or not. For loaders that are not iterable."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def next_feed(self) -> Feed:
        """The batch for the next run. Raises EOFException behind the last one."""
        if self._running is None:
            raise ReaderError(f"the loader that feeds {', '.join(self.names)} is not started: call its start()")
        try:
            return next(self._running)
        except StopIteration:
            raise EOFException(f"the loader of {', '.join(self.names)} has no more batches: call its reset()") from None

    def peek_feed(self) -> Feed | None:
        """What `next_feed` will return if that is known by now, else None; waits for nothing."""
        return None if self._running is None else self._running.peek()


class ReaderLoader(Loader):
    """The loader behind a READER variable that the program has already; ``items``: what a batch has."""

    def __init__(self, program: Program, reader: str, items: Sequence[ir.Variable], capacity: int) -> None:
        super().__init__(items, capacity)
        self.reader = reader
        program.loaders.append(self)


class FeedQueue:
    """The queue of a loader by Fluid's names, to look at."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def size(self) -> int:
        """How many batches wait."""
        return self._loader.ready()

    def cap(self) -> int:
        """How many can wait."""
        return self._loader.capacity


class GeneratorLoader(Loader):
    """The loader of variables, see `DataLoader.from_generator`. One that is not iterable puts its ops into their program."""

    def __init__(
        self,
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        use_double_buffer: bool = True,
    ) -> None:
        if not feed_list:
            raise ReaderError("a loader needs the variables that it feeds: give feed_list")
        _checked_capacity(capacity)
        super().__init__([var.desc for var in feed_list], capacity, iterable, return_list, use_multiprocess)
        if not iterable:
            self.reader = self._put_into_program(feed_list, use_double_buffer)

    def _put_into_program(self, feed_list: Sequence[Variable], use_double_buffer: bool) -> str:
        """The ops that fill the variables; the name of their reader."""
        program = feed_list[0].program
        queue, name, buffer = map(
            readers.names.generate, ("lod_tensor_blocking_queue", "create_py_reader", "double_buffer")
        )
        reader = readers.append_create(program.current_block(), queue, name, self._vars)
        if use_double_buffer:
            reader = readers.append_double_buffer(program.current_block(), reader, buffer)
        readers.append_read(program.current_block(), reader, feed_list)
        program.loaders.append(self)
        return name


class PyReader(GeneratorLoader):
    """`GeneratorLoader` by the names of Fluid before 1.6."""

    def __init__(
        self,
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
    ) -> None:
        super().__init__(feed_list, capacity, iterable, return_list, use_double_buffer=use_double_buffer)

    def decorate_sample_generator(
        self, sample_generator: Reader, batch_size: int, drop_last: bool = True, places: object = None
    ) -> None:
        """See `set_sample_generator`."""
        self.set_sample_generator(sample_generator, batch_size, drop_last, places)

    def decorate_sample_list_generator(self, reader: Reader, places: object = None) -> None:
        """See `set_sample_list_generator`."""
        self.set_sample_list_generator(reader, places)

    def decorate_batch_generator(self, reader: Reader, places: object = None) -> None:
        """See `set_batch_generator`."""
        self.set_batch_generator(reader, places)


class DatasetLoader:
    """The feeds of a dataset, pass by pass. See `DataLoader.from_dataset`."""

    def __init__(self, dataset: DatasetBase, drop_last: bool) -> None:
        self._dataset = dataset
        self._drop_last = drop_last

    def __call__(self) -> FeedIterator:
        """One pass: an iterator of feeds for ``Executor.run``."""
        return FeedIterator(self._dataset.feeds(self._drop_last))

    __iter__ = __call__


class FeedIterator:
    """One pass of a loader: what ``Executor.run(feed=...)`` takes. Close it, or let go of it, to stop early."""

    def __init__(self, feeds: Background[Any], names: Sequence[str] | None = None) -> None:
        self._feeds = feeds
        self._names = names

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[Any]:
        return self._wrapped(next(self._feeds))

    # the name that scripts for Fluid 1.x use
    next = __next__

    def ready(self) -> int:
        """How many feeds are made already."""
        return self._feeds.ready()

    def peek(self) -> list[Any] | None:
        """What `next` will return if that is known by now, else None; waits for nothing."""
        feed = self._feeds.peek()
        return None if feed is None else self._wrapped(feed)

    def close(self) -> None:
        """End the pass."""
        self._feeds.close()

    def _wrapped(self, feed: Mapping[str, Any]) -> list[Any]:
        """In a list, as there is one device; ``return_list`` has the tensors in a list there."""
        return [feed if self._names is None else [feed[name] for name in self._names]]


class _Generator:
    """A user's generator. Calling it raises FeedError where it returns nothing to iterate. A class, to be sent as the
    others are."""

    def __init__(self, function: Reader) -> None:
        if not callable(function):
            raise ReaderError(
                f"a loader needs a generator: a function that returns what can be iterated, not {type(function).__name__}"
            )
        self._function = function

    def __call__(self) -> Iterator[Any]:
        items = self._function()
        try:
            return iter(items)
        except TypeError:
            raise FeedError(
                f"the generator returned {type(items).__name__}, which cannot be iterated; did it mean to yield?"
            ) from None


class _SampleLists:
    """A reader of feeds from one of lists of samples. A class, so that it can be sent to a process with its reader."""

    def __init__(self, variables: Sequence[ir.Variable], reader: Reader) -> None:
        self._vars = variables
        self._reader = reader

    def __call__(self) -> Iterator[Feed]:
        for samples in self._reader():
            yield feed_of_rows(self._vars, samples)


class _Batches:
    """A reader of feeds from one of batches."""

    def __init__(self, variables: Sequence[ir.Variable], reader: Reader) -> None:
        self._vars = variables
        self._reader = reader

    def __call__(self) -> Iterator[Feed]:
        for batch_ in self._reader():
            yield {var.name: _tensor(var, value) for var, value in zip(self._vars, self._values(batch_), strict=True)}

    def _values(self, batch_: Any) -> Iterable[Any]:
        if isinstance(batch_, Mapping):
            missing = [var.name for var in self._vars if var.name not in batch_]
            if missing:
                raise FeedError(f"a batch of the generator has nothing for {', '.join(missing)}")
            return [batch_[var.name] for var in self._vars]
        names = ", ".join(var.name for var in self._vars)
        if not isinstance(batch_, Sequence) and not (isinstance(batch_, np.ndarray) and batch_.ndim):
            raise FeedError(
                f"a batch of the generator is {type(batch_).__name__}, not a list, tuple or dict with an entry for each of: "
                f"{names}"
            )
        if len(batch_) != len(self._vars):
            raise FeedError(
                f"a batch of the generator has {len(batch_)} entries for {len(self._vars)} variables: {names}; for lists of "
                "samples use set_sample_list_generator"
            )
        return batch_


def _tensor(var: ir.Variable, value: Any) -> LoDTensor:
    try:
        tensor = value if isinstance(value, LoDTensor) else LoDTensor(exact_array(value, var.dtype))
        fed = checked(var.name, tensor, var.dtype, var.shape, var.lod_level, exact=var.need_check_feed)
    except (DtypeError, ShapeError, FeedError) as error:
        raise FeedError(f"a batch of the generator does not fit variable {var.name!r}: {error}") from error
    return fed if isinstance(fed, LoDTensor) else LoDTensor(fed)


def with_loaders(program: Program, feed: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run of ``program`` is fed: ``feed`` and, where it has nothing for what `read` ops fill, batches of the
    program's loaders.

    Raises EOFException when a loader has no more.
    """
    if not program.loaders:
        return feed
    loaders = {loader.reader: loader for loader in program.loaders}
    reads = [(loaders.get(name), outputs) for name, found in readers.sources(program.desc).items() for outputs in found]
    # a loader that is started comes before one that was forgotten and fills the same variables
    for loader, outputs in sorted(reads, key=lambda read: read[0] is None or not read[0].is_started):
        if loader is not None and not set(outputs) <= set(feed):
            batch_ = loader.next_feed()
            feed = {**feed, **dict(zip(outputs, batch_.values(), strict=True))}
    return feed


def _checked_capacity(capacity: int | None) -> int:
    if not capacity or capacity < 0:
        raise ReaderError(f"a loader needs a capacity of one or more batches, not {capacity}")
    return capacity
