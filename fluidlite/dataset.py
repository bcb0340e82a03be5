"""Datasets: files of MultiSlot text as feeds, for ``Executor.train_from_dataset`` and ``DataLoader.from_dataset``.

Fluid's classes and names. Each line of a file is an example: of each variable of ``set_use_var``, in order,
``<n> v1 ... vn``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from fluidlite.errors import DataError
from fluidlite.framework import Variable
from fluidlite.reader.background import Background
from fluidlite.reader.batching import batches
from fluidlite.reader.columns import Columns, Feed, Slot, feed_of, joined, slot_of
from fluidlite.reader.lines import PLAIN
from fluidlite.reader.multislot import read_columns

#: batches made ahead of the one that is trained on
_AHEAD: Final = 8


class DatasetFactory:
    """Makes datasets by the name of their class."""

    def create_dataset(self, datafeed_class: str = "QueueDataset") -> DatasetBase:
        """A ``QueueDataset`` or an ``InMemoryDataset``; DataError for another name."""
        classes: dict[str, type[DatasetBase]] = {"QueueDataset": QueueDataset, "InMemoryDataset": InMemoryDataset}
        if datafeed_class not in classes:
            raise DataError(f"there is no dataset {datafeed_class!r}, but {' and '.join(classes)}")
        return classes[datafeed_class]()


class DatasetBase:
    """What datasets share: files, variables, batch size, pipe command, threads."""

    def __init__(self) -> None:
        self._files: list[str] = []
        self._slots: list[Slot] = []
        self._batch_size = 1
        self._command = PLAIN
        #: files read at once
        self.threads = 1

    def set_batch_size(self, batch_size: int) -> None:
        """Examples of a batch; default 1."""
        if batch_size <= 0:
            raise DataError(f"batch_size must be positive, not {batch_size}")
        self._batch_size = batch_size

    def set_thread(self, thread_num: int) -> None:
        """Files that are read at once, each by a thread (and a process of the pipe command); default 1."""
        if thread_num <= 0:
            raise DataError(f"thread_num must be positive, not {thread_num}")
        self.threads = thread_num

    def set_filelist(self, filelist: Sequence[str | Path]) -> None:
        """The files, in the order in which they are read."""
        if isinstance(filelist, (str, Path)):
            raise DataError("set_filelist takes a list of files")
        self._files = [str(path) for path in filelist]

    def set_use_var(self, var_list: Sequence[Variable]) -> None:
        """The variables that the slots of a line fill, in order: int64 (unsigned ids keep their bits) or float32.

        A variable without LoD is filled by as many values as its shape has behind the batch; see `fluidlite.reader`.
        """
        self._slots = [slot_of(var.name, var.dtype, var.shape, var.lod_level) for var in var_list]

    def set_pipe_command(self, pipe_command: str) -> None:
        """A shell command that each file is sent through; the default "cat" starts no process."""
        self._command = pipe_command

    def feeds(self, drop_last: bool = False) -> Background[Feed]:
        """One pass: feeds in the order of the files, made ahead by a thread. DataError and MissingFileError name the file
        and what is wrong with it, behind the batches before."""
        return Background(self._feeds(drop_last), _AHEAD)

    def _feeds(self, drop_last: bool) -> Iterator[Feed]:
        for batch in self._batches():
            if len(batch) == self._batch_size or not drop_last:
                yield feed_of(batch, self._slots)

    def _batches(self) -> Iterator[Columns]:
        raise NotImplementedError

    def _columns(self) -> Iterator[Columns]:
        for given, setter in ((self._files, "set_filelist"), (self._slots, "set_use_var")):
            if not given:
                raise DataError(f"the dataset lacks what {setter} says")
        return read_columns(self._files, self._slots, self._command, self.threads)


class QueueDataset(DatasetBase):
    """Reads its files anew in every pass."""

    def _batches(self) -> Iterator[Columns]:
        return batches(self._columns(), self._batch_size, joined)

    def local_shuffle(self) -> None:
        """Refused: lines pass by once."""
        raise DataError("a QueueDataset cannot be shuffled; use an InMemoryDataset")

    def global_shuffle(self, fleet: object = None) -> None:
        """Refused: lines pass by once."""
        self.local_shuffle()


class InMemoryDataset(DatasetBase):
    """Holds all lines, which can be shuffled: `load_into_memory` first."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: Columns | None = None
        self._order: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None

    def load_into_memory(self) -> None:
        """Read all files. Raises DataError and MissingFileError."""
        blocks = list(self._columns())
        self._lines = joined(blocks) if blocks else None
        self._order = np.arange(0 if self._lines is None else len(self._lines))

    def local_shuffle(self) -> None:
        """Put the lines into a random order, drawn from numpy's global generator, which scripts seed."""
        self._order = np.random.permutation(len(self._loaded()))  # noqa: NPY002 (scripts seed this one)

    def global_shuffle(self, fleet: object = None, thread_num: int = 12) -> None:
        """`local_shuffle`; DataError with a ``fleet`` of trainers, which do not exchange their lines."""
        if fleet is not None:
            raise DataError(
                "trainers do not exchange lines: shuffle the file lists, then each trainer's lines by local_shuffle"
            )
        self.local_shuffle()

    def release_memory(self) -> None:
        """Forget the lines."""
        self._lines = self._order = None

    def get_memory_data_size(self, fleet: object = None) -> int:
        """The number of lines held here."""
        return 0 if self._order is None else len(self._order)

    def get_shuffle_data_size(self, fleet: object = None) -> int:
        """The number of lines held here."""
        return self.get_memory_data_size()

    def _loaded(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if self._order is None:
            raise DataError("the dataset is empty: call load_into_memory first")
        return self._order

    def _batches(self) -> Iterator[Columns]:
        order = self._loaded()
        for start in range(0, len(order), self._batch_size):
            assert self._lines is not None
            yield self._lines.take(order[start : start + self._batch_size])
