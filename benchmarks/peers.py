"""Runs of whole jobs: the scripts of fluidlite and of its peers, each with the settings that serve it best."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.data import data_file
from benchmarks.environment import REPO, benchmark_environment, is_amd
from benchmarks.figures import Opener, Sample, SampleError, Settings, Values
from benchmarks.fluidlite_ctr import MODULE

_TIMEOUT: Final = 240.0
#: without them page faults dominate the hand-written job; Fluid and PyTorch gain nothing by them
_MALLOC: Final = {
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "268435456",
}
#: Fluid's mklml (2019) takes its slow path on processors by others than Intel; this doubles its speed there. The newer
#: MKL in PyTorch ignores it.
_MKL: Final = {"MKL_DEBUG_CPU_TYPE": "5"} if is_amd() else {}
#: Fluid reserves about 430 MB at start; this leaves it, at some cost in speed, what it needs
SMALL_POOL: Final = {"FLAGS_initial_cpu_memory_in_mb": "20", "FLAGS_fraction_of_cpu_memory_to_use": "0"}


@dataclass(frozen=True)
class Peer:
    """How another system runs the job. ``local``: more options of a run without servers."""

    script: str
    env: Mapping[str, str] = field(default_factory=dict)
    local: str = ""


PEERS: Final = {
    "numpy": Peer("numpy_ctr.py", _MALLOC),
    "fluid": Peer("fluid18_ctr.py", _MKL),
    "torch": Peer("torch_ctr.py"),
    "tf": Peer("tf_ctr.py"),
    "paddle": Peer("paddle_ctr.py", _MKL, "--extra pir=0"),
}


@dataclass(frozen=True)
class Run:
    """One system's run in a figure. ``system`` is ``fluidlite`` or a peer, ``options`` are its own beside the job's."""

    name: str
    system: str
    options: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


def peer_settings() -> dict[str, str]:
    """What the page says of the environments of peers."""
    named = {name: peer.env for name, peer in PEERS.items()} | {"fluid where memory counts": SMALL_POOL}
    return {f"settings of {name}": " ".join(f"{k}={v}" for k, v in env.items()) for name, env in named.items() if env}


def runs_of(*names: str) -> tuple[Run, ...]:
    """fluidlite as it is, and peers."""
    return tuple(Run(name, name) for name in ("fluidlite", *names))


def opener(
    options: str, runs: Sequence[Run], values: Callable[[str, Mapping[str, Any]], Values] | None = None
) -> Opener:
    """How a job's figure begins. ``values(name, line)``: what counts in a script's report; by default rate, memory and
    time to the first step."""

    @contextmanager
    def open_job(settings: Settings) -> Iterator[Sequence[Sample]]:
        present = [run for run in runs if command_of(run, options, settings)]
        yield [sampler(run, command_of(run, options, settings), values or usual_values) for run in present]

    return open_job


def command_of(run: Run, options: str, settings: Settings) -> list[str]:
    """How to run a system's script; empty when it is not here."""
    words = [*options.split(), "--warmup", str(settings.warmup)]
    words += ["--steps", str(settings.steps * _shared_steps(run.system, options))]
    if "embed" not in options:
        words += ["--data", str(settings.data or data_file())]
    words += run.options.split()  # the last word counts
    if run.system == "fluidlite":
        return [sys.executable, "-m", MODULE, *words]
    peer = PEERS[run.system]
    python = sys.executable if run.system == "numpy" else settings.pythons.get(run.system, "")
    if settings.peers is None or not python:
        return []
    return [python, str(settings.peers / peer.script), *words, *([] if "--mode ps" in options else peer.local.split())]


def _shared_steps(system: str, options: str) -> int:
    """tf's coordinator hands out the steps of all workers: for as much work as the others it needs as many for each."""
    words = options.split()
    return int(words[words.index("--trainers") + 1]) if system == "tf" and "--trainers" in words else 1


def sampler(run: Run, command: Sequence[str], values: Callable[[str, Mapping[str, Any]], Values]) -> Sample:
    """Runs a script once."""
    env = {**(PEERS[run.system].env if run.system in PEERS else {}), **run.env}
    return lambda: values(run.name, last_line(run.name, command, env))


def usual_values(name: str, line: Mapping[str, Any]) -> Values:
    """Units of work per second, and for the page memory and time to the first step."""
    return {name: float(line["per_s"]), **memory_values(name, line), f"{name} start-up s": float(line["startup_s"])}


def memory_values(name: str, line: Mapping[str, Any]) -> Values:
    """Peak resident MB of the largest trainer and of the largest server."""
    memory: Mapping[str, float] = line.get("peak_rss_mb", {})
    worker = "worker" if any(child.startswith("worker") for child in memory) else "trainer"  # tf: a trainer schedules
    roles = {"trainer": worker, "server": "pserver"}
    sizes = {role: [mb for child, mb in memory.items() if child.startswith(start)] for role, start in roles.items()}
    return {f"{name} {role} MB": max(found) for role, found in sizes.items() if found}


def last_line(name: str, command: Sequence[str], extra: Mapping[str, str]) -> dict[str, Any]:
    """What a script reports; SampleError when the job failed."""
    lines = [line for line in output_of(name, command, extra).splitlines() if line.startswith("{")]
    line: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if not line.get("ok"):
        raise SampleError(f"{name}: the job failed ({line.get('rcs', Path(command[0]).name)})")
    return line


def output_of(name: str, command: Sequence[str], extra: Mapping[str, str]) -> str:
    """What a script prints. It and all that it started end with it. Peers leave files where they run: in no folder of ours."""
    with tempfile.TemporaryDirectory() as scratch:
        return _output_in(REPO if MODULE in command else Path(scratch), name, command, extra)


def _output_in(folder: Path, name: str, command: Sequence[str], extra: Mapping[str, str]) -> str:
    env, pipe = benchmark_environment(extra=extra), subprocess.PIPE
    try:
        started = subprocess.Popen(  # noqa: S603
            command, cwd=folder, env=env, stdout=pipe, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
    except OSError as error:
        raise SampleError(f"{name}: {type(error).__name__}") from error
    with started as process:
        try:
            return process.communicate(timeout=_TIMEOUT)[0]
        except subprocess.TimeoutExpired as error:
            raise SampleError(f"{name}: not done in {_TIMEOUT:.0f} s") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
