"""Figures of whole jobs: the CTR job and the embedding job by fluidlite and by every peer that is there.

How many steps: the rate of a run is stable from the tenth step on, what varies is the machine, in stretches of a few
seconds. So a run's clock goes for two to four seconds, about what its processes take to start, and rounds are many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from benchmarks.figures import Figure, Sample, Settings, Target, Values
from benchmarks.peers import SMALL_POOL, Run, command_of, last_line, memory_values, opener, runs_of

_WARMUP: Final = 15
_LOCAL_STEPS, _PS_STEPS = 150, 80
_PS1: Final = "--mode ps --servers 1 --trainers 1"
_PS2: Final = "--mode ps --servers 2 --trainers 2"
_RATE: Final = "examples/s"
_JOB: Final = "CTR job (26 slots × 16, 1 M ids Zipf, 13 numbers, 400-400-1, batch 512)"
_DENSE: Final = Run("fluidlite dense", "fluidlite", "--extra dist=0")
_ON_TRAINER: Final = Run("fluidlite dense on trainer", "fluidlite", "--extra dense=trainer")
_BARE: Final = Run("neither", "fluidlite", "--extra two_phase=0")
_DURABLE: Final = Run("two phases and log", "fluidlite", "--extra log=1")
#: ids of a row's key, and of the index that finds it at two cells a key, in bytes; beside them its values
_KEY, _CELLS = 8, 8
_EMPTY: Final = "--batch 1 --steps 5 --warmup 1"
_MEMORY_STEPS: Final = 60
#: an op below this share of a step is among the others
_SHARE: Final = 0.01


def at_least(limit: float, *against: str, what: str = "", of: str = "fluidlite") -> Target:
    """A rate against the best of some others."""
    best = against[0] if len(against) == 1 else f"the best of {', '.join(against)}"
    return Target(what or f"against {best}", of, limit, against, at_most=False)


def local(name: str, title: str, options: str, runs: Sequence[Run], *targets: Target) -> Figure:
    """The CTR job in one process."""
    return Figure(name, f"{_JOB}, local, {title}", _RATE, opener(options, runs), targets, _LOCAL_STEPS, _WARMUP)


def served(name: str, title: str, options: str, runs: Sequence[Run], *targets: Target) -> Figure:
    """The CTR job with servers."""
    return Figure(name, f"{_JOB}, {title}", _RATE, opener(options, runs), targets, _PS_STEPS, _WARMUP)


@contextmanager
def open_memory(settings: Settings) -> Iterator[Sequence[Sample]]:
    """Peak memory of every system's trainer and server; of ours also what a server must hold: an empty one, and rows."""
    job = f"{_PS1} --sync async"
    full = command_of(Run("fluidlite", "fluidlite"), job, settings)
    empty = command_of(Run("fluidlite", "fluidlite", _EMPTY), job, settings)

    def ours() -> Values:
        line, bare = last_line("fluidlite", full, {}), last_line("fluidlite, empty", empty, {})
        alone = memory_values("empty", bare)["empty server MB"]
        rows = line["rows_held"] * (4 * line["dim"] + _KEY + _CELLS) / 2**20
        held = {"empty server MB": alone, "rows, keys, index MB": rows, _HELD: alone + rows}
        return {**memory_values("fluidlite", line), **held}

    others = tuple(Run(name, name, env=SMALL_POOL if name == "fluid" else {}) for name in ("numpy", *_PEERS))
    with opener(job, others, memory_values)(settings) as samples:
        yield [ours, *samples]


@contextmanager
def open_profile(settings: Settings) -> Iterator[Sequence[Sample]]:
    """Milliseconds of a step by type of op, from the executor's profile; the trace of the last local run is kept."""
    trace = f" --trace {settings.trace}" if settings.trace else ""
    runs = (Run("local", "fluidlite", f"--profile{trace}"), Run("trainer of 1 × 1", "fluidlite", f"--profile {_PS1}"))
    with opener("", runs, op_values)(settings) as samples:
        yield samples


def op_values(name: str, line: Mapping[str, Any]) -> Values:
    """By type of op, the most time first."""
    ops: Mapping[str, float] = line["breakdown"]
    least = _SHARE * sum(ops.values())
    shown = {f"{name}: {op}": ms for op, ms in ops.items() if ms >= least}
    return shown | {f"{name}: all others": sum(ms for ms in ops.values() if ms < least)}


_PEERS: Final = ("fluid", "torch", "tf", "paddle")
_READING: Final = ("fluidlite", "fluid", "paddle")
_READ: Final = tuple(f"{name}{how}" for name in _READING[1:] for how in ("", " QueueDataset"))
_HELD: Final = "empty server + rows, keys, index MB"
_BEST: Final = at_least(1.15, "fluid", "torch", "tf", "paddle", what="against the best peer")
_FLOOR: Final = at_least(1.15, "numpy", what="against hand-written numpy")
_FIRST_STEP: Final = Target("seconds to the first step", "fluidlite start-up s", 1.5)
_OTHERS: Final = at_least(1.15, "torch", "tf", "paddle", what="against the best other")


def _below(role: str) -> Target:
    peers = tuple(f"{name} {role} MB" for name in _PEERS)
    return Target(f"{role} against the smallest peer", f"fluidlite {role} MB", 1.0, peers)


FIGURES: Final = (
    local(
        "local-sgd",
        "sgd; `fluidlite dense`: the embedding as a dense parameter, as the peers hold it",
        "",
        (*runs_of("numpy", *_PEERS), _DENSE),
        _BEST,
        _FLOOR,
    ),
    local("local-adagrad", "Adagrad", "--optimizer adagrad", runs_of("numpy", *_PEERS), _BEST),
    local(
        "local-adam",
        "lazy Adam",
        "--optimizer adam",
        runs_of("fluid", "torch", "paddle"),
        at_least(1.15, "fluid", "torch", "paddle", what="against the best peer"),
    ),
    local(
        "local-26-inputs",
        "sgd, 26 inputs and look-ups, fed by arrays or from text by a QueueDataset",
        "--split-slots",
        (*runs_of("fluid", "paddle"), *(Run(f"{name} QueueDataset", name, "--feed dataset") for name in _READING)),
        *(
            at_least(1.3, *_READ, what=f"{how} against the better of feeds and QueueDataset", of=name)
            for how, name in (("by feeds", "fluidlite"), ("by QueueDataset", "fluidlite QueueDataset"))
        ),
    ),
    *(
        served(
            f"1x1-{mode}",
            f"1 pserver × 1 trainer, {mode} sgd; `dense on trainer`: as torch, which never sends its dense parameters",
            f"{_PS1} --sync {mode}",
            (*runs_of("numpy", "fluid", "torch"), _ON_TRAINER),
            at_least(limit, "fluid"),
            at_least(1.0, "torch"),
            at_least(1.15, "torch", what="dense on trainer against torch", of=_ON_TRAINER.name),
        )
        for mode, limit in (("sync", 2.0), ("async", 1.5))
    ),
    served(
        "2x2-sync",
        "2 pservers × 2 trainers, sync sgd",
        f"{_PS2} --sync sync",
        runs_of("numpy", "fluid", "torch"),
        at_least(2.0, "fluid"),
        at_least(1.15, "torch"),
        _FIRST_STEP,
    ),
    served(
        "2x2-async",
        "2 pservers × 2 trainers, async sgd",
        f"{_PS2} --sync async",
        runs_of("numpy", *_PEERS),
        at_least(1.5, "fluid"),
        _OTHERS,
        _FIRST_STEP,
    ),
    served(
        "geo",
        "2 pservers × 2 trainers, geo sgd: ten local steps, then an exchange; `table`: trainers fetch rows when they first "
        "use them, all others hold the whole embedding from the start",
        f"{_PS2} --sync geo",
        (
            Run("fluidlite", "fluidlite", "--extra dist=0"),
            Run("fluidlite table", "fluidlite"),
            Run("fluid", "fluid"),
        ),
        at_least(1.15, "fluid"),
    ),
    *(
        served(
            f"durable-{mode}",
            f"2 pservers × 2 trainers, {mode} sgd: what it costs that a step counts on all servers or on none, and that each "
            "writes it to a log before it answers",
            f"{_PS2} --sync {mode}",
            (_BARE, Run("two phases", "fluidlite"), _DURABLE),
            at_least(0.9, _BARE.name, what="two phases and log against neither", of=_DURABLE.name),
        )
        for mode in ("sync", "async")
    ),
    Figure(
        "memory",
        f"peak resident memory, {_JOB}, 1 pserver × 1 trainer, async sgd",
        "MB",
        open_memory,
        (
            Target("trainer against numpy's", "fluidlite trainer MB", 1.15, ("numpy trainer MB",)),
            Target("server against an empty one + rows, keys, index", "fluidlite server MB", 1.25, (_HELD,)),
            _below("trainer"),
            _below("server"),
        ),
        _MEMORY_STEPS,
        _WARMUP,
    ),
    Figure(
        "embed-local",
        "embedding job: pull + push of 10,000 unique rows of 1 M, local, by a whole program",
        "rows/s",
        opener(
            "--workload embed",
            (
                *(Run(f"fluidlite ({name})", "fluidlite", env={"FLUIDLITE_KERNELS": name}) for name in ("c", "numpy")),
                *runs_of("numpy", "fluid", "torch")[1:],
            ),
        ),
        (
            at_least(1.0, "numpy", what="C kernels against bare numpy without an index", of="fluidlite (c)"),
            at_least(0.8, "numpy", what="numpy kernels against the same", of="fluidlite (numpy)"),
        ),
        steps=800,
        warmup=50,
    ),
    Figure(
        "embed-1x1",
        "embedding job, 1 pserver × 1 trainer, sync",
        "rows/s",
        opener(f"--workload embed {_PS1} --sync sync", runs_of("numpy", "fluid", "torch")),
        (at_least(1.5, "torch"),),
        steps=200,
        warmup=30,
    ),
    Figure(
        "op-profile",
        "a step by type of op, as the executor's profile has it (which adds some µs per op)",
        "ms",
        open_profile,
        steps=50,
        warmup=_WARMUP,
    ),
)
