"""The fast form of a bound op, for values that are bare arrays: where each argument lives is settled beforehand, the
kernel is called by position, and there is no LoD to hand on. Whatever else a run brings goes to the op's plain step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from fluidlite.core.ir import EMPTY, Operator
from fluidlite.dtypes import Array
from fluidlite.ops import registry
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Kernel, OpDef, kwarg, parameters_of
from fluidlite.runtime.bind import detached, located
from fluidlite.runtime.env import Env, Step


def bind(ctx: KernelContext, plain: Step, persistable: frozenset[str], changing: Collection[str]) -> Step:
    """A closure that does what ``plain`` does; ``plain`` itself where the op has arguments of other forms.

    ``changing``: inputs that outputs may not be views of.
    """
    op_def = registry.get(ctx.op.type)
    kernel = op_def.kernel
    assert kernel is not None
    inputs, targets = _inputs(ctx.op, op_def, kernel), _targets(ctx.op, op_def)
    if inputs is None or targets is None:
        return plain
    sources = [(name, name in persistable) for name in inputs]
    constants = _constants(ctx.op, op_def, kernel)
    watched = [index for index, name in enumerate(inputs) if name in changing]
    store = _writer(op_def, targets, persistable, watched)
    only = _only_temporary(op_def, targets, persistable) if not watched else None

    def step(env: Env) -> None:
        local, scoped = env.local, env.scope.values
        values = []
        for name, kept in sources:
            value = (scoped if kept else local).get(name)
            if type(value) is not np.ndarray:
                return plain(env)
            values.append(value)
        try:
            result = kernel(ctx, *values, **constants)
            if only is not None and type(result) is np.ndarray:
                local[only] = result
            else:
                store(env, result, values)
        except Exception as error:
            failure = located(error, ctx)
            raise failure from failure.__cause__
        return None

    return step


def _writer(
    op_def: OpDef, targets: Sequence[tuple[str, str]], persistable: frozenset[str], watched: Sequence[int]
) -> Callable[[Env, Any, Sequence[Array]], None]:
    """A function that writes what a kernel returned; ``watched``: positions of the inputs that it may not be a view of."""
    stores = [(output, name, name in persistable) for output, name in targets]
    first = op_def.outputs[0].name if op_def.outputs else ""

    def write(env: Env, result: Any, inputs: Sequence[Array]) -> None:
        if not isinstance(result, dict):
            result = {first: result}
        for output, name, kept in stores:
            value = result.get(output)
            if value is None:
                continue
            if watched:
                value = _apart(value, inputs, watched)
            if kept:
                env.scope.set(name, value)
            else:
                env.local[name] = value

    return write


def _only_temporary(op_def: OpDef, targets: Sequence[tuple[str, str]], persistable: frozenset[str]) -> str | None:
    """The variable of an op that writes a single one, its first output, if that is a temporary."""
    if len(targets) != 1:
        return None
    ((output, name),) = targets
    return name if output == op_def.outputs[0].name and name not in persistable else None


def _inputs(op: Operator, op_def: OpDef, kernel: Kernel) -> list[str] | None:
    """The variables that the kernel takes by position, in order; None where it takes lists, or where an absent input
    stands before one that is given, or where the LoD to hand on is not one of theirs."""
    by_keyword = {kwarg(arg.name): arg for arg in op_def.inputs}
    by_position = _positional(kernel)
    found: list[str] = []
    absent = False
    for parameter in list(inspect.signature(kernel).parameters.values())[1:]:
        arg = by_keyword.get(parameter.name)
        given = op.inputs.get(arg.name, []) if arg is not None else []
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return None
        if arg is not None and given and (arg.many or absent or parameter.name not in by_position or given == [EMPTY]):
            return None
        absent = absent or not given
        found += given[:1]
    shares = op.inputs.get(op_def.share_lod, []) if op_def.share_lod is not None else []
    return found if set(shares) <= set(found) else None


def _positional(kernel: Kernel) -> set[str]:
    """The parameters that go by position; of a kernel that wraps another one, those that it has itself."""
    parameters = inspect.signature(kernel, follow_wrapped=False).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD}


def _constants(op: Operator, op_def: OpDef, kernel: Kernel) -> dict[str, Any]:
    """What the kernel gets at every run: its attributes, and None or no list for inputs that the op does not have."""
    takes, attrs = parameters_of(kernel, op_def)
    values = registry.attr_values(op_def, op)
    unused = [arg for arg in op_def.inputs if arg.name in takes and not op.inputs.get(arg.name)]
    absent: dict[str, Any] = {kwarg(arg.name): [] if arg.many else None for arg in unused}
    return absent | {kwarg(name): values[name] for name in attrs}


def _targets(op: Operator, op_def: OpDef) -> list[tuple[str, str]] | None:
    """(output, variable) of what the op writes; None where an output may be many."""
    if any(arg.many and op.outputs.get(arg.name) for arg in op_def.outputs):
        return None
    given = [(arg.name, name) for arg in op_def.outputs for name in op.outputs.get(arg.name, [])[:1]]
    return [(output, name) for output, name in given if name != EMPTY]


def _apart(value: Any, inputs: Sequence[Array], watched: Sequence[int]) -> Any:
    """The value, copied if it lies in one of the watched inputs. An array that owns its memory and is no input is new."""
    if type(value) is np.ndarray and value.base is None and not any(value is given for given in inputs):
        return value
    return detached(value, [inputs[index] for index in watched])
