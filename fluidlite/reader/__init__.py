"""Readers: Fluid's decorators, parsers of text, and reading ahead by threads and processes."""

from __future__ import annotations

from fluidlite.reader.criteo import criteo_reader
from fluidlite.reader.decorators import (
    ComposeNotAligned,
    batch,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    multiprocess_reader,
    shuffle,
    xmap_readers,
)

__all__ = [
    "ComposeNotAligned",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "criteo_reader",
    "firstn",
    "map_readers",
    "multiprocess_reader",
    "shuffle",
    "xmap_readers",
]
