"""Binds ops to closures that read arguments, call the kernel and write outputs: the plain form, which runs every op."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from fluidlite.core.ir import EMPTY, Block, Operator, Parameter
from fluidlite.dtypes import VarKind
from fluidlite.errors import FluidliteError, OpRunError, ProgramError, UninitializedError
from fluidlite.ops import registry
from fluidlite.ops.context import KernelContext
from fluidlite.ops.registry import Kernel, OpDef, kwarg, parameters_of
from fluidlite.runtime.env import Env, Step
from fluidlite.values.lod import Lod, LoDTensor
from fluidlite.values.selected_rows import SelectedRows


def bind(ctx: KernelContext, changing: Collection[str] = ()) -> Step:
    """A closure that reads an op's arguments, calls its kernel and writes the outputs.

    ``changing``: inputs whose arrays other ops change in place. An output that is a view of one is copied, so that each
    variable keeps the value that its op gave it.
    """
    op_def = registry.get(ctx.op.type)
    kernel = op_def.kernel
    if kernel is None:
        raise ProgramError(f"op {ctx.op.type!r} cannot be run ({ctx.op.origin})")
    read = _reader(ctx, op_def, kernel)
    store = _writer(ctx.op, op_def, changing)

    def step(env: Env) -> None:
        try:
            arguments = read(env)
            lod = _lod_of(env, ctx.op, op_def.share_lod) if op_def.share_lod is not None else ()
            store(env, kernel(ctx, **arguments), lod)
        except Exception as error:
            failure = located(error, ctx)
            raise failure from failure.__cause__

    return step


def bind_requests(ctx: KernelContext) -> Callable[[Env], list[Any]]:
    """A closure that says what an op, which has a `PullRule`, will ask servers for."""
    op_def = registry.get(ctx.op.type)
    assert op_def.pull is not None
    rule, asking = op_def.pull, _reader(ctx, op_def, op_def.pull.requests)

    def requests(env: Env) -> list[Any]:
        try:
            return list(rule.requests(ctx, **asking(env)))
        except Exception as error:
            failure = located(error, ctx)
            raise failure from failure.__cause__

    return requests


def bind_pulls(contexts: Sequence[KernelContext]) -> Step:
    """A closure for ops that ask servers for values: all their requests go out together."""
    bound = []
    for ctx in contexts:
        op_def = registry.get(ctx.op.type)
        assert op_def.pull is not None
        asking = _reader(ctx, op_def, op_def.pull.requests)
        finishing = _reader(ctx, op_def, op_def.pull.finish, skip=2)
        bound.append((ctx, op_def.pull, asking, finishing, _writer(ctx.op, op_def)))

    def step(env: Env) -> None:
        current = contexts[0]
        try:
            asked = []
            for current, rule, asking, _, _ in bound:
                asked.append(rule.requests(current, **asking(env)))
            replies = iter(contexts[0].server.pull(list(itertools.chain(*asked))))
            for (current, rule, _, finishing, store), requests in zip(bound, asked, strict=True):
                mine = list(itertools.islice(replies, len(requests)))
                store(env, rule.finish(current, mine, **finishing(env)), ())
        except Exception as error:
            failure = located(error, current)
            raise failure from failure.__cause__

    return step


def _reader(ctx: KernelContext, op_def: OpDef, kernel: Kernel, skip: int = 1) -> Callable[[Env], dict[str, Any]]:
    """A function that collects the arguments that a kernel takes."""
    op = ctx.op
    takes, attrs = parameters_of(kernel, op_def, skip)
    values = registry.attr_values(op_def, op)
    constants = {kwarg(name): values[name] for name in attrs}
    sources = [_source(ctx, arg) for arg in op_def.inputs if arg.name in takes]

    def read(env: Env) -> dict[str, Any]:
        arguments = dict(constants)
        for name, key, names, many in sources:
            if many:
                arguments[key] = [
                    _unwrap(env.read(n), n, op_def, name, op, optional=free, advice=advice) for n, free, advice in names
                ]
            elif names:
                n, free, advice = names[0]
                arguments[key] = _unwrap(env.read(n), n, op_def, name, op, optional=free, advice=advice)
            else:
                arguments[key] = None
        return arguments

    return read


def _source(ctx: KernelContext, arg: registry.Argument) -> tuple[str, str, list[tuple[str, bool, str]], bool]:
    """(name of the input, the kernel's keyword, its variables, whether many). Of each variable: its name, whether it
    may be absent, and what to do when it is."""
    names = ctx.op.inputs.get(arg.name, [])
    if not names and not arg.optional and not arg.many and not arg.name.endswith("@GRAD"):
        raise ProgramError(f"op {ctx.op.type!r} needs input {arg.name!r} ({ctx.op.origin})")
    return arg.name, kwarg(arg.name), [(n, _may_be_absent(ctx, arg, n), _advice(ctx, n)) for n in names], arg.many


def _may_be_absent(ctx: KernelContext, arg: registry.Argument, name: str) -> bool:
    """Whether an op runs when nothing wrote a variable that it names: a gradient, a temporary in a list, and, where it
    need not name one, what is no tensor (the holder of feeds) and a state that it starts itself.

    Never data nor a parameter: the op would go on without what was not fed or initialised.
    """
    var = ctx.program.find_var(name, ctx.block)
    if var is not None and var.is_data:
        return False
    if arg.name.endswith("@GRAD") or (arg.many and not (var is not None and var.persistable)):
        return True
    starts_it = name in ctx.op.output_arguments()
    return arg.optional and (var is None or var.kind is not VarKind.LOD_TENSOR or starts_it)


def _advice(ctx: KernelContext, name: str) -> str:
    """What to do about a variable that nothing wrote."""
    var = ctx.program.find_var(name, ctx.block)
    if var is not None and var.is_data:
        return "it is data and not in the feed: feed it"
    if isinstance(var, Parameter) and var.is_distributed:
        return (
            "run the startup program; in a trainer the table is on the servers: evaluate by the program that "
            "DistributeTranspiler.get_test_program(test_program) returns"
        )
    return "run the startup program (after minimize), or feed it"


def _unwrap(value: Any, name: str, op_def: OpDef, key: str, op: Operator, *, optional: bool, advice: str) -> Any:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, LoDTensor):
        return value if op_def.takes_lod else value.array
    if value is None:
        if optional or name == EMPTY:
            return None
        raise UninitializedError(f"input {key}={name!r} of op {op.type!r} was never written; {advice}")
    if isinstance(value, SelectedRows) and key not in op_def.sparse:
        raise ProgramError(f"input {key}={name!r} of op {op.type!r} holds SelectedRows, which the op does not accept")
    return value


def _lod_of(env: Env, op: Operator, source: str) -> Lod:
    for name in op.inputs.get(source, ()):
        value = env.read(name)
        if isinstance(value, LoDTensor) and value.lod:
            return value.lod
    return ()


def _writer(op: Operator, op_def: OpDef, changing: Collection[str] = ()) -> Callable[[Env, Any, Lod], None]:
    """A function that writes what a kernel returned; ``changing``: inputs that outputs may not be views of."""
    targets = [(arg.name, arg.many, op.outputs.get(arg.name, [])) for arg in op_def.outputs]
    for name, many, names in targets:
        if len(names) > 1 and not many:
            raise ProgramError(f"output {name!r} of op {op.type!r} takes one argument, not {len(names)} ({op.origin})")

    def write(env: Env, result: Any, lod: Lod) -> None:
        if not isinstance(result, dict):
            if not targets or result is None:
                return
            result = {targets[0][0]: result}
        for name, many, names in targets:
            value = result.get(name)
            if value is None or not names:
                continue
            for argument, item in zip(names, value if many else (value,), strict=True):
                if argument != EMPTY and item is not None:
                    kept = detached(item, [env.read(name) for name in changing]) if changing else item
                    shares = lod and isinstance(kept, np.ndarray) and len(kept) == lod[-1][-1]
                    env.write(argument, LoDTensor(kept, lod) if shares else kept)

    return write


def detached(value: Any, sources: Sequence[Any]) -> Any:
    """The value, copied if it is an array that lies in one of ``sources``."""
    inside = isinstance(value, np.ndarray) and any(
        isinstance(source, np.ndarray) and np.may_share_memory(value, source) for source in sources
    )
    return value.copy() if inside else value


def where(op: Operator, block: Block) -> str:
    """What every error shows: op, block, arguments and the user's source line."""
    inputs = ", ".join(f"{k}={v}" for k, v in op.inputs.items())
    outputs = ", ".join(f"{k}={v}" for k, v in op.outputs.items())
    return (
        f"\n  in op {op.type}({inputs}) -> ({outputs})\n  of block {block.idx}, made at {op.origin or 'unknown place'}"
    )


def located(error: Exception, ctx: KernelContext) -> Exception:
    """The error to raise, showing the op: typed ones stay what they are, any other becomes an OpRunError."""
    if not isinstance(error, FluidliteError):
        wrapped = OpRunError(f"{type(error).__name__}: {error}{where(ctx.op, ctx.block)}")
        wrapped.__cause__ = error
        return wrapped
    if "\n  in op " not in str(error):
        error.args = (f"{error}{where(ctx.op, ctx.block)}",)
    return error
