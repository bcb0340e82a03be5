"""`py_func`: a Python function as an op.

A program names its functions by number. Numbers are given by `register_callable` in this process, together with the
outputs of the op that calls the function, so a program that was read from a file can never reach a function that was not
registered for it: it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from fluidlite.core import names
from fluidlite.core.ir import EMPTY, Attr, AttrType, Operator
from fluidlite.dtypes import numpy_dtype
from fluidlite.errors import OpRunError, ProgramError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.grads import without_role
from fluidlite.ops.infer import InferContext
from fluidlite.ops.registry import int_attr, register, strings_attr
from fluidlite.values.lod import LoDTensor


class Registered(NamedTuple):
    """A function, and the variables that the op which may call it was made to write."""

    function: Callable[..., Any]
    outputs: tuple[str, ...]


_registered: Final[list[Registered]] = []


def register_callable(function: Callable[..., Any], outputs: Sequence[str]) -> int:
    """Allow ops of this process that write ``outputs`` (or their gradients) to call a function; its number."""
    _registered.append(Registered(function, tuple(outputs)))
    return len(_registered) - 1


def _callable_of(ctx: KernelContext, number: int) -> Callable[..., Any]:
    found = _registered[number] if 0 <= number < len(_registered) else None
    written = ctx.op.outputs.get("Out", [])
    # a gradient op reads the gradients of the forward op's outputs
    upstream = [names.forward_of(name) for name in ctx.op.inputs["X"] if name != names.forward_of(name)]
    if found is None or not ({*found.outputs} == {*written} or {*upstream} & {*found.outputs}):
        raise ProgramError(
            f"op 'py_func' of {', '.join(written) or 'no output'}: no function {number} was registered for it in this "
            "process; a program read from a file cannot bring Python code along, build it with layers.py_func"
        )
    return found.function


def py_func(ctx: KernelContext, X: list[Any], *, forward_callable_id: int) -> list[Any]:
    given = [value if value is None or isinstance(value, LoDTensor) else LoDTensor(value) for value in X]
    result = _callable_of(ctx, forward_callable_id)(*given)
    wanted = ctx.op.outputs.get("Out", [])
    values = list(result) if isinstance(result, (list, tuple)) else [result]
    if not wanted or (len(wanted) != len(values) and values == [None]):
        values = [None] * len(wanted)
    if len(values) != len(wanted):
        raise OpRunError(f"op 'py_func': the function gave {len(values)} values for {len(wanted)} outputs {wanted}")
    return [_as_declared(ctx, name, value) for name, value in zip(wanted, values, strict=True)]


def _as_declared(ctx: KernelContext, name: str, value: Any) -> Any:
    """What a function returned, checked against the output's dtype."""
    if value is None or name == EMPTY:
        return None
    array = value.array if isinstance(value, LoDTensor) else np.asarray(value)
    dtype = ctx.var(name).dtype
    if array.dtype != numpy_dtype(dtype):
        raise OpRunError(f"op 'py_func': the function gave {array.dtype} for {name!r}, which is declared {dtype}")
    return LoDTensor(array, value.lod) if isinstance(value, LoDTensor) and value.lod else array


def _grad(op: Operator) -> list[Operator]:
    """The backward function gets inputs, outputs and gradients of outputs, without those to be left out."""
    backward = int(op.attr("backward_callable_id", default=-1))
    if backward < 0:
        return []
    skipped = {*op.attr("backward_skip_vars", default=())}
    inputs, outputs = op.inputs.get("X", []), op.outputs.get("Out", [])
    given = [name for name in [*inputs, *outputs] if name not in skipped]
    attrs = without_role(op)
    attrs["forward_callable_id"] = Attr(AttrType.INT, backward)
    attrs["backward_callable_id"] = Attr(AttrType.INT, -1)
    attrs.pop("backward_skip_vars", None)
    gradients = [names.grad(name) for name in outputs]
    return [
        Operator("py_func", {"X": [*given, *gradients]}, {"Out": [names.grad(x) for x in inputs]}, attrs, op.origin)
    ]


def _infer(ctx: InferContext) -> None:
    """Gradients are like their variables; what a function gives, its user has declared."""
    for argument in ctx.op.outputs.get("Out", ()):
        source = names.forward_of(argument)
        forward = ctx.program.find_var(source, ctx.block) if source != argument else None
        if forward is not None and argument != EMPTY:
            out = ctx.find(argument)
            out.shape, out.dtype, out.lod_level = forward.shape, forward.dtype, forward.lod_level


register(
    "py_func",
    doc="Out = what a Python function of this process gives for X (LoDTensors). A program read from a file is refused.",
    inputs=["X*"],
    outputs=["Out*"],
    attrs={
        "forward_callable_id": int_attr(0),
        "backward_callable_id": int_attr(-1, "-1: no gradient"),
        "backward_skip_vars": strings_attr(doc="inputs and outputs that the backward function does not get"),
    },
    infer=_infer,
    kernel=py_func,
    grad=_grad,
    takes_lod=True,
    side_effect=True,
)
