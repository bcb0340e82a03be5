"""Beam search: the best continuations of each step (beam_search), and the sentences that they make up (beam_search_decode,
gather_tree).

Rows are *prefixes*: level 0 of the LoD groups those of a source sentence, level 1 says what each one was continued to.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import OutOfRangeError, ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.ids import argument
from fluidlite.ops.infer import InferContext
from fluidlite.ops.rank_table import lod_of
from fluidlite.ops.registry import REQUIRED, Case, bool_attr, int_attr, register
from fluidlite.ops.segments import array_of
from fluidlite.values.lod import Lod, LoDTensor


class _Item(NamedTuple):
    """A continuation; of equal scores the one of a later prefix is the better."""

    score: float
    prefix: int
    id: int

    @property
    def rank(self) -> tuple[float, int]:
        return self.score, self.prefix


def beam_search(
    ctx: KernelContext,
    pre_ids: Any,
    pre_scores: Any,
    ids: Any,
    scores: Any,
    *,
    level: int,
    beam_size: int,
    end_id: int,
    is_accumulated: bool,
) -> dict[str, Any]:
    before, old = array_of(pre_ids).reshape(-1), array_of(pre_scores).reshape(-1)
    new = _per_prefix(ctx, "scores", scores, len(before))
    chosen_ids = None if ids is None else _per_prefix(ctx, "ids", ids, len(before))
    if chosen_ids is not None and chosen_ids.shape != new.shape:
        raise ShapeError(
            f"op {ctx.op.type!r}: ids {list(chosen_ids.shape)} must be as many as scores {list(new.shape)}"
        )
    if not is_accumulated:
        new = old[:, None] + np.log(new)
    sources = _in_rows(ctx, scores, level)
    found: list[list[_Item]] = [[] for _ in before]
    for start, end in pairwise(sources):
        best: list[_Item] = []
        for prefix in range(start, end):
            if before[prefix] == end_id:
                _insert(best, _Item(float(old[prefix]), prefix, end_id), beam_size)
            else:
                for item in _candidates(new[prefix], chosen_ids, prefix, beam_size):
                    _insert(best, item, beam_size)
        if any(item.id != end_id or before[item.prefix] != end_id for item in best):
            for item in best:
                found[item.prefix].append(item)
    return _selected(found, sources, pre_ids, pre_scores)


def _per_prefix(ctx: KernelContext, name: str, value: Any, prefixes: int) -> Array:
    """What continues each of the prefixes: a row of candidates."""
    array = array_of(value)
    if len(array) != prefixes:
        raise ShapeError(
            f"op {ctx.op.type!r}: {name} {argument(ctx, name)!r} {list(array.shape)} must have a row for each of the "
            f"{prefixes} elements of pre_ids"
        )
    return array.reshape(prefixes, -1 if array.size else 0)


def _in_rows(ctx: KernelContext, scores: Any, level: int) -> tuple[int, ...]:
    """The offsets of a level of the LoD, counted in rows."""
    lod = lod_of(scores)
    if not 0 <= level < len(lod):
        raise ShapeError(
            f"op {ctx.op.type!r}: {argument(ctx, 'scores')!r} has {len(lod)} LoD levels, none of number {level}"
        )
    offsets = lod[level]
    for finer in lod[level + 1 :]:
        offsets = tuple(finer[offset] for offset in offsets)
    return offsets


def _candidates(scores: Array, ids: Array | None, prefix: int, beam_size: int) -> list[_Item]:
    """The continuations of a prefix that may be among the best, in order."""
    least = np.sort(scores)[-beam_size] if len(scores) > beam_size else -np.inf
    places = np.flatnonzero(~(scores < least)).tolist()
    return [_Item(float(scores[at]), prefix, at if ids is None else int(ids[prefix, at])) for at in places]


def _insert(best: list[_Item], item: _Item, beam_size: int) -> None:
    """Keep an item among the best. One that equals the last of a full list takes its place, as in Fluid."""
    if len(best) >= beam_size:
        if item.rank < best[-1].rank:
            return
        best.pop()
    at = len(best)
    while at and best[at - 1].rank < item.rank:
        at -= 1
    best.insert(at, item)


def _selected(found: list[list[_Item]], sources: tuple[int, ...], ids: Any, scores: Any) -> dict[str, Any]:
    items = [item for row in found for item in row]
    lod = (tuple(sources), (0, *np.cumsum([len(row) for row in found]).tolist()))
    return {
        "selected_ids": LoDTensor(np.array([[item.id] for item in items], array_of(ids).dtype).reshape(-1, 1), lod),
        "selected_scores": LoDTensor(np.array([[i.score] for i in items], array_of(scores).dtype).reshape(-1, 1), lod),
        "parent_idx": np.array([item.prefix for item in items], np.int32),
    }


class _Sentence:
    """A hypothesis, collected from its end."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.scores: list[float] = []

    def add(self, id: int, score: float) -> None:
        self.ids.append(id)
        self.scores.append(score)


def beam_search_decode(
    ctx: KernelContext, Ids: list[Any], Scores: list[Any], *, beam_size: int, end_id: int
) -> dict[str, Any]:
    if not Ids:
        raise ShapeError(f"op {ctx.op.type!r}: {argument(ctx, 'Ids')!r} is empty; it needs a step at least")
    lods = [_two_levels(ctx, step) for step in Ids]
    sources = [_sentences(ctx, Ids, Scores, lods, source, beam_size, end_id) for source in range(len(lods[0][0]) - 1)]
    for sentences in sources:
        sentences.sort(key=lambda sentence: -sentence.scores[0] if sentence.scores else np.inf)
    every = [sentence for sentences in sources for sentence in sentences]
    lod = (
        (0, *np.cumsum([len(sentences) for sentences in sources]).tolist()),
        (0, *np.cumsum([len(sentence.ids) for sentence in every]).tolist()),
    )
    ids = [id for sentence in every for id in reversed(sentence.ids)]
    scores = [score for sentence in every for score in reversed(sentence.scores)]
    return {
        "SentenceIds": LoDTensor(np.array(ids, array_of(Ids[0]).dtype), lod),
        "SentenceScores": LoDTensor(np.array(scores, array_of(Scores[0]).dtype), lod),
    }


def _two_levels(ctx: KernelContext, step: Any) -> Lod:
    lod = lod_of(step)
    if len(lod) != 2:
        raise ShapeError(f"op {ctx.op.type!r}: an entry of {argument(ctx, 'Ids')!r} has {len(lod)} LoD levels, not 2")
    return lod


def _sentences(
    ctx: KernelContext, ids: list[Any], scores: list[Any], lods: list[Lod], source: int, beam_size: int, end_id: int
) -> list[_Sentence]:
    """The hypotheses of a source sentence, followed back from the last step in which it has any."""
    sentences = [_Sentence() for _ in range(beam_size)]
    #: per hypothesis its row in the step at hand
    rows: list[int] = []
    for step in reversed(range(len(ids))):
        prefixes, continued = lods[step]
        first, last = continued[prefixes[source]], continued[prefixes[source + 1]]
        at_end = not rows
        rows = list(range(first, last)) if at_end else rows
        if len(rows) > beam_size:
            raise OutOfRangeError(
                f"op {ctx.op.type!r}: step {step} continues source {source} in {len(rows)} ways, more than {beam_size}"
            )
        values, points = array_of(ids[step]).reshape(-1), array_of(scores[step]).reshape(-1)
        for sentence, row in zip(sentences, rows, strict=False):
            if at_end or values[row] != end_id or not sentence.ids:  # of several end marks one stays
                sentence.add(int(values[row]), float(points[row]))
        rows = (np.searchsorted(np.asarray(continued), rows, side="right") - 1).tolist()
    return sentences


def gather_tree(ctx: KernelContext, Ids: Array, Parents: Array) -> Array:
    """(steps, batch, beam): what each beam of the last step came from."""
    if Ids.shape != Parents.shape or Ids.ndim != 3:
        raise ShapeError(
            f"op 'gather_tree': Ids {list(Ids.shape)} and Parents {list(Parents.shape)} must be (steps, batch, beam)"
        )
    out = np.empty_like(Ids)
    beams = np.broadcast_to(np.arange(Ids.shape[2]), Ids.shape[1:])
    for step in reversed(range(len(Ids))):
        if beams.size and (beams.min() < 0 or beams.max() >= Ids.shape[2]):
            raise OutOfRangeError(
                f"op 'gather_tree': Parents of step {step + 1} name beams outside 0..{Ids.shape[2] - 1}"
            )
        out[step] = np.take_along_axis(Ids[step], beams, axis=1)
        beams = np.take_along_axis(Parents[step], beams, axis=1)
    return out


def _infer_search(ctx: InferContext) -> None:
    ids, scores = ctx.input("pre_ids"), ctx.input("pre_scores")
    ctx.set("selected_ids", ids.shape, ids.dtype)
    ctx.set("selected_scores", scores.shape, scores.dtype)
    ctx.set("parent_idx", (-1,), "int32")


def _infer_decode(ctx: InferContext) -> None:
    ctx.set("SentenceIds", None, ctx.input("Ids").dtype)
    ctx.set("SentenceScores", None, ctx.input("Scores").dtype)


def _infer_tree(ctx: InferContext) -> None:
    ids = ctx.input("Ids")
    ctx.set("Out", ids.shape, ids.dtype)


_LOD: Lod = ((0, 2, 4), (0, 1, 2, 3, 4))


def _with_lod(values: list[Any], dtype: str, lod: Lod = _LOD) -> LoDTensor:
    return LoDTensor(np.array(values, dtype).reshape(lod[-1][-1], -1), lod)


def _search_case(pre_ids: list[int], selected: list[int], scores: list[float], parents: list[int], lod: Lod) -> Case:
    return Case(
        {
            "pre_ids": _with_lod(pre_ids, "int64"),
            "pre_scores": _with_lod([0.1, 0.2, 0.3, 0.4], "float64"),
            "ids": _with_lod([4, 2, 5, 2, 1, 3, 3, 5, 2, 8, 2, 1], "int64"),
            "scores": _with_lod([0.5, 0.3, 0.2, 0.6, 0.3, 0.1, 0.9, 0.5, 0.1, 0.7, 0.5, 0.1], "float64"),
        },
        {"level": 0, "beam_size": 2, "end_id": 0},
        {
            "selected_ids": _with_lod(selected, "int64", lod),
            "selected_scores": _with_lod(scores, "float64", lod),
            "parent_idx": np.array(parents, np.int32),
        },
    )


_STEP_LODS: tuple[Lod, ...] = (((0, 1, 2), (0, 1, 2)), ((0, 1, 2), (0, 2, 4)), ((0, 2, 4), (0, 1, 2, 3, 4)), _LOD)
_STEP_IDS = ([0, 0], [2, 3, 2, 3], [1, 2, 1, 3], [4, 1, 3, 1])
_STEP_SCORES = ([0.0, 0.0], [0.2, 0.3, 0.2, 0.3], [1.2, 1.3, 1.2, 1.3], [2.4, 2.1, 2.3, 2.1])
_DECODED: Lod = ((0, 2, 4), (0, 3, 7, 10, 14))

register(
    "beam_search",
    doc="""For each source sentence (a group of prefixes at LoD `level` of scores) the `beam_size` best continuations of its
prefixes: ids with scores, of a prefix that ends with end_id itself with its pre_score. Without ids, continuations are the
columns of scores. With is_accumulated scores hold the prefix, else they are probabilities. A source whose continuations all
ended before has none. parent_idx: the prefix of each.
""",
    inputs=["pre_ids", "pre_scores", "ids?", "scores"],
    outputs=["selected_ids", "selected_scores", "parent_idx?"],
    attrs={
        "level": int_attr(REQUIRED),
        "beam_size": int_attr(REQUIRED),
        "end_id": int_attr(REQUIRED),
        "is_accumulated": bool_attr(default=True),
    },
    infer=_infer_search,
    kernel=beam_search,
    takes_lod=True,
    cases=(
        _search_case([1, 2, 3, 4], [4, 2, 3, 8], [0.5, 0.6, 0.9, 0.7], [0, 1, 2, 3], _LOD),
        _search_case([1, 0, 0, 0], [4, 2], [0.5, 0.3], [0, 0], ((0, 2, 4), (0, 2, 2, 2, 2))),
    ),
)
register(
    "beam_search_decode",
    doc="""The sentences that the steps of a beam search make up, best first: Ids and Scores hold what beam_search selected in
each step. LoD level 0: the hypotheses of a source sentence, level 1: their words.
""",
    inputs=["Ids", "Scores"],
    outputs=["SentenceIds", "SentenceScores"],
    attrs={"beam_size": int_attr(REQUIRED), "end_id": int_attr(REQUIRED)},
    infer=_infer_decode,
    kernel=beam_search_decode,
    takes_lod=True,
    cases=(
        Case(
            {
                "Ids": [_with_lod(ids, "int64", lod) for ids, lod in zip(_STEP_IDS, _STEP_LODS, strict=True)],
                "Scores": [_with_lod(s, "float64", lod) for s, lod in zip(_STEP_SCORES, _STEP_LODS, strict=True)],
            },
            {"beam_size": 2, "end_id": 1},
            {
                "SentenceIds": LoDTensor(np.array([0, 2, 4, 0, 3, 2, 1, 0, 2, 3, 0, 3, 3, 1]), _DECODED),
                "SentenceScores": LoDTensor(
                    np.array([0.0, 0.2, 2.4, 0.0, 0.3, 1.3, 2.1, 0.0, 0.2, 2.3, 0.0, 0.3, 1.3, 2.1]), _DECODED
                ),
            },
        ),
    ),
)
register(
    "gather_tree",
    doc="Out (steps, batch, beam): the words of each beam of the last step, followed back by Parents through Ids.",
    inputs=["Ids", "Parents"],
    outputs=["Out"],
    infer=_infer_tree,
    kernel=gather_tree,
    cases=(
        Case(
            {
                "Ids": np.array([[[2, 2], [6, 1]], [[3, 9], [6, 1]], [[0, 1], [9, 0]]]),
                "Parents": np.array([[[0, 0], [1, 1]], [[1, 0], [1, 0]], [[0, 0], [0, 1]]]),
            },
            {},
            {"Out": np.array([[[2, 2], [1, 6]], [[3, 3], [6, 1]], [[0, 1], [9, 0]]])},
        ),
    ),
)
