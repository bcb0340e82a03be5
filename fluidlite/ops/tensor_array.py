"""Lists of tensors, and one of several: write_to_array, read_from_array, lod_array_length, select_input, select_output.

A tensor array is a Python list; entries that nothing wrote are None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import Operator
from fluidlite.dtypes import Array, VarKind
from fluidlite.errors import OutOfRangeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import Case, GradMaker, register
from fluidlite.ops.shapes import scalar
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
    entries[position] = X
    return entries


def read_from_array(ctx: KernelContext, X: list[Any], I: Any) -> Any:  # noqa: E741
    position = _position(I)
    return X[position] if position < len(X) else None


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
