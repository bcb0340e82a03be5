"""Ops on SelectedRows: merging duplicates, cutting by rows, taking apart; and `ref_by_trainer_id`."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import OutOfRangeError, ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.ids import argument, out_of_range, outside, sections_of
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.registry import Case, longs_attr, register
from fluidlite.values.selected_rows import SelectedRows, merge_rows


def merge_selected_rows(ctx: KernelContext, X: SelectedRows) -> SelectedRows:
    return merge_rows(X)


def get_tensor_from_selected_rows(ctx: KernelContext, X: SelectedRows) -> Array:
    return X.value


def extract_rows(ctx: KernelContext, X: SelectedRows) -> Array:
    return X.rows.reshape(-1, 1)


def split_selected_rows(ctx: KernelContext, X: SelectedRows, *, height_sections: tuple[int, ...]) -> list[SelectedRows]:
    if len(height_sections) != ctx.n_outputs("Out"):
        raise ProgramError(
            f"op {ctx.op.type!r}: {len(height_sections)} height_sections but {ctx.n_outputs('Out')} outputs"
        )
    height = sum(height_sections)
    wrong = outside(X.rows, height)
    if len(wrong):
        raise out_of_range(ctx, argument(ctx, "X"), wrong[0], X.rows[wrong[0]], "its sections", height)
    section, first = sections_of(X.rows, height_sections)
    return [
        SelectedRows(X.rows[section == k] - first[k], X.value[section == k], size)
        for k, size in enumerate(height_sections)
    ]


def ref_by_trainer_id(ctx: KernelContext, X: list[Any], TrainerId: Array) -> Any:
    trainer = int(TrainerId.reshape(-1)[0])
    if not 0 <= trainer < len(X):
        raise OutOfRangeError(
            f"op {ctx.op.type!r}: trainer {trainer} of {argument(ctx, 'TrainerId')!r}, but X has {len(X)} variables"
        )
    return X[trainer]


def _infer_tensor(ctx: InferContext) -> None:
    # the height although fewer rows will come: programs declare it so, as Fluid's do
    ctx.set("Out", ctx.shape("X"), ctx.input("X").dtype, lod_level=0, kind=VarKind.LOD_TENSOR)


def _infer_rows(ctx: InferContext) -> None:
    ctx.set("Out", (-1, 1), "int64", lod_level=0, kind=VarKind.LOD_TENSOR)


def _infer_split(ctx: InferContext) -> None:
    x, sections = ctx.input("X"), ctx.attr("height_sections")
    outputs = ctx.outputs("Out")
    if len(sections) != len(outputs):
        raise ProgramError(
            f"op {ctx.op.type!r}: {len(sections)} height_sections but {len(outputs)} outputs ({ctx.op.origin})"
        )
    for out, size in zip(outputs, sections, strict=True):
        out.shape = (size, *ctx.shape("X")[1:])
        out.dtype, out.kind = x.dtype, VarKind.SELECTED_ROWS


_X = SelectedRows(np.array([5, 1, 5]), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), 6)

register(
    "merge_selected_rows",
    doc="Out: X with the rows of equal ids summed, in order of occurrence. Ids come out ascending, or as they are when none "
    "is repeated.",
    inputs=["X"],
    outputs=["Out"],
    infer=like("X", "Out"),
    kernel=merge_selected_rows,
    sparse=("X",),
    cases=(
        Case({"X": _X}, {}, {"Out": SelectedRows(np.array([1, 5]), np.array([[3.0, 4.0], [6.0, 8.0]]), 6)}),
        Case(
            {"X": SelectedRows(np.array([4, 2]), np.array([[1.0], [2.0]]), 6)},
            {},
            {"Out": SelectedRows(np.array([4, 2]), np.array([[1.0], [2.0]]), 6)},
        ),
        Case(
            {"X": SelectedRows(np.zeros(0, np.int64), np.zeros((0, 2)), 6)},
            {},
            {"Out": SelectedRows(np.zeros(0, np.int64), np.zeros((0, 2)), 6)},
        ),
    ),
)
register(
    "get_tensor_from_selected_rows",
    doc="Out: the values of X [n, width], without its ids.",
    inputs=["X"],
    outputs=["Out"],
    infer=_infer_tensor,
    kernel=get_tensor_from_selected_rows,
    sparse=("X",),
    cases=(Case({"X": SelectedRows(np.array([1, 0]), _X.value[:2], 2)}, {}, {"Out": _X.value[:2]}),),
)
register(
    "extract_rows",
    doc="Out: the ids of X, [n, 1] int64.",
    inputs=["X"],
    outputs=["Out"],
    infer=_infer_rows,
    kernel=extract_rows,
    sparse=("X",),
    cases=(Case({"X": _X}, {}, {"Out": np.array([[5], [1], [5]])}),),
)
register(
    "split_selected_rows",
    doc="Cuts X by rows: Out[k] holds the rows of section k, in order, their ids counted from the start of the section. An "
    "id outside all sections is an error.",
    inputs=["X"],
    outputs=["Out*"],
    attrs={"height_sections": longs_attr(doc="rows of each output")},
    infer=_infer_split,
    kernel=split_selected_rows,
    sparse=("X",),
    cases=(
        Case(
            {"X": _X},
            {"height_sections": [4, 0, 2]},
            {
                "Out": [
                    SelectedRows(np.array([1]), np.array([[3.0, 4.0]]), 4),
                    SelectedRows(np.zeros(0, np.int64), np.zeros((0, 2)), 0),
                    SelectedRows(np.array([1, 1]), np.array([[1.0, 2.0], [5.0, 6.0]]), 2),
                ]
            },
            n_outputs={"Out": 3},
        ),
    ),
)
register(
    "ref_by_trainer_id",
    doc="Out: the variable of X whose position is TrainerId.",
    inputs=["X*", "TrainerId"],
    outputs=["Out"],
    infer=like("X", "Out"),
    kernel=ref_by_trainer_id,
    sparse=("X",),
    cases=(Case({"X": [np.array([0.5]), np.array([1.5])], "TrainerId": np.array([1])}, {}, {"Out": np.array([1.5])}),),
)
