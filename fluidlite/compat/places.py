"""Places of Fluid that are no CPU: accepted, and everything runs on the CPU, which one warning says."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Final

from fluidlite.executor import CPUPlace, cpu_places

_told: Final[list[str]] = []


def tell_once(what: str) -> None:
    """Warn that there is no GPU, once per process, whichever name asked for one."""
    if not _told:
        _told.append(what)
        warnings.warn(f"{what}: fluidlite has no GPU; everything runs on the CPU", UserWarning, stacklevel=3)


class CUDAPlace(CPUPlace):
    """A GPU of Fluid's scripts; the CPU here."""

    def __init__(self, device: int = 0) -> None:
        tell_once(f"CUDAPlace({device})")

    def __repr__(self) -> str:
        return "CUDAPlace on the CPU"


class CUDAPinnedPlace(CPUPlace):
    """Memory that GPUs read of Fluid's scripts; any memory here."""

    def __init__(self) -> None:
        tell_once("CUDAPinnedPlace()")


def is_compiled_with_cuda() -> bool:
    """False."""
    return False


def get_cuda_device_count() -> int:
    """0."""
    return 0


def cuda_places(device_ids: Sequence[int] | None = None) -> list[CUDAPlace]:
    """One place per id; by default those of the environment variable FLAGS_selected_gpus, else one."""
    if device_ids is None:
        chosen = os.environ.get("FLAGS_selected_gpus", "0")  # noqa: SIM112 (Fluid's name)
        device_ids = [int(item) for item in chosen.split(",") if item]
    return [CUDAPlace(index) for index in device_ids]


def cuda_pinned_places(device_count: int | None = None) -> list[CUDAPinnedPlace]:
    """``device_count`` places, by default as `cpu_places`."""
    return [CUDAPinnedPlace() for _ in cpu_places(device_count)]
