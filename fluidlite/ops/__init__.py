"""The operators. Every module here declares one op or one tight family; importing the package loads them all."""

from __future__ import annotations

import importlib
import pkgutil


def _load() -> None:
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")


_load()
