"""``fluid.incubate.data_generator``: scripts that turn lines of text into MultiSlot text, for the pipe commands of datasets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from fluidlite.errors import DataError

#: an example: (name of a slot, values) for each slot
Sample: TypeAlias = Sequence[tuple[str, list[Any]]]
Samples: TypeAlias = Callable[[], Iterable[Any]]


class DataGenerator:
    """Subclasses define `generate_sample`, and `generate_batch` where whole batches are to be looked at."""

    def __init__(self) -> None:
        self._proto_info: list[tuple[str, str]] | None = None
        self.batch_size_ = 32
        self._line_limit: int | None = None

    def _set_line_limit(self, line_limit: int) -> None:
        if not isinstance(line_limit, int) or line_limit < 1:
            raise DataError(f"line_limit must be a whole number of 1 or more, not {line_limit!r}")
        self._line_limit = line_limit

    def set_batch(self, batch_size: int) -> None:
        """How many samples `generate_batch` is given at once; default 32."""
        self.batch_size_ = batch_size

    def run_from_stdin(self) -> None:
        """Write the text of every sample of every line of stdin to stdout."""
        self._write(sample for line in sys.stdin for sample in self.generate_sample(line)())

    def run_from_memory(self) -> None:
        """Write the text of every sample of ``generate_sample(None)`` to stdout."""
        self._write(self.generate_sample(None)())

    def _write(self, samples: Iterable[Any]) -> None:
        for batch in self._batches(samples):
            for sample in self.generate_batch(batch)():
                sys.stdout.write(self._gen_str(sample))

    def _batches(self, samples: Iterable[Any]) -> Iterator[list[Any]]:
        batch: list[Any] = []
        for sample in samples:
            if sample is None:
                continue
            batch.append(sample)
            if len(batch) == self.batch_size_:
                yield batch
                batch = []
        if batch:
            yield batch

    def _gen_str(self, line: Any) -> str:
        raise NotImplementedError(
            "derive from MultiSlotDataGenerator or MultiSlotStringDataGenerator, which write text"
        )

    def generate_sample(self, line: str | None) -> Samples:
        """To be defined: a function that yields the samples of a line, each ``[(slot, [value, ...]), ...]``, or None."""
        raise NotImplementedError(
            "define generate_sample(self, line): a function that yields [(slot, [value, ...]), ...]"
        )

    def generate_batch(self, samples: list[Any]) -> Samples:
        """The samples of a batch as they are to be written; by default those of `generate_sample`."""
        return lambda: iter(samples)


class MultiSlotStringDataGenerator(DataGenerator):
    """Values are text already: ``[("words", ["1926", "08"]), ("label", ["1"])]`` is ``2 1926 08 1 1``. The fast one."""

    def _gen_str(self, line: Any) -> str:
        return " ".join(" ".join([str(len(values)), *values]) for _, values in _checked(line)) + "\n"


class MultiSlotDataGenerator(DataGenerator):
    """Values are numbers: ``[("words", [1926, 8]), ("label", [1])]`` is ``2 1926 8 1 1``.

    The first sample says the slots and their order. A slot is of ints until a float is in it. Raises DataError (a
    ValueError) for a sample with other slots, a slot without values, and values that are no numbers.
    """

    def _gen_str(self, line: Any) -> str:
        sample = _checked(line)
        if self._proto_info is None:
            self._proto_info = [(_checked_name(name), "uint64") for name, _ in sample]
        if len(sample) != len(self._proto_info):
            raise DataError(f"a sample has {len(sample)} slots, the first one {len(self._proto_info)}")
        parts = []
        for index, (name, values) in enumerate(sample):
            known, kind = self._proto_info[index]
            if name != known:
                raise DataError(f"slot {index} of a sample is {name!r}, of the first one {known!r}")
            if _has_float(name, values) and kind != "float":
                self._proto_info[index] = name, "float"
            parts += [len(values), *values]
        return " ".join(map(str, parts)) + "\n"


def _checked(line: Any) -> Sample:
    if not isinstance(line, (list, tuple)):
        raise DataError(f"a sample must be a list [(slot, [value, ...]), ...], not {type(line).__name__}")
    return line


def _checked_name(name: Any) -> str:
    if not isinstance(name, str):
        raise DataError(f"the name of a slot must be text, not {type(name).__name__}")
    return name


def _has_float(name: str, values: Any) -> bool:
    """Whether one of the values of a slot is a float."""
    if not isinstance(values, list):
        raise DataError(f"slot {name!r}: its values must be in a list, not {type(values).__name__}")
    if not values:
        raise DataError(f"slot {name!r} has no value; give it one that stands for none, such as 0")
    wrong = [value for value in values if not isinstance(value, (int, float))]
    if wrong:
        raise DataError(f"slot {name!r}: values must be ints or floats, not {type(wrong[0]).__name__}")
    return any(isinstance(value, float) for value in values)
