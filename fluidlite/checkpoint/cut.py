"""Cut: what one server is between two steps. Plain data, but for the snapshots of its tables, which are read later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fluidlite.dtypes import Array
from fluidlite.values.lod import LoDTensor
from fluidlite.values.row_snapshot import RowSnapshot
from fluidlite.values.selected_rows import SelectedRows


class PieceOf(NamedTuple):
    """A server's variable is rows ``first_row`` and following of ``origin``, a variable of the whole model; or all of it
    where ``first_row`` is None."""

    origin: str
    first_row: int | None = None


@dataclass(frozen=True)
class Cut:
    """Checkpoint ``number`` of one server, after ``version`` steps. ``id`` is random: what tables call this moment, and
    part of the names of the files.

    ``dense``: copies of arrays by name. ``rows``: rows that belong to no table yet. ``pieces``: which of these are pieces
    of something larger; others are whole. ``extra``: whatever else must be remembered, as JSON has it.
    """

    number: int
    id: str
    version: int
    dense: Mapping[str, Array | LoDTensor]
    tables: tuple[RowSnapshot, ...]
    rows: Mapping[str, SelectedRows] = field(default_factory=dict)
    pieces: Mapping[str, PieceOf] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def close(self) -> None:
        """Read no more of the tables. Idempotent."""
        for table in self.tables:
            table.close()
