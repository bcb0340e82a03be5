"""``fluid.AsyncExecutor``: training from files, as it was before datasets."""

from __future__ import annotations

from collections.abc import Sequence

from fluidlite.compat.data_feed_desc import DataFeedDesc
from fluidlite.compat.fetched import Executor
from fluidlite.dataset import QueueDataset
from fluidlite.errors import DataError
from fluidlite.framework import Program, Variable, VarOrName, default_startup_program


class AsyncExecutor:
    """Runs a program over files that a `DataFeedDesc` describes."""

    def __init__(self, place: object = None, run_mode: str = "") -> None:
        self.executor = Executor(place)

    def run(
        self,
        program: Program,
        data_feed: DataFeedDesc,
        filelist: Sequence[str],
        thread_num: int,
        fetch: Sequence[VarOrName],
        mode: str = "",
        debug: bool = False,
    ) -> None:
        """One pass: a batch after the other; ``thread_num`` files are read at once. With ``debug`` every batch prints the
        variables of ``fetch``, else every hundredth. DataError for slots that are not used: lines have all variables."""
        dataset = QueueDataset()
        dataset.set_batch_size(data_feed.batch_size)
        dataset.set_pipe_command(data_feed.pipe_command)
        dataset.set_thread(min(thread_num, len(filelist)) or 1)
        dataset.set_filelist(filelist)
        dataset.set_use_var(_variables(program, data_feed))
        self.executor.train_from_dataset(program, dataset, fetch_list=fetch, print_period=1 if debug else 100)

    def run_startup_program(self, program: Program | None = None, executor: Executor | None = None) -> None:
        """Run a startup program, by default the default one."""
        runner = executor if executor is not None else self.executor
        runner.run(program if program is not None else default_startup_program())


def _variables(program: Program, data_feed: DataFeedDesc) -> list[Variable]:
    """The variables that the slots fill: those of the same names."""
    unused = [slot["name"][-1] for slot in data_feed.slots if not slot.get("is_used", [False])[-1]]
    if unused:
        raise DataError(f"slots {', '.join(unused)} are not used: leave them out of the data, or call set_use_slots")
    return [program.global_block().var(slot["name"][-1]) for slot in data_feed.slots]
