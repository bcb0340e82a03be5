"""Runs one op, and its gradient ops, from values: what the tests of records and of goldens share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fluidlite.core import edit, names
from fluidlite.core.ir import EMPTY, Block, Operator, Program, Variable
from fluidlite.dtypes import VarKind, dtype_name
from fluidlite.ops import registry
from fluidlite.ops.infer import infer_op
from fluidlite.ops.rank_table import RankTable
from fluidlite.ops.registry import OpDef
from fluidlite.runtime.plan import Env, Plan
from fluidlite.runtime.scope import Scope
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows, to_dense

#: outputs that programs must declare as Fluid's do, although no run gives that shape
SHAPE_OF_FLUID = {
    ("sequence_pad", "Out"),
    ("get_tensor_from_selected_rows", "Out"),
    ("beam_search", "selected_ids"),
    ("beam_search", "selected_scores"),
    ("linear_chain_crf", "Alpha"),
    ("linear_chain_crf", "EmissionExps"),
    ("shrink_rnn_memory", "Out"),
    ("tensor_array_to_tensor", "Out"),
    ("tensor_array_to_tensor", "OutIndex"),
}
Values = Mapping[str, Sequence[Any]]


@dataclass
class Bench:
    """A program of one op whose inputs are fed, plus (after `add_gradient`) the ops of its gradient."""

    op_def: OpDef
    program: Program = field(default_factory=Program)
    feeds: dict[str, Any] = field(default_factory=dict)
    _plan: Plan | None = None
    _planned: int = 0

    @property
    def block(self) -> Block:
        return self.program.root

    @property
    def op(self) -> Operator:
        return self.block.ops[0]

    def run(self, feeds: Mapping[str, Any] | None = None) -> Env:
        """Run the program on copies of the fed values (or of others in their place)."""
        given = {**self.feeds, **(feeds or {})}
        if self._plan is None or self._planned != len(self.block.ops):
            self._plan, self._planned = Plan(self.program, None), len(self.block.ops)
        return self._plan.run(Scope(), {name: copied(value) for name, value in given.items()})

    def outputs(self, env: Env) -> dict[str, list[Any]]:
        """What the op wrote, by output name."""
        return {name: [env.read(argument) for argument in found] for name, found in self.op.outputs.items()}


def build(
    op_type: str,
    inputs: Values,
    attrs: Mapping[str, Any],
    *,
    n_outputs: Mapping[str, int] | None = None,
    inplace: Mapping[str, str] | None = None,
    initial: Values | None = None,
    unknown_batch: bool = False,
) -> Bench:
    """Declare variables for the values, append the op and infer its outputs.

    ``inplace``: output -> input whose variable it shares. ``initial``: values of output variables before the run.
    ``unknown_batch``: declare the first dimension of every input as -1.
    """
    bench = Bench(registry.get(op_type))
    op = Operator(op_type, attrs=registry.attrs_for(bench.op_def, attrs), origin="case")
    for name, values in inputs.items():
        op.inputs[name] = [_feed(bench, f"{name}_{i}", value, unknown_batch) for i, value in enumerate(values)]
    for arg in bench.op_def.outputs:
        count = (n_outputs or {}).get(arg.name, 1)
        if arg.name in (inplace or {}):
            op.outputs[arg.name] = list(op.inputs[(inplace or {})[arg.name]])
            continue
        op.outputs[arg.name] = [f"{arg.name}_out{i}" for i in range(count)]
        for argument, value in zip(op.outputs[arg.name], (initial or {}).get(arg.name, [None] * count), strict=True):
            _declare(bench, argument, value, unknown_batch)
    registry.check_arguments(bench.op_def, op)
    edit.append_op(bench.program, bench.block, op)
    infer_op(bench.program, bench.block, op)
    return bench


def add_gradient(bench: Bench, out_grads: Mapping[str, Any], no_grad: Sequence[str] = ()) -> list[Operator]:
    """Append the ops of the gradient. ``out_grads``: values by the name of the forward op's output variable."""
    assert bench.op_def.grad is not None
    for argument, value in out_grads.items():
        _feed_as(bench, names.grad(argument), value)
    unwanted = {names.grad(argument) for name in no_grad for argument in bench.op.inputs.get(name, ())}
    made = bench.op_def.grad(bench.op)
    for op in made:
        for name, arguments in op.outputs.items():
            op.outputs[name] = [EMPTY if argument in unwanted else argument for argument in arguments]
        op.inputs = {name: _known(bench, name, arguments) for name, arguments in op.inputs.items()}
        for argument in op.output_arguments():
            if argument not in bench.block.vars:
                edit.add_var(bench.program, bench.block, Variable(argument))
        registry.check_arguments(registry.get(op.type), op)
        edit.append_op(bench.program, bench.block, op)
        infer_op(bench.program, bench.block, op)
    return made


def input_gradient(bench: Bench, env: Env, name: str) -> list[Any]:
    """The gradients of an input's arguments, None where none was made."""
    return [env.read(names.grad(argument)) for argument in bench.op.inputs.get(name, ())]


def check_inferred(bench: Bench, value: Any, name: str, argument: str) -> None:
    """What `infer` said of an output's variable must hold for the value that it got."""
    var = bench.block.vars[argument]
    array = numbers(value)
    if not isinstance(array, np.ndarray):
        return
    assert isinstance(value, SelectedRows) == (var.kind is VarKind.SELECTED_ROWS), f"inferred kind of {name}"
    assert var.dtype == array.dtype.name, f"inferred dtype of {name}"
    if isinstance(value, SelectedRows) or var.shape is None or (bench.op_def.type, name) in SHAPE_OF_FLUID:
        return
    assert len(var.shape) == array.ndim, f"inferred rank of {name}: {var.shape} for {array.shape}"
    fits = all(d < 0 or d == a for d, a in zip(var.shape, array.shape, strict=True))
    assert fits, f"inferred shape of {name}: {var.shape} for {array.shape}"
    assert len(lod_of(value)) <= var.lod_level, f"inferred LoD level of {name}"


def copied(value: Any) -> Any:
    """A value that shares no array with the given one (tables are shared: they cannot be copied)."""
    if isinstance(value, list):
        return [copied(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (LoDTensor, SelectedRows)):
        return with_array(value, numbers(value).copy())
    return value


def array_of(value: Any) -> Any:
    """The numbers of a value, without LoD; SelectedRows as the dense matrix."""
    if isinstance(value, LoDTensor):
        return value.array
    return to_dense(value) if isinstance(value, SelectedRows) else value


def with_array(value: Any, array: Any) -> Any:
    """The same kind of value with other numbers."""
    if isinstance(value, LoDTensor):
        return LoDTensor(array, value.lod)
    if isinstance(value, SelectedRows):
        return SelectedRows(value.rows, array, value.height)
    return array


def numbers(value: Any) -> Any:
    """The array that a value wraps, as stored (SelectedRows: its rows)."""
    if isinstance(value, LoDTensor):
        return value.array
    return value.value if isinstance(value, SelectedRows) else value


def lod_of(value: Any) -> Any:
    """The LoD of a value, () when it has none."""
    return value.lod if isinstance(value, LoDTensor) else ()


def _known(bench: Bench, name: str, arguments: list[str]) -> list[str]:
    """Gradient inputs that nothing wrote stay in the op by name; they need a declaration."""
    for argument in arguments:
        if argument not in bench.block.vars:
            assert "@GRAD" in argument, (name, argument)
            edit.add_var(bench.program, bench.block, Variable(argument))
    return arguments


def _feed(bench: Bench, name: str, value: Any, unknown_batch: bool) -> str:
    return _feed_as(bench, name, value, unknown_batch)


def _feed_as(bench: Bench, name: str, value: Any, unknown_batch: bool = False) -> str:
    _declare(bench, name, value, unknown_batch)
    return name


def _declare(bench: Bench, name: str, value: Any, unknown_batch: bool) -> None:
    var = Variable(name)
    if value is not None:
        bench.feeds[name] = value
        describe(var, value)
        if unknown_batch and var.kind is VarKind.LOD_TENSOR and var.shape:
            var.shape = (-1, *var.shape[1:])
    edit.add_var(bench.program, bench.block, var)


def describe(var: Variable, value: Any) -> None:
    """Declare a variable as what its value is."""
    if isinstance(value, list):
        var.kind = VarKind.LOD_TENSOR_ARRAY
        entry = next((item for item in value if item is not None), None)
        if entry is not None:
            var.dtype, var.lod_level = dtype_name(numbers(entry).dtype), max(len(lod_of(item)) for item in value)
        return
    if isinstance(value, RankTable):
        var.kind = VarKind.LOD_RANK_TABLE
        return
    array = numbers(value)
    if isinstance(value, SelectedRows):
        var.kind = VarKind.SELECTED_ROWS
        var.shape = (value.height or -1, *array.shape[1:])
    elif isinstance(array, np.ndarray):
        var.shape = array.shape
        var.lod_level = len(lod_of(value))
    else:  # a table
        var.kind = VarKind.SELECTED_ROWS
        var.shape = (value.height or -1, value.width)
    var.dtype = dtype_name(array.dtype)
