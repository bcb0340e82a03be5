"""Gradients as ops: `append_backward` and `gradients` extend a program with the ops of its backward pass.

The algorithm and every name are those of Fluid 1.8. Where Fluid loses a gradient without a word (an op without
gradient, a variable written twice, a target that is also on the way to another target), this raises or is right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from fluidlite import unique_name
from fluidlite.backward import grad_ops, path, values
from fluidlite.core import edit, ir, names
from fluidlite.core.ir import OpRole
from fluidlite.dtypes import VarKind, dtype_number
from fluidlite.errors import GradientError, ProgramError
from fluidlite.framework import Block, Parameter, Variable, VarOrName, name_of
from fluidlite.ops import registry
from fluidlite.ops.infer import infer_op

#: called after each gradient op is appended, with the block and the map gradient name -> forward variable
Callback: TypeAlias = "Callable[[Block, Mapping[str, str]], None]"
#: sets of Variables or names; scripts pass lists as well
NoGradSet: TypeAlias = "Collection[VarOrName] | None"

__all__ = ["append_backward", "calc_gradient", "gradients"]


def append_backward(
    loss: Variable,
    parameter_list: Sequence[VarOrName] | None = None,
    no_grad_set: NoGradSet = None,
    callbacks: Sequence[Callback] | None = None,
    checkpoints: Sequence[VarOrName] | None = None,
) -> list[tuple[Parameter, Variable]]:
    """Append the gradient ops of ``loss`` and return (parameter, gradient) pairs in order of declaration.

    ``loss`` has shape [1]. ``parameter_list`` limits the result to these parameters; ``no_grad_set`` names variables
    that are treated as constants. The gradient of a sparse lookup is SelectedRows, any other has its variable's shape
    and dtype. Each pair is also written to ``op_role_var`` of the op that finishes the gradient.

    Raises GradientError when the loss has another shape, depends on nothing that can be trained, or a gradient would
    be lost on the way; ProgramError when an argument is not what it should be.
    """
    block = _block_of(loss, "loss")
    if checkpoints:
        raise ProgramError("append_backward does not support checkpoints (recomputation)")
    if loss.shape != (1,):
        raise GradientError(f"the loss {loss.name!r} has shape {list(loss.shape)}, not [1]; take its mean or sum")
    if loss.op is None:
        raise GradientError(f"the loss {loss.name!r} is not computed by any op of block {block.idx}")
    parameters = _parameters(block, parameter_list)
    stopped = path.stopped_names(block.program.desc, block.desc, no_grad_names(no_grad_set))
    wanted = {param.name for param in parameters}
    ops = path.find_path(block.program.desc, block.desc, [loss.name], wanted, stopped, only_wanted=False)
    start = _fresh(block, names.grad(loss.name))
    plan = _plan(block, ops, {loss.name: start}, stopped)
    if not plan.ops:
        raise GradientError(
            f"the loss {loss.name!r} depends on nothing that can be trained: what its op reads has stop_gradient, an "
            f"integer dtype, or is in no_grad_set ({_origin_of(loss)})"
        )
    _mark_loss(loss)
    _append(block, _ones(block, loss.name, start), OpRole.BACKWARD | OpRole.LOSS, {start: loss.name})
    _append_all(block, plan, callbacks or ())
    pairs = [(param, block.find_var(plan.final[param.name])) for param in parameters if param.name in plan.final]
    for param, gradient in pairs:
        _note_pair(block, param.name, gradient.name)
    return pairs


def gradients(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Variable | Sequence[Variable | None] | None = None,
    no_grad_set: NoGradSet = None,
) -> list[Variable | None]:
    """Append ops that compute the gradients of ``targets`` with respect to ``inputs``, summed over the targets.

    ``target_gradients`` are the gradients of the targets themselves, each of its target's shape and dtype; None means
    ones. Returns one gradient per input, None where no target depends on the input or its ``stop_gradient`` is set; of
    a single input without gradient, as Fluid, an empty list. May be called again, also on results of earlier calls
    (second order, where the ops have it).

    Raises GradientError where a gradient would be lost on the way, or a target gradient does not fit its target.
    """
    found = _gradients(targets, inputs, target_gradients, no_grad_set)
    return [] if len(found) == 1 and found[0] is None else found


def _gradients(targets: Any, inputs: Any, target_gradients: Any, no_grad_set: NoGradSet) -> list[Variable | None]:
    """`gradients`, always one per input."""
    target_list, input_list = _as_list(targets), _as_list(inputs)
    given = _as_list(target_gradients) if target_gradients is not None else [None] * len(target_list)
    if not target_list:
        raise ProgramError("gradients needs at least one target")
    if len(given) != len(target_list):
        raise GradientError(f"{len(target_list)} targets but {len(given)} target gradients")
    if len({variable.name for variable in target_list}) != len(target_list):
        raise GradientError("gradients was given a target twice")
    block = _block_of(target_list[0], "targets")
    for variable in (*target_list, *input_list):
        if _block_of(variable, "targets and inputs").program is not block.program:
            raise ProgramError(f"{variable.name!r} and {target_list[0].name!r} belong to different programs")

    stopped = path.stopped_names(block.program.desc, block.desc, no_grad_names(no_grad_set))
    wanted = {variable.name for variable in input_list}
    start = {
        target.name: _start_of(block, target, gradient) for target, gradient in zip(target_list, given, strict=True)
    }
    ops = path.find_path(block.program.desc, block.desc, start, wanted, stopped, only_wanted=True)
    plan = _plan(block, ops, start, stopped)
    for target, gradient in zip(target_list, given, strict=True):
        if gradient is None:
            _append_ones_like(block, target, start[target.name])
    _append_all(block, plan, ())
    return [
        block.find_var(plan.final[variable.name])
        if variable.name in plan.final and variable.name not in stopped
        else None
        for variable in input_list
    ]


def calc_gradient(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Variable | Sequence[Variable | None] | None = None,
    no_grad_set: NoGradSet = None,
) -> Variable | list[Variable | None] | None:
    """`gradients` under its older name: a single input gives a bare Variable (or None)."""
    found = _gradients(targets, inputs, target_gradients, no_grad_set)
    return found[0] if len(found) == 1 else found


def _block_of(variable: object, what: str) -> Block:
    if not isinstance(variable, Variable):
        raise ProgramError(f"{what} must be Variables of a program, not {type(variable).__name__}")
    if variable.block.idx != 0:
        raise GradientError(
            f"{variable.name!r} belongs to block {variable.block.idx}: gradients through sub-blocks are not supported"
        )
    return variable.block


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def no_grad_names(given: NoGradSet) -> set[str]:
    """The names in a user's no_grad_set."""
    if isinstance(given, (str, Variable)):
        raise ProgramError("no_grad_set must be a set or list of Variables or names")
    return {name_of(item) for item in given or ()}


def _parameters(block: Block, wanted: Sequence[VarOrName] | None) -> list[Parameter]:
    """The trainable ones of all parameters, or of those asked for."""
    everything = {param.name: param for param in block.program.all_parameters()}
    if wanted is None:
        return [param for param in everything.values() if param.trainable]
    found = []
    for item in _as_list(wanted):
        param = everything.get(name_of(item))
        if param is None:
            raise ProgramError(f"parameter_list names {name_of(item)!r}, which is no parameter of the program")
        if param.trainable:
            found.append(param)
    return found


def _fresh(block: Block, name: str) -> str:
    """``name``, or ``name_k`` where an earlier pass took it."""
    while block.has_var(name):
        name = unique_name.generate(name)
    return name


def _plan(
    block: Block, ops: Sequence[ir.Operator], start: Mapping[str, str], stopped: set[str]
) -> grad_ops.BackwardOps:
    """The backward pass as data; ``start`` maps targets to the variables that their gradients start with."""
    program = block.program.desc
    grad_names = grad_ops.GradNames(block.desc, program.backward_passes)
    no_gradient = stopped | path.unconsumed_outputs(ops, start)
    maker = grad_ops.Maker(program)
    if grad_names.again and any(path.has_sub_block(op) for op in ops):
        raise GradientError(
            "a second gradient pass through ops that run blocks is not supported: compute all gradients of the program by "
            "one call, of the sum of the losses"
        )
    made = maker.make(ops, grad_names, no_gradient)
    starting = {grad_names.of(target): name for target, name in start.items()}
    kinds = {name: var.kind for every in program.blocks for name, var in every.vars.items()}
    is_array = lambda gradient: kinds.get(names.forward_of(gradient)) is VarKind.LOD_TENSOR_ARRAY  # noqa: E731
    kept = grad_ops.prune(made, starting, grad_names.source, is_array)
    values.refuse_lost_values(program, block.desc, kept)
    program.backward_passes += 1
    plan = grad_ops.accumulate(kept, starting, grad_names.source, block.idx, is_array)
    return replace(plan, blocks=maker.inner)


def _mark_loss(loss: Variable) -> None:
    op = loss.op
    assert op is not None
    op.set_attr("op_role", int(op.desc.role | OpRole.LOSS))


def _ones(block: Block, target: str, gradient: str, shape_tensor: str | None = None) -> ir.Operator:
    """An op that fills a target's gradient with ones, of the target's run-time shape when ``shape_tensor`` holds it."""
    var = block.find_var(target)
    attrs = {"shape": var.shape, "value": 1.0, "dtype": dtype_number(var.dtype)}
    op = ir.Operator("fill_constant", outputs={"Out": [gradient]}, origin=_origin_of(var))
    op.attrs = registry.attrs_for(registry.get("fill_constant"), attrs)
    if shape_tensor is not None:
        op.inputs["ShapeTensor"] = [shape_tensor]
    return op


def _start_of(block: Block, target: Variable, given: Variable | None) -> str:
    """The variable that a target's gradient starts with: the given one, or a new name for ones."""
    if given is None:
        return _fresh(block, names.grad(target.name))
    if given.dtype != target.dtype or not _may_be_equal(given.shape, target.shape):
        raise GradientError(
            f"target gradient {given.name!r} {given.dtype} {list(given.shape)} does not fit its target "
            f"{target.name!r} {target.dtype} {list(target.shape)}"
        )
    return given.name


def _append_ones_like(block: Block, target: Variable, gradient: str) -> None:
    shape = names.shape_of(target.name)
    block.create_var(shape, dtype="int32", shape=[len(target.shape)])
    read = ir.Operator("shape", inputs={"Input": [target.name]}, outputs={"Out": [shape]}, origin=_origin_of(target))
    _append(block, read, OpRole.BACKWARD, {})
    _append(block, _ones(block, target.name, gradient, shape), OpRole.BACKWARD, {gradient: target.name})


def _may_be_equal(a: Sequence[int], b: Sequence[int]) -> bool:
    return len(a) == len(b) and all(x == y or x < 0 or y < 0 for x, y in zip(a, b, strict=True))


def _origin_of(variable: Variable) -> str:
    return variable.op.desc.origin if variable.op is not None else ""


def _append_all(block: Block, plan: grad_ops.BackwardOps, callbacks: Sequence[Callback]) -> None:
    program = block.program
    for inner in plan.blocks:
        edit.add_block(program.desc, inner.parent, forward=inner.forward.idx)
    _append_ops(block, plan, callbacks, {})


def _append_ops(
    block: Block, plan: grad_ops.BackwardOps, callbacks: Sequence[Callback], outside: Mapping[str, str]
) -> None:
    """Append a pass, each gradient block before the op that runs it. ``outside``: gradients of the blocks around."""
    whole = {**outside, **{gradient: variable for variable, gradient in plan.final.items()}}
    for op in plan.ops:
        inner = plan.inner.get(id(op))
        if inner is not None and inner.plan is not None:
            _append_ops(block.program.block(inner.index), inner.plan, callbacks, whole)
        _append(block, op, OpRole.BACKWARD, plan.source)
        for callback in callbacks:
            callback(block, whole)


def _append(block: Block, op: ir.Operator, role: OpRole, source: Mapping[str, str]) -> None:
    """Append an op; outputs that are new gradients are declared like their variables, as far as the op leaves it open."""
    program = block.program.desc
    op.attrs["op_role"] = registry.coerce_attr(ir.AttrType.INT, int(role))
    new: list[tuple[ir.Variable, ir.Variable]] = []
    # A loop reads gradients that its end writes, for the step before.
    for name in (*op.input_arguments(), *op.output_arguments()):
        if name in source and program.find_var(name, block.desc) is None:
            forward = block.find_var(source[name]).desc
            var = ir.Variable(name, dtype=forward.dtype, shape=forward.shape)
            if name not in op.output_arguments():
                var.kind = forward.kind
            new.append((edit.add_var(program, block.desc, var), forward))
    edit.append_op(program, block.desc, op)
    infer_op(program, block.desc, op)
    for var, forward in new:
        var.shape = _filled_in(var.shape, forward.shape)


def _filled_in(inferred: tuple[int, ...] | None, forward: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """A gradient's shape with the dimensions that only its variable knows."""
    if inferred is None or forward is None or len(inferred) != len(forward):
        return inferred
    return tuple(known if dim < 0 else dim for dim, known in zip(inferred, forward, strict=True))


def _note_pair(block: Block, param: str, gradient: str) -> None:
    """Note (parameter, gradient) on the op that finishes the gradient, for whoever moves it later; as in Fluid the
    newest pair comes first."""
    op = block.var(gradient).op
    assert op is not None
    op.set_attr("op_role_var", (param, gradient, *op.desc.role_var))
