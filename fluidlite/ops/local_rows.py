"""Ops of a trainer that trains rows by itself (geo): which to fetch, and the exchange of gains with their servers."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

from fluidlite.core import names
from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.ids import NO_PADDING, argument, flat_ids, out_of_range, outside, sections_of
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import AttrSpec, long_attr, longs_attr, register
from fluidlite.values.local_matrix import LocalMatrix
from fluidlite.values.local_rows import LocalRows
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sharding import by_shard
from fluidlite.values.sparse_table import SparseTable


def local_rows(ctx: KernelContext, W: Any) -> LocalRows | LocalMatrix:
    if isinstance(W, SparseTable):
        return LocalRows(W)
    if isinstance(W, np.ndarray) and W.ndim == _MATRIX:
        return LocalMatrix(W)
    raise ProgramError(f"op {ctx.op.type!r}: {argument(ctx, 'W')!r} is neither a table nor a matrix")


def touch_rows(
    ctx: KernelContext, Ids: list[Array], Rows: LocalRows | LocalMatrix, *, padding_idx: int
) -> dict[str, Any]:
    height = Rows.height if isinstance(Rows, LocalMatrix) else None
    parts = [_checked(ctx, ids, index, padding_idx, height) for index, ids in enumerate(Ids)]
    ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if isinstance(Rows, LocalMatrix):
        Rows.touch(ids)
        return {"RowsOut": Rows}
    return {"Out": _by_server(ctx, Rows.touch(ids), ()), "RowsOut": Rows}


def insert_rows(ctx: KernelContext, X: list[SelectedRows], Rows: LocalRows, W: SparseTable) -> dict[str, Any]:
    for rows in X:
        if len(rows.rows):
            Rows.insert(rows)
    return {"WOut": W, "RowsOut": Rows}


def rows_to_exchange(
    ctx: KernelContext, Rows: LocalRows | LocalMatrix, W: Any, Last: Array, *, height_sections: tuple[int, ...]
) -> dict[str, Any]:
    last = bool(Last.reshape(-1)[0])
    ids = Rows.begin(W, last) if isinstance(Rows, LocalMatrix) else Rows.begin(last)
    return {"Out": _by_server(ctx, ids, height_sections), "RowsOut": Rows}


def exchange_rows(
    ctx: KernelContext,
    X: list[SelectedRows],
    Rows: LocalRows | LocalMatrix,
    W: Any,
    Share: Array,
    *,
    height_sections: tuple[int, ...],
) -> dict[str, Any]:
    share = float(Share.reshape(-1)[0])
    starts = np.cumsum((0, *height_sections))
    if isinstance(Rows, LocalMatrix) and not W.flags.writeable:
        W = W.copy()
    deltas = []
    for server, fresh in enumerate(X):
        delta = Rows.exchange(W, fresh, share) if isinstance(Rows, LocalMatrix) else Rows.exchange(fresh, share)
        if height_sections:
            delta = SelectedRows(delta.rows - starts[server], delta.value, height_sections[server])
        deltas.append(delta)
    return {"Out": deltas, "WOut": W, "RowsOut": Rows}


def rows_sent(ctx: KernelContext, Rows: LocalRows | LocalMatrix) -> LocalRows | LocalMatrix:
    Rows.sent()
    return Rows


def _checked(ctx: KernelContext, value: Array, index: int, padding_idx: int, height: int | None) -> Array:
    """The ids of one input without padding; of a matrix they must be among its rows."""
    ids = flat_ids(ctx, value, "Ids", index)
    counted = ids if padding_idx == NO_PADDING else ids[ids != padding_idx]
    wrong = counted[:0] if height is None else outside(counted, height)
    if height is not None and len(wrong):
        id, whole = int(counted[wrong[0]]), names.geo_owner(argument(ctx, "Rows"))
        raise out_of_range(ctx, argument(ctx, "Ids", index), int(np.argmax(ids == id)), id, whole, height)
    return counted


def _by_server(ctx: KernelContext, ids: Array, sections: tuple[int, ...]) -> list[Array]:
    """Ids (n,) as [k, 1] for each server, in the order in which they are."""
    servers = ctx.n_outputs("Out")
    if sections:
        at, _ = sections_of(ids, sections)
        return [ids[at == server].reshape(-1, 1) for server in range(servers)]
    if servers == 1:
        return [ids.reshape(-1, 1)]
    order, _, counts = by_shard(ids, servers)
    routed = ids[order].reshape(-1, 1)
    return [routed[start:end] for start, end in pairwise((0, *accumulate(counts.tolist())))]


def _infer_ids(ctx: InferContext) -> None:
    for out in ctx.outputs("Out"):
        out.shape, out.dtype = (-1, 1), "int64"


def _infer_rows(ctx: InferContext) -> None:
    for out in ctx.outputs("Out"):
        out.kind = VarKind.SELECTED_ROWS


_MATRIX: Final = 2
_SECTIONS: Final[dict[str, AttrSpec]] = {
    "height_sections": longs_attr(doc="rows per server of a matrix cut by rows; empty: by modulo")
}

register(
    "local_rows",
    doc="Out: the bookkeeping of a trainer's own copies of rows, which are to lie in the empty table W, or are all in the matrix "
    "W, as the servers have them.",
    inputs=["W"],
    outputs=["Out"],
    kernel=local_rows,
    sparse=("W",),
)
register(
    "touch_rows",
    doc="The rows that Ids name are about to be used. Out[k] [m, 1]: those of server k that are not here yet, each once, for "
    "`prefetch`; of a matrix none.",
    inputs=["Ids*", "Rows"],
    outputs=["Out*", "RowsOut"],
    attrs={"padding_idx": long_attr(NO_PADDING, "an id that is not fetched; -1: none")},
    infer=_infer_ids,
    kernel=touch_rows,
    inplace={"RowsOut": "Rows"},
)
register(
    "insert_rows",
    doc="X: rows that were missing in W, as their servers have them.",
    inputs=["X*", "Rows", "W"],
    outputs=["WOut", "RowsOut"],
    kernel=insert_rows,
    sparse=("X", "W"),
    inplace={"WOut": "W", "RowsOut": "Rows"},
)
register(
    "rows_to_exchange",
    doc="Out[k] [n, 1]: the rows of server k that were touched since `rows_sent`; where Last is true, all that gained anything.",
    inputs=["Rows", "W", "Last"],
    outputs=["Out*", "RowsOut"],
    attrs=_SECTIONS,
    infer=_infer_ids,
    kernel=rows_to_exchange,
    sparse=("W",),
    inplace={"RowsOut": "Rows"},
)
register(
    "exchange_rows",
    doc="X[k]: rows as server k has them. What others changed since the last exchange is added to the local rows in W. Out[k]: "
    "what these gained since then, times the one number of Share, for `send`.",
    inputs=["X*", "Rows", "W", "Share"],
    outputs=["Out*", "WOut", "RowsOut"],
    attrs=_SECTIONS,
    infer=_infer_rows,
    kernel=exchange_rows,
    sparse=("X", "W"),
    inplace={"WOut": "W", "RowsOut": "Rows"},
)
register(
    "rows_sent",
    doc="The servers took what `exchange_rows` gave. Without it the next exchange sends that again, so it keeps its place "
    "between the commit and what comes after.",
    inputs=["Rows"],
    outputs=["RowsOut"],
    kernel=rows_sent,
    inplace={"RowsOut": "Rows"},
    side_effect=True,
)
