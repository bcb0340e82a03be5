"""Figures of whole jobs: the CTR job and the embedding job by fluidlite and by every peer that is there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.data import data_file
from benchmarks.environment import REPO, benchmark_environment
from benchmarks.figures import Figure, Sample, SampleError, Settings, Target, Values
from benchmarks.fluidlite_ctr import MODULE

_TIMEOUT: Final = 600.0
#: without them page faults dominate the hand-written job
_MALLOC: Final = {
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "268435456",
}
_SCRIPTS: Final = {"numpy": "numpy_ctr.py", "fluid": "fluid18_ctr.py", "torch": "torch_ctr.py"}
_ALL: Final = ("numpy", "fluid", "torch")


def opener(
    options: str, peers: Sequence[str] = _ALL, variants: Mapping[str, str] | None = None
) -> Callable[[Settings], AbstractContextManager[Sequence[Sample]]]:
    """How a job's figure begins. ``variants``: more runs of fluidlite or a peer, by name, with further options."""

    @contextmanager
    def open_job(settings: Settings) -> Iterator[Sequence[Sample]]:
        words = [*options.split(), "--steps", str(settings.steps), "--warmup", str(settings.warmup)]
        if "embed" not in options:
            words += ["--data", str(settings.data or data_file())]
        runs = {"fluidlite": ""} | dict.fromkeys(peers, "") | dict(variants or {})
        commands = {name: command_of(name.split()[0], settings) for name in runs}
        yield [sampler(name, [*command, *words, *runs[name].split()]) for name, command in commands.items() if command]

    return open_job


def command_of(system: str, settings: Settings) -> list[str]:
    """How to run a system's script; empty when it is not here."""
    if system == "fluidlite":
        return [sys.executable, "-m", MODULE]
    pythons = {"numpy": sys.executable, "fluid": settings.fluid_python, "torch": settings.torch_python}
    if settings.peers is None or not pythons[system]:
        return []
    return [pythons[system], str(settings.peers / _SCRIPTS[system])]


def sampler(name: str, command: Sequence[str]) -> Sample:
    """Runs a script once; units of work per second, and for the report memory and time to the first step."""
    extra = _MALLOC if name == "numpy" else {}

    def sample() -> Values:
        line = last_line(name, command, extra)
        memory: dict[str, float] = line.get("peak_rss_mb", {})
        values = {name: float(line["per_s"])}
        roles = {"trainer": "trainer", "server": "pserver"}
        sizes = {role: [mb for child, mb in memory.items() if child.startswith(start)] for role, start in roles.items()}
        values |= {f"{name} {role} MB": max(found) for role, found in sizes.items() if found}
        return values | {f"{name} start-up s": float(line["startup_s"])}

    return sample


def last_line(name: str, command: Sequence[str], extra: Mapping[str, str]) -> dict[str, Any]:
    """What a script reports; SampleError when the job failed."""
    env = benchmark_environment(extra=extra)
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=REPO, env=env, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SampleError(f"{name}: {type(error).__name__}") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    line: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if not line.get("ok"):
        raise SampleError(f"{name}: the job failed ({line.get('rcs', Path(command[0]).name)})")
    return line


def at_least(limit: float, *against: str, what: str = "", of: str = "fluidlite") -> Target:
    """fluidlite's rate against the best of some peers."""
    best = against[0] if len(against) == 1 else f"the best of {', '.join(against)}"
    return Target(what or f"against {best}", of, limit, against, at_most=False)


_PS1: Final = "--mode ps --servers 1 --trainers 1"
_PS2: Final = "--mode ps --servers 2 --trainers 2"
_RATE: Final = "examples/s"
_JOB: Final = "CTR job (26 slots × 16, 1 M ids Zipf, 13 numbers, 400-400-1, batch 512)"
_DENSE: Final = "fluidlite dense"
_FIRST_STEP: Final = Target("seconds to the first step", "fluidlite start-up s", 1.5)
_MEMORY: Final = Target("trainer's memory against numpy's", "fluidlite trainer MB", 1.15, ("numpy trainer MB",))
_AS_PARAMETER: Final = {_DENSE: "--extra dist=0"}

FIGURES: Final = (
    Figure(
        "local-sgd",
        f"{_JOB}, local, sgd; `fluidlite dense`: the embedding as a dense parameter, as the peers hold it",
        _RATE,
        opener("", variants=_AS_PARAMETER),
        (at_least(1.15, *_ALL), at_least(1.15, *_ALL, what="as a dense parameter, against the same", of=_DENSE)),
    ),
    Figure("local-adagrad", f"{_JOB}, local, Adagrad", _RATE, opener("--optimizer adagrad"), (at_least(1.15, *_ALL),)),
    Figure(
        "local-adam",
        f"{_JOB}, local, lazy Adam",
        _RATE,
        opener("--optimizer adam", peers=("fluid", "torch")),
        (at_least(1.15, "fluid", "torch"),),
    ),
    Figure(
        "local-26-inputs",
        f"{_JOB}, local, sgd, 26 inputs and look-ups",
        _RATE,
        opener("--split-slots", ("fluid",), {"fluid QueueDataset": "--feed dataset"}),
        (at_least(1.3, "fluid", "fluid QueueDataset"),),
    ),
    Figure(
        "1x1-sync",
        f"{_JOB}, 1 pserver × 1 trainer, sync sgd",
        _RATE,
        opener(f"{_PS1} --sync sync"),
        (at_least(2.0, "fluid"), at_least(1.0, "torch"), at_least(1.0, "numpy"), _MEMORY),
    ),
    Figure(
        "1x1-async",
        f"{_JOB}, 1 pserver × 1 trainer, async sgd",
        _RATE,
        opener(f"{_PS1} --sync async"),
        (at_least(1.5, "fluid"), at_least(1.0, "torch"), at_least(1.0, "numpy"), _MEMORY),
    ),
    Figure(
        "2x2-sync",
        f"{_JOB}, 2 pservers × 2 trainers, sync sgd",
        _RATE,
        opener(f"{_PS2} --sync sync"),
        (at_least(2.0, "fluid"), at_least(1.15, "torch"), _FIRST_STEP),
    ),
    Figure(
        "2x2-async",
        f"{_JOB}, 2 pservers × 2 trainers, async sgd",
        _RATE,
        opener(f"{_PS2} --sync async"),
        (at_least(1.5, "fluid"), at_least(1.15, "torch"), _FIRST_STEP),
    ),
    Figure(
        "embed-local",
        "embedding job: pull + push of 10,000 unique rows of 1 M, local, by a whole program",
        "rows/s",
        opener("--workload embed"),
        (at_least(1.0, "numpy", what="against bare numpy without an index"), at_least(1.0, "fluid")),
    ),
    Figure(
        "embed-1x1",
        "embedding job, 1 pserver × 1 trainer, sync",
        "rows/s",
        opener(f"--workload embed {_PS1} --sync sync"),
        (at_least(1.5, "torch"), at_least(1.0, "fluid"), at_least(1.0, "numpy")),
    ),
)
