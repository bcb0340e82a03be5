"""Sequences taken apart into steps, the longest sequence first: what `DynamicRNN` is made of.

A `RankTable` orders the sequences of one level of a LoD by length, longest first, equal ones in their order. Step t of
lod_tensor_to_array holds the t-th unit of every sequence that is longer than t, in the order of the table, so that what goes
on from one step to the next is always the first rows of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import ShapeError, UninitializedError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.ids import argument
from fluidlite.ops.infer import InferContext, grads_like_forward
from fluidlite.ops.registry import Case, GradMaker, int_attr, register
from fluidlite.ops.segments import array_of, ranges
from fluidlite.ops.shapes import scalar
from fluidlite.values.lod import Lod, LoDTensor


@dataclass(frozen=True, slots=True)
class RankTable:
    """The sequences of a level: their numbers, longest first, and their lengths in that order."""

    order: tuple[int, ...]
    lengths: tuple[int, ...]
    #: the levels above
    coarse: Lod = ()

    @staticmethod
    def of(lod: Lod, level: int) -> RankTable:
        lengths = np.diff(np.asarray(lod[level], np.int64))
        order = np.argsort(-lengths, kind="stable")
        return RankTable(tuple(order.tolist()), tuple(lengths[order].tolist()), lod[:level])

    def offsets(self) -> tuple[int, ...]:
        """The level itself: offsets of the sequences in their own order."""
        lengths = np.zeros(len(self.order), np.int64)
        lengths[list(self.order)] = self.lengths
        return _offsets(lengths)

    def longer(self, step: int) -> int:
        """How many sequences have more than ``step`` units."""
        return sum(length > step for length in self.lengths)

    @property
    def steps(self) -> int:
        return self.lengths[0] if self.lengths else 0


def picked(array: Array, lod: Lod, units: Sequence[int] | Array) -> Array | LoDTensor:
    """Units of the first level of ``lod`` (rows where there is none), in the given order, with their finer levels."""
    chosen = np.asarray(units, np.int64)
    levels = []
    for level in lod:
        offsets = np.asarray(level, np.int64)
        levels.append(offsets[chosen + 1] - offsets[chosen])
        chosen = ranges(offsets[chosen], levels[-1])
    return _with_levels(array[chosen], levels)


def joined(parts: Sequence[Any]) -> Array | LoDTensor:
    """Values one after the other, each level of their LoD too."""
    levels = [
        np.concatenate([np.diff(np.asarray(lod_of(part)[depth], np.int64)) for part in parts])
        for depth in range(len(lod_of(parts[0])))
    ]
    return _with_levels(np.concatenate([array_of(part) for part in parts]), levels)


def _with_levels(rows: Array, lengths: Sequence[Array]) -> Array | LoDTensor:
    """Rows with a LoD of these lengths by level; the rows alone where there is none."""
    return LoDTensor(rows, tuple(map(_offsets, lengths))) if lengths else rows


def _offsets(lengths: Array) -> tuple[int, ...]:
    return (0, *np.cumsum(lengths).tolist())


def lod_of(value: Any) -> Lod:
    """The LoD of a value, () where it has none."""
    return value.lod if isinstance(value, LoDTensor) else ()


def lod_rank_table(ctx: KernelContext, X: Any, *, level: int) -> RankTable:
    lod = lod_of(X)
    if not 0 <= level < len(lod):
        raise ShapeError(
            f"op {ctx.op.type!r}: {argument(ctx, 'X')!r} has {len(lod)} LoD level(s), none of number {level}; feed it with "
            "fluid.create_lod_tensor"
        )
    return RankTable.of(lod, level)


def max_sequence_len(ctx: KernelContext, RankTable: RankTable) -> Array:
    return np.array([RankTable.steps], np.int64)


def lod_tensor_to_array(ctx: KernelContext, X: Any, RankTable: RankTable) -> list[Any]:
    table, array = RankTable, array_of(X)
    offsets = np.asarray(table.offsets(), np.int64)
    depth = len(table.coarse)
    finer = lod_of(X)[depth + 1 :]  # a gradient may come without LoD: then it is the table's own level
    units = len(finer[0]) - 1 if finer else len(array)
    if units != offsets[-1]:
        raise ShapeError(
            f"op {ctx.op.type!r}: {argument(ctx, 'X')!r} has {units} units at LoD level {depth}, but the sequences of "
            f"{argument(ctx, 'RankTable')!r} have {offsets[-1]}"
        )
    order = np.asarray(table.order, np.int64)
    return [picked(array, finer, offsets[order[: table.longer(step)]] + step) for step in range(table.steps)]


def array_to_lod_tensor(ctx: KernelContext, X: list[Any], RankTable: RankTable) -> Any:
    table = RankTable
    parts = _all_steps(ctx, X, table)
    if not parts:
        raise ShapeError(f"op {ctx.op.type!r}: all sequences of {argument(ctx, 'RankTable')!r} are empty")
    whole = joined(parts)
    starts = _offsets(np.array([table.longer(step) for step in range(len(parts))]))
    rank = {sequence: place for place, sequence in enumerate(table.order)}
    units = [
        starts[step] + rank[sequence] for sequence in range(len(rank)) for step in range(table.lengths[rank[sequence]])
    ]
    back = picked(array_of(whole), lod_of(whole), units)
    return LoDTensor(array_of(back), (*table.coarse, table.offsets(), *lod_of(back)))


def _all_steps(ctx: KernelContext, entries: list[Any], table: RankTable) -> list[Any]:
    """An entry for each step; of an array of gradients, zeros for those that nothing made."""
    present = next((entry for entry in entries if entry is not None), None)
    steps = [*entries, *[None] * (table.steps - len(entries))][: table.steps]
    for step, entry in enumerate(steps):
        if entry is None:
            if present is None or lod_of(present) or not names.is_grad(ctx.op.inputs["X"][0]):
                raise UninitializedError(f"op {ctx.op.type!r}: nothing wrote entry {step} of {argument(ctx, 'X')!r}")
            like = array_of(present)
            steps[step] = np.zeros((table.longer(step), *like.shape[1:]), like.dtype)
    return steps


def shrink_rnn_memory(ctx: KernelContext, X: Any, RankTable: RankTable, I: Any) -> Any:  # noqa: E741
    kept = RankTable.longer(scalar(array_of(I)))
    lod = lod_of(X)
    return picked(array_of(X), lod, range(kept)) if lod else array_of(X)[:kept]


def shrink_rnn_memory_grad(ctx: KernelContext, X: Any, Out_GRAD: Any) -> Any:
    gradient = np.zeros_like(array_of(X))
    if Out_GRAD is not None:
        given = array_of(Out_GRAD)
        gradient[: len(given)] = given
    return LoDTensor(gradient, lod_of(X)) if lod_of(X) else gradient


def reorder_lod_tensor_by_rank(ctx: KernelContext, X: Any, RankTable: RankTable) -> Any:
    return picked(array_of(X), lod_of(X), _checked(ctx, X, RankTable))


def reorder_lod_tensor_by_rank_grad(ctx: KernelContext, X: Any, RankTable: RankTable) -> Any:
    return picked(array_of(X), lod_of(X), np.argsort(_checked(ctx, X, RankTable)).tolist())


def _checked(ctx: KernelContext, value: Any, table: RankTable) -> tuple[int, ...]:
    lod = lod_of(value)
    units = len(lod[0]) - 1 if lod else len(array_of(value))
    if units != len(table.order):
        raise ShapeError(
            f"op {ctx.op.type!r}: {argument(ctx, 'X')!r} has {units} sequences, but {argument(ctx, 'RankTable')!r} has "
            f"{len(table.order)}"
        )
    return table.order


def _turned(type: str) -> GradMaker:
    """The gradient: X = Out@GRAD -> Out = X@GRAD, by the op that goes the other way."""

    def make(op: Operator) -> list[Operator]:
        inputs = {"X": [names.grad(op.outputs["Out"][0])], "RankTable": list(op.inputs["RankTable"])}
        return [Operator(type, inputs, {"Out": [names.grad(op.inputs["X"][0])]}, origin=op.origin)]

    return make


def _infer_table(ctx: InferContext) -> None:
    for var in ctx.outputs("Out"):
        var.kind = VarKind.LOD_RANK_TABLE


def _infer_length(ctx: InferContext) -> None:
    ctx.set("Out", (1,), "int64")


def _infer_array(ctx: InferContext) -> None:
    x = ctx.input("X")
    ctx.set("Out", x.shape, x.dtype, lod_level=max(x.lod_level - 1, 0), kind=VarKind.LOD_TENSOR_ARRAY)


def _infer_tensor(ctx: InferContext, levels: int = 1) -> None:
    x = ctx.input("X")
    ctx.set("Out", x.shape, x.dtype, lod_level=x.lod_level + levels)


def _infer_same(ctx: InferContext) -> None:
    _infer_tensor(ctx, 0)


_ROWS = np.arange(1.0, 7.0).reshape(6, 1)
_LOD = ((0, 2, 2, 5, 6),)
_X = LoDTensor(_ROWS, _LOD)
_TABLE = RankTable.of(_LOD, 0)
_STEPS = [np.array([[3.0], [1.0], [6.0]]), np.array([[4.0], [2.0]]), np.array([[5.0]])]
_DEEP = LoDTensor(_ROWS, ((0, 1, 3), (0, 2, 3, 6)))
_DEEP_TABLE = RankTable.of(_DEEP.lod, 0)
_DEEP_STEPS = [
    LoDTensor(np.array([[3.0], [1.0], [2.0]]), ((0, 1, 3),)),
    LoDTensor(np.array([[4.0], [5.0], [6.0]]), ((0, 3),)),
]
_MEMORY = np.array([[1.0], [2.0], [3.0], [4.0]])

register(
    "lod_rank_table",
    doc="Out: the sequences of LoD `level` of X, longest first.",
    inputs=["X"],
    outputs=["Out"],
    attrs={"level": int_attr(0)},
    infer=_infer_table,
    kernel=lod_rank_table,
    takes_lod=True,
    cases=(
        Case({"X": _X}, {}, {"Out": _TABLE}),
        Case({"X": _DEEP}, {"level": 1}, {"Out": RankTable((2, 0, 1), (3, 2, 1), _DEEP.lod[:1])}),
    ),
)
register(
    "max_sequence_len",
    doc="Out (1,) int64: the length of the longest sequence of RankTable.",
    inputs=["RankTable"],
    outputs=["Out"],
    infer=_infer_length,
    kernel=max_sequence_len,
    cases=(Case({"RankTable": _TABLE}, {}, {"Out": np.array([3])}),),
)
register(
    "lod_tensor_to_array",
    doc="Out: a tensor array; entry t holds unit t of each sequence of X that is longer, the longest sequence first.",
    inputs=["X", "RankTable"],
    outputs=["Out"],
    infer=_infer_array,
    kernel=lod_tensor_to_array,
    grad=_turned("array_to_lod_tensor"),
    takes_lod=True,
    cases=(
        Case({"X": _X, "RankTable": _TABLE}, {}, {"Out": _STEPS}),
        Case({"X": _DEEP, "RankTable": _DEEP_TABLE}, {}, {"Out": _DEEP_STEPS}, note="two levels"),
    ),
)
register(
    "array_to_lod_tensor",
    doc="Out: the sequences whose steps the tensor array X holds; the inverse of lod_tensor_to_array.",
    inputs=["X", "RankTable"],
    outputs=["Out"],
    infer=_infer_tensor,
    kernel=array_to_lod_tensor,
    grad=_turned("lod_tensor_to_array"),
    takes_lod=True,
    cases=(
        Case({"X": _STEPS, "RankTable": _TABLE}, {}, {"Out": _X}),
        Case({"X": _DEEP_STEPS, "RankTable": _DEEP_TABLE}, {}, {"Out": _DEEP}, note="two levels"),
    ),
)
register(
    "shrink_rnn_memory",
    doc="Out: the first rows of X, one for each sequence of RankTable with more than I units.",
    inputs=["X", "RankTable", "I"],
    outputs=["Out"],
    infer=_infer_same,
    kernel=shrink_rnn_memory,
    grad=maker(["X", "Out@GRAD"], ["X@GRAD"]),
    takes_lod=True,
    cases=(
        Case(
            {"X": _MEMORY, "RankTable": _TABLE, "I": np.array([1])},
            {},
            {"Out": np.array([[1.0], [2.0]])},
            check_grad=("X",),
        ),
        Case(
            {"X": LoDTensor(_ROWS, ((0, 2, 3, 5, 6),)), "RankTable": _TABLE, "I": np.array([1])},
            {},
            {"Out": LoDTensor(_ROWS[:3], ((0, 2, 3),))},
        ),
    ),
)
register(
    "shrink_rnn_memory_grad",
    doc="Gradient of shrink_rnn_memory: Out@GRAD, then zeros.",
    inputs=["X", "Out@GRAD"],
    outputs=["X@GRAD"],
    infer=grads_like_forward,
    kernel=shrink_rnn_memory_grad,
    takes_lod=True,
)
register(
    "reorder_lod_tensor_by_rank",
    doc="Out: the sequences of X (rows where it has no LoD) in the order of RankTable.",
    inputs=["X", "RankTable"],
    outputs=["Out"],
    infer=_infer_same,
    kernel=reorder_lod_tensor_by_rank,
    grad=_turned("reorder_lod_tensor_by_rank_grad"),
    takes_lod=True,
    cases=(
        Case({"X": _MEMORY, "RankTable": _TABLE}, {}, {"Out": _MEMORY[[2, 0, 3, 1]]}, check_grad=("X",)),
        Case({"X": _X, "RankTable": _TABLE}, {}, {"Out": LoDTensor(_ROWS[[2, 3, 4, 0, 1, 5]], ((0, 3, 5, 6, 6),))}),
    ),
)
register(
    "reorder_lod_tensor_by_rank_grad",
    doc="Gradient of reorder_lod_tensor_by_rank: its inverse.",
    inputs=["X", "RankTable"],
    outputs=["Out"],
    infer=_infer_same,
    kernel=reorder_lod_tensor_by_rank_grad,
    takes_lod=True,
)
