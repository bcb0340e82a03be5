"""Routing of ids to servers and back: `split_ids` and `merge_ids`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from fluidlite.core import names
from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import ProgramError, ShapeError, TableError
from fluidlite.kernels import find_ids, group_ids, take_rows
from fluidlite.ops.context import KernelContext
from fluidlite.ops.ids import NO_PADDING, argument, flat_ids, out_of_range, outside, sections_of
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, long_attr, longs_attr, register
from fluidlite.ops.segments import array_of
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows, first_occurrences
from fluidlite.values.sharding import by_shard


def split_ids(
    ctx: KernelContext, Ids: list[Any], *, padding_idx: int, height_sections: tuple[int, ...]
) -> dict[str, Any]:
    shards = ctx.n_outputs("Out")
    if height_sections and len(height_sections) != shards:
        raise ProgramError(f"op 'split_ids': {len(height_sections)} height_sections but {shards} outputs")
    if isinstance(Ids[0], SelectedRows):
        return {"Out": _split_rows(ctx, Ids, shards, padding_idx, height_sections)}
    ids = _joined([_checked(ctx, value, i, padding_idx, height_sections) for i, value in enumerate(Ids)])
    unique, position = first_occurrences(ids)
    order, place, ends = _route(unique, padding_idx, shards, height_sections)
    parts = _cut(take_rows(unique.reshape(-1, 1), order), ends)
    if not ctx.wants("Inverse"):
        return {"Out": parts}
    return {"Out": parts, "Inverse": take_rows(place.reshape(-1, 1), position)}


def _split_rows(
    ctx: KernelContext, inputs: Sequence[SelectedRows], shards: int, padding_idx: int, sections: tuple[int, ...]
) -> list[SelectedRows]:
    """Rows with their values, by position: duplicates and order stay."""
    rows = _joined([_checked(ctx, part.rows, i, padding_idx, sections) for i, part in enumerate(inputs)])
    value = _joined([part.value[: len(part.rows)] for part in inputs])
    if shards > 1 or padding_idx != NO_PADDING:
        order, _, ends = _route(rows, padding_idx, shards, sections)
        rows, value = rows[order], take_rows(value, order)
    else:
        ends = [len(rows)]
    height = inputs[0].height
    return [SelectedRows(*part, height) for part in zip(_cut(rows, ends), _cut(value, ends), strict=True)]


def _route(ids: Array, padding_idx: int, shards: int, sections: tuple[int, ...]) -> tuple[Array, Array, list[int]]:
    """(positions (k,) of the ids that count, shard by shard and in order; the place of each id (n,) there, -1 for padding;
    where each shard ends)."""
    kept = None if padding_idx == NO_PADDING else np.flatnonzero(ids != padding_idx)
    routed = ids if kept is None else ids[kept]
    if sections:
        order, place, counts = group_ids(sections_of(routed, sections)[0], shards)
    else:
        order, place, counts = by_shard(routed, shards)
    if kept is not None:
        order, placed = kept[order], place
        place = np.full(len(ids), -1, np.int64)
        place[kept] = placed
    return order, place, list(accumulate(counts.tolist()))


def _cut(array: Array, ends: list[int]) -> list[Array]:
    """The parts that end at ``ends``, views."""
    return [array[start:end] for start, end in pairwise((0, *ends))]


def _joined(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _checked(ctx: KernelContext, value: Array, index: int, padding_idx: int, sections: tuple[int, ...]) -> Array:
    """Ids of one input; routed by sections they must be rows of the matrix."""
    ids = flat_ids(ctx, value, "Ids", index)
    if sections:
        height = sum(sections)
        wrong = outside(ids, height)
        wrong = wrong[(ids[wrong] != padding_idx) | (padding_idx == NO_PADDING)]
        if len(wrong):
            name, whole = argument(ctx, "Ids", index), names.looked_up(ctx.op.outputs["Out"][0])
            raise out_of_range(ctx, name, wrong[0], ids[wrong[0]], whole, height)
    return ids


def merge_ids(ctx: KernelContext, Ids: list[Any], Rows: list[Any], X: list[Any]) -> list[Any]:
    known = np.concatenate([flat_ids(ctx, array_of(rows), "Rows", i) for i, rows in enumerate(Rows)])
    values = np.concatenate([array_of(value) for value in X])
    if len(known) != len(values):
        raise ShapeError(f"op 'merge_ids': {len(known)} ids in Rows but {len(values)} rows of values in X")
    return [_merged(ctx, wanted, i, known, values) for i, wanted in enumerate(Ids)]


def _merged(ctx: KernelContext, wanted: Any, index: int, known: Array, values: Array) -> Any:
    ids = flat_ids(ctx, array_of(wanted), "Ids", index)
    rows = find_ids(known, ids)
    missing = np.flatnonzero(rows < 0)
    if len(missing):
        raise TableError(
            f"op 'merge_ids': id {ids[missing[0]]} at position {missing[0]} of {argument(ctx, 'Ids', index)!r} is in "
            "none of Rows"
        )
    out = values[rows]
    return LoDTensor(out, wanted.lod) if isinstance(wanted, LoDTensor) else out


def _infer_split(ctx: InferContext) -> None:
    ids = ctx.input("Ids")
    if ids.kind is VarKind.SELECTED_ROWS:
        ctx.set("Out", ids.shape, ids.dtype, kind=VarKind.SELECTED_ROWS)
    else:
        ctx.set("Out", (-1, 1), "int64")
        ctx.set("Inverse", (-1, 1), "int64")


def _infer_merge(ctx: InferContext) -> None:
    value = ctx.input("X")
    for ids, out in zip(ctx.inputs("Ids"), ctx.outputs("Out"), strict=True):
        out.shape = (-1, *ctx.shape("X")[1:])
        out.dtype, out.lod_level = value.dtype, ids.lod_level


_GRADIENT = SelectedRows(np.array([7, -1, 7, 4]), np.arange(8.0).reshape(4, 2), 20)

register(
    "split_ids",
    doc="Routes ids to servers, one output per server. Tensors: the ids of all inputs without duplicates, ascending, "
    "[k, 1] each. SelectedRows: the rows with their values, in order. An id goes to server id mod n (unsigned), or "
    "with `height_sections` to the section that holds it; ids stay as they are. `padding_idx` is left out. Inverse "
    "[n, 1]: for each id its row in the concatenation of Out, -1 for padding.",
    inputs=["Ids*"],
    outputs=["Out*", "Inverse?"],
    attrs={
        "padding_idx": long_attr(NO_PADDING, "an id that is sent nowhere; -1: none"),
        "height_sections": longs_attr(doc="rows per server of a matrix cut by rows; empty: by modulo"),
    },
    infer=_infer_split,
    kernel=split_ids,
    sparse=("Ids",),
    cases=(
        Case(
            {"Ids": [np.array([[5], [3], [3]]), np.array([[-1], [2**62]])]},
            {},
            {"Out": [np.array([[-1], [3]]), np.array([[2**62]]), np.array([[5]])]},
            n_outputs={"Out": 3},
            note="-1 is 2^64 - 1",
        ),
        Case(
            {"Ids": [np.array([[5], [3], [5], [4]])]},
            {"padding_idx": 3, "height_sections": [4, 0, 3]},
            {
                "Out": [np.zeros((0, 1), np.int64), np.zeros((0, 1), np.int64), np.array([[4], [5]])],
                "Inverse": np.array([[1], [-1], [1], [0]]),
            },
            n_outputs={"Out": 3},
        ),
        Case(
            {"Ids": [_GRADIENT]},
            {},
            {
                "Out": [
                    SelectedRows(np.array([4]), np.array([[6.0, 7.0]]), 20),
                    SelectedRows(np.array([7, -1, 7]), np.arange(6.0).reshape(3, 2), 20),
                ]
            },
            n_outputs={"Out": 2},
            note="a repeated row keeps its own value",
        ),
    ),
)
register(
    "merge_ids",
    doc="Puts fetched rows back in the order of Ids: Out[i] [n, width] holds the row of every id of Ids[i]. Rows and X, in "
    "parallel, are the ids that each server was asked for and its answer.",
    inputs=["Ids*", "Rows*", "X*"],
    outputs=["Out*"],
    infer=_infer_merge,
    kernel=merge_ids,
    takes_lod=True,
    cases=(
        Case(
            {
                "Ids": [np.array([[4], [3], [4]])],
                "Rows": [np.array([[4]]), np.array([[3]])],
                "X": [np.array([[0.5, 1.0]]), np.array([[2.0, 3.0]])],
            },
            {},
            {"Out": [np.array([[0.5, 1.0], [2.0, 3.0], [0.5, 1.0]])]},
        ),
    ),
)
