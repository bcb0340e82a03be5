"""What scripts ask of the version of Fluid that they run on, and of devices."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fluidlite.errors import FluidliteError, ProgramError
from fluidlite.framework.state import state

#: the version of Fluid whose programs, names and files these are
FLUID: Final = "1.8.5"
_VERSION: Final = re.compile(r"\d+(\.\d+){0,3}")


class VersionError(FluidliteError):
    """A script asks for another version of Fluid."""


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Raise VersionError unless ``min_version`` <= 1.8.5 <= ``max_version``; ProgramError for what is no version.

    Versions have one to four numbers, missing ones are 0.
    """
    present = _numbers(FLUID)
    if present < _numbers(min_version) or (max_version is not None and present > _numbers(max_version)):
        wanted = f"{min_version} or higher" if max_version is None else f"from {min_version} to {max_version}"
        raise VersionError(f"Fluid {wanted} is required; this is {FLUID}")


def _numbers(version: str) -> tuple[int, ...]:
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise ProgramError(f"{version!r} is no version like '1.8' or '1.8.5.0'")
    numbers = tuple(map(int, version.split(".")))
    return numbers + (0,) * (4 - len(numbers))


@contextmanager
def device_guard(device: str | None = None) -> Iterator[None]:
    """Ops appended inside the ``with`` carry ``op_device`` "cpu" or "gpu", which changes nothing here.

    Raises ProgramError for another device.
    """
    if device not in ("cpu", "gpu", "", None):
        raise ProgramError(f"device_guard: device must be 'cpu', 'gpu' or None, not {device!r}")
    before = state.device
    state.device = device or ""
    try:
        yield
    finally:
        state.device = before


def cpu_count() -> int:
    """How many devices a script for several counts on: what the environment variable CPU_NUM says, else one.

    Raises ProgramError where it says no positive number.
    """
    text = os.environ.get("CPU_NUM", "1")
    if not text.isdecimal() or not int(text):
        raise ProgramError(f"the environment variable CPU_NUM must be a positive number, not {text!r}")
    return int(text)
