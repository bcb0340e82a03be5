"""Datasets: files of MultiSlot text as feeds, for ``Executor.train_from_dataset`` and ``DataLoader.from_dataset``.

Fluid's classes and names. Each line of a file is an example: of each variable of ``set_use_var``, in order,
``<n> v1 ... vn``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from fluidlite.errors import DataError, NotSupported
from fluidlite.framework import Variable
from fluidlite.reader.background import Background
from fluidlite.reader.batching import batches
from fluidlite.reader.columns import Columns, Feed, Slot, feed_of, joined, slot_of
from fluidlite.reader.lines import PLAIN
from fluidlite.reader.multislot import read_columns

#: batches made ahead of the one that is trained on
_AHEAD: Final = 8
#: how the names of files begin that Fluid reads by commands of hadoop
_REMOTE: Final = ("hdfs:", "afs:")


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
        self._vars: list[Variable] = []
        #: whether `slots_shuffle` does anything
        self._evaluates_features = False

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
        remote = [path for path in map(str, filelist) if path.startswith(_REMOTE)]
        if remote:
            raise NotSupported(
                f"a dataset of remote files ({remote[0]}): copy them first, by fluid.contrib.utils.multi_download or by hadoop"
            )
        self._files = [str(path) for path in filelist]

    def set_use_var(self, var_list: Sequence[Variable]) -> None:
        """The variables that the slots of a line fill, in order: int64 (unsigned ids keep their bits) or float32.

        A variable without LoD is filled by as many values as its shape has behind the batch; see `fluidlite.reader`.
        """
        if wrong := [item for item in var_list if not isinstance(item, Variable)]:
            raise DataError(f"set_use_var takes a list of variables, not {wrong[0]!r} in it")
        self._vars = list(var_list)
        self._slots = [slot_of(var.name, var.dtype, var.shape, var.lod_level) for var in var_list]

    def set_pipe_command(self, pipe_command: str) -> None:
        """A shell command that each file is sent through; the default "cat" starts no process."""
        self._command = pipe_command

    def set_hdfs_config(self, fs_name: str, fs_ugi: str) -> None:
        """Accepted; files are local, see `set_filelist`."""

    def set_download_cmd(self, download_cmd: str) -> None:
        """Accepted; files are local, see `set_filelist`."""

    def set_fea_eval(self, record_candidate_size: int, fea_eval: bool = True) -> None:
        """Whether `slots_shuffle` shuffles, to see what a slot is worth; ``record_candidate_size`` is Fluid's."""
        self._evaluates_features = fea_eval

    def slots_shuffle(self, slots: Sequence[str]) -> None:
        """Refused: only an InMemoryDataset has the lines."""
        raise DataError("a QueueDataset cannot be shuffled; use an InMemoryDataset")

    def set_rank_offset(self, rank_offset: str) -> None:
        """NotSupported, as all that groups lines by page view."""
        raise _no_page_views("set_rank_offset")

    def set_pv_batch_size(self, pv_batch_size: int) -> None:
        """NotSupported, as all that groups lines by page view."""
        raise _no_page_views("set_pv_batch_size")

    def desc(self) -> str:
        """How lines are read, as a ``DataFeedDesc`` of Fluid in protobuf's text form."""
        lines = [f'name: "{self._feed_type}"', f"batch_size: {self._batch_size}"]
        if self._vars:
            slots = [line for var in self._vars for line in _described(var)]
            lines += ["multi_slot_desc {", *(f"  {line}" for line in slots), "}"]
        return "".join(f"{line}\n" for line in [*lines, f'pipe_command: "{self._command}"'])

    #: what Fluid calls the way in which lines are read
    _feed_type = "MultiSlotDataFeed"

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


def _described(var: Variable) -> list[str]:
    """A slot in the text form of ``DataFeedDesc``."""
    kind = "float" if var.dtype == "float32" else "uint64"
    dense = [] if var.lod_level else ["  is_dense: true"]
    shape = [] if var.lod_level else [f"  shape: {dim}" for dim in var.shape]
    return ["slots {", f'  name: "{var.name}"', f'  type: "{kind}"', *dense, "  is_used: true", *shape, "}"]


def _no_page_views(method: str) -> NotSupported:
    return NotSupported(f"{method}: lines are not grouped by page view here")


def _refuse_if(wanted: bool, method: str, advice: str) -> None:
    if wanted:
        raise NotSupported(f"{method}: {advice}")


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
        self._preload: Future[None] | None = None
        self._order: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None

    def load_into_memory(self) -> None:
        """Read all files. Raises DataError and MissingFileError."""
        blocks = list(self._columns())
        self._lines = joined(blocks) if blocks else None
        self._order = np.arange(0 if self._lines is None else len(self._lines))

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Begin `load_into_memory` in a thread; ``thread_num`` as in `set_thread`."""
        if thread_num is not None:
            self.set_thread(thread_num)
        pool = ThreadPoolExecutor(1, "fluidlite dataset")
        self._preload = pool.submit(self.load_into_memory)
        pool.shutdown(wait=False)

    def wait_preload_done(self) -> None:
        """Wait for the end of `preload_into_memory`, and raise what it raised."""
        if self._preload is None:
            raise DataError("nothing is being loaded: call preload_into_memory first")
        self._preload.result()

    def local_shuffle(self) -> None:
        """Put the lines into a random order, drawn from numpy's global generator, which scripts seed."""
        self._order = np.random.permutation(len(self._loaded()))  # noqa: NPY002 (scripts seed this one)

    def global_shuffle(self, fleet: object = None, thread_num: int = 12) -> None:
        """`local_shuffle`: trainers do not exchange their lines, of which a warning tells when there is a ``fleet``."""
        if fleet is not None:
            warnings.warn(
                "global_shuffle: trainers do not exchange lines; each shuffles its own. Deal the files out at random",
                UserWarning,
                stacklevel=2,
            )
        self.local_shuffle()

    def slots_shuffle(self, slots: Sequence[str]) -> None:
        """Give each of these slots the values of other lines, at random; nothing without `set_fea_eval`.

        Drawn as in `local_shuffle`. Raises DataError for a slot that there is not.
        """
        if not self._evaluates_features:
            return
        names = [slot.name for slot in self._slots]
        unknown = [name for name in slots if name not in names]
        if unknown:
            raise DataError(f"there is no slot {unknown[0]!r}; there are {', '.join(names)}")
        count = len(self._loaded())
        if self._lines is None:
            return
        for index in map(names.index, slots):
            order = np.random.permutation(count)  # noqa: NPY002 (scripts seed this one)
            self._lines = self._lines.with_slot(index, self._lines.take(order))

    # What concerns only how Fluid exchanges lines between trainers and threads.
    def set_queue_num(self, queue_num: int) -> None:
        """Accepted; lines are in no queues."""

    def set_fleet_send_batch_size(self, fleet_send_batch_size: int = 1024) -> None:
        """Accepted; trainers do not exchange lines."""

    def set_fleet_send_sleep_seconds(self, fleet_send_sleep_seconds: int = 0) -> None:
        """Accepted; trainers do not exchange lines."""

    def set_generate_unique_feasigns(self, generate_uni_feasigns: bool, shard_num: int) -> None:
        """Accepted; rows are made when they are touched."""

    def set_feed_type(self, data_feed_type: str) -> None:
        """Only MultiSlotInMemoryDataFeed; NotSupported for others."""
        if data_feed_type != self._feed_type:
            raise NotSupported(f"set_feed_type({data_feed_type!r}): there is {self._feed_type} only")

    def set_parse_ins_id(self, parse_ins_id: bool) -> None:
        """NotSupported, unless False: lines with an id of their own in front."""
        _refuse_if(parse_ins_id, "set_parse_ins_id", "lines have no id in front here; let the pipe command cut it off")

    def set_parse_content(self, parse_content: bool) -> None:
        """NotSupported, unless False: lines with a text in front."""
        _refuse_if(
            parse_content, "set_parse_content", "lines have no text in front here; let the pipe command cut it off"
        )

    def set_merge_by_lineid(self, merge_size: int = 2) -> None:
        """NotSupported: lines with an id of their own in front."""
        raise NotSupported("set_merge_by_lineid: merge the lines before they are read")

    def set_parse_logkey(self, parse_logkey: bool) -> None:
        """NotSupported, unless False."""
        if parse_logkey:
            raise _no_page_views("set_parse_logkey")

    def set_merge_by_sid(self, merge_by_sid: bool) -> None:
        """Accepted: it counts for lines grouped by page view only."""

    def set_enable_pv_merge(self, enable_pv_merge: bool) -> None:
        """NotSupported, unless False."""
        if enable_pv_merge:
            raise _no_page_views("set_enable_pv_merge")

    def preprocess_instance(self) -> None:
        """NotSupported, as all that groups lines by page view."""
        raise _no_page_views("preprocess_instance")

    def postprocess_instance(self) -> None:
        """NotSupported, as all that groups lines by page view."""
        raise _no_page_views("postprocess_instance")

    def set_current_phase(self, current_phase: int) -> None:
        """NotSupported, as all that groups lines by page view."""
        raise _no_page_views("set_current_phase")

    def get_pv_data_size(self) -> int:
        """NotSupported, as all that groups lines by page view."""
        raise _no_page_views("get_pv_data_size")

    def generate_local_tables_unlock(
        self, table_id: int, fea_dim: int, read_thread_num: int, consume_thread_num: int, shard_num: int
    ) -> None:
        """NotSupported: it fills tables of pslib."""
        raise NotSupported("generate_local_tables_unlock: rows of tables are made where they are first looked up")

    _feed_type = "MultiSlotInMemoryDataFeed"

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
