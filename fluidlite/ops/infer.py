"""What `infer` functions see, and the inference rules that many ops share.

An `infer` function sets shape, dtype, LoD level and kind of an op's outputs from its inputs and attributes. -1 stands
for a dimension known only at run time.
"""

from __future__ import annotations

from typing import Any

from fluidlite.core.ir import EMPTY, Block, Operator, Program, Variable
from fluidlite.core.names import forward_of
from fluidlite.dtypes import VarKind
from fluidlite.errors import ProgramError, ShapeError
from fluidlite.ops import registry
from fluidlite.ops.registry import Infer, OpDef


class InferContext:
    """One op inside its block, for `infer` functions."""

    def __init__(self, program: Program, block: Block, op: Operator, op_def: OpDef) -> None:
        self.program = program
        self.block = block
        self.op = op
        self.op_def = op_def
        self._attrs: dict[str, Any] | None = None

    def inputs(self, name: str) -> list[Variable]:
        """The variables given to an input."""
        return [self.find(argument) for argument in self.op.inputs.get(name, ()) if argument != EMPTY]

    def input(self, name: str) -> Variable:
        """The variable given to an input that must be there."""
        found = self.inputs(name)
        if not found:
            raise ProgramError(f"op {self.op.type!r} needs input {name!r} ({self.op.origin})")
        return found[0]

    def maybe_input(self, name: str) -> Variable | None:
        """The variable given to an optional input."""
        return next(iter(self.inputs(name)), None)

    def outputs(self, name: str) -> list[Variable]:
        """The variables given to an output (without ``@EMPTY@``)."""
        return [self.find(argument) for argument in self.op.outputs.get(name, ()) if argument != EMPTY]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an input that must have one."""
        var = self.input(name)
        if var.shape is None:
            raise ShapeError(f"input {name}={var.name!r} of op {self.op.type!r} has no shape ({self.op.origin})")
        return var.shape

    def attr(self, name: str) -> Any:
        """An attribute's value, the default when the op does not carry it."""
        if self._attrs is None:
            self._attrs = registry.attr_values(self.op_def, self.op)
        return self._attrs[name]

    def set(
        self,
        name: str,
        shape: tuple[int, ...] | None,
        dtype: str | None = None,
        *,
        lod_level: int | None = None,
        kind: VarKind | None = None,
    ) -> None:
        """Set what is known of every variable of an output; None leaves dtype, LoD level or kind as declared."""
        for var in self.outputs(name):
            var.shape = shape
            if dtype is not None:
                var.dtype = dtype
            if lod_level is not None:
                var.lod_level = lod_level
            if kind is not None:
                var.kind = kind

    def error(self, text: str) -> ShapeError:
        """A ShapeError that names the op and the user's line."""
        return ShapeError(f"op {self.op.type!r}: {text} ({self.op.origin})")

    def located(self, error: ProgramError) -> ProgramError:
        """The same kind of error with the op and the user's line in its message."""
        return type(error)(f"op {self.op.type!r}: {error} ({self.op.origin})")

    def find(self, argument: str) -> Variable:
        """The variable that the op's block knows by a name; ProgramError when it knows none."""
        found = self.program.find_var(argument, self.block)
        if found is None:
            raise ProgramError(
                f"op {self.op.type!r} names variable {argument!r}, which block {self.block.idx} does not know ({self.op.origin})"
            )
        return found


def infer_op(program: Program, block: Block, op: Operator) -> None:
    """Run the inference rule of one op."""
    op_def = registry.get(op.type)
    if op_def.infer is not None:
        op_def.infer(InferContext(program, block, op, op_def))


def like(source: str, *outputs: str, dtype: str | None = None) -> Infer:
    """Outputs have the shape, dtype, LoD level and kind of input ``source``."""

    def infer(ctx: InferContext) -> None:
        var = ctx.input(source)
        for output in outputs:
            ctx.set(output, var.shape, dtype or var.dtype, lod_level=var.lod_level, kind=var.kind)

    return infer


def grads_like_forward(ctx: InferContext) -> None:
    """Every output ``X@GRAD`` has shape, dtype and LoD level of the op's input ``X``, or else of the forward variable."""
    for name, arguments in ctx.op.outputs.items():
        sources = ctx.op.inputs.get(forward_of(name), [])
        for index, argument in enumerate(arguments):
            if argument == EMPTY:
                continue
            source = sources[index] if index < len(sources) else forward_of(argument)
            var = ctx.program.find_var(source, ctx.block)
            if var is not None:
                out = ctx.find(argument)
                out.shape, out.dtype, out.lod_level = var.shape, var.dtype, var.lod_level


def grads_without_lod(ctx: InferContext) -> None:
    """As `grads_like_forward`, but declared without LoD: Fluid's programs say so of some ops, whatever the values have."""
    grads_like_forward(ctx)
    for name in ctx.op.outputs:
        for var in ctx.outputs(name):
            var.lod_level = 0


def numel(shape: tuple[int, ...]) -> int:
    """Number of elements, -1 when a dimension is unknown."""
    total = 1
    for dim in shape:
        if dim < 0:
            return -1
        total *= dim
    return total
