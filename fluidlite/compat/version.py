"""The version of Fluid that scripts are told they run on."""

from __future__ import annotations

from typing import Final

from fluidlite.framework.versions import FLUID

full_version: Final = FLUID
major, minor, patch = full_version.split(".")
rc = "0"
istaged = True
commit = "fluidlite"
with_mkl = "OFF"


def show() -> None:
    """Print the version."""
    print("full_version:", full_version)


def mkl() -> str:
    """Whether MKL is used: "OFF"."""
    return with_mkl
