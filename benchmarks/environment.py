"""What every benchmark process has in common. Imports no numpy: settings must come first."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

REPO: Final = Path(__file__).resolve().parent.parent
_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
#: a machine may set these to make results equal elsewhere, where they choose slower kernels, or to keep folders clean,
#: where every process compiles all modules anew
_UNSET: Final = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONDONTWRITEBYTECODE")
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
    folder = Path(os.environ.get("BENCH_PEERS_SCRIPTS") or REPO.parent / "shared" / "bench").absolute()
    return folder if (folder / "common.py").is_file() else None


def is_amd() -> bool:
    """Whether the processor is AMD's, which older MKLs slow down."""
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="ascii")
    except OSError:
        return False


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
