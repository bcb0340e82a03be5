"""split_lod_tensor and merge_lod_tensor: the part of a batch where a condition holds, the rest, and both again."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError, UninitializedError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.ids import argument
from fluidlite.ops.infer import InferContext
from fluidlite.ops.rank_table import joined, lod_of, picked
from fluidlite.ops.registry import Case, int_attr, register
from fluidlite.ops.segments import array_of
from fluidlite.values.lod import LoDTensor

_LEVEL = {"level": int_attr(0, "the LoD level whose sequences Mask speaks of")}


def split_lod_tensor(ctx: KernelContext, X: Any, Mask: Any, *, level: int) -> dict[str, Any]:
    chosen, lod = array_of(Mask).reshape(-1).astype(bool), lod_of(X)[level:]
    units = len(lod[0]) - 1 if lod else len(array_of(X))
    if units != len(chosen):
        raise ShapeError(
            f"op {ctx.op.type!r}: {argument(ctx, 'Mask')!r} has {len(chosen)} elements for {units} sequences of "
            f"{argument(ctx, 'X')!r}"
        )
    return {
        "OutTrue": picked(array_of(X), lod, np.flatnonzero(chosen).tolist()),
        "OutFalse": picked(array_of(X), lod, np.flatnonzero(~chosen).tolist()),
    }


def merge_lod_tensor(ctx: KernelContext, X: Any, Mask: Any, *, level: int) -> Any:
    """A part of which there is nothing may be missing: a block that had no rows to compute on did not run."""
    chosen = array_of(Mask).reshape(-1).astype(bool)
    parts = [_part(ctx, "InTrue", int(chosen.sum())), _part(ctx, "InFalse", int((~chosen).sum()))]
    present = [part for part in parts if part is not None]
    if not present:
        raise UninitializedError(
            f"op {ctx.op.type!r}: nothing wrote {argument(ctx, 'InTrue')!r} or {argument(ctx, 'InFalse')!r}"
        )
    place = np.empty(len(chosen), np.int64)
    place[chosen] = np.arange(int(chosen.sum()))
    place[~chosen] = np.arange(int((~chosen).sum())) + int(chosen.sum())
    whole = joined(present)
    merged = picked(array_of(whole), lod_of(whole), place.tolist())
    lod = (*lod_of(X)[:level], *lod_of(merged))
    return LoDTensor(array_of(merged), lod) if lod else merged


def _part(ctx: KernelContext, name: str, count: int) -> Any:
    """The value of an input, None where it holds nothing."""
    value = ctx.read(ctx.op.inputs[name][0])
    units = 0 if value is None else len(lod_of(value)[0]) - 1 if lod_of(value) else len(array_of(value))
    if units != count:
        raise ShapeError(
            f"op {ctx.op.type!r}: {argument(ctx, name)!r} holds {units} sequences where Mask wants {count}"
        )
    return value if count else None


def _split_back(op: Operator) -> list[Operator]:
    inputs = {
        "InTrue": [names.grad(op.outputs["OutTrue"][0])],
        "InFalse": [names.grad(op.outputs["OutFalse"][0])],
        "Mask": list(op.inputs["Mask"]),
        "X": list(op.inputs["X"]),
    }
    return [_turned("merge_lod_tensor", op, inputs, {"Out": [names.grad(op.inputs["X"][0])]})]


def _merge_back(op: Operator) -> list[Operator]:
    inputs = {"X": [names.grad(op.outputs["Out"][0])], "Mask": list(op.inputs["Mask"])}
    outputs = {"OutTrue": [names.grad(op.inputs["InTrue"][0])], "OutFalse": [names.grad(op.inputs["InFalse"][0])]}
    return [_turned("split_lod_tensor", op, inputs, outputs)]


def _turned(type: str, op: Operator, inputs: dict[str, list[str]], outputs: dict[str, list[str]]) -> Operator:
    attrs = {name: attr for name, attr in op.attrs.items() if name not in ("op_role", "op_role_var")}
    return Operator(type, inputs, outputs, attrs, op.origin)


def _infer_split(ctx: InferContext) -> None:
    x = ctx.input("X")
    shape = None if x.shape is None else (-1, *x.shape[1:])
    for name in ("OutTrue", "OutFalse"):
        ctx.set(name, shape, x.dtype, lod_level=max(x.lod_level - ctx.attr("level"), 0))


def _infer_merge(ctx: InferContext) -> None:
    part = ctx.input("InTrue")
    ctx.set("Out", None if part.shape is None else (-1, *part.shape[1:]), part.dtype)


_X = np.array([[1.0], [2.0], [3.0]])
_MASK = np.array([[False], [True], [False]])
_DEEP = LoDTensor(_X, ((0, 2, 2, 3),))


def _parts(true: Any, false: Any) -> dict[str, Array | LoDTensor]:
    return {"OutTrue": true, "OutFalse": false}


register(
    "split_lod_tensor",
    doc="OutTrue: the sequences of X (rows where it has no LoD) for which Mask (n, 1) is true; OutFalse: the others.",
    inputs=["X", "Mask"],
    outputs=["OutTrue", "OutFalse"],
    attrs=_LEVEL,
    infer=_infer_split,
    kernel=split_lod_tensor,
    grad=_split_back,
    takes_lod=True,
    cases=(
        Case({"X": _X, "Mask": _MASK}, {}, _parts(_X[1:2], _X[[0, 2]]), check_grad=("X",)),
        Case({"X": _DEEP, "Mask": ~_MASK}, {}, _parts(LoDTensor(_X, ((0, 2, 3),)), LoDTensor(_X[:0], ((0, 0),)))),
    ),
)
_MERGE = """Out: sequences of InTrue and InFalse, in the order in which Mask (n, 1) is true or false; X gives the LoD levels above
`level`. A part that nothing wrote counts as empty.{}
"""
register(
    "merge_lod_tensor",
    doc=_MERGE.format(""),
    inputs=["X", "Mask", "InTrue", "InFalse"],
    outputs=["Out"],
    attrs=_LEVEL,
    infer=_infer_merge,
    kernel=merge_lod_tensor,
    grad=_merge_back,
    takes_lod=True,
    cases=(
        Case(
            {"X": _MASK, "Mask": _MASK, "InTrue": _X[:1], "InFalse": _X[1:]},
            {},
            {"Out": _X[[1, 0, 2]]},
            check_grad=("InTrue", "InFalse"),
        ),
    ),
)
register(
    "merge_lod_tensor_infer",
    doc=_MERGE.format(" The form of merge_lod_tensor in programs that are only run forward."),
    inputs=["X", "Mask", "InTrue", "InFalse"],
    outputs=["Out"],
    attrs=_LEVEL,
    infer=_infer_merge,
    kernel=merge_lod_tensor,
    takes_lod=True,
    cases=(Case({"X": _MASK, "Mask": _MASK, "InTrue": _X[:1], "InFalse": _X[1:]}, {}, {"Out": _X[[1, 0, 2]]}),),
)
