"""What every benchmark process has in common, and what the machine is. Imports no numpy: settings must come first."""

from __future__ import annotations

import os
import platform
import resource
import tempfile
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

REPO: Final = Path(__file__).resolve().parent.parent
_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
#: a machine may set these to make results equal elsewhere; they choose slower kernels
_UNSET: Final = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
_PACKAGES: Final = ("fluidlite", "numpy", "grpcio", "protobuf")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def benchmark_environment(threads: int = 1, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a benchmark process: ``threads`` per process (0: as many as the libraries like)."""
    env = {name: value for name, value in os.environ.items() if name not in (*_UNSET, *_THREADS)}
    if threads:
        env |= dict.fromkeys(_THREADS, str(threads))
    return env | dict(extra or {})


def prepare(threads: int = 1) -> None:
    """Give this process the environment of a benchmark. Before numpy is imported, or it has no effect."""
    env = benchmark_environment(threads)
    for name in (*_UNSET, *_THREADS):
        os.environ.pop(name, None)
    os.environ.update(env)


def data_folder() -> Path:
    """Where data sets and logs of runs lie: ``BENCH_DATA``, shared with the peers' scripts."""
    return Path(os.environ.get("BENCH_DATA") or Path(tempfile.gettempdir()) / "bench_data")


def peers_folder() -> Path | None:
    """The scripts that run other systems on the same job: ``BENCH_PEERS_SCRIPTS``, else beside the repository."""
    folder = Path(os.environ.get("BENCH_PEERS_SCRIPTS") or REPO.parent / "shared" / "bench")
    return folder if (folder / "common.py").is_file() else None


def peak_mb(pid: int | str = "self") -> float | None:
    """Peak resident memory of a process; None when it is gone or the system does not say.

    Not ``ru_maxrss``: that one starts with the size of the parent.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return usage if pid == "self" else None
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(sizes[0]) / 1024 if sizes else None


def cpu_seconds(pid: int) -> tuple[float, float] | None:
    """(user, system) seconds of a process, all its threads; None when it is gone or the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[11]) / _TICKS, int(fields[12]) / _TICKS


def machine() -> dict[str, str]:
    """What figures depend on; nothing that says whose machine it is."""
    facts = {"date": time.strftime("%Y-%m-%d"), "cores": str(os.cpu_count()), "processor": _processor()}
    facts |= {"memory": _memory(), "system": f"{platform.system()} {platform.machine()}"}
    facts |= {"load at start": " ".join(f"{load:.1f}" for load in os.getloadavg())}
    facts |= {"python": platform.python_version(), "numpy BLAS": _blas()}
    return facts | {name: metadata.version(name) for name in _PACKAGES}


def _processor() -> str:
    return _field("/proc/cpuinfo", "model name") or platform.processor() or "unknown"


def _memory() -> str:
    total = _field("/proc/meminfo", "MemTotal")
    return f"{int(total.split()[0]) / 2**20:.0f} GB" if total else "unknown"


def _field(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _blas() -> str:
    import numpy as np

    config: Any = np.show_config(mode="dicts")
    blas = config["Build Dependencies"]["blas"]
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()
