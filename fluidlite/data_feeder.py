"""DataFeeder: turns rows of examples into what ``Executor.run(feed=...)`` takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fluidlite import framework
from fluidlite.core import ir
from fluidlite.dtypes import Array, exact_array
from fluidlite.errors import FeedError
from fluidlite.framework import Program, Variable, VarOrName
from fluidlite.values.fed import any_batch, check_shape
from fluidlite.values.lod import LoDTensor, lod_from_lengths

Row: TypeAlias = Sequence[Any]
Feed: TypeAlias = dict[str, LoDTensor]


class DataFeeder:
    """Converts batches of rows, one entry per variable of ``feed_list`` and row.

    A variable without LoD stacks its entries; when their rank is not the declared one they are reshaped to the declared
    shape (so a row may give a label as a number, or an image flat). A variable of lod_level n takes entries nested n
    deep; they are flattened and their lengths kept. ``feed_list`` holds Variables or names of variables of ``program``
    (default: the default main program); ``place`` is Fluid's and not used.
    """

    def __init__(self, feed_list: Sequence[VarOrName], place: object = None, program: Program | None = None) -> None:
        block = (program if program is not None else framework.default_main_program()).global_block()
        found = [item if isinstance(item, Variable) else block.var(item) for item in feed_list]
        self.feed_names = [var.name for var in found]
        self.place = place
        self._vars = [var.desc for var in found]

    @property
    def feed_shapes(self) -> list[tuple[int, ...]]:
        """The declared shapes of what is fed."""
        return [var.shape or () for var in self._vars]

    @property
    def feed_dtypes(self) -> list[str]:
        return [var.dtype for var in self._vars]

    @property
    def feed_lod_level(self) -> list[int]:
        return [var.lod_level for var in self._vars]

    def feed(self, iterable: Iterable[Row]) -> Feed:
        """One batch: variable name -> LoDTensor. Raises FeedError naming the variable that rows do not fit."""
        return feed_of_rows(self._vars, iterable)

    def feed_parallel(self, iterable: Iterable[Iterable[Row]], num_places: int | None = None) -> Iterator[Feed]:
        """One feed per batch of ``iterable``, of which there must be ``num_places`` (if given)."""
        batches = list(iterable)
        if num_places is not None and len(batches) != num_places:
            raise FeedError(f"{len(batches)} batches for {num_places} places")
        return (self.feed(batch) for batch in batches)

    def decorate_reader(
        self,
        reader: Callable[[], Iterable[Iterable[Row]]],
        multi_devices: bool = False,
        num_places: int | None = None,
        drop_last: bool = True,
    ) -> Callable[[], Iterator[Any]]:
        """A reader of feeds from a reader of batches; with ``multi_devices`` of lists of ``num_places`` feeds.

        ``drop_last`` False refuses (FeedError) what is left when the batches do not divide by the places.
        """
        places = (num_places or 1) if multi_devices else 1

        def feeds() -> Iterator[Any]:
            group: list[Feed] = []
            for batch in reader():
                group.append(self.feed(batch))
                if len(group) == places:
                    yield group if multi_devices else group[0]
                    group = []
            if group and not drop_last:
                raise FeedError(f"the last {len(group)} batches do not fill {places} places")

        return feeds


def joined(feeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One feed of several, as for several devices: their rows and sequences one after the other. Raises FeedError."""
    if len(feeds) == 1:
        return dict(feeds[0])
    names = set(feeds[0])
    if any(set(feed) != names for feed in feeds):
        raise FeedError(f"feeds that are to be joined differ in what they feed: {sorted(names)} and others")
    return {name: _joined(name, [feed[name] for feed in feeds]) for name in feeds[0]}


def _joined(name: str, values: Sequence[Any]) -> LoDTensor:
    tensors = [value if isinstance(value, LoDTensor) else LoDTensor(np.asarray(value)) for value in values]
    lengths = [tensor.recursive_sequence_lengths() for tensor in tensors]
    if len({len(levels) for levels in lengths}) > 1:
        raise FeedError(f"the feeds of {name!r} that are to be joined differ in levels of LoD")
    merged = [[length for level in levels for length in level] for levels in zip(*lengths, strict=True)]
    try:
        return LoDTensor(np.concatenate([tensor.array for tensor in tensors]), lod_from_lengths(merged))
    except ValueError as error:
        raise FeedError(f"the feeds of {name!r} cannot be joined: {error}") from error


def feed_of_rows(variables: Sequence[ir.Variable], rows: Iterable[Row]) -> Feed:
    """The feed of a batch of rows, each with an entry per variable. Raises FeedError."""
    try:
        iterator = iter(rows)
    except TypeError:
        raise FeedError(f"a batch is {type(rows).__name__}, not a list of rows") from None
    rows = list(iterator)
    for number, row in enumerate(rows):
        if not isinstance(row, Sequence) and not (isinstance(row, np.ndarray) and row.ndim):
            raise FeedError(f"row {number} is {type(row).__name__}, not a list or tuple with an entry per variable")
        if len(row) != len(variables):
            raise FeedError(
                f"row {number} has {len(row)} entries, but {len(variables)} variables are fed: "
                f"{', '.join(var.name for var in variables)}"
            )
    return {var.name: convert(var, [row[at] for row in rows]) for at, var in enumerate(variables)}


def convert(var: ir.Variable, entries: Sequence[Any]) -> LoDTensor:
    """The entries of a batch for one variable, as one tensor."""
    lengths: list[list[int]] = [[] for _ in range(var.lod_level)]
    try:
        flat = _flatten(entries, lengths) if lengths else entries
        array = exact_array(_numbers(flat), var.dtype)
        array = _reshaped(array, var.shape)
        if var.shape is not None and array.ndim == len(var.shape):
            check_shape(var.name, array, var.shape if var.need_check_feed else any_batch(var.shape) or ())
        return LoDTensor(array, lod_from_lengths(lengths))
    except (TypeError, ValueError, OverflowError) as error:
        shape = f"{var.dtype} {list(var.shape or ())}, lod_level {var.lod_level}"
        raise FeedError(f"the rows do not fit variable {var.name!r} ({shape}): {error}") from error


def _numbers(entries: Any) -> Any:
    """Numbers that a reader left as the text of its file, read as such; ValueError where one is none."""
    if not any(isinstance(_innermost(entry), str) for entry in entries[:1]):
        return entries
    texts = np.asarray(entries)
    numbers = [_number(text) for text in texts.flat]
    return np.array(numbers, object).reshape(texts.shape)


def _innermost(entry: Any) -> Any:
    while (isinstance(entry, (list, tuple)) or (isinstance(entry, np.ndarray) and entry.ndim)) and len(entry):
        entry = entry[0]
    return entry


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _flatten(entries: Iterable[Any], lengths: list[list[int]]) -> list[Any]:
    """The innermost items in order; appends the length of every list to its level."""
    if not lengths:
        return list(entries)
    flat: list[Any] = []
    for entry in entries:
        lengths[0].append(len(entry))
        flat += _flatten(entry, lengths[1:])
    return flat


def _reshaped(array: Array, shape: tuple[int, ...] | None) -> Array:
    if shape is None or array.ndim == len(shape) or sum(dim < 0 for dim in shape) > 1:
        return array
    return array.reshape(shape)
