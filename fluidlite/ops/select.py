"""Elements chosen or placed: where, multiplex, pad, reverse."""

from __future__ import annotations

from itertools import batched_pairs
