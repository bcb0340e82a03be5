"""Whether gradient ops find the values that they need: refusals where a variable was overwritten in between.

Inside a block that a loop runs, a variable of the block has its value of the end of the step, and one outside that the step
overwrites has its value of the start (see `fluidlite.ops.steps`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

from fluidlite.backward.grad_ops import GradOp, InnerBackward
from fluidlite.core import names
from fluidlite.core.ir import EMPTY, Block, Operator, OpRole, Program
from fluidlite.dtypes import VarKind
from fluidlite.errors import GradientError
from fluidlite.ops.steps import overwritten

#: inputs of which gradient ops read the shape (or LoD) only
_SHAPES: Final = {
    "concat_grad": {"X"},
    "elementwise_add_grad": {"X", "Y"},
    "elementwise_sub_grad": {"X", "Y"},
    "expand_grad": {"X"},
    "fill_zeros_like": {"X"},
    "gather_grad": {"X"},
    "gather_nd_grad": {"X"},
    "mean_grad": {"X"},
    "merge_lod_tensor": {"X"},
    "pad_grad": {"X"},
    "read_from_array": {"X_W"},
    "reduce_mean_grad": {"X"},
    "reduce_sum_grad": {"X"},
    "rnn_memory_helper_grad": {"X", "Out"},
    "shrink_rnn_memory_grad": {"X"},
    "slice_grad": {"Input"},
}
_WRITES: Final = attrgetter("writes")
#: name -> positions of the ops that give it a new value for good
Writers = Mapping[str, Sequence[int]]


def refuse_lost_values(program: Program, block: Block, grad_ops: Sequence[GradOp]) -> None:
    """Raise GradientError for the first gradient op of a pass that would compute with another value than its op did."""
    _check(program, block, grad_ops, frozenset())
    for grad_op in filter(_WRITES, grad_ops):
        if grad_op.inner is not None:
            _check_inner(program, grad_op.inner)


def _check_inner(program: Program, inner: InnerBackward) -> None:
    outside = frozenset(overwritten(program, inner.forward))
    kept = [grad_op for grad_op in inner.kept if grad_op.writes]
    _check(program, inner.forward, kept, outside)
    _check_gradients(inner.forward, kept, outside)
    for grad_op in kept:
        if grad_op.inner is not None:
            _check_inner(program, grad_op.inner)


def _check(program: Program, block: Block, grad_ops: Sequence[GradOp], restored: frozenset[str]) -> None:
    """``restored``: variables that have their value of the start of the block."""
    places = {id(op): index for index, op in enumerate(block.ops)}
    writers = _writers(program, block, {id(grad_op.forward) for grad_op in grad_ops})
    for grad_op in filter(_WRITES, grad_ops):
        at = places[id(grad_op.forward)]
        for name in _values(program, grad_op):
            positions = writers.get(name, ())
            wrong = [place for place in positions if (place <= at if name in restored else place > at)]
            if wrong:
                _refuse(grad_op.forward, name, block.ops[wrong[0]])


def _writers(program: Program, block: Block, differentiated: set[int]) -> dict[str, list[int]]:
    """Where variables get new values. What the gradient of an op undoes (a counter's step) does not count; neither do
    parameters and what else outlives a run."""
    found: dict[str, list[int]] = {}
    for index, op in enumerate(block.ops):
        if op.role & OpRole.OPTIMIZE:
            continue
        undone = id(op) in differentiated
        inner = op.attr("sub_block")
        if undone and inner is not None:
            written: Iterable[str] = overwritten(program, program.blocks[inner])
        elif undone and op.type == "increment":
            written = ()
        else:
            written = op.output_arguments()
        for name in written:
            var = program.find_var(name, block)
            if var is not None and var.kind is VarKind.LOD_TENSOR and not var.persistable:
                found.setdefault(name, []).append(index)
    return found


def _values(program: Program, grad_op: GradOp) -> Iterator[str]:
    """The values that a gradient op reads, gradients left out."""
    if grad_op.inner is None:
        shapes = _SHAPES.get(grad_op.op.type, set())
        arguments = dict.fromkeys(
            name for key, given in grad_op.op.inputs.items() if key not in shapes for name in given if name != EMPTY
        )
        yield from (name for name in arguments if name not in grad_op.reads and not names.is_grad(name))
        return
    forward = grad_op.inner.forward
    recorded = {*forward.vars, *overwritten(program, forward)}
    for inside in filter(_WRITES, grad_op.inner.kept):
        yield from (name for name in _values(program, inside) if name not in recorded)


def _refuse(op: Operator, name: str, writer: Operator) -> None:
    raise GradientError(
        f"the gradient of op {op.type!r} ({op.origin}) needs the value that variable {name!r} has there, but op "
        f"{writer.type!r} ({writer.origin}) gives it another one; let one of them use a variable of its own, made by "
        "layers.assign"
    )


def _check_gradients(block: Block, kept: Sequence[GradOp], outside: frozenset[str]) -> None:
    """A variable that a block overwrites and reads afterwards would need two gradients of one name."""
    written: dict[str, Operator] = {}
    read: set[str] = set()
    for grad_op in kept:
        for gradient in grad_op.in_order():
            name = names.forward_of(gradient)
            if name in outside and name not in read and name in written:
                raise GradientError(
                    f"variable {name!r} is overwritten in block {block.idx} by op {grad_op.forward.type!r} "
                    f"({grad_op.forward.origin}) and read there afterwards by op {written[name].type!r} "
                    f"({written[name].origin}): let that one read what is assigned to it"
                )
            read.add(name)
        for gradient in grad_op.op.output_arguments():
            if gradient != EMPTY:
                written.setdefault(names.forward_of(gradient), grad_op.forward)
