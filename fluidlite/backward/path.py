"""Which ops a gradient flows through: the way back from the targets, and refusals where a gradient would be lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from fluidlite.core.ir import AttrType, Block, Operator, OpRole, Program
from fluidlite.dtypes import VarKind, is_float
from fluidlite.errors import GradientError
from fluidlite.ops.steps import makes_gradient

#: ops that read only the shape of their inputs: no gradient is lost where the way back ends at one
SHAPE_ONLY: Final = frozenset(
    {
        "fill_any_like",
        "fill_constant_batch_size_like",
        "fill_zeros_like",
        "gaussian_random_batch_size_like",
        "shape",
        "uniform_random_batch_size_like",
    }
)
_NOT_THE_MODEL: Final = OpRole.OPTIMIZE | OpRole.LR_SCHED


def stopped_names(program: Program, block: Block, given: Collection[str] = ()) -> set[str]:
    """Variables that get no gradient: ``stop_gradient``, not of a float dtype, or ``given`` by the user."""
    stopped = set(given)
    current: Block | None = block
    while current is not None:
        stopped.update(name for name, var in current.vars.items() if var.stop_gradient or not is_float(var.dtype))
        current = program.blocks[current.parent] if current.parent >= 0 else None
    return stopped


def find_path(
    program: Program,
    block: Block,
    targets: Collection[str],
    wanted: Collection[str],
    stopped: Collection[str],
    *,
    only_wanted: bool,
) -> list[Operator]:
    """The ops, in program order, through which gradients of ``targets`` flow back.

    ``wanted`` are the variables whose gradients are asked for; ``only_wanted`` leaves out ops that none of them
    reaches (one that gets no gradient reaches them too, as in Fluid). Raises GradientError where a float that depends
    on ``wanted`` comes out of an op without gradient or of a sub-block, or where a variable on the way is overwritten.
    """
    reached = _reached_from(block.ops, set(wanted).difference(stopped), stopped)
    between = _reached_from(block.ops, wanted, stopped)
    needed = set(targets)
    path: list[Operator] = []
    for op in reversed(block.ops):
        if needed.isdisjoint(op.output_arguments()):
            continue
        if not makes_gradient(op):
            _refuse_if_lost(op, needed, reached)
        elif not only_wanted or not between.isdisjoint(op.input_arguments()):
            path.append(op)
            if has_sub_block(op):
                _refuse_lost_inside(program, op, needed, reached)
            needed.update(name for name in op.input_arguments() if name not in stopped)
    path.reverse()
    arrays = {name for name, var in block.vars.items() if var.kind is VarKind.LOD_TENSOR_ARRAY}
    _refuse_overwritten(path, needed - arrays)
    return path


def unconsumed_outputs(path: Iterable[Operator], targets: Collection[str]) -> set[str]:
    """Outputs of the path that neither a later op of the path nor their own op reads: their gradient is zero."""
    consumed = set(targets)
    dead: set[str] = set()
    for op in reversed(list(path)):
        consumed.update(op.input_arguments())
        if not has_sub_block(op):
            dead.update(name for name in op.output_arguments() if name not in consumed)
    return dead


def has_sub_block(op: Operator) -> bool:
    """Whether an op runs other blocks (while, conditional_block)."""
    return any(attr.type in (AttrType.BLOCK, AttrType.BLOCKS) for attr in op.attrs.values())


def _reached_from(ops: Iterable[Operator], sources: Collection[str], stopped: Collection[str]) -> set[str]:
    """The variables that depend on ``sources`` through variables that may have gradients."""
    reached = set(sources)
    for op in ops:
        if not op.role & _NOT_THE_MODEL and not reached.isdisjoint(op.input_arguments()):
            reached.update(name for name in op.output_arguments() if name not in stopped)
    return reached


def _refuse_lost_inside(program: Program, op: Operator, needed: Collection[str], reached: Collection[str]) -> None:
    """Refuse an op without gradient in the block that ``op`` runs, or in one below; what a step leaves, the next one reads."""
    block = program.blocks[op.attr("sub_block")]
    stopped = own_stopped(program, block)
    carried = {*op.attr("ex_states", ()), *op.inputs.get("inputs", ())}
    inside = {*reached, *carried}
    wanted = {*needed, *op.attr("states", ())}
    for _ in range(2):
        inside |= _reached_from(block.ops, inside.difference(stopped), stopped)
        for each in reversed(block.ops):
            if not wanted.isdisjoint(each.output_arguments()):
                wanted.update(name for name in each.input_arguments() if name not in stopped)
    for each in block.ops:
        if wanted.isdisjoint(each.output_arguments()):
            continue
        if not makes_gradient(each):
            _refuse_if_lost(each, wanted, inside)
        elif has_sub_block(each):
            _refuse_lost_inside(program, each, wanted, inside)


def own_stopped(program: Program, block: Block) -> set[str]:
    """What gets no gradient inside a sub-block: its variables with ``stop_gradient``, and what is no float, also outside.

    Float variables outside do, whatever their ``stop_gradient``: it counts where the block's op stands.
    """
    stopped = {name for name, var in block.vars.items() if var.stop_gradient}
    current: Block | None = block
    while current is not None:
        stopped.update(name for name, var in current.vars.items() if not is_float(var.dtype))
        current = program.blocks[current.parent] if current.parent >= 0 else None
    return stopped


def _refuse_if_lost(op: Operator, needed: set[str], reached: set[str]) -> None:
    if op.type in SHAPE_ONLY or op.role & _NOT_THE_MODEL:
        return
    lost_in = next((name for name in op.input_arguments() if name in reached), None)
    lost_out = next((name for name in op.output_arguments() if name in needed and name in reached), None)
    if lost_in is None or lost_out is None:
        return
    raise GradientError(
        f"op {op.type!r} has no gradient, but the gradient of {lost_in!r} flows through its output {lost_out!r}; set "
        f"stop_gradient of {lost_out!r} to leave this way out ({op.origin})"
    )


def _refuse_overwritten(path: list[Operator], needed: set[str]) -> None:
    """A variable written twice holds its last value when backward runs, and two gradients share its name."""
    writer: dict[str, Operator] = {}
    for op in path:
        for name in op.output_arguments():
            before = writer.get(name)
            kept = name in op.input_arguments() or op.type == "conditional_block"
            if before is not None and name in needed and not kept:
                raise GradientError(
                    f"variable {name!r} is written by op {before.type!r} ({before.origin}) and again by op {op.type!r} "
                    f"({op.origin}): the gradient needs both values; write the second one to a new variable"
                )
            writer[name] = op
