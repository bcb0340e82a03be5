"""`chunk_eval`: precision, recall and F1 of the chunks (entities, phrases) that tag sequences mark.

A tag is ``type * number of marks + mark``; the marks of a scheme say where a chunk begins and ends (Ramshaw, Marcus
1995). The tag after the last is no chunk.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ProgramError
from fluidlite.ops.classes import class_numbers
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.padded import Ragged, check_same_lengths, ragged
from fluidlite.ops.registry import Case, int_attr, ints_attr, register, string_attr
from fluidlite.values.lod import LoDTensor


class Scheme(NamedTuple):
    """How the marks of a tagging scheme, numbered from 0, cut chunks of one type that touch."""

    marks: int
    #: marks that begin a chunk
    opening: tuple[int, ...]
    #: marks after which the next row begins one
    closing: tuple[int, ...]


SCHEMES: Final = {
    "IOB": Scheme(2, opening=(0,), closing=()),
    "IOE": Scheme(2, opening=(), closing=(1,)),
    "IOBES": Scheme(4, opening=(0, 3), closing=(2, 3)),
    "plain": Scheme(1, opening=(), closing=()),
}


def chunk_eval(
    ctx: KernelContext,
    Inference: Any,
    Label: Any,
    SeqLength: Any,
    *,
    num_chunk_types: int,
    chunk_scheme: str,
    excluded_chunk_types: tuple[int, ...],
) -> dict[str, Array]:
    given = {name: ragged(ctx, name, value, SeqLength) for name, value in (("Inference", Inference), ("Label", Label))}
    check_same_lengths(ctx, given["Inference"], given["Label"], ("Inference", "Label"))
    found, labelled = (
        _chunks(ctx, name, tags, SCHEMES[chunk_scheme], num_chunk_types, excluded_chunk_types)
        for name, tags in given.items()
    )
    n_found, n_labelled, n_right = len(found), len(labelled), len(found & labelled)
    precision, recall = (n_right / count if count else 0.0 for count in (n_found, n_labelled))
    score = 2 * precision * recall / (precision + recall) if n_right else 0.0
    rates = {"Precision": precision, "Recall": recall, "F1-Score": score}
    counts = {"NumInferChunks": n_found, "NumLabelChunks": n_labelled, "NumCorrectChunks": n_right}
    return {
        **{name: np.array([rate], np.float32) for name, rate in rates.items()},
        **{name: np.array([count], np.int64) for name, count in counts.items()},
    }


def _chunks(
    ctx: KernelContext, name: str, tags: Ragged, scheme: Scheme, types: int, excluded: tuple[int, ...]
) -> set[tuple[int, int, int]]:
    """The chunks as (first row, last row, type)."""
    flat = class_numbers(ctx, name, tags.bags.rows, types * scheme.marks + 1)
    type, mark = np.divmod(flat, scheme.marks)
    inside = type < types
    begins = np.ones(len(flat), bool)
    same = inside[:-1] & (type[1:] == type[:-1])
    begins[1:] = ~same | np.isin(mark[1:], scheme.opening) | np.isin(mark[:-1], scheme.closing)
    begins[tags.bags.starts[tags.bags.lengths > 0]] = True
    firsts = np.flatnonzero(begins)
    lasts = np.append(firsts[1:], len(flat)) - 1
    kept = inside[firsts] & ~np.isin(type[firsts], excluded)
    columns = firsts[kept], lasts[kept], type[firsts[kept]]
    return set(zip(*(column.tolist() for column in columns), strict=True))


def _infer(ctx: InferContext) -> None:
    if ctx.attr("chunk_scheme") not in SCHEMES:
        raise ProgramError(
            f"op 'chunk_eval': chunk_scheme {ctx.attr('chunk_scheme')!r} is none of {', '.join(SCHEMES)} ({ctx.op.origin})"
        )
    for name in ("Precision", "Recall", "F1-Score"):
        ctx.set(name, (1,), "float32", lod_level=0)
    for name in ("NumInferChunks", "NumLabelChunks", "NumCorrectChunks"):
        ctx.set(name, (1,), "int64", lod_level=0)


def _rates(precision: float, recall: float, score: float) -> dict[str, Array]:
    values = {"Precision": precision, "Recall": recall, "F1-Score": score}
    return {name: np.array([value], np.float32) for name, value in values.items()}


_LOD = ((0, 4, 4, 6),)
_FOUND = np.array([[0], [1], [4], [0], [1], [2]])
_LABELLED = np.array([[0], [1], [4], [2], [1], [3]])

register(
    "chunk_eval",
    doc="Of the chunks in the tags Inference and Label [T, 1] int64: how many each holds, how many are the same, their share "
    "of those found (Precision) and of those labelled (Recall), and the harmonic mean of both; 0 where there are none. "
    "Marks: IOB begin, inside; IOE inside, end; IOBES begin, inside, end, single; plain none. With SeqLength the tags "
    "are padded, [batch, time].",
    inputs=["Inference", "Label", "SeqLength?"],
    outputs=["Precision", "Recall", "F1-Score", "NumInferChunks", "NumLabelChunks", "NumCorrectChunks"],
    attrs={
        "num_chunk_types": int_attr(),
        "chunk_scheme": string_attr("IOB"),
        "excluded_chunk_types": ints_attr(doc="not counted"),
    },
    infer=_infer,
    kernel=chunk_eval,
    takes_lod=True,
    cases=(
        Case(
            {"Inference": LoDTensor(_FOUND, _LOD), "Label": LoDTensor(_LABELLED, _LOD)},
            {"num_chunk_types": 2},
            {
                **_rates(0.75, 0.75, 0.75),
                "NumInferChunks": np.array([4]),
                "NumLabelChunks": np.array([4]),
                "NumCorrectChunks": np.array([3]),
            },
            note="the second chunk has another type",
        ),
        Case(
            {
                "Inference": np.array([[0, 0, 9], [1, 1, 0]]),
                "Label": np.array([[0, 0, 9], [1, 0, 0]]),
                "SeqLength": np.array([2, 3]),
            },
            {"num_chunk_types": 2, "chunk_scheme": "plain", "excluded_chunk_types": [1]},
            {**_rates(0.5, 0.5, 0.5), "NumInferChunks": np.array([2]), "NumCorrectChunks": np.array([1])},
        ),
        Case(
            {"Inference": LoDTensor(np.full((2, 1), 4), ((0, 2),)), "Label": LoDTensor(np.full((2, 1), 4), ((0, 2),))},
            {"num_chunk_types": 2},
            {**_rates(0.0, 0.0, 0.0), "NumCorrectChunks": np.array([0])},
            note="no chunks",
        ),
    ),
)
