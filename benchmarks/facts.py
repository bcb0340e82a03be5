"""What figures depend on: code, machine, versions, and how much else the machine had to do."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from benchmarks.environment import REPO
from benchmarks.figures import Settings

_PACKAGES: Final = ("fluidlite", "numpy", "grpcio", "protobuf")
#: by peer, the package whose version counts
_PEERS: Final = {"fluid": "paddlepaddle", "torch": "torch", "tf": "tensorflow-cpu", "paddle": "paddlepaddle"}
_VERSION: Final = """
import sys
try:
    from importlib.metadata import version
except ImportError:  # before Python 3.8
    from pkg_resources import get_distribution
    version = lambda name: get_distribution(name).version
print(version(sys.argv[1]))
"""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def facts(settings: Settings) -> dict[str, str]:
    """What is the same for all figures of a run; nothing that says whose machine it is."""
    found = {"commit": commit(), "kernels": kernels(), "fusion passes": fusions()}
    found |= {"cores": str(os.cpu_count()), "processor": _field("/proc/cpuinfo", "model name") or "unknown"}
    found |= {"memory": _memory(), "system": f"{platform.system()} {platform.machine()}"}
    found |= {"python": platform.python_version(), "numpy BLAS": _blas(), "scale": f"{settings.scale:g}"}
    found |= {name: metadata.version(name) for name in _PACKAGES}
    return found | {name: peer_version(name, python) for name, python in settings.pythons.items() if python}


def commit() -> str:
    """`git describe` of the code that is measured; ``-dirty``: with changes that are in no commit."""
    return _answer("git", "-C", str(REPO), "describe", "--always", "--dirty", "--abbrev=9") or "unknown"


def kernels() -> str:
    """Which inner loops run where a figure does not say, and why."""
    from fluidlite.kernels import choice

    return f"{choice.NAME} ({choice.REASON})"


def fusions() -> str:
    """Fusion passes that executors run here."""
    from fluidlite.fusion import describe

    return describe()


def peer_version(peer: str, python: str) -> str:
    """Version of a peer's package in its environment."""
    return _answer(python, "-W", "ignore", "-c", _VERSION, _PEERS[peer]) or "unknown"


class Watch:
    """What a stretch of time was like: when, how long, and how busy others kept the machine meanwhile."""

    def __init__(self) -> None:
        self._clock, self._load = time.perf_counter(), _load()
        self._machine, self._own = _machine_seconds(), _own_seconds()

    def facts(self) -> dict[str, str]:
        """Since the start. ``others' cores``: computing time of all processes but these; ``stolen cores``: what the
        host gave to other machines. Children count when they have ended."""
        seconds = time.perf_counter() - self._clock
        found = {"ended": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "seconds": f"{seconds:.0f}"}
        found |= {"load": f"{self._load}..{_load()}"}
        now = _machine_seconds()
        if now and self._machine and seconds:
            busy, stolen = (new - old for new, old in zip(now, self._machine, strict=True))
            others = max(0.0, busy - (_own_seconds() - self._own))
            found |= {"others' cores": f"{others / seconds:.2f}", "stolen cores": f"{stolen / seconds:.2f}"}
        return found


def figure_facts(settings: Settings) -> dict[str, str]:
    """What may differ from figure to figure."""
    return {"rounds": str(settings.rounds), "steps": f"{settings.steps} after {settings.warmup}"}


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def _own_seconds() -> float:
    return sum(os.times()[:4])


def _machine_seconds() -> tuple[float, float] | None:
    """(busy, stolen) seconds of all cores since the machine started; None where the system does not say."""
    fields = _field("/proc/stat", "cpu ", separator=" ").split()
    if len(fields) < 8:
        return None
    user, nice, system, _, _, irq, softirq, stolen = (int(field) / _TICKS for field in fields[:8])
    return user + nice + system + irq + softirq, stolen


def _memory() -> str:
    total = _field("/proc/meminfo", "MemTotal")
    return f"{int(total.split()[0]) / 2**20:.0f} GB" if total else "unknown"


def _field(path: str, name: str, separator: str = ":") -> str:
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    return next((line.partition(separator)[2].strip() for line in lines if line.startswith(name)), "")


def _blas() -> str:
    import numpy as np

    config: Any = np.show_config(mode="dicts")
    blas: Mapping[str, str] = config["Build Dependencies"]["blas"]
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def _answer(*command: str) -> str:
    """The last line that a command prints; empty when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().rpartition("\n")[2]
