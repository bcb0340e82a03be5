"""`lookup_sparse_table`: the lookup that runs on a server; it makes the rows of ids that it has not seen."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import TableError
from fluidlite.kernels import find_ids
from fluidlite.ops.context import KernelContext
from fluidlite.ops.ids import NO_PADDING, argument, flat_ids
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, bool_attr, long_attr, register
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable


def lookup_sparse_table(ctx: KernelContext, W: SparseTable | SelectedRows, Ids: Array, *, is_test: bool) -> Array:
    ids = flat_ids(ctx, Ids)
    if isinstance(W, SparseTable):
        return W.lookup(ids, read_only=is_test)
    rows = find_ids(W.rows, ids)
    if not is_test and (rows < 0).any():
        _grow(ctx, W, ids[rows < 0])
        rows = find_ids(W.rows, ids)
    out = np.zeros((len(ids), *W.value.shape[1:]), W.value.dtype)
    known = rows >= 0
    out[known] = W.value[rows[known]]
    return out


def _grow(ctx: KernelContext, table: SelectedRows, ids: Array) -> None:
    """Give new ids the next free rows of the value, in the order in which they come."""
    unique, first = np.unique(ids, return_index=True)
    new = unique[np.argsort(first)]
    free = len(table.value) - len(table.rows)
    if len(new) > free:
        raise TableError(
            f"op {ctx.op.type!r}: {argument(ctx, 'W')!r} is full: {len(new)} new ids, the first {new[0]}, but {free} of "
            f"{len(table.value)} rows are free"
        )
    table.rows = np.concatenate([table.rows, new])


def _infer(ctx: InferContext) -> None:
    w, ids = ctx.input("W"), ctx.shape("Ids")
    count = ids[0] if ids[1:] in {(), (1,)} else -1
    ctx.set("Out", (count, ctx.shape("W")[-1]), w.dtype)


register(
    "lookup_sparse_table",
    doc="Rows of table W by Ids int64, duplicates allowed: Out [n, width]. A new id gets a row: a SparseTable makes it from "
    "seed, name and id; SelectedRows give the next free row of their value. With `is_test` unknown ids read zeros and "
    "nothing grows. `auto_grown_table` and `padding_idx` change nothing, as in Fluid.",
    inputs=["W", "Ids"],
    outputs=["Out"],
    attrs={
        "padding_idx": long_attr(NO_PADDING),
        "auto_grown_table": bool_attr(default=True),
        "is_test": bool_attr(default=False),
    },
    infer=_infer,
    kernel=lookup_sparse_table,
    share_lod="Ids",
    sparse=("W",),
    cases=(
        Case(
            {
                "W": SelectedRows(np.array([-3, 7]), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), 0),
                "Ids": np.array([[7], [2**63 - 1], [-3], [2**63 - 1]]),
            },
            {},
            {"Out": np.array([[3.0, 4.0], [5.0, 6.0], [1.0, 2.0], [5.0, 6.0]])},
        ),
        Case(
            {"W": SelectedRows(np.array([7]), np.array([[3.0, 4.0]]), 0), "Ids": np.array([[8], [7]])},
            {"is_test": True},
            {"Out": np.array([[0.0, 0.0], [3.0, 4.0]])},
        ),
    ),
)
