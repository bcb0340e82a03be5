"""`filter_by_instag`: only the instances that carry one of some tags."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.ids import argument
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, bool_attr, long_attr, register
from fluidlite.ops.segments import array_of, level, offsets_of, ranges, reduce_segments, sequences
from fluidlite.values.lod import LoDTensor

_ATTRS: Final = {
    "is_lod": bool_attr(doc="an instance is a sequence of Ins, not a row"),
    "out_val_if_empty": long_attr(0, "the element of the one row of Out when no instance passes"),
}


def filter_by_instag(
    ctx: KernelContext, Ins: Any, Ins_tag: Any, Filter_tag: Any, *, is_lod: bool, out_val_if_empty: int
) -> dict[str, LoDTensor]:
    rows, tags = array_of(Ins), sequences(ctx, Ins_tag, "Ins_tag")
    offsets = sequences(ctx, Ins, "Ins").offsets if is_lod else np.arange(len(rows) + 1)
    if tags.count != len(offsets) - 1:
        raise ShapeError(
            f"op 'filter_by_instag': {argument(ctx, 'Ins')!r} has {len(offsets) - 1} instances, "
            f"{argument(ctx, 'Ins_tag')!r} tags for {tags.count}"
        )
    wanted = np.isin(tags.rows.reshape(-1), array_of(Filter_tag).reshape(-1))
    passing = np.flatnonzero(reduce_segments(np.logical_or, wanted, tags.offsets, empty=False))
    if not len(passing):
        only = ((0, 1),)
        return {
            "Out": LoDTensor(np.full((1, *rows.shape[1:]), out_val_if_empty, rows.dtype), only),
            "LossWeight": LoDTensor(np.zeros((1, 1), np.float32), only),
            # the row of Out stands for no row of Ins; LossWeight tells
            "IndexMap": LoDTensor(np.array([[0, 1, 1]], np.int64), only),
        }
    starts, lengths = offsets[passing], np.diff(offsets)[passing]
    ends, each = offsets_of(lengths), (tuple(range(len(passing) + 1)),)
    return {
        "Out": LoDTensor(rows[ranges(starts, lengths)], (level(ends),)),
        "LossWeight": LoDTensor(np.ones((len(passing), 1), np.float32), each),
        "IndexMap": LoDTensor(np.stack([ends[:-1], starts, lengths], axis=1), each),
    }


def filter_by_instag_grad(
    ctx: KernelContext, Ins: Any, LossWeight: Any, IndexMap: Any, Out_GRAD: Any
) -> Array | LoDTensor:
    rows = array_of(Ins)
    grad = np.zeros_like(rows)
    if array_of(LossWeight).any():
        _, starts, lengths = array_of(IndexMap).T
        grad[ranges(starts, lengths)] = array_of(Out_GRAD)
    return LoDTensor(grad, Ins.lod) if isinstance(Ins, LoDTensor) else grad


def _infer(ctx: InferContext) -> None:
    x, shape = ctx.input("Ins"), ctx.shape("Ins")
    if len(shape) != 2:
        raise ctx.error(f"Ins={x.name!r} {list(shape)} must be a matrix")
    ctx.set("Out", (-1, shape[1]), x.dtype, lod_level=1)
    ctx.set("LossWeight", (-1, 1), "float32", lod_level=1)
    ctx.set("IndexMap", (-1, 3), "int64", lod_level=1)


_ROWS = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
_TAGS = LoDTensor(np.array([[1], [7], [2]]), ((0, 2, 3),))

register(
    "filter_by_instag",
    doc="Out: the instances of Ins [rows, width] of which a tag (Ins_tag, one sequence per instance) is in Filter_tag. "
    "LossWeight [instances, 1] are ones, IndexMap [instances, 3] says where each starts in Out and in Ins, and its "
    "length. When none passes, Out has one row and a LossWeight of 0.",
    inputs=["Ins", "Ins_tag", "Filter_tag"],
    outputs=["Out", "LossWeight", "IndexMap"],
    attrs=_ATTRS,
    infer=_infer,
    kernel=filter_by_instag,
    grad=maker(["IndexMap", "Ins", "LossWeight", "Out@GRAD"], ["Ins@GRAD"]),
    takes_lod=True,
    cases=(
        Case(
            {"Ins": LoDTensor(_ROWS, ((0, 1, 3),)), "Ins_tag": _TAGS, "Filter_tag": np.array([9, 2])},
            {"is_lod": True},
            {
                "Out": LoDTensor(_ROWS[1:], ((0, 2),)),
                "LossWeight": LoDTensor(np.ones((1, 1)), ((0, 1),)),
                "IndexMap": LoDTensor(np.array([[0, 1, 2]]), ((0, 1),)),
            },
            check_grad=("Ins",),
        ),
        Case(
            {"Ins": _ROWS[:2], "Ins_tag": _TAGS, "Filter_tag": np.array([7])},
            {"is_lod": False},
            {"Out": LoDTensor(_ROWS[:1], ((0, 1),))},
            check_grad=("Ins",),
        ),
        Case(
            {"Ins": _ROWS[:2], "Ins_tag": _TAGS, "Filter_tag": np.array([9])},
            {"is_lod": False, "out_val_if_empty": 5},
            {"Out": LoDTensor(np.full((1, 2), 5.0), ((0, 1),)), "LossWeight": LoDTensor(np.zeros((1, 1)), ((0, 1),))},
            check_grad=("Ins",),
        ),
    ),
)
register(
    "filter_by_instag_grad",
    doc="Gradient of filter_by_instag; zero for instances that did not pass.",
    inputs=["IndexMap", "Ins", "LossWeight", "Out@GRAD"],
    outputs=["Ins@GRAD"],
    attrs=_ATTRS,
    infer=grads_like_forward,
    kernel=filter_by_instag_grad,
    takes_lod=True,
)
