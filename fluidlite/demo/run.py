"""``fluidlite demo``: runs wide_deep.py as a job and shows its progress."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fluidlite.launch import Job, Worker, make_env, run_job

SCRIPT: Final = Path(__file__).with_name("wide_deep.py")
_STEP: Final = re.compile(r"step (\d+)/(\d+) loss (\S+) examples/s (\d+)")
_NEXT: Final = """\
The model, the tables and the logs are in {out}. What to look at next:
  {fluidlite} show {out}/model/__model__    the program saved for inference
  {fluidlite} transpile {out}/main.program {out}/startup.program --after lower_lookups    what a pass makes of it
  ls {out}/persistables    every parameter, accumulator and table, in Fluid's format
  {python} {script} --epochs 1    the same script alone; launched: {fluidlite} launch --pservers 2 --trainers 2 SCRIPT
  docs/one_id.md in the repository    the way of one id from the feed to its row on a server and back"""


class Board:
    """Turns lines of the job's output into a progress bar; keeps the others to be shown below it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None, loss="-", rate="-")
        self._rates: dict[int, int] = {}
        self.others: list[str] = []

    def show(self, worker: Worker, line: str) -> None:
        """Take one line of one process."""
        found = _STEP.fullmatch(line)
        if found is None:
            self.others.append(f"[{worker.name}] {line}")
            return
        step, total, loss, rate = found.groups()
        self._rates[worker.index] = int(rate)
        if worker.index == 0:
            rates = f"{sum(self._rates.values()):,}"
            self._progress.update(
                self._task, description="training", completed=int(step), total=int(total), loss=loss, rate=rates
            )


def columns() -> Sequence[TextColumn | BarColumn | MofNCompleteColumn | TimeElapsedColumn]:
    """The progress bar's parts."""
    return (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}  {task.fields[rate]} examples/s"),
        TimeElapsedColumn(),
    )


def demo(out: Path, pservers: int = 2, trainers: int = 2, asynchronous: bool = False) -> None:
    """Train as a job of processes on this machine; the model, the tables and the logs go to ``out``.

    Raises LaunchError when a process fails.
    """
    console = Console()
    mode = "async" if asynchronous else "sync"
    console.print(f"Wide & Deep on census income data, {pservers} pservers x {trainers} trainers, {mode}, over gRPC")
    command = [sys.executable, str(SCRIPT), "--save", str(out), *(["--async"] if asynchronous else [])]
    job = Job(command, pservers, trainers, out / "logs", make_env(pservers, trainers, seed=0))
    with Progress(*columns(), console=console) as progress:
        board = Board(progress)
        run_job(job, board.show)
    console.print("\n".join(board.others), markup=False, highlight=False)
    programs = {"fluidlite": sys.argv[0], "python": sys.executable, "script": SCRIPT, "out": out}
    console.print(_NEXT.format(**programs), markup=False, highlight=False, soft_wrap=True)
