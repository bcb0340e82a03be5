"""The program as data, its written forms, its invariants and its dataflow."""

from __future__ import annotations

from fluidlite.errors import EOFException

__all__ = ["EOFException"]
