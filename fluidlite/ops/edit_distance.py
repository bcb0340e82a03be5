"""`edit_distance`: insertions, deletions and replacements that turn one sequence of tokens into another (Levenshtein
1966)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.ids import argument
from fluidlite.ops.infer import InferContext
from fluidlite.ops.padded import ragged
from fluidlite.ops.registry import Case, bool_attr, register
from fluidlite.ops.segments import Sequences, ranges
from fluidlite.values.lod import LoDTensor


def edit_distance(
    ctx: KernelContext, Hyps: Any, Refs: Any, HypsLength: Any, RefsLength: Any, *, normalized: bool
) -> dict[str, Array]:
    found, wanted = ragged(ctx, "Hyps", Hyps, HypsLength).bags, ragged(ctx, "Refs", Refs, RefsLength).bags
    if found.count != wanted.count:
        raise ShapeError(
            f"op 'edit_distance': {argument(ctx, 'Hyps')!r} has {found.count} sequences, "
            f"{argument(ctx, 'Refs')!r} {wanted.count}"
        )
    distances = _distances(found, wanted).astype(np.float32)
    if normalized:
        empty = np.flatnonzero(wanted.lengths == 0)
        if len(empty):
            raise ShapeError(
                f"op 'edit_distance': sequence {empty[0]} of {argument(ctx, 'Refs')!r} is empty, its distance cannot be "
                "divided by its length"
            )
        distances /= wanted.lengths.astype(np.float32)
    return {"SequenceNum": np.array([found.count], np.int64), "Out": distances[:, None]}


def _filled(bags: Sequences) -> Array:
    """The tokens as rows of equal length (count, longest)."""
    out = np.zeros((bags.count, int(bags.lengths.max(initial=0))), np.int64)
    out.reshape(-1)[ranges(np.arange(bags.count) * out.shape[1], bags.lengths)] = bags.rows.reshape(-1)
    return out


def _distances(found: Sequences, wanted: Sequences) -> Array:
    """The distance of each pair of sequences, (count,), one token of all sequences of ``found`` at a time."""
    tokens, targets = _filled(found), _filled(wanted)
    columns = np.arange(targets.shape[1] + 1)
    # costs[n, j]: from the tokens so far to the first j of pair n's targets
    costs = np.tile(columns, (found.count, 1))
    result = wanted.lengths.copy()
    for number, token in enumerate(tokens.T):
        other = np.empty_like(costs)
        other[:, 0] = number + 1
        other[:, 1:] = np.minimum(costs[:, 1:] + 1, costs[:, :-1] + (targets != token[:, None]))
        # an insertion costs 1 per column, so the least of all columns before is a running minimum
        costs = np.minimum.accumulate(other - columns, axis=1) + columns
        done = np.flatnonzero(found.lengths == number + 1)
        result[done] = costs[done, wanted.lengths[done]]
    return result


def _infer(ctx: InferContext) -> None:
    if len(ctx.inputs("HypsLength")) != len(ctx.inputs("RefsLength")):
        raise ProgramError(f"op 'edit_distance': both lengths are given, or none ({ctx.op.origin})")
    pairs = ctx.shape("Hyps")[0] if ctx.inputs("HypsLength") else -1
    ctx.set("Out", (pairs, 1), "float32", lod_level=0)
    ctx.set("SequenceNum", (1,), "int64", lod_level=0)


_KITTEN = np.array([[0], [1], [2], [2], [3], [4], [7]])
_SITTING = np.array([[5], [1], [2], [2], [1], [4], [6], [8], [7]])

register(
    "edit_distance",
    doc="Out [pairs, 1] float32: the edit distance of each sequence of Hyps to that of Refs (int64 tokens), divided by the "
    "length of the latter when `normalized`; SequenceNum [1] the number of pairs. With lengths the tokens are padded, "
    "[batch, time].",
    inputs=["Hyps", "Refs", "HypsLength?", "RefsLength?"],
    outputs=["SequenceNum", "Out"],
    attrs={"normalized": bool_attr(default=False)},
    infer=_infer,
    kernel=edit_distance,
    takes_lod=True,
    cases=(
        Case(
            {"Hyps": LoDTensor(_KITTEN, ((0, 6, 7, 7),)), "Refs": LoDTensor(_SITTING, ((0, 7, 7, 9),))},
            {},
            {"Out": np.array([[3.0], [1.0], [2.0]], np.float32), "SequenceNum": np.array([3])},
            note="kitten and sitting; one side empty",
        ),
        Case(
            {
                "Hyps": np.array([[1, 2, 0], [3, 4, 5]]),
                "Refs": np.array([[2, 0], [3, 5]]),
                "HypsLength": np.array([[2], [3]]),
                "RefsLength": np.array([[1], [2]]),
            },
            {"normalized": True},
            {"Out": np.array([[1.0], [0.5]], np.float32)},
        ),
    ),
)
