"""The fast form of a bound op, for values that are bare arrays, or sparse where the op takes such: where each argument
lives is settled beforehand, the kernel is called by position, and there is no LoD to hand on. Whatever else a run brings
goes to the op's plain step."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from fluidlite.core.ir import EMPTY, Operator
from fluidlite.ops import registry
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Kernel, OpDef, kwarg, parameters_of
from fluidlite.runtime import in_place
from fluidlite.runtime.bind import detached, located
from fluidlite.runtime.env import Env, Step
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable, TableColumn

#: what an input that may be sparse holds when it is no array
_SPARSE: Final = frozenset({SelectedRows, SparseTable, TableColumn})


class _Source(NamedTuple):
    """An input that a kernel takes by position: the kernel's parameter, and the variables, none where the op has no such
    input. ``sparse``: they may hold other things than arrays."""

    parameter: str
    names: list[str]
    many: bool
    sparse: bool


class _Target(NamedTuple):
    """The variables that an output writes, ``@EMPTY@`` among them where nothing asks for a part of a list."""

    output: str
    names: list[str]
    many: bool


def bind(
    ctx: KernelContext,
    plain: Step,
    persistable: frozenset[str],
    changing: Collection[str],
    dying: Collection[str] = (),
) -> Step:
    """A closure that does what ``plain`` does; ``plain`` itself where the op has arguments of other forms.

    ``changing``: inputs that outputs may not be views of. ``dying``: inputs whose memory the step may take.
    """
    op_def = registry.get(ctx.op.type)
    kernel = op_def.kernel
    assert kernel is not None
    inputs, targets = _inputs(ctx.op, op_def, kernel), _targets(ctx.op, op_def)
    if inputs is None:
        return plain
    names = [(name, source.sparse) for source in inputs for name in source.names]
    sources = [(name, name in persistable, sparse) for name, sparse in names]
    placed = {source.parameter for source in inputs}
    constants = {key: value for key, value in _constants(ctx.op, op_def, kernel).items() if key not in placed}
    grouped = _grouping(inputs)
    watched = [index for index, (name, _) in enumerate(names) if name in changing]
    store = _writer(op_def, targets, persistable, watched)
    only = _only_temporary(op_def, targets, persistable) if not watched else None
    taking = in_place.taking(ctx, op_def, [name for name, _ in names], frozenset(dying).difference(changing))

    at = taking.at if taking is not None else 0
    array, smallest = np.ndarray, in_place.SMALLEST  # a name of the closure is found faster

    def step(env: Env) -> None:
        local, scoped = env.local, env.scope.values
        values: list[Any] = []
        for name, kept, sparse in sources:
            value = (scoped if kept else local).get(name)
            if type(value) is not array and not (sparse and type(value) in _SPARSE):
                return plain(env)
            values.append(value)
        try:
            if (
                taking is not None
                and type(values[at]) is array
                and values[at].nbytes >= smallest
                and taking.allowed(env, values)
            ):
                compute = taking.kernel
            else:
                compute = kernel
            result = compute(ctx, *(grouped(values) if grouped else values), **constants)
            if only is not None and type(result) is array:
                local[only] = result
            else:
                store(env, result, values)
        except Exception as error:
            failure = located(error, ctx)
            raise failure from failure.__cause__
        return None

    return step


def _grouping(inputs: Sequence[_Source]) -> Callable[[list[Any]], list[Any]] | None:
    """A function that makes a kernel's arguments of the values of all variables; None where it takes them as they are."""
    if all(source.names and not source.many for source in inputs):
        return None
    ends = itertools.accumulate(len(source.names) for source in inputs)
    cuts = [(slice(end - len(source.names), end), source.many) for end, source in zip(ends, inputs, strict=True)]
    return lambda values: [values[cut] if many else next(iter(values[cut]), None) for cut, many in cuts]


def _writer(
    op_def: OpDef, targets: Sequence[_Target], persistable: frozenset[str], watched: Sequence[int]
) -> Callable[[Env, Any, Sequence[Any]], None]:
    """A function that writes what a kernel returned; ``watched``: positions of the inputs that it may not be a view of."""
    first = op_def.outputs[0].name if op_def.outputs else ""
    put = _putter(persistable, watched)

    def write(env: Env, result: Any, inputs: Sequence[Any]) -> None:
        if not isinstance(result, dict):
            result = {first: result}
        for output, names, many in targets:
            value = result.get(output)
            if not many:
                put(env, names[0], value, inputs)
            elif value is not None:
                for name, item in zip(names, value, strict=True):
                    put(env, name, item, inputs)

    return write


def _putter(persistable: frozenset[str], watched: Sequence[int]) -> Callable[[Env, str, Any, Sequence[Any]], None]:
    """A function that writes one value, unless there is none or nothing asks for it."""

    def put(env: Env, name: str, value: Any, inputs: Sequence[Any]) -> None:
        if value is None or name == EMPTY:
            return
        if watched:
            value = _apart(value, inputs, watched)
        if name in persistable:
            env.scope.set(name, value)
        else:
            env.local[name] = value

    return put


def _only_temporary(op_def: OpDef, targets: Sequence[_Target], persistable: frozenset[str]) -> str | None:
    """The variable of an op that writes a single one, its first output, if that is a temporary."""
    if len(targets) != 1 or targets[0].many:
        return None
    ((output, (name,), _),) = targets
    return name if output == op_def.outputs[0].name and name not in persistable else None


def _inputs(op: Operator, op_def: OpDef, kernel: Kernel) -> list[_Source] | None:
    """What the kernel takes by position, in order; None where it does not take what is given by position, or where the
    LoD to hand on is not that of an input."""
    by_keyword = {kwarg(arg.name): arg for arg in op_def.inputs}
    by_position = _positional(kernel)
    found: list[_Source] = []
    for parameter in list(inspect.signature(kernel).parameters.values())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return None
        arg = by_keyword.get(parameter.name)
        given = op.inputs.get(arg.name, []) if arg is not None else []
        if EMPTY in given or (given and parameter.name not in by_position):
            return None
        if arg is not None and parameter.name in by_position:
            names = given if arg.many else given[:1]
            found.append(_Source(parameter.name, names, arg.many, arg.name in op_def.sparse))
    while found and not found[-1].names:
        found.pop()
    shares = op.inputs.get(op_def.share_lod, []) if op_def.share_lod is not None else []
    return found if set(shares) <= {name for source in found for name in source.names} else None


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


def _targets(op: Operator, op_def: OpDef) -> list[_Target]:
    """What the op writes."""
    given = [_Target(arg.name, op.outputs.get(arg.name, []), arg.many) for arg in op_def.outputs]
    return [target for target in given if any(name != EMPTY for name in target.names)]


def _apart(value: Any, inputs: Sequence[Any], watched: Sequence[int]) -> Any:
    """The value, copied if it lies in one of the watched inputs. An array that owns its memory and is no input is new."""
    if type(value) is np.ndarray and value.base is None and not any(value is given for given in inputs):
        return value
    return detached(value, [inputs[index] for index in watched])
