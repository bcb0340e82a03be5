"""Lists of tensors, and one of several: write_to_array, read_from_array, lod_array_length, tensor_array_to_tensor,
select_input, select_output.

A tensor array is a Python list; entries that nothing wrote are None. The gradients of write_to_array and read_from_array
are each other, on the array of gradients: there a write adds, and a read takes the entry away, so that entries that are read
or written several times get the gradients that they should.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import Operator, OpRole
from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import OutOfRangeError, ShapeError, UninitializedError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import maker
from fluidlite.ops.infer import InferContext, like
from fluidlite.ops.registry import Case, GradMaker, bool_attr, int_attr, register
from fluidlite.ops.segments import array_of
from fluidlite.ops.shapes import scalar
from fluidlite.ops.steps import added, zeros_like
from fluidlite.values.lod import LoDTensor


def _position(index: Any) -> int:
    position = scalar(index.array if isinstance(index, LoDTensor) else index)
    if position < 0:
        raise OutOfRangeError(f"index {position} into a tensor array")
    return position


def write_to_array(ctx: KernelContext, X: Any, I: Any) -> list[Any]:  # noqa: E741  the op's name for it
    position = _position(I)
    before = ctx.read(ctx.op.outputs["Out"][0]) or []
    entries = [*before, *[None] * (position + 1 - len(before))]
    entries[position] = added(entries[position], X) if ctx.op.role & OpRole.BACKWARD else X
    return entries


def read_from_array(ctx: KernelContext, X: list[Any], I: Any, X_W: Any) -> Any:  # noqa: E741
    position = _position(I)
    found = X[position] if position < len(X) else None
    if X_W is None:
        return found
    if position < len(X):
        X[position] = None  # what was there before was overwritten and has no part in the result
    return zeros_like(X_W) if found is None else found


def tensor_array_to_tensor(ctx: KernelContext, X: list[Any], *, axis: int, use_stack: bool) -> dict[str, Any]:
    parts = [_entry(ctx, X, index) for index in range(len(X))]
    if not parts:
        raise ShapeError(f"op {ctx.op.type!r}: the tensor array {ctx.op.input('X')!r} is empty")
    sizes = np.array([1 if use_stack else part.shape[axis] for part in parts], np.int32)
    return {"Out": np.stack(parts, axis) if use_stack else np.concatenate(parts, axis), "OutIndex": sizes}


def tensor_array_to_tensor_grad(
    ctx: KernelContext, X: list[Any], Out_GRAD: Any, *, axis: int, use_stack: bool
) -> list[Any]:
    gradient = array_of(Out_GRAD)
    if use_stack:
        return [np.take(gradient, index, axis) for index in range(len(X))]
    ends = np.cumsum([array_of(entry).shape[axis] for entry in X])
    return list(np.split(gradient, ends[:-1], axis))


def _entry(ctx: KernelContext, entries: list[Any], index: int) -> Array:
    if entries[index] is None:
        raise UninitializedError(f"op {ctx.op.type!r}: nothing wrote entry {index} of {ctx.op.input('X')!r}")
    return array_of(entries[index])


def lod_array_length(ctx: KernelContext, X: list[Any]) -> Array:
    return np.array([len(X)], np.int64)


def select_input(ctx: KernelContext, X: list[Any], Mask: Any) -> Any:
    return X[_branch(Mask, len(X))]


def select_output(ctx: KernelContext, X: Any, Mask: Any) -> dict[str, Any]:
    count = ctx.n_outputs("Out")
    chosen = _branch(Mask, count)
    return {"Out": [X if i == chosen else None for i in range(count)]}


def _branch(mask: Any, count: int) -> int:
    branch = _position(mask)
    if branch >= count:
        raise OutOfRangeError(f"Mask chooses branch {branch} of {count}")
    return branch


def _infer_write(ctx: InferContext) -> None:
    x = ctx.input("X")
    ctx.set("Out", x.shape, x.dtype, lod_level=x.lod_level, kind=VarKind.LOD_TENSOR_ARRAY)


def _infer_read(ctx: InferContext) -> None:
    x = ctx.input("X")
    ctx.set("Out", x.shape, x.dtype, lod_level=x.lod_level)


def _infer_joined(ctx: InferContext) -> None:
    """The number of entries is known at run time only."""
    x, axis = ctx.input("X"), ctx.attr("axis")
    ctx.set("OutIndex", None, "int32")
    if x.shape is None:
        ctx.set("Out", None, x.dtype)
        return
    shape = list(x.shape)
    if ctx.attr("use_stack"):
        shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, -1)
    else:
        shape[axis] = -1
    ctx.set("Out", tuple(shape), x.dtype)


def _infer_length(ctx: InferContext) -> None:
    ctx.set("Out", (1,), "int64")


def _turned(type: str, inputs: Mapping[str, str]) -> GradMaker:
    """The gradient is the opposite op on gradients: X = Out@GRAD -> Out = X@GRAD, with further inputs of the op."""

    def make(op: Operator) -> list[Operator]:
        given = {name: list(op.inputs[source]) for name, source in inputs.items() if op.inputs.get(source)}
        given["X"] = [names.grad(argument) for argument in op.outputs["Out"]]
        return [Operator(type, given, {"Out": [names.grad(name) for name in op.inputs["X"]]}, origin=op.origin)]

    return make


_A, _B = np.array([[1.0, 2.0]]), LoDTensor(np.array([[3.0, 4.0], [5.0, 6.0]]), ((0, 1, 2),))

register(
    "write_to_array",
    doc="Out = the tensor array Out with X at position I; it grows as needed.",
    inputs=["X", "I"],
    outputs=["Out"],
    infer=_infer_write,
    kernel=write_to_array,
    grad=_turned("read_from_array", {"I": "I", "X_W": "X"}),
    takes_lod=True,
    cases=(Case({"X": _A, "I": np.array([1])}, {}, {"Out": [None, _A]}),),
)
register(
    "read_from_array",
    doc="Out = entry I of the tensor array X; beyond its end nothing is written.",
    inputs=["X", "I", "X_W?"],
    outputs=["Out"],
    infer=_infer_read,
    kernel=read_from_array,
    grad=_turned("write_to_array", {"I": "I"}),
    takes_lod=True,
    cases=(Case({"X": [_A, _B], "I": np.array([1])}, {}, {"Out": _B}),),
)
register(
    "lod_array_length",
    doc="Out (1,) int64 = the number of entries of the tensor array X.",
    inputs=["X"],
    outputs=["Out"],
    infer=_infer_length,
    kernel=lod_array_length,
    cases=(Case({"X": [_A, _B]}, {}, {"Out": np.array([2])}),),
)
_JOIN = {"axis": int_attr(0), "use_stack": bool_attr(default=False, doc="along a new axis")}
register(
    "tensor_array_to_tensor",
    doc="Out = the entries of the tensor array X, concatenated (or stacked) along `axis`; OutIndex int32: their sizes there.",
    inputs=["X"],
    outputs=["Out", "OutIndex"],
    attrs=_JOIN,
    infer=_infer_joined,
    kernel=tensor_array_to_tensor,
    grad=maker(["X", "Out@GRAD"], ["X@GRAD"]),
    takes_lod=True,
    cases=(
        Case(
            {"X": [_A, _B]}, {}, {"Out": np.array([[1.0, 2], [3, 4], [5, 6]]), "OutIndex": np.array([1, 2], np.int32)}
        ),
        Case(
            {"X": [_A, 2 * _A]},
            {"axis": 1, "use_stack": True},
            {"Out": np.array([[[1.0, 2], [2, 4]]]), "OutIndex": np.array([1, 1], np.int32)},
        ),
    ),
)
register(
    "tensor_array_to_tensor_grad",
    doc="Gradient of tensor_array_to_tensor: the parts of Out@GRAD as a tensor array.",
    inputs=["X", "Out@GRAD"],
    outputs=["X@GRAD"],
    attrs=_JOIN,
    infer=like("X", "X@GRAD"),
    kernel=tensor_array_to_tensor_grad,
    takes_lod=True,
)
register(
    "select_input",
    doc="Out = the X that Mask (one integer) names.",
    inputs=["X*", "Mask"],
    outputs=["Out"],
    infer=_infer_read,
    kernel=select_input,
    grad=_turned("select_output", {"Mask": "Mask"}),
    takes_lod=True,
    cases=(Case({"X": [_A, 2 * _A], "Mask": np.array([1], np.int32)}, {}, {"Out": 2 * _A}),),
)
register(
    "select_output",
    doc="Writes X to the Out that Mask (one integer) names; the others stay unwritten.",
    inputs=["X", "Mask"],
    outputs=["Out*"],
    infer=_infer_read,
    kernel=select_output,
    grad=_turned("select_input", {"Mask": "Mask"}),
    takes_lod=True,
    cases=(Case({"X": _A, "Mask": np.array([1], np.int32)}, {}, {"Out": [None, _A]}, {"Out": 2}),),
)
