"""Fluid's reader decorators (``paddle.reader``, ``fluid.io``).

A reader is a function without arguments that returns an iterable of samples; a decorator makes a reader of readers. What
they make can be sent to another process where the readers and functions that they are given can.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from fluidlite.errors import DataError, FluidliteError
from fluidlite.reader.background import Background, interleaved
from fluidlite.reader.process import read_in_process

Reader: TypeAlias = Callable[[], Iterable[Any]]
_GONE: Final = object()


class ComposeNotAligned(FluidliteError, ValueError):  # noqa: N818 (Fluid's name)
    """Readers that are composed have different numbers of samples."""


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Reader:
    """A reader of lists of ``batch_size`` samples; the last one is shorter, or with ``drop_last`` left out.

    Raises DataError (a ValueError) unless ``batch_size`` is positive.
    """
    size = int(batch_size)
    if size <= 0:
        raise DataError(f"batch_size should be a positive whole number, not {batch_size}")
    return partial(_batches, reader, size, drop_last)


def _batches(reader: Reader, size: int, drop_last: bool) -> Iterator[list[Any]]:
    samples = iter(reader())
    while group := list(itertools.islice(samples, size)):
        if len(group) == size or not drop_last:
            yield group


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """A reader of what ``func`` makes of one sample of each reader, as far as the shortest goes."""
    return partial(_mapped, func, readers)


def _mapped(func: Callable[..., Any], readers: Sequence[Reader]) -> Iterator[Any]:
    return map(func, *(reader() for reader in readers))


def shuffle(reader: Reader, buf_size: int) -> Reader:
    """A reader of the samples in random order within stretches of ``buf_size``, drawn from Python's ``random``."""
    return partial(_shuffled, reader, max(int(buf_size), 1))


def _shuffled(reader: Reader, size: int) -> Iterator[Any]:
    samples = iter(reader())
    while stretch := list(itertools.islice(samples, size)):
        random.shuffle(stretch)
        yield from stretch


def chain(*readers: Reader) -> Reader:
    """A reader of the samples of one reader after the other."""
    return partial(_chained, readers)


def _chained(readers: Sequence[Reader]) -> Iterator[Any]:
    return itertools.chain.from_iterable(reader() for reader in readers)


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """A reader of tuples: the samples of all readers side by side, those that are tuples taken apart.

    Raises ComposeNotAligned while reading when one reader ends before another; with ``check_alignment`` False the
    composed reader ends with the shortest.
    """
    return partial(_composed, readers, check_alignment)


def _composed(readers: Sequence[Reader], check_alignment: bool) -> Iterator[tuple[Any, ...]]:
    for samples in itertools.zip_longest(*(reader() for reader in readers), fillvalue=_GONE):
        if any(sample is _GONE for sample in samples):
            if check_alignment:
                raise ComposeNotAligned("the composed readers have different numbers of samples")
            return
        yield tuple(itertools.chain.from_iterable(s if isinstance(s, tuple) else (s,) for s in samples))


def firstn(reader: Reader, n: int) -> Reader:
    """A reader of the first ``n`` samples."""
    return partial(_first, reader, n)


def _first(reader: Reader, n: int) -> Iterator[Any]:
    return itertools.islice(reader(), n)


def cache(reader: Reader) -> Reader:
    """A reader of samples kept in memory; all are read at once, when ``cache`` is called."""
    return partial(iter, tuple(reader()))


def buffered(reader: Reader, size: int) -> Reader:
    """A reader that a thread runs ahead of by up to ``size`` samples; 0: without limit."""
    return partial(_read_ahead, reader, size)


def _read_ahead(reader: Reader, size: int) -> Iterator[Any]:
    with Background(reader(), size) as ahead:
        yield from ahead


def xmap_readers(
    mapper: Callable[[Any], Any], reader: Reader, process_num: int, buffer_size: int, order: bool = False
) -> Reader:
    """A reader of what ``mapper`` makes of each sample, by ``process_num`` threads, up to ``buffer_size`` samples ahead.

    The samples keep their order, with ``order`` or without. The mapper should release the interpreter (numpy on large
    arrays, files, compression): other work is not done faster by threads.
    """
    return partial(_mapped_by_threads, mapper, reader, max(process_num, 1), max(buffer_size, process_num))


def _mapped_by_threads(mapper: Callable[[Any], Any], reader: Reader, threads: int, ahead: int) -> Iterator[Any]:
    from concurrent.futures import Future, ThreadPoolExecutor

    pool = ThreadPoolExecutor(threads, "fluidlite mapper")
    pending: deque[Future[Any]] = deque()
    try:
        for sample in reader():
            pending.append(pool.submit(mapper, sample))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def multiprocess_reader(readers: Sequence[Reader], use_pipe: bool = True, queue_size: int = 1000) -> Reader:
    """A reader of the samples of several readers in turn, each run by a process of its own, ``queue_size`` samples ahead.

    Samples are made of numbers, text, lists, tuples, dicts and arrays. See `read_in_process` for readers that cannot be
    sent to a process. ``use_pipe`` is Fluid's and changes nothing.
    """
    if not isinstance(readers, (list, tuple)) or not readers:
        raise DataError("multiprocess_reader needs a list of one or more readers")
    return partial(_read_in_turn, readers, queue_size)


def _read_in_turn(readers: Sequence[Reader], queue_size: int) -> Iterator[Any]:
    return interleaved([read_in_process(reader, queue_size) for reader in readers])
