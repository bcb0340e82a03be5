"""The job fed by a QueueDataset from MultiSlot text, as the peers' ``--feed dataset``: parsing counts, files are there before."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import data
from benchmarks.environment import data_folder
from benchmarks.processes import mark, quantiles

if TYPE_CHECKING:
    import fluidlite as fluid

Batch = tuple[data.Array, data.Array, data.Array]


def timed_dataset(args: argparse.Namespace, exe: fluid.Executor, trainer: int) -> dict[str, Any]:
    """Train on a file of the warm-up's batches, then by the clock on one of the timed ones; the loss is not fetched."""
    folder = data_folder() / "multislot"
    folder.mkdir(parents=True, exist_ok=True)
    stream = data.batches(Path(args.data), args.batch, trainer, args.trainers)
    files = [folder / f"{args.batch}-{trainer}-{part}-{args.steps}.txt" for part in ("warmup", "timed")]
    for path, steps in zip(files, (args.warmup, args.steps), strict=True):
        write_multislot(path, itertools.islice(stream, steps), split=args.split_slots)
    run(exe, files[0], args.batch)
    first = time.time()
    mark("start")
    start = time.perf_counter()
    run(exe, files[1], args.batch)
    wall = time.perf_counter() - start
    mark("end")
    return {"wall_s": wall, "step_ms": quantiles([wall * 1e3 / args.steps]), "first_step_at": first}


def run(exe: fluid.Executor, path: Path, batch: int) -> None:
    """One pass over a file with the default main program."""
    import fluidlite as fluid

    program = fluid.default_main_program()
    dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
    dataset.set_batch_size(batch)
    dataset.set_use_var([var for var in program.list_vars() if var.desc.is_data])
    dataset.set_filelist([path])
    exe.train_from_dataset(program, dataset)


def write_multislot(path: Path, batches: Iterable[Batch], split: bool) -> None:
    """Write ``<n> v1 ... vn`` for each input of an example, in the order of the model's inputs."""
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("w", encoding="ascii") as out:
        for batch in batches:
            for ids, dense, (label,) in zip(*(part.tolist() for part in batch), strict=True):
                slots = " ".join(f"1 {id_}" for id_ in ids) if split else f"{len(ids)} {' '.join(map(str, ids))}"
                numbers = " ".join(f"{value:.6g}" for value in dense)
                out.write(f"{slots} {len(dense)} {numbers} 1 {label:g}\n")
    unfinished.replace(path)
